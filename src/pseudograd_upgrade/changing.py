"""In a process of the program: what a run changes in it, pins of lines and parameters that move by roundings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

from pseudograd.listen.quietly import quietly
from pseudograd.rewrite.context import Rewriting
from pseudograd.rewrite.mode import Replacement
from pseudograd.rewrite.pin_edge import pin_edge
from pseudograd.rewrite.sites import RuleBySite, Site

from .differences import PLAIN


def pin_lines(pin: str | None, lines: Sequence[str] | None) -> list[Rewriting]:
    """The contexts of a pin. lines: as `frames.format_location` names them; None: everywhere."""
    if pin is None:
        return []
    context = pin_edge(pin)
    if lines is None or not context.replacements:
        return [context]
    replacements = {
        switch: Replacement(RuleBySite(_choose_at(lines, replacement.rule)), replacement.op)
        for switch, replacement in context.replacements.items()
    }
    return [Rewriting(repr(context), replacements)]


def _choose_at(lines: Sequence[str], rule: object) -> Any:
    def choose(site: Site) -> object:
        return rule if any(site.is_at(line) for line in lines) else None

    return choose


def shake_after_each_step() -> None:
    """To the end of the process. The random numbers of the program are not touched."""
    draw = torch.Generator().manual_seed(1)

    def shake_all(optimiser: Any, *_: object) -> None:
        with quietly():
            for group in optimiser.param_groups:
                for parameter in group["params"]:
                    shake(parameter, draw)

    register_optimizer_step_post_hook(shake_all)  # type: ignore[no-untyped-call]


def shake(parameter: Tensor, draw: torch.Generator) -> None:
    """Each entry moves by up to PLAIN roundings. In 16 bits a single rounding can be more than a step of training: those stay."""
    if parameter.dtype not in (torch.float32, torch.float64) or parameter.layout is not torch.strided:
        return
    share = torch.rand(parameter.shape, generator=draw, dtype=torch.float64) * 2 - 1
    factor = 1 + share.to(parameter.device) * (PLAIN * torch.finfo(parameter.dtype).eps)
    with torch.no_grad():
        parameter.copy_(parameter.detach().double() * factor)
