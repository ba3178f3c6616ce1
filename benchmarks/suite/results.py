"""A results file, as `speed.py` writes it, and the machine that it is from. No names of hosts, users or folders."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pseudograd import kernels

from .cases import Case

FOLDER = Path(__file__).resolve().parent.parent / "results"
Record = dict[str, Any]  # as a results file holds it
Measured = dict[str, Record]  # of a case, by route


@dataclass(frozen=True)
class Run:
    """promises: records with their case, the measured value and whether it holds."""

    when: str
    selection: str
    rounds: int
    machine: Record
    peers: dict[str, str]
    missing: dict[str, str]
    cases: dict[Case, Measured]
    promises: tuple[Record, ...]


def load_run(path: Path) -> Run:
    """ValueError, in one line, if it is no such file."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        cases = {Case(**part["case"]): part["routes"] for part in stored["cases"]}
        promises = tuple({**part, "case": Case(**part["case"])} for part in stored["promises"])
        rest = {name: stored[name] for name in ("when", "selection", "rounds", "machine", "peers", "missing")}
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: is not a results file of benchmarks/speed.py") from error
    return Run(**rest, cases=cases, promises=promises)


def newest() -> Path | None:
    """The file in benchmarks/results that was measured last."""
    times = {path: load_run(path).when for path in FOLDER.glob("*.json")}
    return max(times, key=lambda path: times[path]) if times else None


# --- the machine ----------------------------------------------------------------------------------------------------


def describe_machine() -> Record:
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "memory_gib": _memory(),
        "huge_pages": _huge_pages(),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "os": _system(),
        "compiler": _compiler(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "kernels": {row["kernel"]: row["state"] for row in kernels.status()},
    }


def has_native_kernels() -> bool:
    return any(row["kernel"] == "native" and row["state"] == "active" for row in kernels.status())


def machine_in_words(machine: Record) -> list[str]:
    """A line for each thing that a number may depend on."""
    memory = "memory unknown" if machine["memory_gib"] is None else f"{machine['memory_gib']} GiB"
    load = "" if machine["load"] is None else f"; load of the machine when it began: {machine['load']:g}"
    native, huge_pages = machine["kernels"].get("native", "not active"), machine.get("huge_pages") or "none"
    return [
        f"{machine['cpu']}, {machine['cores']} cores ({machine['vectors']}), {memory}, {machine['os']}",
        f"torch {machine['torch']}, Python {machine['python']}, {machine['compiler'] or 'no C++ compiler'}",
        f"native kernels {native}; huge pages: {huge_pages}{load}",
    ]


def _cpu() -> str:
    try:
        block = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0]
        fields = dict(map(str.strip, line.split(":", 1)) for line in block.splitlines() if ":" in line)
        model = fields["model name"]
        if "model" in fields:  # virtual machines often have no more than "Xeon Processor" as a name
            model += f" (family {fields.get('cpu family', '?')}, model {fields['model']})"
    except (OSError, KeyError):
        model = platform.processor() or platform.machine()
    return model


def _memory() -> int | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)
    except (AttributeError, ValueError, OSError):
        return None


def _huge_pages() -> str | None:
    """To whom the system hands them out: always, madvise (who asks) or never."""
    try:
        words = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text(encoding="utf-8").split()
        return next(word.strip("[]") for word in words if word.startswith("["))
    except (OSError, StopIteration):
        return None


def _system() -> str:
    try:
        return f"{platform.freedesktop_os_release()['PRETTY_NAME']}, {platform.system()} {platform.machine()}"
    except (OSError, KeyError):
        return f"{platform.system()} {platform.release()} {platform.machine()}"


def _compiler() -> str | None:
    """The compiler that torch.compile would take."""
    for name in (os.environ.get("CXX", ""), "g++", "clang++"):
        if name and shutil.which(name):
            done = subprocess.run([name, "--version"], capture_output=True, text=True, check=False)
            return done.stdout.splitlines()[0] if done.stdout else name
    return None
