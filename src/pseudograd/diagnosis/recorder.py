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

from .. import torch_forms
from ..formula import own
from ..torch_private import current_node, mode_stack, node_creation_hook, pop_mode, push_mode
from ..trace import frames, nodes
from ..trace.frames import NOWHERE, Place
from . import slices, tally, values, windows
from .aside import aside, is_aside, passes_from
from .influence import Influence
from .leaves import Leaves
from .tally import Tally

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
        self.influence = Influence(self.leaves)
        self.reached = 0  # the leaves that some loss depends on by a differentiable path
        self.roots: dict[int, weakref.ref[torch.nn.Module]] = {}  # the outermost modules that ran
        self._named_roots: set[weakref.ref[torch.nn.Module]] = set()  # one of a dead module equals no other
        self._lock = threading.Lock()
        self._local = threading.local()
        self._order = 0
        self._ran_at: set[tuple[Any, ...]] = set()  # places at which a gradient has arrived
        self.before_backward: Callable[[Any, Any, list[Any]], None] | None = None
        self.after_backward: Callable[[int], None] | None = None
        self.errors: list[str] = []

    # --- nodes --------------------------------------------------------------------------------------------------------

    def made(self, node: Any) -> None:
        """A node was made, on a torch that says so."""
        if self.is_on and not own.depth and not is_aside():
            self._attach(node, 2)

    def _attach(self, node: Any, depth: int, place: Place | None = None) -> None:
        name = node.name()
        if name == _LEAF and place is None:
            frames.place(depth + 1, self.roots)  # a parameter is used for the first time: by which module?
        if name == _LEAF or name in _PASSING or self._attached in node.metadata:
            return
        node.metadata[self._attached] = True
        if place is None:
            place = frames.place(depth + 1, self.roots)
        to = self._tally(name, place)
        form = torch_forms.form_of_node(name)
        if form is not None:
            calling = getattr(self._local, "calling", _NOBODY)
            to.within = None if torch_forms.is_spelling_of(calling, form) else _name(calling)
        node.register_hook(partial(self._ran, to))

    def _tally(self, name: str, place: Place) -> Tally:
        key = (name, *place.key)
        found = self.tallies.get(key)
        if found is None:
            with self._lock:
                found = self.tallies.setdefault(key, Tally(name, place))
        return found

    def _ran(self, to: Tally, leaving: Any, arriving: Any) -> None:
        """After a node ran in a backward: gradients arrived, others leave."""
        if not self.is_on or is_aside():
            return
        try:
            with torch.no_grad(), own, aside:
                self._count(to, leaving, arriving)
        except Exception as error:  # a diagnosis never breaks a backward
            self.errors.append(f"{to.op}: {type(error).__name__}: {error}")

    def _count(self, to: Tally, leaving: Any, arriving: Any) -> None:
        if self.is_full and to.op == windows.NODE:
            self._look_at_windows(to, leaving)
        form = None
        if to.op == slices.NODE:
            leaving, arriving, form = slices.seen(current_node(), leaving, arriving)
        counted = tally.of_grads(leaving, arriving, self.is_full)
        if counted is None:
            return
        found, grads = counted
        is_first = not to.calls
        node = current_node() if self.is_full or is_first else None
        if is_first:
            self._ran_at.add(to.place.key)
        if is_first and node is not None:
            self._order += 1
            to.order = self._order
            to.form = form or torch_forms.form_of_node(to.op)
        if node is not None:
            to.leaves |= self.leaves.upstream(node)  # one line may serve several parameters
        if self.is_full and to.form is not None and node is not None:
            self._count_sides(to, node, grads, found)
        with self._lock:
            to.calls += 1
            to.add(found)

    def _count_sides(self, to: Tally, node: Any, grads: tally.Grads, found: tally.Sums) -> None:
        kept = torch_forms.kept_by(to.form, node)  # type: ignore[arg-type]
        if kept is None:
            return
        sides = tally.sides(grads, kept)
        if sides is not None:
            to.is_known = True
            to.has_tensor_bound = any(isinstance(one, torch.Tensor) for one in kept.inputs[1:])
            found.update(sides)

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

    def called(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A call of torch, which runs here."""
        spelling = torch_forms.SPELLINGS.get(func)
        seen = self._look(spelling, args, kwargs) if spelling is not None and self.is_full else None
        outer = getattr(self._local, "calling", _NOBODY)
        self._local.calling = func
        try:
            result = self._with_nodes(func, args, kwargs) if node_creation_hook is None else func(*args, **kwargs)
        finally:
            self._local.calling = outer
        if spelling is not None and args and result is args[0]:
            slices.note(spelling.form, result)
        elif seen is not None:
            self._follow(seen, result)
        self.influence.seen(func, args, kwargs, result)
        return result

    def _with_nodes(self, func: Any, args: Any, kwargs: Any) -> Any:
        ranges = self.ranges()
        if ranges.may_hide_some():
            for node in ranges.unseen_behind((*args, *kwargs.values()) if kwargs else args):
                self._attach(node, 0, NOWHERE)
        result, made = ranges.of_call(func, args, kwargs)
        if not made and ranges.may_hide_some():  # in place: the node is behind the argument
            made = ranges.unseen_behind((*args, *kwargs.values()) if kwargs else args)
        if made:
            place = frames.place(4, self.roots)
            for node in made:
                self._attach(node, 0, place)
        return result

    def applied(self, result: Any) -> None:
        """A custom Function ran, on a torch that announces no nodes."""
        if not self.is_on or is_aside():
            return
        # To read grad_fn is a call of torch, before which `called` would find the node and know no place for it.
        with own:
            made = nodes.of(result)
        place = None
        for node in made:
            place = place or frames.place(3, self.roots)
            self._attach(node, 0, place)
        self.ranges().forget()

    def _follow(self, seen: values.Values, result: Any) -> None:
        """The value of a clamp that no gradient arrives at, of something that learns: does a loss depend on it all the same?"""
        if isinstance(result, torch.Tensor) and (self.backwards or not result.requires_grad):
            self.influence.follow(seen, result)

    def _look(self, spelling: torch_forms.Spelling, args: Any, kwargs: Any) -> values.Values | None:
        given = args[0] if args else None
        try:
            with torch.no_grad(), own, aside:
                read = values.read(spelling, args, kwargs)
                if read is None:
                    return None
                place = frames.place(4, self.roots)
                key = (spelling.name, *place.key)
                found = self.values.get(key)
                if found is None:
                    found = self.values[key] = values.Values(spelling, place, *read)
                    if isinstance(given, torch.Tensor) and given.requires_grad:
                        found.upstream = self.leaves.of_tensor(given)
                        found.leaf = found.upstream if given.grad_fn is None else None
                    elif isinstance(given, torch.Tensor):
                        found.round = self.influence.cut_from(given)
                if spelling.form.switches[0] == "clamp":
                    found.add(*read)
                    if (found.upstream or found.round) and place.key not in self._ran_at:
                        return found
        except Exception as error:
            self.errors.append(f"{spelling.name}: {type(error).__name__}: {error}")
        return None

    # --- backwards ----------------------------------------------------------------------------------------------------

    def around_backward(self, roots: Any, grads: Any = None) -> Callable[[], None]:
        if not self.is_on or is_aside():
            return lambda: None
        is_outermost = not getattr(self._local, "depth", 0)
        self._local.depth = getattr(self._local, "depth", 0) + 1
        starts = nodes.starts(roots)
        if is_outermost:
            self.backwards += 1
            self._name_roots()
            self.influence.reached(roots)
        behind = nodes.behind(roots)
        for node in behind:  # nobody saw some being made: in another thread, or before the context
            self._attach(node, 0, NOWHERE)
        for start in starts:
            self.reached |= self.leaves.upstream(start)
        if is_outermost and self.before_backward is not None:
            with passes_from(starts):
                self.before_backward(roots, grads, behind)
        pushed = self._push()
        return partial(self._end, is_outermost, pushed)

    def _push(self) -> Watch | None:
        """Torch's stack of modes is empty in a backward, in which a checkpoint runs its forward again."""
        if any(isinstance(mode, Watch) and mode.recorder is self for mode in mode_stack()):
            return None
        mode = Watch(self)
        push_mode(mode)
        return mode

    def _end(self, is_outermost: bool, pushed: Watch | None) -> None:
        if pushed is not None:
            pop_mode()
        self._local.depth -= 1
        if is_outermost:
            for one in list(self.values.values()):
                one.end_step(one.place.key in self._ran_at)
            if self.after_backward is not None:
                self.after_backward(self.backwards)

    def _name_roots(self) -> None:
        """The parameters of modules that ran, where the user named no model."""
        for reference in list(self.roots.values()):
            module = reference()
            if module is None or reference in self._named_roots:
                continue
            prefix = f"{type(module).__name__}." if self._named_roots else ""
            self._named_roots.add(reference)
            self.leaves.add_module(module, prefix)


class Watch(TorchFunctionMode):
    """Hears the calls of torch in one thread."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        recorder = self.recorder
        if not recorder.is_on or own.depth or is_aside() or torch.compiler.is_compiling():
            return func(*args, **kwargs)
        return recorder.called(func, args, kwargs)
