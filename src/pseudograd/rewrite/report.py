"""What a context did: the calls it rewrote, and those it saw and could not reach. Silence never means success."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from types import CodeType
from typing import Any

from .. import torch_forms
from ..trace import frames
from ..trace.nodes import Ranges

_SCRIPT = "torch::jit::"


@dataclass(frozen=True)
class Rewritten:
    """Calls of one op at one line that got another rule. `compiled`: calls counts how often it was traced, not how often it ran."""

    op: str
    rule: str
    where: str
    calls: int
    compiled: bool


@dataclass(frozen=True)
class Missed:
    """Matching calls that were seen and left to torch."""

    op: str
    why: str
    where: str
    calls: int


@dataclass(frozen=True)
class Report:
    """`rewritten` and `missed`, each with the most frequent first; `str()` is the text that a person reads."""

    label: str
    rewritten: tuple[Rewritten, ...]
    missed: tuple[Missed, ...]
    is_torchs_own: bool = False  # a pin to the era of the installed torch

    @classmethod
    def of(cls, label: str, logs: Iterable[Log], is_torchs_own: bool = False) -> Report:
        done: dict[tuple[str, str, str, bool], int] = {}
        missed: dict[tuple[str, str, str], int] = {}
        for log in logs:
            for (op, rule, code, line, why), calls in list(log.calls.items()):
                where = frames.shown(code, line)
                if why is None:
                    done[op, rule, where, False] = done.get((op, rule, where, False), 0) + calls
                else:
                    missed[op, why, where] = missed.get((op, why, where), 0) + calls
            for (op, rule, where, why), calls in list(log.compiled.items()):
                if why is None:
                    done[op, rule, where, True] = done.get((op, rule, where, True), 0) + calls
                else:
                    missed[op, why, where] = missed.get((op, why, where), 0) + calls
        return cls(
            label,
            tuple(Rewritten(op, rule, where, n, c) for (op, rule, where, c), n in _by_calls(done)),
            tuple(Missed(op, why, where, n) for (op, why, where), n in _by_calls(missed)),
            is_torchs_own,
        )

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
            lines.append(f"  {times:>9}  {site.op:<12} {site.rule:<16} {site.where}")
        if not self.rewritten:
            lines.append("  nothing was rewritten: no matching call was recorded for a backward inside the context")
        if self.missed:
            calls = sum(site.calls for site in self.missed)
            lines.append(f"not reached, so with torch's own rule: {_counted(calls, 'call')}")
            lines += [f"  {site.calls:>9,}  {site.op:<12} {site.where}: {site.why}" for site in self.missed]
        return "\n".join(lines)


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def _by_calls(counts: dict[Any, int]) -> list[tuple[Any, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], str(item[0])))


class Log:
    """What one thread did inside one context."""

    def __init__(self) -> None:
        self.calls: dict[tuple[str, str, CodeType | str, int, str | None], int] = {}
        self.compiled: dict[tuple[str, str, str, str | None], int] = {}
        self.nodes = Ranges()

    def count(self, spelling: Any, call: Any, why: str | None) -> None:
        self._add(spelling.name, shown_rule(call), why, 3)

    def _add(self, op: str, rule: str, why: str | None, depth: int) -> None:
        frame = frames.calling_frame(depth + 1)
        code, line = (frame.f_code, frame.f_lineno) if frame else ("?", 0)
        key = op, rule, code, line, why
        self.calls[key] = self.calls.get(key, 0) + 1

    def count_compiled(self, op: str, rule: str, where: str, why: str | None) -> None:
        key = op, rule, where, why
        self.compiled[key] = self.compiled.get(key, 0) + 1

    # --- what the mode cannot reach shows as a node of the graph -----------------------------------------------------

    def watched(self, mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
        """Call `func`; find the matching nodes that it made, or that code made which no mode sees (TorchScript, C++)."""
        if self.nodes.may_hide_some():
            self.look_at(mode, (*args, *kwargs.values()) if kwargs else args)
        result, made = self.nodes.of_call(func, args, kwargs)
        if made:
            self._note(mode, made, f"inside {_name(func)}, which torch runs as one call")
        return result

    def look_at(self, mode: Any, values: Iterable[Any]) -> None:
        """A call or a backward takes these values: which of them did code make that no mode sees?"""
        nodes = self.nodes.unseen_behind(values)
        if nodes:
            self._note(mode, nodes, "code that no mode sees: TorchScript or C++")

    def _note(self, mode: Any, nodes: list[Any], why: str) -> None:
        for node in nodes:
            name = node.name()
            if name.startswith(_SCRIPT):
                self._add("TorchScript", "", "a graph of TorchScript, which cannot be looked into", 2)
                continue
            form = torch_forms.form_of_node(name)
            if form is not None and any(switch in mode.replacements for switch in form.switches):
                self._add(form.names[0], "", why, 2)


def _name(func: Any) -> str:
    return getattr(func, "__name__", None) or str(func)


def shown_rule(call: Any) -> str:
    edge = call.edge
    return call.rule.name if edge is None else f"{call.rule.name}/{edge}"
