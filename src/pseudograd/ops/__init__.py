"""The public ops, one file per family."""

from .bounds import clamp, clamp_, hardtanh, lower_bound, relu, relu6, upper_bound
from .familiar import (
    ClampWithGrad,
    ClampWithGrad2,
    ClampWithGradProposed,
    ClampWithGradThatWorks,
    ReplaceGrad,
    clamp_with_grad,
    clamp_with_grad2,
    clamp_with_grad_proposed,
)
from .replace import replace_grad, straight_through, surrogate
from .vector import codebook_loss, commitment_loss, vector_quantize

__all__ = [
    "ClampWithGrad",
    "ClampWithGrad2",
    "ClampWithGradProposed",
    "ClampWithGradThatWorks",
    "ReplaceGrad",
    "clamp",
    "clamp_",
    "clamp_with_grad",
    "clamp_with_grad2",
    "clamp_with_grad_proposed",
    "codebook_loss",
    "commitment_loss",
    "hardtanh",
    "lower_bound",
    "relu",
    "relu6",
    "replace_grad",
    "straight_through",
    "surrogate",
    "upper_bound",
    "vector_quantize",
]
