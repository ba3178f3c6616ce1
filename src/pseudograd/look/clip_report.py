"""clip_report: what a policy clip does to one batch, by the sign of the advantage and the side of the range."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..arguments import rounded_to
from ..geometry import SHARES
from ..listen.harmless import quietly
from ..notebook import to_html
from ..ops.policy import DEFAULT_BOUND, POLICY_LOSS, mean_over_tokens, name_of_rule, policy_loss
from ..ops.shared_rules import widened
from ..rule import RuleLike
from ..torch_table.eras import ERAS
from ..wording import counted

SIGNS = {"A > 0": 1, "A < 0": -1, "A = 0": 0}
SIDES = ("below", "between", "above")


@dataclass(frozen=True)
class ClipCell:
    """The tokens of one sign of the advantage on one side of the range.

    silenced: the number of tokens that have an advantage and get no gradient.
    energy: the sum of the squared gradients to log_ratio without a clip, (A r)^2.
    passed: the same sum with the clip.
    """

    sign: str
    side: str
    tokens: int
    silenced: int
    energy: float
    passed: float


@dataclass(frozen=True)
class ClipReport:
    """The effect of a policy clip on a batch.

    at_low, at_high: the number of *ties*, tokens whose ratio is equal to a bound. The ratio is computed in `dtype`, as in a loss that is
        written by hand.
    dtype: the dtype of the log ratio.
    nan: the number of tokens with a NaN as log ratio or advantage. They are in no cell.
    """

    cells: tuple[ClipCell, ...]
    clip: str
    at_low: int
    at_high: int
    dtype: str
    nan: int = 0

    @property
    def tokens(self) -> int:
        return sum(cell.tokens for cell in self.cells)

    @property
    def silenced(self) -> int:
        return sum(cell.silenced for cell in self.cells)

    @property
    def silenced_share(self) -> float:
        """The share of the tokens that is silenced."""
        return self.silenced / max(self.tokens, 1)

    @property
    def energy_share(self) -> float:
        """The share of the squared gradients that the clip takes; below 0 where a rule adds to them; NaN if they are not finite."""
        energy, passed = sum(cell.energy for cell in self.cells), sum(cell.passed for cell in self.cells)
        if not math.isfinite(energy + passed):
            return math.nan
        return 1 - passed / energy if energy else 0.0

    @property
    def ties(self) -> int:
        return self.at_low + self.at_high

    @property
    def eras(self) -> dict[str, float]:
        """For each era of torch: how much of the gradient a tie gets in PPO's usual form of the loss, min(r * A, clamp(r) * A)."""
        return {era.name: (1 + SHARES[era.edge]) / 2 for era in ERAS.values()}

    def share(self, sign: str, side: str) -> float:
        """Of the tokens with this sign of the advantage: the share that is silenced on this side."""
        cells = [cell for cell in self.cells if cell.sign == sign]
        return sum(cell.silenced for cell in cells if cell.side == side) / max(sum(cell.tokens for cell in cells), 1)

    def _repr_html_(self) -> str:
        return to_html(str(self))

    def __str__(self) -> str:
        width = max(9, *(len(f"{cell.tokens:,}") + 2 for cell in self.cells))
        lines = [
            f"clip_report: {counted(self.tokens, 'token')}, {self.clip}",
            " " * 22 + "".join(f"{s:>{width}}" for s in SIDES),
        ]
        for sign in SIGNS:
            cells = [cell for cell in self.cells if cell.sign == sign]
            if any(cell.tokens for cell in cells):
                lines.append(f"  {sign:<20}" + "".join(f"{cell.tokens:>{width},}" for cell in cells))
                lines.append(f"  {'  silenced':<20}" + "".join(f"{cell.silenced:>{width},}" for cell in cells))
        verb = "takes" if self.energy_share >= 0 else "adds"
        end = "of the gradient's energy" if self.energy_share >= 0 else "to the gradient's energy"
        energy = f"the clip {verb} {abs(self.energy_share):.1%} {end}"
        if math.isnan(self.energy_share):
            energy = "the gradient's energy is not finite, so the share that the clip takes is unknown"
        lines.append(f"silenced: {self.silenced_share:.1%} of the tokens; {energy}")
        if self.nan:
            lines.append(f"NaN as log ratio or advantage: {counted(self.nan, 'further token')}")
        if self.ties:
            eras = ", ".join(f"{share:g} of it with {name}" for name, share in self.eras.items())
            form = "min(r * A, clamp(r) * A) passes their gradient"
            lines.append(f"exactly at a bound in {self.dtype}: {self.ties:,}; {form}: {eras}")
        return "\n".join(lines)


def clip_report(log_ratio: Tensor, advantage: Tensor, *, mask: Tensor | None = None, **settings: Any) -> ClipReport:
    """Count the tokens that a policy clip silences in this batch, by the sign of the advantage and by the side.

    Forward:  counts, and sums of squared gradients to log_ratio, with the clip and without; nothing is recorded or changed.
    Backward: none: the result is a record of numbers.

    Args:
        log_ratio: as in `policy_loss`.
        advantage: as in `policy_loss`.
        mask: as in `policy_loss`; other tokens are not counted.
        settings: further arguments of `policy_loss`, of a preset for example: **presets["dapo"].settings.
    Returns: a ClipReport with cells, silenced, silenced_share, energy_share, ties and eras; print it.
    Raises: as `policy_loss`.
    Example:
        >>> log_ratio = torch.tensor([0.5, 0.5, 0.0, -0.5, -0.5, -0.5])
        >>> report = clip_report(log_ratio, torch.tensor([1.0, -1.0, 1.0, 1.0, -1.0, -1.0]))
        >>> report.silenced, report.share("A > 0", "above"), round(report.energy_share, 3)
        (3, 0.3333333333333333, 0.458)
    Source: the clip fractions of stable-baselines3, TRL and verl, which count by side or by sign, and in no project by both.
    """
    with quietly():  # a diagnosis counts no backward pass of ours
        policy_loss(log_ratio, advantage, mask=mask, **settings)  # for its errors
        rule = settings.get("rule", POLICY_LOSS.default_rule)
        without_clip = {"low": None, "high": None, "rule": _rule_without_clip(rule)}
        without_clip |= {"level": settings["level"]} if "level" in settings else {}
        with torch.inference_mode(False), torch.enable_grad():
            leaf, advantage = log_ratio.detach().clone().requires_grad_(), advantage.detach()
            clipped, unclipped = (
                torch.autograd.grad(policy_loss(leaf, advantage, mask=mask, **chosen).sum(), leaf)[0].double()
                for chosen in (settings, without_clip)
            )
        return _report(leaf.detach(), advantage, mask, clipped, unclipped, settings)


def _rule_without_clip(rule: RuleLike | Mapping[str, RuleLike]) -> object:
    """The rule of the same loss without bounds: "reinforce" gives the gradient A whatever the ratio is. rule: one, or one for each sign."""
    if isinstance(rule, Mapping):
        return {sign: _rule_without_clip(each) for sign, each in rule.items()}
    return rule if str(rule) == "reinforce" else "identity"


def _report(
    log_ratio: Tensor,
    advantage: Tensor,
    mask: Tensor | None,
    clipped: Tensor,
    unclipped: Tensor,
    settings: Mapping[str, Any],
) -> ClipReport:
    """The report of a batch. clipped, unclipped: the gradients to log_ratio with the clip and without."""
    low, high = settings.get("low", DEFAULT_BOUND), settings.get("high", DEFAULT_BOUND)
    lowest, highest = (None if low is None else 1 - low), (None if high is None else 1 + high)
    if settings.get("level") == "sequence":
        log_ratio = mean_over_tokens(log_ratio, mask).expand_as(log_ratio)
    tensors = torch.broadcast_tensors(log_ratio, advantage, clipped, unclipped)
    log_ratio, advantage, clipped, unclipped = (tensor.cpu() for tensor in tensors)
    is_counted = torch.ones_like(clipped, dtype=torch.bool) if mask is None else mask.expand(clipped.shape).cpu()
    is_nan = is_counted & (log_ratio.isnan() | advantage.isnan())
    ratio, narrow_ratio = torch.exp(widened(log_ratio)), torch.exp(log_ratio)
    below = torch.zeros_like(is_nan) if lowest is None else ratio < lowest
    above = torch.zeros_like(is_nan) if highest is None else ratio > highest
    at_low, at_high = (
        0 if bound is None else int((is_counted & (narrow_ratio == rounded_to(bound, narrow_ratio.dtype))).sum())
        for bound in (lowest, highest)
    )
    cells = []
    for sign, number in SIGNS.items():  # number: the value of advantage.sign()
        for side, mask_of_side in zip(SIDES, (below, ~(below | above), above), strict=True):
            is_in_cell = is_counted & ~is_nan & mask_of_side & (advantage.sign() == number)
            silenced = int((is_in_cell & (clipped == 0) & (unclipped != 0)).sum())
            energies = (float(gradient[is_in_cell].square().sum()) for gradient in (unclipped, clipped))
            cells.append(ClipCell(sign, side, int(is_in_cell.sum()), silenced, *energies))
    ends = f"[{'0' if lowest is None else f'{lowest:g}'}, {'inf' if highest is None else f'{highest:g}'}]"
    ceiling, clips = settings.get("ceiling"), [] if lowest is highest is None else [f"ratio clipped to {ends}"]
    clips += [] if ceiling is None else [f"ratio at most {ceiling:g} where A < 0"]
    clip = ", ".join(clips or ["no clip"])
    clip += f", rule {name_of_rule(settings.get('rule', POLICY_LOSS.default_rule))}"
    return ClipReport(
        tuple(cells), clip, at_low, at_high, str(narrow_ratio.dtype).removeprefix("torch."), int(is_nan.sum())
    )
