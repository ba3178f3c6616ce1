"""The context around training code, and its report. Compiled code hides its nodes, so it runs eagerly inside the context."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..dynamo import when_dynamo_arrives
from ..errors import must
from ..formula import Depth
from ..listen import hooks, nodes, patches
from ..listen.harmless import harmless
from ..listen.listener import Listener, listening
from ..torch_table import forms as torch_forms  # noqa: F401  (its functions are looked up before any mode is entered)
from ..torch_table.eras import installed_era
from .count.optimisers import Rest
from .count.recorder import Recorder
from .count.stalls import Stalls
from .records import FIELDS, Report

if TYPE_CHECKING:
    from .count.whatif import WhatIfMeter
    from .judge.deliberate import Deliberate
    from .judge.findings import Results

_NOT_COMPILED = "diagnose: the context must be entered outside code that torch.compile runs"


class Readable(Report):
    """A report of one process or of several. The modules that write text, page and JSON are imported when they are needed."""

    def to_json(self) -> dict[str, object]:
        """Everything, in plain lists, dictionaries and numbers."""
        from .tell.as_json import json_of

        return json_of(self)

    def metrics(self) -> dict[str, float]:
        """A flat dict for any logger: "pseudograd/findings/cut", "pseudograd/cut/gate.py:7", "pseudograd/norm/fc.weight" and so on."""
        from .tell.metrics import metrics_of

        return metrics_of(self)

    def __str__(self) -> str:
        from .tell.text import text

        return text(self)

    def _repr_html_(self) -> str:
        from ..notebook import to_frame
        from .tell.page import page

        return to_frame(page(self))

    def write_html(self, file: str | Path) -> Path:
        """Write one self-contained page. Raises ValueError where that fails; an older file stays until the new one is complete."""
        from ..listen.program.files import checked_file, write
        from .tell.page import page

        target = checked_file("diagnose", "file", Path(file))
        write("diagnose", "file", target, page(self))
        return target


class Diagnosis(Readable):
    """A context around training steps; enter it once. Inside it the fields of the report say what has happened so far."""

    def __init__(
        self,
        model: nn.Module | None,
        whatif: Mapping[str, object] | None,
        detail: str,
        ignore: Sequence[str] = (),
        sensitivity: int | bool = False,
    ) -> None:
        if model is not None and not isinstance(model, nn.Module):
            remedy = "Give the module whose parameters are trained, or nothing: modules that run are found"
            raise TypeError(must("diagnose", "model", "be a torch.nn.Module", model, remedy))
        if detail not in ("full", "counts"):
            raise ValueError(must("diagnose", "detail", "be 'full' or 'counts'", detail))
        self._ignore = ignore
        if ignore or isinstance(ignore, str):
            _ = self._deliberate  # raises the errors of `ignore` before any training
        self._recorder = recorder = Recorder(detail == "full")
        self.noted = recorder.noted
        self._stalls = Stalls(recorder.leaves, self.noted, lambda: recorder.loss)
        if recorder.is_full:
            recorder.optimisers.stalls = self._stalls
        if model is not None:
            recorder.leaves.add_module(model, is_given=True)
        if whatif or sensitivity is not False:
            recorder.whatif = _make_meter(recorder, whatif, sensitivity, self._deliberate)
        self._stack: contextlib.ExitStack | None = None
        self._has_ended = False
        self._final: Results | None = None

    @cached_property
    def _deliberate(self) -> Deliberate:
        from .judge.deliberate import Deliberate

        return Deliberate(self._ignore)

    def __enter__(self) -> Diagnosis:
        if self._stack is not None or self._has_ended:
            raise RuntimeError("diagnose: a diagnosis must be entered once, got a second time. Make a new one.")
        if torch.compiler.is_compiling():
            raise RuntimeError(_NOT_COMPILED)
        installed_era()  # measured now: the report may be made at the end of the process, when no thread starts
        recorder = self._recorder
        with contextlib.ExitStack() as stack:  # leaves what it has entered, if a later line raises
            stack.enter_context(_run_eagerly())
            stack.callback(setattr, recorder, "is_on", False)
            listener = Listener(recorder)
            recorder.optimisers.rest = rest = Rest(listener)
            stack.enter_context(listening(listener))
            stack.callback(rest.end, is_last=True)
            self._stack = stack.pop_all()
        recorder.is_on = True
        return self

    def __exit__(self, *exception: object) -> None:
        assert self._stack is not None, "entered"
        self._has_ended = True
        self._close(self._stack)
        self._stack = None

    @harmless("the end of the context")
    def _close(self, stack: contextlib.ExitStack) -> None:
        stack.close()
        if nodes.waiting:
            nodes.end_waiting()
        for handle in self._recorder.handles:
            handle.remove()
        self._recorder.leaves.name_by_variables(depth=2)
        self._recorder.optimisers.look_at_unheld(is_last=True)
        self._recorder.leaves.name_all()  # now, as what holds them may be gone when somebody reads this

    def stop_listening(self) -> None:
        """End the recording from any thread, wherever the program is. The modes that were entered stay and record nothing."""
        self._recorder.is_on, self._has_ended = False, True

    def after_backward(self, act: Callable[[int, Tensor | None], None]) -> None:
        """After each backward pass call act(number of passes so far, the loss if it is one number). If act raises, `errors` says so."""
        self._recorder.after_backward = act

    def __getattr__(self, name: str) -> Any:
        """A field of the report. Inside the context it is computed each time that somebody reads it, after the context only once."""
        if name not in FIELDS:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        from .judge.findings import Results

        results = self._final or Results(self._recorder, self._deliberate, self._stalls)
        if self._has_ended:
            self._final = results
        return getattr(results, name)


def _make_meter(
    recorder: Recorder, whatif: Mapping[str, object] | None, sensitivity: int | bool, deliberate: Deliberate
) -> WhatIfMeter | None:
    """The meter of the what-ifs and of the sensitivity; None if neither is requested."""
    from .count.sensitivity import SensitivityMeter, check_sensitivity
    from .count.whatif import WhatIfMeter, questions

    whatifs, every = questions(whatif), check_sensitivity(sensitivity)
    meter = SensitivityMeter(every, recorder.tally_of, deliberate.location) if every else None
    return WhatIfMeter(whatifs, recorder.leaves, recorder.noted, meter) if whatifs or meter is not None else None


# --- compiled code runs eagerly ---------------------------------------------------------------------------------------

_lock = threading.RLock()
_entering = Depth()
_diagnoses = 0  # the number of contexts that are entered now
_stance: AbstractContextManager[object] | None = None  # "force_eager" of torch.compiler, while it is set


@contextlib.contextmanager
def _run_eagerly() -> Iterator[None]:
    """Run compiled code eagerly. Contexts may overlap: the earlier stance comes back when the last of them has ended."""
    global _diagnoses
    with _lock:
        _diagnoses += 1
        patches.PARTS_TO_COMPILE.apply(_compile_in)
    try:
        with _entering:
            when_dynamo_arrives(_on_dynamo)
        with patches.in_contexts:
            yield
    finally:
        with _lock:
            _diagnoses -= 1
            if not _diagnoses:
                patches.PARTS_TO_COMPILE.remove()
                _reset_stance()


def _on_dynamo(dynamo: object) -> None:
    """Set the stance. An error is raised in code that enters a diagnosis, and only noted in a program that imports Dynamo later."""
    (_set_stance if _entering.depth else _set_stance_quietly)()


def _set_stance() -> None:
    global _stance
    with _lock:
        if _diagnoses and _stance is None:
            try:
                _stance = torch.compiler.set_stance("force_eager")
            except RuntimeError as error:
                raise RuntimeError(_NOT_COMPILED) from error


_set_stance_quietly = harmless("compiled code")(_set_stance)


@harmless("compiled code")
def _reset_stance() -> None:
    global _stance
    if _stance is not None:
        _stance.__exit__(None, None, None)
        _stance = None


@contextlib.contextmanager
def _recompute_as_before(was_eager: bool | None) -> Iterator[None]:
    """A checkpoint that was made inside a diagnosis recomputes eagerly; one made outside recomputes as it was compiled."""
    undo = _match_stance(was_eager)
    try:
        yield
    finally:
        if undo is not None:
            harmless("a checkpoint")(undo)()


@harmless("a checkpoint")
def _match_stance(was_eager: bool | None) -> Callable[[], object] | None:
    """Set or reset the stance. Returns the function that undoes this; None if there was nothing to do."""
    entered = _stance
    if was_eager and entered is None and "torch._dynamo" in sys.modules:
        stance = torch.compiler.set_stance("force_eager")
        return lambda: stance.__exit__(None, None, None)
    if not was_eager and entered is not None:
        entered.__exit__(None, None, None)
        return entered.__enter__
    return None


def _compile_in(
    environment: Callable[[], AbstractContextManager[object]],
) -> Callable[[], AbstractContextManager[object]]:
    """`torch.cond` and its like cannot run eagerly: they compile their parts inside this environment."""

    @contextlib.contextmanager
    def compiling() -> Iterator[object]:
        with _recompute_as_before(False), environment() as backend:
            yield backend

    return compiling


hooks.surround("diagnosis", lambda: _diagnoses > 0, _recompute_as_before)
