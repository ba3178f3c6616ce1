"""A program that python itself runs, the parts that its processes write, and files that are written whole or not at all."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pseudograd.listen.program import files
from pseudograd.listen.program import follow as program
from pseudograd.listen.program.follow import Part
from pseudograd.listen.program.signals import Stopped, stoppable

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


def ran(tmp_path: Path, text: str, *arguments: str, is_quiet: bool = True, **job: object) -> program.Run:
    file = tmp_path / "program.py"
    file.write_text(text)
    (tmp_path / "saying.py").write_text(SAYING)
    command = program.command_of(str(file), arguments, False)
    return program.run(command, {"module": "saying", **job}, stdin=subprocess.DEVNULL, is_quiet=is_quiet)


# --- how it ends --------------------------------------------------------------------------------------------------------


TERMINATE = "import os, signal, time\nos.kill(os.getppid(), signal.SIGTERM)\ntime.sleep(60)\n"


FORKS = """
import ctypes, os, signal, time, torch
signal.alarm(60)
lock, mutex = ctypes.CDLL(None).pthread_mutex_lock, ctypes.create_string_buffer(64)
for number in range(13):
    child = os.fork()
    while child == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        lock(mutex)  # the second call waits in C
    time.sleep(number == 12)
    os.kill(child, signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
"""


@pytest.mark.program
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks, and waits in a function of its C library")
def test_a_child_that_is_ended_while_it_begins_or_waits_in_c_ends(tmp_path: Path) -> None:
    assert ran(tmp_path, FORKS, word="said").status == 0


@pytest.mark.parametrize(
    ("text", "status", "stderr"),
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
def test_the_status_is_pythons(text: str, status: int, stderr: str, tmp_path: Path) -> None:
    done = ran(tmp_path, text, "--lr", "1", word="unsaid")
    assert (done.status, done.stderr.decode()) == (status, stderr)
    assert done.parts == done.unseen == done.errors == ()  # torch was not there


def test_an_error_is_shown_as_python_shows_it_and_enough_ends_a_program_well(tmp_path: Path) -> None:
    done = ran(tmp_path, "def broken():\n    raise ValueError('here')\n\nbroken()\n")
    lines = [line for line in done.stderr.decode().splitlines() if line.startswith('  File "')]
    file = tmp_path / "program.py"
    assert done.status == 1
    assert lines == [f'  File "{file}", line 4, in <module>', f'  File "{file}", line 2, in broken']
    assert done.stderr.endswith(b"ValueError: here\n")
    assert program.Enough().code == 0


@pytest.mark.skipif(os.name == "nt", reason="signals of Unix")
def test_sigterm_is_passed_on_and_the_older_handler_comes_back(tmp_path: Path) -> None:
    """The program asks for it itself, of the process that waits for it."""
    before = signal.getsignal(signal.SIGTERM)
    assert ran(tmp_path, TERMINATE, is_quiet=False).status == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_quiet_run_and_the_processes_that_it_started_end_with_what_a_signal_raises(tmp_path: Path) -> None:
    """A quiet run is one of several, and the command must not go on to the next one."""
    before = signal.getsignal(signal.SIGTERM)
    mark = f"sleep of {tmp_path}"
    start = (
        f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)', {mark!r}])\n"
    )
    with pytest.raises(Stopped), stoppable():
        ran(tmp_path, start + TERMINATE)
    assert signal.getsignal(signal.SIGTERM) == before
    commands = [file.read_bytes() for file in Path("/proc").glob("[0-9]*/cmdline") if os.access(file, os.R_OK)]
    assert not any(mark.encode() in command for command in commands)


# --- what its processes say ---------------------------------------------------------------------------------------------


TWO = """
import subprocess, sys
files = set()
sys.settrace(lambda frame, *_: files.update([frame.f_code.co_filename, frame.f_globals.get("__file__") or "<"]))
import torch
sys.settrace(None)
print(*files, sep="\\n")
if sys.argv[1:] == []:
    subprocess.run([sys.executable, __file__, "child"], check=True, env={**__import__("os").environ, "RANK": "2"})
"""


@pytest.mark.program
def test_each_process_that_has_torch_says_its_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    done = ran(tmp_path, TWO, word="hello")
    assert (done.status, done.unseen, done.errors) == (0, (), ())
    first, second = done.parts
    assert (first.rank, first.is_main, first.content, str(first)) == (None, True, "hello", f"process {first.process}")
    assert (second.rank, second.is_main, second.content, str(second)) == (2, False, "hello", "rank 2")
    traced = [Path(name) for name in done.stdout.decode().splitlines() if name[0] != "<"]
    assert [file for file in traced if not file.exists()] == []  # coverage reads them when the command has ended


@pytest.mark.program
def test_a_module_of_python_that_we_import_is_not_a_file_of_the_program_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "shlex.py").write_text("print('the program has its own shlex')")
    (tmp_path / "quoting.py").write_text(f"import shlex\nquote = shlex.quote\n{SAYING}")
    done = ran(tmp_path, "import torch\nprint('torch')\nimport shlex", module="quoting", word="said")
    assert [part.content for part in done.parts] == ["said"]
    assert done.stdout.decode().splitlines() == ["torch", "the program has its own shlex"]


@pytest.mark.program
@pytest.mark.parametrize(
    ("text", "word", "status", "errors", "unseen"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "unsaid", 137, (), 1),
        ("raise SystemExit(5)", "broken", 5, ("ValueError: it has nothing to say",), 1),
    ],
    ids=["it dies unheard", "an error of ours"],
)
def test_a_process_without_a_part_is_named(
    text: str, word: str, status: int, errors: tuple[str, ...], unseen: int, tmp_path: Path
) -> None:
    done = ran(tmp_path, f"import torch, os, signal; {text}", word=word)
    assert (done.status, done.parts, done.errors) == (status, (), errors)
    assert [(part.is_main, part.content) for part in done.unseen] == [(True, None)] * unseen


def test_parts_are_sorted_ranks_last(tmp_path: Path) -> None:
    parts = [Part(5, 1, False), Part(9, None, False), Part(4, 0, False), Part(3, None, False), Part(8, None, True)]
    assert [part.process for part in sorted(parts, key=program._order)] == [8, 3, 9, 4, 5]


# --- what can be run ----------------------------------------------------------------------------------------------------


def test_the_command_is_pythons_own() -> None:
    flags = subprocess._args_from_interpreter_flags()
    assert program.command_of("a.py", ("--x", "1"), False) == [sys.executable, *flags, "a.py", "--x", "1"]
    assert program.command_of("a.b", (), True) == [sys.executable, *flags, "-m", "a.b"]


def test_a_script_is_a_file_or_a_folder_with_a_main_and_a_module_may_be_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = list(sys.path)
    (tmp_path / "only_here.py").write_text("raise RuntimeError('nothing is run')")
    program.check("run", str(tmp_path / "only_here.py"), False)
    with pytest.raises(ValueError, match=r"run: the script must be a file, got 'absent.py'"):
        program.check("run", "absent.py", False)
    with pytest.raises(ValueError, match="run: the script must be a file"):
        program.check("run", str(tmp_path), False)
    (tmp_path / "__main__.py").write_text("")
    program.check("run", str(tmp_path), False)
    text = r"run: the module must be one that python can run, got 'only_here'\. No module named only_here"
    with pytest.raises(ValueError, match=text):
        program.check("run", "only_here", True)
    monkeypatch.chdir(tmp_path)
    program.check("run", "only_here", True)
    program.check("run", "only_here.below", True)  # python itself reports what is missing below
    assert sys.path == before


# --- files --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "written"),
    [("text: ü\n", "text: ü\n".encode()), (b"\x00\xff", b"\x00\xff"), ("a\udcff", b"a?")],  # half of a character
    ids=["text", "bytes", "no text"],
)
def test_a_file_is_written_whole(content: str | bytes, written: bytes, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text("older")
    files.write("diagnose", "--html", file, content)
    assert file.read_bytes() == written
    assert os.listdir(tmp_path) == ["report.html"]


def test_a_file_that_cannot_be_written_is_refused_before_the_program_and_leaves_the_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert files.checked_file("diagnose", "--html", Path("new.html")) == tmp_path / "new.html"
    assert os.listdir(tmp_path) == []
    older = tmp_path / "there.html"
    older.write_text("older")
    assert files.checked_file("diagnose", "--html", Path("there.html")) == older
    with pytest.raises(ValueError, match=r"diagnose: --html must be a file, got '.'. Choose another path"):
        files.checked_file("diagnose", "--html", Path("."))
    text = "diagnose: --html must lie where files can be written, got .* "
    with pytest.raises(ValueError, match=f"{text}No such file"):
        files.checked_file("diagnose", "--html", Path("absent/a.html"))
    with pytest.raises(ValueError, match=f"{text}Is a directory"):
        files.write("diagnose", "--html", tmp_path, "text")
    with pytest.raises(ValueError, match=f"{text}No such file or directory: choose"):
        files.write("diagnose", "--html", tmp_path / "absent" / "a.html", "text")

    def refuse(*arguments: object, **named: object) -> None:
        raise PermissionError(13, "Permission denied")

    for owner, name in ((Path, "open"), (files.tempfile, "TemporaryFile")):  # root, no file refuses
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, refuse)
            with pytest.raises(ValueError, match=f"{text}Permission denied: choose another path"):
                files.checked_file("diagnose", "--html", older)
    assert older.read_text() == "older"
    assert os.listdir(tmp_path) == ["there.html"]
