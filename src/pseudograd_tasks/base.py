"""What a task is: worlds to run a clamp in, what is measured there, and the words of a report about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, TypeAlias

import torch
from torch import Tensor

from pseudograd.comparison.runs import Outcome
from pseudograd.comparison.statistics import Better, Difference, difference
from pseudograd.comparison.variants import INSTALLED, NO_CLAMP, PROJECT, Clamp, Variant, eras
from pseudograd.comparison.verdicts import Family, make_family
from pseudograd.errors import must, unknown_name
from pseudograd.ops.bound_rules import DEFAULT_RULE

# What the file of a task needs, from one place.
__all__ = ["INSTALLED", "NO_CLAMP", "OURS", "PROJECT", "Clamp", "Outcome", "Score", "Variant", "eras"]
__all__ += ["KINDS", "Gallery", "Loss", "Section", "Settings", "Subject", "Task", "World", "Worlds"]

Loss = Callable[[Tensor], Tensor]
World: TypeAlias = dict[str, Outcome]  # by variant
OURS = DEFAULT_RULE


def eras_in(rows: World) -> list[str]:
    """The variants that are eras of torch, from the oldest on."""
    return [era for era in eras() if era in rows]


@dataclass(frozen=True)
class Score:
    """How a headline over seeds is spoken of, and what is compared by statistics.TEST: "98.3% of the problems solved", "test error 0.0389".

    Differences of one seed of at most `tie` count as none.
    """

    key: str
    text: str  # with {} for the number
    places: str = ".1%"
    better: Better = "higher"
    tie: float = 0.0

    def sentence(self, outcome: Outcome) -> str:
        return self.text.format(self.number(outcome))

    def number(self, outcome: Outcome) -> str:
        return format(outcome.numbers[self.key], self.places)

    def difference(self, first: Outcome, second: Outcome) -> Difference:
        return difference(first.seeds, second.seeds, better=self.better, tie=self.tie)

    def family(self, rows: World, with_best: bool = False) -> Family:
        """The comparisons of one world, corrected together: each variant against our default, and the eras. The installed torch is one."""
        names = [name for name in rows if name != INSTALLED]
        planned = [(name, OURS) for name in names if name != OURS] if OURS in rows else []
        planned += combinations(eras_in(rows), 2)
        seeds = {self.key: {name: rows[name].seeds for name in names}}
        return make_family(seeds, {self.key: self.better}, planned, tie=self.tie, with_best=with_best)

    def against_ours(self, rows: World) -> dict[str, Difference]:
        """Each variant less our default, the best first."""
        family = self.family(rows)
        names = [name for name in rows if name not in (OURS, INSTALLED)]
        names.sort(key=lambda name: rows[name].numbers[self.key], reverse=self.better == "higher")
        return {name: family.difference(self.key, name, OURS) for name in names}

    def eras(self, rows: World) -> list[Difference]:
        """Every older edge less every newer one."""
        family = self.family(rows)
        return [family.difference(self.key, *pair) for pair in combinations(eras_in(rows), 2)]


Worlds: TypeAlias = Mapping[str, World]


@dataclass(frozen=True)
class Settings:
    """What the command line may change about a task."""

    low: float | None = None
    high: float | None = None
    loss: Loss | None = None
    loss_name: str = ""


# What a figure of each kind draws for a variant: the names of these arrays in Outcome.
KINDS = {
    "pictures": ("picture",),  # (3, height, width), from 0 to 1; the title has the headline
    "curves": ("range", "x", "y", "loss", "dL_dy", "dy_dx", "dL_dx"),  # over x, which holds both ends of the range
    "paths": ("range", "path"),  # (steps + 1, starts), every eighth drawn; the title has the headline, of so many
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


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What a report says of one problem, once its outcomes are there.

    `columns` describes the numbers; `headline` is the one for a summary, with a short heading. `setting(context)` is the sentence that
    opens it. `verdicts(worlds, context)` are sentences computed from what was measured, and `simpler(worlds)` names the worlds in which a
    reader does not need us, by the key of the advice in sentences.closing. `finding(world)` says in plain words what a stranger should
    know first, for a report that opens with the pictures of this subject; the last of its `first` pictures is the target. `score`: the
    headline, where one is better than another.
    """

    name: str
    title: str
    columns: Mapping[str, str]
    headline: tuple[str, str]
    setting: Callable[[Mapping[str, Any]], str]
    verdicts: Callable[[Worlds, Mapping[str, Any]], list[str]] = lambda worlds, context: []
    simpler: Callable[[Worlds], dict[str, list[str]]] = lambda worlds: {}
    figure: Gallery | None = None
    finding: Callable[[World], str] | None = None
    score: Score | None = None

    def __post_init__(self) -> None:
        if not self.name.isidentifier():  # it names the files of the figures
            raise ValueError(must(type(self).__name__, "name", "be a name as Python writes them", self.name))


@dataclass
class Section:
    """A subject with the numbers that its words need and its outcomes, `worlds[world][variant]`.

    `first[world]` are the pictures that a figure shows before those of the variants, by their title.
    """

    subject: Subject
    context: dict[str, Any]
    worlds: dict[str, World]
    first: dict[str, dict[str, Tensor]]

    @property
    def verdicts(self) -> list[str]:
        """Without the name of the world before each sentence, if there is only one world."""
        sentences = self.subject.verdicts(self.worlds, self.context)
        if len(self.worlds) > 1:
            return sentences
        ((world, rows),) = self.worlds.items()
        return [_remove_world(sentence, world, tuple(rows)) for sentence in sentences]


def _remove_world(sentence: str, world: str, rules: tuple[str, ...]) -> str:
    rest = sentence.removeprefix(f"{world}: ")
    return rest if rest == sentence or rest.startswith(rules) else rest[:1].upper() + rest[1:]


@dataclass(frozen=True, kw_only=True)
class Task(Subject):
    """A subject that can be run: worlds(settings) names its worlds; run(world, variant, settings) measures one variant in one of them.

    `context(settings)` gives the numbers that the sentence `setting(context)` needs. A run whose seeds, or problems, are drawn one by one
    measures all of them and gives `Outcome.seeds`; one that has no chance in it leaves them empty. order: where it stands among the
    others; a first run takes those below 100.
    """

    worlds: Callable[[Settings], Sequence[str]]
    run: Callable[[str, Variant, Settings], Outcome]
    has_leaves: bool
    context: Callable[[Settings], dict[str, Any]] = lambda settings: {}
    order: int = 1000


def make_leaf(variant: Variant, start: Tensor, low: float = 0.0, high: float = 1.0) -> Tensor:
    """A copy of the start that learns, inside the bounds where the variant projects."""
    return (start.clamp(low, high) if variant.projects else start.clone()).requires_grad_()


def descend(
    variant: Variant,
    x: Tensor,
    optimizer: torch.optim.Optimizer,
    steps: int,
    loss: Loss,
    low: float = 0.0,
    high: float = 1.0,
) -> Iterator[Tensor]:
    """Train the leaf `x` by the loss of its clamp. Yields x after each step, clipped where the variant projects."""
    for _ in range(steps):
        optimizer.zero_grad()
        loss(variant.clamp(x, low, high)).backward()
        optimizer.step()
        if variant.projects:
            with torch.no_grad():
                x.clamp_(low, high)
        yield x.detach()


@dataclass(frozen=True)
class ElementByElement:
    """Calls the loss with each element by itself, of shape (1,), all at once by torch.vmap.

    Called with all of them it would return their sum or their mean: with a mean, the gradient of each would shrink with their number, and
    a loss that couples them would be another problem.
    """

    loss: Loss

    def __call__(self, y: Tensor) -> Tensor:
        return torch.vmap(lambda element: self.loss(element.reshape(1)).reshape(()))(y.reshape(-1)).reshape(y.shape)
