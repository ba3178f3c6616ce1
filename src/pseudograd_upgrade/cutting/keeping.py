"""In a process of the program: the arguments of the call that differs, as they were before it, and the gradient that arrives at it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor
from torch.autograd.graph import Node

from pseudograd.listen import frames
from pseudograd.listen.harmless import harmless
from pseudograd.listen.program.follow import Enough
from pseudograd.listen.quietly import quietly

from ..following import Following, Heard, name_of
from ..recorded import BACKWARD, FORWARD, UPDATE
from ..schedule import Schedule
from . import names
from .memory import Before
from .trees import UnwritableError
from .written_call import Held, WrittenCall, autocast, listed, tensors_of, write_call, write_update


class _Uncounted:
    """In place of digests, which nobody needs here."""

    def __init__(self) -> None:
        self.count = 0

    def __len__(self) -> int:
        return self.count

    def add(self, value: object) -> int:
        self.count += 1
        return self.count - 1

    def fetch(self) -> list[tuple[float, ...]]:
        found, self.count = [()] * self.count, 0
        return found  # type: ignore[return-value]


class Keeper(Heard):
    """targets: keys of events of that step, in the order of the program; the last one ends it."""

    def __init__(self, schedule: Schedule, targets: Sequence[Sequence[Any]]) -> None:
        super().__init__(schedule)
        self._pending: Any = _Uncounted()
        self._targets = [(*key[:3], tuple(key[3]), key[4]) for key in targets]
        self._lines = {(key[0], key[2]) for key in self._targets}
        self._forward = {key[:3] for key in self._targets}
        self._seen: dict[tuple[object, ...], int] = {}
        self._keys: list[tuple[str, ...]] = []
        self._call: WrittenCall | None = None  # whose nodes are being made, or run
        self.found: dict[int, WrittenCall | None] = {}

    # --- before a call --------------------------------------------------------------------------------------------------

    def before_call(self, func: object, args: object, kwargs: object) -> Any:
        number = super().before_call(func, args, kwargs)
        return None if number is None else (number, self._taken(func, args, kwargs or {}))

    @harmless("the arguments of a call")
    def _taken(self, func: object, args: object, kwargs: Any) -> object:
        with quietly():
            line = frames.named(self._places.here(3).call)
            if (BACKWARD, line) not in self._lines and (FORWARD, name_of(func), line) not in self._forward:
                return None
            is_changed = kwargs.get("inplace") is True or name_of(func).endswith("_")
            return [
                Held(one, Before(one, is_changed), one.requires_grad) for one in tensors_of(args, kwargs)
            ], autocast()

    # --- after it -------------------------------------------------------------------------------------------------------

    def after_call(self, func: object, args: object, kwargs: object, result: object, before: Any) -> None:
        if before is None:
            return
        number, taken = before
        self._call = None if taken is None else self._written(func, args, kwargs, result, *taken)
        super().after_call(func, args, kwargs, result, number)
        self._call = None
        self._stop_if_over()

    @harmless("a call that is to be cut out")
    def _written(
        self, func: object, args: Any, kwargs: Any, result: object, held: Any, autocast: object
    ) -> WrittenCall:
        call = WrittenCall()
        with quietly():
            try:
                written = names.written(func)
                call.spec |= {"kind": BACKWARD, "autocast": autocast, "form": written.form, "name": written.name}
                write_call(call, names.Names(func, args, kwargs), args, kwargs, held)
            except UnwritableError as error:
                call.why = str(error)
            for at, one in [(None, result)] if isinstance(result, Tensor) else list(enumerate(listed(result))):
                if isinstance(one, Tensor) and one.requires_grad and not call.why:
                    call.outputs.append(at)
                    one.register_hook(partial(self._arrives, call, at))
        return call

    @harmless("the gradient that arrives at a call")
    def _arrives(self, call: WrittenCall, at: int | None, grad: Tensor) -> None:
        with quietly():
            call.grads[at] = Before(grad, is_changed=False)

    def _attach(self, node: Node, site: int) -> None:
        node.register_hook(partial(self._ran_of, self._call, site))

    def _ran_of(self, call: WrittenCall | None, site: int, leaving: object, arriving: object) -> None:
        self._call = call
        self._ran(site, leaving, arriving)
        self._call = None

    # --- which is it? ---------------------------------------------------------------------------------------------------

    def _add(self, site: int, values: Iterable[object], said: str = "", arrived: Iterable[object] = ()) -> None:
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
        self._seen[key] = self._seen.get(key, -1) + 1
        for at, target in enumerate(self._targets):
            if target == (*key, self._seen[key]):
                self.found[at] = self._call

    def _stop_if_over(self) -> None:
        """In a backward it goes on to its end."""
        if len(self._targets) - 1 in self.found and not self._depth:
            raise Enough

    # --- optimisers -----------------------------------------------------------------------------------------------------

    @harmless("a step of an optimiser")
    def before_step(self, optimiser: object, *_: object) -> None:
        if not self.is_on or not any(kind == UPDATE for kind, _ in self._lines):
            return
        self._call = call = WrittenCall()
        with quietly():
            try:
                write_update(call, optimiser)
            except UnwritableError as error:
                call.why = str(error)

    def after_step(self, optimiser: object, *given: object) -> None:
        super().after_step(optimiser, *given)
        self._call = None
        self._stop_if_over()

    def content(self) -> dict[str, object]:
        """And by target the call; None where no call made that node."""
        with quietly():
            found = {at: kept and kept.content() for at, kept in self.found.items()}
        return {**super().content(), "found": found}


class _Keeping(Following):
    def _hearing(self, schedule: Schedule, asked: Mapping[str, Any]) -> Keeper:
        return Keeper(schedule, asked["targets"])


begin = _Keeping.begin
