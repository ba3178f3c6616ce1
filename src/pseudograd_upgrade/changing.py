"""Changes that a run makes in the program's process: pins of lines, and parameters that move by roundings."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from pseudograd.listen.harmless import quietly
from pseudograd.rewrite.context import Rewriting
from pseudograd.rewrite.pin_edge import pin_edge

from .differences import ROUNDINGS


def pin_lines(pin: str, lines: Sequence[str] | None) -> Rewriting:
    """The pin as a context for calls at these lines. lines=None: everywhere."""
    context = pin_edge(pin)
    context.lines = lines or ()
    return context


def shake_after_each_step() -> None:
    """Moves all parameters after each optimiser step, to the end of the process. The program's random numbers stay."""
    draw = torch.Generator().manual_seed(1)

    def shake_all(optimiser: Optimizer, *_: object) -> None:
        with quietly():
            for group in optimiser.param_groups:
                for parameter in group["params"]:
                    shake(parameter, draw)

    register_optimizer_step_post_hook(shake_all)


def shake(parameter: Tensor, draw: torch.Generator) -> None:
    """Moves each entry by up to 16 roundings. Parameters in 16 bits stay: there one rounding can exceed a training step."""
    if parameter.dtype not in (torch.float32, torch.float64) or parameter.layout is not torch.strided:
        return
    share = torch.rand(parameter.shape, generator=draw, dtype=torch.float64) * 2 - 1
    factor = 1 + share.to(parameter.device) * (ROUNDINGS * torch.finfo(parameter.dtype).eps)
    with torch.no_grad():
        parameter.copy_(parameter.detach().double() * factor)
