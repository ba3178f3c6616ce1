"""A diagnosis as text, for a terminal or a log."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import torch

from ...torch_table.eras import installed_era
from ...wording import counted
from ..count import differing
from ..count.differing import Difference
from ..judge.findings import percent
from ..judge.whatif import AS_IT_IS
from ..records import Copied

_WIDTH = 110
_DIFFERENCES = 12  # between ranks
_SHOWN = 8  # parameters of a what-if, and ops that cut as they should


def text(diagnosis: Any) -> str:
    findings, sites, starved = diagnosis.findings, diagnosis.sites, diagnosis.starved
    head = (
        f"diagnose: {counted(diagnosis.backwards, 'backward pass', 'backward passes')}, torch {torch.__version__} "
        f"({installed_era()}), gradients seen at {counted(len(sites), 'place')}: {counted(len(findings), 'finding')}"
    )
    if not diagnosis.backwards:
        nothing = "  no backward started inside the context, so there is nothing to say"
        return "\n".join([head, nothing, *_incomplete(diagnosis.errors)])
    lines = [head]
    for number, one in enumerate(findings, 1):
        lines += [
            "",
            f"{number:>2}. {one.code}  {one.where}",
            *([f"    {_short(one.expression)}"] if one.expression else []),
            *(_wrapped("module: ", one.module) if one.module else []),
        ]
        lines += _wrapped("", one.evidence)
        for evidence in one.also[:3]:
            lines += _wrapped("also:  ", evidence)
        lines += _wrapped("cause: ", one.cause)
        lines.append(f"    next:  {one.next_step}")
        if one.issue:
            lines.append(f"    known: {one.issue}")
    lines += between_ranks(getattr(diagnosis, "differences", ()))
    lines += ["", _of_parameters(len(diagnosis.parameters), len(starved))]
    for calm in diagnosis.calm:
        lines += _wrapped("", calm, indent=0)
    for one in diagnosis.copied:
        lines += _copied(one)
    lines += [*_norms(diagnosis), *_usual(diagnosis), *_sensitivity(diagnosis)]
    if diagnosis.muted:
        lines.append(
            f"deliberate: {counted(diagnosis.muted, 'finding')} left out: a comment at the line, ignore or select says so"
        )
    if known := getattr(diagnosis, "known", ()):
        lines.append(f"baseline: {counted(len(known), 'finding')} left out, known there")
    for name, reasons in diagnosis.inexact.items():
        lines += [
            "",
            f"what if {name}: no numbers, because they would not be exact",
            *(f"    {reason}" for reason in reasons),
        ]
    for name in diagnosis.untouched:
        lines += ["", f"what if {name}? Nothing changes: no gradient arrived at an op that it is about"]
    untouched = set(diagnosis.untouched)
    lines += _what_if({name: rows for name, rows in diagnosis.whatif.items() if name not in untouched})
    lines += _incomplete(diagnosis.errors)
    return "\n".join(lines)


def between_ranks(found: Sequence[Difference]) -> list[str]:
    """What differs; nothing where the ranks agree."""
    told = differing.lines(found)
    if not told:
        return []
    rest = [f"    and {len(told) - _DIFFERENCES} more, in --json and --html"] if len(told) > _DIFFERENCES else []
    shown = [line for label, one in told[:_DIFFERENCES] for line in _wrapped(f"{label}: ", one)]
    return ["", "between ranks:", *shown, *rest]


def _incomplete(errors: list[str]) -> list[str]:
    """What of ours failed: the rest of the report lacks it."""
    found = [line for error in errors for line in _wrapped("incomplete: ", error)]
    return ["", *found, "    These are faults of pseudograd; the program went on as without it."] if found else []


def _of_parameters(count: int, starving: int) -> str:
    return (
        f"parameters: {starving:,} of {count:,} starve: no gradient, or zeros alone"
        if count
        else "parameters: none were met"
    )


def _copied(one: Copied) -> list[str]:
    """One class."""
    told = _wrapped("", f"{one.name}, a class at {one.where}, is {one.meaning}, by what it computes", indent=0)
    return [*told, *([f"    {one.instead}"] if one.instead else [])]


def _norms(diagnosis: Any) -> list[str]:
    """The largest and the smallest."""
    some = [one for one in diagnosis.norms if one.norm > 0]
    if len(some) < 2:
        return []
    largest, smallest = max(some, key=lambda one: one.norm), min(some, key=lambda one: one.norm)
    return [
        f"norms of their gradients: {smallest.norm:.2g} ({smallest.parameter}) to {largest.norm:.2g} ({largest.parameter})"
    ]


def _usual(diagnosis: Any) -> list[str]:
    """What cuts and is no finding: relus, masks, choices."""
    named = {one.where for one in (*diagnosis.findings, *getattr(diagnosis, "known", ()))}
    ops: dict[str, list[int]] = {}
    for site in diagnosis.sites:
        if site.cut and site.where not in named:
            sums = ops.setdefault(site.op, [0, 0, 0])
            for at, value in enumerate((site.cut, site.arrived, 1)):
                sums[at] += value
    if not ops:
        return []
    parts = [
        f"{op} {percent(cut / arrived)} at {counted(places, 'place')}"
        for op, (cut, arrived, places) in sorted(ops.items(), key=lambda item: -item[1][0])[:_SHOWN]
    ]
    return _wrapped("cut as usual there, no finding: ", ", ".join(parts), indent=0)


def _sensitivity(diagnosis: Any) -> list[str]:
    """The families, and what was not asked."""
    wholes = [one for one in diagnosis.sensitivity if one.where is None and one.parameter is None]
    parts = [
        f"{one.family} {_size(one.share)} ({_size(one.first)} in the first step, {_size(one.last)} in the last; against {one.other})"
        for one in wholes
    ]
    lines = (
        _wrapped("of the gradient is convention, in the mean over the steps: ", "; ".join(parts), indent=0)
        if parts
        else []
    )
    for reason, steps in diagnosis.unsensed.items():
        lines += _wrapped(
            "sensitivity not asked, or not of all, ",
            f"in {counted(steps, 'backward pass', 'backward passes')}: {reason}",
            indent=0,
        )
    return lines


def _size(share: float) -> str:
    return percent(share) if share <= 1 else f"{share:,.3g} times it"


def _what_if(answers: dict[str, list[Any]]) -> list[str]:
    """The parameters that change most."""
    lines: list[str] = []
    before = {one.parameter: one for one in answers.get(AS_IT_IS, ())}
    for name, rows in answers.items():
        if name == AS_IT_IS or not rows:
            continue
        changed = [
            one for one in rows if (one.zero, one.norm) != (before[one.parameter].zero, before[one.parameter].norm)
        ]
        changed.sort(
            key=lambda one: -abs(one.norm - before[one.parameter].norm) / (one.norm + before[one.parameter].norm or 1)
        )
        lines += ["", f"what if {name}?", *([_ROW.format("zeros", "norm", "cosine", "parameter")] if changed else [])]
        for one in changed[:_SHOWN]:
            old = before[one.parameter]
            zeros, norms = f"{percent(old.zero)} -> {percent(one.zero)}", f"{old.norm:.5g} -> {one.norm:.5g}"
            lines.append(_ROW.format(zeros, norms, f"{one.cosine:.3f}", one.parameter))
        if len(changed) > _SHOWN:
            lines.append(f"    and {counted(len(changed) - _SHOWN, 'parameter')} that change less")
        if len(rows) > len(changed):
            lines.append(f"    the gradient of {counted(len(rows) - len(changed), 'parameter')} stays as it is")
    return lines


_ROW = "    {:>20} {:>24} {:>8}  {}"


def _short(expression: str) -> str:
    return expression if len(expression) <= _WIDTH else f"{expression[: _WIDTH - 3]}..."


def _wrapped(label: str, content: str, indent: int = 4) -> list[str]:
    first = " " * indent + label
    return textwrap.wrap(
        content,
        _WIDTH,
        initial_indent=first,
        subsequent_indent=" " * len(first) if indent else "    ",
        break_long_words=False,
        break_on_hyphens=False,
    )
