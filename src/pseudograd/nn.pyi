"""The modules of nn.py as type checkers see them. scripts/list_ops.py writes this file."""
# fmt: off
# ruff: noqa: E501

from typing import Any, Literal

from torch import Tensor
from torch.nn import Module

from .ops.bound_rules import Bound
from .rule import EdgeAtBound, RuleLike

__all__ = ["GELU", "Abs", "Ceil", "Clamp", "ClipGrad", "FakeQuantize", "Floor", "Hardsigmoid", "Hardtanh", "Heaviside", "JumpReLU", "LeakyReLU", "LowerBound", "ReLU", "ReLU6", "ReverseGrad", "Round", "ScaleGrad", "SiLU", "Sign", "Trunc", "UpperBound", "VectorQuantize"]

class _Layer(Module):
    def __getattr__(self, name: str) -> Any: ...  # a number, a buffer or a parameter
    def __call__(self, x: Tensor) -> Any: ...
    def forward(self, x: Tensor) -> Any: ...

class GELU(_Layer):
    def __init__(self, *, approximate: Literal['none', 'tanh'] = ..., rule: RuleLike = ...) -> None: ...

class Abs(_Layer):
    def __init__(self, *, edge: Literal[0, 1, -1] = ...) -> None: ...

class Ceil(_Layer):
    def __init__(self, *, rule: RuleLike = ...) -> None: ...

class Clamp(_Layer):
    def __init__(self, min: Bound = ..., max: Bound = ..., *, rule: RuleLike = ..., edge: EdgeAtBound = ..., maximize: bool = ...) -> None: ...

class ClipGrad(_Layer):
    def __init__(self, limit: float) -> None: ...

class FakeQuantize(_Layer):
    def __init__(self, scale: float | Tensor, zero_point: float | Tensor = ..., quant_min: int = ..., quant_max: int = ..., *, axis: int | None = ..., rule: RuleLike = ..., edge: EdgeAtBound = ..., maximize: bool = ..., use_grad_scaling: bool = ...) -> None: ...
    @classmethod
    def from_tensor(
        cls, x: Tensor, bits: int = 8, *, signed: bool = True, axis: int | None = None, **options: Any
    ) -> FakeQuantize: ...

class Floor(_Layer):
    def __init__(self, *, rule: RuleLike = ...) -> None: ...

class Hardsigmoid(_Layer):
    def __init__(self) -> None: ...

class Hardtanh(_Layer):
    def __init__(self, min_val: float = ..., max_val: float = ..., *, rule: RuleLike = ..., edge: EdgeAtBound = ..., maximize: bool = ...) -> None: ...

class Heaviside(_Layer):
    def __init__(self, *, at_zero: float = ..., rule: RuleLike = ...) -> None: ...

class JumpReLU(_Layer):
    def __init__(self, threshold: float | Tensor, *, bandwidth: float, window_to_x: bool = ..., rule: RuleLike = ...) -> None: ...

class LeakyReLU(_Layer):
    def __init__(self, negative_slope: float = ...) -> None: ...

class LowerBound(_Layer):
    def __init__(self, bound: float | Tensor, *, rule: RuleLike = ..., edge: EdgeAtBound = ..., maximize: bool = ...) -> None: ...

class ReLU(_Layer):
    def __init__(self, *, rule: RuleLike = ..., edge: EdgeAtBound = ..., maximize: bool = ...) -> None: ...

class ReLU6(_Layer):
    def __init__(self, *, rule: RuleLike = ..., edge: EdgeAtBound = ..., maximize: bool = ...) -> None: ...

class ReverseGrad(_Layer):
    def __init__(self, scale: float = ...) -> None: ...

class Round(_Layer):
    def __init__(self, *, decimals: int = ..., rule: RuleLike = ...) -> None: ...

class ScaleGrad(_Layer):
    def __init__(self, scale: float) -> None: ...

class SiLU(_Layer):
    def __init__(self, *, rule: RuleLike = ...) -> None: ...

class Sign(_Layer):
    def __init__(self, *, at_zero: float = ..., rule: RuleLike = ...) -> None: ...

class Trunc(_Layer):
    def __init__(self, *, rule: RuleLike = ...) -> None: ...

class UpperBound(_Layer):
    def __init__(self, bound: float | Tensor, *, rule: RuleLike = ..., edge: EdgeAtBound = ..., maximize: bool = ...) -> None: ...

class VectorQuantize(_Layer):
    def __init__(self, codes: int, dim: int, *, rule: RuleLike = ...) -> None: ...
