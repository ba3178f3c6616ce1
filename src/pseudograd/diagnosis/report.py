"""What a diagnosis says, in plain records that another process can read. Text, JSON, page and metrics are made of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .count.norms import History, Norm
    from .count.sensitivity import Sensitivity
    from .count.swallowed import Stalled
    from .count.whatif import Changed
    from .records import Copied, Finding, Partly, Site, Starved, Structural


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
    incomplete; the program is not affected. parameters: the names of all parameters that ran.
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
    whatif: dict[str, list[Changed]]
    inexact: dict[str, list[str]]
    untouched: list[str]
    stalled: list[Stalled]
    sensitivity: list[Sensitivity]
    unsensed: dict[str, int]
    history: list[History]
    errors: list[str]
    parameters: list[str]


FIELDS = tuple(Report.__annotations__)
