"""The functions that replace torch's own while a context or a listener of ours is entered. `patches` puts them in and takes them out.

They replace: functions that no mode sees, so that others can subscribe to their calls; `apply` of custom Functions; the function of a
checkpoint; the forward of modules with a fast path; how warnings are shown; the start of threads.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import CodeType, FrameType, MethodType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.compiler import is_compiling
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import BackwardHook

from .. import engine
from ..formula import Depth, our_formulas
from ..torch_table import private as torch_private
from ..torch_table.private import global_step_hooks, mode_count, mode_stack
from . import patches
from .harmless import show_located, unheard

# --- backwards, swaps of tensors, zero_grad: others subscribe to them -------------------------------------------------

Ending = Callable[[Any], object]  # gets the result of the call
CallSubscriber = Callable[..., Ending | None]


class CallHook:
    """A hook around the functions of torch that these patches replace. read(*args, **kwargs): what a subscriber gets of a call."""

    def __init__(self, replaced: Iterable[patches.Patch], read: Callable[..., tuple[object, ...]]) -> None:
        self._patches, self._read = tuple(replaced), read
        self._lock = threading.RLock()
        self.subscribers: tuple[CallSubscriber, ...] = ()

    def subscribe(self, subscriber: CallSubscriber) -> None:
        """subscriber(*arguments) is called before each call, in its thread, and must not raise. To subscribe twice is to subscribe once.

        The function that it returns is called after the call: with the result, with () if the result is None, with None if the call raised.
        """
        with self._lock:
            if subscriber not in self.subscribers:
                self.subscribers = (*self.subscribers, subscriber)
            patches.apply_all(dict.fromkeys(self._patches, self._wrap))

    def unsubscribe(self, subscriber: CallSubscriber) -> None:
        """With the last subscriber, torch has its own function again."""
        with self._lock:
            self.subscribers = tuple([other for other in self.subscribers if other != subscriber])
            if not self.subscribers:
                patches.remove_all(self._patches)

    def _wrap(self, function: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(function, updated=())
        def call(*args: object, **kwargs: object) -> object:
            if our_formulas.depth or unheard.depth:  # a computation of ours is no step of the program
                return function(*args, **kwargs)
            arguments = self._read(*args, **kwargs)
            outcome: object = None

            def finish(end: Ending | None) -> None:
                if end is not None:
                    end(outcome)

            with ExitStack() as endings:  # it calls each ending, even if another one raises
                for subscriber in self.subscribers:
                    endings.callback(finish, subscriber(*arguments))
                result = function(*args, **kwargs)
                outcome = () if result is None else result
                return result

        return call


def _backward_arguments(
    roots: object, grads: object = None, *others: object, inputs: object = None, **keywords: object
) -> tuple[object, ...]:
    """Read a call of `_engine_run_backward`. Among the arguments by position, keep_graph and create_graph stand before the inputs."""
    return roots, grads, others[2] if len(others) > 2 else inputs


# subscriber(roots, their gradients, the inputs whose gradients alone are computed; None or empty for all leaves)
backwards = CallHook(patches.BACKWARD, _backward_arguments)
# subscriber(tensor, other tensor): by a swap a module changes what its parameters are
swaps = CallHook([patches.SWAP_TENSORS], lambda t1, t2: (t1, t2))
# subscriber(optimizer, set_to_none)
clearings = CallHook([patches.ZERO_GRAD], lambda self, set_to_none=True: (self, set_to_none))


def _copied_values(hooks: dict[int, object]) -> list[object]:
    """`values` of the dict of hooks that a step goes through, as a copy: another thread may add a hook of ours during the step."""
    return list(type(hooks).values(hooks))


for _patch, _hooks in zip(patches.HOOKS_OF_STEPS, global_step_hooks(), strict=False):
    patches.while_listening.replacements[_patch] = lambda hidden, hooks=_hooks: functools.partial(_copied_values, hooks)  # type: ignore[misc]


# --- modes whose context another thread has ended ---------------------------------------------------------------------

# Each thread has its own stack of modes. If another thread ends a context, its mode stays on the stack and does nothing there. The next
# `zero_grad` in its thread takes it off, or the next entry of a context. Until then all that is replaced in contexts stays replaced,
# so that torch computes the same as without a mode.
ended: dict[int, weakref.finalize[Any, Any]] = {}  # by the id of the mode: what restores torch


def note_ended(mode: TorchFunctionMode) -> None:
    """A context of another thread has ended here."""
    patches.in_contexts.__enter__()
    clearings.subscribe(take_off_ended)
    # If the thread ends, its stack and the mode end with it.
    ended[id(mode)] = finalizer = weakref.finalize(mode, _restore, id(mode))
    finalizer.atexit = False


def take_off_ended(*arguments: object) -> None:
    """Take the modes off the stack of this thread whose context another thread has ended."""
    for mode in mode_stack() if ended else ():
        finalizer = ended.get(id(mode))
        if finalizer is not None:
            torch_private.take_off_the_stack(mode)
            finalizer()


def _restore(mode_id: int) -> None:
    """Restore torch: the mode with this id is on no stack any more."""
    del ended[mode_id]
    patches.in_contexts.__exit__()
    if not ended:
        clearings.unsubscribe(take_off_ended)


# --- custom Functions -------------------------------------------------------------------------------------------------

# No mode sees a call of `apply`, and the code inside a Function makes no graph. This holds for a user's Functions and for ours.
Watcher = Callable[[object], None]

_inside = Depth()
_lock = threading.RLock()
_watchers: tuple[Watcher, ...] = ()
_watch_of_engine = ExitStack()  # in it, the engine reports our own Functions


def is_inside_function() -> bool:
    """Does a Function run in this thread? Known while `watch_functions` is entered."""
    return _inside.depth > 0


@contextmanager
def watch_functions(watcher: Watcher) -> Iterator[None]:
    """While it is entered, watcher(result) is called after each Function, in every thread. Contexts may end in any order."""
    global _watchers
    with _lock:
        if not _watchers:
            _watch_of_engine.enter_context(engine.watch(_begin_own_function))
            patches.APPLY.apply(_Apply)
        _watchers = (*_watchers, watcher)
    try:
        yield
    finally:
        with _lock:
            rest = list(_watchers)
            rest.remove(watcher)
            _watchers = tuple(rest)
            if not _watchers:
                _watch_of_engine.close()
                patches.APPLY.remove()


class _Apply:
    """Replaces `apply` of torch.autograd.Function.

    hidden: the `apply` of another library that was there; None if there was torch's, which Function inherits.
    """

    def __init__(self, hidden: classmethod[object, ..., object] | None) -> None:
        self.hidden = hidden

        @functools.wraps(torch.autograd.Function.apply, updated=())
        def apply(cls: type, *args: object, **kwargs: object) -> object:
            with _inside:
                result = self._original_for(cls)(*args, **kwargs)
            _call_watchers(result)
            return result

        self._watched = apply

    def _original_for(self, cls: type) -> Callable[..., object]:
        above: Any = super(torch.autograd.Function, cls)
        return above.apply if self.hidden is None else self.hidden.__get__(None, cls)

    def __get__(self, instance: object, cls: type) -> Callable[..., object]:
        is_ours = cls.__module__ == engine.__name__  # `engine.watch` reports these
        return self._original_for(cls) if is_ours else MethodType(self._watched, cls)


def _begin_own_function() -> Callable[[object], None]:
    _inside.__enter__()
    return _end_own_function


def _end_own_function(result: object) -> None:
    _inside.__exit__()
    _call_watchers(result)


def _call_watchers(result: object) -> None:
    for watcher in _watchers if result is not None else ():
        watcher(result)


def module_hooks_around(frame: FrameType | None) -> list[Callable[..., object]]:
    """The program's backward hooks of a module, if this frame is part of the code by which torch attaches them."""
    while frame is not None:
        owner = frame.f_locals.get("self") if frame.f_code in _MODULE_HOOKS else None
        if owner is not None:
            return list(getattr(owner, _MODULE_HOOKS[frame.f_code]))
        frame = frame.f_back
    return []


_MODULE_HOOKS: dict[CodeType, str] = {  # by the method of torch that attaches the hooks: the attribute that holds them
    BackwardHook.setup_input_hook.__code__: "user_hooks",
    BackwardHook.setup_output_hook.__code__: "user_pre_hooks",
}


# --- checkpoints ------------------------------------------------------------------------------------------------------

# A checkpoint runs its forward twice, and torch compares what both runs save. Under other contexts of ours, the second run would save other
# tensors. So the second run gets the surroundings of the first one, in whatever thread it is. A checkpoint notes its surroundings if a
# context of ours is entered, and keeps the notes as long as its graph exists.


class Surrounding(NamedTuple):
    """read(): what surrounds the forward of a checkpoint. restore(noted): a context with it; noted is None without a forward."""

    read: Callable[[], object]
    restore: Callable[[Any], AbstractContextManager[object]]


_surroundings: dict[str, Surrounding] = {}


def surround(what: str, read: Callable[[], object], restore: Callable[[Any], AbstractContextManager[object]]) -> None:
    """From now on, every checkpoint notes this surrounding if a context of ours is entered."""
    _surroundings[what] = Surrounding(read, restore)


class _FunctionOfCheckpoint:
    """Descriptor for the attribute in which a checkpoint keeps its function: the forward sets it, and the recomputation reads it.

    A checkpoint without reentry keeps it in a frame, and one with reentry in the node of its CheckpointFunction.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __set__(self, owner: object, function: Callable[..., object]) -> None:
        notes = {what: surrounding.read() for what, surrounding in _surroundings.items()}
        vars(owner)[self._name] = _Surrounded(function, notes)

    def __get__(self, owner: object, kind: type) -> object:
        if owner is None:
            return self
        try:
            function = vars(owner)[self._name]
        except KeyError:  # another library's class of the same name has attributes of its own
            raise AttributeError(self._name) from None
        return function if isinstance(function, _Surrounded) else _Surrounded(function, {})


class _Surrounded:
    """The function of a checkpoint. It runs under what surrounded its forward, and a checkpoint inside it notes the same again."""

    def __init__(self, function: Callable[..., object], notes: dict[str, object]) -> None:
        self._function, self._notes = function, notes

    def __call__(self, *args: object, **kwargs: object) -> object:
        with ExitStack() as stack:
            stack.enter_context(patches.in_contexts)
            for what, surrounding in _surroundings.items():
                stack.enter_context(surrounding.restore(self._notes.get(what)))
            return self._function(*args, **kwargs)


_FUNCTIONS = {patch: _FunctionOfCheckpoint(patch.attribute) for patch in patches.CHECKPOINTS}
for _patch, _function in _FUNCTIONS.items():
    patches.in_contexts.replacements[_patch] = lambda hidden, function=_function: function  # type: ignore[misc]


# --- arguments that torch loses ---------------------------------------------------------------------------------------

# These functions of torch leave an argument out when they hand their call to a mode of functions.
_FUNCTIONS_THAT_LOSE = (
    (functional, "l1_loss", "weight"),
    (Tensor, "dim_order", "ambiguity_check"),
    (torch, "chain_matmul", "out"),
)
LOST_ARGUMENTS: dict[object, str] = {
    getattr(owner, name, None): argument for owner, name, argument in _FUNCTIONS_THAT_LOSE
}


def find_lost_argument(func: Callable[..., object], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The keywords of a call, with the argument that torch left out. The frame of the function, which has called the mode, still has it."""
    name, code = LOST_ARGUMENTS.get(func), getattr(func, "__code__", None)
    if name is None or name in kwargs:
        return kwargs
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    value = None if frame is None else frame.f_locals.get(name)
    return kwargs if value is None else {**kwargs, name: value}


# --- fast paths -------------------------------------------------------------------------------------------------------

# Attention and transformers in evaluation keep torch's fast path under a mode of ours. Torch takes its slow path if a mode of functions is
# on the stack, and that path returns other values for padded positions.

_ASKING = {patch.name.rsplit(".", 2)[0] for patch in patches.FAST_PATHS}


@functools.lru_cache(maxsize=16)  # a library may put another forward there each time
def _dispatch(forward: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(forward)
    def call(*args: object, **kwargs: object) -> object:
        if is_compiling() or not mode_count():
            return forward(*args, **kwargs)
        take_off_ended()
        with _while_a_module_asks:
            return forward(*args, **kwargs)

    return call


def _ask_without_us(has_torch_function: Callable[[object], bool]) -> Callable[[object], bool]:
    """Torch asks whether a mode or a class sees a call. One of these modules gets the answer that it gets without our modes."""

    def ask(arguments: object) -> bool:
        modes = mode_stack() if sys._getframe(1).f_globals.get("__name__") in _ASKING else []
        if not all(type(mode).__module__.startswith("pseudograd") for mode in modes):
            modes = []
        try:
            for _ in modes:
                torch_private.pop_mode()
            return has_torch_function(arguments)
        finally:
            for mode in modes[mode_count() :]:
                torch_private.push_mode(mode)

    return ask


# Not for longer, because torch.jit.script looks the function up in a table.
_while_a_module_asks = patches.SharedPatches()
_while_a_module_asks.replacements[patches.HAS_TORCH_FUNCTION] = _ask_without_us
patches.in_contexts.replacements.update(dict.fromkeys(patches.FAST_PATHS, _dispatch))

# --- warnings ---------------------------------------------------------------------------------------------------------

# The replacement is made from the function that was there: show_located(that function, ...).
patches.in_contexts.replacements[patches.SHOW_WARNING] = functools.partial(functools.partial, show_located)
patches.in_contexts.replacements[patches.FILTERS_CHANGE] = functools.partial(
    functools.partial, patches.keep_filter_in_front
)


# --- threads ----------------------------------------------------------------------------------------------------------

# What makes the context of a new thread, for each `NewThreads` that is entered, the outermost first.
_makers: list[Callable[[], AbstractContextManager[object]]] = []
_threads_lock = threading.Lock()


class NewThreads:
    """Inside this block each thread that starts runs in a context of its own, which `context` makes. It may be entered again."""

    def __init__(self, context: Callable[[], AbstractContextManager[object]]) -> None:
        self._context = context

    def __enter__(self) -> None:
        with _threads_lock:
            _makers.append(self._context)
            patches.THREAD_START.apply(_starter)

    def __exit__(self, *exception: object) -> None:
        with _threads_lock:
            _makers.remove(self._context)
            if not _makers:
                patches.THREAD_START.remove()


def _starter(start_thread: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
    def start(thread: threading.Thread) -> None:
        run, attributes, makers = thread.run, vars(thread), tuple(_makers)
        has_own_run = "run" in attributes  # and not only that of its class

        def run_in_contexts() -> None:
            attributes.pop("run")
            if has_own_run:
                attributes["run"] = run
            with ExitStack() as stack:
                for make_context in makers:
                    stack.enter_context(make_context())
                run()

        if makers:
            attributes["run"] = run_in_contexts
        start_thread(thread)

    return start
