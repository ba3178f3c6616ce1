"""The results of a run, and their numbers as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from pseudograd import __version__
from pseudograd.comparison.comparison import Comparison, plain_numbers
from pseudograd.comparison.training import ONLY
from pseudograd.torch_table.eras import ERAS, installed_era, measure
from pseudograd.torch_table.forms import edge_cases

from .. import sentences
from ..sentences import Section

KIND = "pseudograd compare"
NUMBERS = "results.json"


@dataclass
class Results:
    """The content of a report: a section for each subject, by its name, and the torch of the run."""

    rules: tuple[str, ...]
    loss: str | None = None
    sections: dict[str, Section] = field(default_factory=dict)
    # The slope of the installed torch at a bound, for each spelling of the call.
    edges: dict[str, float] = field(default_factory=lambda: {way.text: measure(way.f).x for way in edge_cases()})
    # The rule with the gradients of the installed torch.
    era: str = field(default_factory=lambda: ERAS[installed_era()].rule)
    torch: str = torch.__version__
    seconds: float = 0.0
    own: Comparison | None = None  # the comparison of a user's own training

    @property
    def title(self) -> str:
        if self.own is not None and self.own.is_given:
            return "Same training. Same seeds. One function changed."
        return f"Same {'training. Same seeds' if self.own else 'picture. Same loss'}. One backward rule changed."

    @property
    def installed(self) -> str:
        return sentences.installed(self.era, self.edges["clamp(x, min=0)"])

    def to_json(self) -> dict[str, Any]:
        """Numbers only; NaN becomes null, an infinite number "inf" or "-inf"."""
        tasks: dict[str, dict[str, object]] = {}
        for name, section in self.sections.items():
            worlds, seeds = {}, {}
            for world, rows in section.worlds.items():
                worlds[world] = {variant: plain_numbers(outcome.numbers) for variant, outcome in rows.items()}
                with_seeds = {variant: outcome.seeds for variant, outcome in rows.items() if outcome.seeds}
                seeds[world] = {variant: plain_numbers(numbers) for variant, numbers in with_seeds.items()}
            tasks[name] = {"settings": plain_numbers(section.context), "seeds": seeds, "worlds": worlds}
        return {
            "kind": KIND,
            "pseudograd": __version__,
            "torch": self.torch,
            "rules": list(self.rules),
            "loss": self.loss,
            "torch_at_the_bound": self.edges,
            "installed_era": self.era,
            "seconds": self.seconds,
            "tasks": tasks,
            **({} if self.own is None else {"own": self.own.to_json()}),
        }


def own_worlds(comparison: Comparison) -> Mapping[str, str]:
    """The name of each number of the user's run, by the name that a reader sees."""
    return {"result" if number == ONLY else number: number for number in comparison.values}


def results_text(results: Results) -> str:
    return json.dumps(results.to_json(), indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def cell(value: float, unit: str = "") -> str:
    """A number as text: with one decimal from 1 on, with three digits below."""
    if math.isnan(value):
        return "not a number"
    text = f"{value:.1f}" if abs(value) >= 1 else f"{value:.3g}"
    if math.isfinite(value) and value == int(value) and not unit:
        text = f"{value:.0f}"
    return f"{text} {unit}" if unit else text
