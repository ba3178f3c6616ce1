"""policy_loss and its presets against the papers' formulas, in float64; ties in both eras; transforms; half precision; levels and masks."""

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

import pseudograd as pg
from pseudograd.torch_table.eras import ERAS, installed_era

from ..choices import folded, slow_but
from .formulas import FORMULAS, HALF_LOW, TWICE, tokens, usual_form

ROUNDING = {"rtol": 1e-12, "atol": 1e-12}
PRESETS = pg.policy.presets
Loss = Callable[..., Tensor]
every_preset = pytest.mark.parametrize("name", PRESETS)
SHARES = [("closed", 1.0), ("half", 0.5), ("open", 0.0)]
every_share = pytest.mark.parametrize(("edge", "share"), SHARES)
every_space = pytest.mark.parametrize("space", ["ratio", "log"])


def gradient_of(loss: Loss, *at: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    leaves = [tensor.clone().requires_grad_() for tensor in at]
    y = loss(*leaves)
    return y.detach(), torch.autograd.grad(y.sum(), leaves)


def assert_loss(loss: Loss, lr: Tensor, value: Tensor, slope: Tensor) -> None:
    """The loss of lr has this value and this gradient."""
    y, (to_log_ratio,) = gradient_of(loss, lr)
    torch.testing.assert_close(y, value, **ROUNDING)
    torch.testing.assert_close(to_log_ratio, slope, **ROUNDING)


@folded
@every_preset
def test_value_and_gradient_are_those_of_the_formula_written_apart(name: str) -> None:
    assert set(FORMULAS) == set(PRESETS)
    lr, a = tokens()
    value, slope = FORMULAS[name](lr, a)
    assert_loss(partial(PRESETS[name], advantage=a), lr, value, slope)
    cells = zip(a.sign().view(-1).tolist(), (lr > 0).view(-1).tolist(), strict=True)
    assert set(cells) == {(sign, is_above) for sign in (-1.0, 0.0, 1.0) for is_above in (False, True)}
    _, (_, to_advantage) = gradient_of(PRESETS[name], lr, a)  # every loss is linear in the advantage, sign by sign
    torch.testing.assert_close(to_advantage * a, value, **ROUNDING)


# --- ties -------------------------------------------------------------------------------------------------------------


def ties() -> tuple[Tensor, Tensor]:
    lr = torch.tensor([HALF_LOW, TWICE], dtype=torch.float64).repeat_interleave(2)
    assert lr.exp().tolist() == [0.5, 0.5, 2.0, 2.0]
    return lr, torch.tensor([1.5, -1.5] * 2, dtype=torch.float64)


# By the edge of torch.clamp: min halves a tie, and adds both halves.
EDGE_OF_USUAL_FORM = {"closed": "closed", "open": "half"}


@pytest.mark.parametrize("era", [*ERAS, None])
def test_at_a_tie_the_edge_is_what_the_era_computes(era: str | None) -> None:
    """None: without a pin the installed torch has its own era."""
    lr, a = ties()
    edge = EDGE_OF_USUAL_FORM[ERAS[era or installed_era()].edge]
    usual = partial(usual_form, a=a, lo=0.5, hi=2.0)
    if era is None:
        (theirs,) = gradient_of(usual, lr)[1]
    else:
        with pg.pin_edge(era):
            (theirs,) = gradient_of(usual, lr)[1]
    assert theirs.tolist() == (-a * lr.exp() * dict(SHARES)[edge]).tolist()
    (ours,) = gradient_of(partial(pg.policy.loss, advantage=a, low=0.5, high=1.0, edge=edge), lr)[1]
    assert torch.equal(ours, theirs)


@every_space
def test_at_a_tie_the_second_derivatives_are_those_of_the_inside(space: str) -> None:
    """Of -r * A: -r * A by log_ratio twice, and -r by log_ratio and the advantage, in either order."""
    lr, a = (tensor.clone().requires_grad_() for tensor in ties())
    y = pg.policy.loss(lr, a, low=0.5, high=1.0, space=space)
    of_lr, of_a = torch.autograd.grad(y.sum(), (lr, a), create_graph=True)
    twice, mixed = torch.autograd.grad(of_lr.sum(), (lr, a), retain_graph=True)
    (other_order,) = torch.autograd.grad(of_a.sum(), lr)
    ratio = lr.detach().exp()
    for second, expected in ((twice, -ratio * a.detach()), (mixed, -ratio), (other_order, -ratio)):
        torch.testing.assert_close(second, expected, **ROUNDING)


@every_share
def test_the_ceiling_has_an_edge_for_negative_advantages_alone(edge: str, share: float) -> None:
    lr, down = torch.tensor([math.log(4.0)], dtype=torch.float64), torch.tensor([-1.0], dtype=torch.float64)
    assert lr.exp() == 4
    assert gradient_of(lambda lr: pg.policy.loss(lr, down, ceiling=4.0, edge=edge), lr)[1][0] == 4.0 * share
    for advantage in (0.5, 0.0):
        leaf, a = lr.clone().requires_grad_(), torch.tensor([advantage], dtype=torch.float64, requires_grad=True)
        y = pg.policy.loss(leaf, a, high=None, ceiling=4.0, edge=edge)
        (first,) = torch.autograd.grad(y.sum(), leaf, create_graph=True)
        assert (first.item(), torch.autograd.grad(first.sum(), a)[0].item()) == (-4.0 * advantage, -4.0)


def test_a_ceiling_gives_way_to_a_bound_below_it() -> None:
    lr, a, value, slope, clipped = (
        torch.tensor(numbers, dtype=torch.float64)
        for numbers in ([2, 4, 4, 4], [-1, 1, -1, 0.5], [2, -4, 3, -2], [2, -4, 0, -2], [2, -2, 2, -1])
    )
    assert_loss(partial(pg.policy.loss, advantage=a, high=None, ceiling=3.0), lr.log(), value, slope)
    y = pg.policy.loss(lr.log(), a, high=1.0, ceiling=3.0, value="clipped")
    torch.testing.assert_close(y, clipped, **ROUNDING)


# --- derivatives and transforms ---------------------------------------------------------------------------------------


@pytest.mark.program
@pytest.mark.parametrize("name", slow_but(["ppo", "up_grpo", "gmpo"], PRESETS))
def test_compiled_code_has_the_gradient_of_eager(name: str) -> None:
    lr, a = tokens(torch.float32)

    def loss(lr: Tensor) -> Tensor:
        return PRESETS[name](lr, a, mask=a > -0.5).sum()

    compiled, eager = (
        gradient_of(f, lr)[1][0] for f in (torch.compile(loss, backend="aot_eager", fullgraph=True), loss)
    )
    assert torch.equal(compiled, eager)
    assert eager.any()


@pytest.mark.parametrize("name", ["dual_clip", "gspo", "gmpo", "up_grpo"])  # a rule alone: tests/contract
def test_transforms_have_the_gradient_of_backward(name: str) -> None:
    lr, a = (tensor[:8] for tensor in tokens(torch.float32))
    mask = torch.arange(lr.numel()).reshape(lr.shape) % 5 > 0

    def loss(lr: Tensor, a: Tensor, mask: Tensor) -> Tensor:
        return PRESETS[name](lr, a, mask=mask).sum()

    (expected,) = gradient_of(lambda lr: loss(lr, a, mask), lr)[1]
    assert expected.any()
    assert torch.equal(torch.func.grad(loss)(lr, a, mask), expected)
    assert torch.equal(torch.func.vmap(torch.func.grad(loss))(lr, a, mask), expected)
    tangent = torch.linspace(-1, 1, lr.numel()).reshape(lr.shape)
    _, moved = torch.func.jvp(lambda lr: loss(lr, a, mask), (lr,), (tangent,))
    torch.testing.assert_close(moved, (expected * tangent).sum())


# --- half precision, masks, levels ------------------------------------------------------------------------------------

LARGE_SLOPES = ("ppo", "grpo", "dapo", "gppo", "ce_gppo", "gspo", "luspo", "gmpo")


@folded
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@every_preset
def test_half_precision_saturates_and_is_never_nan(name: str, dtype: torch.dtype) -> None:
    lr = torch.tensor([-20.0, -10.0, -0.3, 0.0, 0.3, 10.0, 20.0], dtype=dtype).repeat(3, 1)
    a = torch.tensor([[1.5], [-1.5], [0.0]], dtype=dtype).expand_as(lr).clone()
    lr, a = lr.reshape(-1, 1), a.reshape(-1, 1)  # sequences of one token: no mean levels the extremes
    value, slope = FORMULAS[name](lr.double(), a.double())
    y, (to_log_ratio, to_advantage) = gradient_of(PRESETS[name], lr, a)
    assert y.dtype is torch.float32
    assert to_log_ratio.dtype is to_advantage.dtype is dtype
    torch.testing.assert_close(y, value.float(), rtol=1e-5, atol=1e-8)
    assert to_advantage.isfinite().all()
    assert not to_log_ratio.isnan().any()
    most = torch.finfo(dtype).max
    if PRESETS[name].level != "sequence":  # there the mean of a sequence, in float32, gets the gradient first
        exceeds = slope.abs() > most
        assert torch.equal(to_log_ratio[exceeds], most * slope.sign().to(dtype)[exceeds])
    leaf = lr.clone().requires_grad_()
    (scaled,) = torch.autograd.grad(PRESETS[name](leaf, a).sum() * torch.inf, leaf)  # as GradScaler looks for
    assert not scaled[slope != 0].isfinite().any()
    fits = slope.abs() < most
    torch.testing.assert_close(to_log_ratio[fits], slope.to(dtype)[fits], rtol=torch.finfo(dtype).eps, atol=1e-7)
    assert fits.all() or (name in LARGE_SLOPES and dtype is torch.float16)


def test_each_gradient_ends_where_its_own_dtype_does() -> None:
    """r = exp(12) is above the largest float16, not above the largest float32."""
    for dtypes in ((torch.float16, torch.float32), (torch.float32, torch.float16)):
        lr, a = (torch.tensor([number], dtype=dtype) for number, dtype in zip((12.0, -1.5), dtypes, strict=True))
        gradients = gradient_of(pg.policy.loss, lr, a)[1]
        assert tuple(gradient.dtype for gradient in gradients) == dtypes
        for gradient, exact in zip(gradients, (1.5 * math.exp(12), -math.exp(12)), strict=True):
            most = torch.finfo(gradient.dtype).max
            assert gradient.item() == pytest.approx(max(-most, min(most, exact)), rel=1e-5)
    assert gradient_of(pg.policy.loss, torch.tensor([100.0]), torch.tensor([-1.0]))[1][0].item() == math.inf


def test_infinite_ratios_of_silent_tokens_give_zero() -> None:
    """In the second derivatives, too."""
    lr = torch.tensor([torch.inf, -torch.inf, torch.inf, 200.0], requires_grad=True)
    a = torch.tensor([1.0, -1.0, 0.0, 1.0], requires_grad=True)
    y = pg.policy.loss(lr, a)
    assert y.tolist() == pytest.approx([-1.2, 0.8, 0.0, -1.2])
    firsts = torch.autograd.grad(y.sum(), (lr, a), create_graph=True)
    assert firsts[0].tolist() == [0.0] * 4
    assert firsts[1].tolist() == pytest.approx([-1.2, -0.8, -1.2, -1.2])
    for first in firsts:
        assert torch.autograd.grad(first.sum(), lr, retain_graph=True)[0].tolist() == [0.0] * 4
    assert torch.autograd.grad(firsts[0].sum(), a)[0].tolist() == [0.0] * 4
    lr, a = torch.tensor([0.1], requires_grad=True), torch.zeros(1, requires_grad=True)
    (first,) = torch.autograd.grad(pg.policy.loss(lr, a).sum(), lr, create_graph=True)
    assert torch.autograd.grad(first.sum(), a)[0] == -lr.exp()  # a finite ratio has one at A = 0


@folded
@every_preset
def test_masked_tokens_have_no_loss_no_gradient_and_no_say(name: str) -> None:
    lr, a = (tensor[:10] for tensor in tokens())
    mask = torch.arange(24).expand_as(lr) < 20
    value, slope = (torch.zeros_like(lr) for _ in range(2))
    value[:, :20], slope[:, :20] = FORMULAS[name](lr[:, :20].contiguous(), a[:, :20].contiguous())
    assert_loss(partial(PRESETS[name], advantage=a, mask=mask), torch.where(mask, lr, torch.nan), value, slope)
    y, gradients = gradient_of(partial(PRESETS[name], mask=torch.zeros_like(mask)), lr, a)
    assert not any(tensor.any() for tensor in (y, *gradients))  # NaN would count as some


@pytest.mark.parametrize("shape", [(24,), (4, 15, 24)], ids=str)
@pytest.mark.parametrize("name", ["gspo", "gmpo"])
def test_the_last_dimension_is_the_sequence(name: str, shape: tuple[int, ...]) -> None:
    lr, a = (tensor[1:2] if len(shape) == 1 else tensor for tensor in tokens())
    value, slope = (tensor.reshape(shape) for tensor in FORMULAS[name](lr, a))
    for mask in (None, torch.ones(shape, dtype=torch.bool)):
        loss = partial(PRESETS[name], advantage=a.reshape(shape), mask=mask)
        assert_loss(loss, lr.reshape(shape), value, slope)


def test_the_advantage_broadcasts_and_needs_no_gradient() -> None:
    lr, a = tokens()
    _, (shared,) = gradient_of(lambda a: pg.policy.loss(lr, a), a[:, :1])
    _, (full,) = gradient_of(lambda a: pg.policy.loss(lr, a), a)
    torch.testing.assert_close(shared, full.sum(1, keepdim=True), **ROUNDING)
    assert not pg.policy.loss(lr, a).requires_grad


# --- the table --------------------------------------------------------------------------------------------------------


def test_a_preset_is_policy_loss_with_its_settings_and_takes_changes() -> None:
    lr, a = tokens()
    for name, policy in PRESETS.items():
        assert torch.equal(policy(lr, a), pg.policy.loss(lr, a, **policy.settings))
        assert policy.name == name
        assert policy.paper
        assert policy.projects
        assert policy.gradient.startswith("-A")
    assert torch.equal(PRESETS["ppo"](lr, a, high=0.28), PRESETS["dapo"](lr, a))
    assert repr(PRESETS) == f"policies: {', '.join(PRESETS)}"
    kind = type(PRESETS["ppo"])
    mine = kind(name="mine", paper="none", projects="none", gradient="-A r", high=0.28)
    assert mine.settings == PRESETS["dapo"].settings
    with pytest.raises(TypeError, match="positional"):
        kind("mine", "none", "none", "-A r")  # type: ignore[misc]
