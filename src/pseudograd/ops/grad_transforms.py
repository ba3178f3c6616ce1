"""Transforms of the gradient alone: the value passes as it is, the gradient is scaled, reversed or clipped."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .. import engine
from ..arguments import check_finite_number, check_tensor, is_true, rounded
from ..errors import must
from ..reference import elementwise as reference
from ..rule import Gradients, Op, Picture, Rule, Wants, call_for, register
from .samples import around
from .shared_rules import alias, row_of, zeros_of

__all__ = ["clip_grad", "reverse_grad", "scale_grad"]


@engine.unscriptable
def scale_grad(x: Tensor, scale: float) -> Tensor:
    """`x`, with its gradient multiplied by a number.

    Forward:  y = x, sharing its storage without a copy (with one if x is sparse or jagged).
    Backward: grad_x = scale * grad; exactly 0 where scale is 0, even for an infinite grad: a pseudo-gradient. Saves nothing.
        Linear in grad.

    Args:
        x: any shape, floating point; an integer x gets no gradient.
        scale: a finite number without a unit. 0 blocks, a negative one reverses.
    Returns: x, as a new tensor on the same storage; cannot be changed in place while recording.
    Raises: TypeError if x is no real tensor or scale no number; ValueError if scale is not finite.
    Example:
        >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> scale_grad(x, 0.1).sum().backward(); x.grad
        tensor([0.1000, 0.1000])
    Source: optax `scale_gradient`; lucidrains `frac_gradient`; the step-size gradient scale of LSQ (Esser et al., 2020).
    """
    return _run(SCALE_GRAD, x, "scale", scale)


@engine.unscriptable
def reverse_grad(x: Tensor, scale: float = 1.0) -> Tensor:
    """`x`, with its gradient reversed: the layers before x maximise the loss that the layers after x minimise.

    Forward:  y = x, sharing its storage without a copy (with one if x is sparse or jagged).
    Backward: grad_x = -scale * grad: a pseudo-gradient. Saves nothing. Linear in grad.

    Args:
        x: any shape, floating point; an integer x gets no gradient.
        scale: a finite number without a unit, lambda in the paper.
    Returns: as `scale_grad`.
    Raises: as `scale_grad`.
    Example:
        >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> reverse_grad(x).sum().backward(); x.grad
        tensor([-1., -1.])
    Source: gradient reversal layer (Ganin & Lempitsky, 2015).
    """
    return _run(REVERSE_GRAD, x, "scale", scale)


@engine.unscriptable
def clip_grad(x: Tensor, limit: float) -> Tensor:
    """`x`, with each element of its gradient clipped to +-limit.

    Forward:  y = x, sharing its storage without a copy (with one if x is sparse or jagged).
    Backward: grad_x = grad where |grad| <= limit, else limit with the sign of grad: a pseudo-gradient. A NaN grad passes.
        Saves nothing. Not linear in grad: no forward mode, and clipped gradients do not add up.

    Args:
        x: any shape, floating point; an integer x gets no gradient.
        limit: in the unit of the gradient; a finite number above 0. To limit a norm, torch.nn.utils.clip_grad_norm_ is the tool.
    Returns: as `scale_grad`.
    Raises: as `scale_grad`, ValueError if limit is not above 0, NotImplementedError in forward mode.
    Example:
        >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> (clip_grad(x, 0.5) * torch.tensor([0.25, -3.0])).sum().backward(); x.grad
        tensor([ 0.2500, -0.5000])
    Source: gradient clipping inside the graph (Graves, 2013).
    """
    limit = check_finite_number("clip_grad", "limit", limit)
    if is_true(limit <= 0):
        raise ValueError(must("clip_grad", "limit", "be above 0", limit))
    return _run(CLIP_GRAD, x, "limit", limit)


def _run(op: Op, x: Tensor, argument: str, value: float) -> Tensor:
    check_tensor(op.name, "x", x)
    value = check_finite_number(op.name, argument, value)
    return engine.run(call_for(op, op.default_rule), x, value)


def _scale(grad: Tensor, x: None, scale: float, *, wants: Wants) -> Gradients:
    return (zeros_of(grad) if scale == 0 else grad * scale), None


def _reverse(grad: Tensor, x: None, scale: float, *, wants: Wants) -> Gradients:
    return _scale(grad, x, -scale, wants=wants)


def _clip(grad: Tensor, x: None, limit: float, *, wants: Wants) -> Gradients:
    most = rounded(limit, grad)
    return torch.where(grad > most, most, torch.where(grad < -most, -most, grad)), None


def _op(public: Callable[..., Tensor], argument: str, rule: Rule, *numbers: float) -> Op:
    """numbers: values of the argument for samples; the first one for the picture."""
    name = public.__name__
    op = Op(
        name=name,
        rule_set=name,
        forward=lambda x, _: alias(x),
        plain_torch=lambda x, _: x,
        inputs=("x", argument),
        rules={rule.name: rule},
        default_rule=rule.name,
        public=public,
        samples=tuple([around(f"{number:g}", 0.0, 1.0, others=(number,)) for number in numbers]),
        picture=Picture(others=numbers[:1]),
    )
    return register(op)


_SCALE = row_of(
    "scale",
    _scale,
    reference.scaled,
    keeps=("scale",),
    colour="#997700",
    formula="scale * grad",
    source="optax scale_gradient",
    also_called="frac_gradient",
)
_REVERSE = row_of(
    "reverse",
    _reverse,
    reference.reversed_,
    keeps=("scale",),
    colour="#994455",
    formula="-scale * grad",
    source="Ganin & Lempitsky (2015)",
    also_called="gradient reversal layer",
)
_CLIP = row_of(
    "clip",
    _clip,
    reference.clipped,
    keeps=("limit",),
    is_linear=False,
    colour="#00606B",
    formula="grad, or limit with the sign of grad where |grad| > limit",
    source="Graves (2013)",
    also_called="mistify ClampG",
)
SCALE_GRAD = _op(scale_grad, "scale", _SCALE, 0.25, 0.0, -3.0)
REVERSE_GRAD = _op(reverse_grad, "scale", _REVERSE, 1.0, 0.25, 0.0)
CLIP_GRAD = _op(clip_grad, "limit", _CLIP, 0.5, 4.0)
