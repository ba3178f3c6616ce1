"""Which of our ops is this autograd.Function, which somebody copied? By what it computes, in a way that harms no program.

Its forward and its backward are called by themselves, on a few numbers of ours and a ctx of ours: no `apply`, no graph, no hook of the
program, none of its modes. And they are called only where their source shows that nothing else can happen: see `purity`. What they should
give comes from `reference`, which calls no torch. A class of which that is not known is left alone.
"""

from __future__ import annotations

import contextlib
import inspect
import struct
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..reference import bounds, elementwise
from ..torch_table.private import outside_of_transforms, without_dispatch_modes, without_torch_function
from .purity import is_pure, is_pure_forward

_RANGES = ((-1.0, 1.0), (-0.3, 0.7), (0.0, 1.0))
_GRADS = (1.0, -1.0, 0.75, -2.5, 0.0)
_X = (-3.0, -1.5, -1.0, -0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)


@dataclass(frozen=True)
class Known:
    """meaning: as a person says it. instead: the line that replaces the class, under its name."""

    meaning: str
    instead: str
    familiar: str | None = None  # its name in `pseudograd.familiar`


def known(cls: object) -> Known | None:
    """None for what is no op of ours, and for what cannot be asked without harm. Never raises."""
    try:
        if cls not in _answers:
            _answers[cls] = _asked(cls)
        return _answers[cls]
    except Exception:  # of other code, asked in a way that it may not expect
        return None


_answers: weakref.WeakKeyDictionary[Any, Known | None] = weakref.WeakKeyDictionary()


# --- a Function without autograd --------------------------------------------------------------------------------------


class _Context:
    """What a forward keeps for its backward."""

    saved_tensors: tuple[Any, ...] = ()

    def __init__(self, inputs: int) -> None:
        self.needs_input_grad = (True,) * inputs

    def save_for_backward(self, *tensors: object) -> None:
        self.saved_tensors = tensors

    def mark_non_differentiable(self, *tensors: object) -> None:
        pass

    mark_dirty = mark_non_differentiable

    def set_materialize_grads(self, value: bool) -> None:
        pass


@contextlib.contextmanager
def _aside() -> Iterator[None]:
    with torch.no_grad(), without_torch_function(), without_dispatch_modes(), outside_of_transforms():
        yield


Computed = Callable[
    [Sequence[Any], Tensor], tuple[Tensor, tuple[Any, ...]]
]  # inputs and grad to the value and the gradients


def _computing(cls: Any) -> Computed | None:
    """None where more than numbers might come of it."""
    base = torch.autograd.Function
    with_setup = cls.setup_context is not base.setup_context
    parts = [(cls.forward, not with_setup), *([(cls.setup_context, True)] if with_setup else [])]
    are_plain = all(is_pure_forward(part, has_ctx) for part, has_ctx in parts) and is_pure(cls.backward)
    if cls.vjp is not base.vjp or not are_plain:
        return None

    def computed(inputs: Sequence[object], grad: Tensor) -> tuple[Tensor, tuple[object, ...]]:
        ctx = _Context(len(inputs))
        if with_setup:
            y = cls.forward(*inputs)
            cls.setup_context(ctx, tuple(inputs), y)
        else:
            y = cls.forward(ctx, *inputs)
        grads = cls.backward(ctx, grad)
        return y, grads if isinstance(grads, tuple) else (grads,)

    return computed


def _count(cls: Any) -> int:
    """Of inputs."""
    names = list(inspect.signature(cls.forward).parameters)
    return len(names) - (cls.setup_context is torch.autograd.Function.setup_context)


# --- what it is -------------------------------------------------------------------------------------------------------


def _asked(cls: object) -> Known | None:
    if not isinstance(cls, type) or not issubclass(cls, torch.autograd.Function):
        return None
    computed = _computing(cls)
    if computed is None:
        return None
    of_inputs: dict[int, Callable[[Computed, str], Known | None]] = {1: _one, 2: _two, 3: _three}
    judge = of_inputs.get(_count(cls))
    if judge is None:
        return None
    with _aside():
        return judge(computed, cls.__name__)


def _fl(value: float) -> float:
    return float(struct.unpack("f", struct.pack("f", value))[0])


def _row(values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float32, device="cpu")


def _is(found: object, expected: Sequence[float]) -> bool:
    """To the bit, but for the sign of a zero."""
    return isinstance(found, Tensor) and found.shape == (len(expected),) and found.tolist() == list(map(_fl, expected))


def _answers_as(
    computed: Computed,
    behind: Sequence[object],
    forward: Callable[[float], float],
    pull: Callable[[float, float], float],
) -> bool:
    """Of x behind which these inputs stand: is the value forward(x), and the gradient pull(grad, x), everywhere?"""
    points = (*_X, *(_fl(one) for one in behind if isinstance(one, float)))
    for g in _GRADS:
        y, grads = computed((_row(points), *behind), torch.full((len(points),), g, dtype=torch.float32, device="cpu"))
        if not (_is(y, [forward(x) for x in points]) and _is(grads[0], [pull(g, x) for x in points])):
            return False
    return True


_FAMILIAR = {"inward": "ClampWithGrad", "sign": "ClampWithGradProposed", "zero": "ClampWithGradThatWorks"}
_RULES: tuple[tuple[str, dict[str, float]], ...] = (
    ("inward", {}),
    ("zero", {}),
    ("identity", {}),
    ("sign", {}),
    ("leaky", {"slope": 0.1}),
)


def _three(computed: Computed, name: str) -> Known | None:
    """(x, min, max): a clamp."""
    for rule, edge, parameters in _rules():
        if all(_clamps(computed, ends, rule, edge, parameters) for ends in _RANGES):
            if edge == "closed" and rule in _FAMILIAR:
                return _familiar(name, _FAMILIAR[rule], f'clamp with rule "{rule}"')
            return _ours(f'clamp with rule "{rule}"{_edge(edge)}', "clamp", f'x, min, max, rule="{rule}"{_given(edge)}')
    return None


def _clamps(computed: Computed, ends: tuple[float, float], rule: str, edge: str, parameters: dict[str, Any]) -> bool:
    low, high = map(_fl, ends)

    def pull(grad: float, x: float) -> float:
        return bounds.gradient(rule, x, grad, low, high, edge=edge, fl=_fl, **parameters)[0]

    return _answers_as(computed, ends, lambda x: bounds.forward(x, low, high), pull)


def _rules() -> Iterator[tuple[str, str, dict[str, float]]]:
    for rule, parameters in _RULES:
        for edge in ("closed",) if rule == "identity" else ("closed", "open", "half", "inward"):
            yield rule, edge, parameters


def _edge(edge: str) -> str:
    return "" if edge == "closed" else f' and edge "{edge}"'


def _given(edge: str) -> str:
    return "" if edge == "closed" else f', edge="{edge}"'


def _two(computed: Computed, name: str) -> Known | None:
    """(x_forward, x_backward), or (x, bound)."""
    with contextlib.suppress(Exception):
        if _replaces(computed):
            return _familiar(name, "ReplaceGrad", "replace_grad")
    for op, at in (("lower_bound", 0), ("upper_bound", 1)):
        for rule, edge, parameters in _rules():
            if all(_bounds(computed, at, bound, rule, edge, parameters) for bound in (-0.3, 0.0, 0.75)):
                return _ours(f'{op} with rule "{rule}"{_edge(edge)}', op, f'x, bound, rule="{rule}"{_given(edge)}')
    return None


def _replaces(computed: Computed) -> bool:
    """The value of the first, the gradient to the second, and summed to its shape."""
    one, other = _row(_X), _row(_X[::-1])
    grad = _row([_GRADS[at % len(_GRADS)] for at in range(len(_X))])
    y, grads = computed((one, other), grad)
    _, summed = computed((torch.stack([one, one]), other), torch.stack([grad, 2 * grad]))
    are_alone = len(grads) == len(summed) == 2 and grads[0] is None
    return are_alone and _is(y, _X) and _is(grads[1], grad.tolist()) and _is(summed[1], (3 * grad).tolist())


def _bounds(computed: Computed, at: int, bound: float, rule: str, edge: str, parameters: dict[str, Any]) -> bool:
    """One bound, as a tensor: that is how the classes take it."""
    ends: list[float | None] = [None, None]
    ends[at] = _fl(bound)
    points = (*_X, _fl(bound))
    for g in _GRADS:
        y, grads = computed((_row(points), _row([bound])), _row([g] * len(points)))
        expected = [bounds.gradient(rule, x, g, *ends, edge=edge, fl=_fl, **parameters)[0] for x in points]
        if not (_is(y, [bounds.forward(x, *ends) for x in points]) and _is(grads[0], expected)):
            return False
    return True


# Of an op with a value of its own at 0: what is written for it.
_STEPS: dict[tuple[str, str], Callable[[float], float]] = {
    ("round", ""): lambda x: float(round(x)),
    ("floor", ""): lambda x: float(x // 1),
    ("ceil", ""): lambda x: float(-(-x // 1)),
    ("trunc", ""): lambda x: float(int(x)),
    ("sign", ""): lambda x: float((x > 0) - (x < 0)),
    ("sign", ", at_zero=1.0"): lambda x: 1.0 if x >= 0 else -1.0,
    ("heaviside", ""): lambda x: float(x >= 0),
    ("heaviside", ", at_zero=0.0"): lambda x: float(x > 0),
}


def _one(computed: Computed, name: str) -> Known | None:
    """x: a rounding, or a step."""
    for (op, at_zero), forward in _STEPS.items():
        for rule in ("identity", "zero", *(["window"] if op in ("sign", "heaviside") else [])):
            if _answers_as(computed, (), forward, lambda g, x, op=op, rule=rule: _pulled(op, rule, x, g)):  # type: ignore[misc]
                return _ours(f'{op} with rule "{rule}"', op, f'x, rule="{rule}"{at_zero}')
    return None


def _pulled(op: str, rule: str, x: float, grad: float) -> float:
    if op in ("sign", "heaviside"):
        return elementwise.step(rule, x, grad, 0.0, fl=_fl)[0]
    return elementwise.rounding(rule, x, grad, fl=_fl)[0]


def _familiar(name: str, ours: str, meaning: str) -> Known:
    named = ours if name == ours else f"{ours} as {name}"
    return Known(meaning, f"from pseudograd.familiar import {named}", ours)


def _ours(meaning: str, op: str, arguments: str) -> Known:
    return Known(meaning, f"import pseudograd  # pseudograd.{op}({arguments})")
