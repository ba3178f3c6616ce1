"""In a process of the program: what every call of torch returns, what arrives at and leaves each node backward, and every loss."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd.graph import Node

from pseudograd.dynamo import when_dynamo_arrives
from pseudograd.listen import frames, nodes
from pseudograd.listen.harmless import Errors, harmless
from pseudograd.listen.listener import Listener, Subscriber, listening, push_in_backward, take_off
from pseudograd.listen.nodes import LEAF as LEAF_NODE
from pseudograd.listen.program.follow import Enough
from pseudograd.listen.quietly import quietly, unheard
from pseudograd.torch_table.private import (
    below_wrappers,
    is_wrapped,
    number_of,
    without_torch_function,
)

from . import changing, digests
from .recording import BACKWARD, FORWARD, LEAF, UPDATE
from .schedule import LOSSES_ALONE, MOST, Schedule

_OPTIM = f"{os.sep}torch{os.sep}optim{os.sep}"
# They hand on what they get, in another shape, and torch puts them where it likes.
_HAND_ON = "View UnsafeView Reshape ReshapeAlias T Transpose Permute Alias Unsqueeze Squeeze Clone Detach"
_VIEWS = tuple(f"{name}Backward" for name in _HAND_ON.split())
_SAME = (
    "view reshape t transpose permute unsqueeze squeeze flatten contiguous clone detach swapaxes movedim requires_grad_"
)
_UNCHANGED = frozenset(_SAME.split())
_UNWRITTEN = ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided", "resize_")
ATTACHED = "pseudograd upgrade"


class Heard(Subscriber):
    """All that was heard, by step. It keeps numbers and texts alone."""

    listener_of_backward: Callable[[], Listener] | None = None  # hears what a checkpoint calls in a backward

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.noted = Errors()
        self.step = 1
        self.is_on = schedule.has(1)
        self.steps: dict[int, list[Any]] = {}
        self.losses: list[list[float]] = []
        self.sites: dict[tuple[str, ...], int] = {}  # kind, op, line, line of the program, expression
        self._places = frames.Places()
        self._by_place: dict[object, int] = {}
        self._ranges = nodes.Ranges()
        self._pending = digests.Pending()
        self._events: list[Any] = []
        self._depth = 0

    # --- what is kept of one event --------------------------------------------------------------------------------------

    def _site(self, kind: str, op: str, place: frames.Place) -> int:
        known = self._by_place.get((kind, op, place))
        if known is None:
            expression = "" if place.call is None else place.call.expression
            key = (kind, op, frames.named(place.call), frames.named(place.program), expression)
            known = self._by_place[kind, op, place] = self.sites.setdefault(key, len(self.sites))
        return known

    def _add(self, site: int, values: Iterable[Any], said: str = "", arrived: Iterable[object] = ()) -> None:
        """An event: its site, what was said, and of each tensor its type, its shape and where its digest will be."""
        tensors = []
        for at, group in enumerate((arrived, values)):
            for value in group:
                if digests.is_readable(value) and len(self._pending) < MOST:
                    shape = f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
                    tensors.append((at, shape, self._pending.add(value)))
        if tensors:
            self._events.append((site, said, tensors))

    def _close(self) -> None:
        """What the step has had so far is fetched."""
        numbers = self._pending.fetch()
        events = self.steps.setdefault(self.step, [])
        for site, said, tensors in self._events:
            events.append((site, said, [(at, shape, numbers[index]) for at, shape, index in tensors]))
        self._events.clear()

    # --- calls and nodes ------------------------------------------------------------------------------------------------

    def after_call(self, function: object, args: object, kwargs: Any, result: object, before: Any) -> None:
        if before is None:
            return
        with without_torch_function():
            tensors, name = _tensors(result), name_of(function)
            if not tensors or name in _UNWRITTEN:
                return
            with quietly():
                place = self._places.here(3)
                if name not in _UNCHANGED:
                    self._add(self._site(FORWARD, name, place), tensors, _plain_arguments(args, kwargs or {}))
                if any(map(is_wrapped, tensors)):  # by a transform of torch.func: the nodes are below
                    result = [below_wrappers(tensor) for tensor in tensors]
                self._follow(sorted(self._ranges.since(before, result), key=number_of), place)

    def _follow(self, new: Iterable[Any], place: frames.Place) -> None:
        for node in new:
            name = nodes.name_of(node)
            if name != LEAF_NODE and not name.startswith(_VIEWS) and ATTACHED not in node.metadata:
                node.metadata[ATTACHED] = True
                self._attach(node, self._site(BACKWARD, name, place))

    def _attach(self, node: Node, site: int) -> None:
        node.register_hook(partial(self._ran, site))

    def before_call(self, function: object, args: Any, kwargs: Any) -> Any:
        ranges = self._ranges
        if ranges.may_hide_some():
            with quietly():
                hidden = ranges.unseen_behind((*args, *kwargs.values()) if kwargs else args)
                if hidden:
                    self._follow(hidden, self._places.here(3))
        return ranges.seen_up_to

    @harmless("the gradients at a node")
    def _ran(self, site: int, leaving: Any, arriving: Any) -> None:
        if self.is_on and not unheard.depth:
            with quietly():
                self._add(site, leaving, "", arriving)

    @harmless("the gradient of a leaf")
    def _arrived(self, arriving: Any) -> None:
        if self.is_on and not unheard.depth:
            with quietly():
                self._add(self._site(LEAF, LEAF_NODE, frames.NOWHERE), arriving)

    @harmless("a step of an optimiser")
    def after_step(self, optimiser: Any, *_: object) -> None:
        if self.is_on:
            with quietly():
                place = self._places.here(2)
                parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
                rates = ", ".join(f"{name}={value!r}" for name, value in optimiser.defaults.items() if _is_plain(value))
                self._add(self._site(UPDATE, f"{type(optimiser).__name__}.step", place), parameters, rates)

    # --- backwards ------------------------------------------------------------------------------------------------------

    def on_backward(self, roots: object, grads: object, inputs: object) -> Any:
        listener = None if self.listener_of_backward is None else self.listener_of_backward()
        self._begins(roots)
        if listener is not None:
            push_in_backward(listener)
        return partial(self._ends, listener)

    @harmless("a backward")
    def _begins(self, roots: Any) -> None:
        """One inside another is that of a checkpoint with reentry, or of code that calls it: its nodes belong to the same step."""
        self._depth += 1
        with quietly():
            if self._depth == 1:
                losses = [root for root in roots if digests.is_readable(root)]
                self.losses.append(
                    [float(loss) if loss.numel() == 1 else float(loss.double().sum()) for loss in losses]
                )
            if self.is_on:
                behind = nodes.reachable_from(roots)
                self._follow(behind, frames.NOWHERE)
                for node in behind:
                    if nodes.name_of(node) == LEAF_NODE and ATTACHED not in node.metadata:
                        node.metadata[ATTACHED] = True
                        node.register_prehook(self._arrived)

    def _ends(self, listener: Listener | None, result: object) -> None:
        if listener is not None:
            take_off(listener)
        self._ended()
        if self._depth == 0 and self.schedule.is_over(self.step):
            raise Enough

    @harmless("the end of a backward")
    def _ended(self) -> None:
        self._depth -= 1
        if self._depth == 0:
            if self.is_on:
                with quietly():
                    self._close()
            self.step += 1
            self.is_on = self.schedule.has(self.step)
            self._ranges.start_afresh()

    def content(self) -> dict[str, object]:
        """What the part of this process holds."""
        if self.is_on:
            with quietly():
                self._close()
        return {
            "torch": torch.__version__,
            "sites": [list(key) for key in self.sites],
            "steps": self.steps,
            "losses": self.losses,
            "noted": self.noted.lines,
        }


class Listening(Listener):
    """Hears the calls of its thread, but for those of torch's optimisers: what they compute shows in the parameters."""

    def __torch_function__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        if _OPTIM in sys._getframe(1).f_code.co_filename:
            return self.run(func, args, kwargs)
        return super().__torch_function__(func, types, args, kwargs)


def _tensors(result: object) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    if isinstance(result, (tuple, list)):
        return [tensor for tensor in result if isinstance(tensor, Tensor)]
    return []


def name_of(func: object) -> str:
    name = getattr(func, "__name__", None) or str(func)
    return f"{func.__self__.__name__}" if name == "__get__" and hasattr(func, "__self__") else name


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, (bool, int, float, str, torch.dtype))


def _plain_arguments(args: Any, kwargs: Mapping[str, object]) -> str:
    """Those that are no tensors, as text."""
    texts = [repr(value) for value in args if _is_short(value)]
    return ", ".join([*texts, *(f"{name}={value!r}" for name, value in kwargs.items() if _is_short(value))])[:200]


def _is_short(value: object) -> bool:
    return _is_plain(value) or (isinstance(value, (tuple, list)) and len(value) < 9 and all(map(_is_plain, value)))


class Following:
    """From the moment torch is there to the end of the process."""

    hears_in_backward = True  # what a checkpoint calls there
    listens: ClassVar[type[Listening]] = Listening

    def __init__(self, settings: Mapping[str, Any], process: Any) -> None:
        seed(settings["seed"])
        if settings["threads"] is not None:
            torch.set_num_threads(settings["threads"])
        self.heard = heard = self._hearing(Schedule(*settings["schedule"]), settings)
        self.mode = self.listens(heard)
        if self.hears_in_backward:
            heard.listener_of_backward = partial(self.listens, heard)
        self._arrange(settings)
        if settings["is_shaken"]:
            changing.shake_after_each_step()
        self.listening = listening(self.mode)
        self.listening.__enter__()
        process.mark()

    def _hearing(self, schedule: Schedule, settings: Mapping[str, object]) -> Heard:
        return Heard(schedule)

    def _arrange(self, settings: Mapping[str, Any]) -> None:
        """How the program runs."""
        when_dynamo_arrives(lambda dynamo: torch.compiler.set_stance("force_eager"))
        self.entered = [context.__enter__() for context in changing.pin_lines(settings["pin"], settings["lines"])]

    def content(self) -> Any:
        return self.heard.content()

    def forked(self) -> None:
        self.heard.is_on = False
        self.heard.schedule = LOSSES_ALONE

    @classmethod
    def begin(cls, job: Mapping[str, Any], process: Any) -> object:
        """What `running.process` calls. Only the process that the command started is followed."""
        return cls(job["asked"], process) if process.is_main else _Nothing()


def seed(number: int) -> None:
    """Of the generators that are there. A program that seeds its own does so after this."""
    random.seed(number)
    torch.manual_seed(number)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(number)


class _Nothing:
    def content(self) -> object:
        return None

    def forked(self) -> None:
        pass


begin = Following.begin
