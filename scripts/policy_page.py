"""The tables and the picture of docs/policy_clips.md: the policy losses of `pseudograd.policy.presets`, side by side."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

import pseudograd as pg
from pseudograd.ops.policy_rows import Policy

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from tests.policy.differences import DIFFERENCES  # noqa: E402  the page and its tests share one table

PAGE = ROOT / "docs" / "policy_clips.md"
PICTURE = ROOT / "docs" / "policy_clips.png"
_TITLE = "What gradient a token gets from each clipped policy loss (0: the clip silences the token)"
_COLUMNS = 3
_UP, _DOWN, _FREE = "#0072B2", "#D55E00", "#9a9a9a"


def losses() -> str:
    """A table of the losses, and a list of the papers and projects that have them."""
    rows = ["| name | gradient | clip of | low, high | rule |", "|---|---|---|---|---|"]
    rows += [f"| {' | '.join(_cells(policy))} |" for policy in pg.policy.presets.values()]
    return "\n".join([*rows, "", *map(_source, pg.policy.presets.values())])


def _source(policy: Policy) -> str:
    note = f" {policy.note[0].upper()}{policy.note[1:]}." if policy.note else ""
    return f"- `{policy.name}`: {policy.paper}. In {policy.projects}.{note}"


def _cells(policy: Policy) -> list[str]:
    low, high = (("none" if bound is None else f"{bound:.4g}") for bound in (policy.low, policy.high))
    bounds = f"{low}, {high}" + (f"; ceiling {policy.ceiling:g}" if policy.ceiling else "")
    of = {"token": "", "sequence": " of the sequence", "geometric": ", then their mean"}[policy.level]
    return [
        f"`{policy.name}`",
        policy.gradient,
        {"ratio": "r", "log": "log r"}[policy.space] + of,
        bounds,
        _code(policy.rule),
    ]


def _code(rule: Any) -> str:
    if not isinstance(rule, Mapping):
        return f"`{rule}`"
    return f"`{rule['positive']}` where A > 0, else `{rule['negative']}`"


def differences() -> str:
    rows = ["| project | what it does | here |", "|---|---|---|"]
    rows += [f"| {row.project} | {row.theirs} | {row.ours} |" for row in DIFFERENCES]
    return "\n".join(rows)


def report() -> str:
    """A clip report. Its ratios are not close to a bound, so rounding in exp changes no count."""
    ratios = torch.tensor([0.25, 0.5, 0.75, 0.875, 1.0, 1.125, 1.5, 2.0, 2.5, 3.0])
    log_ratio = ratios.log().repeat(12)
    advantage = torch.tensor([1.0, -1.0, 2.0, -0.5, 0.0]).repeat_interleave(24)
    shown = str(pg.policy.clip_report(log_ratio, advantage, **pg.policy.presets["dapo"].settings))
    return f"```text\n{shown}\n```"


# --- the picture ------------------------------------------------------------------------------------------------------


def curve(policy: Policy, ratio: torch.Tensor, advantage: float) -> torch.Tensor:
    """dL/dlog_ratio at each ratio, for sequences of one token."""
    log_ratio = ratio.log().unsqueeze(-1).requires_grad_()
    loss = policy(log_ratio, torch.full_like(ratio, advantage).unsqueeze(-1))
    return torch.autograd.grad(loss.sum(), log_ratio)[0].squeeze(-1)


def range_of(policy: Policy) -> tuple[float, float]:
    """The range of ratios in the panel of a policy: around its bounds, and narrow if these are close to 1."""
    lowest = 0.0 if policy.low is None else 1 - policy.low
    highest = policy.ceiling or 1 + (policy.high or (1.0 if policy.low is None else 0.0))
    width = highest - lowest
    return (0.0, 1.3 * highest) if width > 0.1 and highest > 1.6 else (max(0.0, 1 - 1.4 * width), 1 + 1.6 * width)


def draw() -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 12), layout="constrained", dpi=110)
    figure.suptitle(_TITLE, fontsize=12)
    panels: Any = figure.subplots(math.ceil(len(pg.policy.presets) / _COLUMNS), _COLUMNS)
    for policy, panel in zip(pg.policy.presets.values(), panels.flat, strict=False):
        _draw_panel(policy, panel)
    for place, panel in enumerate(panels.flat):
        panel.set_visible(place < len(pg.policy.presets))
        panel.set_xlabel("ratio r" if place + _COLUMNS >= len(pg.policy.presets) else "")
    for panel in panels[:, 0]:
        panel.set_ylabel("dL/dlog_ratio", fontsize=9)
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(PICTURE, metadata={"Software": None})


def _draw_panel(policy: Policy, panel: Any) -> None:
    least, most = range_of(policy)
    ratio = torch.linspace(max(least, 1e-6 * most), most, 2001, dtype=torch.float64)
    for sign in (1, -1):
        panel.plot(ratio, -sign * ratio, color=_FREE, linewidth=1, label="without a clip" if sign == 1 else None)
    # The second line is thin and dashed, so that the first one below it can be seen.
    for advantage, name, look in (
        (1.0, "advantage up, A = 1", {"color": _UP, "linewidth": 3}),
        (-1.0, "advantage down, A = -1", {"color": _DOWN, "linewidth": 2, "linestyle": (0, (4, 1.2))}),
    ):
        slopes = curve(policy, ratio, advantage)
        jumps = slopes.diff().abs() > 0.05 * most
        slopes = slopes.clone()
        slopes[1:][jumps] = torch.nan  # a jump is a gap, not a steep line
        panel.plot(ratio, slopes, label=name, **look)
    bounds = (
        None if policy.low is None else 1 - policy.low,
        None if policy.high is None else 1 + policy.high,
        policy.ceiling,
    )
    for i, bound in enumerate(bounds):
        if bound is not None:
            label = "bounds of the clip" if i == 0 else None  # once in the legend
            panel.axvline(bound, color="#999999", linestyle=":", linewidth=1, label=label)
    panel.axhline(0, color="#dddddd", linewidth=0.8, zorder=0)
    panel.set_title(policy.name, fontsize=11)
    panel.set_xlim(least, most)
    panel.set_ylim(-1.15 * most, 1.15 * most)
    if most - least < 0.1:
        panel.set_xticks([1 - policy.low, 1 + policy.high], [f"{1 - policy.low:g}", f"{1 + policy.high:g}"])
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)
