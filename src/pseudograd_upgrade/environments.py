"""The two environments of a question: their interpreters, the packages that differ, and an environment that `upgrade` makes itself.

A made environment has the packages of another one and another torch. It is made under a temporary name and renamed when it is complete.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from pseudograd.errors import must
from pseudograd.listen.program.signals import hold_signals
from pseudograd.wording import counted

from .runs import OLDEST_TORCH, Interpreter, find_interpreter, parse_version, run_python

_MOST_PACKAGES = 8  # that an answer lists
_SECONDS = 9.0  # between two lines about the progress
_WITH_TORCH = ("triton", "pytorch-triton", "nvidia-", "cuda-")  # the names of packages that torch brings begin so
_TOOLS = ("pip", "pseudograd")  # are not installed: no program imports an installer, and each run gets our own files
_REQUIREMENT = re.compile(r"torch\s*[=<>~!]")
_EXACT = re.compile(r"torch==\d+\.\d+(\.\d+)?([a-z]+\d+)*(\.dev\d+)?(\+[\w.]+)?")
_MISSING = "missing.json"  # in an environment: lines about what could not be installed
_LIST = """
import importlib.metadata, json, sys
rows = {}
for part in importlib.metadata.distributions():
    if not (part.metadata and part.metadata["Name"] and part.version):  # what an uninstallation left
        continue
    url = part.read_text("direct_url.json")
    row = [part.version, url and json.loads(url), [text for text in part.requires or () if text.startswith("torch")]]
    rows.setdefault(part.metadata["Name"], row)
print(json.dumps([sys.version, sys.base_prefix, rows]))
"""


def _usage_error(argument: str, requirement: str, got: str, remedy: str | None = None) -> ValueError:
    return ValueError(must("upgrade", argument, requirement, got, remedy))


def is_requirement(text: str | None) -> bool:
    """Does the text ask for a version of torch, as torch==2.15.0 does, and not name an interpreter?"""
    return text is not None and _REQUIREMENT.match(text) is not None


def find_environments(old: str | None, new: str | None) -> tuple[Interpreter, Interpreter]:
    """The interpreters of `--from` and `--to`. Without an option it is this interpreter. ValueError if one cannot be used."""
    sides = {"--from": sys.executable if old is None else old, "--to": sys.executable if new is None else new}
    pythons = {name: find_interpreter(name, text) for name, text in sides.items() if not is_requirement(text)}
    base = next(iter(pythons.values()), None)
    first, second = (pythons.get(name) or find_environment(name, text, base) for name, text in sides.items())
    if first.python != second.python:
        versions = [".".join(map(str, interpreter.python)) for interpreter in (first, second)]
        remedy = f"It is Python {versions[1]}; --to torch==VERSION makes an environment of the same Python"
        raise _usage_error("--to", f"have the Python of --from, {versions[0]}", second.path, remedy)
    return first, second


def find_environment(argument: str, text: str, base: Interpreter | None = None) -> Interpreter:
    """The interpreter that the text names. For a version of torch: `base` if it has this version, else an environment with its packages."""
    if not is_requirement(text):
        return find_interpreter(argument, text)
    base = base or find_interpreter(argument, sys.executable)
    requirement = "".join(text.split())
    version = requirement.removeprefix("torch==")
    if _EXACT.fullmatch(requirement) is None:
        raise _usage_error(argument, "be an interpreter or torch==VERSION", text, "Write torch==2.15.0")
    if parse_version(version) < OLDEST_TORCH:
        raise _usage_error(argument, "have torch 2.8 or later", text)
    if version in (base.torch, base.torch.partition("+")[0]):
        return base
    return _find_or_make(argument, requirement, base)


def compare_packages(old: Interpreter, new: Interpreter) -> dict[str, tuple[str, str]]:
    """The two versions of each package that differs; a missing package has the version "". Torch comes first, what it brings comes last."""
    names = (old.packages.keys() | new.packages.keys()) - {*_TOOLS}
    pairs = {name: (old.packages.get(name, ""), new.packages.get(name, "")) for name in names}
    changed = [name for name, pair in pairs.items() if pair[0] != pair[1]]
    changed.sort(key=lambda name: (name != "torch", name.startswith(_WITH_TORCH), not all(pairs[name]), name))
    return {name: pairs[name] for name in changed}


def describe_packages(packages: Mapping[str, tuple[str, str]], most: int = _MOST_PACKAGES) -> str:
    """A line about the packages beside torch; empty if none differs."""
    texts = [f"{name} {old or 'none'} -> {new or 'none'}" for name, (old, new) in packages.items() if name != "torch"]
    rest = f", and {len(texts) - most} more (-v lists them)" if len(texts) > most else ""
    return f"packages that differ, too: {', '.join(texts[:most])}{rest}" if texts else ""


def cache_folder() -> Path:
    """The folder of our environments in the user's cache."""
    if os.environ.get("PSEUDOGRAD_CACHE"):
        return Path(os.environ["PSEUDOGRAD_CACHE"])
    default = Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache")
    return Path(os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA") or default) / "pseudograd"


def python_of(folder: Path) -> Path:
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


@dataclass(frozen=True)
class Package:
    """words: the arguments for the installer. is_bound: it works with some versions of torch only, so the installer chooses its version."""

    name: str
    words: tuple[str, ...]
    is_bound: bool = False


def list_packages(rows: Mapping[str, tuple[str, Mapping[str, object] | None, Sequence[str]]]) -> list[Package]:
    """The packages to install beside torch. rows: for each package its version, its direct_url.json, and what it requires of torch."""
    packages = []
    for name, (version, url, requirements) in sorted(rows.items()):
        key = re.sub(r"[-_.]+", "-", name).lower()
        if key == "torch" or key in _TOOLS or key.startswith(_WITH_TORCH):
            continue
        is_bound = any(map(_excludes_versions, requirements))
        words = (url and _words_of_url(name, url)) or ((name,) if is_bound else (f"{name}=={version}",))
        packages.append(Package(name, words, is_bound))
    return packages


def _excludes_versions(requirement: str) -> bool:
    """Does this requirement of a package exclude later or other versions of torch?"""
    text, _, marker = requirement.partition(";")
    is_torch = re.match(r"torch\s*(\[.*\]\s*)?\(?\s*[=<>~!]", text)
    return is_torch is not None and "extra" not in marker and re.search(r"[<~=]", text.replace(">=", "")) is not None


def _words_of_url(name: str, url: Mapping[str, object]) -> tuple[str, ...]:
    """The words for a package that was installed from a folder, a file or a repository. Empty if the folder or file is gone."""
    address, repository, folder = str(url["url"]), url.get("vcs_info"), url.get("dir_info")
    parts = urlsplit(address)
    if parts.scheme == "file" and not isinstance(repository, dict):
        path = url2pathname(parts.path)
        is_editable = isinstance(folder, dict) and folder.get("editable")
        return (*(["-e"] if is_editable else []), path) if os.path.exists(path) else ()
    if isinstance(repository, dict):
        address = f"{repository['vcs']}+{address}@{repository['commit_id']}"
    inside = f"#subdirectory={url['subdirectory']}" if url.get("subdirectory") else ""
    return (f"{name} @ {address}{inside}",)


def _find_or_make(argument: str, requirement: str, base: Interpreter) -> Interpreter:
    """The interpreter of an environment in the user's cache, which is made unless an earlier command made it."""
    try:
        version, prefix, rows = json.loads(run_python(base.path, _LIST).stdout)
    except (ValueError, subprocess.TimeoutExpired) as error:
        raise _usage_error(argument, "be made from a list of packages", base.path) from error
    packages = list_packages(rows)
    identity = json.dumps([requirement, version, prefix, sorted(package.words for package in packages)])
    folder = cache_folder() / "upgrade" / hashlib.sha256(identity.encode()).hexdigest()[:16]
    if _is_usable(folder):
        _tell(f"{argument} {requirement}: the environment of an earlier command, {folder}")
    else:
        _make(argument, requirement, base, packages, folder)
    for remark in json.loads((folder / _MISSING).read_text(encoding="utf-8")):
        _tell(remark)
    return find_interpreter(argument, str(python_of(folder)))


def _is_usable(folder: Path) -> bool:
    """Is the environment complete, and does its python run? The python from which it was made may be gone."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        return (folder / _MISSING).is_file() and run_python(str(python_of(folder)), "").returncode == 0
    return False


def _make(argument: str, requirement: str, base: Interpreter, packages: Sequence[Package], folder: Path) -> None:
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    except OSError as error:
        remedy = f"{error.strerror}: PSEUDOGRAD_CACHE names another folder"
        raise _usage_error(argument, "lie where files can be written", str(folder), remedy) from error
    try:
        _Maker(argument, requirement, base.path, unfinished).make(packages)
        with hold_signals():
            if not _is_usable(folder):  # another command may have made it meanwhile
                shutil.rmtree(folder, ignore_errors=True)
                unfinished.rename(folder)
    finally:
        with hold_signals():
            shutil.rmtree(unfinished, ignore_errors=True)


def _tell(text: str) -> None:
    print(f"upgrade: {text}", file=sys.stderr, flush=True)


class _Maker:
    """Makes an environment in a folder, by uv if it is on PATH, else by pip."""

    def __init__(self, argument: str, requirement: str, base: str, folder: Path) -> None:
        self.argument, self.requirement, self.folder = argument, requirement, folder
        self.missing: list[str] = []  # lines about what could not be installed
        self._began = time.monotonic()
        uv, python = shutil.which("uv"), str(python_of(folder))
        self.tool = "uv" if uv else "pip"
        self._create = [uv, "venv", "--python", base] if uv else [base, "-m", "venv"]
        pip = [python, "-m", "pip", "--disable-pip-version-check", "--no-input", "install"]
        self._pip = [uv, "pip", "install", "--python", python] if uv else pip

    def make(self, packages: Sequence[Package]) -> None:
        count = counted(len(packages), "other package")
        _tell(f"{self.argument} {self.requirement}: {self.tool} makes an environment with it and {count}")
        self.folder.rmdir()
        if error := self._run([*self._create, str(self.folder)]):
            remedy = f"{error}. Make it yourself, and name its interpreter"
            raise _usage_error(self.argument, "be an environment that can be made", self.requirement, remedy)
        if error := self._install(self.requirement):
            raise _usage_error(self.argument, "be a torch that can be installed", self.requirement, error)
        self._install_exactly([package for package in packages if not package.is_bound])
        bound = [package for package in packages if package.is_bound]
        # torch is required again, because the packages above may have replaced a package that torch needs.
        if self._install(self.requirement, *(word for package in bound for word in package.words)):
            for package in bound:
                self._note(package, self._install(self.requirement, *package.words))
        (self.folder / _MISSING).write_text(json.dumps(self.missing), encoding="utf-8")

    def _install_exactly(self, packages: Sequence[Package]) -> None:
        """Install all packages at once. If that fails, install each half."""
        if not packages:
            return
        error = self._install("--no-deps", *(word for package in packages for word in package.words))
        if error and len(packages) > 1:
            middle = len(packages) // 2
            self._install_exactly(packages[:middle])
            self._install_exactly(packages[middle:])
        elif error:
            self._note(packages[0], error)

    def _note(self, package: Package, error: str) -> None:
        if error:
            self.missing.append(f"not installed: {' '.join(package.words)}. {error}")

    def _install(self, *words: str) -> str:
        return self._run([*self._pip, *words])

    def _run(self, command: Sequence[str]) -> str:
        """Run an installer, and print a line every nine seconds. Returns its error in one line, or ""."""
        environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
        with tempfile.TemporaryDirectory(prefix="pseudograd-") as folder:
            log = Path(folder) / "log"
            process: subprocess.Popen[bytes] | None = None
            try:
                with hold_signals(), log.open("wb") as output:
                    process = subprocess.Popen(
                        command,
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        env=environment,
                        start_new_session=True,
                    )
                while process.poll() is None:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(_SECONDS)
                        continue
                    last = _list_lines(log)[-1:] or ["the installer works"]
                    _tell(f"{self.requirement}: {time.monotonic() - self._began:.0f} s: {last[0][:100]}")
            finally:
                if process is not None:
                    with hold_signals():
                        _end(process)
            return _describe_error(_list_lines(log)) if process.returncode else ""


def _end(process: subprocess.Popen[bytes]) -> None:
    """End an installer that still runs after a signal, and the processes that it started."""
    with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
        if process.poll() is None:
            if hasattr(os, "killpg"):
                os.killpg(process.pid, signal.SIGTERM)
            else:
                process.terminate()
            process.wait(_SECONDS)
    process.kill()
    process.wait()


def _list_lines(log: Path) -> list[str]:
    text = log.read_text(encoding="utf-8", errors="replace")
    return [line.strip() for line in re.split(r"[\r\n]+", text) if line.strip()]


def _describe_error(lines: Sequence[str]) -> str:
    """The first error that an installer prints, with the next two lines; without an error the end of a traceback, or the first lines."""
    is_error = re.compile(r"(error\b(?!: Ignored the following)|×)", re.IGNORECASE)
    starts = [at for at, line in enumerate(lines) if is_error.match(line)]
    starts = starts or [len(lines) - 1 if any(line.startswith("Traceback") for line in lines) else 0]
    end = min([starts[0] + 3, *starts[1:]])
    text = " ".join(re.sub(r"^(error: |[×╰─▶│ ]+)", "", line, flags=re.IGNORECASE) for line in lines[starts[0] : end])
    return text[:300].rstrip(".") or "The installer ended without a word"
