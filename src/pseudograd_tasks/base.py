"""The record of a task: worlds to run a clamp in, the numbers measured there, and the words of a report about them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import TypeAlias

import torch
from torch import Tensor

from pseudograd.comparison.runs import Outcome
from pseudograd.comparison.statistics import Better, Difference, difference
from pseudograd.comparison.variants import INSTALLED, NO_CLAMP, PROJECT, Clamp, Variant, eras
from pseudograd.comparison.verdicts import Family, make_family
from pseudograd.errors import must, unknown_name
from pseudograd.ops.bound_rules import DEFAULT_RULE

__all__ = ["INSTALLED", "NO_CLAMP", "OURS", "PROJECT", "Clamp", "Context", "Gallery", "Outcome", "Score", "Settings"]
__all__ += ["Task", "Variant", "World", "Worlds", "eras"]  # what the file of a task needs

Loss = Callable[[Tensor], Tensor]
World: TypeAlias = dict[str, Outcome]  # by variant
OURS = DEFAULT_RULE


def eras_in(rows: World) -> list[str]:
    """The variants that are eras of torch, from the oldest on."""
    return [era for era in eras() if era in rows]


@dataclass(frozen=True)
class Score:
    """A headline that statistics.TEST compares over seeds. text: as in "98.3% of the problems solved". tie: a difference of one seed up to
    this size counts as none.
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
Context: TypeAlias = Mapping[str, object]  # numbers for sentences


@dataclass(frozen=True)
class Settings:
    """What the command line may change in `basin` and `curve`."""

    low: float = -1.0
    high: float = 1.0
    loss: Loss | None = None
    loss_name: str = ""


# The kinds of figures, and the arrays of an Outcome that they draw.
KINDS = {
    "pictures": ("picture",),  # (3, height, width), from 0 to 1; the title has the headline
    "curves": ("range", "x", "y", "loss", "dL_dy", "dy_dx", "dL_dx"),  # over x, which holds both ends of the range
    "paths": ("range", "path"),  # (steps + 1, starts), every eighth drawn; the title has the headline, of so many
}


@dataclass(frozen=True)
class Gallery:
    """One figure for each world, with a panel for each variant. title: with {world}. first: pictures before those of the variants, by
    title. A kind of figure knows nothing of tasks.
    """

    kind: str
    title: str = ""
    first: Mapping[str, Callable[[str], Tensor]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise unknown_name("Gallery", "kind", KINDS, self.kind)


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The words of a report about one problem, to be filled with its outcomes.

    columns: a description of each number. headline: the number for a summary, with a short heading. setting: the opening sentences, with
    {names} of the context. score: for a headline that can be better or worse; the report compares it in each world.
    after(worlds, context): further sentences. finding(rows): plain words for a report that opens with the pictures of this subject, the
    last of whose `first` pictures is the target.
    """

    name: str
    title: str
    columns: Mapping[str, str]
    headline: tuple[str, str]
    setting: str
    has_leaves: bool = False
    score: Score | None = None
    after: Callable[[Worlds, Context], Iterable[str]] = lambda worlds, context: ()
    figure: Gallery | None = None
    finding: Callable[[World], str] | None = None

    def __post_init__(self) -> None:
        if not self.name.isidentifier():  # it names the files of the figures
            raise ValueError(must(type(self).__name__, "name", "be a name as Python writes them", self.name))


@dataclass(frozen=True, kw_only=True)
class Task(Subject):
    """A subject that can be run: worlds(settings) names its worlds; run(world, variant, settings) measures one variant in one world.

    context(settings): the numbers for `setting`. A run with seeds, or with problems that are drawn one by one, measures all of them and
    gives `Outcome.seeds`.
    """

    worlds: Callable[[Settings], Sequence[str]]
    run: Callable[[str, Variant, Settings], Outcome]
    context: Callable[[Settings], dict[str, object]] = lambda settings: {}


def make_leaf(variant: Variant, start: Tensor) -> Tensor:
    """A copy of the start that learns, between 0 and 1 where the variant projects."""
    return (start.clamp(0, 1) if variant.projects else start.clone()).requires_grad_()


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
