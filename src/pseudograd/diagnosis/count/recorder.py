"""What a diagnosis hears of a program: every node of autograd that it makes, every call of torch, every backward."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling
from torch.overrides import TorchFunctionMode

from ...engine import call_of
from ...formula import own
from ...listen import frames, functions, nodes
from ...listen.frames import NOWHERE, Place
from ...listen.harmless import Errors, harmless, note
from ...listen.quietly import quiet, quietly, unheard
from ...rewrite import entered_contexts
from ...torch_table import forms as torch_forms
from ...torch_table import records
from ...torch_table.private import (
    backward_pass,
    current_node,
    function_of,
    has_mode_stack,
    is_batched,
    is_fake,
    is_sharded,
    mode_stack,
    node_creation_hook,
    node_number,
    number_of,
    push_mode,
    take_off_the_stack,
    tells_unpack_hooks,
    transforms_are_active,
    without_torch_function,
)
from . import further_backward, hooks, noted_kinks, slices, tally, values, whatif, windows
from .arrivals import Arrivals, nobody_else_runs
from .influence import SILENT, Influence
from .leaves import LEAF, Leaf, Leaves
from .names import unwrapped
from .optimisers import Optimisers
from .tally import Tally
from .zeros import Zeros

# They hand on what arrives, or sums of it: nothing to compare element by element. For speed alone.
_HAND_ON = (
    "View UnsafeView Reshape T Transpose Permute Expand Add Addmm Mm Bmm Convolution Alias Unsqueeze Squeeze Sum Mean Clone Cat Stack "
    "Split Select Slice Unbind Detach Embedding"
)
_DIGITS = "0123456789"
_PASSING = frozenset(f"{name}Backward{number}" for name in _HAND_ON.split() for number in range(4))
_ASKED = (slices.NODE, windows.NODE)  # nodes that are looked at in every pass, even where counts alone are wanted
_LINEAR = torch.nn.functional.linear
_names = itertools.count()
_REGISTER_HOOK = Tensor.register_hook
_NOBODY = object()  # calls, as far as a mode sees: TorchScript or C++


def _within(calling: object, form: records.Form | None) -> str | None:
    """The call of torch that makes a node of this form where no override reaches it."""
    if form is None or torch_forms.is_spelling_of(calling, form) or torch_forms.reaches_inside(calling, form):
        return None
    return _name(calling)


def _name(func: object) -> str:
    return "code that no mode sees" if func is _NOBODY else getattr(func, "__name__", None) or str(func)


class _Thread(threading.local):
    """What one thread is in the middle of."""

    backwards = 0  # inside each other
    ranges: nodes.Ranges | None = None
    calling: Any = _NOBODY
    place: Place | None = None  # of that call, where it was asked
    seen: values.Values | None = None  # of that call, what must be followed
    hook: hooks.Hook | None = None
    at_kink: Any = None  # of that call, what its node will not keep


class Recorder:
    """All that was heard, by place. It keeps no node, no tensor and no frame."""

    def __init__(self, is_full: bool) -> None:
        self.is_full = is_full
        self.is_on = False
        self.backwards = 0
        self.tallies: dict[tuple[str, Place], Tally] = {}
        self.values: dict[tuple[str, Place], values.Values] = {}
        key = f"pseudograd diagnosis {next(_names)}"
        self._attached = key
        self.leaves = Leaves(f"{key}: leaves", self._name_roots)
        self.leaves.are_measured = is_full
        self.arrivals = Arrivals()
        self.noted = Errors()
        self.roots: dict[int, weakref.ref[torch.nn.Module]] = {}  # the outermost modules that ran
        self.places = frames.Places()
        self.influence = Influence(self.leaves, self.roots, self.places)
        self.optimisers = Optimisers(self.leaves, lambda: self.is_on, self.noted, self.influence.stepped)
        self.accumulates = False  # did a backward add to every leaf, and not to inputs that it was given?
        self._hook_handles: list[Any] = []  # of leaves
        self.zeros = Zeros(self.leaves, self._attached, _PASSING)
        self.reached = 0  # the leaves that some loss depends on by a differentiable path
        self._named_roots: dict[int, weakref.ref[torch.nn.Module]] = {}  # of these, those whose parameters are known
        self._named = 0  # of the leaves without a name, those that were there when all modules were asked
        self._lock = threading.RLock()  # a collection of garbage may run any code while it is held
        self._local = _Thread()
        self._order = 0
        self._missed_some = False  # of what the program called since the last backward
        self._ran_at: set[Place] = set()  # places at which a gradient has arrived
        self.asking: whatif.Asking | None = None
        self.after_backward: Callable[[int], None] | None = None

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
    def made(self, node: Any) -> None:
        """A node was made, on a torch that says so."""
        if not self.is_on or own.depth or unheard.depth:
            return
        self._wakes()
        name, local = nodes.name_of(node), self._local
        if name == LEAF:
            if not self.leaves.are_at_home((node.variable,)):
                frames.place(3, self.roots)  # a parameter is used for the first time: by which module?
        elif self.zeros.suspects or name not in _PASSING:
            self._attach(node, 3, None if local.calling is _NOBODY else local.place)

    def _attach(self, node: Any, depth: int, place: Place | None = None) -> None:
        """place: None where the frame `depth` above it stands."""
        name = nodes.name_of(node)
        is_passing = name in _PASSING
        if name == LEAF:
            return
        noted = node.metadata
        if self._attached in noted or (is_passing and not self.zeros.concern(node)):
            return
        if place is None:
            place = self.places.here(depth, self.roots)
        noted[self._attached] = to = self._tally(name, place)
        if to.function is None and name[-1] not in _DIGITS:  # nodes of torch's own are numbered
            to.function = function_of(type(node))
        to.pinned |= entered_contexts.left_to_torch()
        if is_passing:
            node.register_hook(partial(self._handed_on, to))
            return
        calling = self._local.calling
        if to.calling is not calling:
            to.calling, to.within = calling, _within(calling, torch_forms.form_of_node(name))
        if to.hook is None:
            to.hook = partial(self._ran, to)
        node.register_hook(to.hook)

    def _tally(self, name: str, place: Place) -> Tally:
        found = self.tallies.get((name, place))
        return found if found is not None else self.tallies.setdefault((name, place), Tally(name, place))

    @quiet("the gradients at a node")
    def _ran(self, to: Tally, leaving: object, arriving: object) -> None:
        """After a node ran in a backward: gradients arrived, others leave."""
        if _have_numbers(arriving):
            self._count(to, leaving, arriving)

    def _close_hook(self, tensor: Any) -> None:
        hook, self._local.hook = self._local.hook, None
        if hook is not None:
            some = self.leaves.of_tensor(tensor)
            handles = hook.close(tensor, self._tally(hooks.NAME, self.places.here(4, self.roots)), some)
            if nodes.of_tensor(tensor) is None:  # those of other tensors go with their graph
                self._hook_handles += handles

    def take_off_hooks(self) -> None:
        for handle in self._hook_handles:
            handle.remove()

    @harmless("the gradients at a hook")
    def count_hook(self, to: Tally, upstream: int, arriving: object, leaving: object) -> None:
        with quietly():
            counted = tally.of_grads((leaving,), (arriving,), self.is_full) if _have_numbers((arriving,)) else None
            if counted is None:
                return
            with self._lock:
                if not to.calls:
                    self._order += 1
                    to.order = self._order
                to.leaves |= upstream
                to.calls += 1
                to.add(counted)

    @quiet("the gradients at a node")
    def _handed_on(self, to: Tally, leaving: Any, arriving: Any) -> None:
        """After a node ran that nothing is counted of."""
        if _have_numbers(arriving):
            self.zeros.look(to, current_node(), leaving, arriving)

    @quiet("the gradient of a parameter")
    def _arrived(self, leaf: Leaf, is_itself: bool, grads: Any) -> None:
        """Before a gradient is added to a leaf, after every hook of the tensor."""
        self.arrivals.count_before(leaf)
        (leaf.arrived if is_itself else leaf.arrived_in_its_place)(grads[0])
        if self.asking is not None:
            self.asking.arrived(leaf, grads[0])

    def _count(self, to: Tally, leaving: Any, arriving: Any) -> None:
        if self.is_full and to.op == windows.NODE:
            self._look_at_windows(to, leaving)
        is_first = not to.calls
        node = current_node() if self.is_full or is_first or to.op in _ASKED else None
        noted, form = None, to.form
        if to.op == slices.NODE:
            leaving, arriving, noted = slices.seen(node, leaving, arriving)
        if is_first:
            form = noted or torch_forms.form_of_node(to.op)
        kept = torch_forms.kept_by(form, node) if self.is_full and form is not None and node is not None else None
        counted = None
        with self._lock:
            has_sides = to.add_at_once(leaving, arriving, self.is_full, kept)
        if has_sides is None:
            counted = tally.of_grads(leaving, arriving, self.is_full, to.may_move, kept)
            if counted is None:
                if self.zeros.suspects:
                    self.zeros.look(to, node or current_node(), leaving, arriving)
                return
            has_sides = tally.has_sides(counted)
        if is_first:
            self._ran_at.add(to.place)
            if node is not None:
                self._order += 1
                to.order = self._order
                to.form = form
        if node is not None and to.op == windows.NODE and (own_call := call_of(node)) is not None:
            to.hear(own_call)
        if node is not None:
            to.leaves |= self.leaves.upstream(node)  # one line may serve several parameters
        if kept is not None and has_sides:
            to.is_known = True
            to.has_tensor_bound = any(isinstance(one, Tensor) for one in kept.inputs[1:])
        with self._lock:
            to.calls += 1
            if counted is not None:
                to.add(counted)

    def _look_at_windows(self, to: Tally, leaving: Any) -> None:
        node = current_node()
        found = windows.of_node(node, leaving)
        if found is not None:
            leaves = self.leaves.upstream(node.next_functions[1][0])  # one line may serve several layers
            with self._lock:
                to.windows.setdefault(leaves, windows.Windows()).add(*found)

    # --- calls of torch -----------------------------------------------------------------------------------------------

    def _ranges(self) -> nodes.Ranges:
        found = self._local.ranges
        if found is None:
            found = self._local.ranges = nodes.Ranges()
            found.start_afresh()
        return found

    def before_call(self, func: object, args: Any, kwargs: Any) -> int:
        """Returns the number of the next node, on a torch that announces none."""
        local, spelling = self._local, torch_forms.SPELLINGS.get(func)
        local.place = local.seen = None
        if spelling is not None and self.is_full:
            local.seen = self._look(spelling, args, kwargs)
        if self.asking is not None and self.asking.sensing is not None:
            self._note_kink(func, args, kwargs)
        if func is _REGISTER_HOOK and isinstance(args[0], Tensor):
            with without_torch_function():
                local.hook = hooks.Hook(self, args[0]) if args[0].requires_grad else None
        if node_creation_hook is not None:
            local.calling = func
            return 0
        ranges = local.ranges or self._ranges()
        if ranges.may_hide_some():
            with without_torch_function():
                hidden = ranges.unseen_behind((*args, *kwargs.values()) if kwargs else args)
            for node in hidden:
                self._attach(node, 0, NOWHERE)
        local.calling = func
        return ranges.seen_up_to

    @harmless("what stands at a kink")
    def _note_kink(self, func: object, args: object, kwargs: object) -> None:
        """What stands at a kink where the node of the call will not keep it."""
        self._local.at_kink = None
        if func in noted_kinks.NOTED_CALLS and self.asking.sensing.is_asked(self.backwards + 1):  # type: ignore[union-attr]
            with quietly():
                self._local.at_kink = noted_kinks.note_before(func, args, kwargs or {})

    def tally_of(self, node: Any) -> Tally | None:
        """What is counted at the call that made it."""
        found = node.metadata.get(self._attached)
        return found if isinstance(found, Tally) else None

    def after_call(self, func: object, args: Any, kwargs: object, result: object, before: int | None) -> None:
        local = self._local
        with without_torch_function():
            if node_creation_hook is None and before is not None:
                ranges = local.ranges or self._ranges()
                if ranges.may_hide_some() and not self._found_at_once(ranges, func, args, kwargs, result, before):
                    self._find_nodes(func, args, kwargs, result, before)
            local.calling = _NOBODY
            if local.at_kink is not None:
                with quietly():
                    noted_kinks.note_after(local.at_kink, args, result)
                local.at_kink = None
            if self.asking is not None and not tells_unpack_hooks:
                further_backward.note_unpack_hook(result)
            spelling = torch_forms.SPELLINGS.get(func)
            if spelling is not None:
                self._note_value(spelling, args, result)
            if not self.influence.is_plain(args, kwargs, result):
                self.influence.seen(func, args, kwargs, result)
            if func is _REGISTER_HOOK:
                self._close_hook(args[0])
                if self.asking is not None:
                    whatif.note_hook(args[0], args[1], frames.place(3))

    def _note_value(self, spelling: records.Spelling, args: Any, result: object) -> None:
        """Of a clamp or another op that saturates: which slice it changed; or what it gave, where no gradient arrives at it although
        something learns behind it. Does a loss depend on that all the same?
        """
        if not isinstance(result, Tensor):
            return
        seen = self._local.seen
        if args and result is args[0]:
            slices.note(spelling.form, result)
        elif seen is not None and (self.backwards or not result.requires_grad):
            self.influence.follow(seen, result)

    def _found_at_once(
        self, ranges: nodes.Ranges, func: object, args: Any, kwargs: Any, result: object, before: int
    ) -> bool:
        """What `_find_nodes` does, for the usual call: it made one node, or such as hand on alone, of which nothing is noted."""
        if type(result) is not Tensor or ranges.unseen or self.zeros.suspects:
            return False
        node, after = nodes.of_tensor(result), node_number()
        if node is None or number_of(node) != after - 1:
            return False
        is_alone, name, place = after - before == 1, nodes.name_of(node), self._local.place
        if name in _PASSING:
            is_alone = is_alone or (func is _LINEAR and len(args) > 1 and args[1].dim() == 2)
        if not is_alone:
            return False
        if place is None and not self.leaves.are_at_home((*args, *kwargs.values()) if kwargs else args):
            return False
        ranges.seen_up_to = after
        if name not in _PASSING:
            self._attach(node, 4, place)
        return True

    def _find_nodes(self, func: object, args: Any, kwargs: Any, result: object, before: int) -> None:
        ranges = self._ranges()
        made = ranges.since(before, result)
        if not made and ranges.may_hide_some():  # in place: the node is behind the argument
            made = ranges.unseen_behind((*args, *kwargs.values()) if kwargs else args)
        if not made:
            return
        place = self._local.place if self._local.calling is func else None
        if place is None and not self.leaves.are_at_home((*args, *kwargs.values()) if kwargs else args):
            place = self.places.here(3, self.roots)
        for node in made:
            if self.zeros.suspects or nodes.name_of(node) not in _PASSING:
                self._attach(node, 4, place)

    @harmless("a custom Function")
    def applied(self, result: object) -> None:
        """A custom Function ran."""
        if not self.is_on or unheard.depth:
            return
        self._wakes()
        if not functions.is_inside():
            with without_torch_function():
                self.influence.applied(result)
        if node_creation_hook is not None:
            return
        # To read grad_fn is a call of torch, before which `called` would find the node and know no place for it.
        with own:
            made = nodes.of(result)
        place = None
        for node in made:
            place = place or self.places.here(3, self.roots)
            self._attach(node, 0, place)
        self._ranges().forget()

    @harmless("the values at a clamp")
    def _look(self, spelling: records.Spelling, args: Any, kwargs: object) -> values.Values | None:
        """Returns what must be followed: see `_note_value`."""
        place = self._local.place = self.places.here(3, self.roots)
        key = spelling.name, place
        found, is_clamp = self.values.get(key), spelling.form.switches[0] == "clamp"
        if found is not None and not is_clamp:
            return None  # of others the first call tells
        given = args[0] if args else None
        with quietly():
            read = values.read(spelling, args, kwargs or {})
            if read is None or not _have_numbers(read):
                return None
            if found is None:
                is_pinned = torch_forms.edge_family(spelling.form) in entered_contexts.left_to_torch()
                is_rewritten = entered_contexts.decide_about(spelling.form)
                found = values.Values(spelling, place, *read, is_pinned=is_pinned, is_rewritten=is_rewritten)
                self.values[key] = found
                if isinstance(given, Tensor) and given.requires_grad:
                    found.upstream = self.leaves.of_tensor(given)
                    found.leaf = found.upstream if nodes.of_tensor(given) is None else None
                elif isinstance(given, Tensor):
                    found.round, is_leaf = self.influence.cut_from(given)
                    found.detached = found.round if is_leaf else 0
            if not is_clamp:
                return None
            found.add(*read)
            return found if (found.upstream or found.round) and place not in self._ran_at else None

    # --- backwards ----------------------------------------------------------------------------------------------------

    def around_backward(self, roots: object, grads: object, inputs: object) -> Callable[[Any], None]:
        if not self.is_on or unheard.depth:
            return _nothing
        self._missed_some = self._wakes()
        local = self._local
        depth = local.backwards
        is_outermost = not depth and backward_pass() < 0  # one inside another may run in a thread of a device
        local.backwards = depth + 1
        try:
            before = node_number()
            mode = WatchOfBackward(self)
            is_heard = self._push(mode)
            self._begins(roots, grads, inputs, is_outermost, is_heard)
        except BaseException:  # Ctrl-C
            local.backwards = depth
            raise
        return partial(self._ends, inputs, is_outermost, mode, before)

    @harmless("the start of a backward")
    def _begins(self, roots: Any, grads: object, inputs: object, is_outermost: bool, is_heard: object) -> None:
        """is_heard: does the mode of this backward hear all that the program calls in it?"""
        with without_torch_function():
            if is_outermost:
                self.backwards += 1
                self._name_roots()
                self.influence.reached(roots)
                self._note_inputs(inputs)
                self.arrivals.expected = {}
            else:
                self.program_runs()
            can_expect = is_heard and is_outermost and not inputs and self.asking is None and nobody_else_runs()
            starts = nodes.starts(roots)
            behind = self.leaves.behind(starts)
            for start in starts:
                self.reached |= behind.get(start, 0)
            name_of, suspects, expect = nodes.name_of, self.zeros.suspects, self.arrivals.expect
            attached, upstream_key = self._attached, self.leaves.key
            for node, upstream in behind.items():
                name = name_of(node)
                if name == LEAF:
                    leaf = self.leaves.one(upstream)
                    if leaf is not None and not (can_expect and expect(leaf, node)):
                        self._attach_leaf(node, leaf)
                elif suspects or name not in _PASSING:
                    noted = node.metadata
                    noted[upstream_key] = upstream
                    if attached not in noted and not self._missed_some:
                        self._attach(
                            node, 0, NOWHERE
                        )  # nobody saw some being made: in another thread, or before the context
            if is_outermost:
                self._name_what_is_new()
        if is_outermost and self.asking is not None:
            self._ask(self.asking, roots, grads, list(behind))

    def _note_inputs(self, inputs: Any) -> None:
        """What a backward is asked the gradient of; of every leaf, where nothing is named."""
        some = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs or ())
        self.accumulates |= not some
        for one in some:
            leaf = self.leaves.one(self.leaves.set_of(one)) if isinstance(one, Tensor) and one.is_leaf else None
            if leaf is not None:
                leaf.asked = True

    @harmless("a what-if")
    def _ask(self, asking: whatif.Asking, roots: object, grads: object, behind: list[object]) -> None:
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

    @harmless("the modes of a backward")
    def _push(self, mode: Watch) -> bool:
        """Torch's stack of modes is empty in a backward, in which a checkpoint runs its forward again. Returns whether it was."""
        stack = mode_stack()
        if not any(isinstance(one, Watch) and one.recorder is self for one in stack):
            push_mode(mode)
        return not stack and has_mode_stack

    def _ends(self, inputs: object, is_outermost: bool, mode: Watch, before: int, result: object) -> None:
        """result: the gradients of the inputs, none where they are added to leaves; None where the backward raised."""
        self._local.backwards -= 1
        _take_off(mode)
        if result and inputs:
            self._gave(inputs, result, before)
        if is_outermost:
            if self.asking is not None:
                self._answered(self.asking, result is not None)
            self._ended()

    @harmless("a what-if")
    def _answered(self, asking: whatif.Asking, is_whole: bool) -> None:
        asking.ended(is_whole)

    @harmless("the gradients of an autograd.grad")
    def _gave(self, inputs: Any, result: Any, before: int) -> None:
        """No node of a leaf runs where autograd.grad asks for its gradient. The first node of this pass had the number `before`."""
        if self.asking is not None and any(isinstance(one, Tensor) and one.requires_grad for one in result):
            self.asking.made_in_backward.append(range(before, node_number()))
        for one, grad in zip(inputs, result, strict=False):
            if isinstance(one, Tensor) and one.is_leaf and isinstance(grad, Tensor):
                leaf = self.leaves.one(self.leaves.set_of(one))
                if leaf is not None:
                    self._arrived(leaf, leaf.tensor() is one, (grad,))

    @harmless("the end of a backward")
    def _ended(self) -> None:
        """What the user's own function raises to end a program is no Exception."""
        with quietly():
            self.arrivals.end()
            for one in list(self.values.values()):
                if one.is_open:
                    one.end_step(one.place in self._ran_at)
            self.leaves.end_backward(self.backwards)
            self.zeros.end_backward(self.backwards)
        if self.after_backward is not None:
            self.after_backward(self.backwards)

    @harmless("a swap of tensors")
    def let_go(self, one: Any, other: Any) -> Callable[[object], None]:
        """Torch refuses to swap tensors that somebody holds a weak reference to. Returns what takes them again."""
        endings = self.leaves.let_go((one, other)), self.influence.let_go(one, other)
        return partial(self._take_again, endings)

    @harmless("a swap of tensors")
    def _take_again(self, endings: tuple[Callable[[], None], ...], result: object) -> None:
        for end in endings:
            end()

    def _name_roots(self) -> None:
        """The parameters of modules that ran, where the user named no model."""
        for key, reference in list(self.roots.items()):
            module = reference()
            if module is None:
                self._named_roots.pop(key, None)
                if self.roots.get(key) is reference:
                    del self.roots[key]
            elif self._named_roots.get(key) is not reference or is_sharded(module):
                self._named_roots[key] = reference
                self.leaves.add_module(unwrapped(module))

    def _name_what_is_new(self) -> None:
        """While the modules are here, which a report may not find any more. It asks all modules, so ever less often."""
        if self._named < self.leaves.unnamed and not self.backwards & (self.backwards - 1):
            self._named = self.leaves.unnamed
            self.leaves.name_all()


def _nothing(result: object) -> None:
    """For a backward that nobody counts."""


def _have_numbers(values: Any) -> bool:
    """Can the tensors among these be read? Not on the device "meta", nor where they are fake, those of a program that traces itself, nor
    element by element where they are nested.
    """
    for one in values:  # each gradient comes here, so what `is_fake` asks first stands here too
        if isinstance(one, Tensor) and (
            one.is_meta or one.is_nested or is_batched(one) or (type(one) is not Tensor and is_fake(one))
        ):
            return False
    return True


@harmless("the modes of a backward")
def _take_off(mode: Watch) -> None:
    take_off_the_stack(mode)


class Watch(TorchFunctionMode):
    """Hears the calls of torch in one thread."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> object:
        if func in SILENT:
            return func(*args, **kwargs) if kwargs else func(*args)
        recorder = self.recorder
        if not recorder.is_on or own.depth or unheard.depth or is_compiling():
            return func(*args, **kwargs) if kwargs else func(*args)
        before = None
        try:
            before = recorder.before_call(func, args, kwargs)
        except Exception as error:
            note("a call of torch", error, recorder)
        result = func(*args, **kwargs) if kwargs else func(*args)
        try:
            recorder.after_call(func, args, kwargs, result, before)
        except Exception as error:
            note("a call of torch", error, recorder)
        return result


class WatchOfBackward(Watch):
    """In a backward: whatever the program calls there may change gradients."""

    def __torch_function__(self, func: object, types: object, args: object = (), kwargs: object = None) -> Any:
        if self.recorder.arrivals.expected:
            self.recorder.program_runs()
        return super().__torch_function__(func, types, args, kwargs)
