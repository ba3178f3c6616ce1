"""The questions of an audit. Each answer is a word, a share of the points and an example."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

import torch
from torch import Tensor

from ..testing.measure import transforms
from ..testing.measure.behaviour import Underflow, count_talk, cross_talk, gradient_of, second_order, underflow
from ..testing.measure.gradients import additivity
from ..testing.measure.numeric import resolution_of, values
from .audit_record import Answer, NotFinite
from .candidates import CLOSE, GRADS, Candidate, candidates, forwards
from .measure import Measured
from .what_is import are_equal

Function = Callable[[Tensor], Tensor]
# The remedy for an f that is not element-wise. With random weights, because the plain sum of a softmax never changes.
ALONG_A_LINE = "Look at it along a line: lambda t: (f(x + t.unsqueeze(-1) * direction) * weight).sum(-1)"
# The rounding error of a gradient of size 1 from which a number of size 1 was subtracted.
_ROUNDING = 8 * torch.finfo(torch.float64).eps
NARROW = ("float32", "float16", "bfloat16")


def answer_linear(f: Function, m: Measured) -> Answer:
    """Do sign and size of grad matter, and do the gradients of two losses add up?"""
    by_a, by_b, by_both = additivity(f, (m.x,), m.x.shape)[0]
    sizes = torch.zeros_like(m.x, dtype=torch.bool)
    for grad in GRADS[2:]:
        sizes |= _differ(gradient_of(f, m.x, grad) / grad, m.positive if grad > 0 else m.negative, m.noise)
    masks = {
        "the sign of grad matters": _differ(m.positive, m.negative, m.noise),
        "its size matters": sizes,
        "the gradients of two losses do not add up": (by_a + by_b - by_both).abs() > 1e-6 * (by_a.abs() + by_b.abs()),
    }
    reasons = [f"{text} {_where(wrong)}" for text, wrong in masks.items() if wrong.any()]
    return Answer("no", max(map(_share, masks.values())), ", ".join(reasons)) if reasons else Answer("yes", 0.0)


def answer_element_wise(f: Function, x: Tensor) -> Answer:
    """Does an element get the same gradient, whatever the other elements are? Raises ValueError if even its value depends on them."""
    generator = torch.Generator().manual_seed(0)
    grad = torch.randn(len(x), dtype=x.dtype, generator=generator)
    answer = Answer("yes", 0.0)
    for find_talk, cause in ((cross_talk, "other elements"), (count_talk, "the number of elements")):
        talk = find_talk(f, x, grad)
        if talk.of_values.any():
            got = f"a y that depends on {cause} of x {_where(talk.of_values)}"
            raise ValueError(f"audit: f must be element-wise, got {got}. {ALONG_A_LINE}.")
        if answer.word == "yes":
            answer = _answer("yes", "no", talk.of_gradients, f"the gradient depends on {cause} ")
    return answer


def answer_dtypes(
    function_in: Callable[[torch.dtype], Function], f: Function, m: Measured, names: Iterable[str] = NARROW
) -> dict[str, Answer]:
    """Does the gradient in a narrower dtype do what it does in float64? It is tried beside kinks and jumps, and at a few other points."""
    kinks = [each.x for each in m.breaks] + [end.x for end in m.ends] + [low for low, _ in m.pairs]
    distances = (-0.1, -0.02, -3e-3, 3e-3, 0.02, 0.1)  # from a kink; beyond x = 1 as shares of x
    beside = [x + distance * max(1.0, abs(x)) for x in kinks for distance in distances]
    inside = [x for x in beside if m.x[0] <= x <= m.x[-1]]
    x = torch.tensor(inside + m.x[:: max(1, len(m.x) // 24)].tolist(), dtype=m.x.dtype)

    def compare(dtype: torch.dtype) -> Answer:
        return _describe_underflow(underflow(function_in(dtype), f, x, dtype, kinks))

    return {name: _ask(partial(compare, getattr(torch, name))) for name in names}


def _ask(question: Callable[[], Answer]) -> Answer:
    """The answer, or the error with which f refuses the question."""
    try:
        return question()
    except Exception as error:
        return Answer("refused", None, write_error(error))


def _describe_underflow(result: Underflow) -> Answer:
    """The word of the answer is the worst fault. Each fault has an example with a grad as near to 1 as possible."""
    is_nan = result.narrow.isnan()
    faults = (
        ("overflows", "makes NaN", result.overflows & is_nan),
        ("overflows", "makes inf", result.overflows & ~is_nan),
        ("underflows", "passes what float64 blocks", result.leaks),
        ("underflows", "loses a gradient", result.lost),
        ("differs", "gives another gradient", result.differs),
    )
    present = [(word, text, wrong) for word, text, wrong in faults if wrong.any()]
    if not present:
        return Answer("as float64", 0.0)
    distance = result.grad.double().abs().log().abs()
    details = []
    for _, text, wrong in present:
        i = int(distance.where(wrong, torch.inf).argmin())
        instead = f" instead of {result.wide[i]:.3g}" if text.startswith("gives") else ""
        details.append(f"{text}{instead}, such as grad = {result.grad[i].item():.3g} at x = {result.x[i].item():.5g}")
    worst, _, wrong = present[0]
    return Answer(worst, _share(wrong), "; ".join(details))


def answer_transforms(f: Function, m: Measured) -> dict[str, Answer]:
    """Double backward at all points except kinks and jumps; forward mode and vmap at all points."""

    def compare(transform: transforms.Way, other: str) -> Answer:
        wrong = _differ(transform(f, m.x, torch.ones_like(m.x)).detach(), m.positive, m.noise)
        return _answer("agrees", "differs", wrong, f"from {other} ")

    return {
        "double_backward": _ask(lambda: _double_backward(f, m.x[~m.is_break & m.slope.isfinite()], m)),
        "forward_mode": _ask(lambda: compare(transforms.diagonal_by_jvp, "reverse mode")),
        "vmap": _ask(lambda: compare(transforms.gradient_by_vmap_of_grad, "plain backward")),
    }


def _double_backward(f: Function, x: Tensor, m: Measured) -> Answer:
    """Do second derivatives agree with differences of the gradient? Both are measured in units of the range and of the largest gradient."""
    scale = (m.x[-1] - m.x[0]).item() / 4
    slopes = torch.cat([m.positive, m.negative]).abs()
    size = slopes[slopes.isfinite()].max().item() if slopes.isfinite().any() else 0.0
    unit = (min(1.0, size) or 1.0) / scale
    eps = max(resolution_of(f, x), resolution_of(lambda at: gradient_of(f, at, 1.0), x))
    grads = (torch.full_like(x, sign) for sign in (1.0, -1.0))
    seconds = [second for grad in grads for second in second_order(f, x, grad, 1e-6, unit, eps, scale)]
    wrong = torch.stack([second.wrong for second in seconds]).any(0)
    if not wrong.any():
        return Answer("consistent", 0.0)
    i = int(wrong.nonzero()[0])
    second = next(second for second in seconds if second.wrong[i])
    value, expected = second.value[i].item(), second.expected[i].item()
    example = f"at x = {x[i].item():.4g} it gives {value:.4g}, the gradient changes by {expected:.4g}"
    return Answer("inconsistent", _share(wrong), f"{_where(wrong)}; {example}")


def measure_special_x(f: Function) -> tuple[NotFinite, ...]:
    """The value and the gradient at NaN, at the infinities and at both zeros, for both signs of grad."""
    x = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0, -0.0], dtype=torch.float64)
    try:
        y = f(x).detach().tolist()
        gradients = [(grad, gradient_of(f, x, grad).tolist()) for grad in (1.0, -1.0)]
    except Exception:  # an f that checks its x
        return ()
    return tuple(NotFinite(x[i].item(), grad, y[i], grad_x[i]) for i in range(len(x)) for grad, grad_x in gradients)


def answer_infinite_grad(f: Function, m: Measured) -> dict[str, Answer]:
    """An infinite grad should come back infinite where a finite grad passes, and as 0 where it is blocked; NaN as NaN where it passes."""
    wrong = torch.zeros_like(m.x, dtype=torch.bool)
    for sign, slopes in ((1.0, m.positive), (-1.0, m.negative)):
        wrong |= gradient_of(f, m.x, sign * torch.inf).isnan() & ~slopes.isnan()
    passes = gradient_of(f, m.x, torch.nan).isnan()
    nan = Answer("passes" if passes.all() else "blocked", 0.0)
    if passes.any() and not passes.all():
        nan = Answer("passes in part", None, _where(passes))
    return {"infinite_grad": _answer("no NaN", "makes NaN", wrong), "nan_grad": nan}


def name_rule(
    f: Function, m: Measured, narrow: Mapping[str, Answer], dtype: torch.dtype = torch.float64
) -> tuple[str | None, str]:
    """The source text of a call that does the same, and a note on details in which f differs from it; or None and a reason.

    narrow: the answers of `answer_dtypes`; a fault is noted only if the call does not have it. dtype: the dtype in which f was called.
    """
    faults = {name: answer for name, answer in narrow.items() if answer.word in ("overflows", "underflows", "differs")}
    gradients = [gradient_of(f, m.x, grad) for grad in GRADS]
    # First the ops whose values are equal: their difference is 0.
    for op, others, difference in sorted(forwards(m, dtype), key=lambda forward: forward[2] > 0):
        for candidate in candidates(op, others, m, gradients):
            pairs = zip(GRADS, gradients, strict=True)
            if all(_is_close(gradient_of(candidate.function, m.x, grad), gradient) for grad, gradient in pairs):
                call = candidate.write()
                if difference:
                    return None, f"the gradients of {call}, but its values differ from y by up to {difference:.2g}"
                ours = answer_dtypes(lambda dtype: candidate.function, candidate.function, m, faults)  # noqa: B023
                notes = [f"{name} {answer.detail}" for name, answer in faults.items() if answer.word != ours[name].word]
                return call, "; ".join([*notes, *_list_differences(f, m, candidate)])
    return None, ""


def _is_close(a: Tensor, b: Tensor) -> bool:
    near = (a - b).abs() <= CLOSE * torch.maximum(a.abs(), b.abs()).nan_to_num(0.0, 0.0, 0.0)
    return bool((near | are_equal(a, b)).all())


def _list_differences(f: Function, m: Measured, candidate: Candidate) -> Iterator[str]:
    """The differences where x or grad is not finite."""
    for value in (torch.nan, torch.inf, -torch.inf):
        x = torch.tensor([value], dtype=torch.float64)
        slopes = [gradient_of(function, x, 1.0) for function in (f, candidate.function)]
        for name, (theirs, ours) in {"y": [values(g, x) for g in (f, candidate.function)], "the slope": slopes}.items():
            if not _is_close(ours, theirs):
                yield f"at x = {value:g} {name} is {theirs.item():g} instead of {ours.item():g}"
    for grad in (torch.inf, -torch.inf, torch.nan):
        ours, theirs = gradient_of(candidate.function, m.x, grad), gradient_of(f, m.x, grad)
        wrong = ~are_equal(ours, theirs)
        if wrong.any():
            i = int(wrong.nonzero()[0])
            yield f"grad = {grad:g} gives {theirs[i]:g} instead of {ours[i]:g} at x = {m.x[i].item():.4g}"


def _differ(a: Tensor, b: Tensor, noise: Tensor | float) -> Tensor:
    near = 1e-6 * torch.maximum(a.abs(), b.abs()) + _ROUNDING + 4 * noise
    return ((a - b).abs() > near) & ~(a.isnan() & b.isnan())


def _answer(right: str, wrong: str, mask: Tensor, detail: str = "") -> Answer:
    """The word `wrong` if the mask has a point, else the word `right`. detail: the beginning of the evidence."""
    return Answer(wrong, _share(mask), detail + _where(mask)) if mask.any() else Answer(right, 0.0)


def _share(wrong: Tensor) -> float:
    return wrong.double().mean().item()


def _where(wrong: Tensor) -> str:
    share = _share(wrong)
    return f"at {share:.0%} of the points" if share >= 0.01 else f"at {int(wrong.sum())} of {wrong.numel()} points"


def write_error(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text if len(text) <= 120 else text[:117] + '...'}"
