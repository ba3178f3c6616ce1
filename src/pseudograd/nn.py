"""Modules: the ops as layers of a model, with the options fixed, checked and printed.

All hold their options in the same way: a number or a name is an attribute, a tensor is a buffer, an `nn.Parameter` is a parameter and is
learned. Bad options raise the op's own error when the module is made. There is nothing here that differs between train and eval.
Longer than other files because each class shows its arguments, as a reader of a model expects; the work is in `_OfAnOp`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from . import engine, ops
from .errors import must, shown
from .ops.bound_rules import Bound
from .public_names import dir_of
from .rule import RuleLike

__all__ = [
    "GELU",
    "Abs",
    "Ceil",
    "Clamp",
    "ClipGrad",
    "FakeQuantize",
    "Floor",
    "Hardsigmoid",
    "Hardtanh",
    "Heaviside",
    "JumpReLU",
    "LeakyReLU",
    "LowerBound",
    "ReLU",
    "ReLU6",
    "ReverseGrad",
    "Round",
    "ScaleGrad",
    "SiLU",
    "Sign",
    "Trunc",
    "UpperBound",
    "VectorQuantize",
]


class _OfAnOp(Module):
    """A module that calls `_op` with the options it was made with."""

    _op: ClassVar[Callable[..., Any]]
    # Subclasses annotate as Any what a user may read: a number, a buffer or a parameter. To torch all is a tensor or a module.

    def __init__(self, **options: object) -> None:
        super().__init__()
        self._options = tuple(options)
        for name, value in options.items():
            self._hold(name, value)
        with torch.no_grad():
            type(self)._op(self._any_input(), **self._given())  # the op's own errors for bad options

    def _hold(self, name: str, value: object) -> None:
        if isinstance(value, Tensor) and not isinstance(value, Parameter):
            if value.requires_grad:
                remedy = "Wrap it in torch.nn.Parameter to learn it, or detach it"
                raise TypeError(must(type(self).__name__, name, "not require grad", value, remedy))
            self.register_buffer(name, value)
        else:
            setattr(self, name, value)

    def _given(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._options}

    def _any_input(self) -> Tensor:
        """One element that fits any bound, on the device of the bounds."""
        tensors = [value for value in self._given().values() if isinstance(value, Tensor)]
        return torch.zeros((), device=tensors[0].device if tensors else None)

    def forward(self, x: Tensor) -> Any:
        op = getattr(ops, type(self)._op.__name__)  # looked up, because torch.fx exchanges it there while it traces
        return op(x, **self._given())

    def extra_repr(self) -> str:
        """The options as they would be written; of a tensor its kind and shape, because values would wait for the device."""
        told = {name: value for name, value in self._given().items() if value is not None and value is not False}
        return ", ".join(f"{name}={_told(value)}" for name, value in told.items())

    def __prepare_scriptable__(self) -> None:
        raise engine.no_script(type(self).__name__)


def _told(value: object) -> str:
    return f"{type(value).__name__} of shape {tuple(value.shape)}" if isinstance(value, Tensor) else shown(value)


# --- bounds -----------------------------------------------------------------------------------------------------------


class Clamp(_OfAnOp):
    """`pseudograd.clamp` as a layer. A bound that is an `nn.Parameter` is learned; with rule "zero" and edge "open" that is PACT.

    Args:
        min, max: in the unit of x: number, tensor that broadcasts with x (one per channel, say), `nn.Parameter`, or None for no bound.
        rule, edge, maximize: as in `pseudograd.clamp`.
    Shape: that of torch.clamp(x, min, max).
    Example:
        >>> layer = Clamp(0.0, torch.nn.Parameter(torch.tensor(6.0)), rule="zero", edge="open"); layer
        Clamp(min=0.0, max=Parameter of shape (), rule='zero', edge='open')
        >>> layer(torch.tensor([-1.0, 3.0, 7.0, 9.0])).sum().backward(); layer.max.grad
        tensor(2.)
    Source: `pseudograd.clamp`; a learned max is PACT (Choi et al., 2018).
    """

    _op = staticmethod(ops.clamp)
    min: Any
    max: Any

    def __init__(
        self,
        min: Bound = None,
        max: Bound = None,
        *,
        rule: RuleLike = "inward",
        edge: str = "closed",
        maximize: bool = False,
    ) -> None:
        super().__init__(min=min, max=max, rule=rule, edge=edge, maximize=maximize)


class LowerBound(_OfAnOp):
    """`pseudograd.lower_bound` as a layer: max(x, bound).

    Args:
        bound: number, tensor that broadcasts with x, or `nn.Parameter`, which is learned.
        rule, edge, maximize: as in `pseudograd.lower_bound`.
    Shape: that of torch.clamp(x, min=bound).
    Example:
        >>> LowerBound(1e-6)(torch.tensor([-1.0, 2.0]))
        tensor([1.0000e-06, 2.0000e+00])
    Source: tensorflow-compression `lower_bound` (2018); CompressAI `LowerBound`.
    """

    _op = staticmethod(ops.lower_bound)
    bound: Any

    def __init__(
        self, bound: float | Tensor, *, rule: RuleLike = "inward", edge: str = "closed", maximize: bool = False
    ) -> None:
        super().__init__(bound=bound, rule=rule, edge=edge, maximize=maximize)


class UpperBound(_OfAnOp):
    """`pseudograd.upper_bound` as a layer: min(x, bound).

    Args:
        bound: number, tensor that broadcasts with x, or `nn.Parameter`, which is learned.
        rule, edge, maximize: as in `pseudograd.upper_bound`.
    Shape: that of torch.clamp(x, max=bound).
    Example:
        >>> UpperBound(1.0)(torch.tensor([-1.0, 2.0]))
        tensor([-1.,  1.])
    Source: tensorflow-compression `upper_bound` (2018).
    """

    _op = staticmethod(ops.upper_bound)
    bound: Any

    def __init__(
        self, bound: float | Tensor, *, rule: RuleLike = "inward", edge: str = "closed", maximize: bool = False
    ) -> None:
        super().__init__(bound=bound, rule=rule, edge=edge, maximize=maximize)


class ReLU(_OfAnOp):
    """`pseudograd.relu` as a layer, by default with the gradient of torch.nn.ReLU.

    Args:
        rule, edge, maximize: as in `pseudograd.relu`.
    Shape: that of x.
    Example:
        >>> ReLU(rule="inward")
        ReLU(rule='inward', edge='open')
    Source: torch.nn.ReLU; rule "inward" is lucid's redirected ReLU (2018).
    """

    _op = staticmethod(ops.relu)

    def __init__(self, *, rule: RuleLike = "zero", edge: str = "open", maximize: bool = False) -> None:
        super().__init__(rule=rule, edge=edge, maximize=maximize)


class ReLU6(_OfAnOp):
    """`pseudograd.relu6` as a layer, by default with the gradient of torch.nn.ReLU6.

    Args:
        rule, edge, maximize: as in `pseudograd.relu6`.
    Shape: that of x.
    Example:
        >>> ReLU6()(torch.tensor([-1.0, 3.0, 9.0]))
        tensor([0., 3., 6.])
    Source: torch.nn.ReLU6; rule "inward" is lucid's redirected ReLU6 (2018).
    """

    _op = staticmethod(ops.relu6)

    def __init__(self, *, rule: RuleLike = "zero", edge: str = "open", maximize: bool = False) -> None:
        super().__init__(rule=rule, edge=edge, maximize=maximize)


class Hardtanh(_OfAnOp):
    """`pseudograd.hardtanh` as a layer, by default with the gradient of torch.nn.Hardtanh.

    Args:
        min_val, max_val: numbers, in the unit of x.
        rule, edge, maximize: as in `pseudograd.hardtanh`.
    Shape: that of x.
    Example:
        >>> Hardtanh(rule="identity")(torch.tensor([-2.0, 0.5, 2.0]))
        tensor([-1.0000,  0.5000,  1.0000])
    Source: torch.nn.Hardtanh.
    """

    _op = staticmethod(ops.hardtanh)

    def __init__(
        self,
        min_val: float = -1.0,
        max_val: float = 1.0,
        *,
        rule: RuleLike = "zero",
        edge: str = "open",
        maximize: bool = False,
    ) -> None:
        super().__init__(min_val=min_val, max_val=max_val, rule=rule, edge=edge, maximize=maximize)


# --- activations that keep few bits -----------------------------------------------------------------------------------


class GELU(_OfAnOp):
    """`pseudograd.gelu` as a layer.

    Args:
        approximate: "none" or "tanh".
        rule: "exact", "fewbit" or rules.fewbit(bits=3), as in `pseudograd.gelu`.
    Shape: that of x.
    Example:
        >>> GELU(rule="fewbit")
        GELU(approximate='none', rule='fewbit')
    Source: torch.nn.GELU; "fewbit" is few-bit backward (Novikov et al., 2023).
    """

    _op = staticmethod(ops.gelu)

    def __init__(self, *, approximate: str = "none", rule: RuleLike = "exact") -> None:
        super().__init__(approximate=approximate, rule=rule)


class SiLU(_OfAnOp):
    """`pseudograd.silu` as a layer.

    Args:
        rule: as in `GELU`.
    Shape: that of x.
    Example:
        >>> from pseudograd import rules
        >>> SiLU(rule=rules.fewbit(bits=3))
        SiLU(rule=fewbit(bits=3))
    Source: torch.nn.SiLU; "fewbit" as `GELU`.
    """

    _op = staticmethod(ops.silu)

    def __init__(self, *, rule: RuleLike = "exact") -> None:
        super().__init__(rule=rule)


class LeakyReLU(_OfAnOp):
    """`pseudograd.ops.leaky_relu` as a layer: torch's own gradient, and one bit kept of each element.

    Args:
        negative_slope: a finite number.
    Shape: that of x.
    Example:
        >>> LeakyReLU(0.25)(torch.tensor([-2.0, 1.0]))
        tensor([-0.5000,  1.0000])
    Source: torch.nn.LeakyReLU.
    """

    _op = staticmethod(ops.leaky_relu)

    def __init__(self, negative_slope: float = 0.01) -> None:
        super().__init__(negative_slope=negative_slope)


class Hardsigmoid(_OfAnOp):
    """`pseudograd.ops.hardsigmoid` as a layer: torch's own gradient, and one bit kept of each element.

    Args: none.
    Shape: that of x.
    Example:
        >>> Hardsigmoid()(torch.tensor([-4.0, 0.0, 3.0]))
        tensor([0.0000, 0.5000, 1.0000])
    Source: torch.nn.Hardsigmoid.
    """

    _op = staticmethod(ops.hardsigmoid)

    def __init__(self) -> None:
        super().__init__()


# --- rounding, steps, abs ---------------------------------------------------------------------------------------------


class Round(_OfAnOp):
    """`pseudograd.round` as a layer.

    Args:
        decimals: digits after the point that stay.
        rule: "identity" or "zero".
    Shape: that of x.
    Example:
        >>> Round(decimals=1)(torch.tensor([0.26, 1.0]))
        tensor([0.3000, 1.0000])
    Source: straight-through estimator (Bengio, Léonard & Courville, 2013).
    """

    _op = staticmethod(ops.round)

    def __init__(self, *, decimals: int = 0, rule: RuleLike = "identity") -> None:
        super().__init__(decimals=decimals, rule=rule)


class Floor(_OfAnOp):
    """`pseudograd.floor` as a layer.

    Args:
        rule: "identity" or "zero".
    Shape: that of x.
    Example:
        >>> Floor()(torch.tensor([-0.5, 1.5]))
        tensor([-1.,  1.])
    Source: as `Round`.
    """

    _op = staticmethod(ops.floor)

    def __init__(self, *, rule: RuleLike = "identity") -> None:
        super().__init__(rule=rule)


class Ceil(_OfAnOp):
    """`pseudograd.ceil` as a layer.

    Args:
        rule: "identity" or "zero".
    Shape: that of x.
    Example:
        >>> Ceil()(torch.tensor([0.5, 1.5]))
        tensor([1., 2.])
    Source: as `Round`.
    """

    _op = staticmethod(ops.ceil)

    def __init__(self, *, rule: RuleLike = "identity") -> None:
        super().__init__(rule=rule)


class Trunc(_OfAnOp):
    """`pseudograd.trunc` as a layer.

    Args:
        rule: "identity" or "zero".
    Shape: that of x.
    Example:
        >>> Trunc()(torch.tensor([-1.5, 1.5]))
        tensor([-1.,  1.])
    Source: as `Round`.
    """

    _op = staticmethod(ops.trunc)

    def __init__(self, *, rule: RuleLike = "identity") -> None:
        super().__init__(rule=rule)


class Sign(_OfAnOp):
    """`pseudograd.sign` as a layer.

    Args:
        at_zero: the value where x is 0.
        rule: a name or a rule object, as in `pseudograd.sign`.
    Shape: that of x.
    Example:
        >>> from pseudograd import rules
        >>> Sign(at_zero=1, rule=rules.arctan(scale=0.5))
        Sign(at_zero=1, rule=arctan(scale=0.5, height=1.0))
    Source: binarized neural networks (Hubara et al., 2016); each rule names its own.
    """

    _op = staticmethod(ops.sign)

    def __init__(self, *, at_zero: float = 0.0, rule: RuleLike = "window") -> None:
        super().__init__(at_zero=at_zero, rule=rule)


class Heaviside(_OfAnOp):
    """`pseudograd.heaviside` as a layer: a spike, where x is the membrane potential minus the threshold.

    Args:
        at_zero: the value where x is 0.
        rule: a name or a rule object, as in `pseudograd.heaviside`.
    Shape: that of x.
    Example:
        >>> Heaviside(rule="triangle")(torch.tensor([-0.5, 0.0, 0.5]))
        tensor([0., 1., 1.])
    Source: surrogate gradients (Neftci, Mostafa & Zenke, 2019); each rule names its own.
    """

    _op = staticmethod(ops.heaviside)

    def __init__(self, *, at_zero: float = 1.0, rule: RuleLike = "window") -> None:
        super().__init__(at_zero=at_zero, rule=rule)


class JumpReLU(_OfAnOp):
    """`pseudograd.jumprelu` as a layer: the activation of a JumpReLU sparse autoencoder.

    Args:
        threshold: in the unit of x: number, tensor that broadcasts to x, or `nn.Parameter`, which learns; one per feature, say.
        bandwidth, window_to_x, rule: as in `pseudograd.jumprelu`.
    Shape: that of x.
    Example:
        >>> layer = JumpReLU(torch.nn.Parameter(torch.tensor([0.5, 1.0])), bandwidth=1.0); layer
        JumpReLU(threshold=Parameter of shape (2,), bandwidth=1.0, rule='window')
        >>> layer(torch.tensor([[0.25, 1.25], [1.0, 3.0]])).sum().backward(); layer.threshold.grad
        tensor([-1., -1.])
    Source: JumpReLU sparse autoencoders (Rajamanoharan et al., 2024).
    """

    _op = staticmethod(ops.jumprelu)
    threshold: Any

    def __init__(
        self,
        threshold: float | Tensor,
        *,
        bandwidth: float,
        window_to_x: bool = False,
        rule: RuleLike = "window",
    ) -> None:
        super().__init__(threshold=threshold, bandwidth=bandwidth, window_to_x=window_to_x, rule=rule)

    def _any_input(self) -> Tensor:
        """A threshold must not make x larger."""
        threshold = self.threshold
        return torch.zeros_like(threshold) if isinstance(threshold, Tensor) else super()._any_input()


class Abs(_OfAnOp):
    """`pseudograd.abs` as a layer.

    Args:
        edge: the slope at 0: 0, 1 or -1.
    Shape: that of x.
    Example:
        >>> Abs(edge=1)
        Abs(edge=1)
    Source: torch.abs; edge=1 is brevitas `abs_binary_sign_grad`.
    """

    _op = staticmethod(ops.abs)

    def __init__(self, *, edge: int = 0) -> None:
        super().__init__(edge=edge)


# --- the gradient alone -----------------------------------------------------------------------------------------------


class ScaleGrad(_OfAnOp):
    """`pseudograd.scale_grad` as a layer.

    Args:
        scale: the factor of the gradient, a finite number.
    Shape: that of x.
    Example:
        >>> ScaleGrad(0.1)
        ScaleGrad(scale=0.1)
    Source: optax `scale_gradient`.
    """

    _op = staticmethod(ops.scale_grad)

    def __init__(self, scale: float) -> None:
        super().__init__(scale=scale)


class ReverseGrad(_OfAnOp):
    """`pseudograd.reverse_grad` as a layer: put it between features and a domain classifier.

    Args:
        scale: lambda in the paper, a finite number.
    Shape: that of x.
    Example:
        >>> ReverseGrad()
        ReverseGrad(scale=1.0)
    Source: gradient reversal layer (Ganin & Lempitsky, 2015).
    """

    _op = staticmethod(ops.reverse_grad)

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__(scale=scale)


class ClipGrad(_OfAnOp):
    """`pseudograd.clip_grad` as a layer.

    Args:
        limit: in the unit of the gradient; a finite number above 0.
    Shape: that of x.
    Example:
        >>> ClipGrad(0.5)
        ClipGrad(limit=0.5)
    Source: gradient clipping inside the graph (Graves, 2013).
    """

    _op = staticmethod(ops.clip_grad)

    def __init__(self, limit: float) -> None:
        super().__init__(limit=limit)


# --- quantisers -------------------------------------------------------------------------------------------------------


class FakeQuantize(_OfAnOp):
    """`pseudograd.fake_quantize` as a layer. A scale that is an `nn.Parameter` is learned; `from_tensor` starts it as LSQ does.

    Args:
        scale, zero_point: number, tensor, or `nn.Parameter`, which is learned; along `axis` one per channel. Nothing keeps a learned
            scale above 0, as nothing does in the paper: `optim.project(optimizer, {layer.scale: (1e-6, None)})` does.
        quant_min, quant_max: the ends of the grid, integers.
        axis: the dimension of x that a 1-d scale belongs to.
        rule, edge, maximize: as in `pseudograd.fake_quantize`.
        use_grad_scaling: multiply the gradients of scale and zero_point by 1 / sqrt(x.numel() * quant_max), which makes their steps
            as large, for their size, as those of weights. Named and computed as in torch's own learnable fake quantizer.
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
    scale: Any
    zero_point: Any
    quant_max: int
    axis: int | None

    def __init__(
        self,
        scale: float | Tensor,
        zero_point: float | Tensor = 0,
        quant_min: int = -128,
        quant_max: int = 127,
        *,
        axis: int | None = None,
        rule: RuleLike = "zero",
        edge: str = "closed",
        maximize: bool = False,
        use_grad_scaling: bool = False,
    ) -> None:
        super().__init__(
            scale=scale,
            zero_point=zero_point,
            quant_min=quant_min,
            quant_max=quant_max,
            axis=axis,
            rule=rule,
            edge=edge,
            maximize=maximize,
        )
        self.use_grad_scaling = use_grad_scaling
        if use_grad_scaling and quant_max <= 0:
            raise ValueError(must("FakeQuantize", "quant_max", "be above 0 with use_grad_scaling", quant_max))

    @classmethod
    def from_tensor(
        cls, x: Tensor, bits: int = 8, *, signed: bool = True, axis: int | None = None, **options: Any
    ) -> FakeQuantize:
        """For the values of `x`: the integers of `bits` bits, and a learned scale that starts at 2 * mean|x| / sqrt(quant_max).

        With `axis` one scale per channel, from the mean of that channel. Other options as in the class; use_grad_scaling is True.
        """
        quant_min, quant_max = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
        if quant_max <= 0:
            raise ValueError(must("FakeQuantize", "bits", "be at least 2, or 1 if unsigned", bits))
        others = None if axis is None else [d for d in range(x.dim()) if d != axis % x.dim()]
        size = x.detach().abs().mean(dim=others)
        if not (size > 0).all():
            raise ValueError(must("FakeQuantize", "x", "hold values other than 0", x, "Give a scale yourself"))
        scale = Parameter(2 * size / quant_max**0.5)
        options.setdefault("use_grad_scaling", True)
        return cls(scale, 0, quant_min, quant_max, axis=axis, **options)

    def forward(self, x: Tensor) -> Tensor:
        given = self._given()
        if self.use_grad_scaling:
            factor = (x.numel() * self.quant_max) ** -0.5
            for name in ("scale", "zero_point"):
                if not isinstance(given[name], (int, float)):  # a tensor, or what torch.fx has for one
                    given[name] = ops.scale_grad(given[name], factor)
        return ops.fake_quantize(x, **given)

    def extra_repr(self) -> str:
        return super().extra_repr() + (", use_grad_scaling=True" if self.use_grad_scaling else "")

    def _any_input(self) -> Tensor:
        """One element for each scale, along the axis they belong to."""
        tensors = [value for value in (self.scale, self.zero_point) if isinstance(value, Tensor)]
        shape = torch.broadcast_shapes(*[value.shape for value in tensors])
        if isinstance(self.axis, int) and len(shape) == 1:
            sizes = [1] * (abs(self.axis) + 1)
            (sizes[self.axis],) = shape
            shape = torch.Size(sizes)
        return torch.zeros(shape, device=tensors[0].device if tensors else None)


class VectorQuantize(_OfAnOp):
    """`pseudograd.codebook.vector_quantize` as a layer that owns its codebook, a parameter of shape (codes, dim).

    The task's loss gives the codebook no gradient: add `commitment_loss(x, codes)` and `codebook_loss(x, layer.codebook, indices)`.

    Args:
        codes: how many there are.
        dim: the length of each.
        rule: "identity" or "rotation", as in `pseudograd.codebook.vector_quantize`.
    Shape: x (..., dim) to codes (..., dim) and indices (...).
    Example:
        >>> layer = VectorQuantize(512, 64); layer
        VectorQuantize(codebook=Parameter of shape (512, 64), rule='identity')
        >>> codes, indices = layer(torch.randn(8, 10, 64)); codes.shape, indices.shape
        (torch.Size([8, 10, 64]), torch.Size([8, 10]))
    Source: van den Oord, Vinyals & Kavukcuoglu (2017); starts uniform in +-1/codes, as zalandoresearch/pytorch-vq-vae.
    """

    _op = staticmethod(ops.vector_quantize)
    codebook: Parameter

    def __init__(self, codes: int, dim: int, *, rule: RuleLike = "identity") -> None:
        for name, value in (("codes", codes), ("dim", dim)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(must("VectorQuantize", name, "be an integer above 0", value))
        super().__init__(codebook=Parameter(torch.empty(codes, dim).uniform_(-1 / codes, 1 / codes)), rule=rule)

    def _any_input(self) -> Tensor:
        return torch.zeros_like(self.codebook[0])


__dir__ = dir_of(globals())
