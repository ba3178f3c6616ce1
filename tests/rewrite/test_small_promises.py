"""What is easily lost in a change of the rewriting: which calls are none of its business, and what the report counts together."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

import pseudograd as pg
from pseudograd.rewrite.entered_contexts import _take_off
from pseudograd.torch_table import private as torch_private

A, B = [-2.0, 0.5, 1.0, 3.0], [-1.0, 0.5, 2.0, 1.0]  # either is the smaller somewhere, and there is a tie
EXTREMES = {"minimum": torch.minimum, "maximum": torch.maximum}
every_extreme = pytest.mark.parametrize("name", EXTREMES)


def _gradients(f: Callable[..., Tensor], *leaves: Tensor) -> list[list[float]]:
    return [g.tolist() for g in torch.autograd.grad(f(*leaves), leaves, torch.tensor([1.0, -1.0, 1.0, -1.0]))]


@every_extreme
def test_the_extreme_of_two_tensors_that_both_learn_is_no_clamp(name: str) -> None:
    """Each is the bound of the other; a rule for x would take from both what they share."""
    a, b = torch.tensor(A, requires_grad=True), torch.tensor(B, requires_grad=True)
    plain = _gradients(EXTREMES[name], a, b)
    with pg.override(clamp="identity") as context:
        assert _gradients(EXTREMES[name], a, b) == plain
    assert context.report().rewritten == ()


@every_extreme
def test_the_extreme_of_two_constants_is_no_clamp(name: str) -> None:
    """Nothing can be asked of it, so nothing is said to have been rewritten."""
    a, b = torch.tensor(A), torch.tensor(B)
    plain = EXTREMES[name](a, b)
    with pg.override(clamp="identity") as context:
        assert torch.equal(EXTREMES[name](a, b), plain)
    assert context.report().rewritten == ()


@every_extreme
@pytest.mark.parametrize("is_first", [True, False], ids=["first", "second"])
def test_the_extreme_of_one_that_learns_and_a_constant_is_a_clamp(name: str, is_first: bool) -> None:
    """Wherever the constant stands."""
    leaf, bound = torch.tensor(A, requires_grad=True), torch.tensor(B)
    grad = torch.tensor([1.0, -1.0, 1.0, -1.0])
    with pg.override(clamp="identity") as context:
        y = EXTREMES[name](leaf, bound) if is_first else EXTREMES[name](bound, leaf)
        (found,) = torch.autograd.grad(y, leaf, grad)
    assert torch.equal(found, grad)
    assert [site.calls for site in context.report().rewritten] == [1]


def test_calls_of_one_line_are_one_site_whatever_function_they_stand_in() -> None:
    x = torch.tensor(A, requires_grad=True)
    with pg.override(clamp="identity") as context:
        for f in (lambda x: torch.clamp(x, -1, 1), lambda x: torch.clamp(x, -1, 1)):
            f(x)
            f(x)
    (site,) = context.report().rewritten
    assert (site.calls, site.compiled) == (4, False)
    assert "4 calls rewritten at 1 line" in str(context.report())


def test_the_extreme_that_skips_nan_splits_a_tie_by_the_pin_and_nothing_else() -> None:
    """fmin and fmax: the winner gets all; at a tie the pin decides, whichever is asked first."""
    for f, wins in ((torch.fmin, torch.lt), (torch.fmax, torch.gt)):
        for edge, share in (("closed", 1.0), ("half", 0.5), ("open", 0.0)):
            a, b = torch.tensor(A, requires_grad=True), torch.tensor(B, requires_grad=True)
            with pg.pin_edge(edge):
                to_a, to_b = torch.autograd.grad(f(a, b), (a, b), torch.full((4,), 8.0))
            expected = torch.where(a == b, 8 * share, torch.where(wins(a, b), 8.0, 0.0)).detach()
            assert torch.equal(to_a, expected), (f, edge)
            assert torch.equal(to_b, 8 - expected), (f, edge)


@pytest.mark.skipif(not torch_private.has_mode_stack, reason="this torch hides its modes")
def test_after_a_backward_only_our_modes_are_taken_off_whatever_was_pushed_above() -> None:
    def left(others: int, ours: int) -> int:
        """How many of the others' stay, of whom each stands on one of ours."""
        above, missing = ([TorchFunctionMode() for _ in range(count)] for count in (others, ours))
        before = torch_private.mode_stack()
        for mode in (*missing, *above):
            torch_private.push_mode(mode)
        try:
            _take_off(tuple(missing), None)
            stack = torch_private.mode_stack()[len(before) :]
            assert stack == above
            return len(stack)
        finally:
            while torch_private.mode_count() > len(before):
                torch_private.pop_mode()

    assert [left(others, ours) for others in (0, 1, 2) for ours in (1, 2)] == [0, 0, 1, 1, 2, 2]
