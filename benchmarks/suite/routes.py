"""The ways to compute an op: torch's own, what people paste, other libraries' and pseudograd's.

`ROUTES[op][name]` takes a workload and returns a call without arguments that gives y. It raises `Missing` where the route is not there:
the library is not installed, or this pseudograd has no such op. Other libraries' code is theirs, imported where it is installed.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.nn import functional

import pseudograd as pg

from .cases import Workload

Forward = Callable[[], Tensor]
Route = Callable[[Workload], Forward]


class Missing(Exception):  # noqa: N818  no error: the route is left out, and that is said
    """Why a route cannot be measured here."""


class _Floor(torch.autograd.Function):
    """The least that a Function which returns new tensors can do: a copy on the way forward, a copy on the way back, x saved."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> Tensor:
        ctx.saved_tensors  # noqa: B018  unpacking is part of what a rule has to do
        return grad.clone()


class _Snippet(torch.autograd.Function):
    """What people paste: the one-sided rule as a product of signs, with a mask that multiplies."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, low: float, high: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.bounds = low, high
        return x.clamp(low, high)

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        passes = grad * (x - x.clamp(*ctx.bounds)) >= 0
        return grad * passes, None, None


class _Formula(torch.autograd.Function):
    """The rule written down plainly, with comparisons: what a careful user would give to the compiler."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, low: float, high: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.bounds = low, high
        return torch.clamp(x, low, high)

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        low, high = ctx.bounds
        outward = ((x < low) & (grad > 0)) | ((x > high) & (grad < 0))
        return torch.where(outward, 0.0, grad), None, None


class _Spike(torch.autograd.Function):
    """A step with a triangle for its gradient, as those who train spiking networks write it."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return (x >= 0).to(x.dtype)

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad * torch.clamp(1.0 - x.abs(), min=0.0)


# The C-level apply, without the Python one that looks for transforms.
copied: Callable[[Tensor], Tensor] = super(torch.autograd.Function, _Floor).apply  # type: ignore[misc]


def _floor(work: Workload) -> Forward:
    x = work.x
    return lambda: copied(x)


def _bounded(function: Callable[..., Tensor]) -> Route:
    def route(work: Workload) -> Forward:
        x, low, high = work.x, work.low, work.high
        return lambda: function(x, low, high)

    return route


def _unary(function: Callable[..., Tensor], *arguments: object, **options: object) -> Route:
    called = functools.partial(function, **options) if options else function

    def route(work: Workload) -> Forward:
        x = work.x
        return lambda: called(x, *arguments)

    return route


def _compiled(function: Callable[..., Tensor]) -> Route:
    """Compiled anew for each case, for the bounds and the shape of that case."""

    def route(work: Workload) -> Forward:
        x, low, high = work.x, work.low, work.high
        compiled = torch.compile(lambda x: function(x, low, high), fullgraph=True, dynamic=False)
        try:
            torch.autograd.grad(compiled(x), x, work.grad)
        except torch._dynamo.exc.BackendCompilerFailed as error:  # such as no C++ compiler
            raise Missing(f"torch.compile failed: {str(error).splitlines()[0]}") from error
        return lambda: compiled(x)

    return route


def _inplace_route(function: Callable[..., Tensor]) -> Route:
    """On a copy, as a leaf may not be written to; the copy is part of the time of every route."""

    def route(work: Workload) -> Forward:
        x, low, high = work.x, work.low, work.high
        return lambda: function(x.clone(), low, high)

    return route


# --- other libraries --------------------------------------------------------------------------------------------------


def _compressai(work: Workload) -> Forward:
    """The file of LowerBound alone, without what the rest of the library imports."""
    library = importlib.util.find_spec("compressai")
    if library is None or not library.submodule_search_locations:
        raise Missing("compressai is not installed")
    path = Path(library.submodule_search_locations[0]) / "ops/bound_ops.py"
    spec = importlib.util.spec_from_file_location("compressai_bound_ops", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise Missing("compressai has no ops/bound_ops.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    bound, x = module.LowerBound(work.low), work.x
    return lambda: bound(x)


def _brevitas(work: Workload) -> Forward:
    """`tensor_clamp`, which brevitas' quantizers call with the ends of their integer range, as tensors."""
    try:
        clamp = importlib.import_module("brevitas.function.ops").tensor_clamp
    except ImportError as error:
        raise Missing(f"brevitas: {error}") from error
    x, low, high = work.x, *(torch.as_tensor(bound, dtype=work.x.dtype) for bound in (work.low, work.high))
    return lambda: clamp(x, low, high)


def library_versions() -> dict[str, str]:
    """The versions of the other libraries, where they are installed."""
    return {name: version(name) for name in ("compressai", "brevitas") if importlib.util.find_spec(name)}


# --- the table --------------------------------------------------------------------------------------------------------


def _rule(name: str, edge: str = "closed") -> Callable[..., Tensor]:
    return functools.partial(pg.clamp, rule=name, edge=edge)


_BY_TENSORS: dict[str, Route] = {
    "floor": _floor,
    "native": _bounded(torch.clamp),
    "snippet": _bounded(_Snippet.apply),
    "inward": _bounded(pg.clamp),
    "brevitas": _brevitas,
}

ROUTES: dict[str, dict[str, Route]] = {
    "clamp": {
        **_BY_TENSORS,
        "hardtanh": _bounded(functional.hardtanh),
        "zero/closed": _bounded(_rule("zero")),
        "zero/open": _bounded(_rule("zero", "open")),
        "sign": _bounded(_rule("sign")),
        "identity": _bounded(_rule("identity")),
        "native, compiled": _compiled(torch.clamp),
        "snippet, compiled": _compiled(_Snippet.apply),
        "formula, compiled": _compiled(_Formula.apply),
        "inward, compiled": _compiled(pg.clamp),
    },
    "clamp, bounds per channel": _BY_TENSORS,
    "clamp, bounds of full size": _BY_TENSORS,
    "lower_bound": {
        "floor": _floor,
        "native": _unary(torch.clamp_min, 0.0),
        "compressai": _compressai,
        "inward": _unary(pg.lower_bound, 0.0),
    },
    "relu": {"floor": _floor, "native": _unary(torch.relu), "inward": _unary(pg.relu, rule="inward")},
    "clamp_": {"native": _inplace_route(torch.clamp_), "inward": _inplace_route(pg.clamp_)},
    "heaviside": {
        "floor": _floor,
        "spike": _unary(_Spike.apply),
        **{rule: _unary(pg.heaviside, rule=rule) for rule in ("triangle", "arctan", "window")},
    },
    "gelu, backward": {"floor": _floor, "native": _unary(functional.gelu), "fewbit": _unary(pg.gelu, rule="fewbit")},
}

# The activations of the network whose memory is measured.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "no activation": lambda x: x,
    "relu": torch.relu,
    "native": lambda x: torch.clamp(x, -1.0, 1.0),
    "hardtanh": functional.hardtanh,
    "snippet": lambda x: _Snippet.apply(x, -1.0, 1.0),
    "inward": lambda x: pg.clamp(x, -1.0, 1.0),
    "zero/open": functools.partial(pg.clamp, min=-1.0, max=1.0, rule="zero", edge="open"),
}
