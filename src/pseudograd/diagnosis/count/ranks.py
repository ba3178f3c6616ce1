"""A launcher that starts one command for each rank, as `torchrun -m pseudograd diagnose`: all of them name one file, which has them all.

Each rank lays its part beside the file. Whoever ends later puts together what is there; the last removes the parts.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ...listen.program.files import write
from ...listen.program.follow import Part, Run

_PATIENCE = 10.0  # seconds: a lock that is older was left by a command that was killed


def rank() -> tuple[int, int] | None:
    """Of this command, and how many there are; None where nobody started several."""
    try:
        number, count = int(os.environ.get("RANK", "")), int(os.environ.get("WORLD_SIZE", ""))
    except ValueError:
        return None
    return (number, count) if 0 <= number < count and count > 1 else None


def _part_of(target: Path, number: int) -> Path:
    return target.with_name(f".{target.name}.rank{number}")


def forget(target: Path) -> None:
    """An earlier run may have been killed before its last rank had ended."""
    here = rank()
    if here is not None:
        with contextlib.suppress(OSError):
            _part_of(target, here[0]).unlink(missing_ok=True)


@contextlib.contextmanager
def of_all(target: Path, done: Run) -> Iterator[tuple[Sequence[Part], Sequence[Part]] | None]:
    """What has been seen and what not, of all ranks that have ended; to be written to the file inside. None: that was done already."""
    here = rank()
    if here is None:
        yield done.parts, done.unseen
        return
    number, count = here
    own = _part_of(target, number)
    named = [
        [replace(part, rank=number if part.rank is None else part.rank) for part in some]
        for some in (done.parts, done.unseen)
    ]
    write("diagnose", "file", own, pickle.dumps(named))
    with _alone(target):
        files = [file for file in (_part_of(target, other) for other in range(count)) if _is_ours(file)]
        if own not in files:
            yield None
            return
        found = [pickle.loads(file.read_bytes()) for file in files]
        yield [part for parts, _ in found for part in parts], [part for _, unseen in found for part in unseen]
        if len(files) == count:
            for file in files:
                file.unlink(missing_ok=True)


def _is_ours(file: Path) -> bool:
    """Is it there, and not somebody else's? It is read as Python objects."""
    try:
        return file.stat().st_uid == os.getuid() if hasattr(os, "getuid") else file.is_file()
    except OSError:
        return False


@contextlib.contextmanager
def _alone(target: Path) -> Iterator[None]:
    lock = target.with_name(f".{target.name}.lock")
    start = time.monotonic()
    while True:
        try:
            os.close(os.open(lock, os.O_CREAT | os.O_EXCL))
            break
        except FileExistsError:
            if time.monotonic() - start > _PATIENCE:
                break
            time.sleep(0.02)
        except OSError:
            break  # the target could not be written either, which is said there
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
