"""What one line of a program does to the gradient that arrives there, summed over its calls."""

from __future__ import annotations

import threading
from collections.abc import Collection
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...engine import call_of, saved_inputs_of
from ...kernels.native import counts as at_once
from ...listen.frames import Place
from ...ops.bound_rules import DEFAULT_RULE, TRUE_RULE
from ...ops.jump import JUMPRELU
from ...ops.steps import SLOPES
from ...rule import Call
from ...torch_table import forms as torch_forms
from ...torch_table.private import base_of, current_node, is_view, is_wrapped, physical
from ...torch_table.records import Form
from .grads import COUNTS, ELSEWHERE, SIDES, SIGNS, Grads, Leaving, Sums, add_inside, bounds_of, count, has_sides
from .leaves import Leaves

_KNOWN = ("recoverable", "at_bound", *(f"{side}{sign}" for side in SIDES for sign in SIGNS))
# They neither move nor mix elements, so that positions tell what is cut. For speed alone.
_NAMES = "Mul Div Sub Neg Abs Pow Exp Log Sqrt Rsqrt Tanh Sigmoid Softplus Elu Threshold NativeDropout Where MaskedFill"
_ELEMENTWISE = frozenset(f"{name}Backward" for name in _NAMES.split())
_MOST_CALLS = 8  # of one line: with as many rules nobody asks for the ninth
NOBODY = object()  # calls, as far as a mode sees: TorchScript or C++

OWN_NODE = "PseudogradBackward"
NARROW = 0.5  # of the thresholds of a jumprelu, without a gradient in any backward: from here on it is a finding
_ENOUGH = 0.9  # of the thresholds: what the bandwidth that is advised would have reached


class Tally:
    """The sums of one op at one place."""

    def __init__(self, op: str, place: Place) -> None:
        self.op = op
        self.place = place
        self.form: Form | None = None
        self.calls = 0
        self.order = 0  # of its first call among those of a backward
        self.leaves = 0  # which leaves lie upstream: a bit each
        self.has_tensor_bound = False
        self.is_known = False  # are the sides counted?
        self.pinned: frozenset[str] = frozenset()  # the families that are pinned to what this torch does
        self.calling: object = None  # the function of torch that made the node last
        self.may_move = torch_forms.form_of_node(op) is None and op.rstrip("0123456789") not in _ELEMENTWISE
        self.own_calls: dict[object, Call] = {}  # of an op of ours: what its nodes compute, by what tells them apart
        self.function: object = None  # the class of a custom Function
        self.zeroed = 0  # leaves that it handed zeros alone, where something arrived
        self.passed = 0  # and those that it handed more
        self.hook: Any = None  # what torch calls when a node of it has run
        self.windows: dict[int, Windows] = {}  # of jumprelu, by the leaves that its thresholds come from
        self._sums: Sums = {}
        self._at_once: at_once.Sums | None = None
        self._lock = threading.RLock()  # a collection of garbage may run any code while it is held

    @property
    def within(self) -> str | None:
        """The call of torch that makes a node of this form where no override reaches it."""
        form = torch_forms.form_of_node(self.op)
        calling = self.calling
        if form is None or torch_forms.is_spelling_of(calling, form) or torch_forms.reaches_inside(calling, form):
            return None
        if calling is NOBODY:
            return "code that no mode sees"
        return getattr(calling, "__name__", None) or str(calling)

    def count(self, leaving: Any, arriving: Any, is_full: bool, leaves: Leaves) -> bool:
        """A node ran: False where what arrived and what left cannot be compared. The node is looked at when that is needed alone."""
        is_first, is_slice = not self.calls, self.op == SLICE_NODE
        node = current_node() if is_full or is_first or self.op in (OWN_NODE, SLICE_NODE) else None
        form, form_of_slice = self.form, None
        if is_slice:
            leaving, arriving, form_of_slice = read_slice(node, leaving, arriving)
        if is_first:
            form = form_of_slice or torch_forms.form_of_node(self.op)
        saved = torch_forms.saved_values(form, node) if is_full and form is not None and node is not None else None
        with self._lock:
            tells_sides = self._count_at_once(leaving, arriving, is_full, saved)
        if tells_sides is None:
            sums = count(leaving, arriving, is_full, self.may_move, saved)
            if sums is None:
                return False
            self.add(sums)
            tells_sides = has_sides(sums)
        self.calls += 1
        if is_first and node is not None:
            self.form = form
        if node is not None:
            self._note_node(node, leaves)
        if saved is not None and tells_sides:
            self.is_known = True
            self.has_tensor_bound = any(isinstance(bound, Tensor) for bound in saved.inputs[1:])
        return True

    def _note_node(self, node: Any, leaves: Leaves) -> None:
        self.leaves |= leaves.upstream(node)  # one line may serve several parameters
        call = call_of(node) if self.op == OWN_NODE else None
        if call is not None and len(self.own_calls) < _MOST_CALLS:
            self.own_calls.setdefault(call.spec, call)

    def add(self, sums: Sums) -> None:
        with self._lock:
            for name, value in sums.items():
                self._sums[name] = self._sums[name] + value if name in self._sums else value

    def _count_at_once(self, leaving: Any, arriving: Any, is_full: bool, saved: Any) -> bool | None:
        """The counts of one backward call, added in one pass; whether they tell where x stands. None where it has to go the other way."""
        if self.may_move:
            return None
        if self._at_once is None:
            self._at_once = at_once.Sums(is_full)
        is_pair = saved is None and len(leaving) == len(arriving) == 1
        if is_pair and self._at_once.add_pair(arriving[0], leaving[0]) is not None:
            return False
        grads = Grads.match(leaving, arriving)
        x, low, high = (None, None, None) if grads is None else bounds_of(grads, saved)
        if grads is None or isinstance(low, Tensor) or isinstance(high, Tensor):
            return None
        cut = self._at_once.add(grads.arrived, grads.left, x, low, high)
        if cut is None:
            return None
        self.add(grads.elsewhere(cut))
        return x is not None

    def look_at_windows(self, leaving: Leaving, leaves: Leaves) -> None:
        """Of a node of ours whose threshold learns through a window."""
        node = current_node()
        window = _window_of(node, leaving)
        if window is not None:
            source = leaves.upstream(node.next_functions[1][0])  # one line may serve several layers
            self.windows.setdefault(source, Windows()).add(*window)

    def eras(self) -> dict[str, float]:
        """What each era of torch passes exactly at the bound; empty where this op has none, and where it is pinned."""
        if self.form is None or torch_forms.edge_family(self.form) in self.pinned:
            return {}
        return torch_forms.shares_at_the_edge(self.form, self.has_tensor_bound)

    def totals(self) -> dict[str, float]:
        """Waits for the device."""
        names = (*COUNTS, ELSEWHERE, *(_KNOWN if self.is_known else ()))
        parts = [self._sums, *map(add_inside, () if self._at_once is None else self._at_once.read())]
        return {name: float(sum(part.get(name, 0) for part in parts)) for name in names}


# --- an op in place on a view: autograd makes one node for it, of the whole base --------------------------------------

SLICE_NODE = "torch::autograd::CopySlices"
_KEY = "pseudograd: the slice of a view"
_Geometry = tuple[torch.Size, tuple[int, ...], int]


class _Slice(NamedTuple):
    """Which part of the base an op of this form has changed."""

    form: Form
    base: _Geometry
    view: _Geometry


def note_slice(form: Form, changed: Tensor) -> None:
    """After an op in place: its node remembers which part of the base it changed."""
    base = None if is_wrapped(changed) or not is_view(changed) else base_of(changed)
    node: Any = None if base is None else base.grad_fn
    if base is not None and node is not None and node.name() == SLICE_NODE:
        node.metadata[_KEY] = _Slice(form, _geometry(base), _geometry(changed))


def form_of_slice(node: Any) -> Form | None:
    """Of the op that changed the slice; None where nobody noted it."""
    noted = node.metadata.get(_KEY)
    return None if noted is None else noted.form


def read_slice(node: Any, leaving: Any, arriving: Any) -> tuple[Any, Any, Form | None]:
    """What leaves and arrives within the slice, and the form of the op that changed it; all of it where nobody noted the slice."""
    noted = None if node is None else node.metadata.get(_KEY)
    if noted is None or leaving[0] is None or arriving[0] is None:
        return leaving, arriving, None
    return (_part(noted, leaving[0]),), (_part(noted, arriving[0]),), noted.form


def _part(noted: _Slice, grad: Tensor) -> Tensor:
    size, stride, start = noted.base
    if (grad.shape, grad.stride()) != (size, stride):
        grad = torch.empty_strided(size, stride, dtype=grad.dtype, device=grad.device).copy_(grad)
    size, stride, offset = noted.view
    return grad.as_strided(size, stride, grad.storage_offset() + offset - start)


def _geometry(x: Tensor) -> _Geometry:
    return x.shape, x.stride(), int(x.storage_offset())


# --- thresholds that learn through a window ---------------------------------------------------------------------------


class Windows:
    """The thresholds of one jumprelu, over all recorded backward passes; on their device until they are read.

    How many of them never had a value of x in their window?
    """

    def __init__(self) -> None:
        self.calls = 0
        self.bandwidth = 0.0
        self._moved: Any = None
        self._nearest: Any = None

    def add(self, x: Tensor, threshold: Tensor, bandwidth: float, to_threshold: Tensor) -> None:
        moved, nearest = to_threshold != 0, _nearest(x, threshold)
        self.calls += 1
        self.bandwidth = bandwidth
        self._moved = moved if self._moved is None else self._moved | moved
        self._nearest = nearest if self._nearest is None else torch.minimum(self._nearest, nearest)

    @property
    def thresholds(self) -> int:
        return int(self._moved.numel())

    @property
    def starving(self) -> int:
        """How many got a gradient of 0 every time, and no x nearer than half the bandwidth."""
        return int(torch.count_nonzero(self._starve))

    @property
    def is_narrow(self) -> bool:
        return self.thresholds > 0 and self.starving / self.thresholds >= NARROW

    @property
    def _starve(self) -> Any:
        return ~self._moved & (self._nearest > self.bandwidth / 2)

    @property
    def distance(self) -> float:
        """From those that starve to the x that came nearest: in the middle."""
        return float(self._nearest[self._starve].double().median())

    @property
    def wider(self) -> float:
        """The bandwidth whose rectangle would have reached nine of ten."""
        return 2 * float(torch.quantile(self._nearest.double().reshape(-1)[: 2**24], _ENOUGH))


def _nearest(x: Tensor, threshold: Tensor) -> Tensor:
    """For each threshold the least distance of an x."""
    gap = torch.nan_to_num((x - threshold).abs(), torch.inf, torch.inf)
    behind = gap.dim() - threshold.dim()
    dims = [d for d in range(gap.dim()) if d < behind or threshold.shape[d - behind] == 1]
    return (gap.amin(dims, keepdim=True) if dims else gap).reshape(threshold.shape)


def _window_of(node: object, leaving: Leaving) -> tuple[Tensor, Tensor, float, Tensor] | None:
    """What `Windows.add` takes; None for another node."""
    read = saved_inputs_of(node, JUMPRELU)
    if read is None or read[0].rule.name not in SLOPES or len(leaving) != 2 or leaving[1] is None:
        return None
    x, threshold, bandwidth, _ = read[1]
    if not x.numel():
        return None
    return physical(x).detach(), physical(threshold).detach(), bandwidth, physical(leaving[1]).detach()


# --- ops of this library in the program that is watched ---------------------------------------------------------------

_PINNED = ", pinned"


def name_of_calls(calls: Collection[Call]) -> str:
    """By op and rule where all calls of a line have the same; else by the op."""
    labels = {_label(call) for call in calls}
    return labels.pop() if len(labels) == 1 else " or ".join(sorted({_op(call) for call in calls}))


def remedy_of_calls(calls: Collection[Call]) -> str:
    """Where nothing passes: who chose the rule there, and how to choose another. "" where the rule has no better one."""
    remedies = {_remedy(call) for call in calls}
    return remedies.pop() if len(remedies) == 1 else ""


def _op(call: Call) -> str:
    return call.primitive.name.partition(_PINNED)[0]


def _label(call: Call) -> str:
    if _PINNED in call.primitive.name:
        return f"{_op(call)} as pinned to {call.rule.name.removeprefix('zero/')}"
    edge = "" if call.edge is None or call.rule.ignores_edge else f"/{call.edge}"
    return f"{call.label}{edge}"


def _remedy(call: Call) -> str:
    if _PINNED in call.primitive.name:
        return "pseudograd.pin_edge decides what passes here: leave its context, or pin another convention."
    if call.primitive.name.startswith("torch."):
        return f"pseudograd.override chose the rule {call.rule.name!r} here: choose another for this line."
    if call.rule.name == TRUE_RULE and DEFAULT_RULE in call.primitive.rules:
        return f"rule={DEFAULT_RULE!r}  # in this call, in place of {TRUE_RULE!r}: passes what leads back inside"
    return ""
