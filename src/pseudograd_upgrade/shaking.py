"""In a process of the program: parameters move by some roundings after each step, to see what becomes of that in this training."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

from pseudograd.listen.quietly import quietly

from .differences import PLAIN


def begin() -> None:
    """From here to the end of the process. The random numbers of the program are not touched."""
    draw = torch.Generator().manual_seed(1)

    def after_a_step(optimiser: Any, *_: object) -> None:
        with quietly():
            for group in optimiser.param_groups:
                for parameter in group["params"]:
                    shake(parameter, draw)

    register_optimizer_step_post_hook(after_a_step)  # type: ignore[no-untyped-call]


def shake(parameter: Tensor, draw: torch.Generator) -> None:
    """Each entry moves by up to PLAIN roundings. Of 16 bits a single one can be more than a step of training: those stay."""
    if parameter.dtype not in (torch.float32, torch.float64) or parameter.layout is not torch.strided:
        return
    by = torch.rand(parameter.shape, generator=draw, dtype=torch.float64) * 2 - 1
    moved = parameter.detach().double() * (1 + by.to(parameter.device) * (PLAIN * torch.finfo(parameter.dtype).eps))
    with torch.no_grad():
        parameter.copy_(moved)
