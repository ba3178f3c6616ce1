"""A call as a whole program."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..recorded import UPDATE
from .literals import tensor_text
from .trees import UnwritableError
from .workers import Found

_LINES, _WIDE = 10, 120


def programs(found: Found) -> Iterator[str]:
    """The one that prints as torch does, then one with all digits. UnwritableError where ten lines do not hold it."""
    for printed in ("{}", "{}.tolist()"):
        lines = _lines(found, printed)
        longest = max(lines, key=len)
        if len(longest) > _WIDE or sum(map(bool, lines)) > _LINES:
            count = sum(one.numel() for name, one in found.call.tensors.items() if name not in found.call.made)
            raise UnwritableError(f"what is left of it has {count:,} numbers, more than ten lines hold")
        yield "\n".join(lines) + "\n"


def _lines(found: Found, printed: str) -> list[str]:
    call, (outcome, _) = found.call, found.outcomes
    y = outcome.tensors.get("y0")
    lines = call.lines(is_scalar=outcome.is_tensor and y is not None and not y.dim())
    made = {name: call.made.get(name) or tensor_text(one) for name, one in call.tensors.items()}
    if call.kind == UPDATE:
        return _of_an_update(call.requires, made, lines[:-1], printed)
    for name in call.requires:
        one = call.made.get(name)
        made[name] = f"{one}.requires_grad_()" if one else tensor_text(call.tensors[name], requires=True)
    name = found.worst.name
    if name.startswith("grad of "):
        shown = f"{name.removeprefix('grad of ')}.grad"
    else:
        shown = "y" if outcome.is_tensor else f"y[{name.removeprefix('y')}]"
        shown += ".detach()" if printed == "{}" and any(call.requires) else ""
    seed = ["torch.manual_seed(0)"] if outcome.is_random else []
    tensors = [f"{one} = {text}" for one, text in made.items()]
    return ["import torch", "", *seed, *tensors, *lines, f"print({printed.format(shown)})"]


def _of_an_update(parameters: frozenset[str], made: dict[str, str], lines: list[str], printed: str) -> list[str]:
    """Its only parameter is p, and the gradient is given where it is set."""
    (name,) = parameters if len(parameters) == 1 else (None,)
    if name is None:
        raise UnwritableError("it takes more than one parameter to show it")
    grad = f"grad{name.removeprefix('p')}"
    lines = [re.sub(rf"\b{name}\b", "p", line).replace(f"= {grad}", f"= {made[grad]}") for line in lines]
    parameter = f"p = torch.nn.Parameter({made[name]})"
    return ["import torch", "", parameter, *lines, f"print({printed.format('p.data')})"]
