"""What must hold for a row, as functions that take one: the tests run them on the table, test_the_suite on broken rules."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...kernels import residual_of
from ...kernels.residuals import INPUTS
from ...rule import Sample
from ..measure.gradients import Gradients, additivity, by_backward, by_backward_of_first, by_vjp, saved_by
from ..measure.inputs import random_pairs, requiring_grad, special_pairs, tensors_of
from .equality import assert_same_bits, assert_same_values
from .rows import Row, rounding_to

SAVES_NOTHING = {"identity", "replace", "scale", "reverse", "clip"}  # as long as no bound asks for a gradient


def plain(row: Row, inputs: tuple[Any, ...]) -> Tensor:
    """What torch computes; an op without such a function is compared with its own forward, recording against not recording."""
    with torch.no_grad():
        return (row.op.plain_torch or row.op.forward)(*inputs)


def check_forward(row: Row, dtype: torch.dtype) -> None:
    """The same bits as plain torch, recording or not, and the inputs as they were."""
    for sample in row.samples():
        inputs = sample.build(dtype)
        before = [t.clone() for t in tensors_of(inputs)]
        expected = plain(row, inputs)
        assert_same_bits(row(*inputs), expected, f"{sample.name}, not recording")
        recorded = row(*requiring_grad(inputs))
        assert recorded.requires_grad
        assert_same_bits(recorded, expected, f"{sample.name}, recording")
        with torch.no_grad():
            assert_same_bits(row(*requiring_grad(inputs)), expected, f"{sample.name}, no_grad")
        assert_same_bits(by_vjp_forward(row, inputs), expected, f"{sample.name}, functorch")
        for tensor, old in zip(tensors_of(inputs), before, strict=True):
            assert_same_bits(tensor, old, f"{sample.name}, an input after the call")


def by_vjp_forward(row: Row, inputs: tuple[Any, ...]) -> Tensor:
    return torch.func.vjp(lambda x: row(x, *inputs[1:]), inputs[0])[0]


def check_gradient(row: Row, dtype: torch.dtype) -> None:
    """The reference's gradient for every value with every special grad: fused kernel, formula and functorch."""
    for sample in row.samples():
        _check_pairs(row, *special_pairs(sample.build(dtype), dtype), sample.name)


def check_random(row: Row, dtype: torch.dtype) -> None:
    """The same for random values and random grads of any magnitude; by functorch, which runs the formula again, in float32 only."""
    for sample in row.samples():
        _check_pairs(row, *random_pairs(sample.build(dtype), dtype), sample.name, functorch=dtype is torch.float32)


def _check_pairs(row: Row, inputs: tuple[Any, ...], grad: Tensor, name: str, functorch: bool = True) -> None:
    if (
        row.ulps >= OF_A_USER
    ):  # such a reference rounds once, at the end: what over- or underflows between the steps may differ
        keep = _is_moderate(inputs[0]) & _is_moderate(grad)
        inputs, grad = tuple(v[keep] if isinstance(v, Tensor) else v for v in inputs), grad[keep]
    expected = by_reference(row, inputs, grad)
    fused = by_backward_of_first(row.function(), inputs, grad)
    assert_equals_reference(fused, expected[:1], inputs, grad, f"{name}, kernel", ulps=row.ulps)
    found = by_backward(row.function(), inputs, grad)
    assert_equals_reference(found, expected, inputs, grad, f"{name}, backward", ulps=row.ulps)
    formula = by_backward(row.function(), inputs, grad, create_graph=True)
    assert_equals_reference(formula, expected, inputs, grad, f"{name}, formula", ulps=row.ulps)
    if functorch:
        found = by_vjp(row.function(), inputs, grad)
        assert_equals_reference(found, expected, inputs, grad, f"{name}, functorch", ulps=row.ulps)


OF_A_USER = 64


def _is_moderate(values: Tensor) -> Tensor:
    """Zero, infinite, NaN, or a number whose square is a normal one."""
    size, info = values.abs(), torch.finfo(values.dtype)
    return ~values.isfinite() | (size == 0) | ((size < info.max**0.5) & (size > info.tiny**0.5))


def check_reduced(row: Row, dtype: torch.dtype) -> None:
    """Inputs that were broadcast get the sum of the reference, in their own shape and dtype."""
    for sample in row.samples():
        inputs = sample.build(dtype)
        y = plain(row, inputs)
        grad = torch.linspace(-2, 2, y.numel(), dtype=torch.float64).reshape(y.shape).to(dtype)
        unreduced = by_reference(row, inputs, grad)
        expected = [u.sum_to_size(t.shape) for u, t in zip(unreduced, tensors_of(inputs), strict=True)]
        if (
            not row.rule.compares and dtype.itemsize == 2
        ):  # summed in float32 and rounded once: nearer than the sum of what was rounded
            assert_near(by_backward(row.function(), inputs, grad), unreduced, tensors_of(inputs), sample.name)
            continue
        for path in (by_backward, by_vjp, _by_formula):
            for position, (ours, theirs) in enumerate(zip(path(row.function(), inputs, grad), expected, strict=True)):
                assert_same_values(ours, theirs, f"{sample.name}, {path.__name__}, gradient {position}", ulps=row.ulps)
        (first,) = by_backward_of_first(row.function(), inputs, grad)
        assert_same_values(first, expected[0], f"{sample.name}, kernel", ulps=row.ulps)


def assert_near(found: list[Tensor | None], unreduced: list[Tensor], inputs: list[Tensor], what: str) -> None:
    """Within one rounding of each addend and of the sum."""
    for ours, addends, leaf in zip(found, unreduced, inputs, strict=True):
        assert ours is not None, what
        finite = addends.isfinite().all()
        total, size = (part.double().sum_to_size(leaf.shape) for part in (addends, addends.abs()))
        assert not finite or bool(((ours.double() - total).abs() <= torch.finfo(leaf.dtype).eps * size).all()), what


def _by_formula(f: Callable[..., Tensor], inputs: tuple[Any, ...], grad: Tensor) -> Gradients:
    return by_backward(f, inputs, grad, create_graph=True)


SIZES = (1.0, 2.0**-6, 2.0**6)  # of grads: a rule may treat small and large ones differently


def check_additive(row: Row, sample: Sample) -> None:
    """A rule that is linear in grad adds up: pull(a) + pull(b) = pull(a + b)."""
    for size in SIZES:
        for of_a, of_b, of_both in _pulls(row, sample, size):
            total = of_a + of_b
            near = torch.allclose(total, of_both, rtol=1e-14, atol=1e-14 * size)
            assert near, f"{sample.name}: {total} and {of_both}"


def check_not_additive(row: Row) -> None:
    """A rule that is said not to be linear in grad is not, at some sample: or it would refuse forward mode for nothing."""
    for sample in row.samples():
        for size in SIZES:
            for of_a, of_b, of_both in _pulls(row, sample, size):
                if not torch.allclose(of_a + of_b, of_both, atol=1e-8 * size):
                    return
    raise AssertionError(f"{row} adds up in grad everywhere")


def _pulls(row: Row, sample: Sample, size: float) -> list[tuple[Tensor, ...]]:
    inputs = sample.build(torch.float64)
    return additivity(row.function(), inputs, plain(row, inputs).shape, size)


def check_saved(row: Row) -> None:
    """As many bytes as the residual of the call says; of the inputs those that the row keeps, without a copy; nothing unrecorded."""
    for sample in row.samples():
        inputs = sample.build(torch.float32)
        assert saved_by(row.function(), inputs) == []
        for leaves in (requiring_grad(inputs), (inputs[0].clone().requires_grad_(), *inputs[1:])):
            wants = tuple(_asks(v) for v in leaves)
            saved = saved_by(row.function(), leaves)
            residual = residual_of(row.call(), leaves, wants)
            if residual is INPUTS:
                _check_saved_inputs(row, leaves, wants, saved, sample.name)
            else:
                assert sum(t.nbytes for t in saved) == residual.nbytes(row.call(), leaves, wants), sample.name
            with torch.no_grad():
                assert saved_by(row.function(), leaves) == []


def _check_saved_inputs(
    row: Row, leaves: tuple[Any, ...], wants: tuple[bool, ...], saved: list[Tensor], name: str
) -> None:
    names = row.rule.kept(wants) if any(wants) else ()
    kept = [v for n, v in zip(row.op.inputs, leaves, strict=True) if n in names]
    given = {v.data_ptr() for v in kept if isinstance(v, Tensor)}
    new = [t for t in saved if t.data_ptr() not in given]
    assert {t.data_ptr() for t in saved} - {t.data_ptr() for t in new} == given, name
    assert sum(t.nbytes for t in saved) - sum(t.nbytes for t in new) == sum(t.nbytes for t in tensors_of(kept))
    # A number beside a tensor bound is a 0-d tensor by then; nothing else may be new.
    beside = [v for v in kept if isinstance(v, float)] if any(isinstance(v, Tensor) for v in kept[1:]) else []
    assert [t.shape for t in new] == [torch.Size()] * len(beside), f"{name}: a copy was saved"
    if row.rule.name in SAVES_NOTHING and sum(wants) == 1:
        assert saved == [], name


def _asks(value: object) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


def by_reference(row: Row, inputs: tuple[Any, ...], grad: Tensor) -> list[Tensor]:
    """One number at a time, unreduced: the shape of the result for every tensor input."""
    fl = rounding_to(grad.dtype)
    shape = torch.broadcast_shapes(*(t.shape for t in tensors_of(inputs)))
    columns = [
        v.expand(shape).reshape(-1).tolist() if isinstance(v, Tensor) else [None if v is None else fl(v)] * grad.numel()
        for v in inputs
    ]
    of_one = row.reference_in(grad.dtype)
    first, *others = columns
    found = [of_one(*numbers) for numbers in zip(first, grad.reshape(-1).tolist(), *others, strict=True)]
    kept = [position for position, value in enumerate(inputs) if isinstance(value, Tensor)]
    return [torch.tensor([f[k] for f in found], dtype=torch.float64).to(grad.dtype).reshape(shape) for k in kept]


def assert_equals_reference(
    found: Gradients,
    expected: list[Tensor],
    inputs: tuple[Any, ...],
    grad: Tensor,
    what: str,
    ulps: int = 0,
) -> None:
    """No difference on any pair."""
    shown = {"x": inputs[0].expand(grad.shape), "grad": grad}
    for position, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        assert_same_values(ours, theirs, f"{what}, gradient {position}", ulps=ulps, **shown)
