"""Checks of the values of a case: forward, gradients, sums, saved tensors. test_the_suite runs them on broken rules too."""

import warnings
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ...kernels import Kernel, bits, residual_of, that_serve, use_only
from ...kernels.residuals import INPUTS
from ...ops.bounds import unify_bounds
from ...rule import BOUNDED, Sample
from ..measure.gradients import (
    Gradients,
    additivity,
    gradient_by_backward,
    gradient_by_backward_of_first,
    gradient_by_vjp,
    saved_by,
)
from ..measure.inputs import Inputs, random_pairs, requiring_grad, special_pairs, tensors_of
from .cases import Case, get_rounder
from .equality import assert_same_bits, assert_same_values


class Units(NamedTuple):
    """By how many units in the last place numbers may differ. `differing_values` explains the fields."""

    ulps: int
    term_size: Tensor | float


SAVES_NOTHING = {"identity", "replace", "scale", "reverse", "clip"}  # rules, as long as no bound asks for a gradient
ULPS_OF_USERS = 64  # of rules that a user registers
GRAD_SIZES = (1.0, 2.0**-6, 2.0**6)  # a rule may treat small and large gradients differently


def plain(case: Case, inputs: Inputs) -> Tensor:
    """The values of torch's own function, or of the op's forward without recording if torch has no such function."""
    with torch.no_grad():
        return (case.op.plain_torch or case.op.forward)(*inputs)


def check_forward(case: Case, dtype: torch.dtype) -> None:
    """The forward gives the bits of torch, recording or not, and leaves the inputs as they were."""
    for sample in case.samples():
        inputs = sample.build(dtype)
        before = [t.clone() for t in tensors_of(inputs)]
        expected = plain(case, inputs)
        assert_same_bits(case(*inputs), expected, f"{sample.name}, not recording")
        recorded = case(*requiring_grad(inputs))
        assert recorded.requires_grad
        assert_same_bits(recorded, expected, f"{sample.name}, recording")
        with torch.no_grad():
            assert_same_bits(case(*requiring_grad(inputs)), expected, f"{sample.name}, no_grad")
        assert_same_bits(forward_by_vjp(case, inputs), expected, f"{sample.name}, functorch")
        for tensor, old in zip(tensors_of(inputs), before, strict=True):
            assert_same_bits(tensor, old, f"{sample.name}, an input after the call")


def forward_by_vjp(case: Case, inputs: Inputs) -> Tensor:
    return torch.func.vjp(lambda x: case(x, *inputs[1:]), inputs[0])[0]


def check_gradient(case: Case, dtype: torch.dtype) -> None:
    """Each kernel alone, the formula and functorch give the reference's gradient, for every value with every special grad."""
    for sample in case.samples():
        _check_pairs(case, *special_pairs(sample.build(dtype), dtype), sample.name)


def check_random(case: Case, dtype: torch.dtype) -> None:
    """As check_gradient, for random values and random grads of any magnitude. Only float32 is tried by functorch, which runs the formula
    again.
    """
    for sample in case.samples():
        _check_pairs(case, *random_pairs(sample.build(dtype), dtype), sample.name, functorch=dtype is torch.float32)


def _check_pairs(case: Case, inputs: Inputs, grad: Tensor, name: str, functorch: bool = True) -> None:
    # A user's reference rounds once, at the end, so a step that over- or underflows may differ.
    if case.ulps >= ULPS_OF_USERS:
        keep = _is_moderate(inputs[0]) & _is_moderate(grad)
        inputs, grad = tuple(v[keep] if isinstance(v, Tensor) else v for v in inputs), grad[keep]
    expected = reference_gradients(case, inputs, grad)
    units = Units(case.ulps, case.unit_of(grad))
    for kernel in that_serve(case.call()):  # each alone, because another kernel may have the larger priority
        what = f"{name}, kernel {kernel.name} for {kernel.residual.name}"
        with use_only(kernel), bits.save_bits_from(bits.least_elements if kernel.residual is INPUTS else 0):
            if kernel.device in ("", "cpu"):
                fused = gradient_by_backward_of_first(case.function(), inputs, grad)
            else:
                what = f"{what} on {kernel.device}"
                fused = _gradients_off_device(kernel, case, inputs, grad)
        assert_equals_reference(fused, expected[: len(fused)], inputs, grad, what, units)
    fused = gradient_by_backward_of_first(case.function(), inputs, grad)
    assert_equals_reference(fused, expected[:1], inputs, grad, f"{name}, kernel", units)
    gradients = gradient_by_backward(case.function(), inputs, grad)
    assert_equals_reference(gradients, expected, inputs, grad, f"{name}, backward", units)
    formula = gradient_by_backward(case.function(), inputs, grad, create_graph=True)
    assert_equals_reference(formula, expected, inputs, grad, f"{name}, formula", units)
    if functorch:
        gradients = gradient_by_vjp(case.function(), inputs, grad)
        assert_equals_reference(gradients, expected, inputs, grad, f"{name}, functorch", units)


def _gradients_off_device(kernel: Kernel, case: Case, inputs: Inputs, grad: Tensor) -> Gradients:
    """The gradient of the first tensor by a kernel for another device, called with tensors on the CPU. Empty if it declines them."""
    call = case.call()
    if case.op.inputs == BOUNDED:
        inputs = (inputs[0], *unify_bounds(*inputs))
    first = [isinstance(value, Tensor) for value in inputs].index(True)
    wants = tuple(position == first for position in range(len(inputs)))
    if kernel.residual is not INPUTS and not kernel.residual.serves(call, inputs, wants):
        return []
    try:
        with torch.no_grad():
            encoded = None if kernel.forward is None else kernel.forward(call, inputs, wants)
            _, saved = kernel.residual.encode(call, inputs, wants) if encoded is None else encoded
            gradients = kernel.backward(grad, saved, wants, call)
    except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
        text = f"check_rule: kernel {kernel.name} was not compared, without {kernel.device} it raises {error}"
        warnings.warn(text, stacklevel=2)
        return []
    return [] if gradients is None else [gradients[first]]


def _is_moderate(values: Tensor) -> Tensor:
    """Zero, infinite, NaN, or a number whose square is a normal one."""
    size, info = values.abs(), torch.finfo(values.dtype)
    return ~values.isfinite() | (size == 0) | ((size < info.max**0.5) & (size > info.tiny**0.5))


def check_reduced(case: Case, dtype: torch.dtype) -> None:
    """Inputs that were broadcast get the sum of the reference, in their own shape and dtype."""
    for sample in case.samples():
        inputs = sample.build(dtype)
        y = plain(case, inputs)
        grad = torch.linspace(-2, 2, y.numel(), dtype=torch.float64).reshape(y.shape).to(dtype)
        unreduced = reference_gradients(case, inputs, grad)
        expected = [u.sum_to_size(t.shape) for u, t in zip(unreduced, tensors_of(inputs), strict=True)]
        # The engine sums in float32 and rounds once, which is nearer than a sum of rounded numbers.
        if not case.rule.compares and dtype.itemsize == 2:
            assert_near(gradient_by_backward(case.function(), inputs, grad), unreduced, tensors_of(inputs), sample.name)
            continue
        # Addends may cancel each other; their roundings do not.
        size = [
            torch.where(u.isfinite(), u, 0.0).abs().sum_to_size(e.shape)
            for u, e in zip(unreduced, expected, strict=True)
        ]
        term_sizes = [case.unit_of(grad) if case.rule.cancels else part for part in size]
        for path in (gradient_by_backward, gradient_by_vjp, formula_gradients):
            for position, (ours, theirs) in enumerate(zip(path(case.function(), inputs, grad), expected, strict=True)):
                what = f"{sample.name}, {path.__name__}, gradient {position}"
                assert_same_values(ours, theirs, what, ulps=case.ulps, term_size=term_sizes[position])
        (first,) = gradient_by_backward_of_first(case.function(), inputs, grad)
        assert_same_values(first, expected[0], f"{sample.name}, kernel", ulps=case.ulps, term_size=term_sizes[0])


def assert_near(gradients: list[Tensor | None], unreduced: list[Tensor], inputs: list[Tensor], what: str) -> None:
    """The gradients are off by at most one rounding of each addend and of the sum. None counts as zeros."""
    for gradient, addends, leaf in zip(gradients, unreduced, inputs, strict=True):
        ours = torch.zeros_like(leaf) if gradient is None else gradient
        finite = addends.isfinite().all()
        total, size = (part.double().sum_to_size(leaf.shape) for part in (addends, addends.abs()))
        assert not finite or bool(((ours.double() - total).abs() <= torch.finfo(leaf.dtype).eps * size).all()), what


def formula_gradients(f: Callable[..., Tensor], inputs: Inputs, grad: Tensor) -> Gradients:
    return gradient_by_backward(f, inputs, grad, create_graph=True)


def check_additive(case: Case, sample: Sample) -> None:
    """A rule that is linear in grad adds up: pull(a) + pull(b) = pull(a + b)."""
    for size in GRAD_SIZES:
        for of_a, of_b, of_both in _pulls(case, sample, size):
            total = of_a + of_b
            near = torch.allclose(total, of_both, rtol=1e-14, atol=1e-14 * size, equal_nan=True)
            assert near, f"{sample.name}: {total} and {of_both}"


def check_not_additive(case: Case) -> None:
    """A rule that is said not to be linear in grad does not add up at some sample. Otherwise it would refuse forward mode without need."""
    for sample in case.samples():
        for size in GRAD_SIZES:
            for of_a, of_b, of_both in _pulls(case, sample, size):
                if not torch.allclose(of_a + of_b, of_both, atol=1e-8 * size):
                    return
    raise AssertionError(f"{case} adds up in grad everywhere")


def _pulls(case: Case, sample: Sample, size: float) -> list[tuple[Tensor, ...]]:
    inputs = sample.build(torch.float64)
    return additivity(case.function(), inputs, plain(case, inputs).shape, size)


def check_saved(case: Case) -> None:
    """A call saves as many bytes as its residual says, or without a copy the inputs that the case keeps. Unrecorded, it saves nothing."""
    for sample in case.samples():
        inputs = sample.build(torch.float32)
        assert saved_by(case.function(), inputs) == []
        for leaves in (requiring_grad(inputs), (inputs[0].clone().requires_grad_(), *inputs[1:])):
            wants = tuple(isinstance(v, Tensor) and v.requires_grad for v in leaves)
            saved = saved_by(case.function(), leaves)
            as_run = (leaves[0], *unify_bounds(*leaves)) if case.op.inputs == BOUNDED else leaves
            residual = residual_of(case.call(), as_run, wants)
            if residual is INPUTS:
                _check_saved_inputs(case, leaves, wants, saved, sample.name)
            else:
                assert sum(t.nbytes for t in saved) == residual.nbytes(case.call(), as_run, wants), sample.name
            with torch.no_grad():
                assert saved_by(case.function(), leaves) == []


def _check_saved_inputs(case: Case, leaves: Inputs, wants: tuple[bool, ...], saved: list[Tensor], name: str) -> None:
    names = case.rule.inputs_read(wants) if any(wants) else ()
    inputs = [v for n, v in zip(case.op.inputs, leaves, strict=True) if n in names]
    pointers = {v.data_ptr() for v in inputs if isinstance(v, Tensor)}
    new = [t for t in saved if t.data_ptr() not in pointers]
    assert {t.data_ptr() for t in saved} - {t.data_ptr() for t in new} == pointers, name
    assert sum(t.nbytes for t in saved) - sum(t.nbytes for t in new) == sum(t.nbytes for t in tensors_of(inputs))
    # A number beside a tensor bound was made a 0-d tensor; nothing else may be new.
    bounds = [v for n, v in zip(case.op.inputs, leaves, strict=True) if n in names and n in ("min", "max")]
    beside = [v for v in bounds if isinstance(v, float)] if any(isinstance(v, Tensor) for v in bounds) else []
    assert [t.shape for t in new] == [torch.Size()] * len(beside), f"{name}: a copy was saved"
    if case.rule.name in SAVES_NOTHING and sum(wants) == 1 and case.op.rule_set != "policy":  # its slope is exp's
        assert saved == [], name


def reference_gradients(case: Case, inputs: Inputs, grad: Tensor) -> list[Tensor]:
    """The gradient of every tensor input by the scalar reference, in the shape of the result: nothing is summed."""
    fl = get_rounder(grad.dtype)
    shape = torch.broadcast_shapes(*(t.shape for t in tensors_of(inputs)))
    columns = [
        v.expand(shape).reshape(-1).tolist() if isinstance(v, Tensor) else [None if v is None else fl(v)] * grad.numel()
        for v in inputs
    ]
    reference = case.reference_in(grad.dtype)
    first, *others = columns
    rows = [reference(*numbers) for numbers in zip(first, grad.reshape(-1).tolist(), *others, strict=True)]
    tensors = [position for position, value in enumerate(inputs) if isinstance(value, Tensor)]
    return [torch.tensor([row[k] for row in rows], dtype=torch.float64).to(grad.dtype).reshape(shape) for k in tensors]


def assert_equals_reference(
    gradients: Gradients,
    expected: list[Tensor],
    inputs: Inputs,
    grad: Tensor,
    what: str,
    units: Units,
) -> None:
    """The gradients equal the reference for every pair of x and grad."""
    shown = {"x": inputs[0].expand(grad.shape), "grad": grad}
    for position, (ours, theirs) in enumerate(zip(gradients, expected, strict=True)):
        assert_same_values(
            ours, theirs, f"{what}, gradient {position}", ulps=units.ulps, term_size=units.term_size, **shown
        )
