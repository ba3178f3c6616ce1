"""policy_loss and its presets against the papers' formulas, in float64; ties in both eras; transforms; half precision; levels and masks."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import pseudograd as pg
from pseudograd.torch_table.eras import ERAS, installed_era

from ..choices import folded, slow_but
from . import formulas
from .formulas import FORMULAS, HALF_LOW, TWICE, tokens, usual_form

ROUNDING = {"rtol": 1e-12, "atol": 1e-12}


def gradient_of(loss: Any, *at: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    leaves = [one.clone().requires_grad_() for one in at]
    y = loss(*leaves)
    return y.detach(), torch.autograd.grad(y.sum(), leaves)


def test_there_is_a_formula_for_every_policy_and_no_other() -> None:
    assert set(FORMULAS) == set(pg.policy.presets)


@folded
@pytest.mark.parametrize("name", pg.policy.presets)
def test_value_and_gradient_are_those_of_the_formula_written_apart(name: str) -> None:
    lr, a = tokens()
    value, slope = FORMULAS[name](lr, a)
    found, (to_log_ratio, to_advantage) = gradient_of(pg.policy.presets[name], lr, a)
    torch.testing.assert_close(found, value, **ROUNDING)
    torch.testing.assert_close(to_log_ratio, slope, **ROUNDING)
    assert {
        (sign, side) for sign, side in zip(a.sign().view(-1).tolist(), (lr > 0).view(-1).tolist(), strict=True)
    } == {(sign, side) for sign in (-1.0, 0.0, 1.0) for side in (False, True)}
    # Every loss is linear in the advantage, sign by sign.
    torch.testing.assert_close(to_advantage * a, value, **ROUNDING)


@pytest.mark.parametrize("grad", [1.0, -1.0, 0.25])
def test_what_is_blocked_depends_on_the_advantage_and_not_on_the_sign_of_grad(grad: float) -> None:
    """As in PPO's own form: a loss that is maximised, or weighted below 0, has the gradient times that weight."""
    lr, a = tokens()
    (found,) = gradient_of(lambda lr: grad * pg.policy.loss(lr, a), lr)[1]
    torch.testing.assert_close(found, grad * formulas.ppo(lr, a)[1], **ROUNDING)


@pytest.mark.parametrize(("lo", "hi"), [(0.8, None), (None, 1.2), (0.8, 1.2)])
@pytest.mark.parametrize("space", ["ratio", "log"])
def test_one_sided_clips(lo: float | None, hi: float | None, space: str) -> None:
    lr, a = tokens()
    value, slope = formulas.ppo(lr, a, lo or 0.0, hi or math.inf)
    low, high = None if lo is None else 1 - lo, None if hi is None else hi - 1
    found, (to_log_ratio,) = gradient_of(lambda lr: pg.policy.loss(lr, a, low=low, high=high, space=space), lr)
    torch.testing.assert_close(found, value, **ROUNDING)
    torch.testing.assert_close(to_log_ratio, slope, **ROUNDING)


def test_the_plain_clip_is_zero_in_ratio_space() -> None:
    lr, a = tokens()
    value, slope = formulas.plain_clip(lr, a)
    found, (to_log_ratio,) = gradient_of(lambda lr: pg.policy.loss(lr, a, high=0.28, rule="zero", value="clipped"), lr)
    torch.testing.assert_close(found, value, **ROUNDING)
    torch.testing.assert_close(to_log_ratio, slope, **ROUNDING)


@pytest.mark.parametrize("rule", ["inward", "zero", "identity", "leaky", pg.rules.leaky(low=0.5, high=0.75)], ids=str)
@pytest.mark.parametrize("space", ["ratio", "log"])
def test_the_value_does_not_change_the_gradient_to_log_ratio(rule: Any, space: str) -> None:
    lr, a = tokens()
    shown, (first,) = gradient_of(lambda lr: pg.policy.loss(lr, a, rule=rule, space=space), lr)
    clipped, (second,) = gradient_of(lambda lr: pg.policy.loss(lr, a, rule=rule, space=space, value="clipped"), lr)
    assert torch.equal(first, second)
    torch.testing.assert_close(shown, formulas.ppo(lr, a)[0], **ROUNDING)
    torch.testing.assert_close(clipped, -a * lr.exp().clamp(0.8, 1.2), **ROUNDING)
    assert (shown - clipped).max() > 1


# --- ties -------------------------------------------------------------------------------------------------------------


def at_ties() -> tuple[Tensor, Tensor]:
    lr = torch.tensor([HALF_LOW, TWICE], dtype=torch.float64).repeat_interleave(2)
    assert lr.exp().tolist() == [0.5, 0.5, 2.0, 2.0]
    return lr, torch.tensor([1.5, -1.5] * 2, dtype=torch.float64)


# By the edge of torch.clamp: min halves a tie, and adds both halves.
EDGE_OF_USUAL_FORM = {"closed": "closed", "open": "half"}


@pytest.mark.parametrize("era", ERAS)
def test_at_a_tie_the_edge_is_what_the_era_computes(era: str) -> None:
    lr, a = at_ties()
    share = {"closed": 1.0, "half": 0.5}[EDGE_OF_USUAL_FORM[ERAS[era].edge]]
    with pg.pin_edge(era):
        (usual,) = gradient_of(lambda lr: usual_form(lr, a, 0.5, 2.0), lr)[1]
    assert usual.tolist() == (-a * lr.exp() * share).tolist()
    edge = EDGE_OF_USUAL_FORM[ERAS[era].edge]
    (ours,) = gradient_of(lambda lr: pg.policy.loss(lr, a, low=0.5, high=1.0, edge=edge), lr)[1]
    assert torch.equal(ours, usual)


def test_the_usual_form_of_the_installed_torch_is_the_one_of_its_era() -> None:
    lr, a = at_ties()
    (usual,) = gradient_of(lambda lr: usual_form(lr, a, 0.5, 2.0), lr)[1]
    edge = EDGE_OF_USUAL_FORM[ERAS[installed_era()].edge]
    assert torch.equal(gradient_of(lambda lr: pg.policy.loss(lr, a, low=0.5, high=1.0, edge=edge), lr)[1][0], usual)


@pytest.mark.parametrize(("edge", "share"), [("closed", 1.0), ("half", 0.5), ("open", 0.0)])
@pytest.mark.parametrize("space", ["ratio", "log"])
def test_at_a_tie_every_rule_gives_the_share_of_its_edge(edge: str, share: float, space: str) -> None:
    lr, a = at_ties()
    how: dict[str, Any] = {"low": 0.5, "high": 1.0, "edge": edge, "space": space}
    for rule in ("inward", "zero", "leaky"):
        (found,) = gradient_of(partial(pg.policy.loss, advantage=a, rule=rule, **how), lr)[1]
        torch.testing.assert_close(found, -a * lr.exp() * share, **ROUNDING)


@pytest.mark.parametrize("space", ["ratio", "log"])
def test_at_a_tie_the_second_derivatives_are_those_of_the_inside(space: str) -> None:
    """Of -r * A: -r * A by log_ratio twice, and -r by log_ratio and the advantage, in either order."""
    lr, a = (one.clone().requires_grad_() for one in at_ties())
    y = pg.policy.loss(lr, a, low=0.5, high=1.0, space=space)
    by_lr, by_a = torch.autograd.grad(y.sum(), (lr, a), create_graph=True)
    twice, mixed = torch.autograd.grad(by_lr.sum(), (lr, a), retain_graph=True)
    (other_order,) = torch.autograd.grad(by_a.sum(), lr)
    ratio = lr.detach().exp()
    torch.testing.assert_close(twice, -ratio * a.detach(), **ROUNDING)
    torch.testing.assert_close(mixed, -ratio, **ROUNDING)
    torch.testing.assert_close(other_order, -ratio, **ROUNDING)


@pytest.mark.parametrize(("edge", "share"), [("closed", 1.0), ("half", 0.5), ("open", 0.0)])
def test_at_the_ceiling_too(edge: str, share: float) -> None:
    lr, a = torch.tensor([math.log(4.0)], dtype=torch.float64), torch.tensor([-1.0], dtype=torch.float64)
    assert lr.exp() == 4
    assert gradient_of(lambda lr: pg.policy.loss(lr, a, ceiling=4.0, edge=edge), lr)[1][0] == 4.0 * share


@pytest.mark.parametrize("edge", ["closed", "half", "open"])
@pytest.mark.parametrize("advantage", [0.5, 0.0])
def test_at_the_ceiling_an_advantage_that_is_not_negative_passes_whole(advantage: float, edge: str) -> None:
    lr = torch.tensor([math.log(4.0)], dtype=torch.float64, requires_grad=True)
    a = torch.tensor([advantage], dtype=torch.float64, requires_grad=True)
    y = pg.policy.loss(lr, a, high=None, ceiling=4.0, edge=edge)
    (first,) = torch.autograd.grad(y.sum(), lr, create_graph=True)
    assert (first.item(), torch.autograd.grad(first.sum(), a)[0].item()) == (-4.0 * advantage, -4.0)


def test_a_ceiling_is_for_negative_advantages_and_gives_way_to_a_bound_below_it() -> None:
    lr, a = (
        torch.tensor([2.0, 4.0, 4.0, 4.0], dtype=torch.float64).log(),
        torch.tensor([-1.0, 1.0, -1.0, 0.5], dtype=torch.float64),
    )
    value, (slope,) = gradient_of(lambda lr: pg.policy.loss(lr, a, high=None, ceiling=3.0), lr)
    torch.testing.assert_close(value, torch.tensor([2.0, -4.0, 3.0, -2.0], dtype=torch.float64), **ROUNDING)
    torch.testing.assert_close(slope, torch.tensor([2.0, -4.0, 0.0, -2.0], dtype=torch.float64), **ROUNDING)
    clipped = pg.policy.loss(lr, a, high=1.0, ceiling=3.0, value="clipped")
    torch.testing.assert_close(clipped, torch.tensor([2.0, -2.0, 2.0, -1.0], dtype=torch.float64), **ROUNDING)


# --- derivatives and transforms ---------------------------------------------------------------------------------------


def test_equals_the_usual_form_bit_for_bit_off_the_ties() -> None:
    lr, a = tokens()
    for dtype in (torch.float32, torch.float64):
        at = lr.to(dtype), a.to(dtype)
        ours, usual = gradient_of(pg.policy.loss, *at), gradient_of(usual_form, *at)
        assert torch.equal(ours[0], usual[0])
        assert torch.equal(ours[1][0], usual[1][0])
        moved = at[1] != 0  # where A is 0 both branches tie, and min takes half of each
        assert torch.equal(ours[1][1][moved], usual[1][1][moved])


@pytest.mark.parametrize("name", ["ppo", "dual_clip"])
def test_first_and_second_derivatives_by_differences(name: str) -> None:
    """Of the objectives whose gradient is one."""
    lr, a = tokens()
    at = lr[3:8, :4].clone().requires_grad_(), (a[3:8, :4] + 0.01).requires_grad_()
    assert torch.autograd.gradcheck(pg.policy.presets[name], at)
    assert torch.autograd.gradgradcheck(pg.policy.presets[name], at)


def test_the_second_derivative_by_the_advantage_exists_where_it_is_0() -> None:
    lr, a = torch.tensor([0.1], requires_grad=True), torch.zeros(1, requires_grad=True)
    (first,) = torch.autograd.grad(pg.policy.loss(lr, a).sum(), lr, create_graph=True)
    assert torch.autograd.grad(first.sum(), a)[0] == -lr.exp()


@pytest.mark.parametrize("name", slow_but(["ppo"], pg.policy.presets, pytest.mark.program))
def test_equal_compiled(name: str) -> None:
    lr, a = tokens(torch.float32)

    def loss(lr: Tensor) -> Tensor:
        return pg.policy.presets[name](lr, a, mask=a > -0.5).sum()

    torch._dynamo.reset()
    found = gradient_of(torch.compile(loss, backend="aot_eager", fullgraph=True), lr)[1][0]
    assert torch.equal(found, gradient_of(loss, lr)[1][0])
    assert found.any()


@folded
@pytest.mark.parametrize("name", pg.policy.presets)
def test_equal_under_transforms(name: str) -> None:
    lr, a = tokens(torch.float32)
    lr, a = lr[:8], a[:8]
    mask = torch.arange(lr.numel()).reshape(lr.shape) % 5 > 0
    policy = pg.policy.presets[name]

    def loss(lr: Tensor) -> Tensor:
        return policy(lr, a, mask=mask).sum()

    (expected,) = gradient_of(loss, lr)[1]
    assert expected.any()
    assert torch.equal(torch.func.grad(loss)(lr), expected)
    tangent = torch.linspace(-1, 1, lr.numel()).reshape(lr.shape)
    torch.testing.assert_close(torch.func.jvp(loss, (lr,), (tangent,))[1], (expected * tangent).sum())

    def of_one(lr: Tensor, a: Tensor, mask: Tensor) -> Tensor:
        return policy(lr, a, mask=mask).sum()

    assert torch.equal(torch.func.vmap(torch.func.grad(of_one))(lr, a, mask), expected)


# --- half precision, masks, levels ------------------------------------------------------------------------------------


@folded
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", pg.policy.presets)
def test_half_precision_saturates_and_is_never_nan(name: str, dtype: torch.dtype) -> None:
    lr = torch.tensor([-20.0, -10.0, -0.3, 0.0, 0.3, 10.0, 20.0], dtype=dtype).repeat(3, 1)
    a = torch.tensor([[1.5], [-1.5], [0.0]], dtype=dtype).expand_as(lr).clone()
    lr, a = lr.reshape(-1, 1), a.reshape(-1, 1)  # sequences of one token: no mean levels the extremes
    value, slope = FORMULAS[name](lr.double(), a.double())
    found, (to_log_ratio, to_advantage) = gradient_of(pg.policy.presets[name], lr, a)
    assert found.dtype is torch.float32
    assert to_log_ratio.dtype is to_advantage.dtype is dtype
    torch.testing.assert_close(found, value.float(), rtol=1e-5, atol=1e-8)
    assert to_advantage.isfinite().all()
    assert not to_log_ratio.isnan().any()
    exceeds = slope.abs() > torch.finfo(dtype).max
    # With level="sequence" the mean of a sequence, in float32, gets the gradient first.
    is_of_tokens = pg.policy.presets[name].level != "sequence"
    assert not is_of_tokens or torch.equal(
        to_log_ratio[exceeds], torch.finfo(dtype).max * slope.sign().to(dtype)[exceeds]
    )
    leaf = lr.clone().requires_grad_()
    (scaled,) = torch.autograd.grad(pg.policy.presets[name](leaf, a).sum() * torch.inf, leaf)  # as GradScaler looks for
    assert not scaled[slope != 0].isfinite().any()
    fits = slope.abs() < torch.finfo(dtype).max
    torch.testing.assert_close(to_log_ratio[fits], slope.to(dtype)[fits], rtol=torch.finfo(dtype).eps, atol=1e-7)
    assert fits.all() or (
        name in ("ppo", "grpo", "dapo", "gppo", "ce_gppo", "gspo", "luspo", "gmpo") and dtype is torch.float16
    )


def test_each_gradient_ends_where_its_own_dtype_does() -> None:
    """r = exp(12) is above the largest float16, not above the largest float32."""
    for of_ratio, of_advantage in ((torch.float16, torch.float32), (torch.float32, torch.float16)):
        lr, a = torch.tensor([12.0], dtype=of_ratio), torch.tensor([-1.5], dtype=of_advantage)
        to_log_ratio, to_advantage = gradient_of(pg.policy.loss, lr, a)[1]
        assert (to_log_ratio.dtype, to_advantage.dtype) == (of_ratio, of_advantage)
        for found, exact in ((to_log_ratio, 1.5 * math.exp(12)), (to_advantage, -math.exp(12))):
            most = torch.finfo(found.dtype).max
            assert found.item() == pytest.approx(max(-most, min(most, exact)), rel=1e-5)


def test_float32_has_infinite_gradients_where_they_are() -> None:
    lr, a = torch.tensor([100.0]), torch.tensor([-1.0])
    assert gradient_of(pg.policy.loss, lr, a)[1][0].item() == math.inf


def test_infinite_ratios_of_silent_tokens_give_zero() -> None:
    lr = torch.tensor([torch.inf, -torch.inf, torch.inf, 200.0])
    a = torch.tensor([1.0, -1.0, 0.0, 1.0])
    found, (to_log_ratio, _) = gradient_of(pg.policy.loss, lr, a)
    assert found.tolist() == pytest.approx([-1.2, 0.8, 0.0, -1.2])
    assert to_log_ratio.tolist() == [0.0] * 4
    leaf = lr.clone().requires_grad_()
    (first,) = torch.autograd.grad(pg.policy.loss(leaf, a).sum(), leaf, create_graph=True)
    assert torch.autograd.grad(first.sum(), leaf)[0].tolist() == [0.0] * 4
    of_each = a.clone().requires_grad_()
    by_both = torch.autograd.grad(pg.policy.loss(leaf, of_each).sum(), (leaf, of_each), create_graph=True)
    assert by_both[1].tolist() == pytest.approx([-1.2, -0.8, -1.2, -1.2])
    for one in by_both:
        assert torch.autograd.grad(one.sum(), leaf, retain_graph=True)[0].tolist() == [0.0] * 4
    assert torch.autograd.grad(by_both[0].sum(), of_each)[0].tolist() == [0.0] * 4


@folded
@pytest.mark.parametrize("name", pg.policy.presets)
def test_masked_tokens_have_no_loss_no_gradient_and_no_say(name: str) -> None:
    lr, a = (one[:10] for one in tokens())
    mask = torch.ones_like(lr, dtype=torch.bool)
    mask[:, 20:] = False
    spoiled = torch.where(mask, lr, torch.nan)
    found, (to_log_ratio,) = gradient_of(lambda lr: pg.policy.presets[name](lr, a, mask=mask), spoiled)
    value, slope = FORMULAS[name](lr[:, :20].contiguous(), a[:, :20].contiguous())
    torch.testing.assert_close(found[:, :20], value, **ROUNDING)
    torch.testing.assert_close(to_log_ratio[:, :20], slope, **ROUNDING)
    assert not found[:, 20:].any()
    assert not to_log_ratio[:, 20:].any()


def test_a_sequence_of_which_no_token_counts_has_loss_0() -> None:
    lr, a = tokens()
    nothing = torch.zeros_like(lr, dtype=torch.bool)
    for name in pg.policy.presets:
        found, to_each = gradient_of(partial(pg.policy.presets[name], mask=nothing), lr, a)
        assert not found.any()
        assert not to_each[0].any()
        assert not to_each[1].any()  # NaN would count as some


def test_the_mean_of_gspo_has_the_gradient_of_the_sequences_loss() -> None:
    lr, a = (one[1:10] for one in tokens())

    def of_sequences(lr: Tensor) -> Tensor:
        return usual_form(lr.mean(-1), a[:, 0], 1 - 3e-4, 1 + 4e-4)

    found, (to_log_ratio,) = gradient_of(lambda lr: pg.policy.presets["gspo"](lr, a).mean(-1), lr)
    value, (slope,) = gradient_of(of_sequences, lr)
    torch.testing.assert_close(found, value, **ROUNDING)
    torch.testing.assert_close(to_log_ratio, slope, **ROUNDING)


def test_the_mean_of_gmpo_has_the_gradient_of_the_sequences_loss() -> None:
    lr, a = (one[1:10] for one in tokens())

    def of_sequences(lr: Tensor) -> Tensor:
        sign = a.sign()
        return -a[:, 0] * torch.exp((sign * torch.min(sign * lr, sign * lr.clamp(-0.4, 0.4))).mean(-1))

    found, (to_log_ratio,) = gradient_of(lambda lr: pg.policy.presets["gmpo"](lr, a).mean(-1), lr)
    value, (slope,) = gradient_of(of_sequences, lr)
    torch.testing.assert_close(found, value, **ROUNDING)
    torch.testing.assert_close(to_log_ratio, slope, **ROUNDING)


@pytest.mark.parametrize("shape", [(24,), (4, 15, 24)], ids=str)
@pytest.mark.parametrize("name", ["gspo", "gmpo"])
def test_the_last_dimension_is_the_sequence_whatever_comes_before(name: str, shape: tuple[int, ...]) -> None:
    rows = math.prod(shape[:-1])
    lr, a = (one[1 : 1 + rows] if rows == 1 else one for one in tokens())
    value, slope = FORMULAS[name](lr, a)
    lr, a = lr.reshape(shape), a.reshape(shape)
    for mask in (None, torch.ones(shape, dtype=torch.bool)):
        found, (to_log_ratio,) = gradient_of(partial(pg.policy.presets[name], advantage=a, mask=mask), lr)
        torch.testing.assert_close(found, value.reshape(shape), **ROUNDING)
        torch.testing.assert_close(to_log_ratio, slope.reshape(shape), **ROUNDING)


@pytest.mark.parametrize("name", ["gspo", "gmpo"])
def test_a_sequence_of_which_one_token_counts_is_that_token(name: str) -> None:
    lr, a = (one[:10] for one in tokens())
    mask = torch.arange(24).expand_as(lr) == 3
    value, slope = FORMULAS[name](lr[:, 3:4].contiguous(), a[:, 3:4].contiguous())
    found, (to_log_ratio,) = gradient_of(lambda lr: pg.policy.presets[name](lr, a, mask=mask), lr)
    torch.testing.assert_close(found[mask], value[:, 0], **ROUNDING)
    torch.testing.assert_close(to_log_ratio[mask], slope[:, 0], **ROUNDING)


def test_the_advantage_broadcasts_and_pays_nothing_where_it_asks_for_nothing() -> None:
    lr, a = tokens()
    of_each = a[:, :1].clone().requires_grad_()
    (found,) = torch.autograd.grad(pg.policy.loss(lr, of_each).sum(), of_each)
    expected = gradient_of(lambda a: pg.policy.loss(lr, a), a)[1][0].sum(1, keepdim=True)
    torch.testing.assert_close(found, expected, **ROUNDING)
    assert not pg.policy.loss(lr, a).requires_grad


# --- the table --------------------------------------------------------------------------------------------------------


def test_a_policy_is_policy_loss_with_its_settings_and_takes_changes() -> None:
    lr, a = tokens()
    for policy in pg.policy.presets.values():
        assert torch.equal(policy(lr, a), pg.policy.loss(lr, a, **policy.settings))
    assert torch.equal(pg.policy.presets["ppo"](lr, a, high=0.28), pg.policy.presets["dapo"](lr, a))
    assert repr(pg.policy.presets) == f"policies: {', '.join(pg.policy.presets)}"


def test_a_policy_of_ones_own_is_made_by_names_alone() -> None:
    kind = type(pg.policy.presets["ppo"])
    mine = kind(name="mine", paper="none", projects="none", gradient="-A r", high=0.28)
    assert mine.settings == pg.policy.presets["dapo"].settings
    with pytest.raises(TypeError, match="positional"):
        kind("mine", "none", "none", "-A r")  # type: ignore[misc]


def test_every_policy_says_where_it_is_from() -> None:
    for name, policy in pg.policy.presets.items():
        assert policy.name == name
        assert policy.paper
        assert policy.projects
        assert policy.gradient.startswith("-A")


def test_identity_needs_no_bound() -> None:
    lr, a = tokens()
    found, (to_log_ratio,) = gradient_of(lambda lr: pg.policy.loss(lr, a, low=None, high=None, rule="identity"), lr)
    torch.testing.assert_close(found, -a * lr.exp(), **ROUNDING)
    torch.testing.assert_close(to_log_ratio, -a * lr.exp(), **ROUNDING)
