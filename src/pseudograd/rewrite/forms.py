"""Every way to write a clamp, relu or rounding with torch: which family it belongs to, how its arguments read, what stands in for it.

A row is found by the function that torch hands to a TorchFunctionMode. Plain classes and loops: Dynamo reads this too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

_MISSING = object()
# What torch's own functions take for their first two arguments, as aten names them and as numpy does. Those of torch.nn.functional do not.
_ALIASES = {"self": "input", "x": "input", "a": "input", "x1": "input", "x2": "other"}


class Form:
    """One function of torch. `read(args, kwargs)` gives (stand-in, inputs, in_place), or None where torch is left alone."""

    __slots__ = ("aliases", "arrange", "defaults", "family", "in_place", "name", "names")

    def __init__(
        self,
        name: str,
        family: str,
        names: tuple[str, ...],
        defaults: tuple[Any, ...],
        arrange: Callable[..., tuple[str, tuple[Any, ...]] | None],
        in_place: bool,
    ) -> None:
        self.name = name
        self.family = family
        self.names = names
        self.defaults = defaults
        self.arrange = arrange
        self.in_place = in_place
        self.aliases: dict[str, str] = {} if names[-1] == "inplace" else _ALIASES

    def read(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, tuple[Any, ...], bool] | None:
        if len(args) > len(self.names):
            return None
        values = list(args) + list(self.defaults[len(args) :])
        for key in kwargs:
            name = self.aliases.get(key, key)
            if name in self.names:
                values[self.names.index(name)] = kwargs[key]
            else:  # out=, and what torch will refuse
                return None
        in_place = self.in_place
        if self.names[-1] == "inplace":
            in_place = bool(values.pop())
        if not isinstance(values[0], Tensor):
            return None
        for value in values:
            if value is _MISSING:
                return None
        arranged = self.arrange(*values)
        if arranged is None:
            return None
        return arranged[0], arranged[1], in_place


# --- arrangements: (stand-in, its inputs) -----------------------------------------------------------------------------


def _clamp(x: Tensor, min: Any, max: Any) -> tuple[str, tuple[Any, ...]] | None:
    return None if min is None and max is None else ("torch.clamp", (x, min, max))


def _clamp_of_aten(x: Tensor, min: Any, max: Any) -> tuple[str, tuple[Any, ...]] | None:
    """aten takes two numbers or two tensors; torch.clamp makes a number of a tensor without dimensions."""
    kinds = {isinstance(bound, Tensor) for bound in (min, max) if bound is not None}
    return None if len(kinds) == 2 else _clamp(x, min, max)


def _clamp_min(x: Tensor, min: Any) -> tuple[str, tuple[Any, ...]] | None:
    return None if min is None else ("torch.clamp_min", (x, min, None))


def _clamp_max(x: Tensor, max: Any) -> tuple[str, tuple[Any, ...]] | None:
    return None if max is None else ("torch.clamp_max", (x, None, max))


def _relu(x: Tensor) -> tuple[str, tuple[Any, ...]]:
    return "torch.relu", (x, 0.0, None)


def _relu6(x: Tensor) -> tuple[str, tuple[Any, ...]]:
    return "torch.relu6", (x, 0.0, 6.0)


def _hardtanh(x: Tensor, min_val: Any, max_val: Any) -> tuple[str, tuple[Any, ...]] | None:
    if min_val > max_val:  # an error in torch.nn.functional
        return None
    return "torch.hardtanh", (x, min_val, max_val)


def _hardsigmoid(x: Tensor) -> tuple[str, tuple[Any, ...]]:
    return "torch.hardsigmoid", (x, -3.0, 3.0)


def is_constant(value: Any) -> bool:
    """A tensor that no derivative can be asked of: no grad, no transform's wrapper, no tangent."""
    if not isinstance(value, Tensor) or value.requires_grad:
        return False
    if torch.compiler.is_compiling():
        return True
    if torch._C._functorch.is_functorch_wrapped_tensor(value):
        return False
    return torch.autograd.forward_ad._current_level < 0 or torch.autograd.forward_ad.unpack_dual(value).tangent is None


def only_backward_tells() -> bool:
    """Which of two tensors asks for a gradient? Under a transform neither says so; compiled code cannot even tell whether it is wrapped."""
    if not torch._C._are_functorch_transforms_active():
        return False
    return torch.autograd.forward_ad._current_level < 0 or torch.compiler.is_compiling()


def _minimum(x: Any, other: Any) -> tuple[str, tuple[Any, ...]] | None:
    return _extreme("torch.minimum", x, other, (None, other))


def _maximum(x: Any, other: Any) -> tuple[str, tuple[Any, ...]] | None:
    return _extreme("torch.maximum", x, other, (other, None))


def _extreme(name: str, x: Any, other: Any, bounds: tuple[Any, Any]) -> tuple[str, tuple[Any, ...]] | None:
    if not isinstance(x, Tensor) or not isinstance(other, Tensor):
        return None
    if only_backward_tells():
        return f"{name}, of two", (x, other)
    if not is_constant(x) and is_constant(other):
        return name, (x, *bounds)
    if is_constant(x) and not is_constant(other):
        return f"{name}, of two", (x, other)
    return None


def _fmin(x: Tensor, other: Any) -> tuple[str, tuple[Any, ...]] | None:
    return ("torch.fmin", (x, other)) if isinstance(other, Tensor) else None


def _fmax(x: Tensor, other: Any) -> tuple[str, tuple[Any, ...]] | None:
    return ("torch.fmax", (x, other)) if isinstance(other, Tensor) else None


def _round(x: Tensor, decimals: int) -> tuple[str, tuple[Any, ...]]:
    return "round", (x, decimals)


def _floor(x: Tensor) -> tuple[str, tuple[Any, ...]]:
    return "floor", (x,)


def _ceil(x: Tensor) -> tuple[str, tuple[Any, ...]]:
    return "ceil", (x,)


def _trunc(x: Tensor) -> tuple[str, tuple[Any, ...]]:
    return "trunc", (x,)


def _sign(x: Tensor) -> tuple[str, tuple[Any, ...]]:
    return "torch.sign", (x, 0.0)


def _learns(*values: Any) -> bool:
    """torch refuses a scale that requires grad."""
    for value in values:  # noqa: SIM110  Dynamo on torch 2.8
        if isinstance(value, Tensor) and value.requires_grad:
            return True
    return False


def _fake_quantize(x: Tensor, scale: Any, zero_point: Any, low: int, high: int) -> tuple[str, tuple[Any, ...]] | None:
    if _learns(scale, zero_point):
        return None
    return "torch.fake_quantize_per_tensor_affine", (x, scale, zero_point, low, high)


def _fake_quantize_channels(
    x: Tensor, scale: Any, zero_point: Any, axis: int, low: int, high: int
) -> tuple[str, tuple[Any, ...]] | None:
    if _learns(scale, zero_point):
        return None
    return "torch.fake_quantize_per_channel_affine", (x, scale, zero_point, axis, low, high)


# --- the table --------------------------------------------------------------------------------------------------------

FORMS: dict[Any, Form] = {}


def _add(form: Form, owners: tuple[Any, ...], overloads: tuple[str, ...] = ("default",)) -> None:
    """Under every owner that has a function of that name; aten's packet and its overloads too."""
    for owner in owners:
        function = getattr(owner, form.name, None)
        if function is None:
            continue
        FORMS[function] = form
        if owner is torch.ops.aten:
            for overload in overloads:
                if overload in function.overloads():
                    FORMS[getattr(function, overload)] = form


def _register_all() -> None:
    everywhere = (torch, Tensor, torch.ops.aten)
    two, both = ("default", "Tensor"), (None, None)
    for name in ("clamp", "clip"):
        for suffix in ("", "_"):
            for read, owners in ((_clamp, (torch, Tensor)), (_clamp_of_aten, (torch.ops.aten,))):
                form = Form(name + suffix, "clamp", ("input", "min", "max"), (_MISSING, *both), read, suffix == "_")
                _add(form, owners, two)
    for name, bound, arrange in (("clamp_min", "min", _clamp_min), ("clamp_max", "max", _clamp_max)):
        for suffix in ("", "_"):
            form = Form(name + suffix, "clamp", ("input", bound), (_MISSING, None), arrange, suffix == "_")
            _add(form, everywhere, two)
    for name, extreme in (("minimum", _minimum), ("maximum", _maximum)):
        _add(Form(name, "extreme", ("input", "other"), (_MISSING, None), extreme, False), everywhere)
    for name, extreme in (("min", _minimum), ("max", _maximum)):
        _add(Form(name, "extreme", ("input", "other"), (_MISSING, None), extreme, False), everywhere, ("other",))
    for name, fextreme in (("fmin", _fmin), ("fmax", _fmax)):
        _add(Form(name, "nan extreme", ("input", "other"), (_MISSING, None), fextreme, False), everywhere)

    nn = (functional, torch._C._nn)
    relus: tuple[tuple[str, tuple[str, ...], tuple[Any, ...], Callable[..., Any]], ...] = (
        ("relu", (), (), _relu),
        ("relu6", (), (), _relu6),
        ("hardtanh", ("min_val", "max_val"), (-1.0, 1.0), _hardtanh),
        ("hardsigmoid", (), (), _hardsigmoid),
    )
    for name, bounds, values, arrange in relus:
        names, defaults = ("input", *bounds), (_MISSING, *values)
        _add(Form(name, "relu", names, defaults, arrange, False), (torch, Tensor, torch._C._nn, torch.ops.aten))
        _add(Form(name + "_", "relu", names, defaults, arrange, True), (torch, Tensor, *nn, torch.ops.aten))
        in_module = Form(name, "relu", (*names, "inplace"), (*defaults, False), arrange, False)
        FORMS[getattr(functional, name)] = in_module

    for suffix in ("", "_"):
        form = Form("round" + suffix, "round", ("input", "decimals"), (_MISSING, 0), _round, suffix == "_")
        _add(form, everywhere, ("default", "decimals"))
        for name, whole in (("floor", _floor), ("ceil", _ceil), ("trunc", _trunc), ("fix", _trunc)):
            _add(Form(name + suffix, "round", ("input",), (_MISSING,), whole, suffix == "_"), everywhere)
        _add(Form("sign" + suffix, "sign", ("input",), (_MISSING,), _sign, suffix == "_"), everywhere)
    grid = ("quant_min", "quant_max")
    names = ("input", "scale", "zero_point", *grid)
    form = Form(
        "fake_quantize_per_tensor_affine", "fake_quantize", names, (_MISSING,) * len(names), _fake_quantize, False
    )
    _add(form, (torch, torch.ops.aten), ("default", "tensor_qparams"))
    names = ("input", "scale", "zero_point", "axis", *grid)
    form = Form(
        "fake_quantize_per_channel_affine",
        "fake_quantize",
        names,
        (_MISSING,) * len(names),
        _fake_quantize_channels,
        False,
    )
    _add(form, (torch, torch.ops.aten))


_register_all()
