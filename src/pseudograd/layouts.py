"""Sparse layouts: a backward rule sees the values, and its result has the layout again. Strided nested tensors: the op runs on each.

torch has neither comparisons nor `where` for them. What a sparse tensor does not hold is 0 and gets no gradient of its own, as in
torch's own ops; a position that grad holds and x does not counts as x = 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .rule import Gradients

_DENSE = (torch.strided, torch.jagged)
_Formula = Callable[[Tensor, list[Any]], Gradients]


def are_sparse(grad: Tensor, inputs: list[object]) -> bool:
    if grad.layout not in _DENSE:
        return True
    return any(isinstance(value, Tensor) and value.layout not in _DENSE for value in inputs)


def apply_to_values(formula: _Formula, grad: Tensor, inputs: list[object]) -> Gradients:
    """The formula on the values of a sparse grad, of sparse inputs, or of both; the gradients in the layout of the inputs."""
    tensors = [value for value in inputs if isinstance(value, Tensor)]
    sparse = [value for value in tensors if value.layout not in _DENSE]
    if tensors and not sparse:  # a sparse grad of what is dense: a rule may give something where grad is 0
        return formula(grad.to_dense(), inputs)
    layout = (sparse or [grad])[0].layout
    pattern = _union([grad, *sparse])
    at_pattern = [_values(value, pattern) if isinstance(value, Tensor) else value for value in inputs]
    gradients = formula(_values(grad, pattern), at_pattern)
    return tuple(None if values is None else _restore(values, pattern, layout) for values in gradients)


def _union(tensors: list[Tensor]) -> Tensor:
    """A coalesced COO tensor with a value wherever one of the sparse tensors has one."""
    ones = [_to_coo(value.detach()) for value in tensors if value.layout not in _DENSE]
    pattern = ones[0]
    for other in ones[1:]:
        if not torch.equal(pattern.indices(), other.indices()):
            pattern = (_ones_at(pattern) + _ones_at(other)).coalesce()
    return pattern


def _to_coo(value: Tensor) -> Tensor:
    return (value if value.layout is torch.sparse_coo else value.to_sparse(layout=torch.sparse_coo)).coalesce()


def _ones_at(pattern: Tensor) -> Tensor:
    return torch.sparse_coo_tensor(
        pattern.indices(), torch.ones_like(pattern.values()), pattern.shape, check_invariants=False
    )


def _values(value: Tensor, pattern: Tensor) -> Tensor:
    """The values at the positions of the pattern, 0 where there is none."""
    at = value if value.layout is torch.strided else _to_coo(value)
    return at.sparse_mask(pattern).coalesce().values()


def _restore(values: Tensor, pattern: Tensor, layout: torch.layout) -> Tensor:
    gradient = torch.sparse_coo_tensor(
        pattern.indices(), values, pattern.shape, check_invariants=False, is_coalesced=True
    )
    return gradient if layout is torch.sparse_coo else gradient.to_sparse(layout=layout)


def is_nested(x: object) -> bool:
    """A strided nested tensor has no shape, so that torch refuses it to every Function; the jagged layout has one."""
    return isinstance(x, Tensor) and x.is_nested and x.layout is torch.strided


def apply_to_components(op: Callable[..., Tensor], x: Tensor, others: tuple[object, ...]) -> Tensor:
    """The op on one tensor of the nested one after the other; autograd goes through both steps."""
    y: Tensor = torch.nested.as_nested_tensor([op(part, *others) for part in x.unbind()], layout=torch.strided)
    return y
