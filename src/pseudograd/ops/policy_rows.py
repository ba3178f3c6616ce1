"""The policy losses that papers name, as rows: the rule, space and bounds of `policy_loss` that give each of them.

`pseudograd.policy.presets`, the tests and docs/policy_clips.md with its figure all read these rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from torch import Tensor

from ..errors import unknown_name
from ..rule import RuleObject
from .bound_rules import DEFAULT_RULE, IDENTITY_RULE, LEAKY_INWARD_RULE
from .policy import DEFAULT_BOUND, PolicyRule, policy_loss


@dataclass(frozen=True, kw_only=True)
class Policy:
    """One named policy loss. Call it as `policy_loss`; keyword arguments replace its own.

    paper: its source. projects: the code that has it, with its name there. gradient: that of log_ratio, as in the paper. note: a
    difference from that code. The other fields are arguments of `policy_loss`.
    """

    name: str
    paper: str
    projects: str
    gradient: str
    note: str = ""
    low: float | None = DEFAULT_BOUND
    high: float | None = DEFAULT_BOUND
    rule: PolicyRule = field(default=DEFAULT_RULE, hash=False)
    space: str = "ratio"
    ceiling: float | None = None
    value: str = "objective"
    level: str = "token"

    @property
    def settings(self) -> dict[str, Any]:
        """The keyword arguments of `policy_loss` that give this loss: the fields after `note`."""
        settings = {argument.name: getattr(self, argument.name) for argument in fields(self)[5:]}
        return {**settings, "rule": dict(self.rule) if isinstance(self.rule, Mapping) else self.rule}

    def __call__(
        self, log_ratio: Tensor, advantage: Tensor, *, mask: Tensor | None = None, **changes: object
    ) -> Tensor:
        """policy_loss(log_ratio, advantage, mask=mask) with these settings, and with `changes` to them."""
        return policy_loss(log_ratio, advantage, mask=mask, **{**self.settings, **changes})


class Policies(dict[str, Policy]):
    """The policy losses by name: `policies["dapo"](log_ratio, advantage)`. `list(policies)` gives all names."""

    def __missing__(self, name: str) -> Policy:
        raise unknown_name("policies", "name", self, name)

    def __repr__(self) -> str:
        return f"policies: {', '.join(self)}"


_PPO = Policy(
    name="ppo",
    paper="Schulman et al., 2017, arXiv:1707.06347",
    projects="stable-baselines3 PPO, torchrl ClipPPOLoss, CleanRL, TRL, verl",
    gradient="-A r, or 0 where the clip is blocked",
)
_CISPO = Policy(
    name="cispo",
    paper="MiniMax-M1, 2025, arXiv:2506.13585",
    projects="TRL loss_type cispo, verl cispo",
    gradient="-A c(r)",
    low=None,
    high=4.0,
    rule=IDENTITY_RULE,
    space="log",
    value="clipped",
    note="TRL recommends 5 as the bound",
)
_GPPO = Policy(
    name="gppo",
    paper="Klear-Reasoner, Su et al., 2025, arXiv:2508.07629",
    projects="KlearReasoner",
    gradient="-A r, or -A c(r) where the clip is blocked",
    rule=RuleObject(LEAKY_INWARD_RULE, (("low", 1.0), ("high", 1.0))),
    space="log",
    note="their code has a dual clip at 3 too: ceiling=3.0",
)
_GSPO = Policy(
    name="gspo",
    paper="Zheng et al., 2025, arXiv:2507.18071",
    projects="TRL importance_sampling_level sequence, verl gspo",
    gradient="-A s, or 0 where the clip is blocked; s the exp of the mean log_ratio of the sequence",
    low=3e-4,
    high=4e-4,
    level="sequence",
)
_ROWS = (
    _PPO,
    replace(
        _PPO,
        name="grpo",
        paper="Shao et al., 2024, arXiv:2402.03300",
        projects="TRL loss_type grpo, bnpo, dr_grpo; verl",
        note="PPO's loss of a token; what differs is the advantage and how tokens are averaged",
    ),
    replace(
        _PPO,
        name="dapo",
        paper="Yu et al., 2025, arXiv:2503.14476",
        projects="TRL loss_type dapo with epsilon_high=0.28, verl recipe dapo",
        high=0.28,
    ),
    Policy(
        name="dual_clip",
        paper="Ye et al., 2020, arXiv:1912.09729",
        projects="verl vanilla (clip_ratio_c), TRL delta (INTELLECT-2)",
        gradient="-A r, or 0 where the clip is blocked, or where A < 0 and r > ceiling",
        ceiling=3.0,
    ),
    _CISPO,
    replace(
        _CISPO,
        name="truncated_is",
        paper="Ionides, 2008; IMPALA, Espeholt et al., 2018, arXiv:1802.01561",
        projects="verl rollout_is_threshold=2, TRL vllm_importance_sampling_clip_max=3",
        high=1.0,
        note="in these projects the ratio is trained policy over sampling policy; it multiplies another loss as a constant",
    ),
    Policy(
        name="gmpo",
        paper="Zhao et al., 2025, arXiv:2507.20673",
        projects="verl geo_mean",
        gradient="-A R, or 0 where the clip is blocked; R the geometric mean of the clipped ratios",
        low=-math.expm1(-0.4),
        high=math.expm1(0.4),
        space="log",
        level="geometric",
    ),
    _GPPO,
    replace(
        _GPPO,
        name="ce_gppo",
        paper="CE-GPPO, Su et al., 2025, arXiv:2509.20712",
        projects="CE-GPPO",
        gradient="-A r, or where the clip is blocked -0.75 A c(r) below and -A c(r) above",
        rule=RuleObject(LEAKY_INWARD_RULE, (("low", 0.75), ("high", 1.0))),
    ),
    _GSPO,
    replace(
        _GSPO,
        name="luspo",
        paper="Liu et al., 2026, arXiv:2602.05261",
        projects="TRL loss_type luspo",
        low=2e-3,
        high=2.5e-3,
        note="GSPO's loss of a token; the bounds differ, and the tokens of a sequence are summed, not averaged",
    ),
    Policy(
        name="gpg",
        paper="GPG, Chu et al., 2025, arXiv:2504.02546",
        projects="verl gpg",
        gradient="-A",
        low=None,
        high=None,
        rule="reinforce",
        note="in the paper the value is -A log_prob; scale the advantages yourself",
    ),
    Policy(
        name="up_grpo",
        paper="UP-GRPO, Liu, 2026, arXiv:2607.06987",
        projects="the code in its author's article of February 2026, for verl",
        gradient="-A where A > 0; elsewhere -A r, or 0 where r < 1 - low or r > ceiling",
        rule={"positive": "reinforce", "negative": DEFAULT_RULE},
        ceiling=3.0,
        note="the code in the article has a dual clip at 3 and the value -A log_prob where A > 0",
    ),
)
policies = Policies({row.name: row for row in _ROWS})
