"""Each class of finding on a case that has it, with its sentences; and which cuts decide the loss."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import pseudograd
from pseudograd.diagnosis import diagnose
from pseudograd.diagnosis.context import Diagnosis
from pseudograd.torch_table.eras import OPEN_ERA, installed_era

from .checks import codes, diagnosed, follow, line_of, number_of, only, site_of, starved
from .trainers import steps


class Planted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.code = nn.Linear(4, 8), nn.Embedding(8, 6)
        self.scale, self.middle = nn.Parameter(torch.tensor(1.0)), nn.Parameter(torch.ones(6))
        self.head, self.unused, self.logged = nn.Linear(6, 3), nn.Linear(2, 2), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        index = self.encoder(x).argmax(-1)
        h = self.code(index)
        h = h * self.scale.item()
        with torch.no_grad():
            mean = (h + self.middle).mean(0)
        self.log = self.logged(x).detach().sum()
        return self.head(h - mean)


def test_each_cut_is_blamed_at_its_line_and_a_cut_that_decides_nothing_is_harmless() -> None:
    net, x, y = Planted(), torch.randn(16, 4), torch.randint(3, (16,))
    with diagnose(net) as d:
        out = net(x)
        (out.argmax(-1) == y).float().mean()
        functional.cross_entropy(out, y).backward()
    reaches = {number_of(cut.where): cut.reaches_loss for cut in d.structural}
    assert reaches[line_of("self.log =")] is False
    assert reaches[line_of("(out.argmax(-1) == y)")] is False
    assert reaches[line_of("index =")] is True
    assert reaches[line_of("h = h * self.scale.item()")] is None
    blamed = {record.parameter: record.cause and number_of(record.cause.where) for record in d.starved}
    nowhere = dict.fromkeys(["unused.weight", "unused.bias", "logged.weight", "logged.bias"])
    encoder = dict.fromkeys(["encoder.weight", "encoder.bias"], line_of("index ="))
    assert blamed == {**encoder, **nowhere, "scale": line_of("h = h * self.scale.item()"), "middle": line_of("mean =")}
    lines = {number_of(finding.where) for finding in d.findings}
    assert lines == set(blamed.values()) - {None} | {line_of("self.head, self.unused, self.logged =")}
    assert "on no path to the loss" in next(record.why for record in d.starved if record.parameter == "unused.weight")


CUTS: list[tuple[Callable[[Tensor], Tensor], str]] = [
    (lambda p: p.detach(), ".detach()"),
    (lambda p: p.data, ".data"),
    (lambda p: p.argmin().float() + p.detach() * 0, "argmin"),
    (lambda p: torch.topk(p.detach() * 0 + 1, 2).values + torch.topk(p * 1, 2).indices, "indices of topk"),
    (lambda p: p.sort().indices.float(), "indices of sort"),
    (lambda p: (p <= 0.5).float(), "comparison"),
    (lambda p: p.to(torch.int32).float(), "cast to integers"),
    (lambda p: torch.no_grad()(lambda: p.exp())(), "exp under no_grad"),
]


@pytest.mark.parametrize(("cut", "name"), CUTS)
def test_every_kind_of_structural_cut_is_followed_to_the_loss(cut: Callable[[Tensor], Tensor], name: str) -> None:
    """Among other operations that only hand the value on, and an in-place one."""
    p, q = nn.Parameter(torch.tensor([0.2, 0.9])), nn.Parameter(torch.ones(2))
    with diagnose() as d:
        value = cut(p)
        total = torch.zeros(2)
        total[:] = value.reshape(-1)[:2] * 2
        (torch.stack([total, q]).sum(0) * q).sum().backward()
    assert name in {record.kind for record in d.structural if record.reaches_loss}
    (record,) = d.starved
    assert record.shape == (2,)
    assert record.cause.where.startswith("tests/diagnosis/test_findings.py:")


@pytest.mark.filterwarnings("ignore")
def test_a_lazy_module_is_met_when_it_has_a_shape() -> None:
    net = nn.Sequential(nn.LazyLinear(3), nn.ReLU())
    d = diagnosed(lambda: net(torch.randn(4, 2)).sum(), net)
    assert (starved(d), len(d.parameters)) == ([], 2)


# --- kink -------------------------------------------------------------------------------------------------------------


def test_a_parameter_that_starts_on_a_bound_is_a_kink_and_the_pasted_pin_moves_it() -> None:
    """As in PolarEmbedding of x-transformers."""
    bias = nn.Parameter(torch.zeros(7))

    def step() -> None:
        bounded = bias.clamp(-6.28, 0.0)
        bounded.sum().backward()

    with diagnose(nn.ParameterDict({"bias": bias})) as d:
        step()
        nn.Parameter(torch.zeros(0)).clamp(-1.0, 0.0).sum().backward()  # stands on no bound
    (finding,) = d.findings
    assert (finding.code, finding.expression) == ("kink", "bias.clamp(-6.28, 0.0)")
    assert number_of(finding.where) == line_of("bounded =")
    assert "Every entry of bias (7) starts exactly at the bound 0 of this clamp" in finding.evidence
    assert "torch<=2.13 passes 100 % there; torch>=2.14 passes 0 % there, so it never trains" in finding.evidence
    is_frozen = installed_era() == "torch>=2.14"
    assert starved(d) == (["bias"] if is_frozen else [])
    assert ("pin_edge('torch<=2.13')" in finding.next_step) == is_frozen
    if is_frozen:
        follow(finding.next_step, step)
        assert bias.grad.any()


def test_zeros_of_a_last_layer_before_a_relu_are_a_kink() -> None:
    last = nn.Linear(3, 4)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    with diagnose() as d:
        y = torch.relu(last(torch.randn(5, 3)))
        y.sum().backward()
    kink = only(d, "kink")
    assert number_of(kink.where) == line_of("y = torch.relu")
    assert "a last layer of zeros" in kink.cause
    assert set(starved(d)) == {"weight", "bias"}


def test_a_penalty_of_a_parameter_is_no_range_of_it() -> None:
    """Projected to the side that the penalty forbids, the parameter could not train."""
    p, optimum = nn.Parameter(torch.zeros(4)), torch.full((4,), -1.0)
    optimizer = torch.optim.SGD([p], 0.1)
    d = steps(None, lambda: functional.mse_loss(p, optimum) + 0.1 * p.clamp(min=0).sum(), 4, optimizer)
    assert "kink" not in codes(d)
    assert "project" not in str(d)


# --- guard, edge, cut -------------------------------------------------------------------------------------------------


def _policy(log_ratio: Tensor) -> Tensor:
    advantage, ratio = torch.tensor([1.0, -1.0, 1.0, 1.0, -1.0]), log_ratio.exp()
    return (-torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)).sum()


def _critic(value: Tensor) -> Tensor:
    clipped = (value - 0.5).clamp(-0.2, 0.2) + 0.5
    return torch.max((value - 2).square(), (clipped - 2).square()).sum()


@pytest.mark.parametrize(("loss", "sides"), [(_policy, [1, 0, 1, 0]), (_critic, [0, 0, 2, 0])])
def test_the_clip_of_a_policy_is_calm(loss: Callable[[Tensor], Tensor], sides: list[int]) -> None:
    """What arrives at the clamp would only lead further outside, and its input goes on beside it."""
    x = torch.tensor([-1.0, -1.0, 0.1, 1.0, 1.0], requires_grad=True)
    d = diagnosed(lambda: loss(x))
    assert codes(d) == []
    site = site_of(d, "clamp")
    assert [site.sides[side] for side in ("below+", "below-", "above-", "above+")] == sides
    assert [calm.startswith(f"clamp at {site.where} cuts ") for calm in d.calm] == [True] * bool(site.cut)


def test_a_clamp_that_no_choice_goes_around_is_a_cut() -> None:
    x = torch.tensor([2.0, 3.0, 0.5], requires_grad=True)
    d = diagnosed(lambda: torch.minimum(x.clamp(0, 1), torch.full((3,), 9.0)).neg().sum())
    assert only(d, "cut").next_step.startswith("None, if the clip is meant")


MASKED = torch.tensor([False, False, True, True])


def _entropy_of_masked(z: Tensor) -> Tensor:
    log = z.masked_fill(MASKED, -torch.inf).log_softmax(0)
    return (log.exp() * log).nan_to_num(0.0)


GUARDED: dict[str, tuple[Callable[[Tensor], Tensor], bool]] = {
    "NaN by another way": (_entropy_of_masked, False),
    "beyond the bound": (lambda z: z.clamp(-1, 1).acos(), True),
    "at the bound": (lambda z: (z * 0 + 1).clamp(-1, 1).acos(), installed_era() == "torch>=2.14"),
}


@pytest.mark.parametrize("key", GUARDED)
def test_a_guard_keeps_what_no_parameter_got(key: str) -> None:
    function, is_kept = GUARDED[key]
    p = nn.Parameter(torch.full((4,), 3.0))
    d = diagnosed(lambda: function(p).sum())
    assert bool(p.grad.isfinite().all()) == is_kept
    assert d.findings[-1].next_step.startswith("Leave it alone: no override") == is_kept
    assert ("infinite: acos at " in d.findings[-1].next_step) == ("bound" in key)
    is_pinned = key == "at the bound"
    assert codes(d) == ["nonfinite"] * (not is_kept) + ["guard"] * (is_kept or is_pinned)
    assert d.findings[-1].cause.endswith("and p got none of them") == is_kept
    if is_pinned:
        assert is_kept != ("yet p got gradients that are not finite" in d.findings[-1].cause)
        assert "pin_edge('torch>=2.14')" in d.findings[-1].next_step


def test_no_pin_is_advised_where_the_forward_is_not_finite() -> None:
    p = nn.Parameter(torch.tensor([0.0, 1.0, 1.0], dtype=torch.float16))
    d = diagnosed(lambda: (p / p.abs().clamp_min(1e-12)).sum().float())
    assert codes(d) == ["nonfinite"]


def test_a_guard_is_told_beside_another_parameter_whose_gradient_is_infinite() -> None:
    p, q = nn.Parameter(torch.full((3,), -1.0)), nn.Parameter(torch.zeros(3))
    d = diagnosed(lambda: (p.clamp(min=0).sqrt() + q.sqrt()).sum())
    assert sorted(codes(d)) == ["guard", "nonfinite"]


def test_a_guard_inside_a_checkpoint_is_one_finding() -> None:
    p = nn.Parameter(torch.full((3,), -1.0))
    d = diagnosed(lambda: checkpoint(lambda p: p.clamp(min=0), p, use_reentrant=True).sqrt().sum())
    assert only(d, "guard").expression == "p.clamp(min=0)"


def test_an_op_that_cuts_finite_gradients_and_passes_others_is_no_guard() -> None:
    p = nn.Parameter(torch.tensor([0.0, 0.5, 3.0]))
    d = diagnosed(lambda: p.clamp(-1, 1).sqrt().sum())
    assert (p.grad is not None, site_of(d, "clamp").nonfinite, site_of(d, "clamp").cut) == (True, 1, 1)
    assert "guard" not in codes(d)
    assert "of their size" not in only(d, "cut").evidence


@pytest.mark.parametrize("bound", [lambda x: x.clamp(-1, 1), lambda x: x.clip(-1, 1), lambda x: x.clamp_max(1)])
def test_the_pin_of_a_guard_works_when_it_is_pasted(bound: Callable[[Tensor], Tensor]) -> None:
    p = nn.Parameter(torch.ones(4))

    def run() -> None:
        p.grad = None
        bound(p).acos().sum().backward()

    with diagnose() as d:
        run()
    step = only(d, "guard").next_step
    with eval(step[step.index("pseudograd.pin_edge") :].partition(")")[0] + ")", {"pseudograd": pseudograd}):
        run()
    assert bool(p.grad.isfinite().all())


BESIDE_A_GUARD: dict[str, Callable[[Tensor], Tensor]] = {
    "kink": lambda z: (z * 1).clamp(0, 1),
    "edge": lambda z: (z * 1).clamp(0, 1),
    "starved": lambda z: z.clamp(0, 9) * torch.tensor([1.0, 0.0, 0.0]),
}


@pytest.mark.skipif(installed_era() != OPEN_ERA, reason="the other era passes at each guard")
@pytest.mark.parametrize("case", BESIDE_A_GUARD)
def test_no_pin_is_advised_that_would_open_a_guard(case: str) -> None:
    """What passes at one line under the pin is NaN at another."""
    p = nn.Parameter(torch.tensor([0.0, 0.0, 0.0] if case == "kink" else [0.0, 0.5, 0.5]))

    def run() -> None:
        p.grad = None
        guarded = (p * 0 + 1).clamp(-1, 1).acos()
        (guarded - 9 * BESIDE_A_GUARD[case](p)).sum().backward()

    with diagnose() as d:
        run()
    (advised,) = [finding.next_step for finding in d.findings if finding.code != "guard"]
    assert "a pin would pass what is not finite at " in advised
    follow(advised, run)
    assert p.grad.isfinite().all()
    assert p.grad[0] != 0


def _penalised(limit: Callable[[nn.Linear, Tensor], Tensor]) -> Diagnosis:
    net, x = nn.Linear(4, 2), torch.randn(16, 4)
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    return steps(None, lambda: functional.mse_loss(net(x), x[:, :2]) + limit(net, x), 4, optimizer)


PENALTIES: dict[str, Callable[[nn.Linear, Tensor], Tensor]] = {
    "norm": lambda net, x: 10 * functional.relu(net.weight.norm() - 100),
    "square": lambda net, x: functional.relu(net(x).abs() - 50).square().sum(1).mean(),
    "square of a clamp": lambda net, x: (net(x).norm(dim=1) - 50).clamp(min=0).square().mean(),
    "square of a maximum": lambda net, x: torch.maximum(net(x) - 50, torch.zeros(2)).pow(2).sum(),
    "largest": lambda net, x: torch.relu(net(x) - 50).amax() / 3,
    "margin": lambda net, x: torch.stack([functional.relu(net(x)[:, 0] - 9 - net(x)[:, 1]).mean()]).sum(),
}


@pytest.mark.parametrize("limit", PENALTIES.values(), ids=PENALTIES)
def test_a_penalty_that_nothing_violates_is_calm(limit: Callable[[nn.Linear, Tensor], Tensor]) -> None:
    d = _penalised(limit)
    assert codes(d) == []
    assert any("a penalty or a margin that nothing violates" in line for line in d.calm)


def test_a_dead_activation_is_no_penalty() -> None:
    second = nn.Linear(2, 1)
    d = _penalised(lambda net, x: second(net(x) + functional.relu(net(x) - 100)).mean())
    assert "dead" in codes(d)


def test_a_margin_from_which_a_parameter_starves_may_be_meant() -> None:
    bias = nn.Parameter(torch.tensor(-9.0))
    d = diagnosed(lambda: functional.relu(bias + torch.zeros(4)).mean(), times=2)
    assert only(d, "starved").next_step.endswith("; nothing, if it is a margin or a penalty that nothing violates")
