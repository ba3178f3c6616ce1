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


@dataclass(frozen=True)
class Site(Facts):
    """One op at one line, over all recorded backward passes. Counts are entries of the gradient that arrives; shares are 0 to 1.

    where: the line that calls torch. user_where: the line of the program that led to this call. Either is "?" if nobody recorded it.
    elements: all entries that arrive; arrived: those that are not 0; cut: the arrived entries for which no gradient leaves; magnitude and
    cut_magnitude: the sums of |grad| of the arrived and of the cut entries. sides: for ops that save x or a mask of it, the counts below,
    at, inside and above the bounds, each for positive and for negative gradients. Only these ops have at_bound, below, above and
    recoverable: the cut entries that a step would move back inside. eras: the share that each era of torch passes exactly at the bound.
    """

    op: str
    where: str
    user_where: str
    expression: str  # the source of the call
    module: str | None
    calls: int
    elements: int
    arrived: int
    cut: int
    cut_magnitude: float
    nonfinite: int  # entries that arrive as inf or nan
    recoverable: int | None = None
    at_bound: int | None = None
    below: int | None = None
    above: int | None = None
    sides: dict[str, int] = field(default_factory=dict)
    eras: dict[str, float] = field(default_factory=dict)
    magnitude: float = 0.0
    family: str | None = None  # the keyword of override for this op
    elsewhere: int = 0  # if all is cut: the entries other than 0 that went to inputs of another shape
    within: str | None = None  # the function of torch that calls this op inside, where no override reaches it
    is_deliberate: bool = False  # a comment of the program, or a pattern of `ignore`, declares the cut deliberate
    order: int = field(default=0, repr=False)  # the rank of its first call, in the order of the backward
    upstream: int = field(default=0, repr=False)  # the set of leaves upstream, as bits
    # the file, the line, and the columns of the expression in bytes; -1 if it spans lines or is not known
    source: tuple[str, int, int, int] | None = field(default=None, repr=False)
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
        """Is it subtracted from its own input? Or a hinge, a guard, a floor of the loss, or a clip beside its own input, that cuts no
        gradient which leads back inside?
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
    """A value that leaves the graph. reaches_loss: did a loss depend on it? None if it became a number of Python or an array, because
    nobody can know then. parameters: the names of the parameters upstream.
    """

    kind: str  # the call that cuts: "detach", "item" and others
    where: str
    user_where: str
    expression: str
    calls: int
    reaches_loss: bool | None
    parameters: tuple[str, ...]
    is_deliberate: bool = False
    upstream: int = field(default=0, repr=False)
    source: tuple[str, int, int, int] | None = field(default=None, repr=False)
    is_final_cut: bool = field(default=True, repr=False)  # no further cut stands between it and the loss
    is_recomputed: bool = field(default=False, repr=False)  # made by a forward that a backward pass runs again
    # the lines that compare its value and choose by it
    compared_at: frozenset[str] = field(default=frozenset(), repr=False)


# What the advice for a starving parameter depends on; "" for any other reason.
Reason = Literal["", "no path", "own hook", "returns None", "zeros alone", "adds up to 0", "error"]


@dataclass(frozen=True)
class Starved:
    """A parameter that got no gradient, or zeros alone, in every recorded backward. others: further lines that cut its way to a loss."""

    parameter: str
    shape: tuple[int, ...]
    gradient: str
    cause: Site | Structural | None
    why: str
    others: tuple[str, ...] = ()
    is_unstepped: bool = field(default=False, repr=False)  # optimisers stepped, and none of them holds it
    is_in_all: bool = field(default=True, repr=False)  # every backward reached it, or none did; False: some did
    reason: Reason = field(default="", repr=False)


@dataclass(frozen=True)
class Partly:
    """A parameter that learns, and some of whose entries got no gradient in any backward. cause: the op nearest to it that cuts.

    without: the number of these entries. units: its rows along the first dimension; dead_units: the rows that got no gradient at all.
    is_looked_up: the program reads its rows by an index, so rows that no index names get nothing. The row `padding` never gets a gradient.
    """

    parameter: str
    shape: tuple[int, ...]
    entries: int
    without: int
    units: int
    dead_units: int
    backwards: int
    cause: Site | None
    is_looked_up: bool
    is_shard: bool = False  # a sharded parameter: the counts are of the shard of this process
    padding: int | None = None
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
    """An autograd.Function of the program that computes the same as an op of this library. where: the class; uses: the lines of its
    calls. meaning: the op and its rule. instead: the line that replaces the class; "" if it belongs to an installed package.
    """

    name: str
    where: str
    meaning: str
    instead: str
    uses: tuple[str, ...] = ()


@dataclass(frozen=True)
class Finding:
    """One statement about the program, at a call. code, number: those of its kind, such as "cut" and "PG204".

    evidence: the numbers. cause: the most likely reason. next_step: what to do, if possible a line to paste. also: further findings at the
    same call. share: of the gradient or of the entries; `--fail-on "cut>0.5"` compares it. module: the path of the module that makes the
    call, or several paths. parameters: the names of those concerned. is_muted: it is declared deliberate, so it is only counted.
    """

    code: str
    where: str
    expression: str
    evidence: str
    cause: str
    next_step: str
    share: float = 1.0
    module: str | None = None
    also: tuple[str, ...] = ()
    issue: str | None = None  # a report of this behaviour of torch
    number: str = ""
    parameters: tuple[str, ...] = ()
    is_muted: bool = field(default=False, repr=False)
    # a pin under which the training may end with another result
    other_pin: tuple[str, str | float] | None = field(default=None, repr=False)


class Report:
    """The fields of a diagnosis, of one process or of all processes of a program.

    backwards: how many backward passes were recorded. findings: what a person should know, in the order in which a backward meets it.
    muted: how many findings a comment at their line, or `ignore`, declares deliberate. starved: parameters without a gradient, or with
    zeros alone, in every recorded backward. partly: parameters of which some entries got no gradient in any backward. calm: sentences
    about parameters that get nothing on purpose (a target net) or naturally (words that no batch holds). copied: classes of the program
    that are ops of this library by another name. sites: every op that a gradient arrived at, in the order of the backward. structural:
    values that leave the graph with a parameter upstream; those that a loss depends on come first. norms: the norm of the gradient of
    each parameter, beginning next to the loss; empty with detail="counts". whatif: for each question the gradients that the parameters
    would have got; "as it is": those that they got. inexact: why a what-if has no answer. untouched: what-ifs about ops that no
    gradient arrived at. stalled: for each parameter that an optimiser stepped, the share of entries with a gradient that did not move;
    empty with detail="counts". sensitivity: how much of the gradient is convention, by family, line and parameter; empty unless
    requested. unsensed: why the sensitivity was not measured in some backward passes, and in how many. history: for each parameter the
    norm, the zeros, the convention and the stalled share by step. errors: what failed inside pseudograd, so that numbers are
    incomplete; the program is not affected. parameters: the names of all parameters that ran. idle: those that got no gradient, or zeros
    alone, and are not in starved.
    """

    backwards: int
    findings: list[Finding]
    muted: int
    starved: list[Starved]
    partly: list[Partly]
    calm: list[str]
    copied: list[Copied]
    sites: list[Site]
    structural: list[Structural]
    norms: list[Norm]
    whatif: dict[str, list[Change]]
    inexact: dict[str, list[str]]
    untouched: list[str]
    stalled: list[Stall]
    sensitivity: list[Sensitivity]
    unsensed: dict[str, int]
    history: list[History]
    errors: list[str]
    parameters: list[str]
    idle: list[str]


FIELDS = tuple(Report.__annotations__)
