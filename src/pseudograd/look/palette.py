"""One colour for each rule, in the whole project. The row of a rule has its colour.

Most rules of clamp have colours of Okabe and Ito's set, the slopes of steps have colours of Paul Tol's muted set. A test simulates two
kinds of colour blindness. Two colours are close to each other for protanopes; panels and legends name the rules too.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable

from ..rule import OPS, RuleObject

FORWARD = "#8a8a8a"
LOSS = "#444444"

_BY_LABEL = {"torch.clamp": "#000000", "project": "#5D3A9B", "no clamp": FORWARD, "zero/open": "#8C2D04"}
_RESERVED = ("#8B1A4F", "#3F6B00", "#B05A7A", "#1F6F8B", "#6B3FA0", "#A0522D")  # for rules whose row has no colour
_OTHERS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


def colour(label: str | RuleObject, position: int = 0) -> str:
    """The colour of a rule, with or without "/edge" after its name. A rule without a colour always gets the same reserved one. A label
    that is no rule gets a colour by its position.
    """
    name = label.name if isinstance(label, RuleObject) else label
    if name in _BY_LABEL:
        return _BY_LABEL[name]
    name = OPS[name].default_rule if name == "clamp" else name.split("/")[0].split("(")[0]
    is_familiar = name.startswith("clamp_with_grad")  # a function under the name that scripts know
    rows = [
        row
        for op in OPS.values()
        for row in op.rules.values()
        if name == row.name or (is_familiar and name in row.translates.split())
    ]
    if not rows:
        return _OTHERS[position % len(_OTHERS)]
    reserved = _RESERVED[zlib.crc32(name.encode()) % len(_RESERVED)]
    return next((row.colour for row in rows if row.colour), reserved)


def colours(names: Iterable[str]) -> dict[str, str]:
    """A colour for each name. A rule has its own. Any other name gets a colour that is still free, as long as there is one."""
    names = list(names)
    # Only the colour of a rule does not depend on the position.
    result = {name: colour(name) for name in names if colour(name) == colour(name, position=1)}
    for position, name in enumerate(names):
        if name not in result:
            free = (shade for shade in (*_OTHERS, *_RESERVED) if shade not in result.values())
            result[name] = next(free, colour(name, position))
    return result


def darker(shade: str) -> str:
    """The same hue at half the brightness."""
    return "#" + "".join(f"{int(shade[i : i + 2], 16) // 2:02x}" for i in (1, 3, 5))
