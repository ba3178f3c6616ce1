"""What stands in for element-wise functions under a pin of their convention: torch's own formula, and another slope at the kink.

A rule is made when it is first asked for; its name is the convention. Numbers are read from the name, because a compiler makes symbols
of floats that it finds in a table.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from ..rule import BOUNDED, PRIMITIVES, Gradients, Primitive, Pull, Rule, register
from ..torch_table.conventions import OWN
from ..torch_table.private import in_forward_mode, transforms_are_active
from . import primitives  # noqa: F401  (for its rows)

_aten = torch.ops.aten


class _Made(NamedTuple):
    """family: that of `torch_conventions`. make(convention): the pull. compares: does it compare x with what it was rounded to?"""

    family: str
    make: Callable[[str], Pull]
    compares: bool
    rules: dict[str, Rule]  # by convention


_MADE: dict[str, _Made] = {}  # by the name of the primitive


def prepare(kinks: dict[str, str]) -> None:
    """Make the rules of these conventions; not in compiled code, which cannot."""
    for name, made in _MADE.items():
        convention = kinks.get(made.family)
        if convention is not None and convention not in made.rules:
            made.rules[convention] = Rule(
                name=convention,
                formula="torch's own, with another slope at the kink",
                source="torch, JAX and TensorFlow as `pseudograd_kinks` has measured them",
                pull=made.make(convention),
                reference=lambda *arguments, **parameters: (),
                is_linear=True,
                keeps=PRIMITIVES[name].inputs,
                compares=made.compares,
            )


def primitive_of(name: str, in_place: bool = False) -> Primitive:
    """What stands in for `name`, with a rule for each convention that was prepared."""
    found = PRIMITIVES.get(f"{name}{IN_PLACE}, pinned") if in_place else None
    return PRIMITIVES[f"{name}, pinned"] if found is None else found


def share(grad: Tensor, of: float) -> Any:
    """Nothing of an infinite grad is nothing."""
    return grad if of == 1.0 else 0.0 if of == 0.0 else grad * of


def _register(
    family: str, name: str, make: Callable[..., Pull], forward: Any, inputs: tuple[str, ...], compares: bool
) -> None:
    """Under the name of what stands in otherwise; of a known one forward and what is saved are its own."""
    made = _MADE[f"{name}, pinned"] = _Made(family, make, compares, {})
    known = None if forward is not None else PRIMITIVES[name]
    stands_in = Primitive(
        name=f"{name}, pinned",
        inputs=inputs,
        forward=forward if known is None else known.forward,
        rules=made.rules,
        saves="a copy" if known is not None and known.saves == "a copy" else "as torch",
    )
    register(stands_in)


# --- functions of x and numbers ---------------------------------------------------------------------------------------


class _Kink(NamedTuple):
    """at(x, *others): where it is. elsewhere(grad, x, *others): torch's own formula."""

    at: Callable[..., Tensor]
    elsewhere: Callable[..., Tensor]


def _pull(
    kink: _Kink, convention: str, grad: Tensor, x: Tensor, *others: object, y: object, wants: object
) -> Gradients:
    elsewhere = kink.elsewhere(grad, x, *others)
    none = (None,) * len(others)
    if convention == OWN:
        return elsewhere, *none
    return torch.where(kink.at(x, *others), share(grad, float(convention)), elsewhere), *none


def _at_zero(x: Tensor, *others: object) -> Tensor:
    return x == 0


def _at_bounds(x: Tensor, min: float, max: float) -> Tensor:
    return (x == min) | (x == max)


def _between(grad: Tensor, x: Tensor, min: Any, max: Any) -> Tensor:
    return torch.where((x <= min) | (x >= max), 0.0, grad)


def _of_abs(grad: Tensor, x: Tensor) -> Tensor:
    return grad * torch.sgn(x)


def _of_relu(grad: Tensor, x: Tensor, min: object, max: object) -> Tensor:
    return torch.where(x <= 0, 0.0, grad)


def _of_hardsigmoid(grad: Tensor, x: Tensor, min: object, max: object) -> Tensor:
    if not (torch.is_grad_enabled() or transforms_are_active() or in_forward_mode()):
        return _aten.hardsigmoid_backward(grad, x)  # which torch cannot differentiate
    return torch.where((x > -3) & (x < 3), grad * (1 / 6), 0.0)


def _of_leaky_relu(grad: Tensor, x: Tensor, negative_slope: Any) -> Tensor:
    return torch.where(x > 0, grad, grad * negative_slope)


_SELU = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946


def _of_selu(grad: Tensor, x: Tensor) -> Tensor:
    return _aten.elu_backward(grad, *_SELU, 1.0, False, x)


def _of_elu(grad: Tensor, x: Tensor, alpha: object) -> Tensor:
    return _aten.elu_backward(grad, alpha, 1.0, 1.0, False, x)


def _of_celu(grad: Tensor, x: Tensor, alpha: Any) -> Tensor:
    return _aten.elu_backward(grad, alpha, 1.0, 1.0 / alpha, False, x)


# In place torch has the slope of the result, which rounds otherwise.


def _of_selu_in_place(grad: Tensor, y: Tensor) -> Tensor:
    return _aten.elu_backward(grad, *_SELU, 1.0, True, y)


def _of_elu_in_place(grad: Tensor, y: Tensor, alpha: object) -> Tensor:
    return _aten.elu_backward(grad, alpha, 1.0, 1.0, True, y)


def _of_celu_in_place(grad: Tensor, y: Tensor, alpha: Any) -> Tensor:
    return _aten.elu_backward(grad, alpha, 1.0, 1.0 / alpha, True, y)


def _pull_in_place(
    of_result: Callable[..., Tensor],
    convention: str,
    grad: Tensor,
    x: Tensor,
    *others: object,
    y: Tensor,
    wants: object,
) -> Gradients:
    elsewhere = of_result(grad, y, *others)
    none = (None,) * len(others)
    return torch.where(x == 0, share(grad, float(convention)), elsewhere), *none


IN_PLACE = " in place"
for _op, _of_result, _call, _takes in (
    ("torch.selu", _of_selu_in_place, torch.selu, ("x",)),
    ("torch.elu", _of_elu_in_place, functional.elu, ("x", "alpha")),
    ("torch.celu", _of_celu_in_place, torch.celu, ("x", "alpha")),
):
    _made = partial(partial, _pull_in_place, _of_result)
    _register(_op.removeprefix("torch."), _op + IN_PLACE, _made, _call, _takes, True)

_X = ("x",)
for _name, _kink, _forward, _inputs in (
    ("torch.abs", _Kink(_at_zero, _of_abs), torch.abs, _X),
    ("torch.relu", _Kink(_at_zero, _of_relu), None, BOUNDED),
    ("torch.relu6", _Kink(_at_bounds, _between), None, BOUNDED),
    ("torch.hardtanh", _Kink(_at_bounds, _between), None, BOUNDED),
    ("torch.hardsigmoid", _Kink(_at_bounds, _of_hardsigmoid), None, BOUNDED),
    ("leaky_relu", _Kink(_at_zero, _of_leaky_relu), None, ("x", "negative_slope")),
    ("torch.selu", _Kink(_at_zero, _of_selu), torch.selu, _X),
    ("torch.elu", _Kink(_at_zero, _of_elu), functional.elu, ("x", "alpha")),
    ("torch.celu", _Kink(_at_zero, _of_celu), torch.celu, ("x", "alpha")),
):
    _register(
        _name.removeprefix("torch."),
        _name,
        partial(partial, _pull, _kink),
        _forward,
        _inputs,
        _name in ("torch.hardtanh", "torch.relu6"),
    )


def _pull_of_sqrt(convention: str, grad: Tensor, x: Tensor, *, y: Tensor, wants: object) -> Gradients:
    """TensorFlow gives nothing where nothing arrives, also where the slope is infinite."""
    found = grad / (2 * y)
    return (found if convention == OWN else torch.where((x == 0) & (grad == 0), 0.0, found),)


_register("sqrt", "torch.sqrt", partial(partial, _pull_of_sqrt), torch.sqrt, _X, True)


# --- functions of two tensors -----------------------------------------------------------------------------------------


def _pull_of_extreme(
    is_min: bool, convention: str, grad: Tensor, x: Tensor, other: Tensor, *, y: Tensor, wants: object
) -> Gradients:
    """minimum or maximum. NaN: torch gives grad to both, JAX to none, TensorFlow to the second."""
    x_wins, other_wins = (x < other, other < x) if is_min else (x > other, other > x)
    tied = x == other
    if convention == "jax":
        half = 0.5 * grad
        return (
            torch.where(tied, half, torch.where(x_wins, grad, 0.0)),
            torch.where(tied, half, torch.where(other_wins, grad, 0.0)),
        )
    if convention == "tensorflow":
        passes = tied | x_wins
        return torch.where(passes, grad, 0.0), torch.where(passes, 0.0, grad)
    first = float(convention)
    return (
        torch.where(tied, share(grad, first), torch.where(other_wins, 0.0, grad)),
        torch.where(tied, share(grad, 1.0 - first), torch.where(x_wins, 0.0, grad)),
    )


def _pull_of_fextreme(
    is_min: bool, convention: str, grad: Tensor, x: Tensor, other: Tensor, *, y: Tensor, wants: object
) -> Gradients:
    """fmin or fmax: a NaN loses; where both are NaN, x wins."""
    first = float(convention)
    tied = x == other
    wins = ((x < other) if is_min else (x > other)) | (other != other)
    return (
        torch.where(tied, share(grad, first), torch.where(wins, grad, 0.0)),
        torch.where(tied, share(grad, 1.0 - first), torch.where(wins, 0.0, grad)),
    )


def _pull_of_hypot(convention: str, grad: Tensor, x: Tensor, other: Tensor, *, y: Tensor, wants: object) -> Gradients:
    if convention == OWN:
        return grad * x / y, grad * other / y
    nowhere, at_zero = (x == 0) & (other == 0), share(grad, float(convention))
    y = torch.where(nowhere, 1.0, y)
    to_x, to_other = grad * x / y, grad * other / y  # in torch's order, which rounds otherwise than grad * (x / y)
    return torch.where(nowhere, at_zero, to_x), torch.where(nowhere, at_zero, to_other)


_PAIR = ("x", "other")
for _name, _is_min, _make, _of_two in (
    ("torch.maximum of two", False, _pull_of_extreme, torch.maximum),
    ("torch.minimum of two", True, _pull_of_extreme, torch.minimum),
    ("torch.fmax", False, _pull_of_fextreme, torch.fmax),
    ("torch.fmin", True, _pull_of_fextreme, torch.fmin),
):
    _register(
        _name.removeprefix("torch.").removesuffix(" of two"),
        _name,
        partial(partial, _make, _is_min),
        _of_two,
        _PAIR,
        True,
    )
_register("hypot", "torch.hypot", partial(partial, _pull_of_hypot), torch.hypot, _PAIR, True)


# --- clamp ------------------------------------------------------------------------------------------------------------


def _pull_of_clamp(
    convention: str, grad: Tensor, x: Tensor, min: Any, max: Any, *, y: Tensor, wants: object
) -> Gradients:
    if convention == "jax":
        return _of_jax(grad, x, min, max)
    first = 1.0 if convention == "tensorflow" else float(convention)
    below = _nowhere(x) if min is None else x < min
    above = _nowhere(x) if max is None else x > max
    if min is not None and max is not None:
        crossed = _crossed(x, min, max)
        below, above = below & ~crossed, above | crossed
    at_min = _nowhere(x) if min is None else (x == min) & ~above
    at_max = _nowhere(x) if max is None else (x == max) & ~below & ~at_min
    is_nan = y != y
    to_bound = share(grad, 1.0 - first)
    to_x = torch.where(below | above | is_nan, 0.0, torch.where(at_min | at_max, share(grad, first), grad))
    to_min = torch.where(below, grad, torch.where(at_min, to_bound, 0.0)) if isinstance(min, Tensor) else None
    to_max = torch.where(above, grad, torch.where(at_max, to_bound, 0.0)) if isinstance(max, Tensor) else None
    return to_x, to_min, to_max


def _nowhere(x: Tensor) -> Tensor:
    return torch.zeros((), dtype=torch.bool, device=x.device)


def _crossed(x: Tensor, min: object, max: Any) -> Any:
    if isinstance(min, Tensor) or isinstance(max, Tensor):
        return max < min
    return torch.full((), max < min, dtype=torch.bool, device=x.device)


def _of_jax(grad: Tensor, x: Tensor, min: Any, max: Any) -> Gradients:
    """jnp.clip is minimum(maximum(x, min), max), each of which shares a tie."""
    lifted = x if min is None else torch.where(x < min, min, x)
    if isinstance(min, Tensor):
        lifted = torch.where(min == min, lifted, min)
    to_lifted, to_max = grad, None
    if max is not None:
        tied, half = lifted == max, 0.5 * grad
        to_lifted = torch.where(tied, half, torch.where(lifted < max, grad, 0.0))
        to_max = torch.where(tied, half, torch.where(lifted > max, grad, 0.0)) if isinstance(max, Tensor) else None
    if min is None:
        return to_lifted, None, to_max
    tied, half = x == min, 0.5 * to_lifted
    to_x = torch.where(tied, half, torch.where(x > min, to_lifted, 0.0))
    to_min = torch.where(tied, half, torch.where(x < min, to_lifted, 0.0)) if isinstance(min, Tensor) else None
    return to_x, to_min, to_max


for _name in ("torch.clamp", "torch.clamp_min", "torch.clamp_max"):
    _register("clamp", _name, partial(partial, _pull_of_clamp), None, BOUNDED, True)
