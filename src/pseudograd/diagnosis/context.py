"""What the user holds: a context around real training code, and what it found."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..errors import must
from ..listen import functions
from ..listen.around import backwards, swaps
from ..listen.harmless import harmless, leave, listen
from ..listen.program.files import checked_file, write
from ..torch_table import forms as torch_forms  # noqa: F401  (its functions are looked up before any mode is entered)
from ..torch_table.eras import installed_era
from ..torch_table.private import node_creation_hook
from .count.dead_units import calm_of
from .count.history import History, histories
from .count.norms import Norm, norms_of
from .count.not_heard import Rest
from .count.recorder import Recorder, Watch
from .count.swallowed import Stalled
from .force_eager import NOT_COMPILED, eagerly
from .judge.copied import copied
from .judge.deliberate import Deliberate
from .judge.findings import Evidence, described, found
from .judge.sensitivity import Sensing, Sensitivity, every_of
from .judge.stalled import Stalls
from .judge.starving import Starving
from .judge.whatif import Asking, Changed, questions
from .records import Copied, Finding, Partly, Site, Starved, Structural, plain, site_of, structural_of


class Diagnosis:
    """A context; when it has ended, what it found. Enter it once."""

    def __init__(
        self,
        model: nn.Module | None,
        whatif: Mapping[str, object] | None,
        detail: str,
        ignore: Sequence[str] = (),
        sensitivity: int | bool = False,
    ) -> None:
        if model is not None and not isinstance(model, nn.Module):
            remedy = "Give the module whose parameters are trained, or nothing: modules that run are found"
            raise TypeError(must("diagnose", "model", "be a torch.nn.Module", model, remedy))
        if detail not in ("full", "counts"):
            raise ValueError(must("diagnose", "detail", "be 'full' or 'counts'", detail))
        self._deliberate = Deliberate(ignore)
        self._recorder = Recorder(detail == "full")
        self.noted = self._recorder.noted
        leaves = self._recorder.leaves
        self._stalls = Stalls(
            lambda tensor: next(iter(leaves.named(leaves.set_of(tensor))), None), self.noted, lambda: leaves.backwards
        )
        if self._recorder.is_full:
            self._recorder.optimisers.watching.append(self._stalls)
        if model is not None:
            self._recorder.leaves.add_module(model, is_given=True)
        asked = questions(whatif)
        every = every_of(sensitivity)
        self._sensing = Sensing(every, self._recorder.tally_of, self._deliberate.place) if every else None
        self._asking = Asking(asked, leaves, self._sensing) if asked or self._sensing else None
        self._recorder.asking = self._asking
        self._stack: contextlib.ExitStack | None = None
        self._has_ended = False
        self._kept: dict[str, Any] = {}

    def __enter__(self) -> Diagnosis:
        if self._stack is not None or self._has_ended:
            raise RuntimeError("diagnose: a diagnosis must be entered once, got a second time. Make a new one.")
        if torch.compiler.is_compiling():
            raise RuntimeError(NOT_COMPILED)
        installed_era()  # measured now: the report may be made at the end of the process, when no thread starts
        recorder = self._recorder
        with contextlib.ExitStack() as stack:  # unwinds what was entered, if something of it raises
            stack.enter_context(eagerly())
            stack.enter_context(recorder.optimisers)
            stack.callback(setattr, recorder, "is_on", False)
            listen(recorder.noted)
            stack.callback(leave, recorder.noted)
            swaps.subscribe(recorder.let_go)
            stack.callback(swaps.unsubscribe, recorder.let_go)
            backwards.subscribe(recorder.around_backward)
            stack.callback(backwards.unsubscribe, recorder.around_backward)
            if node_creation_hook is not None:
                stack.enter_context(node_creation_hook(recorder.made))
            stack.enter_context(functions.watched(recorder.applied))
            watch = Watch(recorder)
            recorder.optimisers.rest = rest = Rest(watch)
            stack.enter_context(watch)
            stack.callback(rest.end, is_last=True)
            self._stack = stack.pop_all()
        recorder.is_on = True
        return self

    def __exit__(self, *exception: object) -> None:
        assert self._stack is not None, "entered"
        self._has_ended = True
        self._close(self._stack)
        self._stack = None

    @harmless("the end of the context")
    def _close(self, stack: contextlib.ExitStack) -> None:
        stack.close()
        self._recorder.take_off_hooks()
        self._recorder.leaves.name_all()  # now, as what holds them may be gone when somebody reads this

    def stop_listening(self) -> None:
        """As at the end of the context, but from any thread and wherever the program is: what was entered stays, and hears nothing."""
        self._recorder.is_on, self._has_ended = False, True

    def after_backward(self, act: Callable[[int], None]) -> None:
        """Call act(number of backward passes so far) after each. An Exception of it becomes a line of the report: see `errors`."""
        self._recorder.after_backward = act

    # --- what it found ------------------------------------------------------------------------------------------------

    @property
    def backwards(self) -> int:
        """How many backward passes were recorded."""
        return self._recorder.backwards

    @property
    def sites(self) -> list[Site]:
        """Every op that a gradient arrived at, in the order in which a backward meets them."""
        return self._once("sites", self._sites)

    def _sites(self) -> list[Site]:
        found = [site_of(tally, self._deliberate.place(tally.place)) for tally in self._tallies()]
        return sorted(found, key=lambda site: site.order)

    def _tallies(self) -> list[Any]:
        return [tally for tally in self._recorder.tallies.values() if tally.calls]

    @property
    def structural(self) -> list[Structural]:
        """Values that leave the graph with a parameter upstream; those that a loss depended on first."""
        return self._once("structural", self._structural)

    def _structural(self) -> list[Structural]:
        leaves = self._recorder.leaves
        cuts = [cut for cut in self._recorder.influence.cuts.values() if cut.upstream]
        return sorted(
            (structural_of(cut, leaves, self._deliberate.place(cut.place)) for cut in cuts),
            key=lambda one: {True: 0, None: 1, False: 2}[one.reaches_loss],
        )

    @property
    def starved(self) -> list[Starved]:
        """Parameters that got no gradient, or zeros alone, in every recorded backward."""
        ignored = self._deliberate.parameter
        return self._once("starved", lambda: [one for one in self._starving().starved() if not ignored(one.parameter)])

    @property
    def partly(self) -> list[Partly]:
        """Parameters of which some entries got no gradient in any recorded backward."""
        ignored = self._deliberate.parameter
        return self._once("partly", lambda: [one for one in self._starving().partly() if not ignored(one.parameter)])

    @property
    def calm(self) -> list[str]:
        """What gets no gradient on purpose, such as a target net, or as is natural, such as the words that no batch held."""
        return self._once("calm", lambda: [*self._starving().calm(), *calm_of(self.partly)])

    def _starving(self) -> Starving:
        return Starving(self._recorder, self.sites, self.structural)

    @property
    def findings(self) -> list[Finding]:
        """What a person should know, in the order in which a backward meets it."""
        return self._once("findings", self._findings)

    def _findings(self) -> list[Finding]:
        recorder = self._recorder
        return found(
            Evidence(
                self.sites,
                self.starved,
                list(recorder.values.values()),
                list(recorder.tallies.values()),
                recorder.leaves,
                self._deliberate,
                self._stalls,
                self.partly,
                self.sensitivity,
            )
        )

    @property
    def copied(self) -> list[Copied]:
        """Classes of the program that are ops of this library by another name, and the line that replaces each."""
        return self._once("copied", lambda: copied(self._tallies()))

    @property
    def muted(self) -> int:
        """Findings that a comment at their line, or `ignore`, has said to be deliberate."""
        _ = self.findings  # they are counted where they are made
        return self._deliberate.muted

    @property
    def norms(self) -> list[Norm]:
        """Of the gradient of each parameter, the one next to the loss first; none with detail="counts"."""
        measured = [leaf for _, leaf in self._recorder.leaves if leaf.sizes is not None]
        return self._once("norms", lambda: norms_of(measured))

    @property
    def stalled(self) -> list[Stalled]:
        """Of each parameter that an optimiser stepped, how much of what had a gradient did not move; none with detail="counts"."""
        return self._once("stalled", lambda: [one.record for one in self._stalls.watched() if not one.has_master])

    @property
    def sensitivity(self) -> list[Sensitivity]:
        """How much of the gradient is convention, by family, line and parameter; none unless it was asked for."""
        sensing = self._sensing
        return [] if sensing is None else self._once("sensitivity", sensing.records)

    @property
    def unsensed(self) -> dict[str, int]:
        """Why the sensitivity was not asked in some backward passes, and in how many."""
        return {} if self._sensing is None else dict(self._sensing.refused)

    @property
    def history(self) -> list[History]:
        """Of each parameter the norm, the zeros, the convention and the stalled share by step, the one next to the loss first."""
        measured = [leaf for _, leaf in self._recorder.leaves if leaf.sizes is not None]
        return self._once("history", lambda: histories(measured, self.sensitivity, self.stalled))

    @property
    def whatif(self) -> dict[str, list[Changed]]:
        """Of each parameter, by the name of the what-if; "as it is" is what the program computed."""
        return {} if self._asking is None else self._asking.answers()

    @property
    def inexact(self) -> dict[str, list[str]]:
        """Why a what-if has no answer."""
        return {} if self._asking is None else {q.name: sorted(q.inexact) for q in self._asking.asked if q.inexact}

    @property
    def untouched(self) -> list[str]:
        """The what-ifs that are about no op that a gradient arrived at: they change nothing."""
        return [] if self._asking is None else self._asking.untouched

    @property
    def errors(self) -> list[str]:
        """What of this diagnosis failed, so that its numbers are incomplete. The program was left alone."""
        return self._recorder.noted.lines

    @property
    def parameters(self) -> list[str]:
        """The names of those that were met."""
        leaves = self._recorder.leaves
        return [leaf.name for _, leaf in leaves] + [
            leaf.name for _, crowd in leaves.crowds.values() for leaf in crowd.members.values()
        ]

    def _once(self, name: str, compute: object) -> Any:
        """Lists are made once, when the context has ended; inside it they show what has happened so far."""
        if not self._has_ended:
            return self._made(compute) or []
        if name not in self._kept:
            self._kept[name] = self._made(compute) or []
        return self._kept[name]

    @harmless("the report")
    def _made(self, compute: Any) -> object:
        return compute()

    def to_json(self) -> dict[str, Any]:
        """All of it, in plain lists, dictionaries and numbers."""
        return {
            "kind": "pseudograd diagnose",
            "torch": torch.__version__,
            "era": installed_era(),
            "backwards": self.backwards,
            "findings": [plain(one) for one in self.findings],
            "kinds": described(self.findings),
            "muted": self.muted,
            "starved": [plain(one) for one in self.starved],
            "partly": [plain(one) for one in self.partly],
            "calm": self.calm,
            "copied": [plain(one) for one in self.copied],
            "sites": [plain(one) for one in self.sites],
            "structural": [plain(one) for one in self.structural],
            "norms": [plain(one) for one in self.norms],
            "whatif": {name: [plain(one) for one in rows] for name, rows in self.whatif.items()},
            "inexact": self.inexact,
            "untouched": self.untouched,
            "stalled": [plain(one) for one in self.stalled],
            "sensitivity": [plain(one) for one in self.sensitivity],
            "unsensed": self.unsensed,
            "history": [plain(one) for one in self.history],
            "errors": self.errors,
        }

    def metrics(self) -> dict[str, float]:
        """A flat dict for any logger: "pseudograd/findings/cut", "pseudograd/cut/gate.py:7", "pseudograd/norm/fc.weight" and so on."""
        from .tell.metrics import metrics_of

        return metrics_of(self)

    def __str__(self) -> str:
        from .tell.text import text

        return text(self)

    def _repr_html_(self) -> str:
        from ..notebook import framed
        from .tell.page import page

        return framed(page(self))

    def write_html(self, file: str | Path) -> Path:
        """One self-contained page. Raises ValueError where it cannot be written; an older file stays until the new one is whole."""
        from .tell.page import page

        target = checked_file("diagnose", "file", Path(file))
        write("diagnose", "file", target, page(self))
        return target
