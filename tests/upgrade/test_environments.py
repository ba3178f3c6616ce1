"""The two environments of `upgrade`: an installer of the test's own makes them, and in the last test pip, from wheels in a folder."""

import json
import os
import re
import signal
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from pseudograd.errors import describe_value
from pseudograd.listen.program.signals import Stopped, stoppable
from pseudograd_upgrade import environments
from pseudograd_upgrade.environments import (
    Package,
    compare_packages,
    describe_packages,
    find_environment,
    find_environments,
    list_packages,
    python_of,
)
from pseudograd_upgrade.runs import Interpreter

from .test_upgrade import PY, upgrade, write_program

INSTALLED = torch.__version__.split("+")[0]
BASE = Interpreter(PY, "2.12.9")
posix = pytest.mark.skipif(os.name == "nt", reason="the installer of these tests is a script of the shell")

# Makes an environment whose python is this one. What it is asked for decides how it ends.
UV = f"""\
#!/bin/sh
echo "$@" >> "$UV_LOG"
case "$*" in
  *unmakable*|*torch==2.99*) echo "error: no such thing"; echo "hint: another"; exit 1;;
  *torch==2.98*) echo $$ > "$UV_LOG.pid"; echo "Downloaded much"; sleep 60; exit;;
  *"pip install"*broken*) echo "ERROR: no version of broken"; echo "ERROR: twice"; exit 1;;
  venv*) mkdir -p "$4/bin" && printf '#!/bin/sh\\nexec {PY} "$@"\\n' > "$4/bin/python" && chmod +x "$4/bin/python"
    echo made > "$4/pyvenv.cfg";;
esac
"""


@pytest.fixture
def uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The log of what the installer was asked for, a call a line."""
    tool, log = tmp_path / "tools" / "uv", tmp_path / "uv.log"
    tool.parent.mkdir()
    tool.write_text(UV, encoding="utf-8")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("UV_LOG", str(log))
    monkeypatch.setenv("PSEUDOGRAD_CACHE", str(tmp_path / "cache"))
    return log


def use_packages(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    packages = [Package(name.strip("<"), (name.strip("<"),), name.endswith("<")) for name in names]
    monkeypatch.setattr(environments, "list_packages", lambda rows: packages)

    def run_python(path: str, program: str) -> subprocess.CompletedProcess[str]:
        if "/" in path and not Path(path).exists():
            raise FileNotFoundError
        return subprocess.CompletedProcess("", 0, '["3", "/", {}]', "")

    monkeypatch.setattr(environments, "run_python", run_python)


def files_in_cache() -> list[str]:
    return sorted(path.name for path in Path("cache").rglob("*") if path.is_file())


@posix
def test_an_environment_is_made_once(
    uv: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A package that wants another torch is installed with torch, and by itself where that fails."""
    use_packages(monkeypatch, "a", "broken", "c", "broken too<", "vision<")
    monkeypatch.setattr(environments, "find_interpreter", lambda argument, name: Interpreter(name, INSTALLED))
    first, second = (find_environment("--to", f"torch == {INSTALLED}", BASE) for _ in range(2))
    assert first.path == second.path
    folder = Path(first.path).parents[1]
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    create, *installs = [line.split() for line in uv.read_text(encoding="utf-8").splitlines()]
    assert create[:3] == ["venv", "--python", PY]
    assert [words[4:] for words in installs] == [
        [f"torch=={INSTALLED}"],
        ["--no-deps", "a", "broken", "c"],
        ["--no-deps", "a"],
        ["--no-deps", "broken", "c"],
        ["--no-deps", "broken"],
        ["--no-deps", "c"],
        [f"torch=={INSTALLED}", "broken", "too", "vision"],
        [f"torch=={INSTALLED}", "broken", "too"],
        [f"torch=={INSTALLED}", "vision"],
    ]
    missing = [f"upgrade: not installed: {name}. no version of broken" for name in ("broken", "broken too")]
    assert capfd.readouterr().err.splitlines() == [
        f"upgrade: --to torch=={INSTALLED}: uv makes an environment with it and 5 other packages",
        *missing,
        f"upgrade: --to torch=={INSTALLED}: the environment of an earlier command, {folder}",
        *missing,
    ]
    python_of(folder).unlink()
    assert find_environment("--to", f"torch=={INSTALLED}", BASE).path == first.path  # made anew


@posix
@pytest.mark.parametrize(
    ("text", "base", "message"),
    [
        ("torch==nonsense", PY, "--to must be an interpreter or torch==VERSION, got 'torch==nonsense'. Write torch==2.15.0."),
        ("torch>=2.15", PY, "--to must be an interpreter or torch==VERSION, got 'torch>=2.15'."),
        ("torch=2.15.0", PY, "--to must be an interpreter or torch==VERSION, got 'torch=2.15.0'."),
        ("torch==2.7.1", PY, "--to must have torch 2.8 or later, got 'torch==2.7.1'."),
        ("torch==2.99.0", PY, "--to must be a torch that can be installed, got 'torch==2.99.0'. no such thing hint: another."),
        (f"torch=={INSTALLED}", "unmakable", "--to must be an environment that can be made, got 'torch=="),
    ],
)  # fmt: skip
def test_an_environment_that_cannot_be_made_is_one_line_and_leaves_nothing(
    uv: Path, monkeypatch: pytest.MonkeyPatch, text: str, base: str, message: str
) -> None:
    use_packages(monkeypatch)
    with pytest.raises(ValueError, match=r"^upgrade: ") as error:
        find_environment("--to", text, Interpreter(base, "2.12.9"))
    assert str(error.value).startswith(f"upgrade: {message}")
    assert "\n" not in str(error.value)
    assert files_in_cache() == []


@posix
def test_a_signal_ends_the_installer_and_leaves_no_environment(uv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_packages(monkeypatch)
    monkeypatch.setattr(environments, "_SECONDS", 0.05)

    def tell(text: str) -> None:
        if re.fullmatch(r"torch==2\.98\.0: \d{1,3} s: Downloaded much", text):
            os.kill(os.getpid(), signal.SIGTERM)  # a job in the background ignores SIGINT

    monkeypatch.setattr(environments, "_tell", tell)
    with pytest.raises(Stopped), stoppable():
        find_environment("--to", "torch==2.98.0", BASE)
    assert files_in_cache() == []
    assert not list(Path("cache", "upgrade").iterdir())
    with pytest.raises(ProcessLookupError):
        os.kill(int(Path(f"{uv}.pid").read_text(encoding="utf-8")), 0)


def test_a_cache_that_cannot_be_written_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("file").touch()
    monkeypatch.setenv("PSEUDOGRAD_CACHE", "file")
    with pytest.raises(ValueError, match=r"--to must lie where files can be written, got .*PSEUDOGRAD_CACHE names"):
        find_environment("--to", f"torch=={INSTALLED}", BASE)


@posix
def test_the_folder_of_an_environment_names_its_interpreter() -> None:
    Path("made", "bin").mkdir(parents=True)
    Path("made", "bin", "python").symlink_to(PY)
    with pytest.raises(
        ValueError, match=r"--to must be an interpreter that can be run, got .made.. Name made/bin/python."
    ):
        find_environment("--to", "made")


def test_a_torch_that_is_there_needs_no_environment() -> None:
    assert find_environment("--from", f"torch=={INSTALLED}", here := Interpreter(PY, torch.__version__)) is here
    assert find_environment("--from", f"torch=={torch.__version__}", here) is here


@posix
def test_two_versions_of_python_are_refused(capfd: pytest.CaptureFixture[str]) -> None:
    facts = {"python": [3, 99], "torch": "2.15.0", "packages": {}, "folders": []}
    Path("other").write_text(f"#!/bin/sh\necho '{json.dumps(facts)}'\n", encoding="utf-8")
    Path("other").chmod(0o755)
    status, out, err = upgrade(capfd, write_program("pass"), new="./other")
    here = ".".join(map(str, sys.version_info[:2]))
    assert (status, out) == (2, "")
    got = describe_value(str(Path("other").absolute()))
    assert f"upgrade: --to must have the Python of --from, {here}, got {got}. It is Python 3.99" in err


def test_what_is_installed_beside_torch(tmp_path: Path) -> None:
    here, gone = tmp_path.as_uri(), (tmp_path / "gone").as_uri()
    git = {"url": "https://a.b/c.git", "vcs_info": {"vcs": "git", "commit_id": "f00"}, "subdirectory": "d"}
    rows: dict[str, tuple[str, object, list[str]]] = {
        "torch": ("2.13.0", None, []),
        "nvidia-cublas-cu13": ("1", None, []),
        "pip": ("1", None, []),
        "Pseudograd": ("1", {"url": here, "dir_info": {"editable": True}}, ["torch>=2.8"]),
        "plain": ("1.0", None, ["torch>=2.0", "torch<2 ; extra == 'old'", "torchmetrics==1"]),
        "torchvision": ("0.28", None, ["torch==2.13.0"]),
        "upper": ("1", None, ["torch (<2.14,>=2.0)"]),
        "editable": ("1", {"url": here, "dir_info": {"editable": True}}, ["torch<3"]),
        "local": ("1", {"url": here, "dir_info": {}}, []),
        "gone": ("1", {"url": gone, "dir_info": {}}, []),
        "git": ("1", git, []),
        "wheel-file": ("1", {"url": "https://a.b/c.whl", "archive_info": {}}, []),
    }
    words = {package.name: (*package.words, package.is_bound) for package in list_packages(rows)}  # type: ignore[arg-type]
    assert words == {
        "plain": ("plain==1.0", False),
        "torchvision": ("torchvision", True),
        "upper": ("upper", True),
        "editable": ("-e", str(tmp_path), True),
        "local": (str(tmp_path), False),
        "gone": ("gone==1", False),
        "git": ("git @ git+https://a.b/c.git@f00#subdirectory=d", False),
        "wheel-file": ("wheel-file @ https://a.b/c.whl", False),
    }


def test_packages_that_differ_are_listed_and_torchs_own_come_last() -> None:
    old = {
        "torch": "2.13.0",
        "numpy": "1.26",
        "same": "1",
        "nvidia-nccl": "1",
        "pip": "23",
        "torchvision": "1",
        "gone": "3",
    }
    new = {"torch": "2.15.0", "numpy": "2.3", "same": "1", "nvidia-nccl": "2", "pip": "24", "torchvision": "2"}
    packages = compare_packages(*(Interpreter("p", "2.13.0", packages=versions) for versions in (old, new)))
    assert list(packages) == ["torch", "numpy", "torchvision", "gone", "nvidia-nccl"]
    text = "packages that differ, too: numpy 1.26 -> 2.3, torchvision 1 -> 2"
    assert describe_packages(packages, 2) == f"{text}, and 2 more (-v lists them)"
    assert describe_packages(packages) == f"{text}, gone 3 -> none, nvidia-nccl 1 -> 2"
    assert describe_packages({"torch": ("1", "2")}) == ""


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        (["Collecting a", "ERROR: Ignored the following versions", "ERROR: No version.", "ERROR: None"], "No version"),
        (
            ["ERROR: Cannot install.", "The conflict is:", "a needs b", "c"],
            "Cannot install. The conflict is: a needs b",
        ),
        (["× No solution", "╰─▶ Because there is none."], "No solution Because there is none"),
        (["error: no such folder"], "no such folder"),
        (["ensurepip is missing.", "Install it."], "ensurepip is missing. Install it"),
        (["Traceback", "File", "x", "OSError: no space"], "OSError: no space"),
        ([], "The installer ended without a word"),
    ],
)
def test_the_error_of_an_installer_is_one_line(lines: list[str], error: str) -> None:
    assert environments._describe_error(lines) == error
    assert len(environments._describe_error(["x" * 400])) == 300


# --- a package index in a folder --------------------------------------------------------------------------------------


def write_wheel(name: str, version: str, requirements: Sequence[str] = ()) -> None:
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {requirement}\n" for requirement in requirements)
    Path("index").mkdir(exist_ok=True)
    with zipfile.ZipFile(Path("index", f"{name}-{version}-py3-none-any.whl"), "w") as wheel:
        wheel.writestr(f"{name}/__init__.py", "")
        wheel.writestr(f"{info}/METADATA", metadata)
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


@pytest.mark.program
def test_pip_makes_an_environment_from_a_folder_of_wheels(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for version, needs in (("2.13.0", "helper"), ("2.15.0", "helper>=2")):
        write_wheel("torch", version, ["typing_extensions", needs])
        write_wheel("torchvision", f"0.{version[2:4]}", [f"torch=={version}"])
    for words in ("typing_extensions 4", "helper 1", "helper 2", "plain 1", "unpublished 1"):
        write_wheel(*words.split())
    write_wheel("stuck", "1", ["torch<2.14"])
    for name, value in {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(Path("index").absolute())}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PSEUDOGRAD_CACHE", str(Path("cache").absolute()))
    monkeypatch.delenv("PIP_CONFIG_FILE", raising=False)
    monkeypatch.setattr(environments.shutil, "which", lambda name: None if name == "uv" else name)
    subprocess.run([PY, "-m", "venv", "base"], check=True)
    base = Interpreter(str(python_of(Path("base").absolute())), "2.13.0")
    words = ["torch==2.13.0", "helper==1", "torchvision", "plain", "stuck", "unpublished"]
    subprocess.run([base.path, "-m", "pip", "install", "-q", *words], check=True)
    Path("index", "unpublished-1-py3-none-any.whl").unlink()
    old, new = find_environments(base.path, "torch==2.15.0")
    changed = compare_packages(old, new)
    changed.pop("setuptools", None)  # of the venv, not of the folder
    assert changed == {
        "torch": ("2.13.0", "2.15.0"),
        "helper": ("1", "2"),
        "torchvision": ("0.13", "0.15"),
        "stuck": ("1", ""),
        "unpublished": ("1", ""),
    }
    err = capfd.readouterr().err
    assert "not installed: unpublished==1. Could not find a version" in err
    assert "not installed: stuck. Cannot install stuck==1 and torch==2.15.0" in err
