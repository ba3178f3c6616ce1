"""The records of a diagnosis, which another process can read. The JSON report has the same field names."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from .count.norms import Facts

if TYPE_CHECKING:
    from .count.sensitivity import Sensitivity
    from .count.stalls import Stall
    from .count.whatif import Change
    from .judge.norms import History, Norm

# The file, the line, and the columns of the expression in bytes: None if it spans lines or is not known.
Source = tuple[str, int, tuple[int, int] | None]


@dataclass(frozen=True)
class Site(Facts):
    """One op at one line, over all recorded backward passes. Counts are entries of the gradient that arrives; shares are 0 to 1."""

    op: str
    where: str  # the line that calls torch; NO_LINE if nobody recorded it
    user_where: str  # the line of the program that led to this call; NO_LINE if nobody recorded it
    expression: str  # the source of the call
    module: str | None
    calls: int
    elements: int  # all entries that arrive
    arrived: int  # entries that arrive and are not 0
    cut: int  # arrived entries for which no gradient leaves
    cut_magnitude: float  # the sum of |grad| over the cut entries
    nonfinite: int  # entries that arrive as inf or nan
    # Only ops that save x or a mask of it have these five: entries by the region of their x.
    recoverable: int | None = None  # cut entries that a step would move back inside
    at_bound: int | None = None
    below: int | None = None
    above: int | None = None
    sides: dict[str, int] = field(default_factory=dict)  # by region and sign of the gradient: "below-" to "above+"
    eras: dict[str, float] = field(default_factory=dict)  # the share that each era of torch passes exactly at the bound
    magnitude: float = 0.0  # the sum of |grad| over the arrived entries
    family: str | None = None  # the keyword of override for this op
    elsewhere: int = 0  # if all is cut: the entries other than 0 that went to inputs of another shape
    within: str | None = None  # the function of torch that calls this op inside, where no override reaches it
    is_deliberate: bool = False  # a comment of the program, or a pattern of `ignore`, declares the cut deliberate
    order: int = field(default=0, repr=False)  # the rank of its first call, in the order of the backward
    upstream: int = field(default=0, repr=False)  # the set of leaves upstream, as bits
    source: Source | None = field(default=None, repr=False)
    is_own: bool = field(default=False, repr=False)  # an op of this library
    own_remedy: str = field(default="", repr=False)  # how to choose another rule for this op
    is_second_order: bool = field(default=False, repr=False)  # made by a backward pass: an op of a second derivative
    # "ascent" if the optimiser adds this gradient, "descent" if it subtracts it; "unknown" if the program steps by itself
    direction: str = field(default="descent", repr=False)

    @property
    def cut_share(self) -> float:
        """The share of the arrived elements that is cut."""
        return self.cut / self.arrived if self.arrived else 0.0

    @property
    def cut_magnitude_share(self) -> float:
        """The share of the sum of |grad| that is cut."""
        if not self.magnitude or not math.isfinite(self.magnitude):
            return 0.0
        return self.cut_magnitude / self.magnitude

    @property
    def recoverable_share(self) -> float:
        """The share of the cut elements that a step would lead back inside."""
        return (self.recoverable or 0) / self.cut if self.cut else 0.0

    @property
    def at_bound_share(self) -> float:
        """The share of the arrived elements that is at a bound."""
        return (self.at_bound or 0) / self.arrived if self.arrived else 0.0

    @property
    def cut_at_nan(self) -> int:
        """The entries that a clamp cuts because x is nan: they stand on no side."""
        if self.below is None or self.above is None:
            return 0
        return max(0, self.cut - self.below - self.above - (self.at_bound or 0))

    @property
    def may_guard(self) -> bool:
        """May it keep x away from a number at which the op that follows is steep, such as 0 for sqrt, log or a division?"""
        is_floor = self.has_no_upper_bound and not self.has_only_lower_bound
        return self.has_guard_bound or self.is_before_pole or self.is_before_exp or is_floor

    @property
    def is_calm_clip(self) -> bool:
        """Is it subtracted from its own input? Or is it a hinge, a guard, a floor of the loss, or a clip beside its own input, and cuts no
        gradient that leads back inside?
        """
        is_clip = self.has_only_lower_bound or self.has_guards_alone or self.is_floor_of_loss
        is_harmless = (self.reuses_input and not self.recoverable) or (is_clip and self.recoverable == 0)
        return self.is_subtracted or is_harmless

    @property
    def is_guard(self) -> bool:
        """Does it cut gradients of inf or nan? If so, the sum of the magnitudes that it cuts is not finite."""
        return self.nonfinite > 0 and self.cut > 0 and not math.isfinite(self.cut_magnitude)


@dataclass(frozen=True)
class Structural:
    """A value that leaves the graph."""

    kind: str  # the call that cuts: "detach", "item" and others
    where: str
    user_where: str
    expression: str
    calls: int
    reaches_loss: bool | None  # did a loss depend on it? None for a number of Python or an array: nobody can follow it
    parameters: tuple[str, ...]  # the names of the parameters upstream
    is_deliberate: bool = False
    upstream: int = field(default=0, repr=False)
    source: Source | None = field(default=None, repr=False)
    is_final_cut: bool = field(default=True, repr=False)  # no further cut stands between it and the loss
    is_recomputed: bool = field(default=False, repr=False)  # made by a forward that a backward pass runs again
    # the lines that compare its value and choose by it
    compared_at: frozenset[str] = field(default=frozenset(), repr=False)


# What the advice for a starving parameter depends on; "" for any other reason.
Reason = Literal["", "no path", "own hook", "returns None", "zeros alone", "adds up to 0", "error"]


@dataclass(frozen=True)
class Starved:
    """A parameter that got no gradient, or zeros alone, in every recorded backward."""

    parameter: str
    shape: tuple[int, ...]
    gradient: str
    cause: Site | Structural | None
    why: str
    others: tuple[str, ...] = ()  # further lines that cut its way to a loss
    is_unstepped: bool = field(default=False, repr=False)  # optimisers stepped, and none of them holds it
    is_in_all: bool = field(default=True, repr=False)  # every backward reached it, or none did; False: some did
    reason: Reason = field(default="", repr=False)


@dataclass(frozen=True)
class Partly:
    """A parameter that learns, and some of whose entries got no gradient in any backward."""

    parameter: str
    shape: tuple[int, ...]
    entries: int  # all its entries
    without: int  # entries that got no gradient in any backward
    units: int  # its rows along the first dimension
    dead_units: int  # rows that got no gradient at all
    backwards: int
    cause: Site | None  # the op nearest to it that cuts
    is_looked_up: bool  # the program reads its rows by an index, so rows that no index names get nothing
    is_shard: bool = False  # a sharded parameter: the counts are of the shard of this process
    padding: int | None = None  # the index of the row that never gets a gradient
    # the sites at which its entries lose their gradient, and how
    drops: tuple[tuple[Site, str], ...] = field(default=(), repr=False)
    # the comparison of its own values, or the op with a threshold for them, that decides which entries the loss depends on
    own_choice: Structural | Site | None = field(default=None, repr=False)

    @property
    def share(self) -> float:
        """The share of its units that is dead, which `--fail-on` compares."""
        return self.dead_units / self.units if self.units else 0.0


@dataclass(frozen=True)
class Copied:
    """An autograd.Function of the program that computes the same as an op of this library."""

    name: str
    where: str  # the line of the class
    meaning: str  # the op and its rule
    instead: str  # the line that replaces the class; "" if the class belongs to an installed package
    uses: tuple[str, ...] = ()  # the lines that call it


@dataclass(frozen=True)
class Finding:
    """One statement about the program, at a call."""

    code: str  # the name of its kind, such as "cut"
    where: str
    expression: str
    evidence: str  # the numbers
    cause: str  # the most likely reason
    next_step: str  # what to do, if possible a line to paste
    share: float = 1.0  # of the gradient or of the entries; `--fail-on "cut>0.5"` compares it
    module: str | None = None  # the path of the module that makes the call, or several paths
    also: tuple[str, ...] = ()  # further findings at the same call
    issue: str | None = None  # a report of this behaviour of torch
    number: str = ""  # the number of its kind, such as "PG204"
    parameters: tuple[str, ...] = ()  # the names of the parameters concerned
    is_muted: bool = field(default=False, repr=False)  # it is declared deliberate, so it is only counted
    # a pin under which the training may end with another result
    other_pin: tuple[str, str | float] | None = field(default=None, repr=False)


class Report:
    """The fields of a diagnosis, of one process or of all processes of a program.

    norms, stalled and history are empty with detail="counts", whatif and sensitivity unless the user asked for them.
    """

    backwards: int  # the number of recorded backward passes
    findings: list[Finding]  # what a person should know, in the order in which a backward meets it
    muted: int  # the number of findings that a comment at their line, or `ignore`, declares deliberate
    starved: list[Starved]  # parameters without a gradient, or with zeros alone, in every recorded backward
    partly: list[Partly]  # parameters of which some entries got no gradient in any backward
    # sentences about parameters that get nothing on purpose (a target net) or naturally (words that no batch holds)
    calm: list[str]
    copied: list[Copied]  # classes of the program that are ops of this library by another name
    sites: list[Site]  # every op that a gradient arrived at, in the order of the backward
    # values that leave the graph with a parameter upstream; those that a loss depends on come first
    structural: list[Structural]
    norms: list[Norm]  # the norm of the gradient of each parameter, beginning next to the loss
    # for each question the gradients that the parameters would have got; under "as it is" those that they got
    whatif: dict[str, list[Change]]
    inexact: dict[str, list[str]]  # why a what-if has no answer
    untouched: list[str]  # what-ifs about ops that no gradient arrived at
    stalled: list[Stall]  # for each stepped parameter the share of entries with a gradient that did not move
    sensitivity: list[Sensitivity]  # how much of the gradient is convention, by family, line and parameter
    unsensed: dict[str, int]  # why the sensitivity was not measured in some backward passes, and in how many
    history: list[History]  # for each parameter the norm, the zeros, the convention and the stalled share by step
    errors: list[str]  # what failed inside pseudograd, so that numbers are incomplete; the program is not affected
    parameters: list[str]  # the names of all parameters that ran
    idle: list[str]  # the names of parameters that got no gradient, or zeros alone, and are not in `starved`


FIELDS = tuple(Report.__annotations__)
