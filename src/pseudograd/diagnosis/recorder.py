"""What a diagnosis hears of a program: every node of autograd that it makes, every call of torch, every backward."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from .. import torch_composites, torch_forms
from ..engine import primitive_of
from ..formula import own
from ..torch_private import (
    backward_pass,
    current_node,
    is_batched,
    is_fake,
    is_sharded,
    mode_stack,
    node_creation_hook,
    node_number,
    pop_mode,
    push_mode,
    transforms_are_active,
    without_torch_function,
)
from ..trace import frames, functions, nodes
from ..trace.frames import NOWHERE, Place
from . import hooks, slices, tally, values, whatif, windows
from .harmless import Errors, harmless
from .influence import SILENT, Influence
from .leaves import Leaf, Leaves
from .names import unwrapped
from .optimisers import Optimisers
from .quietly import is_aside, quietly
from .tally import Tally
from .zeros import Zeros

_LEAF = "torch::autograd::AccumulateGrad"
# They hand on what arrives, or sums of it: nothing to compare element by element. For speed alone.
_HAND_ON = (
    "View UnsafeView Reshape T Transpose Permute Expand Add Addmm Mm Bmm Convolution Alias Unsqueeze Squeeze Sum Mean Clone Cat Stack "
    "Split Select Slice Unbind Detach Embedding"
)
_PASSING = frozenset(f"{name}Backward{number}" for name in _HAND_ON.split() for number in range(4))
_names = itertools.count()
_NOBODY = object()  # calls, as far as a mode sees: TorchScript or C++


def _name(func: Any) -> str:
    return "code that no mode sees" if func is _NOBODY else getattr(func, "__name__", None) or str(func)


class Recorder:
    """All that was heard, by place. It keeps no node, no tensor and no frame."""

    def __init__(self, is_full: bool) -> None:
        self.is_full = is_full
        self.is_on = False
        self.backwards = 0
        self.tallies: dict[tuple[Any, ...], Tally] = {}
        self.values: dict[tuple[Any, ...], values.Values] = {}
        key = f"pseudograd diagnosis {next(_names)}"
        self._attached = key
        self.leaves = Leaves(f"{key}: leaves", self._name_roots)
        self.leaves.are_measured = is_full
        self.noted = Errors()
        self.roots: dict[int, weakref.ref[torch.nn.Module]] = {}  # the outermost modules that ran
        self.places = frames.Places()
        self.influence = Influence(self.leaves, self.roots, self.places)
        self.optimisers = Optimisers(self.leaves, lambda: self.is_on, self.noted)
        self.accumulates = False  # did a backward add to every leaf, and not to inputs that it was given?
        self._hook_handles: list[Any] = []  # of leaves
        self.zeros = Zeros(self.leaves, self._attached, _PASSING)
        self.reached = 0  # the leaves that some loss depends on by a differentiable path
        self._named_roots: dict[int, weakref.ref[torch.nn.Module]] = {}  # of these, those whose parameters are known
        self._named = 0  # of the leaves without a name, those that were there when all modules were asked
        self._lock = threading.RLock()  # a collection of garbage may run any code while it is held
        self._local = threading.local()
        self._order = 0
        self._ran_at: set[tuple[Any, ...]] = set()  # places at which a gradient has arrived
        self.asking: whatif.Asking | None = None
        self.after_backward: Callable[[int], None] | None = None

    # --- nodes --------------------------------------------------------------------------------------------------------

    @harmless("a node of autograd")
    def made(self, node: Any) -> None:
        """A node was made, on a torch that says so."""
        if self.is_on and not own.depth and not is_aside():
            self._attach(node, 2)

    def _attach(self, node: Any, depth: int, place: Place | None = None) -> None:
        name = node.name()
        if name == _LEAF and place is None:
            frames.place(depth + 1, self.roots)  # a parameter is used for the first time: by which module?
        if name == _LEAF or self._attached in node.metadata:
            return
        if (is_passing := name in _PASSING) and not self.zeros.concern(node):
            return
        if place is None:
            place = frames.place(depth + 1, self.roots)
        node.metadata[self._attached] = to = self._tally(name, place)
        if is_passing:
            node.register_hook(partial(self._handed_on, to))
            return
        form = torch_forms.form_of_node(name)
        if form is not None:
            calling = getattr(self._local, "calling", _NOBODY)
            if to.calling is not calling:
                is_reached = torch_forms.is_spelling_of(calling, form) or torch_composites.reaches_inside(calling, form)
                to.calling, to.within = calling, None if is_reached else _name(calling)
        node.register_hook(partial(self._ran, to))

    def _tally(self, name: str, place: Place) -> Tally:
        key = (name, *place.key)
        found = self.tallies.get(key)
        if found is None:
            with self._lock:
                place = self.places.same_as(place)
                found = self.tallies.setdefault((name, *place.key), Tally(name, place))
        return found

    @harmless("the gradients at a node")
    def _ran(self, to: Tally, leaving: Any, arriving: Any) -> None:
        """After a node ran in a backward: gradients arrived, others leave."""
        if not self.is_on or is_aside():
            return
        with quietly:
            if _has_numbers(arriving):
                self._count(to, leaving, arriving)

    def _close_hook(self, tensor: Any) -> None:
        hook, self._local.hook = getattr(self._local, "hook", None), None
        if hook is not None:
            some = self.leaves.of_tensor(tensor)
            handles = hook.close(tensor, self._tally(hooks.NAME, frames.place(5, self.roots)), some)
            if nodes.of_tensor(tensor) is None:  # those of other tensors go with their graph
                self._hook_handles += handles

    def take_off_hooks(self) -> None:
        for handle in self._hook_handles:
            handle.remove()

    @harmless("the gradients at a hook")
    def count_hook(self, to: Tally, upstream: int, arriving: Any, leaving: Any) -> None:
        with quietly:
            counted = tally.of_grads((leaving,), (arriving,), self.is_full) if _has_numbers((arriving,)) else None
            if counted is None:
                return
            with self._lock:
                if not to.calls:
                    self._order += 1
                    to.order = self._order
                to.leaves |= upstream
                to.calls += 1
                to.add(counted)

    @harmless("the gradients at a node")
    def _handed_on(self, to: Tally, leaving: Any, arriving: Any) -> None:
        """After a node ran that nothing is counted of."""
        if self.is_on and not is_aside():
            with quietly:
                if _has_numbers(arriving):
                    self.zeros.look(to, current_node(), leaving, arriving)

    @harmless("the gradient of a parameter")
    def _arrived(self, leaf: Leaf, is_itself: bool, grads: Any) -> None:
        """Before a gradient is added to a leaf, after every hook of the tensor."""
        if self.is_on and not is_aside():
            with quietly:
                (leaf.arrived if is_itself else leaf.arrived_in_its_place)(grads[0])
                if self.asking is not None:
                    self.asking.arrived(leaf, grads[0])

    def _count(self, to: Tally, leaving: Any, arriving: Any) -> None:
        if self.is_full and to.op == windows.NODE:
            self._look_at_windows(to, leaving)
        is_first = not to.calls
        node = current_node() if self.is_full or is_first or to.op == slices.NODE else None
        noted, form = None, to.form
        if to.op == slices.NODE:
            leaving, arriving, noted = slices.seen(node, leaving, arriving)
        if is_first:
            form = noted or torch_forms.form_of_node(to.op)
        kept = torch_forms.kept_by(form, node) if self.is_full and form is not None and node is not None else None
        counted = tally.of_grads(leaving, arriving, self.is_full, to.may_move, kept)
        if counted is None:
            if self.zeros.suspects:
                self.zeros.look(to, node or current_node(), leaving, arriving)
            return
        if is_first:
            self._ran_at.add(to.place.key)
        if is_first and node is not None:
            self._order += 1
            to.order = self._order
            to.form = form
            if to.op == windows.NODE:
                to.primitive = primitive_of(node)
        if node is not None:
            to.leaves |= self.leaves.upstream(node)  # one line may serve several parameters
        if kept is not None and tally.has_sides(counted):
            to.is_known = True
            to.has_tensor_bound = any(isinstance(one, torch.Tensor) for one in kept.inputs[1:])
        with self._lock:
            to.calls += 1
            to.add(counted)

    def _look_at_windows(self, to: Tally, leaving: Any) -> None:
        node = current_node()
        found = windows.of_node(node, leaving)
        if found is not None:
            leaves = self.leaves.upstream(node.next_functions[1][0])  # one line may serve several layers
            with self._lock:
                to.windows.setdefault(leaves, windows.Windows()).add(*found)

    # --- calls of torch -----------------------------------------------------------------------------------------------

    def ranges(self) -> nodes.Ranges:
        found = getattr(self._local, "ranges", None)
        if found is None:
            found = self._local.ranges = nodes.Ranges()
            found.start_afresh()
        return found

    @harmless("a call of torch")
    def before_call(self, func: Any, args: Any, kwargs: Any) -> int:
        """Returns the number of the next node, on a torch that announces none."""
        local, spelling = self._local, torch_forms.SPELLINGS.get(func)
        local.place = None
        local.seen = self._look(spelling, args, kwargs) if spelling is not None and self.is_full else None
        if hooks.is_registered_by(func) and isinstance(args[0], torch.Tensor):
            with without_torch_function():
                local.hook = hooks.Hook(self, args[0]) if args[0].requires_grad else None
        if node_creation_hook is not None:
            local.calling = func
            return 0
        ranges = self.ranges()
        if ranges.may_hide_some():
            with without_torch_function():
                hidden = ranges.unseen_behind((*args, *kwargs.values()) if kwargs else args)
            for node in hidden:
                self._attach(node, 0, NOWHERE)
        local.calling = func
        return node_number()

    @harmless("a call of torch")
    def after_call(self, func: Any, args: Any, kwargs: Any, result: Any, before: int | None) -> None:
        if node_creation_hook is None and before is not None:
            self._find_nodes(func, args, kwargs, result, before)
        self._local.calling = _NOBODY
        with without_torch_function():
            self._note_value(func, args, result)
            self.influence.seen(func, args, kwargs, result)
            if hooks.is_registered_by(func):
                self._close_hook(args[0])
            if self.asking is not None and func is torch.Tensor.register_hook:
                whatif.note_hook(args[0], args[1], frames.place(4))

    def _note_value(self, func: Any, args: Any, result: Any) -> None:
        """Of a clamp or another op that saturates: which slice it changed; or what it gave, where no gradient arrives at it although
        something learns behind it. Does a loss depend on that all the same?
        """
        spelling = torch_forms.SPELLINGS.get(func)
        seen = getattr(self._local, "seen", None)
        if spelling is None or not isinstance(result, torch.Tensor):
            return
        if args and result is args[0]:
            slices.note(spelling.form, result)
        elif seen is not None and (self.backwards or not result.requires_grad):
            self.influence.follow(seen, result)

    def _find_nodes(self, func: Any, args: Any, kwargs: Any, result: Any, before: int) -> None:
        ranges = self.ranges()
        with without_torch_function():
            made = ranges.since(before, result)
            if not made and ranges.may_hide_some():  # in place: the node is behind the argument
                made = ranges.unseen_behind((*args, *kwargs.values()) if kwargs else args)
        if made:
            place = (self._local.calling is func and self._local.place) or frames.place(4, self.roots)
            for node in made:
                self._attach(node, 0, place)

    @harmless("a custom Function")
    def applied(self, result: Any) -> None:
        """A custom Function ran."""
        if not self.is_on or is_aside():
            return
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
            place = place or frames.place(3, self.roots)
            self._attach(node, 0, place)
        self.ranges().forget()

    @harmless("the values at a clamp")
    def _look(self, spelling: torch_forms.Spelling, args: Any, kwargs: Any) -> values.Values | None:
        """Returns what must be followed: see `_note_value`."""
        place = self._local.place = frames.place(4, self.roots)
        key = (spelling.name, *place.key)
        found, is_clamp = self.values.get(key), spelling.form.switches[0] == "clamp"
        if found is None:
            place = self.places.same_as(place)
            key = (spelling.name, *place.key)
            found = self.values.get(key)
        if found is not None and not is_clamp:
            return None  # of others the first call tells
        given = args[0] if args else None
        with quietly:
            read = values.read(spelling, args, kwargs)
            if read is None or not _has_numbers(read):
                return None
            if found is None:
                found = self.values[key] = values.Values(spelling, place, *read)
                if isinstance(given, torch.Tensor) and given.requires_grad:
                    found.upstream = self.leaves.of_tensor(given)
                    found.leaf = found.upstream if nodes.of_tensor(given) is None else None
                elif isinstance(given, torch.Tensor):
                    found.round, is_leaf = self.influence.cut_from(given)
                    found.detached = found.round if is_leaf else 0
            if not is_clamp:
                return None
            found.add(*read)
            return found if (found.upstream or found.round) and place.key not in self._ran_at else None

    # --- backwards ----------------------------------------------------------------------------------------------------

    def around_backward(self, roots: Any, grads: Any, inputs: Any) -> Callable[[Any], None]:
        if not self.is_on or is_aside():
            return _nothing
        local = self._local
        depth = getattr(local, "depth", 0)
        is_outermost = not depth and backward_pass() < 0  # one inside another may run in a thread of a device
        local.depth = depth + 1
        try:
            before = node_number()
            self._begins(roots, grads, inputs, is_outermost)
            mode = Watch(self)
            self._push(mode)
        except BaseException:  # Ctrl-C
            local.depth = depth
            raise
        return partial(self._ends, inputs, is_outermost, mode, before)

    @harmless("the start of a backward")
    def _begins(self, roots: Any, grads: Any, inputs: Any, is_outermost: bool) -> None:
        if is_outermost:
            self.backwards += 1
            self._name_roots()
            self.influence.reached(roots)
            self._note_inputs(inputs)
        behind = nodes.behind(roots)
        for node in behind:  # nobody saw some being made: in another thread, or before the context
            if self._attached in node.metadata:
                continue
            name = node.name()
            if name == _LEAF:
                self._attach_leaf(node)
            elif name not in _PASSING or self.zeros.suspects:
                self._attach(node, 0, NOWHERE)
        for start in nodes.starts(roots):
            self.reached |= self.leaves.upstream(start)
        if is_outermost:
            self._name_what_is_new()
            self._ask(roots, grads, behind)

    def _note_inputs(self, inputs: Any) -> None:
        """What a backward is asked the gradient of; of every leaf, where nothing is named."""
        some = (inputs,) if isinstance(inputs, torch.Tensor) else tuple(inputs or ())
        self.accumulates |= not some
        for one in some:
            leaf = self.leaves.one(self.leaves.set_of(one)) if isinstance(one, torch.Tensor) and one.is_leaf else None
            if leaf is not None:
                leaf.asked = True

    @harmless("a what-if")
    def _ask(self, roots: Any, grads: Any, behind: list[Any]) -> None:
        if self.asking is not None and not transforms_are_active():
            with quietly:
                self.asking.begins(roots, grads, behind)

    def _attach_leaf(self, node: Any) -> None:
        """To the node that adds to a gradient, not to the tensor: a hook of a tensor shows where it is pickled, and what comes
        later may change what it saw.
        """
        leaf = self.leaves.one(self.leaves.upstream(node))
        if leaf is not None:
            node.metadata[self._attached] = True
            node.register_prehook(partial(self._arrived, leaf, leaf.tensor() is node.variable))

    @harmless("the modes of a backward")
    def _push(self, mode: Watch) -> None:
        """Torch's stack of modes is empty in a backward, in which a checkpoint runs its forward again."""
        if not any(isinstance(one, Watch) and one.recorder is self for one in mode_stack()):
            push_mode(mode)

    def _ends(self, inputs: Any, is_outermost: bool, mode: Watch, before: int, result: Any) -> None:
        """result: the gradients of the inputs, none where they are added to leaves; None where the backward raised."""
        self._local.depth -= 1
        _take_off(mode)
        if result and inputs:
            self._gave(inputs, result, before)
        if is_outermost:
            self._answered(result is not None)
            self._ended()

    @harmless("a what-if")
    def _answered(self, is_whole: bool) -> None:
        if self.asking is not None:
            self.asking.ended(is_whole)

    @harmless("the gradients of an autograd.grad")
    def _gave(self, inputs: Any, result: Any, before: int) -> None:
        """No node of a leaf runs where autograd.grad asks for its gradient. The first node of this pass had the number `before`."""
        if self.asking is not None and any(isinstance(one, torch.Tensor) and one.requires_grad for one in result):
            self.asking.made_in_backward.append(range(before, node_number()))
        for one, grad in zip(inputs, result, strict=False):
            if isinstance(one, torch.Tensor) and one.is_leaf and isinstance(grad, torch.Tensor):
                leaf = self.leaves.one(self.leaves.set_of(one))
                if leaf is not None:
                    self._arrived(leaf, leaf.tensor() is one, (grad,))

    @harmless("the end of a backward")
    def _ended(self) -> None:
        """What the user's own function raises to end a program is no Exception."""
        with quietly:
            for one in list(self.values.values()):
                one.end_step(one.place.key in self._ran_at)
            self.leaves.end_backward(self.backwards)
            self.zeros.end_backward(self.backwards)
        if self.after_backward is not None:
            self.after_backward(self.backwards)

    @harmless("a swap of tensors")
    def let_go(self, one: Any, other: Any) -> Callable[[], None]:
        """Torch refuses to swap tensors that somebody holds a weak reference to. Returns what takes them again."""
        endings = self.leaves.let_go((one, other)), self.influence.let_go(one, other)
        return partial(self._take_again, endings)

    @harmless("a swap of tensors")
    def _take_again(self, endings: tuple[Callable[[], None], ...]) -> None:
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


def _nothing(result: Any) -> None:
    """For a backward that nobody counts."""


def _has_numbers(values: Any) -> bool:
    """Can the tensors among these be read? Not on the device "meta", nor where they are fake, those of a program that traces itself, nor
    element by element where they are nested.
    """
    tensors = [one for one in values if isinstance(one, torch.Tensor)]
    return not any(one.is_meta or one.is_nested or is_fake(one) or is_batched(one) for one in tensors)


@harmless("the modes of a backward")
def _take_off(mode: Watch) -> None:
    """Also from below others that the program has left on the stack."""
    stack = mode_stack()
    if mode not in stack:
        return  # it was not needed
    above = stack[stack.index(mode) + 1 :]
    for _ in range(len(above) + 1):
        pop_mode()
    for one in above:
        push_mode(one)


class Watch(TorchFunctionMode):
    """Hears the calls of torch in one thread."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in SILENT:
            return func(*args, **kwargs)
        recorder = self.recorder
        if not recorder.is_on or own.depth or is_aside() or torch.compiler.is_compiling():
            return func(*args, **kwargs)
        before = recorder.before_call(func, args, kwargs)
        result = func(*args, **kwargs)
        recorder.after_call(func, args, kwargs, result, before)
        return result
