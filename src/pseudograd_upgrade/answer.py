"""The effect of an upgrade on a training, as text and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from pseudograd.listen.frames import NO_LINE
from pseudograd.wording import counted

from .cutting.cut import Cut
from .differences import Difference
from .environments import describe_packages
from .recording import BACKWARD, UPDATE, Origin

SAME, ROUNDING, MAGNIFIED, CONVENTION, OTHER_OP, OWN, FAILS, UNKNOWN, NARROW = (
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
    """The answer to a question about two runs."""

    kind: str  # a constant of this file
    torch: tuple[str, str]  # the older and the newer version
    runs: int  # the number of runs that were made
    steps: int  # the number of backward passes of the longer run
    why: tuple[str, ...] = ()  # the evidence
    next_steps: tuple[str, ...] = ()
    difference: Difference | None = None
    losses: dict[str, list[float]] = field(default_factory=dict)  # for "old" and "new", the loss of each backward pass
    notes: tuple[str, ...] = ()
    cut: Cut | None = None  # the call that differs, as a program of its own
    convention: str = ""  # a changed convention without effect on this training
    pin: str = ""  # an era; pinned to this era, the newer torch trained as the older one did
    packages: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # both versions of each package that differs
    not_compared: tuple[str, ...] = ()  # notes about parts that should have been compared

    @property
    def survives(self) -> bool:
        return self.kind in SURVIVES

    def __str__(self) -> str:
        old, new = self.torch
        counts = [len(losses) for losses in self.losses.values()]
        passes = counted(self.steps, "backward pass", "backward passes") + " each"
        if len({*counts}) > 1:
            passes = f"{' and '.join(map(str, counts))} backward passes"
        size = f"{counted(self.runs, 'run')}, {passes}"
        convention = ", and a kink's convention without effect on the training" if self.convention else ""
        lines = [f"upgrade: torch {old} -> {new}: {self.kind}{convention}; {size}"]
        lines += [f"  {line}" for line in filter(None, [describe_packages(self.packages)])]
        if self.difference is not None:
            lines += location_lines(self.difference)
        lines += [f"  {line}" for line in self.why]
        lines += [f"  next: {line}" for line in self.next_steps]
        if self.cut is not None:
            lines += [f"  {line}".rstrip() for line in self.cut.lines(self.torch)]
        return "\n".join([*lines, *(f"upgrade: {note}" for note in self.notes)])

    def to_json(self) -> dict[str, object]:
        fields = {**asdict(self), "difference": self.difference and _difference_to_json(self.difference)}
        del fields["kind"]
        return {"kind": "pseudograd upgrade", "answer": self.kind, "survives": self.survives, **fields}


def location_lines(difference: Difference) -> list[str]:
    origin = origin_to_name(difference)
    way = {BACKWARD: "backward of", UPDATE: "update by"}.get(origin.kind, "forward of")
    lines = [f"  {origin.where}  step {difference.step}, {way} {origin.op}"]
    if origin.expression:
        lines.append(f"    {origin.expression}")
    if origin.user_where not in (NO_LINE, origin.where):
        lines.append(f"    in the program: {origin.user_where}")
    if origin is difference.old.origin and difference.new.origin.where != origin.where:
        lines.append(f"    in the newer environment: {difference.new.origin.where}")
    return lines


def origin_to_name(difference: Difference) -> Origin:
    """The first op that only one of the two runs has and whose line is known; else the op that differs."""
    events = (*difference.only_old, *difference.only_new)
    return next((event.origin for event in events if event.origin.where != NO_LINE), difference.old.origin)


def _difference_to_json(difference: Difference) -> dict[str, object]:
    origin = origin_to_name(difference)
    return {
        **origin._asdict(),
        "pass": origin.kind,
        "step": difference.step,
        "distance": repr(difference.distance),
        "only_old": [event.origin._asdict() for event in difference.only_old],
        "only_new": [event.origin._asdict() for event in difference.only_new],
    }
