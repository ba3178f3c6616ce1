"""Value of one tensor, gradient of another: replace_grad, and functions built from it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import BuiltinFunctionType
from typing import ParamSpec, cast

import torch
import torch.fx
from torch import Tensor
from torch.compiler import is_compiling

from .. import engine
from ..arguments import check_broadcast, check_device
from ..errors import must
from ..reference.elementwise import replaced
from ..rule import Gradients, Op, Picture, Sample, Wants, call_for, register
from .shared_rules import alias, row_of

__all__ = ["replace_grad", "straight_through", "surrogate"]

Arguments = ParamSpec("Arguments")


@engine.unscriptable
def replace_grad(x_forward: Tensor, x_backward: Tensor) -> Tensor:
    """The value of `x_forward`, with all gradient going to `x_backward`.

    Forward:  y = x_forward, detached, sharing its storage without a copy (with one if it was made in inference mode).
    Backward: grad_x_backward = grad, summed to its shape and cast to its dtype; x_forward gets none: a pseudo-gradient. Saves nothing.
        Linear in grad.

    Args:
        x_forward: any shape and dtype that can carry a gradient (floating point or complex).
        x_backward: a shape that broadcasts to that of x_forward, same device, floating point or complex as x_forward is.
    Returns: shape and dtype of x_forward; requires grad iff x_backward does, and then cannot be changed in place.
    Raises: TypeError if an argument is no tensor or an integer; ValueError if the shapes or devices do not fit.
    Example:
        >>> soft = torch.tensor([0.2, 0.7], requires_grad=True)
        >>> y = replace_grad(soft.round(), soft); y.sum().backward(); y.tolist(), soft.grad
        ([0.0, 1.0], tensor([1., 1.]))
    Source: ReplaceGrad, VQGAN+CLIP notebooks (K. Crowson, 2021, MIT).
    """
    for name, tensor in (("x_forward", x_forward), ("x_backward", x_backward)):
        if not isinstance(tensor, Tensor):
            raise TypeError(must("replace_grad", name, "be a tensor", tensor))
        if not (tensor.is_floating_point() or tensor.is_complex()):
            remedy = "Integers carry no gradient; call .float() first"
            raise TypeError(must("replace_grad", name, "be floating point", tensor.dtype, remedy))
    if x_forward.is_complex() != x_backward.is_complex():
        requirement = f"be as {x_forward.dtype}, real or complex"
        raise TypeError(must("replace_grad", "x_backward", requirement, x_backward.dtype))
    check_broadcast("replace_grad", "x_backward", x_backward, x_forward.shape, "x_forward", grows=False)
    check_device("replace_grad", "x_backward", x_backward, x_forward.device, "x_forward")
    value = x_forward.detach()
    if not is_compiling() and value.is_inference() and engine.is_recording(x_backward):
        # torch attaches no graph to an inference tensor, and would lose the gradient without an error.
        value = value.clone()
    return engine.run(call_for(REPLACE_GRAD, "replace"), value, x_backward)


torch.fx.wrap("replace_grad")  # so that torch.fx can trace what `straight_through` makes


def straight_through(
    hard: Callable[Arguments, Tensor], soft: Callable[..., Tensor] | None = None
) -> Callable[Arguments, Tensor]:
    """A function with the values of `hard` and the gradient of `soft`.

    Forward:  y = hard(*args, **kwargs), exactly: never written as soft + (hard - soft).
    Backward: that of soft(*args, **kwargs); without `soft`, that of the identity in the first argument. Linear in grad if soft is.

    Args:
        hard: returns a floating-point tensor; computed without a graph.
        soft: takes the same arguments; its result must broadcast to that of `hard`. None: the first argument itself.
    Returns: a function with the name and signature of `hard`.
    Raises: TypeError if hard or soft cannot be called; the function raises as `replace_grad`, and TypeError if soft is None and the
        first argument is not given.
    Example:
        >>> step = straight_through(lambda x: (x > 0).float(), torch.sigmoid)
        >>> x = torch.tensor([0.0, 3.0], requires_grad=True)
        >>> y = step(x); y.sum().backward(); y.tolist(), x.grad
        ([0.0, 1.0], tensor([0.2500, 0.0452]))
    Source: straight-through estimator (Bengio, Léonard & Courville, 2013).
    """
    for name, function in (("hard", hard), ("soft", soft)):
        if not callable(function) and not (name == "soft" and function is None):
            raise TypeError(must("straight_through", name, "be a function", function))

    first = _name_of_first_argument(hard)

    @functools.wraps(hard)
    def wrapped(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Tensor:
        with torch.no_grad():
            value = hard(*args, **kwargs)
        if soft is not None:
            return replace_grad(value, soft(*args, **kwargs))
        if not args and first not in kwargs:
            remedy = "Give the first argument by position, or give soft= as well"
            raise TypeError(must("straight_through", "what is called", f"be given {first}", [*kwargs], remedy))
        return replace_grad(value, cast(Tensor, args[0] if args else kwargs[first]))

    return wrapped


def _name_of_first_argument(function: Callable[..., Tensor]) -> str:
    """The name of the first argument. For a function without a signature "input", as torch calls it."""
    if isinstance(function, BuiltinFunctionType):  # Dynamo on torch 2.10 cannot ask it for a signature
        return "input"
    try:
        return next(iter(inspect.signature(function).parameters))
    except (ValueError, TypeError, StopIteration):
        return "input"


def surrogate(
    *, backward: Callable[..., Tensor]
) -> Callable[[Callable[Arguments, Tensor]], Callable[Arguments, Tensor]]:
    """Decorator: keep a function's values, take the gradient of `backward`.

    Forward:  the decorated function, exactly.
    Backward: that of `backward` with the same arguments; see `straight_through`.

    Args:
        backward: a function of the same arguments.
    Returns: a decorator.
    Raises: TypeError if backward cannot be called.
    Example:
        >>> @surrogate(backward=torch.tanh)
        ... def sign(x):
        ...     return torch.sign(x)
        >>> x = torch.tensor([0.0], requires_grad=True)
        >>> sign(x).sum().backward(); x.grad
        tensor([1.])
    Source: surrogate gradients (Neftci, Mostafa & Zenke, 2019).
    """
    if not callable(backward):
        raise TypeError(must("surrogate", "backward", "be a function", backward))
    return lambda hard: straight_through(hard, backward)


def _pull(grad: Tensor, x_forward: None, x_backward: None, *, wants: Wants) -> Gradients:
    return None, grad


def _sample(*shape: int) -> Sample:
    """A sample whose x_backward has this shape, which broadcasts to that of x_forward."""

    def build(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        x_backward = torch.linspace(-1, 1, 12)[: torch.Size(shape).numel()].reshape(shape)
        return torch.linspace(-2, 2, 12).reshape(3, 4).to(dtype), x_backward.to(dtype)

    return Sample(f"gradient of shape {shape}", build)


REPLACE = row_of(
    "replace",
    _pull,
    replaced,
    colour="#5B3A8C",
    formula="0 to x_forward, grad to x_backward",
    source="ReplaceGrad, VQGAN+CLIP notebooks (K. Crowson, 2021)",
    also_called="ReplaceGrad, forward hard and backward soft",
    keeps=(),
)
REPLACE_GRAD = register(
    Op(
        name="replace_grad",
        rule_set="replace_grad",
        forward=lambda x_forward, x_backward: alias(x_forward),
        plain_torch=lambda x_forward, x_backward: x_forward,
        inputs=("x_forward", "x_backward"),
        rules={"replace": REPLACE},
        default_rule="replace",
        gradient_to="x_backward",
        public=replace_grad,
        samples=(_sample(3, 4), _sample(1, 4), _sample(4), _sample(3, 1), _sample()),
        picture=Picture(inputs_of=lambda x: (torch.sign(x), torch.tanh(x)), jumps=(0.0,)),
    )
)
