"""Checks of a case under torch's transforms; like those in values.py they take a case and assert."""

import re
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from ...rule import Sample
from ..measure import transforms
from ..measure.behaviour import cross_talk
from ..measure.inputs import Inputs, tensors_of
from .cases import Case
from .equality import assert_same_values
from .values import plain


def same_shape_problem(case: Case, sample: Sample) -> tuple[Callable[[Tensor], Tensor], Tensor, Tensor]:
    """The op as a problem of one tensor: (f, x, grad).

    f: the op as a function of the tensor that gets its gradient. f holds the other inputs: a tensor after x is 0-d, so that vmap may
        split x along any dimension; a tensor before x has the shape of x and holds ones.
    x: finite values, of shape (n, 3).
    grad: numbers of both signs, of the same shape.
    """
    inputs = sample.build(torch.float64)
    position = case.op.inputs.index(case.op.gradient_to)
    x = inputs[position].reshape(-1)
    x = x[x.isfinite()]
    x = x[: len(x) // 3 * 3].reshape(-1, 3)
    others = [v.reshape(-1)[0] if isinstance(v, Tensor) else v for v in inputs[position + 1 :]]
    grad = torch.linspace(-2, 2, x.numel(), dtype=torch.float64).reshape(x.shape).flip(0)
    return lambda value: case(*[torch.ones_like(value)] * position, value, *others), x, grad


def check_reverse(case: Case, sample: Sample, paths: Iterable[transforms.Way] = transforms.REVERSE) -> None:
    """Every reverse-mode path gives the value that backward gives."""
    f, x, grad = same_shape_problem(case, sample)
    expected = transforms.gradient_by_backward(f, x, grad)
    for path in paths:
        assert_same_values(
            path(f, x, grad), expected, f"{sample.name}, {path.__name__}", ulps=case.ulps, x=x, grad=grad
        )


def check_element_wise(case: Case, sample: Sample) -> None:
    """No element's value or gradient depends on another element of x or of grad."""
    f, x, grad = same_shape_problem(case, sample)
    for what, depends in cross_talk(f, x.reshape(-1), grad.reshape(-1))._asdict().items():
        assert not depends.any(), f"{sample.name}: cross-talk {what} at x = {x.reshape(-1)[depends][0].item()}"


def check_forward_mode(case: Case, sample: Sample) -> None:
    """A linear rule's forward mode is the transpose of its reverse mode: <u, J v> = <J^T u, v>, by real jvp and vjp."""
    f, x, tangent = same_shape_problem(case, sample)
    slope = transforms.gradient_by_backward(f, x, torch.ones_like(x))
    for path in transforms.FORWARD_MODE:
        assert_same_values(
            path(f, x, tangent),
            transforms.gradient_by_backward(f, x, tangent),
            path.__name__,
            ulps=case.ulps,
            x=x,
            slope=slope,
        )
    u = torch.linspace(1, 2, x.numel(), dtype=x.dtype).reshape(x.shape)
    forward, reverse = transforms.diagonal_by_jvp(f, x, tangent), torch.func.vjp(f, x)[1](u)[0]
    assert torch.allclose((u * forward).sum(), (reverse * tangent).sum(), rtol=1e-12)


def check_forward_mode_raises(case: Case, sample: Sample) -> None:
    """Forward mode of a rule that reads grad is an error that says so, and what to use instead."""
    f, x, tangent = same_shape_problem(case, sample)
    for path in (*transforms.FORWARD_MODE, transforms.hessian):
        text = ""
        try:
            path(f, x, tangent)
        except NotImplementedError as error:
            text = str(error)
        assert text, f"{case}: {path.__name__} must raise NotImplementedError, the rule is not linear in grad"
        assert text.startswith(f"{case.op.name}/{case.rule.name}: forward mode must not be used"), text
        assert "reads the incoming gradient" in text, text
        assert "reverse mode" in text, text
        # The text names the rules, then an edge in brackets, which may have the name of a rule.
        named = text.partition("linear in grad")[2].partition(" (")[0]
        for name, rule in case.op.rules.items():
            assert (re.search(rf"\b{name}\b", named) is not None) == rule.is_linear, name


def check_layouts(case: Case, dtype: torch.dtype) -> None:
    """For every layout, result and gradients have the right shape, dtype and device, and the values of the contiguous layout."""
    for sample in case.samples():
        inputs = four_dimensional_inputs(case, sample, dtype)
        flat_y = plain(case, inputs)
        grad = torch.linspace(-2, 2, flat_y.numel(), dtype=torch.float64).reshape(flat_y.shape).to(dtype)
        flat_gradients = _gradients(case, inputs, grad)
        for name, layout in LAYOUTS.items():
            laid = tuple(layout(v) if isinstance(v, Tensor) else v for v in inputs)
            y = case(*laid)
            what = f"{sample.name}, {name}"
            assert_same_values(y, plain(case, laid), what)  # not layout(flat_y): torch's gelu rounds by the layout
            gradients = _gradients(case, laid, layout(grad))
            for ours, theirs, leaf in zip(gradients, flat_gradients, tensors_of(laid), strict=True):
                if theirs is not None:
                    assert ours is not None, what
                    assert (ours.shape, ours.dtype) == (leaf.shape, leaf.dtype), what
                    unit = case.unit_of(layout(grad))
                    assert_same_values(ours, layout(theirs), f"{what}, gradient", ulps=case.ulps, term_size=unit)


def four_dimensional_inputs(case: Case, sample: Sample, dtype: torch.dtype) -> Inputs:
    """The sample. Its tensors are expanded to one shape of four dimensions, so that every layout fits all of them."""
    inputs = sample.build(dtype)
    shape = torch.broadcast_shapes(*(t.shape for t in tensors_of(inputs)))
    count = shape.numel() // 2 * 2
    return tuple(
        v.expand(shape).reshape(-1)[:count].reshape(1, 2, -1, 1) if isinstance(v, Tensor) else v for v in inputs
    )


def _gradients(case: Case, inputs: Inputs, grad: Tensor) -> tuple[Tensor | None, ...]:
    leaves = tuple(v.detach().requires_grad_() if isinstance(v, Tensor) else v for v in inputs)
    return torch.autograd.grad(case(*leaves), tensors_of(leaves), grad, allow_unused=True)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x.clone(),
    "scalar": lambda x: x[0, 0, 0, 0].clone(),
    "last scalar": lambda x: x[0, -1, -1, 0].clone(),
    "empty": lambda x: x[:, :, :0],
    "strided": lambda x: torch.stack([x, torch.zeros_like(x)], dim=-1)[..., 0],
    "transposed": lambda x: x.transpose(1, 2),
    "expanded": lambda x: x.expand(3, *x.shape[1:]),
    "channels last": lambda x: x.expand(2, -1, -1, 2).contiguous(memory_format=torch.channels_last),
}
