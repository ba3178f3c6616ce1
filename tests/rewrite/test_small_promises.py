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
