"""Checkpoints recompute under the contexts of their forward, also nested, and beside other libraries that replace parts of torch's own."""

from __future__ import annotations

import contextlib
from unittest import mock

import pytest
import torch
from torch.utils import checkpoint as torchs
from torch.utils.checkpoint import checkpoint

import pseudograd as pg
from pseudograd.listen import patches

pytestmark = pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")


def _grad(outer: bool, inner: bool) -> list[float]:
    """Of a clamp in a checkpoint in a checkpoint, with the backward outside the context of its forward."""
    x = torch.tensor([2.0, 0.5], requires_grad=True)
    with pg.override(clamp="identity"):
        y = checkpoint(
            lambda t: checkpoint(lambda u: u.clamp(0, 1), t * 1, use_reentrant=inner), x, use_reentrant=outer
        )
    y.sum().backward()
    assert x.grad is not None
    return x.grad.tolist()


@pytest.mark.parametrize("outer", [True, False])
@pytest.mark.parametrize("inner", [True, False])
def test_a_checkpoint_in_a_checkpoint_keeps_the_rule(outer: bool, inner: bool) -> None:
    assert _grad(outer, inner) == [1.0, 1.0]
    assert not [
        patch for patch in patches.status() if "checkpoint" in patch["name"].lower() and "_dynamo" not in patch["name"]
    ]


class _Subclass(torchs.CheckpointFunction):
    pass


class _OwnContext(torch.autograd.Function):
    """As libraries that move activations to the CPU write it, with names of their own."""

    @staticmethod
    def forward(ctx, function, preserve_rng_state, *inputs):
        ctx.forward_function = function
        ctx.save_for_backward(*inputs)
        with torch.no_grad():
            return function(*inputs)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.forward_function(x)
        torch.autograd.backward(y, grad)
        return None, None, x.grad


@pytest.mark.parametrize(
    "replaced",
    [
        lambda: mock.patch.object(torchs.CheckpointFunction, "forward", torchs.CheckpointFunction.forward),
        lambda: mock.patch.object(torchs, "CheckpointFunction", _Subclass),
        lambda: mock.patch.object(torchs, "CheckpointFunction", _OwnContext),
    ],
    ids=["a method", "the class by a subclass", "the class by another one"],
)
def test_contexts_work_where_another_library_replaced_the_checkpoint(replaced) -> None:
    with replaced():
        for context in (pg.override(clamp="identity"), pg.pin_edge("open"), pg.diagnose()):
            x = torch.tensor([2.0, 0.5], requires_grad=True)
            with context:
                checkpoint(lambda t: t.clamp(0, 1), x, use_reentrant=True).sum().backward()
            assert x.grad is not None
    assert _grad(True, True) == [1.0, 1.0]


@pytest.mark.parametrize("has_reentry", [False, True])
@pytest.mark.parametrize(("is_inside", "expected"), [(True, [1.0, 1.0, 1.0]), (False, [0.0, 1.0, 0.0])])
def test_a_checkpoint_recomputes_under_the_contexts_of_its_forward_alone(
    is_inside: bool, expected: list[float], has_reentry: bool
) -> None:
    """They may have ended by then, and another one may have begun."""
    x = torch.tensor([-2.0, 0.5, 2.0], requires_grad=True)
    contexts = [pg.override(clamp="identity"), contextlib.nullcontext()]
    with contexts[0 if is_inside else 1]:
        y = checkpoint(lambda x: torch.clamp(x * 1, -1, 1), x, use_reentrant=has_reentry)
    with contexts[1 if is_inside else 0]:
        y.sum().backward()
    assert x.grad.tolist() == expected
