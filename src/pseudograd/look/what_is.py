"""Find the op and rule of this library that a function computes. The answer comes from measured values and gradients, never from a name.

`what_is` takes an autograd.Function of somebody's program and does no harm: it calls forward and backward alone, with a ctx and numbers
of its own. It calls no `apply` and makes no graph, so no hook and no mode of the program sees it. It calls a class only where the source
shows that the class does nothing but compute: see `purity`. `audit` compares any function with the same candidates.
"""

from __future__ import annotations

import inspect
import math
import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..public_names import public_path
from ..rule import OPS, Op, Rule
from .candidates import GRADS, Candidate, Others, candidates, forwards
from .measure import Measured
from .purity import Compute, compute_alone, unseen_by_program

_X = (-3.0, -2.5, -1.5, -1.0, -0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5)
_POWERS, _SMALL_POWERS = (2, 3, 4, 6, 9, 30), (-3, -6, -12, -30, -42)  # of ten
_USUAL_GRADS = (1.0, -1.0, 0.75, -2.5, 0.0, 10.0, -10.0, *(sign * 10.0**power for power in _POWERS for sign in (1, -1)))
_FAR_X = (-1e4, 1e4)  # tried if the class has bounds: a slope around 0 may overflow there
_STRIDE = 43  # every 43rd of the 129 points of `_measure` is used to call the class with fewer points
_NOT_FINITE = (math.nan, math.inf, -math.inf)
_EXTREME_GRADS = (*(sign * 10.0**power for power in _SMALL_POWERS for sign in (1, -1)), *_NOT_FINITE)
# By name, in the order in which they are tried. The first dtype with a difference gives the example.
DTYPES = {str(dtype)[6:]: dtype for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)}
# The ops with 2 and with 3 inputs: the name of the op, the names of its inputs after x, and numbers to try for these inputs.
_AFTER_X: dict[int, tuple[tuple[str, tuple[str, ...], tuple[tuple[float, ...], ...]], ...]] = {
    2: (
        ("lower_bound", ("bound",), ((-0.3,), (0.0,), (0.75,))),
        ("upper_bound", ("bound",), ((-0.3,), (0.0,), (0.75,))),
        ("scale_grad", ("scale",), ((0.75,), (0.25,))),
        ("reverse_grad", ("scale",), ((0.75,), (0.25,))),
        ("clip_grad", ("limit",), ((0.75,), (20.0,))),
    ),
    3: (("clamp", ("min", "max"), ((-0.3, 0.7), (-1.0, 1.0), (0.0, 1.0))),),
}

Numbers = tuple[float, ...]
Evaluate = Callable[[Tensor, Tensor, Numbers], tuple[Tensor, Tensor]]  # x, grad, numbers after x -> y, grad_x
OthersOf = Callable[[Numbers], Others]  # the class's numbers after x -> all inputs after x of our op


@dataclass(frozen=True)
class Match:
    """The call that does the same as an autograd.Function.

    meaning: the op, its rule and its edge, in words.
    instead: the line that replaces the class.
    familiar: the class in `pseudograd.familiar` that does the same.
    dtypes: the dtypes in which values and gradients were equal to the bit at every x that was tried, for every finite gradient of usual or
        large size.
    differences: an example for each kind of number where the class gives something else, such as an infinite gradient.
    defaults: the default arguments of its forward, which the class in `familiar` does not have.
    """

    meaning: str
    instead: str
    familiar: str | None = None
    dtypes: tuple[str, ...] = ()
    differences: tuple[str, ...] = ()
    defaults: tuple[str, ...] = ()


def what_is(function: object) -> Match | None:
    """The call that computes what this autograd.Function, or its `apply`, computes. None if no op of this library does, or if
    the class cannot be called without harm. Never raises.
    """
    try:
        cls = getattr(function, "__self__", function)
        if cls not in _matches:
            _matches[cls] = _recognise(cls)
        return _matches[cls]
    except Exception:  # code of somebody else, called with numbers that it may not expect
        return None


_matches: weakref.WeakKeyDictionary[object, Match | None] = weakref.WeakKeyDictionary()


def _recognise(cls: object) -> Match | None:
    if not isinstance(cls, type) or not issubclass(cls, torch.autograd.Function):
        return None
    compute = compute_alone(cls)
    if compute is None:
        return None
    has_ctx = cls.setup_context is torch.autograd.Function.setup_context
    parameters = list(inspect.signature(cls.forward).parameters.values())
    inputs = parameters[1:] if has_ctx else parameters
    with unseen_by_program(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of torch.tensor(bound); as an error, that would change the answer
        match = next(_matches_of(compute, len(inputs)), None)
    if match is None:
        return None
    defaults = tuple(f"{value.name}={value.default!r}" for value in inputs if value.default is not value.empty)
    instead = match.instead
    if match.familiar and not defaults:
        alias = "" if cls.__name__ == match.familiar else f" as {cls.__name__}"
        instead = f"from pseudograd.familiar import {match.familiar}{alias}"
    return replace(match, instead=instead, defaults=defaults)


def _matches_of(compute: Compute, inputs: int) -> Iterator[Match]:
    if inputs == 1:  # the values show the op
        evaluate = _make_evaluate(compute, _to_number)
        m = _measure(evaluate, ())
        for op, others, difference in forwards(m):
            if not difference:
                yield from _match_rule(evaluate, op, m, ((),), lambda numbers: others, ())  # noqa: B023, used at once
    elif inputs == 2 and _is_replace_grad(compute):
        yield Match("replace_grad", "", "ReplaceGrad", tuple(DTYPES))
    for name, names, numbers in _AFTER_X.get(inputs, ()):
        for as_input in (_to_number, _to_tensor):  # a class may need its bound as a tensor

            def others_of(numbers: Numbers, name: str = name) -> Others:
                if name == "lower_bound":
                    return *numbers, None
                return (None, *numbers) if name == "upper_bound" else numbers

            try:
                evaluate = _make_evaluate(compute, as_input)
                m = _measure(evaluate, numbers[0])
                yield from _match_rule(evaluate, OPS[name], m, numbers, others_of, names, compute)
            except Exception:  # the class takes other inputs
                continue


def _to_tensor(number: float, x: Tensor) -> Tensor:
    return torch.tensor([number], dtype=x.dtype)


def _to_number(number: float, x: Tensor) -> float:
    return number


def _make_evaluate(compute: Compute, as_input: Callable[[float, Tensor], object]) -> Evaluate:
    def evaluate(x: Tensor, grad: Tensor, numbers: Numbers) -> tuple[Tensor, Tensor]:
        y, (grad_x, *_) = compute((x, *(as_input(number, x) for number in numbers)), grad.clone())
        assert grad_x is not None
        return y, grad_x

    return evaluate


def _measure(evaluate: Evaluate, numbers: Numbers) -> Measured:
    x = torch.linspace(-4, 4, 129, dtype=torch.float64)
    (y, positive), (_, negative) = (evaluate(x, torch.full_like(x, sign), numbers) for sign in (1.0, -1.0))
    (slope,) = torch.gradient(y.double(), spacing=(x,))
    return Measured(x, y.double(), slope, torch.zeros_like(x), positive.double(), -negative.double(), (), ())


def _match_rule(
    evaluate: Evaluate,
    op: Op,
    m: Measured,
    numbers: tuple[Numbers, ...],
    others_of: OthersOf,
    names: tuple[str, ...],
    compute: Compute | None = None,
) -> Iterator[Match]:
    gradients = [evaluate(m.x, torch.full_like(m.x, grad), numbers[0])[1] for grad in GRADS]
    few = m.x[::_STRIDE].reshape(1, -1, 1, 1)
    _, grad_of_few = evaluate(few, torch.ones_like(few), numbers[0])
    if not are_equal(grad_of_few.flatten(), gradients[0][::_STRIDE]).all():
        return  # the gradient depends on the shape of x or on the number of elements
    for candidate in candidates(op, others_of(numbers[0]), m, gradients):
        rule, edge, parameters = candidate.case.rule, candidate.case.edge, candidate.case.parameters
        if rule.is_from_user or rule.author:  # its formula is code of the program
            continue
        comparison = _compare(evaluate, candidate, numbers, others_of)
        if comparison is None:
            continue
        dtypes, differences = comparison
        is_clamp = len(names) == 2  # the class takes min and max
        bounds_text = _difference_of_bounds(compute, candidate) if compute and is_clamp else ""
        if bounds_text is None:
            continue
        is_changed = any(value != rule.parameters[key] for key, value in parameters)
        may_be_familiar = is_clamp and edge == "closed" and not is_changed and not candidate.case.maximize
        call = candidate.write(names, says_default_edge=False).replace("=rules.", "=pseudograd.rules.")
        values = f"({', '.join(f'{key}={value:g}' for key, value in parameters)})" if is_changed else ""
        meaning = op.name if len(op.rules) == 1 else f'{op.name} with rule "{rule.name}{values}"'
        meaning += "" if rule.ignores_edge or edge == op.default_edge else f' and edge "{edge}"'
        instead = f"import pseudograd  # pseudograd.{public_path(op.name)}({call.partition('(')[2]}"
        crossed_text = _difference_of_crossed_bounds(compute) if compute and is_clamp else ""
        differences = (*differences, *filter(None, (bounds_text, crossed_text)))
        yield Match(meaning, instead, _familiar_class(rule) if may_be_familiar else None, dtypes, differences)


def _familiar_class(rule: Rule) -> str | None:
    """The class in `pseudograd.familiar` with this rule: ClampWithGrad is the class of clamp_with_grad."""
    names = (name for name in rule.translates.split() if name.startswith("clamp_with_grad"))
    return next((name.title().replace("_", "") for name in names), None)


def _difference_of_bounds(compute: Compute, candidate: Candidate) -> str | None:
    """Compare the gradients that the class and our call give to bounds that are tensors and require grad.

    Returns the difference as text, or "" without a difference. None if a bound gets another number: then the class is another function.
    """
    x, bounds = torch.tensor(_X), tuple(torch.tensor(value) for value in candidate.others)
    grad = torch.linspace(-1, 2, len(x))
    try:
        y, (_, *theirs) = compute((x, *bounds), grad.clone())
    except Exception:  # the class takes no tensors as bounds
        return ""
    if all(gradient is None for gradient in theirs):
        return "a bound that is a tensor and requires grad: it gets None instead of a gradient"
    ours = candidate.case.call().pull(grad, (x, *bounds), y, (True,) * 3)[1:]
    pairs = [(a, b) for a, b in zip(theirs, ours, strict=False) if a is not None and b is not None]
    return "" if len(pairs) == 2 and all(torch.allclose(a.sum(), b.sum()) for a, b in pairs) else None


def _difference_of_crossed_bounds(compute: Compute) -> str:
    try:
        compute((torch.tensor(_X), 1.0, -1.0), torch.ones(len(_X)))
    except Exception:  # the class refuses them, or takes no numbers
        return ""
    return "a min above max: it gives a value, and ours raises ValueError"


def _compare(
    evaluate: Evaluate, candidate: Candidate, numbers: tuple[Numbers, ...], others_of: OthersOf
) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """The dtypes in which value and gradient are equal to the bit, and the differences at extreme numbers. None if the class is another
    function: for example, if it blocks an extreme grad at an x where our rule passes both signs of grad.
    """
    dtypes: list[str] = []
    # An example for each cause: a dtype, an x or a grad that is not finite, a small grad.
    differences: dict[str, str] = {}
    for name, dtype in DTYPES.items():
        is_exact = True
        for exact in numbers if dtype == torch.float32 else numbers[:1]:
            after_x = tuple(torch.tensor(number).to(dtype).item() for number in exact)
            ours = candidate._replace(others=others_of(after_x))
            x, grad, is_usual = _pairs(after_x, dtype)
            is_finite = grad.isfinite()
            try:
                y, grad_x = torch.empty_like(x), torch.empty_like(x)
                # One NaN can switch off a guard that reads the whole gradient, so finite gradients are tried alone.
                for part in (is_finite, ~is_finite):
                    y_part, grad_x[part] = evaluate(x[part], grad[part], after_x)
                    if y_part.dtype != dtype:
                        differences.setdefault(name, f"{name}: its values are {str(y_part.dtype)[6:]}")
                        is_exact = False
                    y[part] = y_part.to(dtype)
            except Exception:
                if dtype == torch.float32:
                    raise
                is_exact = False
                differences[name] = f"{name} is refused"
                continue
            y_ours, grad_ours = ours.pull(x, grad)
            passes_both = torch.stack([ours.pull(x, torch.full_like(x, sign))[1] for sign in (1.0, -1.0)]).ne(0).all(0)
            wrong = ~are_equal(grad_x, grad_ours)
            is_other = _differ_much(grad_x, grad_ours) & (is_usual | (passes_both & x.isfinite() & grad_x.isfinite()))
            is_other |= _differ_much(y, y_ours) & is_usual
            if ours.case.op.rule_set != "step":  # a step may have any value where x is NaN
                is_other |= y_ours.isnan() & ~y.isnan()
            is_exact &= not bool((is_usual & (wrong | ~are_equal(y, y_ours))).any())
            if is_other.any() or (dtype == torch.float32 and not is_exact):
                return None
            for i in wrong.nonzero().flatten().tolist():
                cause = "small grad" if grad[i].isfinite() else f"{grad[i].abs():g}"
                cause = cause if x[i].isfinite() else "x"
                text = f"{name}: grad = {grad[i]:g} gives {grad_x[i]:g} instead of {grad_ours[i]:g} at x = {x[i]:.5g}"
                differences.setdefault(cause, text)
        dtypes += [name] if is_exact else []
    return tuple(dtypes), tuple(differences.values())


def _pairs(bounds: Numbers, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Each x with each grad, in this dtype, and a mask of the pairs of finite x and usual grad. x includes the numbers next to bounds."""
    info = torch.finfo(dtype)
    steps = [(bound, abs(bound) * info.eps or 4 * info.tiny) for bound in bounds]
    beside = [bound + share * step for bound, step in steps for share in (-1, -0.5, 0.5, 1)]
    x = torch.tensor([*_X, *bounds, *beside, *(_FAR_X if bounds else ()), *_NOT_FINITE], dtype=torch.float64).to(dtype)
    usual = torch.tensor(_USUAL_GRADS, dtype=torch.float64).to(dtype)
    usual = usual[usual.isfinite()]
    grads = torch.cat([usual, torch.tensor(_EXTREME_GRADS, dtype=torch.float64).to(dtype)])
    is_usual = (torch.arange(len(grads)) < len(usual)).repeat(len(x))
    x, grads = x.repeat_interleave(len(grads)), grads.repeat(len(x))
    return x, grads, is_usual & x.isfinite()


def are_equal(a: Tensor, b: Tensor) -> Tensor:
    """A mask: where are they equal to the bit? 0 equals -0, and every NaN equals every other."""
    return (a == b) | (a.isnan() & b.isnan())


def _differ_much(a: Tensor, b: Tensor) -> Tensor:
    """A mask of the elements that differ by more than eight roundings of their dtype, or of float32 if that is coarser."""
    eps = max(torch.finfo(a.dtype).eps, torch.finfo(torch.float32).eps)
    is_near = (a - b).abs() <= 8 * eps * torch.maximum(a.abs(), b.abs())
    return ~((is_near & a.isfinite() & b.isfinite()) | are_equal(a, b))


def _is_replace_grad(compute: Compute) -> bool:
    """Does the class return its first input, and give its second input the whole gradient, summed to the shape of that input?"""
    for dtype in DTYPES.values():
        grad = torch.tensor([*_USUAL_GRADS, *_EXTREME_GRADS], dtype=torch.float64).to(dtype)
        first, second = grad.flip(0), torch.zeros_like(grad)
        try:
            y, (to_first, to_second) = compute((first, second), grad.clone())
            _, (_, summed) = compute((torch.stack([first, first]), second), torch.stack([grad, grad]))
        except Exception:
            return False
        if to_first is not None or to_second is None or summed is None:
            return False
        if not all(are_equal(a, b).all() for a, b in ((y, first), (to_second, grad), (summed, 2 * grad))):
            return False
    return True
