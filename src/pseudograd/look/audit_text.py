"""An audit as text, for a terminal or a log."""

from __future__ import annotations

import math

import torch

from .audit_records import Audited, Region, Side

_SHOWN = 24  # regions


def text(audit: Audited) -> str:
    along = f", along {audit.lines} random lines" if audit.lines else ""
    lines = [f"audit: {audit.name} on {_number(audit.low)} to {_number(audit.high)}{along}, torch {torch.__version__}"]
    lines += [*(f"  {line}" for line in _verdict(audit)), "", *(f"  {line.rstrip()}" for line in _table(audit))]
    lines += ["", *(f"  {name:<17} {told}" for name, told in _answers(audit))]
    return "\n".join(lines)


def _verdict(audit: Audited) -> list[str]:
    """Which rule it is, and what share of the range each kind has."""
    told = []
    if not audit.lines:
        told.append(f"the same as {audit.rule}" if audit.rule else "no rule of pseudograd does the same")
        if audit.rule_note:
            told.append(f"but {audit.rule_note}" if audit.rule else audit.rule_note)
    for sign, shares in audit.shares.items():
        parts = sorted(shares.items(), key=lambda item: -item[1])
        told.append(f"{sign}: {', '.join(f'{kind} {_percent(share)}' for kind, share in parts)}")
    return told


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.005 else "< 1%"


def _table(audit: Audited) -> list[str]:
    """One row for each region; both slopes are grad_x / grad."""
    head = ("x" if not audit.lines else "along the first line", "derivative", "grad > 0", "grad < 0")
    rows = [head, *(_row(region) for region in audit.regions[:_SHOWN])]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = ["   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    more = len(audit.regions) - _SHOWN
    return [*lines, f"and {more} more"] if more > 0 else lines


def _row(region: Region) -> tuple[str, str, str, str]:
    if region.positive.kind in ("kink", "jump"):
        where = _number(region.low)
        slope = " | ".join(map(_number, region.slope))
    else:
        where = f"{'[' if region.has_low else '('}{_number(region.low)}, {_number(region.high)}{']' if region.has_high else ')'}"
        slope = _span(*region.slope)
    return where, slope, _side(region.positive, region.slope), _side(region.negative, region.slope)


def _side(side: Side, slope: tuple[float, float]) -> str:
    """A kind, and the slopes it leaves open."""
    if side.kind in ("exact", "flat", "cut"):
        return side.kind
    is_opposite = side.kind == "biased" and max(slope) * side.least < 0 and min(slope) * side.most < 0
    return f"{side.kind} {_span(side.least, side.most)}{', wrong sign' if is_opposite else ''}"


def _span(least: float, most: float) -> str:
    a, b = _number(least), _number(most)
    return a if a == b else f"{a} to {b}"


def _number(value: float) -> str:
    return "0" if abs(value) < 1e-9 else f"{value:.4g}"


def _answers(audit: Audited) -> list[tuple[str, str]]:
    found = [("linear in grad", str(audit.linear))]
    if not audit.lines:
        found += [("element-wise", str(audit.element_wise))]
    found += [
        ("double backward", str(audit.double_backward)),
        ("forward mode", str(audit.forward_mode)),
        ("vmap", str(audit.vmap)),
    ]
    if audit.lines:
        return found
    found += [("float16", str(audit.float16)), ("bfloat16", str(audit.bfloat16))]
    found += [("grad = inf, -inf", str(audit.infinite_grad)), ("grad = nan", str(audit.nan_grad))]
    return [*found, *_not_finite(audit)]


def _not_finite(audit: Audited) -> list[tuple[str, str]]:
    """y, and the slope for both signs, where x is not finite."""
    pairs = list(zip(audit.not_finite[::2], audit.not_finite[1::2], strict=True))
    return [
        (
            f"x = {up.x:g}",
            f"y = {_number(up.y)}, slope {_number(up.grad_x)} for grad > 0, {_number(-down.grad_x)} for grad < 0",
        )
        for up, down in pairs
        if not math.isfinite(up.x)
    ]
