"""Sentences that several tasks share, and those that speak of a whole run. The numbers and the choice of sentence are computed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..family import Family, family
from ..paired import BETTER, NO_DIFFERENCE, NOT_TOLD, TEST, WORSE, Better, Difference, difference
from .base import ERAS, INSTALLED, Measured, World, Worlds

OURS = "inward"
APART = 0.5  # dB: two pictures that an eye can tell apart
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
    if not are_alike(closed, opened):
        return (
            f"{world}: which torch is installed decides the picture, {closed:.1f} dB where the gradient at a bound "
            f"passes and {opened:.1f} dB where it does not."
        )
    both = " and ".join(dict.fromkeys(f"{value:.1f}" for value in (closed, opened)))
    return f"{world}: both eras of torch.clamp end alike, at {both} dB."


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


def are_alike(one: float, other: float) -> bool:
    """Two pictures, by their dB; those of which neither is a number, too."""
    return abs(one - other) <= APART or (math.isnan(one) and math.isnan(other))


def best(values: Mapping[str, float]) -> str:
    """The variant with the largest; what is not finite is none."""
    return max(values, key=lambda name: values[name] if math.isfinite(values[name]) else -math.inf)


def where_as_good(worlds: Worlds, name: str, margin: float = 0.0) -> list[str]:
    """The worlds in which `name` ends above our default, or less than `margin` dB below it."""
    values = {world: decibels(rows) for world, rows in worlds.items()}
    return [world for world, of in values.items() if OURS in of and of[name] > of[OURS] - margin]


@dataclass(frozen=True)
class Score:
    """How a headline over seeds is spoken of, and what is compared by paired.TEST: "98.3% of the problems solved", "test error 0.0389".

    Differences of one seed of at most `tie` count as none.
    """

    key: str
    text: str  # with {} for the number
    places: str = ".1%"
    better: Better = "higher"
    tie: float = 0.0

    def said(self, measured: Measured) -> str:
        return self.text.format(self.number(measured))

    def number(self, measured: Measured) -> str:
        return format(measured.numbers[self.key], self.places)

    def difference(self, one: Measured, other: Measured) -> Difference:
        return difference(one.seeds, other.seeds, better=self.better, tie=self.tie)

    def family(self, rows: World, with_best: bool = False) -> Family:
        """What is asked of one world, corrected together: each variant against our default, and the eras. The installed torch is one."""
        names = [name for name in rows if name != INSTALLED]
        asked = [(name, OURS) for name in names if name != OURS] if OURS in rows else []
        seeds = {self.key: {name: rows[name].seeds for name in names}}
        return family(seeds, {self.key: self.better}, [*asked, (ERAS[0], ERAS[1])], tie=self.tie, with_best=with_best)

    def against_ours(self, rows: World) -> dict[str, Difference]:
        """Each variant less our default, the best first."""
        found = self.family(rows)
        names = [name for name in rows if name not in (OURS, INSTALLED)]
        names.sort(key=lambda name: rows[name].numbers[self.key], reverse=self.better == "higher")
        return {name: found.between(self.key, name, OURS) for name in names}

    def eras(self, rows: World) -> Difference:
        """The old edge less the new one."""
        return self.family(rows).between(self.key, *ERAS)


def of_scores(world: str, rows: World, score: Score) -> list[str]:
    """What every world says that measures over seeds: the eras, our lead, what was better, what no different."""
    out = [_eras_over_seeds(world, rows, score)]
    if OURS not in rows:
        return out
    found = score.against_ours(rows)
    out.append(_lead_over_seeds(world, rows, score, found))
    by_verdict: dict[str, list[str]] = {BETTER: [], NO_DIFFERENCE: [], WORSE: []}
    for name, one in found.items():
        if name not in ERAS:
            by_verdict[one.verdict].append(f"{name} ({score.number(rows[name])})")
    for verdict, start in ((BETTER, "better than"), (NO_DIFFERENCE, f"{NOT_TOLD} from")):
        if names := by_verdict[verdict]:
            out.append(f"{world}: {start} {OURS} here: {listed(names)}.")
    return out if by_verdict[BETTER] else [*out, f"{world}: nothing tried was better than {OURS}."]


def _eras_over_seeds(world: str, rows: World, score: Score) -> str:
    closed, opened = (rows[era] for era in ERAS)
    found = score.eras(rows)
    if found.verdict == NO_DIFFERENCE:
        how = "end equal" if found.seeds[1] == 0 else f"are {NOT_TOLD}"
        return f"{world}: the two eras of torch.clamp {how}: {score.said(closed)} and {score.number(opened)}."
    return (
        f"{world}: which torch is installed decides: {score.said(closed)} where the gradient at a bound passes, "
        f"{score.number(opened)} where it does not."
    )


def _lead_over_seeds(world: str, rows: World, score: Score, found: Mapping[str, Difference]) -> str:
    """Against the better of the eras, which is the first of them in `found`."""
    era = next(name for name in found if name in ERAS)
    turned = {BETTER: "worse than", WORSE: "better than", NO_DIFFERENCE: f"{NOT_TOLD} from"}[found[era].verdict]
    return f"{world}: {OURS}: {score.said(rows[OURS])}, {turned} the better era of torch.clamp ({score.number(rows[era])})."


PICTURES = Score("psnr", "{} dB", ".1f")


def test_of(seeds: str) -> str:
    """What ends the setting of every task with seeds: how its sentences were decided."""
    return f"Variants are compared over {seeds} by {TEST}, corrected for their number in each setting."


def where_better(worlds: Worlds, name: str, score: Score) -> list[str]:
    """The worlds in which `name` is better than our default."""
    return [
        world for world, rows in worlds.items() if OURS in rows and score.against_ours(rows)[name].verdict == BETTER
    ]


def where_no_worse(worlds: Worlds, name: str, score: Score) -> list[str]:
    """The worlds in which our default is not better than `name`."""
    return [world for world, rows in worlds.items() if OURS in rows and score.against_ours(rows)[name].verdict != WORSE]


def closing(simpler: Mapping[str, Sequence[str]]) -> list[str]:
    """When you do not need us. `simpler` holds the worlds in which something simpler won, by the advice that it leads to."""
    won = {advice: listed(simpler[advice]) for advice in _ADVICE if simpler.get(advice)}
    return [*(_ADVICE[advice].format(worlds=worlds) for advice, worlds in won.items()), *_ALWAYS]


def installed(era: str, slope: float) -> str:
    return (
        f"The {INSTALLED} installed here has slope {slope:g} exactly at a bound that is a number: it is the rule {era}."
    )
