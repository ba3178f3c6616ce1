"""Wrappers for our functions that torch calls. The program runs as it would without them.

An error of ours is noted and not raised. The wrapped functions run no code of the program, so no error of the program is caught here.
Our own computations run quietly: no diagnosis counts them, and no mode or transform of the program sees them.
A warning that torch raises in a call of the program names the program's line, as it would without us.
"""

from __future__ import annotations

import functools
import itertools
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import FrameType
from typing import Any, TypeVar

from torch import is_grad_enabled

from ..formula import Depth
from ..torch_table.private import (
    dispatch_modes,
    outside_of_transforms,
    set_grad_enabled,
    transforms_are_active,
    without_dispatch_modes,
    without_torch_function,
)
from .frames import OURS, is_ours
from .patches import BETWEEN

_MOST_ERRORS = 20  # texts that are stored; errors with further texts are only counted
_MOST_CHARACTERS = 200  # of an error's own text
_OWNERS_OF_OUR_ERRORS = {*sys.stdlib_module_names, "torch", "numpy", "pseudograd", "pseudograd_upgrade"}

Notes = TypeVar("Notes", bound=tuple[object, ...])
Hook = TypeVar("Hook", bound=Callable[..., object])


class Errors:
    """The errors of one diagnosis, and how often each came. Only texts are stored: an error holds frames, and frames hold tensors."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._others = 0
        self._lock = threading.RLock()  # a collection of garbage may run any code while it is held

    def note(self, what: str, error: BaseException) -> None:
        text = f"{what}: {_describe(error)}"
        with self._lock:
            if text in self._counts or len(self._counts) < _MOST_ERRORS:
                self._counts[text] = self._counts.get(text, 0) + 1
            else:
                self._others += 1

    @property
    def lines(self) -> list[str]:
        lines = [text if count == 1 else f"{text}, {count:,} times" for text, count in list(self._counts.items())]
        return [*lines, f"{self._others:,} errors of further kinds"] if self._others else lines


def harmless(what: str, otherwise: object = None) -> Callable[[Hook], Hook]:
    """Decorator for a function that torch calls: `note` notes an Exception that the function raises, and `otherwise` is returned.

    Other errors are meant for the program and are raised: Ctrl-C, and all that the handler of a signal raises.
    what: names the function in the text of an error. For a method of an object with `noted`, errors are noted there.
    """

    def wrap(function: Hook) -> Hook:
        @functools.wraps(function)
        def call(*args: object) -> object:
            try:
                return function(*args)
            except Exception as error:
                note(what, error, args[0] if args else None)
                return otherwise

        return call  # type: ignore[return-value]

    return wrap


@harmless("a tensor that was freed")
def forget(notes: dict[int, Notes], key: int, reference: object) -> None:
    """Callback of a weak reference: delete the notes of its tensor, which begin with this reference.

    key: the id of the tensor. By now, the notes of another tensor may have the same key.
    """
    if key in notes and notes[key][0] is reference:
        del notes[key]


# --- errors that belong to no single diagnosis ------------------------------------------------------------------------

_lock = threading.RLock()
_listening: tuple[Errors, ...] = ()


def listen(errors: Errors) -> None:
    """Enter a diagnosis. An error that belongs to no single diagnosis is noted in each that is entered."""
    global _listening
    with _lock:
        _listening = (*_listening, errors)


def leave(errors: Errors) -> None:
    global _listening
    with _lock:
        _listening = tuple(other for other in _listening if other is not errors)


def note(what: str, error: Exception, owner: object) -> None:
    """Note an error in `owner.noted`; without that, in every diagnosis that is entered. An error of a signal handler is raised again."""
    raise_for_the_program(error)
    noted = getattr(owner, "noted", None)
    for errors in (noted,) if isinstance(noted, Errors) else _listening:
        errors.note(what, error)


def raise_for_the_program(error: Exception) -> None:
    """Raise the error again if the handler of a signal raised it, or another thread sent it. Python raises both in the middle of our code.

    A handler is recognised by its first two arguments: the number of the signal, and the frame that it interrupts. An error that another
    thread sent is a TimeoutError, or has a class of the program or of a package. Our lines raise no such error.
    """
    trace, interrupted = error.__traceback__, None
    while trace is not None:
        frame = trace.tb_frame
        values: list[object] = [] if interrupted is None else list(frame.f_locals.values())
        for first, second in itertools.pairwise(values):
            if second is interrupted and isinstance(first, int):
                raise error
        interrupted, trace = frame, trace.tb_next
    owner = type(error).__module__.partition(".")[0]
    is_foreign = owner not in _OWNERS_OF_OUR_ERRORS or isinstance(error, TimeoutError)
    if is_foreign and interrupted is not None and is_ours(interrupted.f_code.co_filename):
        raise error


def _describe(error: BaseException) -> str:
    """The type of an error, the first line of its text, and the last line of our code in its traceback."""
    try:
        first = (str(error).strip().splitlines() or [""])[0]
    except Exception:  # an error of a program's own class
        first = ""
    where, frame = "", error.__traceback__
    while frame is not None:
        file = frame.tb_frame.f_code.co_filename
        if is_ours(file) and file != __file__:
            where = f" ({os.path.relpath(file, OURS)}:{frame.tb_lineno})"
        frame = frame.tb_next
    return f"{type(error).__name__}: {first[:_MOST_CHARACTERS]}{where}"


# --- computations of ours ---------------------------------------------------------------------------------------------

unheard = Depth()  # above 0 while a diagnosis computes for itself in this thread: our hooks count nothing then


class quietly:  # noqa: N801  (a context)
    """A context for our own computations on tensors of the program. It may be entered inside another.

    The program's own function modes, dispatch modes (a counter of FLOPs, selective checkpoints, fake tensors) and transforms of torch.func
    are off inside: if they saw our computations, they would count or change them.
    """

    # A signal's handler may raise an error after each call, and at the begin of a function. So what undoes a change is known before the
    # change, and what was not undone here is undone when the error is gone.
    _has_grad = _is_entered = False

    def __enter__(self) -> None:
        self._contexts: list[AbstractContextManager[object]] = []
        self._without_functions = without_torch_function()
        try:
            unheard.depth += 1
            self._is_entered = True
            self._without_functions.__enter__()
            if is_grad_enabled():
                self._has_grad = True
                set_grad_enabled(False)
            if dispatch_modes():
                self._enter(without_dispatch_modes())
            if transforms_are_active():
                self._enter(outside_of_transforms())
        except BaseException:
            self.__exit__()
            raise

    def _enter(self, context: AbstractContextManager[object]) -> None:
        context.__enter__()
        self._contexts.append(context)

    def __exit__(self, *exception: object) -> None:
        if not self._is_entered:
            return
        unheard.depth -= 1
        self._is_entered = False
        try:
            while self._contexts:
                self._contexts.pop().__exit__(None, None, None)
        finally:
            try:
                if self._has_grad:
                    set_grad_enabled(True)
            finally:
                self._without_functions.__exit__(None, None, None)

    __del__ = __exit__


def quiet(what: str) -> Callable[[Hook], Hook]:
    """Decorator for a hook of a diagnosis: the hook runs inside `quietly`, and an error is noted and not raised, as by `harmless`.

    The hook does not run while its diagnosis is off, or while any diagnosis computes for itself in this thread.
    what: names the hook in the text of an error. The hook's first argument has `is_on`, and `noted` for the errors.
    """

    def wrap(function: Hook) -> Hook:
        @functools.wraps(function)
        def call(owner: Any, *args: object) -> None:
            if owner.is_on and not unheard.depth:
                try:
                    with quietly():
                        function(owner, *args)
                except Exception as error:
                    note(what, error, owner)

        return call  # type: ignore[return-value]

    return wrap


# --- warnings of the program's calls ----------------------------------------------------------------------------------

_OVERRIDES = f"torch{os.sep}overrides.py"  # through it a function of torch that is written in Python calls a mode


def show_located(show: Callable[[Any], object], message: Any) -> None:
    """Show a warning. If our frames moved it, issue it again at the line that it would have without us.

    The program's filters, and its count of one warning for each line, then apply to that line.
    """
    caller, frame = sys._getframe(1), None
    if caller.f_code is not show_located.__code__:  # if it is, the outer one has looked
        frame = _frame_without_us(caller, message.filename, message.lineno)
    name = "" if frame is None else frame.f_globals.get("__name__", "<string>")
    if frame is None or BETWEEN.match(name):
        if not message.filename.endswith(_OVERRIDES):  # torch itself hides warnings of the functions in this file
            show(message)
        return
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    warnings.warn_explicit(
        message.message,
        message.category,
        frame.f_code.co_filename,
        frame.f_lineno,
        name,
        registry,
        source=message.source,
    )


def _frame_without_us(frame: FrameType | None, file: str, line: int) -> FrameType | None:
    """The frame that a warning would name if our frames were not there; None if the warning names it already.

    It is as many steps outwards, without our frames, as the file and line that the warning names are with them.
    """
    depth, outer, is_moved = 0, frame, False
    while outer is not None and (outer.f_code.co_filename, outer.f_lineno) != (file, line):
        is_moved = is_moved or is_ours(outer.f_code.co_filename)
        outer, depth = outer.f_back, depth + 1
    is_between = is_ours(file) or file.endswith(_OVERRIDES)
    if not is_between and (not is_moved or frame is None or is_ours(frame.f_code.co_filename)):
        return None
    return next(itertools.islice(_frames_without_us(frame), depth, None), None)


def _frames_without_us(frame: FrameType | None) -> Iterator[FrameType]:
    """The frames outwards, without ours. If a function of torch in Python has a frame on both sides of ours, only the inner one counts."""
    inner: FrameType | None = None
    while frame is not None:
        if not is_ours(frame.f_code.co_filename):
            yield frame
            inner, frame = frame, frame.f_back
            continue
        while frame is not None and is_ours(frame.f_code.co_filename):
            frame = frame.f_back
        caller = frame.f_back if frame is not None and frame.f_code.co_filename.endswith(_OVERRIDES) else None
        if caller is not None and inner is not None and caller.f_code is inner.f_code:
            frame = caller.f_back
