"""The recorder of a diagnosis: it counts every node of autograd that a program makes, every call of torch and every backward.

One file, because calls, nodes and backwards share the state of a thread. Modules that few programs need are imported at their first use.
"""

from __future__ import annotations

import itertools
import sys
import threading
from cmath import isfinite
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge
from torch.utils.hooks import unserializable_hook

from ...formula import our_formulas
from ...kernels.native.counts import are_finite
from ...listen import frames, hooks, nodes
from ...listen.frames import NOWHERE, Location
from ...listen.harmless import Errors, harmless, note, quiet, quietly, unheard
from ...listen.listener import Listener, Subscriber, push_in_backward, take_off
from ...listen.nodes import GraphNode
from ...torch_table.forms import SPELLINGS
from ...torch_table.private import (
    backward_pass,
    current_node,
    dispatch_modes,
    node_number,
    number_of,
    saved_tensors_hooks,
    transforms_are_active,
    without_torch_function,
)
from ...torch_table.records import Arguments, Function, Keywords, Spelling
from .influence import SUMS, Influence, tensors_in
from .leaf import Arrivals, Leaf, has_numbers, nobody_else_runs
from .leaves import Leaves
from .norms import LOSSES, Losses, is_power_of_two
from .optimisers import Optimisers

if TYPE_CHECKING:
    from .grads import Gradients
    from .nonfinite import Nonfinite
    from .tally import Tally, WaitingCall
    from .values import Clamps, Values
    from .whatif import WhatIfMeter
    from .zeros import Zeros

# Nodes that hand on what arrives, or sums of it: nothing to compare element by element. For speed alone.
_NAMES_HANDING_ON = (
    "View UnsafeView Reshape T Transpose Permute Add Alias Unsqueeze Squeeze Mean Clone Cat Stack Split UnsafeSplit Select Slice Unbind "
    "Detach"
)
# Sums and products may exceed the range of their dtype. Their nodes are looked at in the first steps, as no later step may tell of it.
_NAMES_ADDING_UP = "Addmm Mm Bmm Convolution Embedding Expand Sum"
_PASSING_AT_FIRST, _ADDING_UP = (
    frozenset(f"{name}Backward{overload}" for name in names.split() for overload in range(4))
    for names in (_NAMES_HANDING_ON, _NAMES_ADDING_UP)
)
_PASSING = _PASSING_AT_FIRST | _ADDING_UP
_MOST_WAITING = 60  # calls of nodes that are counted together
# The last backward in which a parameter can become a suspect, and whose sums and products have a location.
LAST_NEW_SUSPECT = 4
_LINEAR = torch.nn.functional.linear
_REGISTER_HOOK = Tensor.register_hook
_numbers = itertools.count()
_MODULE_HOOK = "BackwardHookFunctionBackward"
_CAST = "ToCopyBackward0"
HOOK = "hook"  # the op of a tally that counts what a hook of the program changes

Roots = Sequence[Tensor | GradientEdge]


class _Thread:
    """The state of one thread."""

    def __init__(self) -> None:
        self.depth = 0  # of backward passes inside each other
        self.ranges = nodes.Ranges()
        self.function: Function | None = None  # the function of torch that runs now
        self.location: Location | None = None  # the location of that call, if it was looked up
        self.values: Values | None = None  # of that call, if it is a clamp whose result must be followed
        self.hook: deque[Tensor] | None = None  # the gradient that arrives at the hook that is being registered
        self.at_kink: Tensor | None = None  # the elements at a kink of that call, for a node that will not keep them


class _Local(threading.local):
    def __init__(self) -> None:
        self.thread = _Thread()  # an object of its own: its attributes are read in a tenth of the time


class Recorder(Subscriber):
    """All that was counted, by location. No node, no tensor and no frame lives longer because of it."""

    def __init__(self, is_full: bool) -> None:
        self.is_full = is_full
        self.is_on = False
        self.noted = Errors()
        self.backwards = 0
        self.tallies: dict[tuple[str, Location], Tally] = {}
        self.key = f"pseudograd diagnosis {next(_numbers)}"  # a node has its tally under this key of its metadata
        self._location_key = f"{self.key}: location"  # of a node that adds up, without a tally
        self._again_key = f"{self.key}: again"  # a backward began at this node
        self._uses_key = f"{self.key}: uses"  # of a cast
        self._module_hook_key = f"{self.key}: hook"  # the tally of the backward hooks of a module
        self._hooked_key = f"{self.key}: hooked"  # the node of a leaf has a hook of ours
        self.locations = frames.Locations()
        self.leaves = Leaves(f"{self.key}: leaves", self.locations.roots, are_measured=is_full)
        self.arrivals = Arrivals(lambda device, pairs: self.leaves.ledger_of(device).add_arrivals(pairs))
        self.influence = Influence(self.leaves, self.locations)
        self.optimisers = Optimisers(self.leaves, lambda: self.is_on, self.noted)
        self.before_step = self.optimisers.before_step
        self.after_step = self.optimisers.after_step
        self.on_clearing = self.optimisers.on_clearing
        self.nonfinite: Nonfinite | None = None  # None as long as all gradients and losses are finite
        self.handles: list[torch.utils.hooks.RemovableHandle] = []  # of our hooks of leaves
        self.suspects = 0  # the set of leaves that have got only zeros
        # In a backward that is looked at: the set of leaves of which some entries have got only zeros.
        self.partial_suspects = 0
        # Nodes of these ops get no hook, except while `attaches_all`.
        self.skipped_ops = _PASSING_AT_FIRST if is_full else _PASSING
        self.attaches_all = False
        self.loss: Tensor | None = None  # what the last backward began with, as a number
        self.is_loss_finite = True  # as far as nobody has to wait for it
        self.losses: dict[Location, Losses] = {}  # by the line of the backward
        self.line_losses: Losses | None = None  # of the backward that runs
        self._starts: list[GraphNode | None] = []  # the first nodes of the backward that runs
        self.raised = 0  # backward passes that ended with an error
        self.accumulates = False  # did a backward add to every leaf, and not to inputs that it named?
        self.reached = 0  # the set of leaves that some loss depends on by a differentiable path
        self.whatif: WhatIfMeter | None = None
        self.after_backward: Callable[[int, Tensor | None], None] | None = None
        self._local = _Local()
        # Calls of nodes that are not counted yet, in the order in which the nodes ran: one call of the kernel in C counts up to 60 of them.
        # Their gradients must stay as they are until then, so the calls are counted before the program calls torch again.
        self.waiting_calls: list[WaitingCall] = []
        self._may_wait = False  # may more calls wait? Never outside a backward
        self._passing_classes: set[type] = set()  # the classes of nodes of `_PASSING`, for speed
        self._is_incomplete = False  # did the program call torch unheard since the last backward?
        self._sums_in_half = False  # does a sum or product have a gradient in float16 on the CPU?
        self._ran_at: set[Location] = set()  # the locations at which a gradient has arrived

    # `clamps` and `zeros` are made, and their modules imported, when a diagnosis first needs them.

    @cached_property
    def clamps(self) -> Clamps:
        from .values import Clamps

        return Clamps(self.leaves, self.influence)

    @cached_property
    def zeros(self) -> Zeros:
        from .zeros import Zeros

        return Zeros(self.leaves, self.key, _PASSING)

    def _find_nonfinite(self) -> Nonfinite:
        """The record of broken gradients and losses, made when a gradient or a loss is broken for the first time."""
        if self.nonfinite is None:
            from .nonfinite import Nonfinite

            self.nonfinite = self.optimisers.nonfinite = Nonfinite(self, lambda: self.optimisers.is_known)
        return self.nonfinite

    def hears(self) -> bool:
        return self.is_on and not unheard.depth

    @harmless("a step of an optimiser", otherwise=False)
    def _end_rest(self) -> bool:
        """End the rest in which a step of an optimiser is not heard. Returns whether the step raised: then the rest lasted until now."""
        rest = self.optimisers.rest
        if rest is None or not rest.is_on:
            return False
        rest.end()
        return True

    # --- nodes --------------------------------------------------------------------------------------------------------

    @harmless("a node of autograd")
    def on_node(self, node: GraphNode) -> None:
        """A node was made, on a torch that announces nodes. If a call is heard now, `after_call` finds its nodes."""
        local = self._local.thread
        if local.function is None and self.hears() and not our_formulas.depth:
            self._end_rest()
            self._attach(node)
            local.ranges.mark_all_seen()

    def _attach(self, node: GraphNode, location: Location | None = None) -> None:
        """Attach a hook to a node, unless it needs none. location: None for the line that runs now."""
        name, metadata = nodes.name_of(node), node.metadata
        if name == nodes.LEAF or (name == _MODULE_HOOK and self._note_module_hook(node)):
            return
        if self.key in metadata or (name in self.skipped_ops and not self.attaches_all):
            return
        location = self.locations.here() if location is None else location
        if name in _ADDING_UP and not self.attaches_all:
            metadata[self._location_key] = location
            return
        tally = self._tally(name, location)
        tally.note_node(node, self._local.thread.function)
        if self.partial_suspects and location is not NOWHERE:
            self.zeros.drops.begin(node, saved_tensors_hooks(True) is None)
        self._attach_hook(node, tally, name in _PASSING)

    def _attach_hook(self, node: GraphNode, tally: Tally, is_passing: bool = False) -> None:
        node.metadata[self.key] = tally
        if not is_passing:
            if tally.hook is None:
                tally.hook = self._hook_of(tally)
            node.register_hook(tally.hook)

    def _hook_of(self, tally: Tally) -> Callable[[Gradients, Gradients], None]:
        """The hook of all nodes of a tally. It counts a gradient that is not finite at once, while the node has its saved values."""
        calls, count_now, may_break = self.waiting_calls, self.count_now, self.is_full and tally.may_break

        def count_call(leaving: Gradients, arriving: Gradients) -> None:
            try:
                if not (self._may_wait and tally.may_wait) or unheard.depth:
                    count_now(tally, leaving, arriving)
                elif may_break and not _are_finite(leaving):
                    self._flush()
                    count_now(tally, leaving, arriving)
                else:
                    calls.append((tally, leaving, arriving, current_node()))
                    if len(calls) >= _MOST_WAITING:
                        self._flush()
            except Exception as error:
                note("the gradients at a node", error, self)

        return count_call

    def _note_module_hook(self, node: GraphNode) -> bool:
        """Note the tally of the backward hooks of a module, if torch calls them at this node. Returns whether it does."""
        key = self._module_hook_key
        functions = [] if key in node.metadata else hooks.module_hooks_around(sys._getframe(1))
        if functions:
            location = self.locations.of_function(functions[0]) if len(functions) == 1 else self.locations.here()
            node.metadata[key] = self._tally(HOOK, location)
        return key in node.metadata

    def _attach_after_module_hooks(self, node: GraphNode) -> None:
        """When a backward starts, the backward hooks of modules are registered, so a hook of ours runs after them."""
        tally = node.metadata.pop(self._module_hook_key, None)
        if tally is not None:
            node.metadata[self.key] = tally
            node.register_hook(partial(self._count_module_hook, tally, self.leaves.upstream(node)))

    @quiet("the gradients at a hook")
    def _count_module_hook(self, tally: Tally, upstream: int, leaving: Gradients, arriving: Gradients) -> None:
        for left, arrived in zip(leaving, arriving, strict=False):
            if arrived is not None:
                left = torch.zeros_like(arrived) if left is None else left
                tally.count_hook(left, arrived, upstream)

    def _tally(self, name: str, location: Location) -> Tally:
        tally = self.tallies.get((name, location))
        if tally is None:
            from .tally import Tally

            tally = self.tallies.setdefault((name, location), Tally(name, location, self.leaves))
        return tally

    def tally_of(self, node: GraphNode) -> Tally | None:
        """The counts of the call that made a node."""
        tally: Tally | None = node.metadata.get(self.key)
        location = node.metadata.get(self._location_key) if tally is None else None
        return tally if location is None else self._tally(nodes.name_of(node), location)

    def _flush(self) -> None:
        """Count the calls that wait."""
        calls = self.waiting_calls[:]
        self.waiting_calls.clear()  # also where nothing is counted any more
        if calls or self.leaves.ledgers:
            self._count_together(calls)

    @quiet("the gradients at a node")
    def _count_together(self, calls: list[WaitingCall]) -> None:
        if calls:
            from .tally import count_together

            count_together(calls, self.leaves)
        for ledger in list(self.leaves.ledgers.values()):
            ledger.flush()

    def _let_wait(self, may_wait: bool) -> None:
        """Set whether more calls may wait."""
        self._may_wait = may_wait
        for ledger in self.leaves.ledgers.values():
            ledger.may_wait = may_wait

    @property
    def is_waiting(self) -> bool:
        """Is something of this backward not counted yet?"""
        ledgers = self.leaves.ledgers.values()
        return bool(self.arrivals.expected or self.waiting_calls) or any(ledger.waiting for ledger in ledgers)

    @quiet("the gradients at a node")
    def count_now(self, tally: Tally, leaving: Gradients, arriving: Gradients) -> None:
        """A node ran in a backward."""
        is_first = not tally.calls
        if self.is_full and tally.may_have_broken(leaving):
            node = current_node()
            if node is not None:
                self._find_nonfinite().look(tally, node, leaving, arriving)
        is_counted = tally.count(leaving, arriving)
        if is_first and (is_counted or tally.op.startswith(LOSSES)):
            if is_counted:
                self._ran_at.add(tally.location)
            node = current_node()
            if node is not None:
                self._note_surroundings(tally, node)

    @quiet("the gradients at a node")
    def _look_at_sum(self, leaving: Gradients, arriving: Gradients) -> None:
        """A sum or product ran, in the first backward of a line; in every backward once a sum or product ran in float16."""
        node, grads = current_node(), [grad for grad in leaving if grad is not None]
        if node is None or not all(grad.is_cpu for grad in grads):
            return
        self._sums_in_half |= any(grad.dtype is torch.float16 for grad in grads)
        if _are_finite(leaving):
            return
        from .births import is_broken

        if any(map(is_broken, grads)):  # without kernels nothing is known to be finite
            self._find_nonfinite().look(self.tally_of(node), node, leaving, arriving)

    def _note_surroundings(self, tally: Tally, node: GraphNode) -> None:
        """Note what the graph around the first node of an op shows."""
        from .graph_shapes import FLOORS, find_beside, find_guards, is_addend, is_term

        may_be_addend = tally.op.startswith(("Mul", "Clamp"))
        tally.note(is_loss_term=is_term(node, self._starts), is_addend=may_be_addend and is_addend(node, self._starts))
        if tally.facts.has_no_upper_bound:
            tally.note(is_floor_of_loss=is_term(node, self._starts, FLOORS))
        for fact, clamp in (*find_beside(node), *find_guards(node)):
            before = self.tally_of(clamp)
            if before is not None:
                before.note(**{fact: True})

    def _note_activations(self, node: GraphNode) -> None:
        if "clamps" in vars(self):  # the program called one: most programs need no look at their graph
            from .graph_shapes import find_activations

            for clamp in find_activations(node):
                tally = self.tally_of(clamp)
                if tally is not None:
                    tally.note(is_activation=True)

    @quiet("the gradients at a node")
    def _look_for_zeros(self, leaving: Gradients, arriving: Gradients) -> None:
        """A node ran, and so did the hooks of the program on it."""
        node = current_node()
        if self.suspects:
            self.zeros.look(node, leaving, arriving, self.suspects)
        if self.partial_suspects:
            self.zeros.drops.look(node, leaving, arriving, self.partial_suspects)

    @quiet("the gradient of a parameter")
    def _count_arrival(self, leaf: Leaf, is_itself: bool, grads: Gradients) -> None:
        """A gradient is about to be added to a leaf, after every hook of the tensor."""
        self.arrivals.count_before(leaf)
        (leaf.add if is_itself else leaf.add_to_whole)(grads[0])
        if self.nonfinite is not None:
            self.nonfinite.note_gradient(leaf, grads[0])
        if self.whatif is not None:
            self.whatif.arrived(leaf, grads[0])

    def _register_before(self, tensor: Tensor) -> deque[Tensor]:
        """Register a hook of ours before a hook of the program; torch calls hooks in the order in which they were registered."""
        arrived: deque[Tensor] = deque(maxlen=1)
        self._register(tensor, partial(arrived.append))  # a partial takes the attribute that `_register` sets
        return arrived

    def _register(self, tensor: Tensor, hook: Callable[[Tensor], None]) -> None:
        handle = tensor.register_hook(unserializable_hook(hook))  # torch warns of any other when it sends the tensor
        if tensor.is_leaf:  # hooks of other tensors go with their graph
            self.handles.append(handle)

    def _register_after(self, tensor: Tensor) -> None:
        arrived, self._local.thread.hook = self._local.thread.hook, None
        if arrived is not None:
            tally = self._tally(HOOK, self.locations.here())
            self._register(tensor, partial(self._count_hook, tally, self.leaves.upstream_of(tensor), arrived))

    @quiet("the gradients at a hook")
    def _count_hook(self, tally: Tally, upstream: int, arrived: deque[Tensor], leaving: Tensor) -> None:
        if arrived:
            tally.count_hook(leaving, arrived.pop(), upstream)

    # --- calls of torch -----------------------------------------------------------------------------------------------

    def before_call(self, function: Function, args: Arguments, kwargs: Keywords) -> int:
        """Note what `after_call` needs. Returns the number of the next node."""
        local, spelling = self._local.thread, SPELLINGS.get(function)
        local.location = local.values = None
        if spelling is not None and self.is_full:
            self._look(spelling, args, kwargs)
        if self.whatif is not None:
            local.at_kink = self.whatif.before_call(function, args, kwargs, self.backwards)
        if function is _REGISTER_HOOK and isinstance(args[0], Tensor):
            with without_torch_function():
                local.hook = self._register_before(args[0]) if args[0].requires_grad else None
        ranges = local.ranges
        if ranges.may_hide_some():
            with without_torch_function():
                hidden = ranges.unseen_behind((*args, *kwargs.values()) if kwargs else args)
            for node in hidden:
                self._attach(node, NOWHERE)
        local.function = function
        return ranges.seen_up_to

    @harmless("the values at a clamp")
    def _look(self, spelling: Spelling, args: Arguments, kwargs: Keywords) -> None:
        location = self._local.thread.location = self.locations.here()
        values = self.clamps.look(spelling, location, args, kwargs)
        self._local.thread.values = None if location in self._ran_at else values

    def after_call(
        self, function: Function, args: Arguments, kwargs: Keywords, result: object, before: int | None
    ) -> None:
        local = self._local.thread
        with without_torch_function():
            if before is not None:
                self._find_nodes(function, args, kwargs, result, before)
            local.function = None
            if self.whatif is not None:
                at_kink, local.at_kink = local.at_kink, None
                self.whatif.after_call(at_kink, function, args, result)
            spelling = SPELLINGS.get(function)
            if spelling is not None:
                is_followed = self.backwards or not isinstance(result, Tensor) or result.requires_grad
                self.clamps.note_result(spelling, local.values if is_followed else None, args, result)
            if not self.influence.mark_plainly(function, args, kwargs, result):
                self.influence.after_call(function, args, kwargs, result)
            if function in SUMS:
                self.influence.note_sum(args, result)
            if function is _REGISTER_HOOK:
                self._register_after(args[0])
            if local.depth and self.nonfinite is not None:
                self.nonfinite.after_call((args, kwargs or ()), result)
            if self.optimisers.watched:
                self.optimisers.note_taken(self.locations.here(), tensors_in(args))

    def _find_nodes(self, function: Function, args: Arguments, kwargs: Keywords, result: object, before: int) -> None:
        """Attach hooks to the nodes that the call made."""
        local, after = self._local.thread, node_number()
        ranges, values = local.ranges, (*args, *kwargs.values()) if kwargs else args
        has_hidden = bool(ranges.unseen)
        if after == ranges.seen_up_to and not has_hidden:
            return
        if type(result) is Tensor and not has_hidden and not self.attaches_all:
            # Most calls made one node; `linear` made one or two that hand on.
            node = nodes.node_of(result)
            if node is not None and number_of(node) == after - 1:
                name = nodes.name_of(node)
                is_linear = function is _LINEAR and name in _PASSING and len(args) > 1 and args[1].dim() == 2
                if (is_linear or after - before == 1) and (local.location is not None or self.leaves.have_run(values)):
                    ranges.seen_up_to = after
                    if not after % nodes.STRIDE:
                        nodes.break_chain(node)
                    if name not in self.skipped_ops:
                        self._attach(node, local.location)
                    return
        # x[0] = y returns nothing; its node is behind x.
        new = ranges.since(before, values if result is None else result)
        if not new and ranges.may_hide_some():
            new = ranges.unseen_behind(values)
        if not new:
            return
        location = local.location if local.function is function else None
        if location is None and not self.leaves.have_run(values):
            location = self.locations.here()
            self.leaves.note_use(values, location)
        tallies: dict[type, Tally] = {}  # for speed: a recurrent layer in C makes hundreds of nodes of a few classes
        for node in new:
            kind = type(node)
            if kind in tallies:
                self._attach_hook(node, tallies[kind])
            elif self.attaches_all or nodes.name_of(node) not in self.skipped_ops:
                location = location or self.locations.here()  # once for all nodes of the call
                self._attach(node, location)
                tally = self.tally_of(node)
                if tally is not None and nodes.has_one_name(kind) and not (self.attaches_all or self.partial_suspects):
                    tallies[kind] = tally

    @harmless("a custom Function")
    def on_function(self, result: object) -> None:
        """A custom Function ran."""
        if not self.hears():
            return
        self._end_rest()
        if not hooks.is_inside_function():
            with without_torch_function():
                self.influence.after_function(result)
        # Otherwise `before_call` would hear the reading of grad_fn, and attach a hook to the node without a location.
        with our_formulas:
            own_nodes = nodes.nodes_of(result)
        for node in own_nodes:
            self._attach(node)
        self._local.thread.ranges.mark_all_seen()

    @harmless("a swap of tensors")
    def on_swap(self, tensor: Tensor, other: Tensor) -> Callable[[object], None]:
        """Drop our weak references to two tensors: torch swaps no tensor that has one. The returned function makes them again."""
        restores = self.leaves.drop_references((tensor, other)), self.influence.drop_references(tensor, other)
        return partial(self._restore_references, restores)

    @harmless("a swap of tensors")
    def _restore_references(self, restores: Iterable[Callable[[], None]], result: object) -> None:
        for restore in restores:
            restore()

    # --- backwards ----------------------------------------------------------------------------------------------------

    def on_backward(self, roots: Roots, grads: Gradients, inputs: Roots | None) -> Callable[[object], None]:
        if not self.hears():
            return lambda result: None
        self._is_incomplete = self._end_rest()
        local = self._local.thread
        depth = local.depth
        is_outer = not depth and backward_pass() < 0  # an inner backward may run in a thread of a device
        local.depth = depth + 1
        before, listener = node_number(), _InBackward(self)
        try:
            is_heard = push_in_backward(listener)
            self._begin(roots, grads, inputs, is_outer, is_heard)
        except BaseException:  # Ctrl-C
            local.depth = depth
            take_off(listener)
            raise
        return partial(self._end, roots, inputs, is_outer, listener, before)

    @harmless("the start of a backward")
    def _begin(self, roots: Roots, grads: Gradients, inputs: Roots | None, is_outer: bool, is_heard: bool) -> None:
        """is_heard: does the listener of this backward hear all calls of the program in it?"""
        with without_torch_function():
            starts = nodes.starts(roots)
            if is_outer:
                self.backwards += 1
                self._starts = starts
                self.leaves.name_roots()
                self.influence.before_backward(roots)
                self._note_inputs(inputs)
                self._note_loss(roots, grads)
                self.arrivals.expected = {}
            else:
                self.count_waiting()
            may_wait = is_heard and is_outer and self.whatif is None and nobody_else_runs()
            # Autograd adds no gradient in place to one that is kept, and modes would see the difference.
            self._let_wait(may_wait and not dispatch_modes())
            behind = self._attach_to_graph(starts, may_read_later=may_wait and not inputs)
            if is_outer:
                if self.line_losses is not None and self.line_losses.cast is not None:
                    casts = [node for node in behind if nodes.name_of(node) == _CAST]
                    are_stale = [self._is_stale(cast) for cast in casts]  # each call counts a use of its cast
                    self.line_losses.stale += any(are_stale)
                if not self.is_loss_finite or self.nonfinite is not None:
                    with quietly():
                        self._find_nonfinite().begin(roots, behind, self.is_loss_finite)
                self.leaves.find_names(self.backwards)
        if is_outer and self.whatif is not None and not transforms_are_active():
            self.whatif.begin(roots, grads, behind, self.backwards)

    def _attach_to_graph(self, starts: list[GraphNode | None], may_read_later: bool) -> list[GraphNode]:
        """Attach hooks to leaves and to nodes that nobody saw being made. Returns all nodes that the backward can reach.

        may_read_later: the gradient of a leaf may be read from `.grad` when the backward has ended, so it needs no hook.
        """
        behind = self.leaves.reachable_from(starts)
        for start in starts:
            self.reached |= behind.get(start, 0) if start is not None else 0
        if self.line_losses is not None and starts[0] is not None:
            self.line_losses.leaves |= behind.get(starts[0], 0)
        name_of, suspects, expect = nodes.name_of, self.suspects | self.partial_suspects, self.arrivals.expect
        is_first = self.backwards == 1 if self.line_losses is None else self.line_losses.count == 1
        looks_at_sums = is_first or self._sums_in_half
        key, upstream_key, passing = (
            self.key,
            self.leaves.key,
            set() if suspects or looks_at_sums else self._passing_classes,
        )
        for node, upstream in behind.items():
            kind = type(node)
            if kind in passing:
                continue
            name = name_of(node)
            if looks_at_sums and self.is_full and name in _ADDING_UP:
                node.register_hook(self._look_at_sum)
            if is_first:
                self._note_reads(node, behind)
                self._note_activations(node)
            if name == nodes.LEAF:
                leaf = self.leaves.single(upstream)
                if leaf is not None and not (may_read_later and expect(leaf, node)):
                    self._attach_leaf(node, leaf)
            elif suspects or name not in _PASSING:
                metadata = node.metadata
                metadata[upstream_key] = upstream
                if name == _MODULE_HOOK:
                    self._attach_after_module_hooks(node)
                # Without a hook it was made in another thread, or before the context.
                if key not in metadata and not self._is_incomplete:
                    self._attach(node, NOWHERE)
                if suspects and upstream & suspects and self.zeros.begin(node):
                    node.register_hook(self._look_for_zeros)
            elif nodes.has_one_name(kind):
                self._passing_classes.add(kind)
        return list(behind)

    def _note_reads(self, node: GraphNode, behind: Mapping[GraphNode, int]) -> None:
        """Note where each leaf in front of this node is read."""
        tally = node.metadata.get(self.key)
        location = node.metadata.get(self._location_key) if tally is None else tally.location
        for other, _ in node.next_functions:
            if other is not None and nodes.name_of(other) == nodes.LEAF:
                for leaf in self.leaves.unpack(behind[other]):
                    leaf.read_at.add(location)

    def _is_stale(self, cast: GraphNode) -> bool:
        """Have two passes used this cast of a weight before, and has the weight moved since the first one?"""
        leaf = self.leaves.single(self.leaves.upstream(cast))
        tensor = None if leaf is None else leaf.tensor()
        if tensor is None or all(nodes.name_of(other) != nodes.LEAF for other, _ in cast.next_functions if other):
            return False
        version, uses = cast.metadata.get(self._uses_key, (tensor._version, 0))
        cast.metadata[self._uses_key] = version, uses + 1
        return uses > 1 and bool(version != tensor._version)

    def _note_inputs(self, inputs: Roots | None) -> None:
        """Note the leaves whose gradient a backward computes; without inputs it computes that of every leaf."""
        tensors = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs or ())
        self.accumulates |= not tensors
        for tensor in tensors:
            if isinstance(tensor, Tensor) and tensor.is_leaf:
                leaf = self.leaves.add(tensor)
                if leaf is not None:
                    leaf.is_requested = True

    def _note_loss(self, roots: Roots, grads: Gradients) -> None:
        root, grad, self.loss, self.line_losses, self.is_loss_finite = roots[0], grads[0], None, None, True
        if len(roots) > 1 or type(root) is not Tensor or type(grad) is not Tensor:
            return
        if has_numbers(root) and has_numbers(grad):
            with quietly():
                loss = root.detach() * grad.detach()
                self.loss = loss = loss.sum() if loss.dim() else loss
                self.is_loss_finite = not loss.is_cpu or not self.is_full or isfinite(loss.item())
                node = nodes.node_of(root)
                if self.is_full and node is not None and loss.is_floating_point():
                    self.line_losses = self.losses.setdefault(self.locations.here(), Losses())
                    self.line_losses.add(self.backwards, loss, self._again_key in node.metadata)
                    node.metadata[self._again_key] = True

    def _attach_leaf(self, node: GraphNode, leaf: Leaf) -> None:
        """Attach a hook to the node that adds to a gradient. A hook of the tensor would be pickled, and would not be the last."""
        if self._hooked_key not in node.metadata:
            node.metadata[self._hooked_key] = True
            node.register_prehook(partial(self._count_arrival, leaf, leaf.tensor() is node.variable))

    def count_waiting(self) -> None:
        """Count all that waits, before the program calls torch in a backward."""
        self._flush()
        self._hand_over()

    @quiet("the gradient of a parameter")
    def _hand_over(self) -> None:
        self.arrivals.hand_over(self._attach_leaf)

    def _end(
        self,
        roots: Roots,
        inputs: Roots | None,
        is_outer: bool,
        listener: Listener,
        before: int,
        result: Gradients | None,
    ) -> None:
        """result: the gradients of the inputs, empty if they are added to leaves; None if the backward raised."""
        self._local.thread.depth -= 1
        take_off(listener)
        self._let_wait(False)
        self._flush()
        if result and inputs:
            self._count_result(inputs, result, before)
        elif result is not None and node_number() != before:
            self._find_second_nodes(before)
        if is_outer:
            self._starts = []
            self.raised += result is None
            if self.whatif is not None:
                self.whatif.end(result is not None)
            self._end_step(roots)
        elif self.nonfinite is not None or self.leaves.broken:
            self._find_nonfinite().end_inner()

    @harmless("the nodes of a second derivative")
    def _find_second_nodes(self, before: int) -> None:
        """Attach hooks to the nodes that lead to the gradients of leaves. before: the number of the first node of this pass."""
        with without_torch_function():
            tensors = [leaf.tensor() for _, leaf in self.leaves]
            grads = [tensor.grad for tensor in tensors if tensor is not None]
            location, self._local.thread.function = self.locations.here(), Tensor.backward
            for node in nodes.find_within(grads, [(before, node_number())]):
                self._attach(node, location)

    @harmless("the gradients of an autograd.grad")
    def _count_result(self, inputs: Roots, result: Gradients, before: int) -> None:
        """No node of a leaf runs for the inputs of autograd.grad. before: the number of the first node of this pass."""
        if self.whatif is not None and any(isinstance(grad, Tensor) and grad.requires_grad for grad in result):
            self.whatif.made_in_backward.append(range(before, node_number()))
        for tensor, grad in zip(inputs, result, strict=False):
            if isinstance(tensor, Tensor) and tensor.is_leaf and isinstance(grad, Tensor):
                leaf = self.leaves.add(tensor)
                if leaf is not None:
                    self._count_arrival(leaf, leaf.tensor() is tensor, (grad,))

    @harmless("the end of a backward")
    def _end_step(self, roots: Roots) -> None:
        """Note what a backward has shown, then call the user's `after_backward`, which may end the program."""
        with quietly():
            self.arrivals.end()
            if self.leaves.broken or self.nonfinite is not None:
                self._find_nonfinite().end()
            if "clamps" in vars(self):
                self.clamps.end_step(self._ran_at)
            is_last = _is_looked_at(self.backwards + 1)
            self.leaves.end_backward(self.backwards, self.backwards <= LAST_NEW_SUSPECT or is_last)
            self.optimisers.begin_watch()
            if self.backwards <= LAST_NEW_SUSPECT:
                self.suspects = sum(1 << bit for bit, leaf in self.leaves if leaf.gradients and not leaf.had_gradient)
                if self.suspects:
                    from .graph_shapes import note_zero_factors  # few leaves wait for a factor

                    note_zero_factors(nodes.starts(roots), self.suspects, self.leaves)
            if self.partial_suspects:
                self.zeros.drops.end()
            self.partial_suspects = self.leaves.find_partial() if is_last else 0
            has_birth_without_line = self.nonfinite is not None and self.nonfinite.has_birth_without_line
            if not (self.is_full and (self._sums_in_half or self.backwards < LAST_NEW_SUSPECT)):
                self.skipped_ops = _PASSING
            self.attaches_all = bool(self.suspects or self.partial_suspects) or has_birth_without_line
        if self.after_backward is not None:
            self.after_backward(self.backwards, self.loss)


def _are_finite(leaving: Gradients) -> bool:
    with without_torch_function():
        return are_finite(leaving)


def _is_looked_at(backward: int) -> bool:
    """Does this backward look for the lines where entries lose their gradient? The third does, then ever fewer: 8, 32, 128."""
    return backward == 3 or (backward > 3 and is_power_of_two(backward) and backward.bit_length() % 2 == 0)


class _InBackward(Listener):
    """Hears the program in a backward, where each call may change gradients."""

    subscriber: Recorder

    def __torch_function__(
        self, func: Function, types: Iterable[type], args: Arguments = (), kwargs: Keywords | None = None
    ) -> object:
        if self.subscriber.is_waiting:
            self.subscriber.count_waiting()
        return super().__torch_function__(func, types, args, kwargs)
