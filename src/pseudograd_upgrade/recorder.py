"""Records a program in its own process: the results of torch's calls, the gradients at each autograd node, and every loss."""

from __future__ import annotations

import os
import random
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from pseudograd.dynamo import when_dynamo_arrives
from pseudograd.listen import frames, hooks, nodes
from pseudograd.listen.harmless import Errors, harmless, quietly, unheard
from pseudograd.listen.listener import Listener, Subscriber, listening, push_in_backward, take_off
from pseudograd.listen.nodes import LEAF as LEAF_NODE
from pseudograd.listen.program.follow import Enough
from pseudograd.listen.program.process import standard_library_first
from pseudograd.rewrite.pin_edge import pin_edge
from pseudograd.torch_table.private import below_wrappers, is_wrapped, number_of, without_torch_function

from . import digests
from .differences import ROUNDINGS
from .recording import BACKWARD, FORWARD, LEAF, LOSSES_ALONE, MOST_DIGESTS, UPDATE, Digest, Event, Origin, Schedule

if TYPE_CHECKING:
    from pseudograd.listen.program.process import Process

_OPTIMISERS = f"{os.sep}torch{os.sep}optim{os.sep}"
_STEP = f"{_OPTIMISERS}optimizer.py"  # the file with the wrapper of every optimiser's step
# Functions that pass on their input in another shape. Versions of torch call them at different lines, so they are no events.
_VIEW_NODES = "View UnsafeView Reshape ReshapeAlias T Transpose Permute Alias Unsqueeze Squeeze Clone Detach"
_VIEW_NAMES = tuple(f"{name}Backward" for name in _VIEW_NODES.split())
_VIEWS = "view reshape t transpose permute unsqueeze squeeze flatten contiguous clone detach swapaxes movedim"
_UNWRITTEN = "empty empty_like empty_strided empty_permuted new_empty new_empty_strided resize_"
_COPIES = "cpu cuda to float double half bfloat16 type requires_grad_ grad data"
_VIEW_FUNCTIONS = {*_VIEWS.split(), "requires_grad_", "data"}
_UNWRITTEN_FUNCTIONS = {*_UNWRITTEN.split()}
# A program may call these after its last step, to keep a result.
_COPYING_FUNCTIONS = {*_VIEWS.split(), *_COPIES.split()}
_SAMPLE = 1000  # entries of a leaf, from which its move is judged
# A move follows a gradient if the cosine between them is larger, as it is for the sign of the gradient.
_ALIGNED = 0.3
ATTACHED = "pseudograd upgrade"  # the key of a node's metadata that says: it has a hook
Arguments = tuple[object, ...]
Settings = Mapping[str, Any]


class _Ranges(nodes.Ranges, threading.local):
    """Ranges for each thread, because torch numbers nodes by thread."""


class Recorder(Subscriber):
    """Records the events of each step, as numbers and texts."""

    listener_of_backward: Callable[[], Listener] | None = None  # for calls of a checkpoint inside a backward

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.noted = Errors()
        self.start()
        self._locations = frames.Locations()
        self._origins: dict[object, Origin] = {}
        self._ranges = _Ranges()
        self._thread = threading.get_ident()
        self.is_ended = False  # after the last step of the schedule
        self.has_unheard = False  # calls since the last backward that this schedule leaves out

    def start(self) -> None:
        """Begin with the first step, without events."""
        self.step = 1
        self.is_on = self.schedule.has(1)
        self.steps: dict[int, list[Event]] = {}
        self.losses: list[list[float]] = []
        # Backwards of all threads add events. So each event has its own digests, and one assignment exchanges the list.
        self._events: list[tuple[Origin, str, list[tuple[str, digests.Digest]]]] = []
        self._digest_count = 0  # of these events
        self._depth = 0  # of backwards that run inside each other
        self.full_step: int | None = None  # the first step with events that no digest was taken of
        self.graph_steps: set[int] = set()  # steps whose backward makes a graph, as that of a gradient penalty
        # By dtype and shape: how often a leaf moved along its gradient, up the loss, minus how often against it.
        self.moves: dict[str, int] = {}
        self._leaves: list[Tensor] = []  # those that the present backward reaches
        # In the last step: a sample of the value of each leaf, and of its gradient.
        self._last_leaves: dict[tuple[str, int], tuple[Tensor, Tensor]] = {}

    def _origin(self, kind: str, op: str, location: frames.Location) -> Origin:
        origin = self._origins.get((kind, op, location))
        if origin is None:
            where, user_where = frames.file_and_line(location.call), frames.file_and_line(location.program)
            expression = "" if location.call is None else location.call.expression
            origin = self._origins[kind, op, location] = Origin(kind, op, where, user_where, expression)
        return origin

    def _add(self, origin: Origin, values: Iterable[object], options: str = "") -> None:
        """Add an event: its origin, its options, and for each tensor its dtype, shape and digest."""
        tensors = []
        for value in values:
            if digests.is_readable(value) and self._digest_count == MOST_DIGESTS:
                self.full_step = self.full_step or self.step
            elif digests.is_readable(value):
                self._digest_count += 1
                tensors.append((_describe_shape(value), digests.digest(value)))
        if tensors:
            self._events.append((origin, options, tensors))

    def _fetch_events(self) -> None:
        events, self._events, self._digest_count = self._events, [], 0
        numbers = iter(digests.fetch([digest for _, _, tensors in events for _, digest in tensors]))
        fetched = self.steps.setdefault(self.step, [])
        for origin, options, tensors in events:
            fetched.append(Event(origin, options, tuple(Digest(shape, next(numbers)) for shape, _ in tensors)))

    def _drop_events(self) -> None:
        self._events, self._digest_count = [], 0

    def before_call(self, function: object, args: Arguments, kwargs: Mapping[str, object] | None) -> object:
        ranges = self._ranges
        if ranges.may_hide_some():
            with quietly():
                hidden = ranges.unseen_behind((*args, *kwargs.values()) if kwargs else args)
                if hidden:
                    self._attach_all(hidden, self._locations.here())
        return ranges.seen_up_to

    def after_call(
        self, function: object, args: Arguments, kwargs: Mapping[str, object] | None, result: object, before: Any
    ) -> None:
        if before is None:  # `before_call` failed
            return
        with without_torch_function():
            tensors, name = _result_tensors(result), function_name(function)
            if not tensors or name in _UNWRITTEN_FUNCTIONS:
                return
            with quietly():
                location = self._locations.here()
                origin = self._origin(FORWARD, name, location)
                is_in_import = origin.where.startswith("<frozen importlib")  # imports of torch differ between versions
                if name not in _VIEW_FUNCTIONS and self.hears_values() and not is_in_import:
                    self._add(origin, tensors, describe_options(args, kwargs or {}))
                if any(map(is_wrapped, tensors)):  # a transform of torch.func hides the nodes
                    result = [below_wrappers(tensor) for tensor in tensors]
                self._attach_all(sorted(self._ranges.since(before, result), key=number_of), location)

    def hears_values(self) -> bool:
        """Are this thread's calls events? Not in threads that the program starts: these have no order, and only give lines to nodes."""
        return threading.get_ident() == self._thread

    def _attach_all(self, new_nodes: Iterable[nodes.GraphNode], location: frames.Location) -> None:
        for node in new_nodes:
            name = nodes.name_of(node)
            if name != LEAF_NODE and not name.startswith(_VIEW_NAMES) and ATTACHED not in node.metadata:
                node.metadata[ATTACHED] = True
                self._attach(node, self._origin(BACKWARD, name, location))

    def _attach(self, node: nodes.GraphNode, origin: Origin) -> None:
        node.register_hook(partial(self._after_node, origin))

    @harmless("the gradients at a node")
    def _after_node(self, origin: Origin, leaving: Sequence[object], arriving: Sequence[object]) -> None:
        if self.is_on and not unheard.depth:
            if torch.is_grad_enabled():
                self.graph_steps.add(self.step)
            with quietly():
                self._add(origin, (*arriving, *leaving))

    @harmless("the gradient of a leaf")
    def _before_leaf(self, arriving: Sequence[object]) -> None:
        if self.is_on and not unheard.depth:
            with quietly():
                self._add(self._origin(LEAF, LEAF_NODE, frames.NOWHERE), arriving)

    @harmless("a step of an optimiser")
    def after_step(self, optimiser: Optimizer, *_: object) -> None:
        if self.is_on:
            with quietly():
                location = self._locations.here()
                parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
                options = _describe_groups(optimiser)
                self._add(self._origin(UPDATE, f"{type(optimiser).__name__}.step", location), parameters, options)

    def on_backward(self, roots: Any, grads: object, inputs: object) -> Callable[[object], object]:
        listener = None if self.listener_of_backward is None else self.listener_of_backward()
        self._begin_backward(roots)
        if listener is not None:
            push_in_backward(listener)
        return partial(self._end_backward, listener)

    @harmless("a backward")
    def _begin_backward(self, roots: Sequence[Tensor]) -> None:
        """A backward inside another one, such as that of a reentrant checkpoint, belongs to the same step."""
        self._depth += 1
        with quietly():
            if self._depth == 1:
                self.has_unheard = False
                if not self.is_on:
                    self._drop_events()  # those of an evaluation between two steps
                self.losses.append([float(loss.double().sum()) for loss in roots if digests.is_readable(loss)])
            if self.is_on:
                reachable = nodes.reachable_from(roots)
                if self._depth == 1:
                    self._leaves = [node.variable for node in reachable if nodes.name_of(node) == LEAF_NODE]
                    self._note_moves()
                self._attach_all(reachable, frames.NOWHERE)
                for node in reachable:
                    if nodes.name_of(node) == LEAF_NODE and ATTACHED not in node.metadata:
                        node.metadata[ATTACHED] = True
                        node.register_prehook(self._before_leaf)

    def _sample_leaves(self, gets_gradient: bool) -> dict[tuple[str, int], Tensor]:
        """A sample of each leaf, or of its gradient, by dtype, shape and number among those of that shape."""
        counts: dict[str, int] = {}
        samples = {}
        for leaf in self._leaves:
            shape = _describe_shape(leaf)
            counts[shape] = counts.get(shape, 0) + 1
            value = leaf.grad if gets_gradient else leaf
            if value is not None and digests.is_readable(value) and value.is_floating_point():
                samples[shape, counts[shape]] = value.detach().reshape(-1)[:_SAMPLE].double()
        return samples

    def _note_moves(self) -> None:
        """Note which leaves moved since the last step, along their gradient or against it."""
        for key, value in self._sample_leaves(gets_gradient=False).items():
            last, gradient = self._last_leaves.get(key, (value, value))
            cosine = float(torch.cosine_similarity(value - last, gradient, 0))
            if abs(cosine) > _ALIGNED:
                self.moves[key[0]] = self.moves.get(key[0], 0) + (1 if cosine > 0 else -1)

    def _keep_leaves(self) -> None:
        values, gradients = (self._sample_leaves(gets_gradient) for gets_gradient in (False, True))
        self._last_leaves = {key: (values[key].clone(), gradients[key].clone()) for key in values.keys() & gradients}
        self._leaves = []

    def _end_backward(self, listener: Listener | None, result: object) -> None:
        if listener is not None:
            take_off(listener)
        self._end_step()
        if self._depth == 0 and self.schedule.is_over(self.step):
            self.is_ended = True
            raise Enough

    @harmless("the end of a backward")
    def _end_step(self) -> None:
        self._depth -= 1
        if self._depth == 0:
            if self.is_on:
                with quietly():
                    self._fetch_events()
                    self._keep_leaves()
            else:
                self._last_leaves = {}
            self.step += 1
            self.is_on = self.schedule.has(self.step)
            self._ranges.start_afresh()

    def content(self) -> dict[str, object]:
        if self._events:
            with quietly():
                self._fetch_events()
        head = {"torch": torch.__version__, "errors": self.noted.lines}
        gaps = {"is_ended": self.is_ended, "has_unheard": self.has_unheard, "full_step": self.full_step}
        ways = {"graph_steps": sorted(self.graph_steps), "moves": self.moves}
        return {**head, "steps": self.steps, "losses": self.losses, **gaps, **ways}


class CallListener(Listener):
    """Hears the calls of its thread, except those inside torch's optimisers, whose effect shows in the parameters.

    In a step that is not recorded, it hears only calls without gradients outside of any optimiser, because they may be an evaluation after
    the last backward. It notes whether there are calls with gradients.
    """

    subscriber: Recorder

    def __torch_function__(
        self, func: Callable[..., object], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        if _OPTIMISERS in sys._getframe(1).f_code.co_filename:
            return self.run(func, args, kwargs)
        recorder = self.subscriber
        if recorder.is_on or recorder.schedule.every == 0:
            return super().__torch_function__(func, types, args, kwargs)
        if not recorder.hears_values():
            return self.run(func, args, kwargs)
        if torch.is_grad_enabled():
            result = super().__torch_function__(func, types, args, kwargs)
            if not recorder.has_unheard and isinstance(result, Tensor):
                recorder.has_unheard = function_name(func) not in _COPYING_FUNCTIONS
            return result
        if _is_in_optimiser(sys._getframe()):
            return self.run(func, args, kwargs)
        recorder.is_on = True
        try:
            return super().__torch_function__(func, types, args, kwargs)
        finally:
            recorder.is_on = False


def _is_in_optimiser(frame: FrameType | None) -> bool:
    while frame is not None and not frame.f_code.co_filename.endswith(_STEP):
        frame = frame.f_back
    return frame is not None


def _result_tensors(result: object) -> list[Tensor]:
    results = result if isinstance(result, (tuple, list)) else (result,)
    return [tensor for tensor in results if isinstance(tensor, Tensor)]


def function_name(function: object) -> str:
    name = getattr(function, "__name__", None) or str(function)
    return str(function.__self__.__name__) if name == "__get__" and hasattr(function, "__self__") else name


def _describe_shape(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, (bool, int, float, str, torch.dtype))


def describe_options(args: Arguments, kwargs: Mapping[str, object]) -> str:
    """The short arguments without tensors, as text."""
    texts = [repr(value) for value in args if _is_short(value)]
    return ", ".join([*texts, *(f"{name}={value!r}" for name, value in kwargs.items() if _is_short(value))])[:200]


def _describe_groups(optimiser: Optimizer) -> str:
    """The present settings of an optimiser, as text. Those of several groups are separated by "/"."""
    texts = []
    for name in optimiser.defaults:
        values = dict.fromkeys(group[name] for group in optimiser.param_groups if _is_plain(group.get(name, ())))
        if values:
            texts.append(f"{name}={'/'.join(map(repr, values))}")
    return ", ".join(texts)


def _is_short(value: object) -> bool:
    return _is_plain(value) or (isinstance(value, (tuple, list)) and len(value) < 9 and all(map(_is_plain, value)))


# --- the process ------------------------------------------------------------------------------------------------------


class Session:
    """Records from the import of torch to the end of the process. Subclasses choose the recorder and prepare the program."""

    listener = CallListener
    hears_in_backward = True  # hears the calls that a checkpoint repeats in a backward
    reaches_threads = True  # hears and pins the threads that the program starts

    def __init__(self, settings: Settings, process: Process) -> None:
        set_seed(settings["seed"])
        if "threads" in settings:
            torch.set_num_threads(settings["threads"])
        self.recorder = recorder = self.make_recorder(Schedule(*settings["schedule"]), settings)
        self.mode = self.listener(recorder)
        if self.hears_in_backward:
            recorder.listener_of_backward = partial(self.listener, recorder)
        self.prepare(settings)
        if settings.get("is_shaken"):
            shake_after_each_step()
        self.listening = listening(self.mode)
        self.listening.__enter__()
        self.threads = hooks.NewThreads(lambda: self.listener(recorder))
        if self.reaches_threads:
            self.threads.__enter__()
        process.mark()

    def make_recorder(self, schedule: Schedule, settings: Settings) -> Recorder:
        return Recorder(schedule)

    def prepare(self, settings: Settings) -> None:
        when_dynamo_arrives(lambda dynamo: torch.compiler.set_stance("force_eager"))
        if settings.get("pin"):
            self.pin = pin_edge(settings["pin"])
            self.pin.lines = settings["lines"]  # without lines, everywhere
            self.pin.__enter__()
            if self.reaches_threads:
                hooks.NewThreads(lambda: self.pin).__enter__()

    def content(self) -> dict[str, object]:
        return self.recorder.content()

    def forked(self) -> None:
        self.recorder.is_on = False
        self.recorder.schedule = LOSSES_ALONE


class SilentSession:
    """The session in processes that the program starts. It records nothing."""

    def content(self) -> None: ...

    def forked(self) -> None: ...


def begin(job: Settings, process: Process, session: type[Session] = Session) -> Session | SilentSession:
    """Called in each python process of the program, once torch is imported."""
    return session(job["settings"], process) if process.is_main else SilentSession()


def set_seed(number: int) -> None:
    """Seed the generators that exist. A program may seed its own later."""
    random.seed(number)
    torch.manual_seed(number)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        with standard_library_first():  # numpy imports its module random now
            numpy.random.seed(number)


def shake_after_each_step() -> None:
    """Move all parameters after each optimiser step, until the process ends. The program's random numbers stay as they are."""
    draw = torch.Generator().manual_seed(1)

    def shake_all(optimiser: Optimizer, *_: object) -> None:
        with quietly():
            for group in optimiser.param_groups:
                for parameter in group["params"]:
                    shake(parameter, draw)

    register_optimizer_step_post_hook(shake_all)


def shake(parameter: Tensor, draw: torch.Generator) -> None:
    """Move each entry by up to 16 roundings. Parameters in 16 bits stay, because one rounding may be larger than a training step there."""
    if parameter.dtype not in (torch.float32, torch.float64) or parameter.layout is not torch.strided:
        return
    share = torch.rand(parameter.shape, generator=draw, dtype=torch.float64) * 2 - 1
    factor = 1 + share.to(parameter.device) * (ROUNDINGS * torch.finfo(parameter.dtype).eps)
    with torch.no_grad():
        parameter.copy_(parameter.detach().double() * factor)
