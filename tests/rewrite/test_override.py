"""Every spelling of a clamp or a relu, in every rule: values stay torch's bit for bit, gradients are the rule's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

import pseudograd as pg
from pseudograd.rewrite.override import override
from pseudograd.rewrite.pin_edge import pin_edge

from ..choices import folded

LOW = -1.0

RULES = ("zero", "identity", "inward", "sign")


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
