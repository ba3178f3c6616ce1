"""What a context did: the calls it rewrote, and those it saw and could not reach. Silence never means success."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, TypeVar

from ..listen import frames
from ..listen.nodes import Ranges
from ..notebook import shown
from ..rule import Call
from ..torch_table import forms as torch_forms
from ..torch_table.private import node_number

_SCRIPT = "torch::jit::"
Key = TypeVar("Key")


@dataclass(frozen=True)
class Rewritten:
    """Calls of one op at one place that got another rule. where, user_where, expression: the line that calls torch, the program's own line
    that led there, and the source of the call, as `diagnose` names them. `compiled`: calls counts how often it was traced, not how
    often it ran, and the expression is its whole line.
    """

    op: str
    where: str
    user_where: str
    expression: str
    calls: int
    rule: str
    compiled: bool


@dataclass(frozen=True)
class Missed:
    """Matching calls that were seen and left to torch."""

    op: str
    where: str
    user_where: str
    expression: str
    calls: int
    why: str


@dataclass(frozen=True)
class Report:
    """`rewritten` and `missed`, each with the most frequent first; `str()` is the text that a person reads."""

    label: str
    rewritten: tuple[Rewritten, ...]
    missed: tuple[Missed, ...]
    is_torchs_own: bool  # a pin to the era of the installed torch

    @classmethod
    def of(cls, label: str, logs: Iterable[Log], is_torchs_own: bool) -> Report:
        done: Counter[tuple[tuple[str, str, str, str], str, bool]] = Counter()  # by place, rule, and whether compiled
        missed: Counter[tuple[tuple[str, str, str, str], str]] = Counter()
        for log in logs:
            eager = [
                (
                    (op, frames.named(call), frames.named(program), "" if call is None else call.expression),
                    rule,
                    why,
                    calls,
                    False,
                )
                for (op, rule, *_, why), (calls, call, program) in [(k, v.all) for k, v in list(log.calls.items())]
            ]
            traced = [
                ((op, *lines), rule, why, calls, True) for (op, rule, lines, why), calls in list(log.compiled.items())
            ]
            for place, rule, why, calls, is_compiled in (*eager, *traced):
                if why is None:
                    done[place, rule, is_compiled] += calls
                else:
                    missed[place, why] += calls
        return cls(
            label,
            tuple(
                Rewritten(*place, calls=n, rule=rule, compiled=compiled)
                for (place, rule, compiled), n in _by_calls(done)
            ),
            tuple(Missed(*place, n, why) for (place, why), n in _by_calls(missed)),
            is_torchs_own,
        )

    def _repr_html_(self) -> str:
        return shown(str(self))

    def __str__(self) -> str:
        if self.is_torchs_own and not self.rewritten and not self.missed:
            return f"{self.label}: this torch is of that era, nothing is rewritten"
        eager = sum(site.calls for site in self.rewritten if not site.compiled)
        compiled = sum(site.calls for site in self.rewritten if site.compiled)
        places = len({site.where for site in self.rewritten})
        head = f"{self.label}: {_counted(eager, 'call')} rewritten at {_counted(places, 'line')}"
        if compiled:
            head += f", {compiled:,} traced into compiled code"
        lines = [head]
        for site in self.rewritten:
            times = f"{site.calls:,}" if not site.compiled else "compiled"
            lines.append(f"  {times:>9}  {site.op:<12} {site.rule:<16} {_line(site)}")
        if not self.rewritten:
            lines.append("  nothing was rewritten: no matching call was recorded for a backward inside the context")
        if self.missed:
            calls = sum(site.calls for site in self.missed)
            lines.append(f"not reached, so with torch's own rule: {_counted(calls, 'call')}")
            lines += [f"  {site.calls:>9,}  {site.op:<12} {_line(site)}: {site.why}" for site in self.missed]
        return "\n".join(lines)


def joined(reports: Sequence[Report]) -> Report:
    """Those of one context in several processes."""
    first = reports[0]
    done: Counter[Rewritten] = Counter()
    missed: Counter[Missed] = Counter()
    for report in reports:
        for one in report.rewritten:
            done[dataclasses.replace(one, calls=0)] += one.calls
        for left in report.missed:
            missed[dataclasses.replace(left, calls=0)] += left.calls
    return dataclasses.replace(
        first,
        rewritten=tuple(dataclasses.replace(one, calls=n) for one, n in _by_calls(done)),
        missed=tuple(dataclasses.replace(one, calls=n) for one, n in _by_calls(missed)),
    )


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def _line(site: Rewritten | Missed) -> str:
    is_theirs = site.user_where in (site.where, "?")
    return site.where if is_theirs else f"{site.where}, in the program: {site.user_where}"


def _by_calls(counts: Counter[Key]) -> list[tuple[Key, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], str(item[0])))


def _identity(frame: FrameType | None) -> tuple[int, int]:
    return (0, 0) if frame is None else (id(frame.f_code), frame.f_lasti)


class Tallied:
    """How often a call was made, and the two lines of it. They keep the code alive of which `Log.calls` has the id, because the hash of a
    code object costs more than the way to it.
    """

    __slots__ = ("call", "calls", "program")

    def __init__(self, call: frames.Point | None, program: frames.Point | None) -> None:
        self.calls = 0
        self.call = call
        self.program = program

    @property
    def all(self) -> tuple[int, frames.Point | None, frames.Point | None]:
        return self.calls, self.call, self.program


class Log:
    """What one thread did inside one context."""

    def __init__(self) -> None:
        self.calls: dict[tuple[Any, ...], Tallied] = {}  # by op, rule, place and reason
        self.compiled: Counter[tuple[str, str, tuple[str, str, str], str | None]] = Counter()
        self.nodes = Ranges()

    def count(self, op: str, rule: str, why: str | None) -> Tallied:
        """why: torch's own had to do; None: it was rewritten."""
        frame = frames.calling_frame()
        program = frames.program_frame(frame)
        key = op, rule, *_identity(frame), *_identity(program), why
        known = self.calls.get(key)
        if known is None:
            known = self.calls[key] = Tallied(frames.point(frame), frames.point(program))
        known.calls += 1
        return known

    def count_compiled(self, op: str, rule: str, lines: tuple[str, str, str], why: str | None) -> None:
        self.compiled[op, rule, lines, why] += 1

    # --- what the mode cannot reach shows as a node of the graph -----------------------------------------------------

    def watched(self, mode: object, func: Any, args: Any, kwargs: Any) -> Any:
        """Call `func`; find the matching nodes that it made, or that code made which no mode sees (TorchScript, C++)."""
        nodes, before = self.nodes, node_number()
        if nodes.unseen or before != nodes.seen_up_to:
            self.look_at(mode, (*args, *kwargs.values()) if kwargs else args)
        result = func(*args, **kwargs)
        if node_number() != before:
            made = nodes.since(before, result)
            if made:
                self._note(mode, made, f"inside {_name(func)}, which torch runs as one call")
        return result

    def look_at(self, mode: object, values: Iterable[object]) -> None:
        """A call or a backward takes these values: which of them did code make that no mode sees?"""
        nodes = self.nodes.unseen_behind(values)
        if nodes:
            self._note(mode, nodes, "code that no mode sees: TorchScript or C++")

    def _note(self, mode: Any, nodes: list[Any], why: str) -> None:
        for node in nodes:
            name = node.name()
            if name.startswith(_SCRIPT):
                self.count("TorchScript", "", "a graph of TorchScript, which cannot be looked into")
                continue
            form = torch_forms.form_of_node(name)
            if form is not None and any(switch in mode.replacements for switch in form.switches):
                self.count(form.names[0], "", why)


def _name(func: object) -> str:
    return getattr(func, "__name__", None) or str(func)


def shown_rule(call: Call) -> str:
    edge = call.edge
    return call.rule.name if edge is None else f"{call.rule.name}/{edge}"
