"""What a diagnosis finds, as records that another process can read. The JSON has the same names."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .count.sensitivity import Sensitivity
    from .count.stalls import Stall
    from .count.whatif import Change
    from .judge.norms import History, Norm


@dataclass(frozen=True)
class Site:
    """One op at one place, over all recorded backward passes. Counts are elements of the gradient that arrives; shares are 0 to 1.

    where, user_where: the line that calls torch, and the program's own line that led there; "?" where nobody saw it. expression: the
    source of the call. sides: counts below, at, inside and above the bounds, by the sign of the gradient, where the op keeps them;
    then also recoverable (cut, and a step would lead back inside), at_bound, below and above. eras: what each era of torch
    passes exactly at the bound. elsewhere: what other than 0 left, where nothing left, towards inputs of other shapes. within: the call of
    torch that runs this op inside, where no override reaches it. is_deliberate: somebody said so, by a comment or a pattern. source: file,
    line, and the columns of the expression in bytes; -1 where it spans lines or is not known.
    """

    op: str
    where: str
    user_where: str
    expression: str
    module: str | None
    calls: int
    elements: int
    arrived: int
    cut: int
    cut_magnitude: float
    nonfinite: int
    recoverable: int | None = None
    at_bound: int | None = None
    below: int | None = None
    above: int | None = None
    sides: dict[str, int] = field(default_factory=dict)
    eras: dict[str, float] = field(default_factory=dict)
    magnitude: float = 0.0
    family: str | None = None
    elsewhere: int = 0
    within: str | None = None
    is_deliberate: bool = False
    order: int = field(default=0, repr=False)
    upstream: int = field(default=0, repr=False)
    source: tuple[str, int, int, int] | None = field(default=None, repr=False)
    is_own: bool = field(default=False, repr=False)  # of an op of this library
    own_remedy: str = field(default="", repr=False)
    is_second: bool = field(default=False, repr=False)  # of a second derivative: a backward made it
    joins: bool = field(default=False, repr=False)  # it hands gradients on to several inputs
    normalises_one_number: bool = field(default=False, repr=False)
    ends_behind: bool = field(default=False, repr=False)  # an op behind it cuts whatever passes at a bound
    steep_op: str = field(default="", repr=False)  # it makes what enters this clamp, and its slope grows without end
    # its own input stands beside it, as in the loss of a policy, or in x - round(x)
    is_clip: bool = field(default=False, repr=False)
    # its only bound is a lower one: 0, or a number that guards against 0
    is_hinge: bool = field(default=False, repr=False)

    # a step adds this gradient (ascent), subtracts it (descent), or is taken by the program itself (unknown)
    direction: str = field(default="descent", repr=False)
    is_term: bool = field(
        default=False, repr=False
    )  # does the loss depend on it by sums, powers and constant factors alone?

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
    def is_calm_clip(self) -> bool:
        """Does it cut only what leads further outside, as a hinge, or beside the value that it clips, as in the loss of a policy?"""
        return (self.is_clip or self.is_hinge) and not self.recoverable

    @property
    def is_guard(self) -> bool:
        """Are there gradients that are not finite among those that are cut? The sum of what is cut is not finite then."""
        return self.nonfinite > 0 and self.cut > 0 and not math.isfinite(self.cut_magnitude)


@dataclass(frozen=True)
class Structural:
    """A value that leaves the graph: `reaches_loss` says whether a loss depended on it, None where it left torch and nobody can say."""

    kind: str
    where: str
    user_where: str
    expression: str
    calls: int
    reaches_loss: bool | None
    parameters: tuple[str, ...]
    is_deliberate: bool = False
    upstream: int = field(default=0, repr=False)
    source: tuple[str, int, int, int] | None = field(default=None, repr=False)
    is_last: bool = field(default=True, repr=False)  # no further cut stands between it and the loss
    is_again: bool = field(default=False, repr=False)  # a backward made it
    decides_at: frozenset[str] = field(default=frozenset(), repr=False)  # lines that a comparison of its value decides


@dataclass(frozen=True)
class Starved:
    """A parameter that got no gradient, or zeros alone, in every recorded backward. cause: a Site, a Structural, or None; others: where
    else its way to a loss is cut.
    """

    parameter: str
    shape: tuple[int, ...]
    gradient: str
    cause: Site | Structural | None
    why: str
    others: tuple[str, ...] = ()
    is_unstepped: bool = field(default=False, repr=False)  # optimisers stepped, and none of them holds it
    is_in_all: bool = field(default=True, repr=False)  # did each backward reach it, or none?


@dataclass(frozen=True)
class Partly:
    """A parameter that learns, and of which `without` entries got no gradient in any of so many backwards; `dead_units` of its `units`
    got none at all: the rows along its first dimension. cause: the op nearest to it that cuts. is_looked_up: the program reads rows of
    it by an index, so those that nobody asked for get nothing; nor does the row `padding`, asked for or not.
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
    is_shard: bool = False  # counted in what this process holds of it
    padding: int | None = None
    drops: tuple[tuple[Site, str], ...] = field(default=(), repr=False)  # where they lose their gradient, and how
    # a comparison of its values, which decides the loss
    own_choice: Structural | None = field(default=None, repr=False)

    @property
    def share(self) -> float:
        """The share of its units that is dead, which `--fail-on` compares."""
        return self.dead_units / self.units if self.units else 0.0


@dataclass(frozen=True)
class Copied:
    """An autograd.Function of the program that computes what an op of this library does. where: the class; uses: the places of its calls.
    meaning: which op and rule. instead: the line that replaces the class; "" where it is of an installed package.
    """

    name: str
    where: str
    meaning: str
    instead: str
    uses: tuple[str, ...] = ()


@dataclass(frozen=True)
class Finding:
    """code, number: of its kind, a row of `findings`. where, expression: the call. evidence: the numbers.
    cause: what most likely did it. next_step: what to do about it, a line that can be pasted where there is one. also: what else was
    found there. share: what `--fail-on` compares. module: the path of the module that makes the call, in the outermost one; several
    where the line serves several. parameters: those that it is about, where it is about whole ones. is_muted: somebody said that it is
    deliberate, so that it is counted and not told.
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
    issue: str | None = None
    number: str = ""
    parameters: tuple[str, ...] = ()
    is_muted: bool = field(default=False, repr=False)
    other_pin: tuple[str, str | float] | None = field(default=None, repr=False)  # under it a training may end elsewhere


class Report:
    """The fields of a diagnosis, of one process or of all processes of a program.

    backwards: how many backward passes were recorded. findings: what a person should know, in the order in which a backward meets it.
    muted: how many findings a comment at their line, or `ignore`, declares deliberate. starved: parameters without a gradient, or with
    zeros alone, in every recorded backward. partly: parameters of which some entries got no gradient in any backward. calm: sentences
    about parameters that get nothing on purpose (a target net) or naturally (words that no batch holds). copied: classes of the program
    that are ops of this library by another name. sites: every op that a gradient arrived at, in the order of the backward. structural:
    values that leave the graph with a parameter upstream; those that a loss depends on come first. norms: of the gradient of each
    parameter, the parameter next to the loss first; empty with detail="counts". whatif: for each question what every parameter would
    have got; "as it is" is what the program computed. inexact: why a what-if has no answer. untouched: what-ifs about ops that no
    gradient arrived at. stalled: for each parameter that an optimiser stepped, the share of entries with a gradient that did not move;
    empty with detail="counts". sensitivity: how much of the gradient is convention, by family, line and parameter; empty unless
    requested. unsensed: why the sensitivity was not measured in some backward passes, and in how many. history: for each parameter the
    norm, the zeros, the convention and the stalled share by step. errors: what failed inside pseudograd, so that numbers are
    incomplete; the program is not affected. parameters: the names of all parameters that ran. idle: of those that got no gradient, or zeros
    alone, and that do not count as starving.
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
