"""In a process of a program on a route: what is compiled, by what, and who hears it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pseudograd.dynamo import when_dynamo_arrives
from pseudograd.torch_table.private import compiler_named, let_inductor_draw_as_eager_mode_does

from ..following import Following
from ..schedule import Schedule
from .hearing import BlockHeard
from .interpreters import COMPILED, INDUCTOR
from .regions import Regions
from .segments import Segments


class InBlocks(Following):
    """In a backward torch calls nothing that both routes would: what nodes and leaves get is heard, and no mode stands there."""

    heard: BlockHeard
    hears_in_backward = False

    def _hearing(self, schedule: Schedule, settings: Mapping[str, object]) -> BlockHeard:
        return BlockHeard(schedule)

    def _arrange(self, settings: Mapping[str, Any]) -> None:
        is_compiled = settings["route"] in COMPILED
        compiler = _Compiler(settings["route"]) if is_compiled else None
        segments = Segments(self.heard, compiler, is_cut=settings["cut"], out=settings["out"], moved=settings["moved"])
        if not is_compiled and not settings["cut"]:
            when_dynamo_arrives(lambda dynamo: torch.compiler.set_stance("force_eager"))
        self.regions = Regions(self.heard, self.mode, segments)
        self.regions.install()

    def content(self) -> Any:
        regions = self.regions
        return {**self.heard.content(), "is_asked": regions.is_asked, "graphs": regions.segments.graphs}


class _Compiler:
    """The backend of a name, looked up when it is first needed: the import of Inductor takes seconds."""

    def __init__(self, route: str) -> None:
        self.route = route

    def __call__(self, graph: object, inputs: Sequence[object]) -> object:
        if self.route == INDUCTOR:
            let_inductor_draw_as_eager_mode_does()
        return compiler_named(self.route)(graph, list(inputs))


begin = InBlocks.begin
