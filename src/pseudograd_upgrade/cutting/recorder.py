"""Records the arguments of the calls that differ, as they were before the call, and the gradients that arrive at them."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pseudograd.listen import frames
from pseudograd.listen.harmless import harmless, quietly
from pseudograd.listen.nodes import GraphNode
from pseudograd.listen.program.follow import Enough

from .. import recorder
from ..digests import is_readable
from ..recorder import Arguments, Recorder, Session, Settings, function_name
from ..recording import BACKWARD, FORWARD, Origin, Schedule
from .call import Call, NoProgramError, argument_text, copy_strided, name_function

_MOST_BYTES = 512 << 20
_NAMES = "xabcdefghijklmnopqrstuvwz"  # of the tensors of a call
Snapshot = tuple[Call, bytes]  # a call, and its tensors as torch.save writes them


class RecordedCall:
    """A call, with copies of its tensors from before the call. reason: why the call cannot be written, or ""."""

    def __init__(self, function: object, args: Arguments, kwargs: Mapping[str, object]) -> None:
        self.reason = ""
        self.tensors: dict[str, Tensor] = {}
        self.outputs: list[int | None] = []  # those that require a gradient; None is the only output
        self.grads: dict[int | None, Tensor] = {}  # the gradient that arrives at an output
        self._names: dict[int, str] = {}  # by the id of a tensor
        self._requires: set[str] = set()
        try:
            syntax, name = name_function(function)
            texts = tuple(argument_text(value, self._name) for value in args)
            named = {key: argument_text(value, self._name) for key, value in kwargs.items()}
            self.call = Call(FORWARD, syntax, name, texts, named)
        except NoProgramError as error:
            self.reason = str(error)

    def _name(self, tensor: Tensor) -> str:
        if id(tensor) not in self._names:
            if len(self._names) == len(_NAMES):
                raise NoProgramError(f"it has more than {len(_NAMES)} tensors")
            name = self._names[id(tensor)] = _NAMES[len(self._names)]
            self.tensors[name] = _copy(tensor)
            self._requires |= {name} if tensor.requires_grad else set()
        return self._names[id(tensor)]

    def content(self) -> str | Snapshot:
        """The call, or the reason why there is none."""
        names = {at: f"grad{'' if at is None else at}" for at in self.grads}
        tensors = {**self.tensors, **{names[at]: grad for at, grad in self.grads.items()}}
        if not self.reason and sum(tensor.untyped_storage().nbytes() for tensor in tensors.values()) > _MOST_BYTES:
            self.reason = f"its tensors have {sum(tensor.numel() for tensor in tensors.values()):,} entries together"
        if self.reason:
            return self.reason
        file = io.BytesIO()
        torch.save(tensors, file)
        grads = tuple((at, names.get(at)) for at in self.grads or self.outputs)
        return replace(self.call, requires=frozenset(self._requires), grads=grads), file.getvalue()


def _copy(tensor: Tensor) -> Tensor:
    """A copy of an argument. Raises NoProgramError for a tensor that a short program cannot make."""
    if type(tensor) not in (Tensor, torch.nn.Parameter):
        raise NoProgramError(f"an argument is a {type(tensor).__name__}, no plain tensor")
    if not is_readable(tensor):
        raise NoProgramError("an argument is inside a transform of torch.func, or is sparse, nested or without data")
    if tensor.numel() * tensor.element_size() > _MOST_BYTES:
        raise NoProgramError(f"one of its tensors has {tensor.numel():,} entries")
    return copy_strided(tensor)


class ArgumentRecorder(Recorder):
    """targets: keys of events of one step, in the order of the program. The program ends after the last one."""

    def __init__(self, schedule: Schedule, targets: Sequence[Sequence[Any]]) -> None:
        super().__init__(schedule)
        self._targets = [(*key[:3], tuple(key[3]), key[4]) for key in targets]
        self._lines_of_targets = {(key[0], key[2]) for key in self._targets}
        self._functions = {key[:3] for key in self._targets}
        self._counts: dict[tuple[object, ...], int] = {}
        self._current: RecordedCall | None = None  # the call that runs now, or whose node runs now
        self.calls: dict[int, RecordedCall | None] = {}  # by target; None if no call made the node

    def before_call(self, function: object, args: Arguments, kwargs: Mapping[str, object] | None) -> object:
        return super().before_call(function, args, kwargs), self._copy_arguments(function, args, kwargs)

    @harmless("the arguments of a call")
    def _copy_arguments(
        self, function: object, args: Arguments, kwargs: Mapping[str, object] | None
    ) -> RecordedCall | None:
        with quietly():
            line = frames.file_and_line(self._locations.here().call)
            name = function_name(function)
            if (BACKWARD, line) not in self._lines_of_targets and (FORWARD, name, line) not in self._functions:
                return None
            return RecordedCall(function, args, kwargs or {})

    def after_call(
        self, function: object, args: Arguments, kwargs: Mapping[str, object] | None, result: object, before: Any
    ) -> None:
        if before is None:  # `before_call` failed
            return
        seen_up_to, self._current = before
        if self._current is not None:
            self._follow_outputs(self._current, result)
        super().after_call(function, args, kwargs, result, seen_up_to)
        self._current = None
        has_last_target = len(self._targets) - 1 in self.calls
        if has_last_target and not self._depth:  # a backward runs to its end
            raise Enough

    @harmless("a call that is to be cut out")
    def _follow_outputs(self, call: RecordedCall, result: object) -> None:
        with quietly():
            outputs = enumerate(result) if isinstance(result, (tuple, list)) else [(None, result)]
            for at, output in outputs:
                if isinstance(output, Tensor) and output.requires_grad and not call.reason:
                    call.outputs.append(at)
                    output.register_hook(partial(self._copy_gradient, call, at))

    @harmless("the gradient that arrives at a call")
    def _copy_gradient(self, call: RecordedCall, at: int | None, grad: Tensor) -> None:
        with quietly():
            call.grads[at] = copy_strided(grad)

    def _attach(self, node: GraphNode, origin: Origin) -> None:
        node.register_hook(partial(self._run_node, self._current, origin))

    def _run_node(
        self, call: RecordedCall | None, origin: Origin, leaving: Sequence[object], arriving: Sequence[object]
    ) -> None:
        self._current = call
        self._after_node(origin, leaving, arriving)
        self._current = None

    def _add(self, origin: Origin, values: Iterable[object], options: str = "") -> None:
        """Add the event, and if it is a target keep its call."""
        count = len(self._events)
        super()._add(origin, values, options)
        if len(self._events) == count:
            return
        kind, op, where, *_ = origin
        if (kind, where) not in self._lines_of_targets:
            return
        key = (kind, op, where, tuple(shape for shape, _ in self._events[-1][2]))
        self._counts[key] = self._counts.get(key, -1) + 1
        for at, target in enumerate(self._targets):
            if target == (*key, self._counts[key]):
                self.calls[at] = self._current

    def content(self) -> dict[str, object]:
        with quietly():
            calls = {at: call and call.content() for at, call in self.calls.items()}
        return {**super().content(), "calls": calls}


class _Session(Session):
    def make_recorder(self, schedule: Schedule, settings: Settings) -> Recorder:
        return ArgumentRecorder(schedule, settings["targets"])


begin = partial(recorder.begin, session=_Session)
