"""Sentences of a report that several tasks share, and sentences about a whole run. The measured numbers choose them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

from torch import Tensor

from pseudograd.comparison.statistics import BETTER, NO_DIFFERENCE, NOT_TOLD, TEST, WORSE
from pseudograd.comparison.variants import INSTALLED, eras
from pseudograd.wording import listed

from .base import OURS, Score, Subject, World, eras_in

LARGEST_UNSEEN = 0.5  # dB: an eye cannot tell two pictures apart that differ by so much or less
# The end of a report says when a reader needs none of our rules.
CLOSING = (
    "If what you clamp is the parameter itself, clip it after each step, as project does: that needs no pseudo-gradient.",
    "If the loss is defined outside the range too, leave the clamp out while you train.",
    "If the clamp guards a square root, a logarithm or an inverse cosine, keep the true gradient: it is there to stop a NaN.",
    "If torch.clamp already trains well, ask only for its edge: rule zero with the edge your program was trained on.",
)


def where(era: str) -> str:
    """The gradient of an era at a bound, as a clause. In a list of eras the closed one comes first."""
    return "where the gradient at a bound passes" if eras()[era].edge == "closed" else "where it does not"


def decibels(rows: World) -> dict[str, float]:
    return {name: measured.numbers["psnr"] for name, measured in rows.items()}


def picture_sentences(rows: World) -> Iterator[str]:
    """Sentences about pictures: the eras, our default, the variants that are better than it, and those that end in NaN."""
    values = decibels(rows)
    of_eras = {era: values[era] for era in eras_in(rows)}
    if are_alike(*of_eras.values()):
        texts = listed(list(dict.fromkeys(f"{value:.1f}" for value in of_eras.values())))
        yield f"both eras of torch.clamp end alike, at {texts} dB."
    else:
        each = listed([f"{value:.1f} dB {where(era)}" for era, value in of_eras.items()])
        yield f"which torch is installed decides the picture, {each}."
    if OURS in values:
        era, ours = max(of_eras.values()), values[OURS]
        gain = f", {ours - era:.1f} dB above" if ours > era else " and does not beat"
        yield f"{OURS} ends at {ours:.1f} dB{gain} the better of the two eras of torch.clamp ({era:.1f} dB)."
        yield better_sentence(values)
    broken = [name for name, value in values.items() if not math.isfinite(value)]
    if broken:
        yield f"not a number at the end: {listed(broken)}."


def better_sentence(values: Mapping[str, float]) -> str:
    """A sentence with every variant that is better than our default by more than the rounding of the sentence."""
    better = {name: value for name, value in values.items() if value > values[OURS] + 0.05 and name != OURS}
    if not better:
        return f"nothing tried was better than {OURS}."
    ranked = sorted(better, key=lambda name: -better[name])
    return f"better than {OURS} here: {listed([f'{name} ({better[name]:.1f} dB)' for name in ranked])}."


def are_alike(*values: float) -> bool:
    """Do these pictures look alike? values: their dB. Pictures that are all NaN are alike, too."""
    return all(abs(first - second) <= LARGEST_UNSEEN for first, second in combinations(values, 2)) or all(
        map(math.isnan, values)
    )


def best(values: Mapping[str, float]) -> str:
    """The variant with the largest finite value."""
    return max(values, key=lambda name: values[name] if math.isfinite(values[name]) else -math.inf)


def score_sentences(rows: World, score: Score) -> Iterator[str]:
    """Sentences about a score over seeds: the eras, our default, the variants that are better than it or not told apart from it."""
    first, *others = names = eras_in(rows)
    texts = [score.sentence(rows[first]), *(score.number(rows[era]) for era in others)]
    gaps = score.eras(rows)
    if all(gap.verdict == NO_DIFFERENCE for gap in gaps):
        how = f"are {NOT_TOLD}" if any(gap.seeds_that_differ for gap in gaps) else "end equal"
        yield f"the two eras of torch.clamp {how}: {listed(texts)}."
    else:
        each = ", ".join(f"{text} {where(era)}" for era, text in zip(names, texts, strict=True))
        yield f"which torch is installed decides: {each}."
    if OURS not in rows:
        return
    verdicts = {name: gap.verdict for name, gap in score.against_ours(rows).items()}  # the best first
    era = next(name for name in verdicts if name in names)
    ours = {BETTER: "worse than", WORSE: "better than", NO_DIFFERENCE: f"{NOT_TOLD} from"}[verdicts[era]]
    yield f"{OURS}: {score.sentence(rows[OURS])}, {ours} the better era of torch.clamp ({score.number(rows[era])})."
    for kind, start in ((BETTER, "better than"), (NO_DIFFERENCE, f"{NOT_TOLD} from")):
        variants = [name for name, verdict in verdicts.items() if verdict == kind and name not in eras()]
        if variants:
            numbers = listed([f"{name} ({score.number(rows[name])})" for name in variants])
            yield f"{start} {OURS} here: {numbers}."
    if not any(verdict == BETTER and name not in eras() for name, verdict in verdicts.items()):
        yield f"nothing tried was better than {OURS}."


PICTURES = Score("psnr", "{} dB", ".1f")


def test_sentence(seeds: str) -> str:
    """The last sentence of the setting of a task with seeds: by which test variants are compared."""
    return f"Variants are compared over {seeds} by {TEST}, corrected for their number in each setting."


@dataclass
class Section:
    """A subject with its outcomes."""

    subject: Subject
    context: dict[str, object]  # the numbers for its sentences
    worlds: dict[str, World]  # the outcome of each variant in each world, worlds[world][variant]
    first: dict[str, dict[str, Tensor]]  # first[world] has the pictures before the pictures of the variants, by title

    @property
    def setting(self) -> str:
        return self.subject.setting.format_map(self.context)

    @property
    def verdicts(self) -> list[str]:
        """The sentences about all worlds. If there are several, each sentence begins with the name of its world."""
        subject, lines = self.subject, []
        for world, rows in self.worlds.items():
            for sentence in self._score_sentences(rows):
                if len(self.worlds) > 1:
                    sentence = f"{world}: {sentence}"
                elif not sentence.startswith(tuple(rows)):  # the name of a variant stays as it is
                    sentence = sentence[:1].upper() + sentence[1:]
                lines.append(sentence)
        return [*lines, *subject.after(self.worlds, self.context)]

    def _score_sentences(self, rows: World) -> Iterable[str]:
        score = self.subject.score
        if score is None:
            return ()
        return picture_sentences(rows) if score == PICTURES else score_sentences(rows, score)


def installed(era: str, slope: float) -> str:
    return (
        f"The {INSTALLED} installed here has slope {slope:g} exactly at a bound that is a number: it is the rule {era}."
    )
