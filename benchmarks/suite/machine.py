"""Where a run took place: what a reader needs to compare it with another. No names of hosts, users or folders."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from typing import Any

import torch

from pseudograd import kernels


def describe() -> dict[str, Any]:
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
        "kernels": {one["kernel"]: one["state"] for one in kernels.status()},
    }


def native_kernels() -> bool:
    return any(one["kernel"] == "native" and one["state"] == "active" for one in kernels.status())


def in_words(machine: dict[str, Any]) -> list[str]:
    """One line for each thing that a number may depend on."""
    native = machine["kernels"].get("native", "not active")
    memory = "memory unknown" if machine["memory_gib"] is None else f"{machine['memory_gib']} GiB"
    lines = [
        f"{machine['cpu']}, {machine['cores']} cores ({machine['vectors']}), {memory}, {machine['os']}",
        f"torch {machine['torch']}, Python {machine['python']}, {machine['compiler'] or 'no C++ compiler'}",
        f"native kernels {native}; huge pages: {machine.get('huge_pages') or 'none'}",
    ]
    if machine["load"] is not None:
        lines[-1] += f"; load of the machine when it began: {machine['load']:g}"
    return lines


def _cpu() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            fields = dict(line.split(":", 1) for line in file.read().split("\n\n")[0].splitlines() if ":" in line)
        named = {name.strip(): value.strip() for name, value in fields.items()}
        model = named["model name"]
        if "model" in named:  # virtual machines often have no more than "Xeon Processor" as a name
            model += f" (family {named.get('cpu family', '?')}, model {named['model']})"
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
        with open("/sys/kernel/mm/transparent_hugepage/enabled", encoding="utf-8") as file:
            return next(word.strip("[]") for word in file.read().split() if word.startswith("["))
    except (OSError, StopIteration):
        return None


def _system() -> str:
    try:
        return f"{platform.freedesktop_os_release()['PRETTY_NAME']}, {platform.system()} {platform.machine()}"
    except (OSError, KeyError):
        return f"{platform.system()} {platform.release()} {platform.machine()}"


def _compiler() -> str | None:
    """The one that torch.compile would take."""
    for name in (os.environ.get("CXX", ""), "g++", "clang++"):
        if name and shutil.which(name):
            done = subprocess.run([name, "--version"], capture_output=True, text=True, check=False)
            return done.stdout.splitlines()[0] if done.stdout else name
    return None
