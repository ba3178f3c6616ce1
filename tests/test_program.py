"""A program run as python runs it, and files that are written whole or not at all."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pseudograd import program


def script(tmp_path: Path, text: str) -> str:
    file = tmp_path / "program.py"
    file.write_text(text)
    return str(file)


# --- how it ends --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "status", "told"),
    [
        ("x = 1", 0, ""),
        ("raise SystemExit", 0, ""),
        ("raise SystemExit(0)", 0, ""),
        ("raise SystemExit(7)", 7, ""),
        ("import sys; sys.exit(True)", 1, ""),
        ("raise SystemExit('nothing to do')", 1, "nothing to do\n"),
        ("from pseudograd.program import Enough\nraise Enough", 0, ""),
    ],
)
def test_the_status_is_pythons(
    text: str, status: int, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert program.outcome("run", script(tmp_path, text), False) == status
    assert capsys.readouterr().err == told


@pytest.mark.parametrize(("error", "status"), [("ValueError", 1), ("KeyboardInterrupt", 130), ("ImportError", 1)])
def test_an_error_is_printed_without_a_frame_of_ours(
    error: str, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = script(tmp_path, f"def broken():\n    raise {error}('here')\n\nbroken()\n")
    assert program.outcome("run", file, False) == status
    told = capsys.readouterr().err
    assert told.endswith(f"{error}: here\n")
    assert [line for line in told.splitlines() if line.startswith('  File "')] == [
        f'  File "{file}", line 4, in <module>',
        f'  File "{file}", line 2, in broken',
    ]


@pytest.mark.parametrize(
    ("name", "is_module", "told"),
    [
        ("no.such.module", True, "run: the module must be one that python can run, got 'no.such.module'. "),
        ("no_such.py", False, "run: the script must be one that python can run, got 'no_such.py'. "),
    ],
)
def test_what_python_cannot_find_is_an_error_of_the_call(name: str, is_module: bool, told: str) -> None:
    with pytest.raises(ValueError, match="must be one that python can run") as caught:
        program.outcome("run", name, is_module)
    assert str(caught.value).startswith(told)
    assert isinstance(caught.value.__cause__, (ImportError, OSError))


def test_a_script_has_to_be_a_file(tmp_path: Path) -> None:
    program.check("run", script(tmp_path, ""), False)
    program.check("run", "any.module", True)
    with pytest.raises(ValueError, match=r"run: the script must be a file, got 'absent.py'"):
        program.check("run", "absent.py", False)
    with pytest.raises(ValueError, match="run: the script must be a file"):
        program.check("run", str(tmp_path), False)


def test_a_module_runs_as_main(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "named_here.py").write_text("import sys\nprint(__name__, sys.argv)\n")
    monkeypatch.chdir(tmp_path)
    with program.as_main("named_here", ["--fast"], True):
        assert program.outcome("run", "named_here", True) == 0
    assert capsys.readouterr().out == f"__main__ {[str(tmp_path / 'named_here.py'), '--fast']}\n"


# --- what it finds ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_module", [False, True])
def test_arguments_and_the_first_folder_of_the_path_are_the_programs(
    is_module: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of a script, the current one for a module; afterwards all is as before, also the list of folders itself."""
    folder = tmp_path / "of the script"
    folder.mkdir()
    monkeypatch.chdir(tmp_path)
    argv, path, before = sys.argv, sys.path, list(sys.path)
    name = "some.module" if is_module else "of the script/program.py"

    def stopped() -> None:
        with program.as_main(name, ("--lr", "1"), is_module):
            assert sys.argv == [name, "--lr", "1"]
            assert sys.path == [str(tmp_path if is_module else folder), *before]
            sys.path.append("left behind")
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        stopped()
    assert sys.argv is argv
    assert sys.path is path
    assert sys.path == before


# --- files --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", ["text: ü\n", b"\x00\xff"], ids=["text", "bytes"])
def test_a_file_is_written_whole(content: str | bytes, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text("older")
    program.write("diagnose", "--html", file, content)
    assert file.read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert os.listdir(tmp_path) == ["report.html"]


def test_text_that_utf8_lacks_is_written_all_the_same(tmp_path: Path) -> None:
    """A file name of a program may hold half of a character."""
    program.write("diagnose", "--html", tmp_path / "a", "a\udcff")
    assert (tmp_path / "a").read_bytes() == b"a?"


def test_what_cannot_be_written_leaves_the_older_file_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(ValueError, match=r"diagnose: --html must lie where files can be written, got .*folder"):
        program.write("diagnose", "--html", tmp_path / "folder", "text")
    with pytest.raises(
        ValueError, match=r"must lie where files can be written, got .* No such file or directory: choose"
    ):
        program.write("diagnose", "--html", tmp_path / "absent" / "a.html", "text")
    assert os.listdir(tmp_path) == ["folder"]


def test_where_a_file_would_go_is_known_before_the_program_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert program.checked_file("diagnose", "--html", Path("new.html")) == tmp_path / "new.html"
    assert os.listdir(tmp_path) == []
    (tmp_path / "there.html").write_text("older")
    assert program.checked_file("diagnose", "--html", Path("there.html")) == tmp_path / "there.html"
    assert (tmp_path / "there.html").read_text() == "older"
    with pytest.raises(ValueError, match=r"diagnose: --html must be a file, got '.'. Choose another path"):
        program.checked_file("diagnose", "--html", Path("."))
    with pytest.raises(ValueError, match=r"must lie where files can be written, got 'absent/a.html'. No such file"):
        program.checked_file("diagnose", "--html", Path("absent/a.html"))


@pytest.mark.parametrize("refuses", ["open", "TemporaryFile"])
def test_a_place_that_refuses_is_told_at_once(refuses: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand, for the user of a container is root, whom no file refuses."""

    def refused(*given: object, **named: object) -> Callable[..., object]:
        raise PermissionError(13, "Permission denied")

    file = tmp_path / "there.html"
    file.write_text("older")
    monkeypatch.setattr(Path if refuses == "open" else program.tempfile, refuses, refused)
    with pytest.raises(ValueError, match=r"got '.*there.html'. Permission denied: choose another path"):
        program.checked_file("diagnose", "--html", file)
