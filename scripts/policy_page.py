"""docs/policy_clips.md and its picture: the policy losses of the table `pseudograd.policy.presets`, side by side."""

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


def text() -> str:
    return _START + _zoo() + _MIDDLE + _differences() + _no_rules() + _AFTER + _report() + _END


_START = """\
# Policy clips

The clipped losses of reinforcement learning differ in which tokens get a gradient, and how much of it. Those of the table below are
each a rule for the probability ratio, most of them one of [`clamp`](ops/clamp.md), so one function has them:
[`policy_loss`](ops/policy_loss.md). Others are not, and [stand at the end](#what-is-no-rule). Written by
`scripts/generate_docs.py` from the table `pseudograd.policy.presets`; every gradient below is tested against the formula of its paper,
written apart, in float64 to 1e-12.

```python
import pseudograd as pg

loss = pg.policy.loss(log_prob - old_log_prob, advantage, low=0.2, high=0.28)  # of each token, not reduced
# The same by its name, with a mask of the tokens that count.
loss = pg.policy.presets["dapo"](log_prob - old_log_prob, advantage, mask=mask)
# which tokens it silences
print(pg.policy.clip_report(log_prob - old_log_prob, advantage, **pg.policy.presets["dapo"].settings))
```

r = exp(log_ratio), A is the advantage, c(r) is r clipped to [1 - low, 1 + high]. The clip is *blocked* where a descent step would move the
ratio further out: A > 0 and r > 1 + high, or A < 0 and r < 1 - low. The gradient is with respect to log_ratio, of a loss that is minimised.

## The losses

"""
_MIDDLE = """
![The gradient of each loss over the ratio, for an advantage of 1 and of -1](policy_clips.png)

Drawn: the gradient for A = 1 and A = -1, over the ratio; grey without a clip, dotted the bounds. The ranges differ from panel to panel.
The losses of sequences are drawn for a sequence of one token.

- **PPO, GRPO, DAPO, GSPO and LUSPO are one shape**: the gradient of -A r, and nothing where the clip is blocked. They differ in the
  bounds and in what one ratio is. A clip without PPO's min, `rule="zero"`, silences the other side as well: twice as many tokens.
- **CISPO and truncated importance sampling silence nobody**: they bound the weight. A token that is far too likely already, and has a
  positive advantage, is still pushed up.
- **GPPO is between the two**: where PPO is silent it has CISPO's bounded weight, and elsewhere it is PPO. CE-GPPO scales the sides apart.
- **The signs of the advantage can have rules of their own**: `rule={"positive": "reinforce", "negative": "inward"}` is UP-GRPO, which
  pushes up without a ratio and down as PPO does. Any two rules do, [your own](your_own_rule.md#a-policy-loss) among them.
- **The value is not the gradient's.** `value="objective"` shows the -min(r A, c(r) A) of papers and logs, `"clipped"` the -A c(r). For
  A < 0 and a large ratio the first grows without bound and the second does not. Neither changes the gradient to log_ratio.
- **What is blocked depends on A alone.** A loss that is maximised, or weighted by a negative number, has the same tokens silenced, as in
  PPO's own form. `clamp(ratio, rule="inward")` in its place looks at the sign of the gradient that arrives.
- **The advantage** gets the derivative of the value, if it requires grad. In the training loops of these projects it does not.
- **Half precision** is computed in float32. The gradient goes back in the dtype of log_ratio: where it exceeds
  65504 in float16 it is 65504, finite, unless the gradient that arrives is infinite, as GradScaler looks for; with
  `level="sequence"` it is infinite there.

## What differs from other code

Each line is a test in `tests/policy`, against the published package where it can be called, else against its formula written apart.

"""
_NO_RULES = (
    (
        "VESPO (arXiv:2602.10693; TRL `vespo`)",
        "the gradient of -sg(φ(W)) A log_prob, φ(W) = W^k exp(λ (1 - W)), W the product of the ratios of the sequence, k and λ by the "
        "sign of A",
        "a smooth weight without bounds, which no clip has. As [a rule of your own](your_own_rule.md#a-policy-loss) it is four lines, "
        "tested against TRL",
    ),
    (
        "DRO (verl `dro`)",
        "-A log_prob + (β / 2) log_ratio²",
        'the penalty knows no advantage: `presets["gpg"]` plus `0.5 * beta * log_ratio**2`, tested against verl',
    ),
    (
        "CFPO (arXiv:2601.22801; its authors' verl)",
        r"-A r + \|A\| (r - 1)² / (2 ε)",
        "the value is another one, smooth; write it so, and torch has its gradient",
    ),
    (
        "M2PO (arXiv:2510.01161)",
        "its authors' code: PPO with the bounds exp(±τ), at least 0.7 and 1.5, τ such that over what moves outward (A > 0 and r > 1, "
        "A < 0 and r < 1) the mean of min(log_ratio², τ²) is at most 0.04; AReaL: a mask of the tokens with the largest log_ratio²",
        'the bounds are those of a batch: compute them, and give `presets["ppo"]` that `low` and `high`, or a `mask`',
    ),
    ("SAPO (TRL, verl `sapo`)", "a smooth function of r", "the value is another one"),
    ("DPPO, IcePop, off-policy masks", "a mask by another quantity", "multiply the result, or give `mask`"),
    ("Clip-Cov, KL-Cov (verl)", "tokens chosen by a covariance", "the same"),
)
_AFTER = """
How tokens are averaged (token mean, sequence mean, a constant) is yours: the result is not reduced.

## What a clip does to a batch

"""
_END = """
Energy is the sum of the squared gradients to log_ratio. `clip_report(...)` has the same as numbers: `cells`, `silenced_share`,
`energy_share`, `ties`. On [code that you do not edit](diagnose.md), `diagnose` finds the clip and says what is cut; the sign of the
advantage behind it is known to `clip_report` alone.
"""


def _zoo() -> str:
    rows = [
        "| name | gradient | clip of | low, high | rule | value | from | in |",
        "|---|---|---|---|---|---|---|---|",
    ]
    rows += [f"| {' | '.join(_cells(policy))} |" for policy in pg.policy.presets.values()]
    notes = [f"- `{policy.name}`: {policy.note}." for policy in pg.policy.presets.values() if policy.note]
    return "\n".join([*rows, "", *notes, ""])


def _cells(policy: Policy) -> list[str]:
    low, high = (("none" if bound is None else f"{bound:.4g}") for bound in (policy.low, policy.high))
    bounds = f"{low}, {high}" + (f"; ceiling {policy.ceiling:g}" if policy.ceiling else "")
    of = {"token": "", "sequence": " of the sequence", "geometric": ", then their mean"}[policy.level]
    return [
        f"`{policy.name}`",
        policy.gradient,
        {"ratio": "r", "log": "log r"}[policy.space] + of,
        bounds,
        _rule(policy),
        policy.value,
        policy.paper,
        policy.projects,
    ]


def _rule(policy: Policy) -> str:
    if not isinstance(policy.rule, Mapping):
        return f"`{policy.rule}`"
    return f"`{policy.rule['positive']}` where A > 0, else `{policy.rule['negative']}`"


def _differences() -> str:
    rows = ["| project | what it does | here | test |", "|---|---|---|---|"]
    rows += [f"| {one.project} | {one.theirs} | {one.ours} | `{one.test}` |" for one in DIFFERENCES]
    return "\n".join([*rows, ""])


def _no_rules() -> str:
    rows = ["| loss | of a token | why it is none, and what to write |", "|---|---|---|"]
    rows += [f"| {' | '.join(row)} |" for row in _NO_RULES]
    return "\n".join(["\n## What is no rule\n", *rows, ""])


def _report() -> str:
    """Of ratios that are eighths in bfloat16, so that no exp of a machine decides a count."""
    ratios = torch.tensor([0.25, 0.5, 0.75, 0.875, 1.0, 1.125, 1.5, 2.0, 2.5, 3.0])
    log_ratio = ratios.log().repeat(12)
    advantage = torch.tensor([1.0, -1.0, 2.0, -0.5, 0.0]).repeat_interleave(24)
    shown = str(pg.policy.clip_report(log_ratio, advantage, **pg.policy.presets["dapo"].settings))
    return f"```text\n{shown}\n```\n"


# --- the picture ------------------------------------------------------------------------------------------------------


def curve(policy: Policy, ratio: torch.Tensor, advantage: float) -> torch.Tensor:
    """dL/dlog_ratio over the ratio: sequences of one token."""
    log_ratio = ratio.log().unsqueeze(-1).requires_grad_()
    loss = policy(log_ratio, torch.full_like(ratio, advantage).unsqueeze(-1))
    return torch.autograd.grad(loss.sum(), log_ratio)[0].squeeze(-1)


def range_of(policy: Policy) -> tuple[float, float]:
    """Of the ratios that its panel shows: around its bounds, closer where these are close to 1."""
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
    for advantage, name, look in (
        (1.0, "advantage up, A = 1", {"color": _UP, "linewidth": 3}),
        (
            -1.0,
            "advantage down, A = -1",
            {"color": _DOWN, "linewidth": 2, "linestyle": (0, (4, 1.2))},
        ),  # over the first, both seen
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
            told = "bounds of the clip" if i == 0 else None  # once in the legend
            panel.axvline(bound, color="#999999", linestyle=":", linewidth=1, label=told)
    panel.axhline(0, color="#dddddd", linewidth=0.8, zorder=0)
    panel.set_title(policy.name, fontsize=11)
    panel.set_xlim(least, most)
    panel.set_ylim(-1.15 * most, 1.15 * most)
    if most - least < 0.1:
        panel.set_xticks([1 - policy.low, 1 + policy.high], [f"{1 - policy.low:g}", f"{1 + policy.high:g}"])
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)
