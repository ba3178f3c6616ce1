"""What a diagnosis counts of a program: every node of autograd that it makes, every call of torch, every backward.

One file, because calls, nodes and backwards share what a thread is in the middle of.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...formula import own
from ...listen import frames, functions, nodes
from ...listen.frames import NOWHERE, Place
from ...listen.harmless import Errors, harmless
from ...listen.listener import Listener, Subscriber, push_in_backward, take_off
from ...listen.quietly import quiet, quietly, unheard
from ...rewrite import entered_contexts
from ...torch_table.forms import SPELLINGS
from ...torch_table.private import (
    backward_pass,
    current_node,
    function_of,
    node_creation_hook,
    node_number,
    number_of,
    transforms_are_active,
    without_torch_function,
)
from ...torch_table.records import Spelling
from . import hooks
from .arrivals import Arrivals, nobody_else_runs
from .grads import are_readable, count
from .influence import Influence
from .leaf import Leaf
from .leaves import Leaves
from .optimisers import Optimisers
from .tally import NOBODY, OWN_NODE, Tally
from .values import Clamps, Values
from .zeros import Zeros

if TYPE_CHECKING:
    from .whatif import Asking

# They hand on what arrives, or sums of it: nothing to compare element by element. For speed alone.
_HAND_ON = (
    "View UnsafeView Reshape T Transpose Permute Expand Add Addmm Mm Bmm Convolution Alias Unsqueeze Squeeze Sum Mean Clone Cat Stack "
    "Split Select Slice Unbind Detach Embedding"
)
_DIGITS = "0123456789"
_PASSING = frozenset(f"{name}Backward{number}" for name in _HAND_ON.split() for number in range(4))
_LINEAR = torch.nn.functional.linear
_REGISTER_HOOK = Tensor.register_hook
_numbers = itertools.count()


class _Thread(threading.local):
    """What one thread is in the middle of."""

    backwards = 0  # inside each other
    ranges: nodes.Ranges | None = None
    calling: Any = NOBODY
    place: Place | None = None  # of that call, where it was looked up
    values: Values | None = None  # of that call, where its result must be followed
    hook: hooks.Pair | None = None
    at_kink: Any = None  # of that call, what its node will not keep


class Recorder(Subscriber):
    """All that was counted, by place. It keeps no node, no tensor and no frame."""

    def __init__(self, is_full: bool) -> None:
        self.is_full = is_full
        self.is_on = False
        self.noted = Errors()
        self.backwards = 0
        self.tallies: dict[tuple[str, Place], Tally] = {}
        key = f"pseudograd diagnosis {next(_numbers)}"
        self._attached = key
        self.places = frames.Places()
        self.leaves = Leaves(f"{key}: leaves", self.places.roots)
        self.leaves.are_measured = is_full
        self.arrivals = Arrivals()
        self.influence = Influence(self.leaves, self.places)
        self.clamps = Clamps(self.leaves, self.influence)
        self.optimisers = Optimisers(self.leaves, self._hears, self.noted, self.influence.before_step)
        self.before_step = self.optimisers.before_step
        self.after_step = self.optimisers.after_step
        self.on_clearing = self.optimisers.on_clearing
        self.hooks = hooks.Hooks(self.noted, self._hears)
        self.zeros = Zeros(self.leaves, self._attached, _PASSING)
        self.accumulates = False  # did a backward add to every leaf, and not to inputs that it was asked about?
        self.reached = 0  # the leaves that some loss depends on by a differentiable path
        self._lock = threading.RLock()  # a collection of garbage may run any code while it is held
        self._local = _Thread()
        self._order = 0
        self._is_incomplete = False  # was something of the program not heard since the last backward?
        self._ran_at: set[Place] = set()  # places at which a gradient has arrived
        self.asking: Asking | None = None
        self.after_backward: Callable[[int], None] | None = None

    def _hears(self) -> bool:
        return self.is_on

    @harmless("a step of an optimiser", otherwise=False)
    def _wakes(self) -> bool:
        """Something of the program is heard. Did a step of an optimiser raise, so that what came since was not?"""
        rest = self.optimisers.rest
        if rest is None or not rest.is_on:
            return False
        rest.end()
        return True

    # --- nodes --------------------------------------------------------------------------------------------------------

    @harmless("a node of autograd")
    def on_node(self, node: Any) -> None:
        """A node was made, on a torch that says so."""
        if not self.is_on or own.depth or unheard.depth:
            return
        self._wakes()
        name, local = nodes.name_of(node), self._local
        if name == nodes.LEAF:
            if not self.leaves.have_run((node.variable,)):
                self.places.meet_module(3)  # a parameter is used for the first time: by which module?
        elif self.zeros.suspects or name not in _PASSING:
            self._attach(node, None if local.calling is NOBODY else local.place)

    def _attach(self, node: Any, place: Place | None = None) -> None:
        """place: None where the program is now."""
        name = nodes.name_of(node)
        is_passing = name in _PASSING
        if name == nodes.LEAF:
            return
        metadata = node.metadata
        if self._attached in metadata or (is_passing and not self.zeros.concern(node)):
            return
        metadata[self._attached] = tally = self._tally(name, self.places.here(3) if place is None else place)
        if tally.function is None and name[-1] not in _DIGITS:  # nodes of torch's own are numbered
            tally.function = function_of(type(node))
        tally.pinned |= entered_contexts.left_to_torch()
        if is_passing:
            node.register_hook(partial(self._hand_on, tally))
            return
        tally.calling = self._local.calling
        if tally.hook is None:
            tally.hook = partial(self._ran, tally)
        node.register_hook(tally.hook)

    def _tally(self, name: str, place: Place) -> Tally:
        tally = self.tallies.get((name, place))
        return tally if tally is not None else self.tallies.setdefault((name, place), Tally(name, place))

    def tally_of(self, node: Any) -> Tally | None:
        """What is counted at the call that made it."""
        tally = node.metadata.get(self._attached)
        return tally if isinstance(tally, Tally) else None

    @quiet("the gradients at a node")
    def _ran(self, tally: Tally, leaving: Any, arriving: Any) -> None:
        """After a node ran in a backward: gradients arrived, others leave."""
        if are_readable(arriving):
            self._count(tally, leaving, arriving)

    def _count(self, tally: Tally, leaving: Any, arriving: Any) -> None:
        if self.is_full and tally.op == OWN_NODE:
            tally.look_at_windows(leaving, self.leaves)
        is_first = not tally.calls
        if not tally.count(leaving, arriving, self.is_full, self.leaves):
            if self.zeros.suspects:
                self.zeros.look(tally, current_node(), leaving, arriving)
        elif is_first:
            self._ran_at.add(tally.place)
            self._note_order(tally)

    def _note_order(self, tally: Tally) -> None:
        with self._lock:
            self._order += 1
            tally.order = self._order

    @quiet("the gradients at a node")
    def _hand_on(self, tally: Tally, leaving: Any, arriving: Any) -> None:
        """After a node ran that nothing is counted of."""
        if are_readable(arriving):
            self.zeros.look(tally, current_node(), leaving, arriving)

    @quiet("the gradient of a parameter")
    def _arrived(self, leaf: Leaf, is_itself: bool, grads: Any) -> None:
        """Before a gradient is added to a leaf, after every hook of the tensor."""
        self.arrivals.count_before(leaf)
        (leaf.arrived if is_itself else leaf.arrived_in_its_place)(grads[0])
        if self.asking is not None:
            self.asking.arrived(leaf, grads[0])

    def _close_hook(self, tensor: Tensor) -> None:
        pair, self._local.hook = self._local.hook, None
        if pair is not None:
            tally = self._tally(hooks.NAME, self.places.here(3))
            pair.close(tensor, partial(self._count_hook, tally, self.leaves.upstream_of(tensor)))

    @quiet("the gradients at a hook")
    def _count_hook(self, tally: Tally, upstream: int, arriving: Tensor, leaving: Tensor) -> None:
        sums = count((leaving,), (arriving,), self.is_full) if are_readable((arriving,)) else None
        if sums is not None:
            if not tally.calls:
                self._note_order(tally)
            tally.leaves |= upstream
            tally.calls += 1
            tally.add(sums)

    # --- calls of torch -----------------------------------------------------------------------------------------------

    def _ranges(self) -> nodes.Ranges:
        ranges = self._local.ranges
        if ranges is None:
            ranges = self._local.ranges = nodes.Ranges()
            ranges.start_afresh()
        return ranges

    def before_call(self, function: Any, args: Any, kwargs: Any) -> int:
        """Returns the number of the next node, on a torch that announces none."""
        local, spelling = self._local, SPELLINGS.get(function)
        local.place = local.values = None
        if spelling is not None and self.is_full:
            self._look(spelling, args, kwargs)
        if self.asking is not None:
            self._note_kink(self.asking, function, args, kwargs)
        if function is _REGISTER_HOOK and isinstance(args[0], Tensor):
            with without_torch_function():
                local.hook = hooks.Pair(self.hooks, args[0]) if args[0].requires_grad else None
        if node_creation_hook is not None:
            local.calling = function
            return 0
        ranges = local.ranges or self._ranges()
        if ranges.may_hide_some():
            with without_torch_function():
                hidden = ranges.unseen_behind((*args, *kwargs.values()) if kwargs else args)
            for node in hidden:
                self._attach(node, NOWHERE)
        local.calling = function
        return ranges.seen_up_to

    @harmless("the values at a clamp")
    def _look(self, spelling: Spelling, args: Any, kwargs: Any) -> None:
        place = self._local.place = self.places.here(3)
        values = self.clamps.look(spelling, place, args, kwargs)
        self._local.values = None if place in self._ran_at else values

    @harmless("what stands at a kink")
    def _note_kink(self, asking: Asking, function: object, args: Any, kwargs: Any) -> None:
        self._local.at_kink = None
        self._local.at_kink = asking.before_call(function, args, kwargs, self.backwards)

    def after_call(self, function: Any, args: Any, kwargs: Any, result: Any, before: Any) -> None:
        local = self._local
        with without_torch_function():
            if node_creation_hook is None and before is not None:
                self._find_nodes(function, args, kwargs, result, before)
            local.calling = NOBODY
            if self.asking is not None:
                at_kink, local.at_kink = local.at_kink, None
                self.asking.after_call(at_kink, function, args, result)
            spelling = SPELLINGS.get(function)
            if spelling is not None:
                is_followed = self.backwards or not getattr(result, "requires_grad", True)
                self.clamps.note_result(spelling, local.values if is_followed else None, args, result)
            if not self.influence.is_plain(args, kwargs, result):
                self.influence.after_call(function, args, kwargs, result)
            if function is _REGISTER_HOOK:
                self._close_hook(args[0])

    def _find_nodes(self, function: object, args: Any, kwargs: Any, result: Any, before: int) -> None:
        """The nodes that the call made: each gets a hook."""
        ranges = self._local.ranges or self._ranges()
        if not ranges.may_hide_some() or self._find_at_once(ranges, function, args, kwargs, result, before):
            return
        values = (*args, *kwargs.values()) if kwargs else args
        # in place, the node is behind the argument
        new = ranges.since(before, result) or (ranges.unseen_behind(values) if ranges.may_hide_some() else [])
        if not new:
            return
        place = self._local.place if self._local.calling is function else None
        if place is None and not self.leaves.have_run(values):
            place = self.places.here(3)
        for node in new:
            if self.zeros.suspects or nodes.name_of(node) not in _PASSING:
                self._attach(node, place)

    def _find_at_once(
        self, ranges: nodes.Ranges, function: object, args: Any, kwargs: Any, result: Any, before: int
    ) -> bool:
        """The same for the usual call: it made one node, or such as hand on alone, of which nothing is noted."""
        if type(result) is not Tensor or ranges.unseen or self.zeros.suspects:
            return False
        node, after = nodes.node_of(result), node_number()
        if node is None or number_of(node) != after - 1:
            return False
        is_alone, name, place = after - before == 1, nodes.name_of(node), self._local.place
        if name in _PASSING:
            is_alone = is_alone or (function is _LINEAR and len(args) > 1 and args[1].dim() == 2)
        if not is_alone:
            return False
        if place is None and not self.leaves.have_run((*args, *kwargs.values()) if kwargs else args):
            return False
        ranges.seen_up_to = after
        if name not in _PASSING:
            self._attach(node, place)
        return True

    @harmless("a custom Function")
    def on_function(self, result: object) -> None:
        """A custom Function ran."""
        if not self.is_on or unheard.depth:
            return
        self._wakes()
        if not functions.is_inside():
            with without_torch_function():
                self.influence.after_function(result)
        if node_creation_hook is not None:
            return
        # To read grad_fn is a call of torch, before which `before_call` would find the node and know no place for it.
        with own:
            own_nodes = nodes.nodes_of(result)
        if own_nodes:
            place = self.places.here(3)
            for node in own_nodes:
                self._attach(node, place)
        self._ranges().forget()

    @harmless("a swap of tensors")
    def on_swap(self, tensor: Tensor, other: Tensor) -> Callable[[object], None]:
        """Torch refuses to swap tensors that somebody holds a weak reference to. Returns what takes them again."""
        endings = self.leaves.let_go((tensor, other)), self.influence.let_go(tensor, other)
        return partial(self._take_again, endings)

    @harmless("a swap of tensors")
    def _take_again(self, endings: Iterable[Callable[[], None]], result: object) -> None:
        for end in endings:
            end()

    # --- backwards ----------------------------------------------------------------------------------------------------

    def on_backward(self, roots: Any, grads: Any, inputs: Any) -> Callable[[Any], None]:
        if not self.is_on or unheard.depth:
            return _nothing
        self._is_incomplete = self._wakes()
        local = self._local
        depth = local.backwards
        is_outermost = not depth and backward_pass() < 0  # one inside another may run in a thread of a device
        local.backwards = depth + 1
        try:
            before = node_number()
            listener = _InBackward(self)
            is_heard = push_in_backward(listener)
            self._begin(roots, grads, inputs, is_outermost, is_heard)
        except BaseException:  # Ctrl-C
            local.backwards = depth
            raise
        return partial(self._end, inputs, is_outermost, listener, before)

    @harmless("the start of a backward")
    def _begin(self, roots: Any, grads: Any, inputs: Any, is_outermost: bool, is_heard: bool) -> None:
        """is_heard: does the listener of this backward hear all that the program calls in it?"""
        with without_torch_function():
            if is_outermost:
                self.backwards += 1
                self.leaves.name_roots()
                self.influence.before_backward(roots)
                self._note_inputs(inputs)
                self.arrivals.expected = {}
            else:
                self.program_runs()
            can_expect = is_heard and is_outermost and not inputs and self.asking is None and nobody_else_runs()
            behind = self._attach_behind(nodes.starts(roots), can_expect)
            if is_outermost:
                self.leaves.name_new(self.backwards)
        if is_outermost and self.asking is not None:
            self._ask(self.asking, roots, grads, behind)

    def _attach_behind(self, starts: list[Any], can_expect: bool) -> list[Any]:
        """Returns all nodes that the backward can reach. can_expect: what arrives at a leaf may be read when the backward has ended."""
        behind = self.leaves.reachable_from(starts)
        for start in starts:
            self.reached |= behind.get(start, 0)
        name_of, suspects, expect = nodes.name_of, self.zeros.suspects, self.arrivals.expect
        attached, upstream_key = self._attached, self.leaves.key
        for node, upstream in behind.items():
            name = name_of(node)
            if name == nodes.LEAF:
                leaf = self.leaves.single(upstream)
                if leaf is not None and not (can_expect and expect(leaf, node)):
                    self._attach_leaf(node, leaf)
            elif suspects or name not in _PASSING:
                metadata = node.metadata
                metadata[upstream_key] = upstream
                if attached not in metadata and not self._is_incomplete:
                    self._attach(node, NOWHERE)  # nobody saw it being made: in another thread, or before the context
        return list(behind)

    def _note_inputs(self, inputs: Any) -> None:
        """What a backward is asked the gradient of; of every leaf, where nothing is named."""
        tensors = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs or ())
        self.accumulates |= not tensors
        for tensor in tensors:
            is_leaf = isinstance(tensor, Tensor) and tensor.is_leaf
            leaf = self.leaves.single(self.leaves.set_of(tensor)) if is_leaf else None
            if leaf is not None:
                leaf.asked = True

    @harmless("a what-if")
    def _ask(self, asking: Asking, roots: object, grads: object, behind: list[object]) -> None:
        if not transforms_are_active():
            with quietly():
                asking.begins(roots, grads, behind, self.backwards)

    def _attach_leaf(self, node: Any, leaf: Leaf) -> None:
        """To the node that adds to a gradient, not to the tensor: a hook of a tensor shows where it is pickled, and what comes
        later may change what it saw.
        """
        if self._attached not in node.metadata:
            node.metadata[self._attached] = True
            node.register_prehook(partial(self._arrived, leaf, leaf.tensor() is node.variable))

    @quiet("the gradient of a parameter")
    def program_runs(self) -> None:
        """In a backward, before a call of torch."""
        self.arrivals.hand_over(self._attach_leaf)

    def _end(self, inputs: Any, is_outermost: bool, listener: Listener, before: int, result: Any) -> None:
        """result: the gradients of the inputs, none where they are added to leaves; None where the backward raised."""
        self._local.backwards -= 1
        take_off(listener)
        if result and inputs:
            self._count_result(inputs, result, before)
        if is_outermost:
            if self.asking is not None:
                self._answer(self.asking, result is not None)
            self._end_step()

    @harmless("a what-if")
    def _answer(self, asking: Asking, is_whole: bool) -> None:
        asking.ended(is_whole)

    @harmless("the gradients of an autograd.grad")
    def _count_result(self, inputs: Any, result: Any, before: int) -> None:
        """No node of a leaf runs where autograd.grad asks for its gradient. The first node of this pass had the number `before`."""
        if self.asking is not None and any(isinstance(grad, Tensor) and grad.requires_grad for grad in result):
            self.asking.made_in_backward.append(range(before, node_number()))
        for tensor, grad in zip(inputs, result, strict=False):
            if isinstance(tensor, Tensor) and tensor.is_leaf and isinstance(grad, Tensor):
                leaf = self.leaves.single(self.leaves.set_of(tensor))
                if leaf is not None:
                    self._arrived(leaf, leaf.tensor() is tensor, (grad,))

    @harmless("the end of a backward")
    def _end_step(self) -> None:
        """What the user's own function raises to end a program is no Exception."""
        with quietly():
            self.arrivals.end()
            self.clamps.end_step(self._ran_at)
            self.leaves.end_backward(self.backwards)
            self.zeros.end_backward(self.backwards)
        if self.after_backward is not None:
            self.after_backward(self.backwards)


def _nothing(result: object) -> None:
    """For a backward that nobody counts."""


class _InBackward(Listener):
    """In a backward: whatever the program calls there may change gradients."""

    def __torch_function__(self, func: object, types: object, args: object = (), kwargs: object = None) -> Any:
        if self.subscriber.arrivals.expected:
            self.subscriber.program_runs()
        return super().__torch_function__(func, types, args, kwargs)
