"""A diagnosis as text, for a terminal or a log."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from functools import partial
from textwrap import shorten

import torch

from ...listen.frames import NO_LINE
from ...torch_table.eras import installed_era
from ...wording import counted, percent
from ..count.whatif import AS_IT_IS, Change
from ..judge.starving import ZEROED
from ..records import Finding, Report

_WIDTH = 110
_HEAD_WIDTH, _HEAD_LINES = 80, 12  # of the short report
# characters of an expression, and of evidence or code, in the short report
_MOST_OF_SUBJECT, _MOST_OF_SENTENCE = 160, 240
# The smallest comes first; all other codes have 3.
_URGENCY = {"nonfinite": 0, "starved": 1, "unused": 2, "guard": math.inf}
_LINES_SHOWN = 8  # parameters of a what-if, and ops that cut as they should
_fill = partial(textwrap.wrap, break_long_words=False, break_on_hyphens=False)
_CHANGE = "    {:>20} {:>24} {:>8}  {}"


def text(report: Report) -> str:
    findings, sites = report.findings, report.sites
    passes = counted(report.backwards, "backward pass", "backward passes")
    lines = [
        f"diagnose: {passes}, torch {torch.__version__} ({installed_era()}), gradients seen at {counted(len(sites), 'place')}: "
        f"{counted(len(findings), 'finding')}"
    ]
    if not report.backwards:
        lines.append("  no backward started inside the context, so there is nothing to say")
        return "\n".join([*lines, *_errors(report)])
    for number, finding in enumerate(findings, 1):
        lines += _finding(number, finding)
    known = getattr(report, "known", ())
    lines += ["", *_parameters(report), *_usual_cuts(report, [*findings, *known]), *_sensitivity(report)]
    if report.muted:
        muted = counted(report.muted, "finding")
        lines.append(f"deliberate: {muted} left out: a comment at the line, ignore or select says so")
    if known:
        lines.append(f"baseline: {counted(len(known), 'finding')} left out, known there")
    return "\n".join([*lines, *_what_if(report), *_errors(report)])


def head(report: Report) -> list[str]:
    """The report in at most twelve lines of 80 columns: does anything learn, which finding comes first, where, and what to do."""
    if not report.backwards:
        return []
    findings, learns = report.findings, _describe_learning(report)
    first = min(findings, key=lambda finding: _URGENCY.get(finding.code, 3), default=None)
    passes = counted(report.backwards, "backward pass", "backward passes")
    left_out = len(getattr(report, "known", ()))
    known = f"; {counted(left_out, 'finding')} of the baseline left out" if left_out else ""
    if first is None:
        return _narrow(f"In short: {learns}, and nothing wrong was found in {passes}{known}.")
    where = "" if first.where == NO_LINE else f" at {first.where}"
    subject = shorten(first.expression, _MOST_OF_SUBJECT, placeholder=" ...")
    evidence = shorten(first.evidence, _MOST_OF_SENTENCE, placeholder=" ...")
    rest = f"All {len(findings):,} findings stand below" if len(findings) > 1 else "More stands below"
    code, _, remark = first.next_step.partition("  # ")
    step = _narrow(shorten(code, _MOST_OF_SENTENCE, placeholder=" ..."), indent="    ")
    step += _narrow(remark, indent="    # ", room=2)
    what = f"{first.code}{where}{f', {subject}' if subject else ''}: {evidence}"
    what += "" if what.endswith(" ...") else "."
    lines = _narrow(f"In short: {learns}. First: {what}", room=_HEAD_LINES - 2 - _screen_lines(step))
    return [*lines, "What to do:", *step, f"{rest}{known}."]


def _describe_learning(report: Report) -> str:
    """A clause about how many parameters learn."""
    total, starved = len(report.parameters), len(report.starved)
    broken, unused = (
        len({name for finding in report.findings if finding.code == code for name in finding.parameters})
        for code in ("nonfinite", "unused")
    )
    if not total:
        return "no parameter was met"
    if broken:
        return f"{broken:,} of {counted(total, 'parameter')} got a gradient that is not finite, from which nothing can be learned"
    says = f"nothing learns, as {'the one parameter starves' if total == 1 else f'all {total:,} parameters starve'}"
    if starved < total:
        says = f"{starved or 'none'} of {counted(total, 'parameter')} {'starve' if starved > 1 else 'starves'}"
    return f"{says}, and {unused:,} get a gradient that no optimiser uses" if unused else says


def _narrow(content: str, indent: str = "", room: int = _HEAD_LINES) -> list[str]:
    """Lines of 80 columns that fill at most `room` lines of a screen. A longer word makes a longer line."""
    wrap = partial(_fill, content, _HEAD_WIDTH, initial_indent=indent, subsequent_indent=indent, placeholder=" ...")
    tries = (wrap(max_lines=most) for most in range(room, 0, -1))
    return next((lines for lines in tries if _screen_lines(lines) <= room), [])


def _screen_lines(lines: Sequence[str]) -> int:
    """The lines that these fill on a screen of 80 columns."""
    return sum(math.ceil(len(line) / _HEAD_WIDTH) for line in lines)


def _finding(number: int, finding: Finding) -> Iterator[str]:
    yield from ("", f"{number:>2}. {finding.code}  {finding.where}")
    if finding.expression:
        is_short = len(finding.expression) <= _WIDTH
        yield f"    {finding.expression if is_short else finding.expression[: _WIDTH - 3] + '...'}"
    if finding.module:
        yield from _wrap("module: ", finding.module)
    yield from _wrap("", finding.evidence)
    for evidence in finding.also[:3]:
        yield from _wrap("also:  ", evidence)
    yield from _wrap("cause: ", finding.cause)
    yield f"    next:  {finding.next_step}"
    if finding.issue:
        yield f"    known: {finding.issue}"


def _errors(report: Report) -> list[str]:
    """The failures inside pseudograd, because of which numbers are missing."""
    lines = [line for error in report.errors for line in _wrap("incomplete: ", error)]
    return ["", *lines, "    These are faults of pseudograd; the program went on as without it."] if lines else []


def _parameters(report: Report) -> Iterator[str]:
    count, starved = len(report.parameters), len(report.starved)
    kinds = "no gradient, or zeros alone"
    if any(record.gradient == ZEROED for record in report.starved):
        kinds = f"no gradient, zeros alone, or {ZEROED}"
    says = f"{starved:,} of {count:,} starve: {kinds}" if count else "none were met"
    if report.idle:
        verb = "does" if len(report.idle) == 1 else "do"
        says += f"; {counted(len(report.idle), 'other')} got nothing and {verb} not count as starving"
    yield f"parameters: {says}"
    for calm in report.calm:
        yield from _wrap("", calm, indent=0)
    for copy in report.copied:
        says = f"{copy.name}, a class at {copy.where}, is {copy.meaning}, by what it computes"
        yield from _wrap("", says, indent=0)
        if copy.instead:
            yield f"    {copy.instead}"
    norms = sorted((record for record in report.norms if record.norm > 0), key=lambda record: record.norm)
    if len(norms) > 1:
        small, large = (f"{record.norm:.2g} ({record.parameter})" for record in (norms[0], norms[-1]))
        yield f"norms of their gradients: {small} to {large}"


def _usual_cuts(report: Report, findings: Sequence[Finding]) -> list[str]:
    """The ops that cut without a finding: relus, masks, choices."""
    lines = {finding.where for finding in findings}
    ops: dict[str, list[int]] = {}
    for site in report.sites:
        if site.cut and site.where not in lines:
            cut, arrived, places = ops.get(site.op, (0, 0, 0))
            ops[site.op] = [cut + site.cut, arrived + site.arrived, places + 1]
    most = sorted(ops.items(), key=lambda item: -item[1][0])[:_LINES_SHOWN]
    parts = [f"{op} {percent(cut / arrived)} at {counted(places, 'place')}" for op, (cut, arrived, places) in most]
    return _wrap("cut as usual there, no finding: ", ", ".join(parts), indent=0) if parts else []


def _sensitivity(report: Report) -> Iterator[str]:
    """The share of each family's gradient that is convention, and the reasons why some passes were not measured."""
    parts = [
        f"{family.family} {_size(family.share)} ({_size(family.first)} in the first step, {_size(family.last)} in the last; against "
        f"{family.other})"
        for family in report.sensitivity
        if family.where is None and family.parameter is None
    ]
    if parts:
        label = "of the gradient is convention, in the mean over the steps: "
        yield from _wrap(label, "; ".join(parts), indent=0)
    for reason, steps in report.unsensed.items():
        passes = counted(steps, "backward pass", "backward passes")
        yield from _wrap("sensitivity not measured, or only in part, ", f"in {passes}: {reason}", indent=0)


def _size(share: float) -> str:
    if not math.isfinite(share):
        return "not finite"
    return percent(share) if share <= 1 else f"{share:,.3g} times it"


def _what_if(report: Report) -> Iterator[str]:
    for name, reasons in report.inexact.items():
        yield from ("", f"what if {name}: no numbers, because they would not be exact")
        yield from (f"    {reason}" for reason in reasons)
    for name in report.untouched:
        yield from ("", f"what if {name}? Nothing changes: no gradient arrived at an op that it is about")
    own = {change.parameter: change for change in report.whatif.get(AS_IT_IS, ())}
    for name, changes in report.whatif.items():
        if changes and name != AS_IT_IS and name not in report.untouched:
            yield from ("", f"what if {name}?")
            yield from _largest_changes(changes, own)


def _largest_changes(changes: Sequence[Change], own: dict[str, Change]) -> Iterator[str]:
    """Lines about the parameters that change most. own: the gradients of the program itself, by parameter."""

    def relative_change(new: Change) -> float:
        old = own[new.parameter]
        return abs(new.norm - old.norm) / (new.norm + old.norm) if new.norm != old.norm else 0.0

    changed = [new for new in changes if (new.zero, new.norm) != (own[new.parameter].zero, own[new.parameter].norm)]
    changed.sort(key=relative_change, reverse=True)
    if changed:
        yield _CHANGE.format("zeros", "norm", "cosine", "parameter")
    for new in changed[:_LINES_SHOWN]:
        old = own[new.parameter]
        zeros, norms = f"{percent(old.zero)} -> {percent(new.zero)}", f"{old.norm:.5g} -> {new.norm:.5g}"
        yield _CHANGE.format(zeros, norms, f"{new.cosine:.3f}", new.parameter)
    if len(changed) > _LINES_SHOWN:
        yield f"    and {counted(len(changed) - _LINES_SHOWN, 'parameter')} that change less"
    if len(changes) > len(changed):
        yield f"    the gradient of {counted(len(changes) - len(changed), 'parameter')} stays as it is"


def _wrap(label: str, content: str, indent: int = 4) -> list[str]:
    first = " " * indent + label
    return _fill(content, _WIDTH, initial_indent=first, subsequent_indent=" " * len(first) if indent else "    ")
