"""A rule's formula on the inputs of a call. Every lowering without a kernel computes it, and every kernel is compared with it.

Sparse tensors: torch has neither comparisons nor `where` for them. So a rule gets their values alone, and its result gets the layout back.
A position that a sparse tensor does not hold is 0 and gets no gradient, as in torch's own ops. If grad holds a position that x does not
hold, x counts as 0 there. Strided nested tensors: the op runs on each component.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch
from torch import Tensor

from .arguments import is_compiling, is_number, rounded
from .rule import BOUNDED, Call, Gradients, Wants
from .torch_table.private import fake_mode_of


class Depth(threading.local):
    """A context that counts how deep this thread is in it."""

    depth = 0

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, *exception: object) -> None:
        self.depth -= 1


our_formulas = Depth()  # above 0 while we compute a formula: `rewrite` and `listen` leave its calls of torch alone


def pull(grad: Tensor, inputs: list[object], wants: Wants, call: Call) -> Gradients:
    """One gradient per input, unreduced: autograd sums each to the shape of its input, and casts it to its dtype and device."""
    if torch.compiler.is_dynamo_compiling():  # which cannot trace `our_formulas`
        return pull_dense(grad, inputs, wants, call)
    with our_formulas, fake_mode_of(grad):
        if are_sparse(grad, inputs):
            return apply_to_values(lambda grad, inputs: pull_dense(grad, inputs, wants, call), grad, inputs)
        return pull_dense(grad, inputs, wants, call)


def pull_dense(
    grad: Tensor, inputs: list[object], wants: Wants, call: Call, numbers: dict[str, float] | None = None
) -> Gradients:
    """The gradients of a call whose tensors are dense. A rule that compares gets the inputs as torch compared them: tensors cast and
    numbers rounded to the dtype of y.

    numbers: parameters of the rule that replace those of the call.
    """
    if not (call.rule.compares and call.keeps(wants)):
        return call.pull(grad, tuple(inputs), None, wants, numbers)
    y = call.primitive.forward(*inputs)
    operands = tuple([_cast_or_round(value, y) for value in inputs])
    if is_compiling() and y.dtype.itemsize == 2 and call.primitive.inputs == BOUNDED:
        y = torch.clamp(*operands)  # type: ignore[call-overload]  # to the rounded bounds: Inductor fuses what it rounds into what it does not
    return call.pull(grad, operands, y, wants, numbers)


def _cast_or_round(value: object, y: Tensor) -> object:
    if isinstance(value, Tensor):
        return value.to(y.dtype)
    return rounded(value, y) if is_number(value) else value


# --- layouts ----------------------------------------------------------------------------------------------------------

_DENSE = (torch.strided, torch.jagged)
_Formula = Callable[[Tensor, list[object]], Gradients]


def are_sparse(grad: Tensor, inputs: list[object]) -> bool:
    if grad.layout not in _DENSE:
        return True
    return any(isinstance(value, Tensor) and value.layout not in _DENSE for value in inputs)


def apply_to_values(formula: _Formula, grad: Tensor, inputs: list[object]) -> Gradients:
    """The formula on the values of a sparse grad, of sparse inputs, or of both. The gradients get the layout of the inputs."""
    tensors = [value for value in inputs if isinstance(value, Tensor)]
    sparse = [value for value in tensors if value.layout not in _DENSE]
    if tensors and not sparse:  # grad alone is sparse: a rule may give x something where grad is 0
        return formula(grad.to_dense(), inputs)
    layout = (sparse or [grad])[0].layout
    pattern = _union([grad, *sparse])
    at_pattern = [_values(value, pattern) if isinstance(value, Tensor) else value for value in inputs]
    gradients = formula(_values(grad, pattern), at_pattern)
    return tuple(None if values is None else _restore(values, pattern, layout) for values in gradients)


def _union(tensors: list[Tensor]) -> Tensor:
    """A coalesced COO tensor with a value wherever one of the sparse tensors has one."""
    pattern, *others = [_to_coo(value.detach()) for value in tensors if value.layout not in _DENSE]
    for other in others:
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
    """The values at the positions of the pattern; 0 at a position that `value` does not hold."""
    source = value if value.layout is torch.strided else _to_coo(value)
    return source.sparse_mask(pattern).coalesce().values()


def _restore(values: Tensor, pattern: Tensor, layout: torch.layout) -> Tensor:
    gradient = torch.sparse_coo_tensor(
        pattern.indices(), values, pattern.shape, check_invariants=False, is_coalesced=True
    )
    return gradient if layout is torch.sparse_coo else gradient.to_sparse(layout=layout)


def is_nested(x: object) -> bool:
    """Is x a strided nested tensor? It has no shape, so no Function can take it. One of the jagged layout has a shape."""
    return isinstance(x, Tensor) and x.is_nested and x.layout is torch.strided


def apply_to_components(op: Callable[..., Tensor], x: Tensor, others: tuple[object, ...]) -> Tensor:
    """The op on each component of a nested tensor. Autograd records the op and how the results are put together."""
    y: Tensor = torch.nested.as_nested_tensor([op(part, *others) for part in x.unbind()], layout=torch.strided)
    return y
