"""The record of a task: its worlds, the numbers that it measures there, and the sentences of a report about them."""

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
from pseudograd.comparison.verdicts import PairDifferences, compare_pairs
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
    """The number of a task that the report compares over seeds."""

    key: str  # its name in an Outcome
    text: str  # words with {} for the number, such as "{} of the problems solved"
    places: str = ".1%"  # the format of the number
    better: Better = "higher"  # is a lower or a higher number better?
    tie: float = 0.0  # in one seed, a difference up to this size counts as none

    def sentence(self, outcome: Outcome) -> str:
        return self.text.format(self.number(outcome))

    def number(self, outcome: Outcome) -> str:
        return format(outcome.numbers[self.key], self.places)

    def difference(self, first: Outcome, second: Outcome) -> Difference:
        return difference(first.seeds, second.seeds, better=self.better, tie=self.tie)

    def compare_pairs(self, rows: World, with_best: bool = False) -> PairDifferences:
        """The comparisons of one world, corrected together: each variant with our default, and the eras with each other.

        The installed torch.clamp is left out, because it is one of the eras.
        """
        names = [name for name in rows if name != INSTALLED]
        planned = [(name, OURS) for name in names if name != OURS] if OURS in rows else []
        planned += combinations(eras_in(rows), 2)
        seeds = {self.key: {name: rows[name].seeds for name in names}}
        return compare_pairs(seeds, {self.key: self.better}, planned, tie=self.tie, with_best=with_best)

    def against_ours(self, rows: World) -> dict[str, Difference]:
        """The difference of each variant and our default, the best variant first."""
        differences = self.compare_pairs(rows)
        names = [name for name in rows if name not in (OURS, INSTALLED)]
        names.sort(key=lambda name: rows[name].numbers[self.key], reverse=self.better == "higher")
        return {name: differences.difference(self.key, name, OURS) for name in names}

    def eras(self, rows: World) -> list[Difference]:
        """The difference of each older era and each newer one."""
        differences = self.compare_pairs(rows)
        return [differences.difference(self.key, *pair) for pair in combinations(eras_in(rows), 2)]


Worlds: TypeAlias = Mapping[str, World]
Context: TypeAlias = Mapping[str, object]  # numbers for sentences


@dataclass(frozen=True)
class Settings:
    """The options of the command line for `basin`."""

    low: float = -1.0
    high: float = 1.0
    loss: Loss | None = None
    loss_name: str = ""


# The kinds of figures, and the arrays of an Outcome that they draw.
KINDS = {
    "pictures": ("picture",),  # of shape (3, height, width), from 0 to 1
    "paths": ("range", "path"),  # of shape (steps + 1, starts)
}


@dataclass(frozen=True)
class Gallery:
    """One figure for each world, with a panel for each variant."""

    kind: str
    title: str = ""  # a text with {world}
    # The pictures before the pictures of the variants: by title, a function that makes the picture from the name of the world.
    first: Mapping[str, Callable[[str], Tensor]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise unknown_name("Gallery", "kind", KINDS, self.kind)


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The sentences of a report about one problem, which its outcomes fill.

    columns: a description of each number.
    headline: the number for a summary, with a short heading.
    setting: the opening sentences, with {names} of the context.
    has_leaves: is x a leaf, so that a variant can clip x after a step?
    score: set if the headline can be better or worse. The report compares the score in each world.
    after: after(worlds, context) returns further sentences.
    finding: set if the pictures of this subject open the report. finding(rows) returns the sentences above them, and the last of the
        `first` pictures is the target.
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
        if not self.name.isidentifier():  # the files of the figures have this name
            raise ValueError(must(type(self).__name__, "name", "be a name as Python writes them", self.name))


@dataclass(frozen=True, kw_only=True)
class Task(Subject):
    """A subject that can be run.

    worlds: worlds(settings) returns the names of its worlds.
    run: run(world, variant, settings) returns the outcome of a variant in a world. A task with several seeds or drawn problems measures all
        of them, and sets `Outcome.seeds`.
    context: context(settings) returns the numbers for `setting`.
    """

    worlds: Callable[[Settings], Sequence[str]]
    run: Callable[[str, Variant, Settings], Outcome]
    context: Callable[[Settings], dict[str, object]] = lambda settings: {}


def make_leaf(variant: Variant, start: Tensor) -> Tensor:
    """A leaf with the values of the start. If the variant projects, they are clipped to 0 and 1."""
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
    """Train the leaf `x` by the loss of its clamp. Yields x after each step. If the variant projects, x is clipped first."""
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
    """A loss that is called with each element alone, of shape (1,), by torch.vmap. Called with all elements, it returns a sum or a mean.

    If all elements shared a mean, each gradient would shrink with their number. A loss that couples elements would be another problem.
    """

    loss: Loss

    def __call__(self, y: Tensor) -> Tensor:
        return torch.vmap(lambda element: self.loss(element.reshape(1)).reshape(()))(y.reshape(-1)).reshape(y.shape)
