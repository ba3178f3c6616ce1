"""In a process of the program: what every call of torch returns, what arrives at and leaves each node backward, and every loss."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd.graph import Node
from torch.compiler import is_compiling
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.overrides import TorchFunctionMode

from pseudograd.diagnosis.count.influence import SILENT
from pseudograd.diagnosis.count.leaves import LEAF as LEAF_NODE
from pseudograd.dynamo import when_dynamo_arrives
from pseudograd.formula import own
from pseudograd.listen import frames, nodes
from pseudograd.listen.around import backwards
from pseudograd.listen.harmless import Errors, harmless
from pseudograd.listen.program.follow import Enough
from pseudograd.listen.quietly import quietly, unheard
from pseudograd.torch_table.private import (
    below_wrappers,
    is_wrapped,
    mode_stack,
    number_of,
    push_mode,
    take_off_the_stack,
    without_torch_function,
)

from . import digests, pinning, shaking
from .recorded import BACKWARD, FORWARD, LEAF, UPDATE
from .schedule import LOSSES_ALONE, MOST, Schedule

_OPTIM = "/torch/optim/"
# They hand on what they get, in another shape, and torch puts them where it likes.
_HAND_ON = "View UnsafeView Reshape ReshapeAlias T Transpose Permute Alias Unsqueeze Squeeze Clone Detach"
_VIEWS = tuple(f"{name}Backward" for name in _HAND_ON.split())
_SAME = (
    "view reshape t transpose permute unsqueeze squeeze flatten contiguous clone detach swapaxes movedim requires_grad_"
)
_UNCHANGED = frozenset(_SAME.split())
_UNWRITTEN = ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided", "resize_")
ATTACHED = "pseudograd upgrade"


class Heard:
    """All that was heard, by step. It keeps numbers and texts alone."""

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
        kept = []
        for at, some in enumerate((arrived, values)):
            for value in some:
                if digests.is_readable(value) and len(self._pending) < MOST:
                    shape = f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
                    kept.append((at, shape, self._pending.add(value)))
        if kept:
            self._events.append((site, said, kept))

    def _close(self) -> None:
        """What the step has had so far is fetched."""
        found = self._pending.fetch()
        kept = self.steps.setdefault(self.step, [])
        for site, said, tensors in self._events:
            kept.append((site, said, [(at, shape, found[index]) for at, shape, index in tensors]))
        self._events.clear()

    # --- calls and nodes ------------------------------------------------------------------------------------------------

    @harmless("a call of torch")
    def called(self, func: object, args: object, kwargs: Any, result: object, before: int) -> None:
        some = _tensors(result)
        name = name_of(func)
        if not some or name in _UNWRITTEN:
            return
        with quietly():
            place = self._places.here(4)
            if name not in _UNCHANGED:
                self._add(self._site(FORWARD, name, place), some, _said(args, kwargs))
            if any(map(is_wrapped, some)):  # by a transform of torch.func: the nodes are below
                result = [below_wrappers(one) for one in some]
            self._follow(sorted(self._ranges.since(before, result), key=number_of), place)

    def _follow(self, made: Iterable[Any], place: frames.Place) -> None:
        for node in made:
            name = nodes.name_of(node)
            if name != LEAF_NODE and not name.startswith(_VIEWS) and ATTACHED not in node.metadata:
                node.metadata[ATTACHED] = True
                self._attach(node, self._site(BACKWARD, name, place))

    def _attach(self, node: Node, site: int) -> None:
        node.register_hook(partial(self._ran, site))

    @harmless("the nodes behind a call")
    def before_call(self, func: object, args: Any, kwargs: Any) -> int:
        ranges = self._ranges
        if ranges.may_hide_some():
            with quietly():
                hidden = ranges.unseen_behind((*args, *kwargs.values()) if kwargs else args)
                if hidden:
                    self._follow(hidden, self._places.here(4))
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
    def stepped(self, optimiser: Any, *_: object) -> None:
        if self.is_on:
            with quietly():
                place = self._places.here(2)
                some = [one for group in optimiser.param_groups for one in group["params"]]
                said = ", ".join(f"{name}={value!r}" for name, value in optimiser.defaults.items() if _is_plain(value))
                self._add(self._site(UPDATE, f"{type(optimiser).__name__}.step", place), some, said)

    # --- backwards ------------------------------------------------------------------------------------------------------

    def around(self, roots: object, grads: object, inputs: object) -> Any:
        self._begins(roots)
        return self._ends

    @harmless("a backward")
    def _begins(self, roots: Any) -> None:
        """One inside another is that of a checkpoint with reentry, or of code that calls it: its nodes belong to the same step."""
        self._depth += 1
        with quietly():
            if self._depth == 1:
                some = [one for one in roots if digests.is_readable(one)]
                self.losses.append([float(one) if one.numel() == 1 else float(one.double().sum()) for one in some])
            if self.is_on:
                behind = nodes.behind(roots)
                self._follow(behind, frames.NOWHERE)
                for node in behind:
                    if nodes.name_of(node) == LEAF_NODE and ATTACHED not in node.metadata:
                        node.metadata[ATTACHED] = True
                        node.register_prehook(self._arrived)

    def _ends(self, result: object) -> None:
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


def _nothing(result: object) -> None:
    """For a backward that is heard already."""


class Listening(TorchFunctionMode):
    """Hears the calls of the thread in which it was entered."""

    def __init__(self, heard: Heard) -> None:
        super().__init__()
        self.heard = heard
        self.noted = heard.noted

    @harmless("the modes of a backward", otherwise=_nothing)
    def in_backward(self, roots: object, grads: object, inputs: object) -> Any:
        """Torch's stack of modes is empty in a backward, in which a checkpoint runs its forward again."""
        if any(one is self for one in mode_stack()):
            return _nothing
        push_mode(self)
        return self._take_off

    @harmless("the modes of a backward")
    def _take_off(self, result: object) -> None:
        take_off_the_stack(self)

    def __torch_function__(self, func: object, types: object, args: object = (), kwargs: object = None) -> object:
        heard = self.heard
        if not heard.is_on or func in SILENT or own.depth or unheard.depth or is_compiling() or _is_of_an_optimiser():
            return self._call(func, args, kwargs)
        before = heard.before_call(func, args, kwargs)
        result = self._call(func, args, kwargs)
        if before is not None:
            with without_torch_function():
                heard.called(func, args, kwargs or {}, result, before)
        return result

    def _call(self, func: Any, args: Any, kwargs: Any) -> object:
        return func(*args, **kwargs) if kwargs else func(*args)


def _is_of_an_optimiser() -> bool:
    """What torch's optimisers compute is seen in what they leave."""
    return _OPTIM in sys._getframe(2).f_code.co_filename.replace("\\", "/")


def _tensors(result: object) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    if isinstance(result, (tuple, list)):
        return [one for one in result if isinstance(one, Tensor)]
    return []


def name_of(func: object) -> str:
    name = getattr(func, "__name__", None) or str(func)
    return f"{func.__self__.__name__}" if name == "__get__" and hasattr(func, "__self__") else name


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, (bool, int, float, str, torch.dtype))


def _said(args: Any, kwargs: Mapping[str, object]) -> str:
    """The arguments that are no tensors."""
    said = [repr(one) for one in args if _is_told(one)]
    return ", ".join([*said, *(f"{name}={one!r}" for name, one in kwargs.items() if _is_told(one))])[:200]


def _is_told(one: object) -> bool:
    return _is_plain(one) or (isinstance(one, (tuple, list)) and len(one) < 9 and all(map(_is_plain, one)))


class Following:
    """From the moment torch is there to the end of the process."""

    hears_in_backward = True  # what a checkpoint calls there
    listens: ClassVar[type[Listening]] = Listening

    def __init__(self, asked: Mapping[str, Any], process: Any) -> None:
        seed(asked["seed"])
        if asked["threads"] is not None:
            torch.set_num_threads(asked["threads"])
        self.heard = heard = self._hearing(Schedule(*asked["schedule"]), asked)
        self.mode = self.listens(heard)
        self._arrange(asked)
        if asked["is_shaken"]:
            shaking.begin()
        backwards.subscribe(heard.around)
        self.handle = register_optimizer_step_post_hook(heard.stepped)  # type: ignore[no-untyped-call]
        if self.hears_in_backward:
            backwards.subscribe(self.mode.in_backward)
        self.mode.__enter__()
        process.mark()

    def _hearing(self, schedule: Schedule, asked: Mapping[str, object]) -> Heard:
        return Heard(schedule)

    def _arrange(self, asked: Mapping[str, Any]) -> None:
        """How the program runs."""
        when_dynamo_arrives(lambda dynamo: torch.compiler.set_stance("force_eager"))
        self.entered = [one.__enter__() for one in pinning.contexts(asked["pin"], asked["lines"])]

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
