"""In a process of the program: keeps the arguments of the calls that differ, as they were before them, and the gradients that arrive."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node

from pseudograd.listen import frames
from pseudograd.listen.harmless import harmless
from pseudograd.listen.program.follow import Enough
from pseudograd.listen.quietly import quietly

from ..digests import is_readable
from ..following import Following, Heard, name_of
from ..recording import BACKWARD, FORWARD
from ..schedule import Schedule
from .text import UnwritableError, argument_text, index_text, name_function, own_memory

_MOST = 512 << 20  # bytes of one call
_NAMES = "xabcdefghijklmnopqrstuvwz"
Copies = Mapping[int, tuple[Tensor | str, bool]]  # by the id of a tensor: see `_copy`


class KeptCall:
    """One call, written so that another process can run it again. why: what keeps it from being written.

    requires: the tensors of these names required a gradient. outputs: those that require one; None is the only output. grads: the gradient
    that arrived, by the output.
    """

    def __init__(self) -> None:
        self.why = ""
        self.spec: dict[str, Any] = {"requires": []}
        self.tensors: dict[str, Tensor] = {}
        self.outputs: list[int | None] = []
        self.grads: dict[int | None, Tensor] = {}

    def write(self, function: object, args: Iterable[object], kwargs: Mapping[str, object], copies: Copies) -> None:
        """copies: of the tensors among the arguments."""
        names: dict[int, str] = {}

        def name(tensor: Tensor) -> str:
            copy, requires = copies[id(tensor)]
            if isinstance(copy, str):
                raise UnwritableError(copy)
            if id(tensor) not in names:
                if len(names) == len(_NAMES):
                    raise UnwritableError(f"it has more than {len(_NAMES)} tensors")
                key = names[id(tensor)] = _NAMES[len(names)]
                self.tensors[key] = copy
                self.spec["requires"] += [key] if requires else []
            return names[id(tensor)]

        try:
            form, public_name = name_function(function)
            text = index_text if public_name == "__getitem__" else argument_text
            texts = [(text if at else argument_text)(value, name) for at, value in enumerate(args)]
            named = {key: argument_text(value, name) for key, value in kwargs.items()}
            self.spec |= {"form": form, "name": public_name, "args": texts, "kwargs": named}
        except UnwritableError as error:
            self.why = str(error)

    def content(self) -> dict[str, object]:
        """Plain values, and bytes that torch reads as tensors alone."""
        names = {at: f"grad{'' if at is None else at}" for at in self.grads}
        tensors = {**self.tensors, **{names[at]: grad for at, grad in self.grads.items()}}
        if sum(tensor.untyped_storage().nbytes() for tensor in tensors.values()) > _MOST:
            self.why = f"its tensors have {sum(tensor.numel() for tensor in tensors.values()):,} entries together"
        file = io.BytesIO()
        torch.save({} if self.why else tensors, file)
        grads = [[at, names.get(at)] for at in self.grads or self.outputs]
        return {"why": self.why, **self.spec, "grads": grads, "tensors": file.getvalue()}


def _copy(tensor: Tensor) -> tuple[Tensor | str, bool]:
    """What the tensor holds now, or why it cannot be written; and whether it requires a gradient."""
    if type(tensor) not in (Tensor, torch.nn.Parameter):
        return f"an argument is a {type(tensor).__name__}, no plain tensor", False
    if not is_readable(tensor):
        return "an argument is inside a transform of torch.func, or is sparse, nested or without data", False
    if tensor.numel() * tensor.element_size() > _MOST:
        return f"one of its tensors has {tensor.numel():,} entries", False
    return own_memory(tensor), tensor.requires_grad


def _tensors_in(value: object) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, slice):
        value = (value.start, value.stop, value.step)
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else ()
    return [tensor for item in items for tensor in _tensors_in(item)]


def _find_autocast() -> list[str] | None:
    """The device and the dtype; None outside of autocast."""
    for device in ("cpu", "cuda"):
        if torch.is_autocast_enabled(device):
            return [device, str(torch.get_autocast_dtype(device))]
    return None


class Keeper(Heard):
    """targets: keys of events of that step, in the order of the program; the last one ends it."""

    def __init__(self, schedule: Schedule, targets: Sequence[Sequence[Any]]) -> None:
        super().__init__(schedule)
        self._pending: Any = _NoDigests()
        self._targets = [(*key[:3], tuple(key[3]), key[4]) for key in targets]
        self._lines = {(key[0], key[2]) for key in self._targets}
        self._forward = {key[:3] for key in self._targets}
        self._counts: dict[tuple[object, ...], int] = {}
        self._keys: list[tuple[str, ...]] = []
        self._call: KeptCall | None = None  # whose nodes are being made, or run
        self.calls: dict[int, KeptCall | None] = {}  # by target; None where no call made that node

    def before_call(self, func: object, args: object, kwargs: object) -> Any:
        number = super().before_call(func, args, kwargs)
        return None if number is None else (number, self._take(func, args, kwargs))

    @harmless("the arguments of a call")
    def _take(self, func: object, args: object, kwargs: object) -> object:
        with quietly():
            line = frames.named(self._places.here(3).call)
            if (BACKWARD, line) not in self._lines and (FORWARD, name_of(func), line) not in self._forward:
                return None
            tensors = _tensors_in([args, kwargs])
            return {id(tensor): _copy(tensor) for tensor in tensors}, _find_autocast()

    def after_call(self, func: object, args: object, kwargs: Any, result: object, before: Any) -> None:
        if before is None:
            return
        number, taken = before
        self._call = None if taken is None else self._keep(func, args, kwargs or {}, result, *taken)
        super().after_call(func, args, kwargs, result, number)
        self._call = None
        if len(self._targets) - 1 in self.calls and not self._depth:  # a backward goes on to its end
            raise Enough

    @harmless("a call that is to be cut out")
    def _keep(self, func: object, args: Any, kwargs: Any, result: object, copies: Copies, autocast: object) -> KeptCall:
        call = KeptCall()
        call.spec["autocast"] = autocast
        with quietly():
            call.write(func, args, kwargs, copies)
            outputs = enumerate(result) if isinstance(result, (tuple, list)) else [(None, result)]
            for at, output in outputs:
                if isinstance(output, Tensor) and output.requires_grad and not call.why:
                    call.outputs.append(at)
                    output.register_hook(partial(self._keep_gradient, call, at))
        return call

    @harmless("the gradient that arrives at a call")
    def _keep_gradient(self, call: KeptCall, at: int | None, grad: Tensor) -> None:
        with quietly():
            call.grads[at] = own_memory(grad)

    def _attach(self, node: Node, site: int) -> None:
        node.register_hook(partial(self._run_node, self._call, site))

    def _run_node(self, call: KeptCall | None, site: int, leaving: object, arriving: object) -> None:
        self._call = call
        self._ran(site, leaving, arriving)
        self._call = None

    def _add(self, site: int, values: Iterable[object], said: str = "", arrived: Iterable[object] = ()) -> None:
        """Compares the event with the targets."""
        before = len(self._events)
        super()._add(site, values, said, arrived)
        if len(self._events) == before:
            return
        *_, tensors = self._events[-1]
        if site >= len(self._keys):
            self._keys = list(self.sites)
        kind, op, where, *_ = self._keys[site]
        if (kind, where) not in self._lines:
            return
        key = (kind, op, where, tuple(shape for _, shape, _ in tensors))
        self._counts[key] = self._counts.get(key, -1) + 1
        for at, target in enumerate(self._targets):
            if target == (*key, self._counts[key]):
                self.calls[at] = self._call

    def content(self) -> dict[str, object]:
        with quietly():
            calls = {at: call and call.content() for at, call in self.calls.items()}
        return {**super().content(), "calls": calls}


class _NoDigests:
    """In place of digests, which nobody needs here."""

    def __init__(self) -> None:
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, value: object) -> int:
        self._count += 1
        return self._count - 1

    def fetch(self) -> list[tuple[()]]:
        digests, self._count = [()] * self._count, 0
        return digests


class _Keeping(Following):
    def _hearing(self, schedule: Schedule, settings: Mapping[str, Any]) -> Keeper:
        return Keeper(schedule, settings["targets"])


begin = _Keeping.begin
