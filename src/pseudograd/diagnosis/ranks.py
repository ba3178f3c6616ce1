"""The ranks of one training: one report for all of them, and the differences between them.

A launcher, such as `torchrun -m pseudograd diagnose`, starts one command for each rank, and all commands name the same file. Each rank
writes its part beside the file. When a rank ends, it makes the file from the parts that exist; the last rank removes the parts.

The ranks see different batches, so their shares are never quite equal. Two shares differ if they are `LEAST_DIFFERENCE` apart, and further
than by chance. Processes that are no ranks of a job are not compared.
"""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from ..listen.program.files import write
from ..listen.program.follow import Part, Run
from ..wording import percent, shortened
from .records import Site

_LOCK_SECONDS = 10.0  # seconds: a lock that is older was left by a command that was killed
LEAST_DIFFERENCE = 0.2  # between the largest and the smallest share
_DEVIATIONS = 6.0  # standard deviations of a difference; many, because the elements of one batch are alike
_RANKS_SHOWN = 8
_CALL_WIDTH = 60  # characters of an expression

Key = tuple[str, str, str]  # name, where, expression
Record = TypeVar("Record")
Value = TypeVar("Value", bool, int)
Ranks = Mapping[str, Mapping[Key, Record]]  # the records of each rank
_LABELS = {
    "finding": "finding",
    "starved": "starves",
    "share": "share that is cut",
    "place": "gradient arrives",
    "backwards": "backward passes",
    "parameter": "parameters",
}


# --- parts ------------------------------------------------------------------------------------------------------------


def rank() -> tuple[int, int] | None:
    """The rank of this command, and the number of ranks; None if there is only one."""
    try:
        number, count = int(os.environ.get("RANK", "")), int(os.environ.get("WORLD_SIZE", ""))
    except ValueError:
        return None
    return (number, count) if 0 <= number < count and count > 1 else None


def _part_of(target: Path, number: int) -> Path:
    return target.with_name(f".{target.name}.rank{number}")


def forget(target: Path) -> None:
    """Remove the part of an earlier run, which may have been killed before its last rank had ended."""
    own = rank()
    if own is not None:
        with contextlib.suppress(OSError):
            _part_of(target, own[0]).unlink(missing_ok=True)


@contextlib.contextmanager
def gather_parts(target: Path, run: Run) -> Iterator[tuple[Sequence[Part], Sequence[Part]] | None]:
    """The seen and the unseen parts of all ranks that have ended, for the body to write; None if another rank has written them."""
    own_rank = rank()
    if own_rank is None:
        yield run.parts, run.unseen
        return
    number, count = own_rank
    own = _part_of(target, number)
    numbered = [
        [replace(part, rank=number if part.rank is None else part.rank) for part in parts]
        for parts in (run.parts, run.unseen)
    ]
    write("diagnose", "file", own, pickle.dumps(numbered))
    with _lock(target):
        files = [file for file in (_part_of(target, other) for other in range(count)) if _is_ours(file)]
        if own not in files:
            yield None
            return
        ranks = [pickle.loads(file.read_bytes()) for file in files]
        yield [part for parts, _ in ranks for part in parts], [part for _, unseen in ranks for part in unseen]
        if len(files) == count:
            for file in files:
                file.unlink(missing_ok=True)


def _is_ours(file: Path) -> bool:
    """Does the file exist, and does it belong to this user? It is unpickled, which runs code."""
    try:
        return file.stat().st_uid == os.getuid() if hasattr(os, "getuid") else file.is_file()
    except OSError:
        return False


@contextlib.contextmanager
def _lock(target: Path) -> Iterator[None]:
    """Hold a lock file beside the target. Goes on without the lock if it cannot be had in time."""
    lock = target.with_name(f".{target.name}.lock")
    start = time.monotonic()
    while True:
        try:
            os.close(os.open(lock, os.O_CREAT | os.O_EXCL))
            break
        except FileExistsError:
            if time.monotonic() - start > _LOCK_SECONDS:
                break
            time.sleep(0.02)
        except OSError:
            break  # the target could not be written either, and writing it gives the error
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)


# --- differences ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Difference:
    """kind: a key of `_LABELS`. name: a code, a parameter or an op. where, expression: the call. ranks: the value of each rank, which is
    a number, the share that is cut, or whether the rank has the record at all.
    """

    kind: str
    name: str
    where: str
    expression: str
    ranks: dict[str, float | int | bool]

    @property
    def ranks_text(self) -> str:
        """The ranks with their values."""
        if self.kind == "share":
            return self._shares_text()
        if not all(isinstance(value, bool) for value in self.ranks.values()):
            return shortened([f"{value:,} in {name}" for name, value in self.ranks.items()], _RANKS_SHOWN)
        has = [name for name, has_it in self.ranks.items() if has_it]
        lacks = [name for name, has_it in self.ranks.items() if not has_it]
        return f"in {listed(has)} alone" if len(has) <= len(lacks) else f"in all but {listed(lacks)}"

    def _shares_text(self) -> str:
        by_size = sorted(self.ranks, key=lambda name: self.ranks[name])
        left_out = len(by_size) - 2 if len(by_size) > _RANKS_SHOWN else 0
        shown = [by_size[0], by_size[-1]] if left_out else list(self.ranks)
        text = ", ".join(f"{percent(self.ranks[name])} in {name}" for name in shown)
        return f"{text}, {left_out} more between" if left_out else text


def lines(differences: Sequence[Difference]) -> list[tuple[str, str]]:
    """Each difference as a label and a sentence; parameters with the same sentence share it."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for difference in differences:
        key = _LABELS[difference.kind], difference.where, difference.expression, difference.ranks_text
        groups.setdefault(key, []).append(difference.name)
    return [(label, _sentence(names, *rest)) for (label, *rest), names in groups.items()]


def _sentence(names: Sequence[str], where: str, expression: str, text: str) -> str:
    call = expression if len(expression) <= _CALL_WIDTH else f"{expression[: _CALL_WIDTH - 3]}..."
    subject = " ".join(part for part in (listed(names), where, call and f"`{call}`") if part)
    return f"{subject}: {text}" if subject else text


def listed(names: Sequence[str]) -> str:
    return shortened(list(dict.fromkeys(names)), _RANKS_SHOWN)


def differences(parts: Iterable[Part]) -> list[Difference]:
    """The differences between the ranks of these parts. Those in findings come first, because they say what to do."""
    ranks: dict[str, list[Part]] = {}  # a rank may have children of its own, which are counted with it
    for part in parts:
        if part.rank is not None:
            ranks.setdefault(str(part), []).append(part)
    if len(ranks) < 2:
        return []
    counts = {name: sum(part.content["backwards"] for part in own) for name, own in ranks.items()}
    passes = list(_different("backwards", [(("", "", ""), counts)]))
    ranks = {name: own for name, own in ranks.items() if counts[name]}
    if len(ranks) < 2:
        return passes

    def index_by(field: str, key: Callable[[Any], Key]) -> dict[str, dict[Key, list[Any]]]:
        indexed: dict[str, dict[Key, list[Any]]] = {name: {} for name in ranks}
        for name, own in ranks.items():
            for record in (record for part in own for record in part.content[field]):
                indexed[name].setdefault(key(record), []).append(record)
        return indexed

    parameters = index_by("parameters", lambda name: (name, "", ""))
    if not set.intersection(*map(set, parameters.values())):  # as in a pipeline: each trains its own
        return [Difference("parameter", "", "", "", {name: len(own) for name, own in parameters.items()}), *passes]
    findings = index_by("findings", lambda finding: (finding.code, finding.where, finding.expression))
    starved = index_by("starved", lambda record: (record.parameter, "", ""))
    sites = index_by("sites", lambda site: (site.op, site.where, site.expression))
    return [
        *_different("finding", _presence(findings)),
        *_different("starved", _presence(starved, parameters)),
        *_share_differences(sites),
        *_different("place", _presence(sites)),
        *_different("parameter", _presence(parameters)),
        *passes,
    ]


def _presence(ranks: Ranks[Record], among: Ranks[Record] | None = None) -> Iterator[tuple[Key, dict[str, bool]]]:
    """For each key of any rank: which ranks have it. among: the ranks that could have it."""
    for key in dict.fromkeys(key for own in ranks.values() for key in own):
        yield key, {name: key in own for name, own in ranks.items() if among is None or key in among[name]}


def _different(kind: str, rows: Iterable[tuple[Key, Mapping[str, Value]]]) -> Iterator[Difference]:
    for key, values in rows:
        if len(set(values.values())) > 1:
            yield Difference(kind, *key, dict(values))


def _share_differences(ranks: Ranks[list[Site]]) -> Iterator[Difference]:
    """The differences in the share that is cut at a line, among the ranks at which a gradient arrives there."""
    for key in dict.fromkeys(key for own in ranks.values() for key in own):
        counts: dict[str, tuple[int, int]] = {}
        for name, own in ranks.items():
            arrived, cut = (sum(getattr(site, field) for site in own.get(key, ())) for field in ("arrived", "cut"))
            if arrived:
                counts[name] = cut, arrived
        if len(counts) > 1 and _are_apart(list(counts.values())):
            yield Difference("share", *key, {name: cut / arrived for name, (cut, arrived) in counts.items()})


def _are_apart(counts: Sequence[tuple[int, int]]) -> bool:
    """Do the largest and the smallest share differ by more than other batches and chance explain? counts: pairs (cut, arrived)."""
    by_share = sorted(counts, key=lambda count: count[0] / count[1])
    (low_cut, low_of), (high_cut, high_of) = by_share[0], by_share[-1]
    apart = high_cut / high_of - low_cut / low_of
    mean = (low_cut + high_cut) / (low_of + high_of)
    deviation = math.sqrt(mean * (1 - mean) * (1 / low_of + 1 / high_of))
    return apart >= LEAST_DIFFERENCE and apart > _DEVIATIONS * deviation
