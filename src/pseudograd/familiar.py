"""Names that scripts already use, with the meaning they have there: `from pseudograd.familiar import ClampWithGrad, replace_grad`."""

from __future__ import annotations

import torch.fx
from torch import Tensor

from .look.gradient import get_gradient
from .ops.bound_rules import Bound
from .ops.bounds import clamp
from .ops.replace import replace_grad
from .public_names import dir_of

__all__ = [
    "ClampWithGrad",
    "ClampWithGrad2",
    "ClampWithGradProposed",
    "ClampWithGradThatWorks",
    "ReplaceGrad",
    "clamp_with_grad",
    "clamp_with_grad2",
    "clamp_with_grad_proposed",
    "get_gradient",
    "replace_grad",
]


def clamp_with_grad(x: Tensor, min: Bound = None, max: Bound = None) -> Tensor:
    """`clamp` with its default rule, by the name it has in VQGAN+CLIP notebooks.

    Forward:  y = torch.clamp(x, min, max), bit for bit.
    Backward: grad inside and where it leads back inside, else 0: a pseudo-gradient. Saves x. Not linear in grad.

    Args:
        x, min, max: as in `clamp`.
    Returns: as `clamp`.
    Raises: as `clamp`.
    Example:
        >>> x = torch.tensor([-2.0, 2.0], requires_grad=True)
        >>> clamp_with_grad(x, -1, 1).sum().backward(); x.grad
        tensor([0., 1.])
    Source: ClampWithGrad, VQGAN+CLIP notebooks (K. Crowson, 2021, MIT).
    """
    return clamp(x, min, max)


def clamp_with_grad_proposed(x: Tensor, min: Bound = None, max: Bound = None) -> Tensor:
    """`clamp` with rule "sign", by the name it has in the article that proposed it. Also `clamp_with_grad2`.

    Forward:  y = torch.clamp(x, min, max), bit for bit.
    Backward: grad inside, sign(x - y) outside, whatever grad is: a pseudo-gradient. Saves x. Not linear in grad.

    Args:
        x, min, max: as in `clamp`.
    Returns: as `clamp`.
    Raises: as `clamp`.
    Example:
        >>> x = torch.tensor([-2.0, 2.0], requires_grad=True)
        >>> clamp_with_grad_proposed(x, -1, 1).sum().backward(); x.grad
        tensor([-1.,  1.])
    Source: An analysis of clamp_with_grad (J. Halliwell, 2022).
    """
    return clamp(x, min, max, rule="sign")


def clamp_with_grad_that_works(x: Tensor, min: Bound = None, max: Bound = None) -> Tensor:
    return clamp(x, min, max, rule="zero")


class ClampWithGrad:
    """`ClampWithGrad.apply(x, min, max)` is `clamp_with_grad`. A plain class: nothing to subclass."""

    apply = staticmethod(clamp_with_grad)


class ClampWithGradProposed:
    """`ClampWithGradProposed.apply(x, min, max)` is `clamp_with_grad_proposed`."""

    apply = staticmethod(clamp_with_grad_proposed)


class ClampWithGradThatWorks:
    """`ClampWithGradThatWorks.apply(x, min, max)` is `clamp` with rule "zero" and edge "closed": the true gradient."""

    apply = staticmethod(clamp_with_grad_that_works)


class ReplaceGrad:
    """`ReplaceGrad.apply(x_forward, x_backward)` is `replace_grad`."""

    apply = staticmethod(replace_grad)


clamp_with_grad2 = clamp_with_grad_proposed
ClampWithGrad2 = ClampWithGradProposed

# As in `ops`. torch.fx cannot replace the `apply` of a class; it replaces the functions that `apply` calls.
for _name in ("clamp", "clamp_with_grad", "clamp_with_grad_proposed", "clamp_with_grad2", "replace_grad"):
    torch.fx.wrap(_name)
del _name


__dir__ = dir_of(globals())
