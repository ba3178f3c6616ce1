"""Every spelling of a clamp or a relu, in every rule: values stay torch's bit for bit, gradients are the rule's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

import pseudograd as pg
from pseudograd import rules
from pseudograd.reference.bounds import gradient
from pseudograd.rewrite.override import override
from pseudograd.rewrite.pin_edge import pin_edge

from .calls import LOW, SPELLINGS, Spelling, expected, inputs_for

RULES = ("zero", "identity", "inward", "sign")
DEFAULT_EDGE = {"clamp": "closed", "relu": "open"}


def gradient_of(spelling: Spelling, x: Tensor, grad: Tensor) -> Tensor:
    return torch.autograd.grad(spelling.f(x), x, grad)[0]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", SPELLINGS)
def test_each_spelling_gets_the_rule(name: str, rule: str) -> None:
    spelling = SPELLINGS[name]
    x = inputs_for(spelling)
    for sign in (1.0, -1.0):
        grad = sign * torch.arange(1.0, 10.0, dtype=torch.float64)
        with override(**{spelling.family: rule}) as context:
            found = gradient_of(spelling, x, grad)
        torch.testing.assert_close(found, expected(spelling, rule, DEFAULT_EDGE[spelling.family], x, grad))
        assert [site.calls for site in context.report().rewritten] == [1]
        assert context.report().missed == ()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("name", SPELLINGS)
def test_values_stay_torchs_bit_for_bit(name: str, dtype: torch.dtype) -> None:
    f = SPELLINGS[name].f
    special = [0.0, -0.0, -1.0, 1.0, torch.inf, -torch.inf, torch.nan, 1e-30, 5.5]
    x = torch.tensor(special, dtype=dtype, requires_grad=True)
    plain = f(x)
    with override(clamp="inward", relu="inward"):
        rewritten = f(x)
    assert rewritten.dtype == plain.dtype
    bits = {torch.float16: torch.int16, torch.bfloat16: torch.int16, torch.float32: torch.int32}.get(plain.dtype)
    assert torch.equal(plain.detach().view(bits or torch.int64), rewritten.detach().view(bits or torch.int64))


@pytest.mark.parametrize("name", SPELLINGS)
def test_a_family_is_off_unless_named(name: str) -> None:
    spelling = SPELLINGS[name]
    x, grad = inputs_for(spelling), torch.arange(1.0, 10.0, dtype=torch.float64)
    plain = gradient_of(spelling, x, grad)
    others: dict[str, str | None] = {"clamp": "identity", "relu": "identity"}
    others[spelling.family] = None
    with override(**others) as context:
        assert torch.equal(gradient_of(spelling, x, grad), plain)
    assert context.report().rewritten == ()


def test_a_rule_object_and_its_parameter() -> None:
    x = torch.tensor([-3.0, 0.0, 3.0], requires_grad=True)
    with override(clamp=rules.leaky(0.25)):
        torch.clamp(x, -1, 1).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0.25, 1.0, 0.25]


def test_gradients_to_tensor_bounds_are_those_of_the_public_op() -> None:
    x = torch.tensor([-3.0, -1.0, 0.0, 1.0, 3.0], requires_grad=True)
    low, high = torch.tensor(-1.0, requires_grad=True), torch.full((5,), 1.0, requires_grad=True)
    grad = torch.tensor([1.0, -2.0, 3.0, -4.0, 5.0])
    for rule in RULES:
        wanted = torch.autograd.grad(pg.clamp(x, low, high, rule=rule), (x, low, high), grad)
        with override(clamp=rule):
            found = torch.autograd.grad(torch.clamp(x, low, high), (x, low, high), grad)
        assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_what_is_no_clamp_to_a_constant_keeps_its_gradient() -> None:
    x, y = torch.zeros(3, requires_grad=True), torch.zeros(3, requires_grad=True)
    with override(clamp="identity") as context:
        grads = torch.autograd.grad(torch.maximum(x, y).sum(), (x, y))
        assert torch.max(x, 0).indices.tolist() == 0
        assert torch.max(x).item() == 0
    assert [g.tolist() for g in grads] == [[0.5] * 3, [0.5] * 3]
    assert context.report().rewritten == ()


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
}


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
    with override(clamp=rule, relu=rule):
        assert outcome() == plain


NEVER_RAISES = {
    "crossed numbers": lambda x: torch.clamp(x, 1.0, -1.0),
    "a NaN bound": lambda x: torch.clamp(x, torch.nan, 1.0),
    "infinite bounds": lambda x: torch.clamp(x, -torch.inf, torch.inf),
    "integers": lambda x: torch.clamp(torch.ones(3, dtype=torch.int64), 0, 2) * x,
    "a bound for integers": lambda x: torch.clamp(torch.ones(3, dtype=torch.int64), x, 2 * x),
    "one bound only": lambda x: torch.clamp(x, min=LOW),
    "no elements": lambda x: torch.clamp(x[:0], 0, 1),
    "a float32 bound of half": lambda x: torch.clamp(x.half(), torch.zeros(3), torch.ones(3)),
    "sparse": lambda x: torch.relu(x.to_sparse()).to_dense(),
}


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


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 1), (1, 3), (1, 1), (2, 3)], ids=str)
def test_in_place_a_bound_that_fits_into_x_is_rewritten(shape: tuple[int, ...]) -> None:
    x = torch.linspace(-2.0, 2.0, 6).reshape(2, 3).requires_grad_()
    for low, high in ((torch.full(shape, -1.0), torch.ones(3)), (torch.full((3,), -1.0), torch.full(shape, 1.0))):
        with override(clamp="identity") as context:
            y = (x * 1).clamp_(low, high)
        assert torch.autograd.grad(y.sum(), x)[0].tolist() == [[1.0] * 3] * 2
        assert torch.equal(y, x.clamp(-1, 1))
        assert [site.calls for site in context.report().rewritten] == [1]


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
    assert [site.why for site in context.report().missed] == ["a bound of another dtype or a larger shape, in place"]


@pytest.mark.parametrize("place", ["min", "max"])
def test_in_place_a_bound_of_another_dtype_is_left_to_torch_and_said(place: str) -> None:
    x = torch.tensor([-2.0, 0.0, 2.0], dtype=torch.float16, requires_grad=True)
    bounds = {"min": torch.tensor([-1.0] * 3).half(), "max": torch.ones(3).half()}
    bounds[place] = bounds[place].float()
    with override(clamp="identity") as context:
        y = (x * 1).clamp_(**bounds)
    assert torch.autograd.grad(y.sum(), x)[0].tolist() == [0.0, 1.0, 0.0]
    assert [site.why for site in context.report().missed] == ["a bound of another dtype or a larger shape, in place"]
    with override(clamp="identity") as context:
        torch.clamp(x, **bounds)
    assert context.report().missed == ()


def test_a_rule_that_needs_both_bounds_leaves_one_bound_to_torch_and_says_so() -> None:
    x = torch.tensor([-2.0, 0.5, 2.0], requires_grad=True)
    with override(clamp="elastic") as context:
        torch.clamp(x, min=0.0).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0.0, 1.0, 1.0]
    (missed,) = context.report().missed
    assert (missed.op, missed.why, missed.calls) == ("clamp", "rule elastic needs both bounds", 1)


@pytest.mark.parametrize("rule", ["elastic", "inverting"])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_relu_leaves_such_a_rule_to_those_of_its_family_that_have_two_bounds(rule: str, sign: float) -> None:
    functional = torch.nn.functional
    for f, ours in (
        (functional.relu6, lambda x: pg.relu6(x, rule=rule)),
        (functional.hardtanh, lambda x: pg.hardtanh(x, rule=rule)),
        (torch.relu, torch.relu),
        (torch.nn.ReLU(), torch.relu),
    ):
        x = torch.tensor([-2.0, 0.0, 0.5, 9.0], requires_grad=True)
        with override(relu=rule) as context:
            y = f(x)
        (found,) = torch.autograd.grad(y, x, torch.full_like(y, sign))
        (expected,) = torch.autograd.grad(ours(x), x, torch.full_like(y, sign))
        assert torch.equal(found, expected)
        assert [missed.why for missed in context.report().missed] == (
            [f"rule {rule} needs both bounds"] if ours is torch.relu else []
        )


def test_an_unknown_rule_is_said_of_the_family_that_was_named() -> None:
    with pytest.raises(
        ValueError, match=r"relu: rule must be one of elastic, identity, .* got 'ste'\. 'ste' is 'identity' here"
    ):
        override(relu="ste")


def test_crossed_numbers_are_replaced_by_max_in_every_rule() -> None:
    x = torch.tensor([-3.0, -1.0, 0.0, 1.0, 3.0], requires_grad=True)
    low, high = torch.tensor(1.0), torch.tensor(-1.0)
    for rule in RULES:
        with override(clamp=rule):
            numbers, tensors = (
                torch.autograd.grad(torch.clamp(x, *bounds).sum(), x)[0] for bounds in ((1.0, -1.0), (low, high))
            )
        assert torch.equal(numbers, tensors), rule


def test_wrong_calls() -> None:
    with pytest.raises(
        ValueError, match=r"override: family must be one of .*clamp, .*got 'clmp'. Did you mean 'clamp'\?"
    ):
        override(clmp="inward")
    with pytest.raises(ValueError, match=r"clamp: rule must be one of .*'ste' is 'identity' here"):
        override(clamp="ste")
    with pytest.raises(TypeError, match="override: relu must be a rule, or a function from a site to a rule, got 3"):
        override(relu=3)
    with pytest.raises(ValueError, match=r"override: one of .* must be given a rule, got none. Name at least one."):
        override(clamp=None)


FOREACH = {
    "clamp_min, number": (lambda xs: torch._foreach_clamp_min(xs, -1.0), (-1.0, None)),
    "clamp_min, numbers": (lambda xs: torch._foreach_clamp_min(xs, scalars=[-1.0, -1.0]), (-1.0, None)),
    "clamp_max, tensors": (lambda xs: torch._foreach_clamp_max(xs, [torch.ones(3), torch.ones(3)]), (None, 1.0)),
    "maximum": (lambda xs: torch._foreach_maximum(xs, -1.0), (-1.0, None)),
    "minimum": (lambda xs: torch._foreach_minimum(xs, 1.0), (None, 1.0)),
}


@pytest.mark.parametrize("rule", ["inward", "identity", "zero"])
@pytest.mark.parametrize("name", FOREACH)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_functions_of_lists(name: str, rule: str, sign: float) -> None:
    f, (low, high) = FOREACH[name]
    xs = [torch.tensor([-2.0, -1.0, 0.5], requires_grad=True), torch.tensor([1.0, 1.5, -1.5], requires_grad=True)]
    with override(clamp=rule) as context:
        ys = f(xs)
        found = torch.autograd.grad(ys, xs, [torch.full((3,), sign)] * 2)
    assert type(ys) is type(f(xs))
    assert [y.tolist() for y in ys] == [x.clamp(low, high).tolist() for x in xs]
    wanted = [[gradient(rule, value, sign, low, high)[0] for value in x.tolist()] for x in xs]
    assert [grad.tolist() for grad in found] == wanted
    assert sum(site.calls for site in context.report().rewritten) == 2
    assert context.report().missed == ()


def test_functions_of_lists_in_place_and_where_nothing_is_recorded() -> None:
    xs = [torch.tensor([-2.0, 2.0], requires_grad=True), torch.tensor([0.25, 3.0], requires_grad=True)]
    with override(clamp="identity", round="identity", sign="identity") as context:
        ys = [x * 1 for x in xs]
        assert torch._foreach_clamp_min_(ys, -1.0) is None
        torch._foreach_round_(ys)
        zs = torch._foreach_sign(ys)
        assert [z.tolist() for z in zs] == [[-1, 1], [0, 1]]
        assert [grad.tolist() for grad in torch.autograd.grad(zs, xs, [torch.ones(2)] * 2)] == [[1, 1], [1, 1]]
        calls = sum(site.calls for site in context.report().rewritten)
        with torch.no_grad():
            torch._foreach_clamp_max_(xs, 1.0)
        assert [x.tolist() for x in xs] == [[-2, 1], [0.25, 1]]
        assert calls == sum(site.calls for site in context.report().rewritten) == 6
    with pin_edge("half"):
        found = torch.autograd.grad(torch._foreach_clamp_min(xs, 0.25), xs, [torch.ones(2)] * 2)
    assert [grad.tolist() for grad in found] == [[0, 1], [0.5, 1]]


def test_a_foreach_call_that_torch_refuses_is_torchs_own_error() -> None:
    xs = [torch.ones(2, requires_grad=True)]

    def outcome(wrong: Any) -> tuple[type, str]:
        with pytest.raises((RuntimeError, TypeError)) as error:
            wrong()
        return error.type, str(error.value)

    for wrong in (lambda: torch._foreach_clamp_min(xs, [1.0, 2.0]), lambda: torch._foreach_clamp_min(xs)):
        plain = outcome(wrong)
        with override(clamp="identity"):
            assert outcome(wrong) == plain


class _Noting(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


def test_a_foreach_call_stays_one_call_where_nothing_is_recorded() -> None:
    xs = [torch.ones(2, requires_grad=True), torch.ones(3)]
    with _Noting() as noting, override(clamp="identity"), torch.no_grad():
        noting.names.clear()
        torch._foreach_clamp_max_(xs, 0.5)
        called = [name for name in noting.names if "clamp" in name]
    assert called == ["_foreach_clamp_max_"]
