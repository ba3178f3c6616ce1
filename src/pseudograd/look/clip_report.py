"""clip_report: what a policy clip does to one batch, by the sign of the advantage and the side of the range."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..arguments import rounded_to
from ..geometry import SHARES
from ..notebook import shown
from ..ops.policy import DEFAULT, POLICY_LOSS, mean_over_tokens, name_of_rule, policy_loss
from ..ops.shared_rules import widened
from ..torch_table.eras import ERAS

SIGNS = {"A > 0": 1, "A < 0": -1, "A = 0": 0}
SIDES = ("below", "between", "above")


@dataclass(frozen=True)
class ClipCell:
    """The tokens of one sign of the advantage on one side of the range. energy: the sum of (A r)^2, the squared gradients to
    log_ratio without a clip; passed: of those with it.
    """

    sign: str
    side: str
    tokens: int
    silenced: int
    energy: float
    passed: float


@dataclass(frozen=True)
class ClipReport:
    """What a policy clip did to a batch. `silenced` tokens have an advantage and get no gradient; ties stand exactly at a bound.

    dtype: of the log ratio, in which ties are counted, as a loss computes them that is written by hand.
    """

    cells: tuple[ClipCell, ...]
    clip: str
    at_low: int
    at_high: int
    dtype: str

    @property
    def tokens(self) -> int:
        return sum(cell.tokens for cell in self.cells)

    @property
    def silenced(self) -> int:
        return sum(cell.silenced for cell in self.cells)

    @property
    def silenced_share(self) -> float:
        """Of the tokens."""
        return self.silenced / max(self.tokens, 1)

    @property
    def energy_share(self) -> float:
        """Of the squared gradients that there would be without a clip, how much is missing; below 0 where a rule adds some."""
        energy = sum(cell.energy for cell in self.cells)
        return 1 - sum(cell.passed for cell in self.cells) / energy if energy else 0.0

    @property
    def ties(self) -> int:
        return self.at_low + self.at_high

    @property
    def eras(self) -> dict[str, float]:
        """For each era of torch: the share of its gradient that a tie gets of PPO's usual form, min(r * A, clamp(r) * A)."""
        return {era.name: (1 + SHARES[era.edge]) / 2 for era in ERAS.values()}

    def share(self, sign: str, side: str) -> float:
        """Of the tokens of a sign of the advantage: how many are silenced on one side."""
        of_sign = [cell for cell in self.cells if cell.sign == sign]
        return sum(cell.silenced for cell in of_sign if cell.side == side) / max(sum(c.tokens for c in of_sign), 1)

    def _repr_html_(self) -> str:
        return shown(str(self))

    def __str__(self) -> str:
        width = max(9, *(len(f"{cell.tokens:,}") + 2 for cell in self.cells))
        rows = [
            f"clip_report: {self.tokens:,} tokens, {self.clip}",
            f"{'':<22}" + "".join(f"{s:>{width}}" for s in SIDES),
        ]
        for sign in SIGNS:
            of_sign = [cell for cell in self.cells if cell.sign == sign]
            if any(cell.tokens for cell in of_sign):
                rows.append(f"  {sign:<20}" + "".join(f"{cell.tokens:>{width},}" for cell in of_sign))
                rows.append(f"  {'  silenced':<20}" + "".join(f"{cell.silenced:>{width},}" for cell in of_sign))
        rows.append(
            f"silenced: {self.silenced_share:.1%} of the tokens; the clip takes {self.energy_share:.1%} of the gradient's energy"
        )
        if self.ties:
            eras = ", ".join(f"{share:g} of it with {name}" for name, share in self.eras.items())
            rows.append(
                f"exactly at a bound in {self.dtype}: {self.ties:,}; min(r * A, clamp(r) * A) passes their gradient: {eras}"
            )
        return "\n".join(rows)


def clip_report(log_ratio: Tensor, advantage: Tensor, *, mask: Tensor | None = None, **settings: Any) -> ClipReport:
    """What a policy clip does to this batch: which tokens it silences, by the sign of the advantage and by the side.

    Forward:  counts, and sums of squared gradients to log_ratio, with the clip and without; nothing is recorded or changed.
    Backward: none: the result is a record of numbers.

    Args:
        log_ratio: as in `policy_loss`.
        advantage: as in `policy_loss`.
        mask: as in `policy_loss`; tokens that do not count are not counted.
        settings: further arguments of `policy_loss`, of a preset for example: **policies["dapo"].settings.
    Returns: a ClipReport with cells, silenced, silenced_share, energy_share, ties and eras; print it.
    Raises: as `policy_loss`.
    Example:
        >>> log_ratio = torch.tensor([0.5, 0.5, 0.0, -0.5, -0.5, -0.5])
        >>> report = clip_report(log_ratio, torch.tensor([1.0, -1.0, 1.0, 1.0, -1.0, -1.0]))
        >>> report.silenced, report.share("A > 0", "above"), round(report.energy_share, 3)
        (3, 0.3333333333333333, 0.458)
    Source: the clip fractions of stable-baselines3, TRL and verl, which count by side or by sign, and in no project by both.
    """
    with torch.no_grad():
        policy_loss(log_ratio, advantage, mask=mask, **settings)  # for its errors
    with torch.inference_mode(False), torch.enable_grad():
        leaf, advantage = log_ratio.detach().clone().requires_grad_(), advantage.detach()
        (passed,) = torch.autograd.grad(policy_loss(leaf, advantage, mask=mask, **settings).sum(), leaf)
        free = {
            **{key: settings[key] for key in ("level",) if key in settings},
            "low": None,
            "high": None,
            "rule": "identity",
        }
        (whole,) = torch.autograd.grad(policy_loss(leaf, advantage, mask=mask, **free).sum(), leaf)
    with torch.no_grad():
        return _report(leaf.detach(), advantage, mask, passed.double(), whole.double(), settings)


def _report(
    log_ratio: Tensor, advantage: Tensor, mask: Tensor | None, passed: Tensor, whole: Tensor, settings: dict[str, Any]
) -> ClipReport:
    low, high = settings.get("low", DEFAULT), settings.get("high", DEFAULT)
    if settings.get("level") == "sequence":
        log_ratio = mean_over_tokens(log_ratio, mask).expand_as(log_ratio)
    shape = torch.broadcast_shapes(log_ratio.shape, advantage.shape)  # type: ignore[no-untyped-call]
    counted = torch.ones(shape, dtype=torch.bool) if mask is None else mask.expand(shape).cpu()
    log_ratio, advantage = log_ratio.expand(shape).cpu(), advantage.expand(shape).cpu()
    ratio, written_by_hand = torch.exp(widened(log_ratio)), torch.exp(log_ratio)
    passed, whole = passed.expand(shape).cpu(), whole.expand(shape).cpu()
    lowest, highest = (None if low is None else 1 - low), (None if high is None else 1 + high)
    nowhere = torch.zeros_like(counted)
    below = nowhere if lowest is None else ratio < lowest
    above = nowhere if highest is None else ratio > highest
    at_low, at_high = (
        nowhere if bound is None else counted & (written_by_hand == rounded_to(bound, written_by_hand.dtype))
        for bound in (lowest, highest)
    )
    cells = []
    for sign, number in SIGNS.items():
        for side, there in zip(SIDES, (below, ~(below | above), above), strict=True):
            at = counted & there & (advantage.sign() == number)
            cells.append(
                ClipCell(
                    sign,
                    side,
                    int(at.sum()),
                    int((at & (passed == 0) & (whole != 0)).sum()),
                    float(whole[at].square().sum()),
                    float(passed[at].square().sum()),
                )
            )
    shown = (
        f"ratio clipped to [{'0' if lowest is None else f'{lowest:g}'}, {'inf' if highest is None else f'{highest:g}'}]"
    )
    rule = name_of_rule(settings.get("rule", POLICY_LOSS.default_rule))
    dtype = str(written_by_hand.dtype).removeprefix("torch.")
    return ClipReport(tuple(cells), f"{shown}, rule {rule}", int(at_low.sum()), int(at_high.sum()), dtype)
