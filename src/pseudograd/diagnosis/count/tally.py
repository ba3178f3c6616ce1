"""The effect of one line of a program on the gradient that arrives there, summed over the calls of the line."""

from __future__ import annotations

import itertools
import math
import re
import threading
from cmath import isfinite
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ...engine import call_of, saved_inputs_of
from ...kernels.native import counts as kernel
from ...listen.frames import NOWHERE, Location
from ...listen.nodes import GraphNode, node_of
from ...ops.jump import JUMPRELU
from ...ops.steps import SLOPES
from ...rewrite.entered_contexts import NO_FAMILY, families_left_to_torch
from ...rule import Call
from ...torch_table import forms as torch_forms
from ...torch_table.private import base_of, current_node, function_of, is_batched, is_view, is_wrapped, physical, saved
from ...torch_table.records import Form
from .grads import (
    COUNTS,
    ELSEWHERE,
    SIDES,
    SIGNS,
    Bounds,
    Gradients,
    MatchedGradients,
    Sums,
    add_inside,
    are_readable,
    bounds_of,
    count,
)
from .leaf import is_recorded
from .leaves import Leaves
from .norms import Facts, is_power_of_two

if TYPE_CHECKING:
    from .on_device import DeviceSums
    from .windows import Windows

_REGION_COUNTS = ("recoverable", "at_bound", *(f"{side}{sign}" for side in SIDES for sign in SIGNS))
# Ops that neither move nor mix elements, so that positions tell what is cut. For speed alone.
_NAMES_OF_ELEMENTWISE = (
    "Mul Div Sub Neg Abs Pow Exp Log Sqrt Rsqrt Tanh Sigmoid Softplus Elu Threshold NativeDropout Where MaskedFill"
)
_ELEMENTWISE = frozenset(f"{name}Backward" for name in _NAMES_OF_ELEMENTWISE.split())
# Ops whose slope may be infinite at a finite x, or that multiply with such a slope.
_STEEP = (
    "Sqrt Rsqrt Pow Div Reciprocal Mul Log Log2 Log10 Log1P Logit Xlogy Exp Exp2 Expm1 Sinh Cosh Acos Asin Acosh Atanh Erfinv Atan2 Hypot "
    "Softmax LogSoftmax Logsumexp ScaledDotProductFlashAttentionForCpu Prod Cumprod Addcdiv Addcmul LinalgVectorNorm Norm Cdist "
    "SpecialEntr SpecialNdtri SpecialXlog1Py Lgamma Digamma Polygamma Dist Renorm "
    "LinalgEigh LinalgEig LinalgSvd LinalgInvEx LinalgQr LinalgCholeskyEx LinalgDet LinalgSlogdet LinalgSolveEx"
)
_MAY_BREAK = frozenset(f"{name}Backward" for name in _STEEP.split())
_orders = itertools.count(1)
_BACKWARDS = (Tensor.backward, torch.autograd.backward, torch.autograd.grad)
_SECOND_DERIVATIVE = re.compile(r"\w+BackwardBackward\d")
_FLOOR = 1e-6  # a lower bound from 0 to this is a guard, which keeps a root or a logarithm from 0
_GUARD = 1e-4  # a bound that is at most this far from a whole number keeps x away from it
_SMALL = 2**14  # elements: a smaller gradient may be kept until the end of a backward
# Around all sums. It is reentrant, because Python may collect garbage meanwhile, which may run any code.
_lock = threading.RLock()
_MOST_CALLS = 8  # different calls of our ops at one line that are remembered
_BOUNDS_OF_HALF = (6e4, 65504)  # a bound in this range only keeps x from overflowing float16
_HUGE = 1e18  # a bound that is at least so large only keeps x from infinity

OWN_NODE = "PseudogradBackward"


class Tally:
    """The sums and facts of one op at one location."""

    def __init__(self, op: str, location: Location, program_leaves: Leaves) -> None:
        self.op, self.location = op, location
        self._program_leaves, self._is_full = program_leaves, program_leaves.are_measured
        self.form: Form | None = None
        self.calls = 0
        self.order = 0  # of its first call among the first calls of all tallies
        self.leaves = 0  # the set of leaves upstream
        self.has_tensor_bound = False
        self.has_regions = False  # are the regions of x counted?
        self.left_to_torch: frozenset[str] = NO_FAMILY  # the families that a pin left as the installed torch has them
        self.caller: object = None  # the function of torch that made the last node; None if no mode saw the call
        self.may_move = torch_forms.form_of_node(op) is None and op.rstrip("0123456789") not in _ELEMENTWISE
        self.library_calls: dict[object, Call] = {}  # of an op of ours: the different calls of its nodes
        self.function: type | None = None  # the class of a custom Function
        self.may_break = op.rstrip("0123456789") in _MAY_BREAK  # may it make nan or inf from finite gradients?
        # Did a backward make its nodes, for second derivatives?
        self.is_second_order = _SECOND_DERIVATIVE.match(op) is not None or (
            location is NOWHERE and op.startswith("Sgn")
        )
        self.withheld = 0  # the set of leaves for which the backward of a custom Function returned None
        self.is_number: bool | None = None  # is the result of its first node one number? None before the first node
        self.facts = Facts()
        self._bounds: tuple[object, ...] | None = None  # of the last call; Tensor for each tensor
        # Only `Zeros` sets these three, when a gradient other than 0 has arrived at the op.
        self.zeroed = 0  # the set of leaves to which the op then handed only zeros
        self.passed = 0  # the set of leaves to which the op then handed a gradient other than 0
        self.reader: Tally | None = None  # the op from which the last gradient came
        self.hook: Callable[..., None] | None = None  # torch calls it when a node of this op has run
        self.windows: dict[int, Windows] = {}  # of a jumprelu, by the leaves that its thresholds come from
        # Each call is added to the sums of the kernel in C, to those of its device, or to those of `grads.count`.
        self._kernel: kernel.Sums | None = None
        self._device_sums: dict[torch.device, DeviceSums] = {}
        self._sums: Sums = {}
        # A *usual* call is one of which only the gradients are needed, and nothing of its node. Usual calls are added here.
        self.usual: kernel.Sums | DeviceSums | None = None
        self.may_wait = False  # may its calls be counted later, together with others?

    def note_node(self, node: GraphNode, caller: object) -> None:
        """Note a node of this op. caller: the function of torch that made the node."""
        if self.is_number is None:
            results = getattr(node, "_input_metadata", ())
            self.is_number = not any(part.is_nested_tensor or tuple(part.shape) for part in results)
        if self.function is None and not self.op[-1].isdigit():  # nodes of torch's own are numbered
            self.function = function_of(type(node))
            self.may_break |= self.function is not None
        self.left_to_torch |= families_left_to_torch()
        if caller is not self.caller:
            self.caller = caller
            self.is_second_order |= caller in _BACKWARDS

    def may_have_broken(self, leaving: Gradients) -> bool:
        """May a gradient that leaves hold nan or inf? Yes if its sum is not finite, which may also be an overflow. Only on the CPU."""
        for grad in leaving:
            if grad is None or type(grad) is not Tensor or not (self.may_break or grad.dtype is torch.float16):
                continue
            if not grad.is_cpu or grad.layout is not torch.strided or is_wrapped(grad) or is_batched(grad):
                continue
            if not isfinite(grad.sum(dtype=torch.float32 if grad.dtype is torch.float16 else None).item()):
                return True
        return False

    @property
    def within(self) -> str | None:
        """The function of torch that made the last node, if no override reaches the op inside it."""
        form, caller = torch_forms.form_of_node(self.op), self.caller
        if form is None or torch_forms.is_reached_by(caller, form):
            return None
        return "code that no mode sees" if caller is None else getattr(caller, "__name__", None) or str(caller)

    def count(self, leaving: Gradients, arriving: Gradients, ran: GraphNode | None = None) -> bool | None:
        """Count a call of a node. ran: the node; None for the node that runs now.

        Returns True if the call was counted, False if its gradients cannot be compared, None if they cannot be read.
        """
        if not are_readable(arriving):
            return None
        leaves = self._program_leaves
        if self.usual is not None:
            with _lock:
                cut = self.usual.add_plain(arriving, leaving)
            if cut is not None:
                self.note_usual(arriving[0])
                if self._is_full:
                    self.leaves |= leaves.upstream(ran or current_node())
                return True
        node, is_first, form_of_part = ran or current_node(), not self.calls, None
        if node is not None and self.function is not None:
            for (other, _), grad in zip(node.next_functions, leaving, strict=False):
                if grad is None and other is not None:
                    self.withheld |= leaves.upstream(other)
        if node is not None and self.op == OWN_NODE:
            self._note_own_call(node, leaving)
        if self.op == SLICE_NODE:
            leaving, arriving, form_of_part = read_slice(node, leaving, arriving)
        if is_first:
            self.form = form_of_part or torch_forms.form_of_node(self.op)
        saved = torch_forms.saved_values(self.form, node) if self._is_full and self.form and node is not None else None
        grads = MatchedGradients.match(leaving, arriving)
        if grads is None:
            return False
        bounds = bounds_of(grads, saved)
        self._add_call(grads, bounds)
        self._note_call()
        if node is not None:
            self.leaves |= leaves.upstream(node)  # one line may serve several parameters
            if is_first:
                self._note_first(node)
        if saved is None and is_first and node is not None:
            self._note_bounds(_numbers_of_bounds(node))
        if saved is not None and bounds[0] is not None:
            self.has_regions = True
            self._note_bounds(saved.inputs[1:])
            if node is not None and self.op != SLICE_NODE and is_power_of_two(self.calls):
                self._look_behind(node, grads, bounds)
        return True

    def _add_call(self, grads: MatchedGradients, bounds: Bounds) -> None:
        """Add a call to the sums of its device, of the kernel in C, or of `grads.count`: the first of these that can count it."""
        grad, (x, low, high), cut = grads.arrived, bounds, None
        with _lock:
            if x is None and not grad.is_cpu and not is_recorded(grad):
                device_sums = self._device_sums.get(grad.device)
                if device_sums is None:
                    ledger = self._program_leaves.ledger_of(grad.device)
                    device_sums = self._device_sums[grad.device] = ledger.make_sums(self.may_move)
                if device_sums.add(grads):
                    return
            if not (self.may_move or isinstance(low, Tensor) or isinstance(high, Tensor)):
                self._kernel = self._kernel or kernel.Sums(self._is_full)
                cut = self._kernel.add(grad, grads.left, x, low, high)
        self.add(count(grads, self._is_full, self.may_move, bounds) if cut is None else grads.count_elsewhere(cut))

    def _note_bounds(self, bounds: Sequence[object]) -> None:
        bounds = tuple(Tensor if isinstance(bound, Tensor) else bound for bound in bounds)
        if bounds == self._bounds:
            return
        self._bounds, self.has_tensor_bound = bounds, Tensor in bounds
        low = bounds[0] if bounds else None
        is_floor = isinstance(low, (int, float)) and 0 <= low <= _FLOOR
        self.note(
            has_only_lower_bound=is_floor and all(bound is None for bound in bounds[1:]),
            is_ceiling=(is_floor or low is None) and any(bound is not None for bound in bounds[1:]),
            has_no_upper_bound=isinstance(low, (int, float)) and all(bound is None for bound in bounds[1:]),
            has_guard_bound=any(map(_is_guard, bounds)),
            has_guards_alone=all(map(_is_guard, bounds)),
            stops_overflow=any(map(_is_huge, bounds)) and all(bound is None or _is_huge(bound) for bound in bounds),
        )

    def note(self, **facts: Any) -> None:
        """Note some of the `Facts`."""
        self.facts = replace(self.facts, **facts)

    def _note_first(self, node: GraphNode) -> None:
        """Note facts about the first node, which hold for all nodes of this op."""
        has_region = self._is_full and self.form is not None and len(self.form.saved) > 0
        if self.function is None and self.op not in (SLICE_NODE, OWN_NODE) and not has_region:
            self.usual = next(iter(self._device_sums.values()), self._kernel)
        is_layer_norm = self.op.startswith(("NativeLayerNorm", "NativeGroupNorm"))
        self.note(
            normalises_one_number=is_layer_norm and _normalised_size(node) == 1,
            has_several_inputs=sum(other is not None for other, _ in node.next_functions) > 1,
        )
        if self.form is not None and self._is_full and self.form.switches[0] == "clamp":
            from .graph_shapes import is_window, steep_op_behind  # not every program has a clamp

            self.note(steep_op=steep_op_behind(node), is_window=is_window(node))

    def _look_behind(self, node: GraphNode, grads: MatchedGradients, bounds: Bounds) -> None:
        """Note whether the next node would cut a gradient that passed exactly at a bound. If it once would not, nothing more is noted."""
        if self.facts.next_cuts_at_bound is False or self.has_tensor_bound or len(set(self.eras().values())) < 2:
            return
        x, *limits = bounds
        if x is None or is_recorded(x):
            return
        grad = sum(torch.where(x == limit, grads.arrived, 0) for limit in limits if limit is not None)
        if isinstance(grad, Tensor) and bool(torch.count_nonzero(grad)):
            from .further_backward import ends_behind  # few programs stand at a bound

            self.note(next_cuts_at_bound=ends_behind(node, grad))

    def note_usual(self, grad: Tensor | None, calls: int = 1) -> None:
        """Usual calls were counted. grad: what arrived in the last of them."""
        self.calls += calls
        if grad is None or grad.numel() > _SMALL or grad.dtype is torch.float16:  # float16 overflows soon
            self.may_wait = False
        elif not self.may_wait:
            self.may_wait = grad.is_cpu and kernel.is_active

    def count_hook(self, leaving: Tensor, arriving: Tensor, upstream: int) -> None:
        """Count a call of a hook of the program."""
        grads = MatchedGradients.match((leaving,), (arriving,)) if are_readable((arriving,)) else None
        if grads is not None:
            self._note_call()
            self.leaves |= upstream
            self.add(count(grads, self._is_full))

    def _note_call(self) -> None:
        if not self.calls:
            self.order = next(_orders)
        self.calls += 1

    def add(self, sums: Sums) -> None:
        with _lock:
            for name, value in sums.items():
                self._sums[name] = self._sums[name] + value if name in self._sums else value

    def _note_own_call(self, node: GraphNode, leaving: Gradients) -> None:
        """Note the rule of an op of this library, and the window of a jumprelu whose threshold gets a gradient."""
        call = call_of(node)
        if call is not None and len(self.library_calls) < _MOST_CALLS:
            self.library_calls.setdefault(call.spec, call)
        read = saved_inputs_of(node, JUMPRELU) if self._is_full else None
        if read is None or len(leaving) != 2 or leaving[1] is None:
            return
        call, (x, threshold, bandwidth, _) = read
        if call.rule.name in SLOPES and x.numel():
            from .windows import Windows  # few programs have such a jumprelu

            # one line may serve several layers
            source = self._program_leaves.upstream(node.next_functions[1][0])
            x, threshold, grad = (physical(value).detach() for value in (x, threshold, leaving[1]))
            window = self.windows.setdefault(source, Windows(threshold))
            window.add(x, threshold, bandwidth, grad)

    def eras(self) -> dict[str, float]:
        """The share that each era of torch passes exactly at the bound; empty for an op without eras, or where it is pinned."""
        if self.form is None or torch_forms.edge_family(self.form) in self.left_to_torch:
            return {}
        return torch_forms.shares_at_the_edge(self.form, self.has_tensor_bound)

    def totals(self) -> dict[str, float]:
        """The sums of all counts. Waits for the device."""
        names = (*COUNTS, ELSEWHERE, *(_REGION_COUNTS if self.has_regions else ()))
        parts: list[Sums] = [self._sums]
        for counts in () if self._kernel is None else self._kernel.read():
            parts.append(add_inside(dict(counts)))
        parts += [dict(device_sums.read()) for device_sums in self._device_sums.values()]
        return {name: float(sum(part.get(name, 0) for part in parts)) for name in names}


def _numbers_of_bounds(node: GraphNode) -> tuple[object, ...]:
    """The bounds of a clamp whose x nobody reads: a checkpoint hides it, or it is not counted in detail. Empty for other ops."""
    try:
        bounds = saved(node, "min", None), saved(node, "max", None)
    except RuntimeError:  # a tensor that is hidden, too
        return ()
    return () if bounds == (None, None) else bounds


def _is_guard(bound: object) -> bool:
    return isinstance(bound, (int, float)) and math.isfinite(bound) and 0 < abs(bound - round(bound)) <= _GUARD


def _is_huge(bound: object) -> bool:
    """Does the bound only keep x away from infinity?"""
    least, most = _BOUNDS_OF_HALF
    return isinstance(bound, (int, float)) and (least <= abs(bound) <= most or abs(bound) >= _HUGE)


def _normalised_size(node: GraphNode) -> int:
    """The number of elements that a normalisation takes together."""
    shape = saved(node, "normalized_shape", None)
    if shape is None:
        return int(saved(node, "C", 0) * saved(node, "HxW", 0) // saved(node, "group", 1))
    return math.prod(shape)


WaitingCall = tuple[Tally, Gradients, Gradients, GraphNode | None]  # a call: what left, what arrived, and its node


def count_together(calls: Sequence[WaitingCall], leaves: Leaves) -> None:
    """Count usual calls by one call of the kernel. The kernel serves calls with one gradient that arrives and one or two that leave."""
    grads: list[Any] = []
    sums: list[Any] = []
    for tally, leaving, arriving, _ in calls:
        left = leaving if len(leaving) == 1 else [grad for grad in leaving if grad is not None]
        is_served = len(arriving) == 1 and 0 < len(left) < 3
        grads += (arriving[0], left[0], left[-1]) if is_served else (None, None, None)
        sums.append(tally.usual.plain if isinstance(tally.usual, kernel.Sums) else None)
    with _lock:
        missed = kernel.add_together(grads, sums, leaves.are_measured)
    for index in missed:
        tally, leaving, arriving, node = calls[index]
        tally.count(leaving, arriving, node)
        tally.may_wait = False
    counted = [call for index, call in enumerate(calls) if index not in missed] if missed else calls
    last = {tally: arriving[0] for tally, _, arriving, _ in counted}
    for tally, tally_calls in Counter([call[0] for call in counted]).items():
        tally.note_usual(last[tally], tally_calls)
    key = leaves.key
    for tally, _, _, node in counted if leaves.are_measured else ():
        known = None if node is None else node.metadata.get(key)
        tally.leaves |= leaves.upstream(node) if known is None else known


# --- an op in place on a view: autograd makes one node for it, of the whole base --------------------------------------

SLICE_NODE = "torch::autograd::CopySlices"
_SLICE_KEY = "pseudograd: the slice of a view"
_Geometry = tuple[torch.Size, tuple[int, ...], int]


class _Slice(NamedTuple):
    """The part of a base that an op of this form has changed through a view."""

    form: Form
    base: _Geometry
    view: _Geometry

    def select(self, grad: Tensor) -> Tensor:
        """The part of a gradient of the base."""
        size, stride, start = self.base
        if (grad.shape, grad.stride()) != (size, stride):
            grad = torch.empty_strided(size, stride, dtype=grad.dtype, device=grad.device).copy_(grad)
        size, stride, offset = self.view
        return grad.as_strided(size, stride, grad.storage_offset() + offset - start)


def note_slice(form: Form, changed: Tensor) -> None:
    """After an op in place: note at its node which part of the base it changed."""
    base = None if is_wrapped(changed) or not is_view(changed) else base_of(changed)
    node = None if base is None else node_of(base)
    if base is not None and node is not None and node.name() == SLICE_NODE:
        geometries = ((x.shape, x.stride(), int(x.storage_offset())) for x in (base, changed))
        node.metadata[_SLICE_KEY] = _Slice(form, *geometries)


def form_of_slice(node: GraphNode) -> Form | None:
    """The op that changed the slice; None if nobody noted it."""
    part: _Slice | None = node.metadata.get(_SLICE_KEY)
    return None if part is None else part.form


def read_slice(
    node: GraphNode | None, leaving: Gradients, arriving: Gradients
) -> tuple[Gradients, Gradients, Form | None]:
    """The gradients within the slice, and the op that changed it; the whole gradients and None if nobody noted the slice."""
    part: _Slice | None = None if node is None else node.metadata.get(_SLICE_KEY)
    if part is None or leaving[0] is None or arriving[0] is None:
        return leaving, arriving, None
    return (part.select(leaving[0]),), (part.select(arriving[0]),), part.form
