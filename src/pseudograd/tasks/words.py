"""Sentences that several tasks share, and those that speak of a whole run. The numbers and the choice of sentence are computed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .base import ERAS, INSTALLED, Measured, World, Worlds

OURS = "inward"
# What something simpler that was as good or better leads to, in the order in which a report ends with it.
_ADVICE = {
    "own_leaves": (
        "If what you clamp is the parameter itself, clip it after the step: project was as good or better here ({worlds}), and needs no "
        "pseudo-gradient."
    ),
    "own_loss": "If the loss is defined outside the range too, leave the clamp out while you train: that won here ({worlds}).",
}
_ALWAYS = (
    "If the clamp guards a square root, a logarithm or an inverse cosine, keep the true gradient: it is there to stop a NaN.",
    "If torch.clamp already trains well, ask only for its edge: rule zero with the edge your program was trained on.",
)


def listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def decibels(rows: World) -> dict[str, float]:
    return {name: measured.numbers["psnr"] for name, measured in rows.items()}


def of_pictures(world: str, rows: World) -> list[str]:
    """What every world says that ends with a picture: the eras, our lead, what beat us, what broke."""
    values = decibels(rows)
    out = [_eras(world, values)]
    if OURS in values:
        out += [_lead(world, values), _beaten(world, values)]
    broken = [name for name, value in values.items() if not math.isfinite(value)]
    return [*out, f"{world}: not a number at the end: {listed(broken)}."] if broken else out


def _eras(world: str, values: Mapping[str, float]) -> str:
    closed, opened = (values[era] for era in ERAS)
    if abs(closed - opened) > 0.5:
        return (
            f"{world}: which torch is installed decides the picture, {closed:.1f} dB where the gradient at a bound "
            f"passes and {opened:.1f} dB where it does not."
        )
    return f"{world}: both eras of torch.clamp end alike, at {closed:.1f} dB."


def _lead(world: str, values: Mapping[str, float]) -> str:
    era, value = max(values[name] for name in ERAS), values[OURS]
    gain = f", {value - era:.1f} dB above" if value > era else " and does not beat"
    return f"{world}: {OURS} ends at {value:.1f} dB{gain} the better of the two eras of torch.clamp ({era:.1f} dB)."


def _beaten(world: str, values: Mapping[str, float]) -> str:
    """Name everything that did better than our default, by more than rounding."""
    better = {name: value for name, value in values.items() if value > values[OURS] + 0.05 and name != OURS}
    if not better:
        return f"{world}: nothing tried was better than {OURS}."
    ranked = sorted(better, key=lambda name: -better[name])
    return f"{world}: better than {OURS} here: {listed([f'{name} ({better[name]:.1f} dB)' for name in ranked])}."


def where_as_good(worlds: Worlds, name: str, margin: float = 0.0) -> list[str]:
    """The worlds in which `name` ends above our default, or less than `margin` dB below it."""
    values = {world: decibels(rows) for world, rows in worlds.items()}
    return [world for world, of in values.items() if OURS in of and of[name] > of[OURS] - margin]


@dataclass(frozen=True)
class Score:
    """How a headline over seeds is spoken of: "97 % of the problems solved", "error 0.0391"."""

    key: str
    text: str  # with {} for the number
    places: str = ".1%"
    higher_is_better: bool = True

    def of(self, measured: Measured) -> float:
        return measured.numbers[self.key]

    def said(self, measured: Measured) -> str:
        return self.text.format(self.number(measured))

    def number(self, measured: Measured) -> str:
        return format(self.of(measured), self.places)

    def better(self, one: Measured, other: Measured) -> bool:
        """That `one` is better than `other` over seeds, by a paired test; what has no seeds, or no number, is not."""
        gain = self.of(one) - self.of(other)
        return (gain if self.higher_is_better else -gain) > 0 and differ(one, other)


def differ(one: Measured, other: Measured) -> bool:
    return one.seeds != other.seeds


def of_scores(world: str, rows: World, score: Score) -> list[str]:
    """What every world says that measures over seeds: the eras, our lead, what beat us, what is no different."""
    closed, opened = (rows[era] for era in ERAS)
    better = closed if score.better(closed, opened) else opened
    if better is closed or score.better(opened, closed):
        worse = opened if better is closed else closed
        first = "passes" if better is closed else "does not pass"
        out = [
            f"{world}: which torch is installed decides: {score.said(better)} where the gradient at a bound {first}, "
            f"{score.number(worse)} in the other era."
        ]
    else:
        out = [f"{world}: no difference between the two eras of torch.clamp: {score.said(closed)} and {score.number(opened)}."]
    return [*out, *_of_ours(world, rows, score, better)] if OURS in rows else out


def _of_ours(world: str, rows: World, score: Score, era: Measured) -> list[str]:
    ours = rows[OURS]
    if score.better(ours, era):
        lead = f"better than the better era of torch.clamp ({score.number(era)})"
    elif score.better(era, ours):
        lead = f"worse than the better era of torch.clamp ({score.number(era)})"
    else:
        lead = f"no difference from the better era of torch.clamp ({score.number(era)})"
    others = [name for name in rows if name not in (OURS, *ERAS, INSTALLED)]
    ranked = sorted(others, key=lambda name: score.of(rows[name]), reverse=score.higher_is_better)
    better = [f"{name} ({score.number(rows[name])})" for name in ranked if score.better(rows[name], ours)]
    equal = [
        name for name in ranked if not score.better(rows[name], ours) and not score.better(ours, rows[name])
    ]
    out = [f"{world}: {OURS}: {score.said(ours)}, {lead}."]
    out.append(
        f"{world}: better than {OURS} here: {listed(better)}."
        if better
        else f"{world}: nothing tried was better than {OURS}."
    )
    if equal:
        out.append(f"{world}: no difference from {OURS}: {listed(equal)}.")
    return out


def where_no_worse(worlds: Worlds, name: str, score: Score) -> list[str]:
    """The worlds in which our default is not better than `name`."""
    return [
        world for world, rows in worlds.items() if OURS in rows and not score.better(rows[OURS], rows[name])
    ]


def closing(simpler: Mapping[str, Sequence[str]]) -> list[str]:
    """When you do not need us. `simpler` holds the worlds in which something simpler won, by the advice that it leads to."""
    won = {advice: listed(simpler[advice]) for advice in _ADVICE if simpler.get(advice)}
    return [*(_ADVICE[advice].format(worlds=worlds) for advice, worlds in won.items()), *_ALWAYS]


def installed(era: str, slope: float) -> str:
    return f"The {INSTALLED} installed here passes {slope:g} of the gradient exactly at a number bound; it is the rule {era}."
