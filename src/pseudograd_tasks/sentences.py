"""Sentences that several tasks share, and those that speak of a whole run. The numbers and the choice of sentence are computed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations

from pseudograd.comparison.statistics import BETTER, NO_DIFFERENCE, NOT_TOLD, TEST, WORSE, Difference
from pseudograd.comparison.variants import INSTALLED, eras
from pseudograd.wording import listed

from .base import OURS, Score, World, Worlds, eras_in

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


_AT_THE_BOUND = {
    "closed": "where the gradient at a bound passes",
    "open": "where it does not",
    "half": "where half of it does",
}


def where(era: str) -> str:
    """What an era does at a bound, in a list of all of them, which begins with the closed one."""
    return _AT_THE_BOUND[eras()[era].edge]


def _count_words(count: int) -> tuple[str, str, str]:
    """Of so many: all, how many, and which of them is ahead."""
    return ("both", "two", "better") if count == 2 else (f"all {count}", str(count), "best")


def decibels(rows: World) -> dict[str, float]:
    return {name: measured.numbers["psnr"] for name, measured in rows.items()}


def picture_sentences(world: str, rows: World) -> list[str]:
    """What every world says that ends with a picture: the eras, our lead, what beat us, what broke."""
    values = decibels(rows)
    of_eras = {era: values[era] for era in eras_in(rows)}
    out = [_eras(world, of_eras)]
    if OURS in values:
        out += [_lead(world, values[OURS], of_eras), _beaten(world, values)]
    broken = [name for name, value in values.items() if not math.isfinite(value)]
    return [*out, f"{world}: not a number at the end: {listed(broken)}."] if broken else out


def _eras(world: str, of_eras: Mapping[str, float]) -> str:
    if not are_alike(*of_eras.values()):
        each = listed([f"{value:.1f} dB {where(era)}" for era, value in of_eras.items()])
        return f"{world}: which torch is installed decides the picture, {each}."
    values = listed(list(dict.fromkeys(f"{value:.1f}" for value in of_eras.values())))
    return f"{world}: {_count_words(len(of_eras))[0]} eras of torch.clamp end alike, at {values} dB."


def _lead(world: str, value: float, of_eras: Mapping[str, float]) -> str:
    era = max(of_eras.values())
    gain = f", {value - era:.1f} dB above" if value > era else " and does not beat"
    _, two, better = _count_words(len(of_eras))
    return f"{world}: {OURS} ends at {value:.1f} dB{gain} the {better} of the {two} eras of torch.clamp ({era:.1f} dB)."


def _beaten(world: str, values: Mapping[str, float]) -> str:
    """Name everything that did better than our default, by more than rounding."""
    better = {name: value for name, value in values.items() if value > values[OURS] + 0.05 and name != OURS}
    if not better:
        return f"{world}: nothing tried was better than {OURS}."
    ranked = sorted(better, key=lambda name: -better[name])
    return f"{world}: better than {OURS} here: {listed([f'{name} ({better[name]:.1f} dB)' for name in ranked])}."


def are_alike(*values: float) -> bool:
    """Pictures, by their dB; those of which none is a number, too."""
    return all(abs(first - second) <= APART for first, second in combinations(values, 2)) or all(
        map(math.isnan, values)
    )


def best(values: Mapping[str, float]) -> str:
    """The variant with the largest; what is not finite is none."""
    return max(values, key=lambda name: values[name] if math.isfinite(values[name]) else -math.inf)


def where_as_good(worlds: Worlds, name: str, margin: float = 0.0) -> list[str]:
    """The worlds in which `name` ends above our default, or less than `margin` dB below it."""
    values = {world: decibels(rows) for world, rows in worlds.items()}
    return [world for world, of in values.items() if OURS in of and of[name] > of[OURS] - margin]


def world_sentences(worlds: Worlds, score: Score) -> list[str]:
    return [sentence for world, rows in worlds.items() for sentence in score_sentences(world, rows, score)]


def score_sentences(world: str, rows: World, score: Score) -> list[str]:
    """What every world says that measures over seeds: the eras, our lead, what was better, what no different."""
    out = [_eras_over_seeds(world, rows, score)]
    if OURS not in rows:
        return out
    verdicts = score.against_ours(rows)
    out.append(_lead_over_seeds(world, rows, score, verdicts))
    by_verdict: dict[str, list[str]] = {BETTER: [], NO_DIFFERENCE: [], WORSE: []}
    for name, verdict in verdicts.items():
        if name not in eras():
            by_verdict[verdict.verdict].append(f"{name} ({score.number(rows[name])})")
    for kind, start in ((BETTER, "better than"), (NO_DIFFERENCE, f"{NOT_TOLD} from")):
        if names := by_verdict[kind]:
            out.append(f"{world}: {start} {OURS} here: {listed(names)}.")
    return out if by_verdict[BETTER] else [*out, f"{world}: nothing tried was better than {OURS}."]


def _eras_over_seeds(world: str, rows: World, score: Score) -> str:
    first, *others = names = eras_in(rows)
    said = [score.sentence(rows[first]), *(score.number(rows[era]) for era in others)]
    verdicts = score.eras(rows)
    if all(verdict.verdict == NO_DIFFERENCE for verdict in verdicts):
        how = f"are {NOT_TOLD}" if any(verdict.seeds[1] for verdict in verdicts) else "end equal"
        return f"{world}: the {_count_words(len(names))[1]} eras of torch.clamp {how}: {listed(said)}."
    each = ", ".join(f"{text} {where(era)}" for era, text in zip(names, said, strict=True))
    return f"{world}: which torch is installed decides: {each}."


def _lead_over_seeds(world: str, rows: World, score: Score, verdicts: Mapping[str, Difference]) -> str:
    """Against the best of the eras, which is the first of them in `verdicts`."""
    of_eras = eras_in(rows)
    era = next(name for name in verdicts if name in of_eras)
    turned = {BETTER: "worse than", WORSE: "better than", NO_DIFFERENCE: f"{NOT_TOLD} from"}[verdicts[era].verdict]
    better = _count_words(len(of_eras))[2]
    return f"{world}: {OURS}: {score.sentence(rows[OURS])}, {turned} the {better} era of torch.clamp ({score.number(rows[era])})."


PICTURES = Score("psnr", "{} dB", ".1f")


def test_of(seeds: str) -> str:
    """What ends the setting of every task with seeds: how its sentences were decided."""
    return f"Variants are compared over {seeds} by {TEST}, corrected for their number in each setting."


def where_no_worse(worlds: Worlds, name: str, score: Score, or_equal: bool = True) -> list[str]:
    """The worlds in which our default is not better than `name`; without `or_equal`, those in which `name` is better."""
    verdicts = (BETTER, NO_DIFFERENCE) if or_equal else (BETTER,)
    return [w for w, rows in worlds.items() if OURS in rows and score.against_ours(rows)[name].verdict in verdicts]


def closing(simpler: Mapping[str, Sequence[str]]) -> list[str]:
    """When you do not need us. `simpler` holds the worlds in which something simpler won, by the advice that it leads to."""
    won = {advice: listed(simpler[advice]) for advice in _ADVICE if simpler.get(advice)}
    return [*(_ADVICE[advice].format(worlds=worlds) for advice, worlds in won.items()), *_ALWAYS]


def installed(era: str, slope: float) -> str:
    return (
        f"The {INSTALLED} installed here has slope {slope:g} exactly at a bound that is a number: it is the rule {era}."
    )
