"""pin_edge: what torch's own clamps do exactly at a bound, and nothing else."""

from __future__ import annotations

from ..errors import unknown_name
from ..torch_facts import ERAS, installed_era
from . import edges, stand_ins  # noqa: F401  (stand_ins registers its rows)
from .mode import Choice, Rewriting


class pin_edge(Rewriting):  # noqa: N801  used as a function is
    """Fix what torch's clamps do exactly at a bound."""

    def __init__(self, edge: str) -> None:
        if edge not in edges.SHARES and edge not in ERAS:
            raise unknown_name("pin_edge", "edge", (*edges.SHARES, *ERAS), edge)
        era = installed_era()
        choices: dict[str, Choice] = {}
        if edge != era:
            choice = Choice("zero", edges.way(edge, era))
            choices = {"clamp": choice, "nan extreme": choice}
        super().__init__(f"pin_edge({edge!r})", choices)
