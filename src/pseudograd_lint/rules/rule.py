"""What a rule is."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pseudograd_notices.code import Code

from ..walk import Spot


class Rule(NamedTuple):
    """code: what it says, with a program that shows it and one where it is silent. kinds: the nodes that it judges. words: a file that
    holds none of these holds nothing for it. find: what to say of a node, one sentence or two; None for nothing.
    """

    code: Code
    kinds: tuple[type, ...]
    words: tuple[str, ...]
    find: Callable[[Spot], str | None]
