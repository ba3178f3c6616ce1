"""In a process of a program on a route: what is compiled, by what, and who hears it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from ...dynamo import when_dynamo_arrives
from ...torch_private import compiler_named, let_inductor_draw_as_eager_mode_does
from ...trace import around_backward
from ..following import Following, Listening, Nothing, seed
from ..schedule import Schedule
from .hearing import BlockHeard
from .names import COMPILED, INDUCTOR
from .regions import Regions
from .segments import Segments


class Routed(Following):
    """From the moment torch is there to the end of the process.

    In a backward torch calls nothing that both routes would: what nodes and leaves get is heard, and no mode stands there.
    """

    def __init__(self, asked: Mapping[str, Any], process: Any) -> None:
        seed(asked["seed"])
        if asked["threads"] is not None:
            torch.set_num_threads(asked["threads"])
        self.heard = heard = BlockHeard(Schedule(*asked["schedule"]))
        self.mode = Listening(heard)
        is_compiled = asked["route"] in COMPILED
        compiler = _Compiler(asked["route"]) if is_compiled else None
        segments = Segments(heard, compiler, is_cut=asked["cut"], out=asked["out"], moved=asked["moved"])
        self.regions = Regions(heard, self.mode, segments)
        if not is_compiled and not asked["cut"]:
            when_dynamo_arrives(lambda dynamo: torch.compiler.set_stance("force_eager"))
        self.regions.install()
        around_backward.subscribe(heard.around)
        self.handle = register_optimizer_step_post_hook(heard.stepped)  # type: ignore[no-untyped-call]
        self.mode.__enter__()
        process.mark()

    def content(self) -> Any:
        regions = self.regions
        return {**self.heard.content(), "is_asked": regions.is_asked, "graphs": regions.segments.graphs}


class _Compiler:
    """The backend of a name, looked up when it is first needed: the import of Inductor takes seconds."""

    def __init__(self, route: str) -> None:
        self.route = route

    def __call__(self, graph: Any, inputs: Sequence[Any]) -> Any:
        if self.route == INDUCTOR:
            let_inductor_draw_as_eager_mode_does()
        return compiler_named(self.route)(graph, list(inputs))


def begin(job: Mapping[str, Any], process: Any) -> Any:
    """What `running.process` calls. Only the process that the command started is followed."""
    return Routed(job["asked"], process) if process.is_main else Nothing()
