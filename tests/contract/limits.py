"""What torch cannot do with any function, shown with torch.sin: these cells of the matrix are faults of torch, not ours.

A fault has an issue and is expected to fail, strictly: on the torch that mends it the cell belongs into matrix.py.
A refusal is torch's own error, by design.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

from . import matrix

Compiler = Callable[[Callable[..., Any]], Callable[..., Any]]


def compiled(f: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(f, backend="aot_eager", fullgraph=True)


class Fault(NamedTuple):
    """`way(torch.sin, compile, x, w)` compiled should equal itself in eager mode."""

    issue: str
    way: Callable[..., Tensor]


FAULTS: dict[str, Fault] = {
    "vmap(jacfwd) over a batched weight": Fault(
        "pytorch#160508", lambda f, compile, x, w: compile(lambda x, w: matrix.FORWARD["vmap(jacfwd)"](f, x, w))(x, w)
    ),
    "vmap(hessian)": Fault(
        "pytorch#183015",
        lambda f, compile, x, w: compile(lambda x, w: matrix.FORWARD_SECOND["vmap(hessian)"](f, x, w))(x, w),
    ),
    "double backward": Fault(
        "pytorch#91469", lambda f, compile, x, w: matrix.second_by_double_backward(compile(f), x, w)
    ),
}


# Rules that are torch's own derivative, in cells (case, way, dynamic) where torch's own function fails too: no issue tells of it yet.
OF_TORCHS_DERIVATIVE = {("gelu-exact", way, True): "torch's gelu fails too" for way in ("vmap(jacfwd)", "vmap(jacrev)")}


def outcome(name: str) -> str:
    """Run in a process of its own: some of these leave functorch broken."""
    way = FAULTS[name].way
    x = torch.linspace(-1, 1, 6, dtype=torch.float64).reshape(2, 3)
    expected = way(torch.sin, lambda f: f, x, x)
    try:
        return "equal" if torch.allclose(way(torch.sin, compiled, x, x), expected) else "different"
    except Exception as error:
        return f"refused: {type(error).__name__}"


class Refusal(NamedTuple):
    """`attempt(f, leaf)` raises an error that says `text`."""

    place: str
    text: str
    attempt: Callable[[Callable[[Tensor], Tensor], Tensor], Any]


REFUSALS: dict[str, Refusal] = {
    "autograd.grad of a reentrant checkpoint": Refusal(
        "eager",
        r"use_reentrant=True, torch.utils.checkpoint is incompatible with .grad\(\)",
        lambda f, leaf: torch.autograd.grad(checkpoint(f, leaf, use_reentrant=True).sum(), leaf),
    ),
    "make_fx of a compiled function": Refusal(
        "compiled, static",
        "FX to symbolically trace a dynamo-optimized function",
        lambda f, leaf: make_fx(compiled(f))(leaf),
    ),
    "jit.trace of a compiled function": Refusal(
        "compiled, static",
        "torch.jit.trace a dynamo-optimized function",
        lambda f, leaf: torch.jit.trace(compiled(f), (leaf,), check_trace=False),
    ),
}
