"""The numbers of a gradient, whatever it is kept as."""

from __future__ import annotations

import torch
from torch import Tensor

from ...torch_table.private import local


def numbers(grad: Tensor) -> Tensor:
    """Dense, in float64, as one dimension; a complex one as two numbers each."""
    dense = local(grad.detach())
    dense = dense if dense.layout is torch.strided else dense.to_dense()
    return (torch.view_as_real(dense.resolve_conj()) if dense.is_complex() else dense).double().flatten()
