"""What the tests rely on: a program in a copy of their process does what it does in a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from pseudograd.listen.program import follow as program

from .. import forked
from ..choices import slow_but
from .test_program import SAYING

SHOWING = """\
import atexit, os, sys, warnings
import torch
atexit.register(print, "at the end", file=sys.stderr)
print(__name__, __file__, sys.argv, sys.path[0] == os.getcwd(), sys.stdin.read(), os.environ["MORE"], file=sys.stderr)
warnings.warn("seen once")
warnings.warn("seen", DeprecationWarning)
exec(compile("warnings.warn('not seen', DeprecationWarning)", "there.py", "exec"), {"warnings": warnings, "__name__": "there"})
def annotated(x: print("evaluated", file=sys.stderr)): pass
print(torch.ones(2, requires_grad=True).clamp(0, 0.5).sum().item(), file=sys.stderr)
"""
ENDS = {
    "said": "sys.exit('said')",
    "status": "sys.exit(7)",
    "error": "def fails():\n    raise KeyError('of the program')\nfails()",
    "at once": "os._exit(3)",
}


@pytest.mark.parametrize("end", slow_but(["error"], ENDS))
def test_it_is_what_it_is_in_a_process_of_its_own(end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MORE", "of the environment")
    Path("train.py").write_text(SHOWING + ENDS[end])
    Path("saying.py").write_text(SAYING)
    Path("given.txt").write_text("of the input")
    found = []
    for way in (forked.begun, forked.run):
        monkeypatch.setattr(program, "_process", way)
        with Path("given.txt").open() as stdin:
            command = program.command_of("train.py", ("--lr", "1"), False)
            done = program.run(command, {"module": "saying", "word": "said"}, stdin=stdin, is_quiet=True)
        found.append(
            (done.status, [(one.content, one.is_main) for one in done.parts], done.errors, done.stderr.decode())
        )
    assert found[0] == found[1]
    assert found[0][1] == [("said", True)]
    assert "['train.py', '--lr', '1'] True of the input of the environment\n" in found[0][3]
