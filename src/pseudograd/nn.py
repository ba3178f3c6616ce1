"""Modules: the ops as layers of a model, with the options fixed, checked and printed.

All modules hold their options in the same way: a number or a name is an attribute, a tensor is a buffer, an `nn.Parameter` is a parameter
and is learned. Bad options raise the error of the op when the module is made. Nothing differs between train and eval.
The arguments of a module are those of its op without x. scripts/list_ops.py writes them out in nn.pyi, for type checkers.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from . import engine, ops
from .errors import describe_value, must
from .ops.codebook import DEFAULT_RULE
from .public_names import dir_of, public_path
from .rule import RuleLike


class _Layer(Module):
    """A module that calls `_op` with the options that it was made with."""

    _op: ClassVar[Callable[..., object]]
    __signature__: ClassVar[inspect.Signature]

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__()
        try:
            bound = _signature_of_layer(type(self)._op).bind(*args, **options)
        except TypeError as error:
            raise TypeError(f"{type(self).__name__}: {error}") from None
        bound.apply_defaults()
        self._options = tuple(bound.arguments)
        for name, value in bound.arguments.items():
            self._store_option(name, value)
        with torch.no_grad():
            type(self)._op(self._any_input(), **self._current_options())  # raises the op's own errors for bad options

    def _store_option(self, name: str, value: object) -> None:
        if isinstance(value, Tensor) and not isinstance(value, Parameter):
            if value.requires_grad:
                remedy = "Wrap it in torch.nn.Parameter to learn it, or detach it"
                raise TypeError(must(type(self).__name__, name, "not require grad", value, remedy))
            self.register_buffer(name, value)
        else:
            setattr(self, name, value)

    def _current_options(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._options}

    def _any_input(self) -> Tensor:
        """One element that fits any bound, on the device of the bounds. For a threshold, which must not make x larger, its shape."""
        tensors = [value for value in self._current_options().values() if isinstance(value, Tensor)]
        if "threshold" in self._options and tensors:
            return torch.zeros_like(tensors[0])
        return torch.zeros((), device=tensors[0].device if tensors else None)

    def forward(self, x: Tensor) -> Any:
        op = getattr(ops, type(self)._op.__name__)  # looked up, because torch.fx exchanges it there while it traces
        return op(x, **self._current_options())

    def extra_repr(self) -> str:
        """The options as a program writes them; a tensor by its kind and shape, because its values would wait for the device."""
        shown_options = {
            name: f"{type(value).__name__} of shape {tuple(value.shape)}"
            if isinstance(value, Tensor)
            else describe_value(value)
            for name, value in self._current_options().items()
            if value is not None and value is not False
        }
        return ", ".join(f"{name}={text}" for name, text in shown_options.items())

    def __prepare_scriptable__(self) -> None:
        raise engine.no_script(type(self).__name__)


def _signature_of_layer(op: Callable[..., object], **more: object) -> inspect.Signature:
    """The parameters of an op without x, and `more` keywords with their defaults."""
    options = list(inspect.signature(op).parameters.values())[1:]
    extra = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=value) for name, value in more.items()]
    return inspect.Signature([*options, *extra])


def _make_layer(name: str, op: Callable[..., object], example: str) -> type[_Layer]:
    """The module of an op. Its docstring repeats what the docstring of the op says of the arguments."""
    contents = {"_op": staticmethod(op), "__signature__": _signature_of_layer(op), "__doc__": _describe(op, example)}
    return type(name, (_Layer,), {"__module__": __name__, **contents})


def _describe(op: Callable[..., object], example: str) -> str | None:
    text = inspect.getdoc(op)
    if text is None:  # under python -OO
        return None
    parts: dict[str, str] = dict(re.findall(r"^(Args|Source):((?:.*\n?)(?:[ ].*\n?)*)", text, re.MULTILINE))
    arguments = re.sub(r"^\s*x: .*\n(?:     .*\n)*", "", parts["Args"]).rstrip()
    call = f"pseudograd.{public_path(op.__name__)}"
    text = f"`{call}` as a layer.\n\nArgs:\n{arguments}\n" if arguments else f"`{call}` as a layer.\n\nArgs: none.\n"
    example = example.replace("\n", "\n    ")
    return f"{text}Shape: that of `{call}`.\nExample:\n    {example}\nSource:{parts['Source'].rstrip()}\n"


# --- bounds -----------------------------------------------------------------------------------------------------------

Clamp = _make_layer(
    "Clamp",
    ops.clamp,
    """>>> layer = Clamp(0.0, torch.nn.Parameter(torch.tensor(6.0)), rule="zero", edge="open"); layer  # PACT
Clamp(min=0.0, max=Parameter of shape (), rule='zero', edge='open')
>>> layer(torch.tensor([-1.0, 3.0, 7.0, 9.0])).sum().backward(); layer.max.grad
tensor(2.)""",
)
LowerBound = _make_layer(
    "LowerBound",
    ops.lower_bound,
    ">>> LowerBound(1e-6)(torch.tensor([-1.0, 2.0]))\ntensor([1.0000e-06, 2.0000e+00])",
)
UpperBound = _make_layer(
    "UpperBound", ops.upper_bound, ">>> UpperBound(1.0)(torch.tensor([-1.0, 2.0]))\ntensor([-1.,  1.])"
)
ReLU = _make_layer("ReLU", ops.relu, """>>> ReLU(edge="closed")\nReLU(rule='zero', edge='closed')""")
ReLU6 = _make_layer("ReLU6", ops.relu6, ">>> ReLU6()(torch.tensor([-1.0, 3.0, 9.0]))\ntensor([0., 3., 6.])")
Hardtanh = _make_layer(
    "Hardtanh", ops.hardtanh, ">>> Hardtanh(0, 1)(torch.tensor([-2.0, 0.5, 2.0]))\ntensor([0.0000, 0.5000, 1.0000])"
)

# --- activations that keep few bits -----------------------------------------------------------------------------------

GELU = _make_layer("GELU", ops.gelu, """>>> GELU(approximate="tanh")\nGELU(approximate='tanh', rule='exact')""")
SiLU = _make_layer("SiLU", ops.silu, """>>> SiLU()\nSiLU(rule='exact')""")
LeakyReLU = _make_layer(
    "LeakyReLU", ops.leaky_relu, ">>> LeakyReLU(0.25)(torch.tensor([-2.0, 1.0]))\ntensor([-0.5000,  1.0000])"
)
Hardsigmoid = _make_layer(
    "Hardsigmoid",
    ops.hardsigmoid,
    ">>> Hardsigmoid()(torch.tensor([-4.0, 0.0, 3.0]))\ntensor([0.0000, 0.5000, 1.0000])",
)

# --- rounding, steps, abs ---------------------------------------------------------------------------------------------

Round = _make_layer("Round", ops.round, ">>> Round(decimals=1)(torch.tensor([0.26, 1.0]))\ntensor([0.3000, 1.0000])")
Floor = _make_layer("Floor", ops.floor, ">>> Floor()(torch.tensor([-0.5, 1.5]))\ntensor([-1.,  1.])")
Ceil = _make_layer("Ceil", ops.ceil, ">>> Ceil()(torch.tensor([0.5, 1.5]))\ntensor([1., 2.])")
Trunc = _make_layer("Trunc", ops.trunc, ">>> Trunc()(torch.tensor([-1.5, 1.5]))\ntensor([-1.,  1.])")
Sign = _make_layer("Sign", ops.sign, ">>> Sign(at_zero=1)(torch.tensor([-2.0, 0.0]))\ntensor([-1.,  1.])")
Heaviside = _make_layer(
    "Heaviside", ops.heaviside, ">>> Heaviside()(torch.tensor([-0.5, 0.0, 0.5]))\ntensor([0., 1., 1.])"
)
JumpReLU = _make_layer(
    "JumpReLU",
    ops.jumprelu,
    """>>> layer = JumpReLU(torch.nn.Parameter(torch.tensor([0.5, 1.0])), bandwidth=1.0)
>>> layer(torch.tensor([[0.25, 1.25], [1.0, 3.0]])).sum().backward(); layer.threshold.grad
tensor([-1., -1.])""",
)
Abs = _make_layer("Abs", ops.abs, ">>> Abs(edge=1)\nAbs(edge=1)")

# --- the gradient alone -----------------------------------------------------------------------------------------------

ScaleGrad = _make_layer("ScaleGrad", ops.scale_grad, ">>> ScaleGrad(0.1)\nScaleGrad(scale=0.1)")
ReverseGrad = _make_layer("ReverseGrad", ops.reverse_grad, ">>> ReverseGrad()\nReverseGrad(scale=1.0)")
ClipGrad = _make_layer("ClipGrad", ops.clip_grad, ">>> ClipGrad(0.5)\nClipGrad(limit=0.5)")

# --- quantisers -------------------------------------------------------------------------------------------------------


class FakeQuantize(_Layer):
    """`pseudograd.fake_quantize` as a layer. A scale that is an `nn.Parameter` is learned; `from_tensor` starts it as LSQ does.

    Args:
        scale, zero_point: number, tensor, or `nn.Parameter`, which is learned; along `axis` one per channel. Nothing keeps a learned
            scale above 0, in the paper neither: add `optim.project(optimizer, {layer.scale: (1e-6, None)})`.
        quant_min, quant_max, axis, rule, edge, maximize: as in `pseudograd.fake_quantize`.
        use_grad_scaling: multiply the gradients of scale and zero_point by 1 / sqrt(x.numel() * quant_max). Then their steps, relative
            to their values, are about as large as those of weights. Name and formula are from torch's own learnable fake quantizer.
    Shape: that of x.
    Example:
        >>> FakeQuantize(torch.nn.Parameter(torch.tensor(0.5)), quant_min=-4, quant_max=3)
        FakeQuantize(scale=Parameter of shape (), zero_point=0, quant_min=-4, quant_max=3, rule='zero', edge='closed')
        >>> FakeQuantize.from_tensor(torch.tensor([-1.0, 2.0, 3.0]), bits=3).scale
        Parameter containing:
        tensor(2.3094, requires_grad=True)
    Source: learned step size quantization, LSQ (Esser et al., 2020); torch `_LearnableFakeQuantize`.
    """

    _op = staticmethod(ops.fake_quantize)
    __signature__ = _signature_of_layer(ops.fake_quantize, use_grad_scaling=False)

    def __init__(self, *args: object, use_grad_scaling: bool = False, **options: object) -> None:
        super().__init__(*args, **options)
        self.use_grad_scaling = use_grad_scaling
        if use_grad_scaling and self.quant_max <= 0:
            raise ValueError(must("FakeQuantize", "quant_max", "be above 0 with use_grad_scaling", self.quant_max))

    @classmethod
    def from_tensor(
        cls, x: Tensor, bits: int = 8, *, signed: bool = True, axis: int | None = None, **options: object
    ) -> FakeQuantize:
        """A layer for the values of `x`: integers of `bits` bits, and a learned scale that starts at 2 * mean|x| / sqrt(quant_max).

        With `axis` one scale per channel, from the mean of that channel. Other options as in the class; use_grad_scaling is True.
        """
        quant_min, quant_max = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
        if quant_max <= 0:
            raise ValueError(must("FakeQuantize", "bits", "be at least 2, or 1 if unsigned", bits))
        other_dims = None if axis is None else [dim for dim in range(x.dim()) if dim != axis % x.dim()]
        magnitude = x.detach().abs().mean(dim=other_dims)
        if not (magnitude > 0).all():
            raise ValueError(must("FakeQuantize", "x", "hold values other than 0", x, "Give a scale yourself"))
        scale = Parameter(2 * magnitude / quant_max**0.5)
        return cls(scale, 0, quant_min, quant_max, axis=axis, **{"use_grad_scaling": True, **options})

    def forward(self, x: Tensor) -> Tensor:
        options = self._current_options()
        if self.use_grad_scaling:
            factor = (x.numel() * self.quant_max) ** -0.5
            for name in ("scale", "zero_point"):
                if not isinstance(options[name], (int, float)):  # a tensor, or what torch.fx has for one
                    options[name] = ops.scale_grad(options[name], factor)
        return ops.fake_quantize(x, **options)

    def extra_repr(self) -> str:
        return super().extra_repr() + (", use_grad_scaling=True" if self.use_grad_scaling else "")

    def _any_input(self) -> Tensor:
        """One element for each scale, along the axis to which the scales belong."""
        tensors = [value for value in (self.scale, self.zero_point) if isinstance(value, Tensor)]
        shape = torch.broadcast_shapes(*[value.shape for value in tensors])
        if isinstance(self.axis, int) and len(shape) == 1:
            sizes = [1] * (abs(self.axis) + 1)
            (sizes[self.axis],) = shape
            shape = torch.Size(sizes)
        return torch.zeros(shape, device=tensors[0].device if tensors else None)


class VectorQuantize(_Layer):
    """`pseudograd.codebook.vector_quantize` as a layer that owns its codebook, a parameter of shape (codes, dim).

    The task's loss gives the codebook no gradient: add `commitment_loss(x, codes)` and `codebook_loss(x, layer.codebook, indices)`.

    Args:
        codes: the number of codes.
        dim: the length of each code.
        rule: as in `pseudograd.codebook.vector_quantize`.
    Shape: x (..., dim) to codes (..., dim) and indices (...).
    Example:
        >>> layer = VectorQuantize(512, 64); layer
        VectorQuantize(codebook=Parameter of shape (512, 64), rule='identity')
        >>> codes, indices = layer(torch.randn(8, 10, 64)); codes.shape, indices.shape
        (torch.Size([8, 10, 64]), torch.Size([8, 10]))
    Source: van den Oord, Vinyals & Kavukcuoglu (2017); starts uniform in +-1/codes, as zalandoresearch/pytorch-vq-vae.
    """

    _op = staticmethod(ops.vector_quantize)

    def __init__(self, codes: int, dim: int, *, rule: RuleLike = DEFAULT_RULE) -> None:
        for name, value in (("codes", codes), ("dim", dim)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(must("VectorQuantize", name, "be an integer above 0", value))
        super().__init__(Parameter(torch.empty(codes, dim).uniform_(-1 / codes, 1 / codes)), rule=rule)

    def _any_input(self) -> Tensor:
        return torch.zeros_like(self.codebook[0])


__all__ = [name for name, layer in globals().items() if isinstance(layer, type) and layer.__module__ == __name__]
__all__ = sorted({*__all__} - {"_Layer"}, key=lambda name: (not name.isupper(), name))
__dir__ = dir_of(globals())
