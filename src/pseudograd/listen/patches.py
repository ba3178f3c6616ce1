"""Everything of torch and of Python that this library ever replaces or adds to: what, when and for how long.

`docs/override.md` lists the same rows, and `pseudograd doctor` shows which of them are applied now. Nothing else is replaced anywhere.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

_MISSING = object()
PATCHES: list[Patch] = []


class Patch:
    """An attribute that we replace, or an entry that we add to a list.

    name: the dotted name of the attribute, or the list and the entry.
    why: what needs the change.
    until: when the change ends.
    is_there: for an entry, is_there() says whether the list has it; None for an attribute.
    """

    def __init__(self, name: str, why: str, until: str, is_there: Callable[[], bool] | None = None) -> None:
        self.name, self.why, self.until = name, why, until
        self._path, _, self.attribute = name.rpartition(".")
        self._lock = threading.RLock()
        self._replacement: object = None
        self._hidden: object = None
        self._is_there = is_there
        self._owner: Any = None
        PATCHES.append(self)

    def apply(self, replace: Callable[[Any], object]) -> None:
        apply_all({self: replace})

    def remove(self) -> None:
        remove_all([self])

    @property
    def is_applied(self) -> bool:
        if self._is_there is not None:
            return self._is_there()
        return self._replacement is not None and vars(self._owner).get(self.attribute) is self._replacement


# A context enters and leaves at every step of some programs, so both go through all patches in one call.


def apply_all(replacements: Mapping[Patch, Callable[[Any], object]]) -> None:
    """Replace each attribute by replace(the attribute that was there, or None if the owner inherits it).

    Nothing happens if ours is there already, or if the module is not imported or does not have the owner.
    """
    for patch, replace in replacements.items():
        with patch._lock:
            owner, parts = patch._owner, patch._path.split(".")
            end = len(parts)
            while owner is None and end:  # the longest path that is a module, and then its attributes
                owner = sys.modules.get(".".join(parts[:end]))
                if owner is not None:
                    for part in parts[end:]:
                        owner = getattr(owner, part, None)
                    break
                end -= 1
            if owner is None:
                continue
            hidden = vars(owner).get(patch.attribute, _MISSING)
            if patch._replacement is None or hidden is not patch._replacement:
                patch._owner, patch._hidden = owner, hidden
                patch._replacement = replace(None if hidden is _MISSING else hidden)
                setattr(owner, patch.attribute, patch._replacement)


def remove_all(patches: Iterable[Patch]) -> None:
    """Put back what was there before. If somebody has replaced ours since, nothing changes, and ours does nothing when it is called."""
    for patch in patches:
        with patch._lock:
            owner, replacement = patch._owner, patch._replacement
            if replacement is not None and vars(owner).get(patch.attribute) is replacement:
                if patch._hidden is _MISSING:
                    delattr(owner, patch.attribute)
                else:
                    setattr(owner, patch.attribute, patch._hidden)
                patch._owner = patch._replacement = patch._hidden = None


# The modules of our frames between a call of the program and torch. `harmless` moves their warnings to the line of the program, where the
# program's filters apply. A filter of ours lets them pass until then.
BETWEEN = re.compile(r"pseudograd(_upgrade)?\.|torch\.overrides$")
_FILTER = ("always", None, Warning, BETWEEN, 0)


def keep_filter_in_front(change: Callable[[], object]) -> None:
    """change: Python's own function, called after each change of the filters. The program may have set another list of filters."""
    change()
    filters = vars(warnings)["filters"]
    if _FILTER not in filters[:1]:
        filters.insert(0, _FILTER)
        filters[1:] = [entry for entry in filters[1:] if entry != _FILTER]


class SharedPatches:
    """Replacements and filters of warnings that are in effect while this is entered in any thread."""

    def __init__(self, *filters: object) -> None:
        self._filters = filters
        self.replacements: dict[Patch, Callable[[Any], object]] = {}
        self._lock = threading.RLock()
        self._count = 0

    def __enter__(self) -> None:
        with self._lock:
            if not self._count:
                apply_all(self.replacements)
                vars(warnings)["filters"][:0] = self._filters
            self._count += 1

    def __exit__(self, *exception: object) -> None:
        with self._lock:
            self._count -= 1
            if not self._count:
                remove_all(self.replacements)
                for entry in self._filters:
                    while entry in warnings.filters:
                        vars(warnings)["filters"].remove(entry)


in_contexts = SharedPatches(_FILTER)  # entered by each `override`, `pin_edge`, diagnosis and listener
while_listening = SharedPatches()  # entered by each listener


def _awaits(module: str) -> Callable[[], bool]:
    """Does an import hook of ours wait for this module?"""
    return lambda: any(getattr(finder, "awaits", None) == module for finder in sys.meta_path)


def table() -> str:
    """The patches as docs/override.md lists them: grouped by their end, and within a group by their reason."""
    names_by_end: dict[str, dict[str, list[str]]] = {}
    for patch in PATCHES:
        names_by_end.setdefault(patch.until, {}).setdefault(patch.why, []).append(f"`{patch.name}`")
    parts = []
    for until, names_by_why in names_by_end.items():
        lines = [f"- {', '.join(names)}: {why}" for why, names in names_by_why.items()]
        parts.append("\n".join([f"Until {until}:", "", *lines]))
    return "\n\n".join(parts)


def status() -> list[dict[str, str]]:
    return [{"name": patch.name, "until": patch.until} for patch in PATCHES if patch.is_applied]


# --- the rows ---------------------------------------------------------------------------------------------------------

_CONTEXTS = "the last `override`, `pin_edge` or diagnosis has ended"
_DIAGNOSES = "the last diagnosis has ended"
_PROCESS = "the process ends"

IMPORT_OF_DYNAMO = Patch(
    "sys.meta_path: torch._dynamo",
    "tells Dynamo of this library when the program imports it",
    "torch._dynamo has been imported",
    _awaits("torch._dynamo"),
)
BACKWARD = [
    Patch(f"{owner}._engine_run_backward", "contexts act on a forward inside a backward", _CONTEXTS)
    for owner in ("torch.autograd.graph", "torch.autograd")
]
CHECKPOINTS = [
    Patch(f"torch.utils.checkpoint.{name}", "a checkpoint recomputes under the contexts of its forward", _CONTEXTS)
    for name in ("CheckpointFunction._backward_cls.run_function", "_CheckpointFrame.recompute_fn")
]
FAST_PATHS = [
    Patch(f"torch.nn.modules.{name}.forward", "torch keeps its fast path under a mode", _CONTEXTS)
    for name in (
        "activation.MultiheadAttention",
        "transformer.TransformerEncoderLayer",
        "transformer.TransformerEncoder",
    )
]
HAS_TORCH_FUNCTION = Patch(
    "torch.overrides.has_torch_function",
    "torch keeps its fast path under a mode",
    "the forward of such a module has ended",
)
APPLY = Patch(
    "torch.autograd.Function.apply",
    "notes that code inside a custom Function makes no graph",
    f"{_DIAGNOSES} and the last run of `compare` has ended",
)
SWAP_TENSORS = Patch(
    "torch.utils.swap_tensors", "drops our weak references: torch swaps no tensor that has one", _DIAGNOSES
)
PARTS_TO_COMPILE = Patch(
    "torch._higher_order_ops.utils.setup_compilation_env",
    "lets `torch.cond` and its like compile their parts",
    _DIAGNOSES,
)
_LOCATED = "a warning is located at the line of the program"
SHOW_WARNING = Patch("warnings._showwarnmsg", _LOCATED, _CONTEXTS)
FILTER = Patch(
    "warnings.filters: pseudograd",
    _LOCATED,
    _CONTEXTS,
    lambda: _FILTER in warnings.filters,
)
FILTERS_CHANGE = Patch(
    next(f"warnings.{name}" for name in ("_filters_mutated_lock_held", "_filters_mutated") if hasattr(warnings, name)),
    _LOCATED,
    _CONTEXTS,
)
ZERO_GRAD = Patch(
    "torch.optim.Optimizer.zero_grad",
    "a diagnosis does not record its calls, and no mode outlives a context that another thread ended",
    _DIAGNOSES,
)
HOOKS_OF_STEPS = [
    Patch(
        f"torch.optim.optimizer._global_optimizer_{when}_hooks.values",
        "a diagnosis may begin and end while another thread steps",
        _DIAGNOSES,
    )
    for when in ("pre", "post")
]
THREAD_START = Patch(
    "threading.Thread.start",
    "`run`, `bisect` and `upgrade` reach the threads of a program, a pin of pytest counts the calls in those of a test",
    "the program has ended, or the test",
)
CALLS_IN_COMPILED_CODE = [
    Patch(
        f"torch._dynamo.variables.higher_order_ops.{name}.call_function",
        "contexts act inside a compiled checkpoint",
        _PROCESS,
    )
    for name in ("CheckpointHigherOrderVariable", "ScanHigherOrderVariable")
]
# In a program that a command runs: `pseudograd diagnose train.py`, `run`, `bisect` and `upgrade`.
FOLDER = Patch(
    "PYTHONPATH: sitecustomize",
    "each python process reports to the command",
    "the command has ended",
    lambda: "pseudograd-" in os.environ.get("PYTHONPATH", ""),
)
IMPORT_OF_TORCH = Patch(
    "sys.meta_path: torch",
    "the command begins when torch has been imported",
    "torch has been imported",
    _awaits("torch"),
)
_WRITTEN = "the report is written before the process ends"
EXIT = Patch("os._exit", _WRITTEN, _PROCESS)
SET_SIGNAL, GET_SIGNAL = (Patch(f"signal.{name}", _WRITTEN, _PROCESS) for name in ("signal", "getsignal"))
BOOTSTRAP = Patch(
    "multiprocessing.process.BaseProcess._bootstrap", "processes that load data are not followed", _PROCESS
)
COMPILE, MODULE_CALL = (
    Patch(name, "`upgrade --routes` runs a program's modules as compiled blocks", _PROCESS)
    for name in ("torch.compile", "torch.nn.Module.__call__")
)
