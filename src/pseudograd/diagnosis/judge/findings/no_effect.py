"""Terms of a loss that do nothing: without a gradient, multiplied by 0, or read by nobody."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ....listen.frames import file_and_line, format_location
from ....wording import counted
from ...count.influence import WITHOUT_GRAD, ConstantTerm, Cut
from ...records import Finding, Site
from ...sites import expression_at
from ..statements import find_unread, lines_of_addend
from .kind import Evidence, Kind

_FEWEST_PASSES = 3
_IF_IT_SHOULD = ", if the term should change the steps"
_FEWEST_ZEROS = 5  # a weight may begin at 0
# The sum of an unused parameter times 0, which gives the parameter a gradient on each rank.
_FOR_RANKS = re.compile(r"\b0(\.0*)?\s*\*.*\.?(sum|mean)\b|(sum|mean)\(.*\*\s*0(\.0*)?\b")


def _find(evidence: Evidence) -> Iterator[Finding]:
    blamed = {record.cause.where for record in evidence.starved if record.cause is not None}  # by the finding `starved`
    for term in evidence.recorder.influence.constant_terms.values():
        if term.passes >= _FEWEST_PASSES:
            yield from _find_constant_term(term, evidence, blamed)
    for site in evidence.sites:
        if site.op == "mul" and _is_term_times_0(site, evidence) and site.where not in blamed:
            yield KIND.site_finding(
                site,
                f"this term of the loss was multiplied by 0 in all {site.calls:,} backward passes that reached it",
                "its factor is 0, so it changes no gradient",
                "Give it a factor other than 0, or leave the term out; nothing, if the factor rises later.",
                1.0,
            )
    yield from _find_unread_lines(evidence)


def _is_term_times_0(site: Site, evidence: Evidence) -> bool:
    """Was one number multiplied by 0 each time, and not in order to keep ranks alike?"""
    is_one_number = site.is_addend and site.elements == site.calls and site.arrived == site.cut == site.calls
    is_always = site.calls >= max(_FEWEST_ZEROS, evidence.backwards // 4) and not site.elsewhere
    return is_one_number and is_always and not site.is_second_order and _FOR_RANKS.search(site.expression) is None


def _find_constant_term(term: ConstantTerm, evidence: Evidence, blamed: set[str]) -> Iterator[Finding]:
    """A number that depends on what learns, and that is added to the loss without a gradient."""
    line, cuts = file_and_line(term.location.call), term.cuts or _cuts_of_number(term, evidence)
    if any(file_and_line(cut.location.call) in blamed for cut in cuts):
        return
    cuts = {cut for cut in cuts if cut.upstream & evidence.recorder.reached}
    if not cuts:
        return
    cut, *others = sorted(cuts, key=_order)
    place = file_and_line(cut.location.call)
    others += [other for other in evidence.recorder.influence.cuts.values() if place in other.cut_again_at]
    # The lines of the sum and of its term: those that detach once more would still cut after the first line is mended.
    call, lines = term.location.call, {line}
    if call is not None:
        lines |= {format_location(call.code, number) for number in lines_of_addend(call)}
    again = {where for other in (cut, *others) for where in other.cut_again_at & lines}
    more = sorted(again | {file_and_line(other.location.call) for other in others if _takes_away(other)} - {place})
    elsewhere = f"; cut as well at {', '.join(more[:4])}" if more else ""
    yield KIND.call_finding(
        term.location,
        f"a term without a gradient is added to the loss in {counted(term.passes, 'backward pass', 'backward passes')}{elsewhere}",
        f"it is made of what learns, and {cut.kind} takes its gradient away ({place}), so the term changes no step",
        _advise(term, cut, place, line),
        module=term.location.module,
        is_muted=evidence.deliberate.location(term.location) or evidence.deliberate.location(cut.location),
    )


def _advise(term: ConstantTerm, cut: Cut, place: str, line: str) -> str:
    """place: the line of the cut; line: that of the sum."""
    source = expression_at(cut.location)
    mended = source.replace(".item()", "").replace(".detach()", "").replace(".data", "")
    if cut.calls < term.passes - 1:
        return (
            f"Compute it anew in each step, with a gradient{_IF_IT_SHOULD}: {place} ran {counted(cut.calls, 'time')}."
        )
    if mended == source:
        return f"Compute it with a gradient at {place}{_IF_IT_SHOULD}: what {source or 'that line'} makes has none."
    return f"{mended}  # in place of {source}{'' if place == line else f' at {place}'}{_IF_IT_SHOULD}"


def _order(cut: Cut) -> tuple[bool, str, int]:
    """Sorts a detach before an index, a choice or a sample, which never has a gradient; then by the order of the lines."""
    call = cut.location.call
    return not _takes_away(cut), file_and_line(call), call.instruction if call else 0


def _takes_away(cut: Cut) -> bool:
    """Does this call take a gradient away that its input has, as a detach does?"""
    return cut.kind.startswith(".") or cut.kind.endswith((WITHOUT_GRAD, "()"))


def _cuts_of_number(term: ConstantTerm, evidence: Evidence) -> set[Cut]:
    """The calls that made a number of Python, in the sum itself or in a line that assigns the term."""
    call, text, cuts = term.location.call, expression_at(term.location), set()
    lines = set() if call is None else lines_of_addend(call)
    for cut in evidence.recorder.influence.cuts.values():
        at = cut.location.call
        if call is None or at is None or at.code is not call.code or cut.kind not in (".item()", "float()"):
            continue
        if at.line in lines or (at.line == call.line and expression_at(cut.location) in text):
            cuts.add(cut)
    return cuts


def _find_unread_lines(evidence: Evidence) -> Iterator[Finding]:
    """Lines of the program whose result nobody reads."""
    if evidence.backwards < _FEWEST_PASSES:
        return
    reported = set()
    for tally in evidence.recorder.tallies.values():
        call = tally.location.call
        if tally.calls or call is None or call != tally.location.program or file_and_line(call) in reported:
            continue
        instead = find_unread(call, bool(tally.is_number))
        if instead is None:
            continue
        reported.add(file_and_line(call))
        yield KIND.call_finding(
            tally.location,
            f"the result of this line reached none of {evidence.backwards:,} backward passes, and nobody reads it",
            "it is thrown away",
            f"Let the loss use {instead}, or leave the line out."
            if instead.isidentifier()
            else f"{instead}  # keep the result, if the loss should depend on it; or leave the line out",
            module=tally.location.module,
            is_muted=evidence.deliberate.location(tally.location),
        )


KIND = Kind("PG213", order=36, find=_find)
