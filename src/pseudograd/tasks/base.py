"""What a task is: worlds to run a clamp in, and what is measured there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from .. import torch_eras
from ..errors import must, unknown_name
from ..ops.bounds import CLAMP, clamp
from ..rule import Edge, RuleLike
from ..rule_text import parsed

if TYPE_CHECKING:
    from .words import Score

Clamp = Callable[[Tensor, float, float], Tensor]
Loss = Callable[[Tensor], Tensor]
ERAS = tuple(era.rule for era in torch_eras.ERAS.values())  # what torch of each era does with number bounds
INSTALLED = "torch.clamp"
NO_CLAMP = "no clamp"
PROJECT = "project"
DEFAULT_RULES = ("inward", "identity", "sign", "leaky", "elastic", "inverting")


class Variant(NamedTuple):
    """A clamp under the name that reports and figures show. `projects` asks a world to clip its leaves after each step instead.

    `maximizing` is the same clamp as gradient ascent needs it, where that is another one.
    """

    name: str
    clamp: Clamp
    projects: bool = False
    maximizing: Clamp | None = None

    @property
    def ascending(self) -> Clamp:
        return self.maximizing or self.clamp


@dataclass(frozen=True)
class Settings:
    """What the command line may change about a task."""

    low: float | None = None
    high: float | None = None
    loss: Loss | None = None
    loss_name: str = ""


@dataclass
class Measured:
    """What one variant did in one world: numbers for the table, arrays for the figure.

    `seeds` has the headline of each seed, or of each problem where those are drawn one by one, in the same order for every variant;
    its mean is the headline in `numbers`. A task whose run has no chance in it leaves it empty.
    """

    numbers: dict[str, float]
    arrays: dict[str, Any] = field(default_factory=dict)
    seeds: tuple[float, ...] = ()


World: TypeAlias = dict[str, Measured]  # by variant
Worlds: TypeAlias = Mapping[str, World]
# What a figure of each kind draws for a variant: the names of these arrays in Measured.
KINDS = {
    "pictures": ("picture",),  # (3, height, width), from 0 to 1; the title has the headline
    "curves": ("range", "x", "y", "loss", "dL_dy", "dy_dx", "dL_dx"),  # over x, which holds both ends of the range
    "paths": (
        "range",
        "path",
    ),  # (steps + 1, starts), every eighth drawn; the title has the headline, of so many starts
}


@dataclass(frozen=True)
class Gallery:
    """One figure for each world, with a panel for each variant. A kind of figure knows nothing of tasks.

    `title` stands over the panels and may name the {world}. `first` are pictures to show before those of the variants, by their title.
    """

    kind: str
    title: str = ""
    first: Mapping[str, Callable[[str], Tensor]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise unknown_name("Gallery", "kind", KINDS, self.kind)


@dataclass(frozen=True)
class Task:
    """worlds(settings) names the worlds; run(world, variant, settings) measures one variant in one of them.

    `columns` describes its numbers; `headline` is the one for a summary, with a short heading. `context(settings)` gives the numbers
    that the sentence `setting(context)` needs. `finding(world)` says in plain words what a stranger should know first, for a report
    that opens with the pictures of this task; the last of its `first` pictures is the target. `verdicts(worlds, context)` are sentences
    computed from what was measured, and `simpler(worlds)` names the worlds in which a reader does not need us, by the advice of
    words.closing that they lead to. `score`: the headline, where one is better than another.
    """

    name: str
    title: str
    worlds: Callable[[Settings], Sequence[str]]
    run: Callable[[str, Variant, Settings], Measured]
    columns: Mapping[str, str]
    headline: tuple[str, str]
    has_leaves: bool
    setting: Callable[[Mapping[str, Any]], str]
    context: Callable[[Settings], dict[str, Any]] = lambda settings: {}
    verdicts: Callable[[Worlds, Mapping[str, Any]], list[str]] = lambda worlds, context: []
    simpler: Callable[[Worlds], dict[str, list[str]]] = lambda worlds: {}
    figure: Gallery | None = None
    finding: Callable[[World], str] | None = None
    score: Score | None = None

    def __post_init__(self) -> None:
        if not self.name.isidentifier():  # it names the files of the figures
            raise ValueError(must("Task", "name", "be a name as Python writes them", self.name))


def variants(rules: Iterable[str | Variant] = DEFAULT_RULES, *, has_leaves: bool) -> list[Variant]:
    """Every rule asked for, both eras, the installed torch's own op, no clamp, and on leaves the honest baseline `project`."""
    asked = {one if isinstance(one, str) else one.name: one for one in (*ERAS, *rules)}
    made = [of_rule(one) if isinstance(one, str) else one for one in asked.values()]
    made.append(Variant(INSTALLED, lambda x, low, high: torch.clamp(x, low, high)))
    made.append(Variant(NO_CLAMP, lambda x, low, high: x * 1))
    if has_leaves:
        made.append(Variant(PROJECT, lambda x, low, high: x * 1, projects=True))
    return made


def of_rule(name: str, argument: str = "compare: --rules") -> Variant:
    """A variant from "rule", "rule(parameters)" or either with "/edge"; an unknown name raises the op's own error."""
    rule, edge = parsed(CLAMP, name, argument)
    return with_rule(name, rule, edge)


def with_rule(name: str, rule: RuleLike, edge: Edge | None) -> Variant:
    how: dict[str, Any] = {"rule": rule, "edge": edge or CLAMP.default_edge}
    return Variant(
        name,
        lambda x, low, high: clamp(x, low, high, **how),
        maximizing=lambda x, low, high: clamp(x, low, high, maximize=True, **how),
    )
