"""The clipped losses of reinforcement learning: `policy.loss`, the papers' own as `policy.presets`, and what a clip does to a batch."""

import torch.fx

from .look.clip_report import clip_report
from .ops.policy import policy_loss as loss
from .ops.policy_rows import policies as presets
from .public_names import dir_of

__all__ = ["clip_report", "loss", "presets"]

torch.fx.wrap("loss")  # as in `ops`


__dir__ = dir_of(globals())
