"""clip_report counts what the loss does: against a loop over the tokens, written apart."""

import math

import pytest
import torch

import pseudograd as pg

from .formulas import FORMULAS, HALF_LOW, TWICE, tokens

BOUNDS = {
    "ppo": (0.8, 1.2),
    "dapo": (0.8, 1.28),
    "cispo": (0.0, 5.0),
    "gspo": (1 - 3e-4, 1 + 4e-4),
    "ce_gppo": (0.8, 1.2),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_counts_and_energy_are_those_of_a_loop_over_the_tokens(name: str) -> None:
    lr, a = tokens()
    lo, hi = BOUNDS[name]
    slope = FORMULAS[name](lr, a)[1]
    ratio = (lr.mean(-1, keepdim=True).expand_as(lr) if name == "gspo" else lr).exp()
    counts: dict[tuple[str, str], list[float]] = {}
    for r, adv, s in zip(ratio.reshape(-1).tolist(), a.reshape(-1).tolist(), slope.reshape(-1).tolist(), strict=True):
        sign = "A > 0" if adv > 0 else "A < 0" if adv < 0 else "A = 0"
        side = "below" if r < lo else "above" if r > hi else "between"
        cell = counts.setdefault((sign, side), [0, 0, 0.0, 0.0])
        cell[0] += 1
        cell[1] += adv != 0 and s == 0
        cell[2] += (adv * r) ** 2
        cell[3] += s**2
    report = pg.policy.clip_report(lr, a, **pg.policy.presets[name].settings)
    assert len(report.cells) == 9
    for cell in report.cells:
        expected = counts.get((cell.sign, cell.side), [0, 0, 0.0, 0.0])
        assert [cell.tokens, cell.silenced, cell.energy, cell.passed] == pytest.approx(expected)
    assert report.tokens == lr.numel()
    assert report.silenced_share == (slope[a != 0] == 0).sum().item() / lr.numel()
    energy, passed = (sum(cell[k] for cell in counts.values()) for k in (2, 3))
    assert report.energy_share == pytest.approx(1 - passed / energy)


def test_the_mask_is_left_out_and_nothing_is_left_behind() -> None:
    lr, a = tokens()
    mask = torch.zeros_like(lr, dtype=torch.bool)
    mask[:, :5] = True
    leaf = lr.clone().requires_grad_()
    with torch.no_grad():
        report = pg.policy.clip_report(leaf, a, mask=mask)
    assert report == pg.policy.clip_report(lr[:, :5], a[:, :5])
    assert leaf.grad is None


def test_ties_are_counted_in_the_dtype_of_the_log_ratio() -> None:
    lr = torch.tensor([HALF_LOW, TWICE, TWICE, 0.1], dtype=torch.float64)
    report = pg.policy.clip_report(lr, torch.ones(4), low=0.5, high=1.0)
    assert (report.at_low, report.at_high, report.ties) == (1, 2, 3)
    generator = torch.Generator().manual_seed(0)
    drawn = 0.3 * torch.randn(4000, generator=generator)
    a = torch.randn(4000, generator=generator)
    assert pg.policy.clip_report(drawn, a).ties == 0
    assert pg.policy.clip_report(drawn.bfloat16(), a.bfloat16()).ties > 20


def test_the_report_prints_its_table() -> None:
    lr = torch.tensor([0.5, 0.5, 0.0, -0.5, -0.5, math.log(2.0)], dtype=torch.float64)
    a = torch.tensor([1.0, -1.0, 1.0, 1.0, -1.0, 0.0], dtype=torch.float64)
    assert str(pg.policy.clip_report(lr, a, low=None, high=1.0)) == "\n".join(
        [
            "clip_report: 6 tokens, ratio clipped to [0, 2], rule inward",
            "                          below  between    above",
            "  A > 0                       0        3        0",
            "    silenced                  0        0        0",
            "  A < 0                       0        2        0",
            "    silenced                  0        0        0",
            "  A = 0                       0        1        0",
            "    silenced                  0        0        0",
            "silenced: 0.0% of the tokens; the clip takes 0.0% of the gradient's energy",
            "exactly at a bound in float64: 1; min(r * A, clamp(r) * A) passes their gradient: 1 of it with torch<=2.13, "
            "0.5 of it with torch>=2.14",
        ]
    )


def test_a_ceiling_is_named_and_a_nan_is_in_no_cell() -> None:
    lr, a = torch.tensor([2.0, 0.0, math.nan, 0.0]), torch.tensor([-1.0, 1.0, 1.0, math.nan])
    report = pg.policy.clip_report(lr, a, low=None, high=None, ceiling=3.0, rule="identity")
    assert (report.tokens, report.nan, report.silenced) == (2, 2, 1)
    assert "2 tokens, ratio at most 3 where A < 0, rule identity\n" in str(report)
    assert str(report).endswith("energy\nNaN as log ratio or advantage: 2 further tokens")
    infinite = pg.policy.clip_report(torch.tensor([math.inf, 0.0]), torch.ones(2))
    assert str(infinite).endswith("the gradient's energy is not finite, so the share that the clip takes is unknown")


def test_empty_batches_and_bad_calls() -> None:
    """Errors are those of policy_loss."""
    for shape in ((0,), (0, 3)):
        report = pg.policy.clip_report(torch.zeros(shape), torch.zeros(shape))
        assert (report.tokens, report.silenced_share, report.energy_share) == (0, 0.0, 0.0)
        assert "0 tokens" in str(report)
    with pytest.raises(ValueError, match="policy_loss: low must be between 0 and 1"):
        pg.policy.clip_report(torch.zeros(2), torch.zeros(2), low=2.0)
    with pytest.raises(TypeError, match="policy_loss: log_ratio must be floating point"):
        pg.policy.clip_report(torch.zeros(2).long(), torch.zeros(2))


def test_the_energy_is_that_of_the_same_loss_without_its_bounds() -> None:
    """The rule "reinforce" gives A whatever the ratio is: a loss of it alone has no clip, and GPPO's rule adds to the gradient."""
    lr, a = tokens()
    reports = {name: pg.policy.clip_report(lr, a, **pg.policy.presets[name].settings) for name in ("gpg", "up_grpo")}
    assert reports["gpg"].energy_share == 0
    assert reports["gpg"].clip == "no clip, rule reinforce"
    free = torch.where(a > 0, a, a * lr.exp())
    blocked = (a < 0) & ((lr.exp() < 0.8) | (lr.exp() > 3))
    assert reports["up_grpo"].energy_share == pytest.approx((free[blocked].square().sum() / free.square().sum()).item())
    low = pg.policy.clip_report(-lr.abs() - 1, -a.abs(), **pg.policy.presets["gppo"].settings)
    assert low.energy_share < 0
    assert f"the clip adds {-low.energy_share:.1%} to the gradient's energy" in str(low)


def test_a_diagnosis_counts_no_backward_pass_of_a_report_or_of_gradient() -> None:
    p = torch.nn.Parameter(torch.zeros(3))
    with pg.diagnose() as d:
        for _ in range(2):
            pg.policy.clip_report(p * 1.0, torch.ones(3))
            pg.gradient(lambda x: x.clamp(0.0, 1.0), torch.linspace(-1.0, 2.0, 5))
            (p * 2.0).sum().backward()
    assert d.backwards == 2
    assert not [site for site in d.sites if site.op == "clamp"]
