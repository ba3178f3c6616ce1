"""A program run by python itself, what each of its processes says, and files that are written whole or not at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pseudograd.listen.program import files
from pseudograd.listen.program import follow as program
from pseudograd.listen.program.follow import Part

SAYING = """
class Saying:
    def __init__(self, job, process):
        self.word = job["word"]
        process.mark()
    def content(self):
        if self.word == "broken":
            raise ValueError("it has nothing to say")
        return self.word
    def forked(self):
        pass
begin = Saying
"""


def ran(tmp_path: Path, text: str, *arguments: str, **job: object) -> program.Run:
    file = tmp_path / "program.py"
    file.write_text(text)
    (tmp_path / "saying.py").write_text(SAYING)
    command = program.command_of(str(file), arguments, False)
    return program.run(command, {"module": "saying", **job}, stdin=subprocess.DEVNULL, is_quiet=True)


# --- how it ends --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "status", "told"),
    [
        ("x = 1", 0, ""),
        ("raise SystemExit", 0, ""),
        ("raise SystemExit(7)", 7, ""),
        ("raise SystemExit('nothing to do')", 1, "nothing to do\n"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 128 + 9, ""),
        ("import os; os._exit(3)", 3, ""),
        ("import sys; sys.exit(sys.argv[1:] != ['--lr', '1'])", 0, ""),
    ],
)
def test_the_status_is_pythons(text: str, status: int, told: str, tmp_path: Path) -> None:
    found = ran(tmp_path, text, "--lr", "1", word="unsaid")
    assert (found.status, found.stderr.decode()) == (status, told)
    assert found.parts == found.unseen == found.errors == ()  # torch was not there


def test_an_error_is_shown_as_python_shows_it(tmp_path: Path) -> None:
    found = ran(tmp_path, "def broken():\n    raise ValueError('here')\n\nbroken()\n")
    told = found.stderr.decode()
    assert found.status == 1
    assert [line for line in told.splitlines() if line.startswith('  File "')] == [
        f'  File "{tmp_path / "program.py"}", line 4, in <module>',
        f'  File "{tmp_path / "program.py"}", line 2, in broken',
    ]
    assert told.endswith("ValueError: here\n")


def test_enough_ends_a_program_well() -> None:
    with pytest.raises(SystemExit) as caught:
        raise program.Enough
    assert caught.value.code == 0


@pytest.mark.skipif(os.name == "nt", reason="signals of Unix")
def test_sigterm_is_passed_on_and_the_older_handler_comes_back(tmp_path: Path) -> None:
    """The program asks for it itself, of the process that waits for it."""
    before = signal.getsignal(signal.SIGTERM)
    text = "import os, signal, time\nos.kill(os.getppid(), signal.SIGTERM)\ntime.sleep(60)\n"
    assert ran(tmp_path, text).status == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) == before


# --- what its processes say ---------------------------------------------------------------------------------------------


TWO = """
import subprocess, sys
import torch
if sys.argv[1:] == []:
    subprocess.run([sys.executable, __file__, "child"], check=True, env={**__import__("os").environ, "RANK": "2"})
"""


@pytest.mark.program
def test_each_process_that_has_torch_says_its_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    found = ran(tmp_path, TWO, word="hello")
    assert (found.status, found.unseen, found.errors) == (0, (), ())
    first, second = found.parts
    assert (first.rank, first.is_main, first.content, str(first)) == (None, True, "hello", f"process {first.process}")
    assert (second.rank, second.is_main, second.content, str(second)) == (2, False, "hello", "rank 2")


@pytest.mark.program
def test_a_process_that_dies_unheard_is_named(tmp_path: Path) -> None:
    found = ran(tmp_path, "import torch, os, signal; os.kill(os.getpid(), signal.SIGKILL)", word="unsaid")
    assert (found.status, found.parts, found.errors) == (137, (), ())
    assert [(one.is_main, one.content) for one in found.unseen] == [(True, None)]


@pytest.mark.program
def test_an_error_of_ours_is_kept_and_the_program_goes_on(tmp_path: Path) -> None:
    found = ran(tmp_path, "import torch; raise SystemExit(5)", word="broken")
    assert (found.status, found.parts) == (5, ())
    assert found.errors == ("ValueError: it has nothing to say",)


def test_parts_are_sorted_ranks_last(tmp_path: Path) -> None:
    parts = [Part(5, 1, False), Part(9, None, False), Part(4, 0, False), Part(3, None, False), Part(8, None, True)]
    assert [part.process for part in sorted(parts, key=program._order)] == [8, 3, 9, 4, 5]


# --- what can be run ----------------------------------------------------------------------------------------------------


def test_the_command_is_pythons_own() -> None:
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    assert program.command_of("a.py", ("--x", "1"), False) == [sys.executable, *flags, "a.py", "--x", "1"]
    assert program.command_of("a.b", (), True) == [sys.executable, *flags, "-m", "a.b"]


def test_a_script_has_to_be_a_file_or_a_folder_with_a_main(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("")
    program.check("run", str(tmp_path / "main.py"), False)
    with pytest.raises(ValueError, match=r"run: the script must be a file, got 'absent.py'"):
        program.check("run", "absent.py", False)
    with pytest.raises(ValueError, match="run: the script must be a file"):
        program.check("run", str(tmp_path), False)
    (tmp_path / "__main__.py").write_text("")
    program.check("run", str(tmp_path), False)


def test_a_module_is_looked_for_in_the_current_folder_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = list(sys.path)
    (tmp_path / "only_here.py").write_text("raise RuntimeError('nothing is run')")
    told = r"run: the module must be one that python can run, got 'only_here'\. No module named only_here"
    with pytest.raises(ValueError, match=told):
        program.check("run", "only_here", True)
    monkeypatch.chdir(tmp_path)
    program.check("run", "only_here", True)
    program.check("run", "only_here.below", True)  # what is below is python's to say
    assert sys.path == before


# --- files --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", ["text: ü\n", b"\x00\xff"], ids=["text", "bytes"])
def test_a_file_is_written_whole(content: str | bytes, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text("older")
    files.write("diagnose", "--html", file, content)
    assert file.read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert os.listdir(tmp_path) == ["report.html"]


def test_text_that_utf8_lacks_is_written_all_the_same(tmp_path: Path) -> None:
    """A file name of a program may hold half of a character."""
    files.write("diagnose", "--html", tmp_path / "a", "a\udcff")
    assert (tmp_path / "a").read_bytes() == b"a?"


def test_what_cannot_be_written_leaves_the_older_file_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(
        ValueError, match=r"diagnose: --html must lie where files can be written, got .* Is a directory"
    ):
        files.write("diagnose", "--html", tmp_path / "folder", "text")
    with pytest.raises(
        ValueError, match=r"must lie where files can be written, got .* No such file or directory: choose"
    ):
        files.write("diagnose", "--html", tmp_path / "absent" / "a.html", "text")
    assert os.listdir(tmp_path) == ["folder"]


def test_where_a_file_would_go_is_known_before_the_program_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert files.checked_file("diagnose", "--html", Path("new.html")) == tmp_path / "new.html"
    assert os.listdir(tmp_path) == []
    (tmp_path / "there.html").write_text("older")
    assert files.checked_file("diagnose", "--html", Path("there.html")) == tmp_path / "there.html"
    assert (tmp_path / "there.html").read_text() == "older"
    with pytest.raises(ValueError, match=r"diagnose: --html must be a file, got '.'. Choose another path"):
        files.checked_file("diagnose", "--html", Path("."))
    with pytest.raises(ValueError, match=r"must lie where files can be written, got 'absent/a.html'. No such file"):
        files.checked_file("diagnose", "--html", Path("absent/a.html"))


@pytest.mark.parametrize("refuses", ["open", "TemporaryFile"])
def test_a_place_that_refuses_is_told_at_once(refuses: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand, for the user of a container is root, whom no file refuses."""

    def refused(*given: object, **named: object) -> Callable[..., object]:
        raise PermissionError(13, "Permission denied")

    file = tmp_path / "there.html"
    file.write_text("older")
    monkeypatch.setattr(Path if refuses == "open" else files.tempfile, refuses, refused)
    with pytest.raises(
        ValueError, match=r"must lie where files can be written, got .*Permission denied: choose another path"
    ):
        files.checked_file("diagnose", "--html", file)
