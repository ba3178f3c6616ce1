"""The single questions of an audit, each answered with a word, a share of the points and an example."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..testing.measure import transforms
from ..testing.measure.behaviour import cross_talk, gradient_of, second_order, underflow
from ..testing.measure.gradients import additivity
from ..testing.measure.numeric import resolution_of
from .audit_records import Answer, NotFinite
from .measure import Measured

Function = Callable[[Tensor], Tensor]


def linear(f: Function, m: Measured, whole: Function, x: Tensor) -> Answer:
    """Do sign and size of grad matter, and do the gradients of two losses add up? The latter of `whole` at x."""
    (of_a, of_b, of_both) = additivity(whole, (x,), whole(x).shape)[0]
    sums = ((of_a + of_b - of_both).abs() > 1e-6 * (of_a.abs() + of_b.abs())) & ~of_both.isnan()
    signs = _unlike(m.positive, m.negative)
    sizes = torch.zeros_like(signs)
    for sign, of_one in ((1.0, m.positive), (-1.0, m.negative)):
        for size in (2.0, 1e-3, 1e3):
            sizes |= _unlike(gradient_of(f, m.x, sign * size) / (sign * size), of_one)
    told = [
        f"{text} {_at(wrong)}"
        for text, wrong in (
            ("the sign of grad matters", signs),
            ("its size matters", sizes),
            ("the gradients of two losses do not add up", sums),
        )
        if wrong.any()
    ]
    share = max(map(_share, (signs, sizes, sums)))
    return Answer("no", share, ", ".join(told)) if told else Answer("yes", 0.0)


def _unlike(a: Tensor, b: Tensor) -> Tensor:
    return ((a - b).abs() > 1e-6 * torch.maximum(a.abs(), b.abs())) & ~(a.isnan() & b.isnan())


def _share(wrong: Tensor) -> float:
    return wrong.double().mean().item()


def _at(wrong: Tensor) -> str:
    share = _share(wrong)
    return f"at {share:.0%} of the points" if share >= 0.01 else f"at {int(wrong.sum())} of {wrong.numel()} points"


def element_wise(f: Function, x: Tensor) -> Answer:
    """Does an element get the same gradient, whatever the others are? Raises ValueError where even its value is not the same."""
    generator = torch.Generator().manual_seed(0)
    talk = cross_talk(f, x, torch.randn(len(x), dtype=x.dtype, generator=generator))
    if talk.of_values.any():
        what = f"a y that depends on other elements of x {_at(talk.of_values)}"
        raise ValueError(f"audit: f must be element-wise, got {what}. Give the shape of its x: shape=(...).")
    if talk.of_gradients.any():
        told = f"the gradient depends on other elements {_at(talk.of_gradients)}"
        return Answer("no", _share(talk.of_gradients), told)
    return Answer("yes", 0.0)


def in_half_precision(narrow: Callable[[torch.dtype], Function], f: Function, m: Measured) -> dict[str, Answer]:
    """Is what float64 blocks blocked, and what it passes passed? Asked most beside kinks, jumps and steps of the gradient."""
    ends = [one.x for one in m.breaks] + [a for a, _ in m.pairs]
    beside = [x + by * max(1.0, abs(x)) for x in ends for by in (-0.1, -0.02, -3e-3, 3e-3, 0.02, 0.1)]
    inside = [x for x in beside if m.x[0] <= x <= m.x[-1]]
    x = torch.tensor(inside + m.x[:: max(1, len(m.x) // 24)].tolist(), dtype=m.x.dtype)
    return {
        str(dtype).removeprefix("torch."): _in(dtype, narrow, f, x, ends) for dtype in (torch.float16, torch.bfloat16)
    }


def _in(
    dtype: torch.dtype, narrow: Callable[[torch.dtype], Function], f: Function, x: Tensor, ends: list[float]
) -> Answer:
    try:
        found = underflow(narrow(dtype), f, x, dtype, ends)
    except Exception as error:
        return Answer("refused", None, in_one_line(error))
    for word, what, wrong in (
        ("underflows", "passes what float64 blocks", found.leaks),
        ("underflows", "loses a gradient", found.lost),
        ("overflows", "makes inf or NaN", found.overflows),
    ):
        if wrong.any():
            i = int(wrong.nonzero()[0])
            told = f"{what}, such as grad = {found.grad[i].item():.3g} at x = {found.x[i].item():.5g}"
            return Answer(word, _share(wrong), told)
    return Answer("as float64", 0.0)


def under_transforms(f: Function, m: Measured) -> dict[str, Answer]:
    """Double backward on smooth ground; forward mode and vmap everywhere."""
    smooth = m.x[~m.is_break & m.slope.isfinite()]
    return {
        "double_backward": _double_backward(f, smooth, m),
        "forward_mode": _same("reverse mode", lambda: transforms.diagonal_by_jvp(f, m.x, torch.ones_like(m.x)), m),
        "vmap": _same("plain backward", lambda: transforms.by_vmap_of_grad(f, m.x, torch.ones_like(m.x)), m),
    }


def _double_backward(f: Function, x: Tensor, m: Measured) -> Answer:
    """In units of the range and of the gradient, so that neither small nor large ones look alike."""
    scale = (m.x[-1] - m.x[0]).item() / 4
    slopes = torch.cat([m.positive, m.negative]).abs()
    size = slopes[slopes.isfinite()].max().item() if slopes.isfinite().any() else 0.0
    unit = (min(1.0, size) or 1.0) / scale
    eps, found = resolution_of(f, x), []
    for sign in (1.0, -1.0):
        try:
            found.append(second_order(f, x, torch.full_like(x, sign), 1e-6, unit, eps, scale))
        except Exception as error:
            return Answer("refused", None, in_one_line(error))
    wrong = found[0].wrong | found[1].wrong
    if not wrong.any():
        return Answer("consistent", 0.0)
    told, i = found[0 if found[0].wrong.any() else 1], int(wrong.nonzero()[0])
    by, expected = (told.by_x, told.x_expected) if told.x_wrong[i] else (told.by_grad, told.grad_expected)
    example = f"at x = {x[i].item():.4g} it gives {by[i].item():.4g}, the gradient changes by {expected[i].item():.4g}"
    return Answer("inconsistent", _share(wrong), f"{_at(wrong)}; {example}")


def _same(as_what: str, way: Callable[[], Tensor], m: Measured) -> Answer:
    try:
        found = way()
    except Exception as error:
        return Answer("refused", None, in_one_line(error))
    wrong = _unlike(found.detach(), m.positive)
    if wrong.any():
        return Answer("differs", _share(wrong), f"from {as_what} {_at(wrong)}")
    return Answer("agrees", 0.0)


def in_one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text if len(text) <= 120 else text[:117] + '...'}"


def not_finite(f: Function) -> tuple[NotFinite, ...]:
    """NaN, the infinities and both zeros as x, for both signs of grad."""
    x = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0, -0.0], dtype=torch.float64)
    try:
        y = f(x).detach().tolist()
        found = [(grad, gradient_of(f, x, grad).tolist()) for grad in (1.0, -1.0)]
    except Exception:  # an f that checks its x
        return ()
    return tuple(NotFinite(x[i].item(), grad, y[i], of_grad[i]) for i in range(len(x)) for grad, of_grad in found)


def infinite(f: Function, m: Measured) -> dict[str, Answer]:
    """An infinite grad should come back infinite where a finite one passes, and as 0 where it is blocked; NaN as NaN where it passes."""
    wrong = torch.zeros_like(m.x, dtype=torch.bool)
    for sign, of_one in ((1.0, m.positive), (-1.0, m.negative)):
        wrong |= gradient_of(f, m.x, sign * torch.inf).isnan() & ~of_one.isnan()
    passes = gradient_of(f, m.x, torch.nan).isnan()
    infinite = Answer("makes NaN", _share(wrong), _at(wrong)) if wrong.any() else Answer("no NaN", 0.0)
    if passes.all() or not passes.any():
        return {"infinite_grad": infinite, "nan_grad": Answer("passes" if passes.all() else "blocked", 0.0)}
    return {
        "infinite_grad": infinite,
        "nan_grad": Answer("passes in part", None, _at(passes)),
    }
