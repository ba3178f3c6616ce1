"""abs, with the slope at 0 that you choose. torch's is 0 there, and a parameter that starts at 0 never moves."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from .. import engine
from ..arguments import check_tensor
from ..geometry import ALL_TO_X, REGIONS, Pieces, Split
from ..reference import elementwise as reference
from ..rule import Gradients, Op, Picture, RangePieces, Wants, register
from .samples import around, matrix
from .shared_rules import row_of

__all__ = ["abs"]

EDGES = (0, 1, -1)


@engine.unscriptable
def abs(x: Tensor, *, edge: Literal[0, 1, -1] = 0) -> Tensor:
    """|x|, with the slope at 0 that you choose.

    Forward:  y = torch.abs(x), bit for bit.
    Backward: grad_x = grad where x > 0, -grad where x < 0, edge * grad where x is 0. Saves x. Linear in grad. 0 is torch's choice;
        1 and -1 are subgradients, too.

    Args:
        x: any shape, floating point; an integer x gets no gradient.
        edge: the slope at 0 and -0: 0, 1 or -1.
    Returns: shape, dtype and device of x.
    Raises: TypeError if x is no real tensor; ValueError for another edge.
    Example:
        >>> x = torch.tensor([-2.0, 0.0, 2.0], requires_grad=True)
        >>> abs(x, edge=1).sum().backward(); x.grad
        tensor([-1.,  1.,  1.])
    Source: torch.abs; edge=1 is brevitas `abs_binary_sign_grad`.
    """
    return engine.run_op(ABS, check_tensor, x, "slope", edge)


def _pull(grad: Tensor, x: Tensor, *, wants: Wants, edge: int) -> Gradients:
    elsewhere = torch.where(x == 0, 0.0, grad) if edge == 0 else grad  # an x that is NaN gets grad, too
    return (torch.where(x <= 0 if edge == -1 else x < 0, -grad, elsewhere),)


def _regions(edge: int) -> RangePieces:
    """-grad below the point 0, edge * grad at it, and grad above it and for NaN."""
    return 0.0, 0.0, Pieces(*[ALL_TO_X] * len(REGIONS))._replace(below_point=Split(-1.0), at_point=Split(float(edge)))


SLOPE = row_of(
    "slope",
    _pull,
    reference.absolute,
    colour="#004488",
    formula="grad where x > 0, -grad where x < 0, edge * grad where x is 0",
    source="torch.abs",
    keeps=("x",),
    regions=_regions,
)
ABS = register(
    Op(
        name="abs",
        rule_set="abs",
        forward=torch.abs,
        inputs=("x",),
        rules={"slope": SLOPE},
        default_rule="slope",
        edges=EDGES,
        default_edge=0,
        public=abs,
        samples=(around("around 0", 0.0, 1.0), matrix(3, (3, 5))),
        picture=Picture(bounds=(0.0,)),
    )
)
