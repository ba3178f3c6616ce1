"""The class `Kind`, a kind of finding, and the class `Evidence`, which findings are made from."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pseudograd_notices.code import Code, read_codes

from ....listen.frames import Location, file_and_line
from ....listen.harmless import harmless
from ....wording import counted, percent
from ...count.norms import numbers_of
from ...count.recorder import Recorder
from ...count.sensitivity import Sensitivity
from ...count.stalls import Stall, Stalls
from ...count.tally import Tally
from ...count.values import Values
from ...count.whatif import Change
from ...records import Copied, Finding, Partly, Site, Starved, Structural
from ...sites import direction_of, expression_at, site_of, structural_of
from ..copied import copies
from ..dead_units import calm_lines
from ..deliberate import Deliberate
from ..norms import History, Norm, histories, norms_of
from ..starving import Starving

if TYPE_CHECKING:
    from ...count.nonfinite import Nonfinite

Owner = TypeVar("Owner")
Record = TypeVar("Record")

CODES = {code.number: code for code in read_codes(Path(__file__).with_name("codes.md"))}
# These ops cut on purpose: a factor of 0, a mask, a choice, an element that is not chosen or is overwritten.
_CHOICES = "mul|where|maskedFill|index|gather|nativeDropout|maxPool|max|min|amax|amin|sort|topk|Copy|fill|zero|scatter|masked|put"


def computed_once(read: Callable[[Owner], Iterable[Record]]) -> cached_property[list[Record]]:
    """A list that is computed once. If that fails, it is empty, and the errors of the report say why."""
    guarded = harmless("the report")(lambda evidence: list(read(evidence)))
    return cached_property(lambda evidence: guarded(evidence) or [])


class Evidence:
    """The fields of `Report` except the findings, and the numbers that findings are made from."""

    def __init__(self, recorder: Recorder, deliberate: Deliberate, stalls: Stalls) -> None:
        self.recorder, self.noted, self.leaves = recorder, recorder.noted, recorder.leaves
        self.deliberate, self.stalls, self.meter = deliberate, stalls, recorder.whatif
        self.tallies: list[Tally] = list(recorder.tallies.values())
        self.values: list[Values] = list(recorder.clamps.all.values())
        self.backwards = recorder.backwards

    @property
    def nonfinite(self) -> Nonfinite | None:
        """Made by the recorder when a gradient is not finite for the first time."""
        return vars(self.recorder).get("nonfinite")

    @computed_once
    def sites(self) -> Iterable[Site]:
        """The sites in the order in which a backward meets them."""
        sites = [
            site_of(tally, self.deliberate.location(tally.location), direction_of(tally, self.leaves))
            for tally in self.tallies
            if tally.calls
        ]
        return sorted(sites, key=lambda site: site.order)

    @property
    def suspects(self) -> list[Site]:
        """The sites that may have cut a gradient by mistake: no guards, and no ops that cut on purpose."""
        return [
            site
            for site in self.sites
            if site.arrived and not site.is_guard and (site.family or not re.match(_CHOICES, site.op))
        ]

    @computed_once
    def structural(self) -> Iterable[Structural]:
        cuts = [cut for cut in self.recorder.influence.cuts.values() if cut.upstream]
        # No loss depends on what left torch after the last backward, as weights that are saved at the end.
        cuts = [cut for cut in cuts if cut.reaches_loss is not None or cut.since < self.backwards]
        records = [structural_of(cut, self.leaves, self.deliberate.location(cut.location)) for cut in cuts]
        return sorted(records, key=lambda record: {True: 0, None: 1, False: 2}[record.reaches_loss])

    @cached_property
    def starving(self) -> Starving:
        return Starving(self.recorder, self.sites, self.structural)

    @computed_once
    def starved(self) -> Iterable[Starved]:
        return [record for record in self.starving.starved if not self.deliberate.parameter(record.parameter)]

    @computed_once
    def partly(self) -> Iterable[Partly]:
        return [record for record in self.starving.partly_starved() if not self.deliberate.parameter(record.parameter)]

    @computed_once
    def sensitivity(self) -> Iterable[Sensitivity]:
        return self.meter.sensitivity.records() if self.meter and self.meter.sensitivity else []

    @property
    def errors(self) -> list[str]:
        return self.noted.lines

    @computed_once
    def calm(self) -> Iterable[str]:
        clips = [
            f"{site.op} at {site.where} cuts {percent(site.cut_share)} of what arrives, {_why_calm(site)}"
            for site in self.sites
            if site.cut and not site.cut_at_nan and site.is_calm_clip and site.family == "clamp"
        ]
        clips += [
            f"{site.op} at {site.where} cuts all of what arrives, and the loss adds up its values, as those of a penalty or a margin that "
            "nothing violates"
            for site in self.sites
            if site.arrived and self.is_penalty(site)
        ]
        more = ["further parameters and leaves are not looked at: there are too many"] if self.leaves.has_more else []
        broken = [] if self.nonfinite is None else self.nonfinite.calm()
        if self.nonfinite is None or not (self.nonfinite.reached or self.nonfinite.is_finding):
            broken += self._losses_not_finite()
        return [*self.starving.calm(), *broken, *calm_lines(self.partly), *dict.fromkeys(clips), *more]

    def is_penalty(self, site: Site) -> bool:
        """Is it a penalty that nothing violates: a term of the loss that cuts everything, although no parameter starves?"""
        is_calm = site.is_loss_term and site.cut == site.arrived
        return is_calm and not any(leaf.starves for leaf in self.leaves.unpack(site.upstream))

    def _losses_not_finite(self) -> Iterable[str]:
        """Sentences about losses that are not finite, although all gradients were, as behind a root of infinity."""
        for location, losses in self.recorder.losses.items():
            values = numbers_of(losses.values)
            steps = [step for step, value in values if not math.isfinite(value)]
            if steps:
                where = file_and_line(location.call)
                passes = f"{len(steps):,} of {counted(len(values), 'backward pass', 'backward passes')}"
                yield f"the loss at {where} is not finite in {passes} that were looked at, first in backward {steps[0]:,}"

    @computed_once
    def copied(self) -> Iterable[Copied]:
        return copies(tally for tally in self.tallies if tally.calls)

    @computed_once
    def norms(self) -> Iterable[Norm]:
        return norms_of(leaf for _, leaf in self.leaves)

    @computed_once
    def stalled(self) -> Iterable[Stall]:
        return [steps.record for steps in self.stalls.parameters() if not steps.moves_on_average]

    @computed_once
    def history(self) -> Iterable[History]:
        return histories((leaf for _, leaf in self.leaves), self.sensitivity, self.stalled)

    @computed_once
    def parameters(self) -> Iterable[str]:
        """All leaves; if optimisers step, without the inputs of a batch that require a gradient."""
        are_all = not self.recorder.optimisers.have_stepped
        return [leaf.name for _, leaf in self.leaves if are_all or leaf.is_parameter or leaf.is_in_optimizer]

    @computed_once
    def idle(self) -> Iterable[str]:
        known = set(self.parameters)
        return [name for name in self.starving.excused() if name in known]

    @property
    def whatif(self) -> dict[str, list[Change]]:
        return self.meter.answers() if self.meter else {}

    @property
    def inexact(self) -> dict[str, list[str]]:
        return self.meter.inexact if self.meter else {}

    @property
    def untouched(self) -> list[str]:
        return self.meter.untouched if self.meter else []

    @property
    def unsensed(self) -> dict[str, int]:
        return dict(self.meter.sensitivity.refused) if self.meter and self.meter.sensitivity else {}


def _why_calm(site: Site) -> str:
    """A clause about a clamp with `is_calm_clip`."""
    if site.is_subtracted:
        return "and its difference from its own input goes on, as in a penalty of what is outside, or a soft threshold"
    report = "pseudograd.policy.clip_report(log_ratio, advantage) says which tokens are clipped"
    as_in = "with free bits, or at another floor of a loss"
    if site.reuses_input:
        as_in = f"in the clipped loss of a policy. Of a policy, {report}"
    elif site.has_guards_alone:
        as_in = "at a guard"
    elif site.has_only_lower_bound:
        as_in = "at a hinge, or at a guard against 0"
    return f"{'' if site.recoverable is None else 'and all of that leads further outside, '}as {as_in}"


@dataclass(frozen=True)
class Kind:
    """One kind of finding. codes.md has its name, and texts and programs for people who look it up.

    number: it is never given to another kind. order: if one line has findings of several kinds, the kind with the smallest order comes
    first, and its finding carries the evidence of the others. find: makes the findings from the evidence, by the methods below. It makes
    them at a deliberate line too: these are counted, not printed. is_alone: its findings are about a network and never join others of their
    line. protects: its advice is to leave the line alone. places: the sites that `--fail-on` compares, with their shares, if these are more
    than the findings.
    """

    number: str
    order: int
    find: Callable[[Evidence], Iterable[Finding]]
    is_alone: bool = False
    protects: bool = False
    places: Callable[[Sequence[Site]], Iterable[tuple[Site, float]]] | None = None

    @property
    def about(self) -> Code:
        return CODES[self.number]

    @property
    def code(self) -> str:
        """The name of this kind, which `--fail-on` takes."""
        return self.about.name

    def finding(self, where: str, expression: str, evidence: str, cause: str, next_step: str, **more: Any) -> Finding:
        """A finding of this kind. more: share, module, issue and is_muted of the record."""
        return Finding(self.code, where, expression, evidence, cause, next_step, number=self.number, **more)

    def site_finding(
        self, site: Site, evidence: str, cause: str, next_step: str, share: float, issue: str | None = None
    ) -> Finding:
        """A finding of this kind at an op."""
        more = {"share": share, "module": site.module, "is_muted": site.is_deliberate, "issue": issue}
        return self.finding(site.where, site.expression, evidence, cause, next_step, **more)

    def call_finding(self, location: Location, evidence: str, cause: str, next_step: str, **more: object) -> Finding:
        """A finding of this kind at a call."""
        return self.finding(file_and_line(location.call), expression_at(location), evidence, cause, next_step, **more)
