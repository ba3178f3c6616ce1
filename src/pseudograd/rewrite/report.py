"""The report of a context: the calls that it rewrote, and the matching calls that it could not rewrite."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ..listen import frames
from ..listen.nodes import GraphNode, Ranges, has_one_name, name_of
from ..notebook import to_html
from ..torch_table import forms as torch_forms
from ..torch_table.private import node_number, without_torch_function
from ..torch_table.records import Arguments, Form
from ..wording import counted

_SCRIPT = "torch::jit::"
LEFT_BY_FUNCTION = "chosen by the function of the site"  # why torch ran a call: the user's function, which gets the site, returned None


@dataclass(frozen=True)
class Calls:
    """Calls of one op at one line."""

    op: str
    where: str  # the line that calls torch
    user_where: str  # the program's own line that led there
    expression: str  # the source of the call
    calls: int


@dataclass(frozen=True)
class Rewritten(Calls):
    """Calls that got another rule. compiled: `calls` counts how often the call was traced, and `expression` is its whole line."""

    rule: str
    compiled: bool


@dataclass(frozen=True)
class Missed(Calls):
    """Matching calls that torch ran with its own rule."""

    why: str


@dataclass(frozen=True)
class Report:
    """`rewritten` and `missed`, each with the most frequent first; `str()` is the text that a person reads.

    left: the matching calls for which the user's function, which gets the site, chose torch's own rule.
    """

    label: str
    rewritten: tuple[Rewritten, ...]
    missed: tuple[Missed, ...]
    is_torchs_own: bool  # is the context a pin to the era of the installed torch?
    left: tuple[Missed, ...] = ()

    def _repr_html_(self) -> str:
        return to_html(str(self))

    def __str__(self) -> str:
        if self.is_torchs_own and not self.rewritten and not self.missed:
            return f"{self.label}: this torch is of that era, nothing is rewritten"
        eager = sum(site.calls for site in self.rewritten if not site.compiled)
        compiled = sum(site.calls for site in self.rewritten if site.compiled)
        places = len({site.where for site in self.rewritten})
        head = f"{self.label}: {counted(eager, 'call')} rewritten at {counted(places, 'line')}"
        if compiled:
            head += f", {compiled:,} traced into compiled code"
        lines = [head]
        for site in self.rewritten:
            times = f"{site.calls:,}" if not site.compiled else "compiled"
            lines.append(f"  {times:>9}  {site.op:<12} {site.rule:<16} {_describe_line(site)}")
        if not self.rewritten and self.left:
            lines.append("  nothing was rewritten: the function of the site chose torch's own rule for each call")
            lines += [f"  {site.calls:>9,}  {site.op:<12} {_describe_line(site)}" for site in self.left]
        elif not self.rewritten:
            lines.append(
                "  nothing was rewritten, unless by code compiled before: no matching call was recorded for a backward inside"
            )
        if self.missed:
            calls = sum(site.calls for site in self.missed)
            lines.append(f"not reached, so with torch's own rule: {counted(calls, 'call')}")
            lines += [f"  {site.calls:>9,}  {site.op:<12} {_describe_line(site)}: {site.why}" for site in self.missed]
        return "\n".join(lines)


def make_report(label: str, logs: Iterable[Log], is_torchs_own: bool) -> Report:
    calls = [entry for log in logs for entry in log.entries()]
    rewritten = _join_equal([entry for entry in calls if isinstance(entry, Rewritten)])
    others = _join_equal([entry for entry in calls if isinstance(entry, Missed)])
    missed = tuple([entry for entry in others if entry.why != LEFT_BY_FUNCTION])
    left = tuple([entry for entry in others if entry.why == LEFT_BY_FUNCTION])
    return Report(label, rewritten, missed, is_torchs_own, left)


def join_reports(reports: Sequence[Report]) -> Report:
    """One report of a context in several processes."""
    rewritten = _join_equal([site for report in reports for site in report.rewritten])
    missed = _join_equal([site for report in reports for site in report.missed])
    left = _join_equal([site for report in reports for site in report.left])
    return dataclasses.replace(reports[0], rewritten=rewritten, missed=missed, left=left)


AnyCalls = TypeVar("AnyCalls", bound=Calls)


def _join_equal(entries: Iterable[AnyCalls]) -> tuple[AnyCalls, ...]:
    counts: Counter[AnyCalls] = Counter()
    for entry in entries:
        counts[dataclasses.replace(entry, calls=0)] += entry.calls
    by_frequency = sorted(counts.items(), key=lambda item: (-item[1], str(item[0])))
    return tuple(dataclasses.replace(entry, calls=count) for entry, count in by_frequency)


def _describe_line(site: Calls) -> str:
    is_own_line = site.user_where in (site.where, frames.NO_LINE)
    return site.where if is_own_line else f"{site.where}, in the program: {site.user_where}"


@dataclass(slots=True)
class Tallied:
    """How often a call was made, and its two lines. The lines hold their code objects, so that the ids in `Log.calls` stay valid."""

    call: frames.Point | None
    program: frames.Point | None
    calls: int = 0


class Log:
    """What one context counts in one thread."""

    def __init__(self) -> None:
        self.calls: dict[tuple[object, ...], Tallied] = {}  # by op, rule, reason and the two lines
        # By op, rule, lines and reason: how often each was traced into compiled code.
        self.compiled: Counter[tuple[str, str, tuple[str, str, str], str | None]] = Counter()
        self.unaffected: set[type] = set()  # classes of nodes on which the context does not act
        self.nodes = Ranges()

    def count(self, op: str, rule: str, why: str | None) -> Tallied:
        """Count a call. why: the reason why torch's own function ran; None if the call was rewritten."""
        frame = frames.calling_frame()
        program = frames.next_program_frame(frame)
        key: tuple[object, ...] = (op, rule, why)
        for caller in (frame, program):
            key += (0, 0) if caller is None else (id(caller.f_code), caller.f_lasti)
        known = self.calls.get(key)
        if known is None:
            point = frames.point(frame)
            known = self.calls[key] = Tallied(point, point if program is frame else frames.point(program))
        known.calls += 1
        return known

    def entries(self) -> Iterator[Rewritten | Missed]:
        for (op, rule, why, *_), tallied in list(self.calls.items()):
            expression = "" if tallied.call is None else tallied.call.expression
            lines = frames.file_and_line(tallied.call), frames.file_and_line(tallied.program), expression
            yield _make_entry(str(op), str(rule), lines, why, tallied.calls, is_compiled=False)
        for (op, rule, lines, why), calls in list(self.compiled.items()):
            yield _make_entry(op, rule, lines, why, calls, is_compiled=True)

    # --- calls that the mode does not see: their nodes are in the graph ----------------------------------------------

    def watch(
        self, switches: Collection[str], func: Callable[..., object], args: Arguments, kwargs: Mapping[str, object]
    ) -> object:
        """Note earlier nodes of code that no mode saw, call `func`, and note the nodes that it made. The switches choose what to note."""
        nodes, before = self.nodes, node_number()
        if nodes.unseen or before != nodes.seen_up_to:  # `may_hide_some`, in less time
            self.look_at(switches, (*args, *kwargs.values()) if kwargs else args)
        result = func(*args, **kwargs)
        if node_number() != before:
            with without_torch_function():  # no mode and no tensor of the program sees what is read here
                hidden = nodes.since(before, result)
                kind = type(hidden[0]) if len(hidden) == 1 else None
                if kind in self.unaffected:
                    return result
            if hidden:
                name = getattr(func, "__name__", None) or str(func)
                self._note(switches, hidden, f"inside {name}, which torch runs as one call")
            # Only if all nodes of the class have the same name, one node shows that no switch acts on the class.
            if kind is not None and _form_of(switches, name_of(hidden[0])) is None and has_one_name(kind):
                self.unaffected.add(kind)
        return result

    def look_at(self, switches: Collection[str], values: Iterable[object]) -> None:
        """Note the nodes of code that no mode sees, as far as they are behind these arguments of a call or roots of a backward."""
        with without_torch_function():
            nodes = self.nodes.unseen_behind(values)
        if nodes:
            self._note(switches, nodes, "code that no mode sees: TorchScript or C++")

    def _note(self, switches: Collection[str], nodes: list[GraphNode], why: str) -> None:
        for node in nodes:
            name = node.name()
            if name.startswith(_SCRIPT):
                self.count("TorchScript", "", "a graph of TorchScript, which cannot be looked into")
                continue
            form = _form_of(switches, name)
            if form is not None:
                self.count(form.names[0], "", why)


def _form_of(switches: Collection[str], name: str) -> Form | None:
    """The form that makes nodes of this name, if one of the switches acts on it."""
    form = torch_forms.form_of_node(name)
    return form if form is not None and any(switch in switches for switch in form.switches) else None


def _make_entry(
    op: str, rule: str, lines: tuple[str, str, str], why: object, calls: int, is_compiled: bool
) -> Rewritten | Missed:
    return Rewritten(op, *lines, calls, rule, is_compiled) if why is None else Missed(op, *lines, calls, str(why))
