"""What a task is: worlds to run a clamp in, and what is measured there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import UnknownNameError, unknown_name
from ..ops.bounds import CLAMP, clamp
from ..rule_text import parsed

Clamp = Callable[[Tensor, float, float], Tensor]
Loss = Callable[[Tensor], Tensor]
ERAS = ("zero/closed", "zero/open")  # torch <= 2.13 and torch >= 2.14, with number bounds
INSTALLED = "torch.clamp"
NO_CLAMP = "no clamp"
PROJECT = "project"
DEFAULT_RULES = ("inward", "identity", "sign", "leaky", "elastic", "inverting")


class Variant(NamedTuple):
    """A clamp under the name that reports and figures show. `projects` asks a world to clip its leaves after each step instead."""

    name: str
    clamp: Clamp
    projects: bool = False


@dataclass(frozen=True)
class Settings:
    """What the command line may change about a task."""

    low: float | None = None
    high: float | None = None
    loss: Loss | None = None
    loss_name: str = ""


@dataclass
class Measured:
    """What one variant did in one world: numbers for the table, arrays for the figure."""

    numbers: dict[str, float]
    arrays: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Task:
    """worlds(settings) names the worlds; run(world, variant, settings) measures one variant in one of them.

    `columns` describes its numbers; `headline` is the one for a summary, with a short heading. The figure and the verdict are found
    under the task's name in `report`.
    """

    name: str
    title: str
    worlds: Callable[[Settings], Sequence[str]]
    run: Callable[[str, Variant, Settings], Measured]
    columns: Mapping[str, str]
    headline: tuple[str, str]
    has_leaves: bool
    context: Callable[[Settings], dict[str, Any]] = lambda settings: {}


def variants(rules: Iterable[str] = DEFAULT_RULES, *, has_leaves: bool) -> list[Variant]:
    """Every rule asked for, both eras, the installed torch's own op, no clamp, and on leaves the honest baseline `project`."""
    names = list(dict.fromkeys([*ERAS, *rules]))
    made = [_of_rule(name) for name in names]
    made.append(Variant(INSTALLED, lambda x, low, high: torch.clamp(x, low, high)))
    made.append(Variant(NO_CLAMP, lambda x, low, high: x * 1))
    if has_leaves:
        made.append(Variant(PROJECT, lambda x, low, high: x * 1, projects=True))
    return made


def _of_rule(name: str) -> Variant:
    """A variant from "rule", "rule(parameters)" or either with "/edge"; an unknown name raises the op's own error."""
    rule, edge = parsed(CLAMP, name, "compare: --rules")
    how: dict[str, Any] = {"rule": rule, "edge": edge or CLAMP.default_edge}
    return Variant(name, lambda x, low, high: clamp(x, low, high, **how))


def unknown_task(names: Iterable[str], known: Iterable[str]) -> UnknownNameError | None:
    """The error for the first name that is no task."""
    known = tuple(known)
    return next((unknown_name("compare", "task", known, name) for name in names if name not in known), None)
