"""A listener of a program, and the subscriber that hears calls of torch, custom Functions, backwards, steps of optimisers, nodes and swaps.

`override` has another mode, because it replaces calls. Its report uses the frames and the nodes of this folder, too.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager

import torch
from torch import Tensor
from torch.compiler import is_compiling
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode

from ..formula import our_formulas
from ..torch_table.private import (
    end_mode,
    has_mode_stack,
    is_tracing,
    marks_of_profiles,
    mode_stack,
    node_creation_hook,
    push_mode,
    set_grad_enabled,
    take_off_the_stack,
)
from ..torch_table.records import Arguments, Keywords
from . import hooks, patches
from .harmless import Errors, harmless, leave, listen, note, unheard
from .hooks import Ending, backwards, clearings, swaps

Function = Callable[..., object]
# Three of four calls in a training step are of these. They read no value and make no node, so no subscriber hears them.
_PROPERTIES = "grad requires_grad is_leaf shape dtype device layout ndim itemsize nbytes _version"
_KINDS = "is_sparse is_nested is_cpu is_cuda is_meta is_quantized"
_QUERIES = "dim size numel stride is_contiguous is_complex is_floating_point"
SILENT: frozenset[object] = frozenset(
    [
        *(getattr(Tensor, name).__get__ for name in (*_PROPERTIES.split(), *_KINDS.split())),
        *(getattr(Tensor, name) for name in _QUERIES.split()),
        Tensor.grad.__set__,  # type: ignore[union-attr]
        *marks_of_profiles,
        *(torch.is_complex, torch.is_floating_point, set_grad_enabled),
    ]
)
# One look-up for each call. True: the function is silent. False: torch leaves out an argument of the function when it calls a mode
# (see `hooks.LOST_ARGUMENTS`). No entry: any other function.
_is_silent = {**dict.fromkeys(hooks.LOST_ARGUMENTS, False), **dict.fromkeys(SILENT, True)}


class Subscriber:
    """What to do with the things that a listener hears. If a method is None, nothing of torch is replaced to hear that thing."""

    is_on: bool
    # The listener notes errors of `before_call` and `after_call` here. The other methods note theirs themselves.
    noted: Errors

    # function, args, kwargs; its result is an argument of `after_call`, or None if it raises
    before_call: Callable[..., object]
    after_call: Callable[..., None]  # function, args, kwargs, the result of the call and of `before_call`
    on_backward: Callable[..., Ending] | None = None  # roots, their gradients, inputs
    on_function: Callable[..., None] | None = None  # the result of a custom Function
    on_node: Callable[..., None] | None = None  # on a torch that announces nodes
    on_swap: Callable[..., Ending] | None = None  # two tensors, which torch.utils.swap_tensors swaps
    on_clearing: Callable[..., Ending | None] | None = None  # an optimiser, set_to_none
    before_step: Callable[..., None] | None = None  # an optimiser, the arguments of its step
    after_step: Callable[..., None] | None = None


class Listener(TorchFunctionMode):
    def __init__(self, subscriber: Subscriber) -> None:
        super().__init__()
        self.subscriber = subscriber
        self._thread = threading.get_ident()

    def __exit__(self, *exception: object) -> None:
        """If another thread ends the context, `hooks.take_off_ended` takes the listener off the stack of its own thread later."""
        is_in_its_thread = self._thread == threading.get_ident()
        end_mode(self, is_in_its_thread)
        if not is_in_its_thread:
            hooks.note_ended(self)

    def __torch_function__(
        self, func: Function, types: Iterable[type], args: Arguments = (), kwargs: Keywords | None = None
    ) -> object:
        subscriber, is_silent = self.subscriber, _is_silent.get(func)
        if is_silent is False:
            kwargs = hooks.find_lost_argument(func, kwargs or {})
        if is_silent or not subscriber.is_on or our_formulas.depth or unheard.depth or is_compiling() or is_tracing():
            return self.run(func, args, kwargs)
        if types and not all(issubclass(kind, Tensor) for kind in types):
            # The class of an argument that is no tensor runs the call. A proxy of torch.fx, for one, would record all that we read of it.
            return self.run(func, args, kwargs)
        before = None
        try:
            before = subscriber.before_call(func, args, kwargs)
        except Exception as error:
            note("a call of torch", error, subscriber)
        result = self.run(func, args, kwargs)
        try:
            subscriber.after_call(func, args, kwargs, result, before)
        except Exception as error:
            note("a call of torch", error, subscriber)
        return result

    def run(self, func: Function, args: Arguments, kwargs: Keywords | None) -> object:
        return func(*args, **kwargs) if kwargs else func(*args)


@contextlib.contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """While it is entered, the subscriber of the listener hears the program: calls of torch in this thread, all else in every thread."""
    subscriber = listener.subscriber
    with contextlib.ExitStack() as stack:
        stack.enter_context(patches.while_listening)  # replaces what only listeners need, once for all of them
        listen(subscriber.noted)  # also for errors that belong to no single listener
        stack.callback(leave, subscriber.noted)
        for register, act in (
            (register_optimizer_step_pre_hook, subscriber.before_step),
            (register_optimizer_step_post_hook, subscriber.after_step),
        ):
            if act is not None:
                stack.callback(register(act).remove)
        for hook, subscribed in (
            (clearings, subscriber.on_clearing),
            (swaps, subscriber.on_swap),
            (backwards, subscriber.on_backward),
        ):
            if subscribed is not None:
                hook.subscribe(subscribed)
                stack.callback(hook.unsubscribe, subscribed)
        if node_creation_hook is not None and subscriber.on_node is not None:
            announcing = node_creation_hook(subscriber.on_node)
            announcing.__enter__()
            stack.callback(_end_announcing, announcing, threading.get_ident())
        if subscriber.on_function is not None:
            stack.enter_context(hooks.watch_functions(subscriber.on_function))
        stack.enter_context(patches.in_contexts)  # replaces what every context of ours needs
        hooks.take_off_ended()
        stack.enter_context(listener)
        yield


def _end_announcing(announcing: AbstractContextManager[object], thread: int) -> None:
    """Torch drops the newest hook of the running thread. So another thread leaves our hook, which does nothing: its subscriber is off."""
    if thread == threading.get_ident():
        announcing.__exit__(None, None, None)


@harmless("the modes of a backward", otherwise=False)
def push_in_backward(listener: Listener) -> bool:
    """Push the listener, unless its subscriber hears already. Returns whether the listener hears all calls: the stack was empty.

    In a backward, torch's stack of modes is empty, but a checkpoint runs its forward again there.
    """
    modes_before = mode_stack()
    if not any(isinstance(mode, Listener) and mode.subscriber is listener.subscriber for mode in modes_before):
        push_mode(listener)
    return not modes_before and has_mode_stack


@harmless("the modes of a backward")
def take_off(listener: Listener) -> None:
    """Take the listener off the stack, also from below modes that the program has left there."""
    take_off_the_stack(listener)
