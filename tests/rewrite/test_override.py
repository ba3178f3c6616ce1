"""override: torch raises its own errors; a call that cannot be rewritten keeps torch's rule and is reported; families of functions."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import pseudograd as pg
from pseudograd.rewrite.override import override
from pseudograd.rewrite.pin_edge import pin_edge

from ..choices import folded

X = [-2.5, -1.0, -0.75, -0.0, 0.0, 0.5, 1.0, 1.5, 7.25]
GRAD = [1.0, -2.0, 3.0, -4.0, 5.0, -6.0, 7.0, -8.0, 9.0]


def gradient(f: Callable[[Tensor], Tensor]) -> Tensor:
    x = torch.tensor(X, requires_grad=True)
    return torch.autograd.grad(f(x), x, torch.tensor(GRAD))[0]


ERRORS = {
    "no bounds": lambda x: torch.clamp(x),
    "out": lambda x: torch.clamp(x, 0, 1, out=torch.empty(3)),
    "complex": lambda x: torch.clamp(x.to(torch.complex64), 0, 1),
    "unknown keyword": lambda x: torch.clamp(x, 0, upper=1),
    "too many": lambda x: torch.clamp(x, 0, 1, 2),
    "no tensor": lambda x: torch.clamp(3.0, 0, 1),
    "a bound of a wrong shape": lambda x: torch.clamp(x, torch.zeros(2)),
    "a bound of a wrong shape, in place": lambda x: (x * 1).clamp_(torch.zeros(2, 3)),
    "a number and a tensor": lambda x: torch.clamp(x, 0.0, torch.ones(3, requires_grad=True)),
    "a bound that does not fit": lambda x: torch.clamp(x.half(), max=1e6),
    "a leaf": lambda x: x.clamp_(0, 1),
    "a view of a leaf": lambda x: x[:2].clamp_(0, 1),
    "relu of a leaf": lambda x: torch.relu_(x),
    "hardtanh the wrong way": lambda x: functional.hardtanh(x, 1.0, -1.0),
    "memory that overlaps": lambda x: (x * 1)[:1].expand(3).clamp_(0, 1),
    "a dtype that cannot be stored": lambda x: torch.ones(3, dtype=torch.int32).clamp_(x, x),
    "lists of two lengths": lambda x: torch._foreach_clamp_min([x], [1.0, 2.0]),
    "a list without a bound": lambda x: torch._foreach_clamp_min([x]),
    "a scale that learns": lambda x: torch.fake_quantize_per_tensor_affine(x, x[0], torch.tensor(0).int(), -4, 3),
}


@folded
@pytest.mark.parametrize("name", ERRORS)
@pytest.mark.parametrize("rule", ["inward", "identity", "elastic"])
def test_errors_are_torchs(name: str, rule: str) -> None:
    def outcome() -> tuple[type, str]:
        try:
            ERRORS[name](torch.ones(3, requires_grad=True))
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            return type(error), str(error).split("\n")[0]
        return type(None), ""

    plain = outcome()
    with override(clamp=rule, relu=rule, fake_quantize="zero"):
        assert outcome() == plain


NEVER_RAISES = {
    "crossed numbers": lambda x: torch.clamp(x, 1.0, -1.0),
    "a NaN bound": lambda x: torch.clamp(x, torch.nan, 1.0),
    "integers": lambda x: torch.clamp(torch.ones(3, dtype=torch.int64), 0, 2) * x,
    "a bound for integers": lambda x: torch.clamp(torch.ones(3, dtype=torch.int64), x, 2 * x),
    "no elements": lambda x: torch.clamp(x[:0], 0, 1),
    "a float32 bound of half": lambda x: torch.clamp(x.half(), torch.zeros(3), torch.ones(3)),
    "sparse": lambda x: torch.relu(x.to_sparse()).to_dense(),
}


@folded
@pytest.mark.parametrize("rule", ["inward", "identity", "elastic", "inverting", "zero"])
@pytest.mark.parametrize("name", NEVER_RAISES)
def test_no_rewrite_raises_where_torch_does_not(name: str, rule: str) -> None:
    x = torch.tensor([-2.0, 0.5, 2.0], requires_grad=True)
    plain = NEVER_RAISES[name](x)
    with override(clamp=rule, relu=rule):
        y = NEVER_RAISES[name](x)
        y.sum().backward()
    torch.testing.assert_close(y, plain, rtol=0, atol=0, equal_nan=True)
    assert x.grad is not None


# --- what is left to torch, and said ----------------------------------------------------------------------------------

IN_PLACE = "a bound of another dtype or a larger shape, in place"


@pytest.mark.parametrize(
    ("of_x", "of_bound"), [((1,), (3,)), ((3,), (1, 3)), ((1, 3), (2, 3)), ((2, 1), (2, 3)), ((2, 3), (2,))], ids=str
)
@pytest.mark.parametrize("place", ["min", "max"])
def test_in_place_a_larger_bound_is_torchs_error_and_said(
    place: str, of_x: tuple[int, ...], of_bound: tuple[int, ...]
) -> None:
    def outcome() -> str:
        bounds = {"min": torch.zeros(()), "max": torch.ones(()), place: torch.ones(of_bound)}
        with pytest.raises(RuntimeError) as error:
            (torch.ones(of_x, requires_grad=True) * 1).clamp_(**bounds)
        return str(error.value)

    plain = outcome()
    with override(clamp="identity") as context:
        assert outcome() == plain
    assert [site.why for site in context.report().missed] == [IN_PLACE]


@pytest.mark.parametrize("place", ["min", "max"])
def test_in_place_a_bound_of_another_dtype_is_left_to_torch_and_said(place: str) -> None:
    x = torch.tensor([-2.0, 0.0, 2.0], dtype=torch.float16, requires_grad=True)
    bounds = {"min": torch.tensor([-1.0] * 3).half(), "max": torch.ones(3).half()}
    bounds[place] = bounds[place].float()
    with override(clamp="identity") as context:
        y = (x * 1).clamp_(**bounds)
    assert torch.autograd.grad(y.sum(), x)[0].tolist() == [0.0, 1.0, 0.0]
    assert [site.why for site in context.report().missed] == [IN_PLACE]
    with override(clamp="identity") as context:
        torch.clamp(x, **bounds)
    assert context.report().missed == ()


@pytest.mark.parametrize("rule", ["elastic", "inverting"])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_rule_that_needs_two_bounds_leaves_one_to_torch_and_says_so(rule: str, sign: float) -> None:
    for f, ours in (
        (functional.relu6, lambda x: pg.relu6(x, rule=rule)),
        (functional.hardtanh, lambda x: pg.hardtanh(x, rule=rule)),
        (torch.relu, torch.relu),
        (torch.nn.ReLU(), torch.relu),
        (lambda x: torch.clamp(x, min=0.0), lambda x: torch.clamp(x, min=0.0)),
    ):
        x = torch.tensor([-2.0, 0.0, 0.5, 9.0], requires_grad=True)
        with override(relu=rule, clamp=rule) as context:
            y = f(x)
        (gradient_of_torch,) = torch.autograd.grad(y, x, torch.full_like(y, sign))
        (expected,) = torch.autograd.grad(ours(x), x, torch.full_like(y, sign))
        assert torch.equal(gradient_of_torch, expected)
        has_two = f in (functional.relu6, functional.hardtanh)
        why = [] if has_two else [f"rule {rule} needs both bounds"]
        assert [missed.why for missed in context.report().missed] == why


@pytest.mark.parametrize("f", [torch.floor, torch.ceil, torch.trunc])
def test_a_rule_of_rounding_to_the_nearest_leaves_the_others_to_torch_and_says_so(f: Callable[..., Tensor]) -> None:
    with override(round="trust") as context:
        assert torch.equal(gradient(torch.round), gradient(lambda x: pg.round(x, rule="trust")))
        assert gradient(f).tolist() == [0.0] * 9
    assert [site.op for site in context.report().rewritten] == ["round"]
    assert [site.why for site in context.report().missed] == [f"{f.__name__} has no rule trust"]
    with override(round=lambda site: "ste"), pytest.raises(ValueError, match=f"^{f.__name__}: rule must be one of "):
        gradient(f)


@pytest.mark.parametrize("f", [torch.minimum, torch.maximum])
@pytest.mark.parametrize("learning", [(True, True), (False, False), (True, False), (False, True)])
def test_the_extreme_of_a_tensor_that_learns_and_a_constant_is_a_clamp(
    f: Callable[..., Tensor], learning: tuple[bool, bool]
) -> None:
    """If both tensors learn, each is the bound of the other, and a rule for x would change the gradient of both."""
    tensors = [
        torch.tensor(values, requires_grad=learns)
        for values, learns in zip(([-2.0, 0.5, 1.0, 3.0], [-1.0, 0.5, 2.0, 1.0]), learning, strict=True)
    ]
    leaves, grad = [tensor for tensor in tensors if tensor.requires_grad], torch.tensor([1.0, -1.0, 1.0, -1.0])

    def gradients() -> list[Tensor]:
        return list(torch.autograd.grad(f(*tensors), leaves, grad)) if leaves else [f(*tensors)]

    plain = gradients()
    with override(clamp="identity") as context:
        ours = gradients()
    assert all(map(torch.equal, ours, [grad] if len(leaves) == 1 else plain))
    assert [site.calls for site in context.report().rewritten] == [1] * (len(leaves) == 1)


# --- wrong calls ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("families", "error", "text"),
    [
        ({"relu": "ste"}, ValueError, r"^relu: rule must be one of elastic, .* got 'ste'\. 'ste' is 'identity' here"),
        ({"clamp": "ste"}, ValueError, "^clamp: rule must be one of .*'ste' is 'identity' here"),
        (
            {"clmp": "inward"},
            ValueError,
            r"override: family must be one of .*clamp, .*got 'clmp'. Did you mean 'clamp'\?",
        ),
        ({"relu": 3}, TypeError, "override: relu must be a rule, or a function from a site to a rule, got 3"),
        ({"clamp": None}, ValueError, "override: one of .* must be given a rule, got none. Name at least one."),
    ],
)
def test_wrong_calls(families: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        override(**families)


# --- lists, two switches, rules of a user -----------------------------------------------------------------------------


def test_functions_of_lists_in_place_and_where_nothing_is_recorded() -> None:
    xs = [torch.tensor([-2.0, 2.0], requires_grad=True), torch.tensor([0.25, 3.0], requires_grad=True)]
    with override(clamp="identity", round="identity", sign="identity") as context:
        ys = [x * 1 for x in xs]
        assert torch._foreach_clamp_min_(ys, -1.0) is None
        torch._foreach_round_(ys)
        zs = torch._foreach_sign(ys)
        assert [z.tolist() for z in zs] == [[-1, 1], [0, 1]]
        assert [grad.tolist() for grad in torch.autograd.grad(zs, xs, [torch.ones(2)] * 2)] == [[1, 1], [1, 1]]
        with torch.no_grad():
            torch._foreach_clamp_max_(xs, 1.0)
        assert [x.tolist() for x in xs] == [[-2, 1], [0.25, 1]]
        assert sum(site.calls for site in context.report().rewritten) == 6
    with pin_edge("half"):
        grads = torch.autograd.grad(torch._foreach_clamp_min(xs, 0.25), xs, [torch.ones(2)] * 2)
    assert [grad.tolist() for grad in grads] == [[0, 1], [0.5, 1]]


def test_hardsigmoid_has_two_switches_and_its_own_counts_first() -> None:
    with override(relu="identity"):
        torch.testing.assert_close(gradient(functional.hardsigmoid), torch.tensor(GRAD) / 6)
    with override(relu="identity", hardsigmoid="exact") as context:
        assert torch.equal(gradient(functional.hardsigmoid), gradient(pg.ops.hardsigmoid))
    assert [site.rule for site in context.report().rewritten] == ["exact"]


@pytest.mark.parametrize("ends_outside", [True, False])
def test_a_checkpoint_counts_what_torch_saves(ends_outside: bool) -> None:
    """torch saves nothing for sign and round. Ours saves x for sign, but not as a tensor that the checkpoint compares."""

    def f(x: Tensor) -> Tensor:
        return torch.sign(torch.round(x * 2) * 0.25) * 3

    x, context = torch.tensor(X, requires_grad=True), override(sign="window", round="identity")
    with context:
        (wanted,) = torch.autograd.grad(f(x).sum(), x)
        y = checkpoint(f, x, use_reentrant=False).sum()
        if not ends_outside:
            y.backward()
    if ends_outside:
        y.backward()
    assert torch.equal(x.grad, wanted)
    assert wanted.abs().sum() > 0


@pytest.mark.usefixtures("table_as_it_was")
def test_a_users_own_rule_sees_which_bound_a_constant_is() -> None:
    @pg.register_rule("clamp", formula="2 * grad above, 3 * grad below", source="this test", is_linear=True)
    def by_the_bound_of_rewrite(grad: Tensor, x: Tensor, y: Tensor, min: Any, max: Any) -> Tensor:
        return grad * (2.0 if min is None else 3.0)

    bound = torch.zeros(9)
    with override(clamp="by_the_bound_of_rewrite"):
        for f, beyond, factor in ((torch.minimum, 8, 2.0), (torch.maximum, 0, 3.0)):
            assert gradient(lambda x, f=f: f(x, bound))[beyond] == factor * GRAD[beyond]
            assert gradient(lambda x, f=f: f(bound, x))[beyond] == factor * GRAD[beyond]
