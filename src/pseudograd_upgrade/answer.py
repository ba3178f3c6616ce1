"""What an upgrade changes in a training, in words and as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from pseudograd.notebook import shown
from pseudograd.wording import counted

from .cutting.cut import Cut
from .differences import Difference
from .recorded import BACKWARD, UPDATE

SAME, ROUNDING, MAGNIFIED, CONVENTION, OTHER_OP, OWN, FAILS, UNHEARD, NARROW = (
    "nothing differs",
    "rounding only",
    "rounding, magnified by the program",
    "a kink's convention",
    "another op",
    "the program's own",
    "fails in one of them",
    "not known, part of it was not heard",
    "not known, it computes in 16 bits",
)
SURVIVES = (SAME, ROUNDING, MAGNIFIED)


@dataclass(frozen=True)
class Answer:
    """kind: one of the above. torch: the older and the newer. why: what was seen. next_steps: what to do. losses: of the last backward
    seen, by run. cut: the call that differs, as a program of its own.
    """

    kind: str
    torch: tuple[str, str]
    runs: int
    steps: int
    why: tuple[str, ...] = ()
    next_steps: tuple[str, ...] = ()
    difference: Difference | None = None
    losses: dict[str, list[float]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    cut: Cut | None = None

    @property
    def survives(self) -> bool:
        return self.kind in SURVIVES

    def _repr_html_(self) -> str:
        return shown(str(self))

    def __str__(self) -> str:
        old, new = self.torch
        size = f"{counted(self.runs, 'run')}, {counted(self.steps, 'backward pass', 'backward passes')} each"
        lines = [f"upgrade: torch {old} -> {new}: {self.kind}; {size}"]
        if self.difference is not None:
            lines += _place(self.difference)
        lines += [f"  {line}" for line in self.why]
        lines += [f"  next: {line}" for line in self.next_steps]
        if self.cut is not None:
            lines += [f"  {line}".rstrip() for line in self.cut.lines(self.torch)]
        return "\n".join([*lines, *(f"upgrade: {note}" for note in self.notes)])

    def to_json(self) -> dict[str, Any]:
        found = {"kind": "pseudograd upgrade", "answer": self.kind, "survives": self.survives}
        rest = {key: value for key, value in asdict(self).items() if key not in ("kind", "difference")}
        return {**found, **rest, "difference": _as_json(self.difference)}


def _place(difference: Difference) -> list[str]:
    site = place_of(difference)
    way = {BACKWARD: "backward of", UPDATE: "update by"}.get(site.kind, "forward of")
    lines = [f"  {site.where}  step {difference.step}, {way} {site.op}"]
    if site.expression:
        lines.append(f"    {site.expression}")
    if site.user_where not in ("?", site.where):
        lines.append(f"    in the program: {site.user_where}")
    return lines


def place_of(difference: Difference) -> Any:
    """The line that is to be named: of ops that only one of the two has, where there are such."""
    for events in (difference.only_old, difference.only_new):
        for event in events:
            if event.site.where != "?":
                return event.site
    return difference.old.site


def _as_json(difference: Difference | None) -> dict[str, object] | None:
    if difference is None:
        return None
    site = place_of(difference)
    return {
        **site._asdict(),
        "pass": site.kind,
        "step": difference.step,
        "distance": repr(difference.distance),
        "only_old": [event.site._asdict() for event in difference.only_old],
        "only_new": [event.site._asdict() for event in difference.only_new],
    }
