"""Sources that could hang, crash or mislead lint: it never answers with a traceback or a false sentence."""

import json
import os
import sys
from pathlib import Path

import pytest

from pseudograd_lint.rules import CODES as LINT
from pseudograd_lint.sources import check_bytes
from pseudograd_notices.command_line import main

from ..choices import slow_but

ALL = [code.number for code in LINT]
HEAD = "import torch  # loss\n"
GUARD = "x.clamp(min=0).sqrt()"


def codes(text: str, name: str = "x.py") -> list[str]:
    notices, problems = check_bytes((HEAD + text).encode(), name, ALL)
    assert problems == []
    return [notice.code for notice in notices]


def chain(line: str, depth: int = 60) -> str:
    return "def f(x):\n    a0 = x\n" + "".join(f"    a{n + 1} = {line.replace('?', f'a{n}')}\n" for n in range(depth))


DEEP = {
    "where of where": chain("torch.where(? > 0, torch.log(? * ?), ? / ?)") + "    return torch.clamp(x, 0, a60)\n",
    "a sum that learns nothing": chain("? - ?").replace("a0 = x", "a0 = x.detach()")
    + "    return a60.clamp(min=0).sqrt()\n",
    "powers": chain("? * ? ** ?").replace("a0 = x", "a0 = 1.0") + "    return x.clamp(min=a60)\n",
    "parameter": chain("[?, ?]").replace("a0 = x", "a0 = 1.0")
    + "    return torch.nn.Parameter(torch.tensor(a60)).clamp(min=1)\n",
    "names of themselves": "x = x\ny = z\nz = y\ntorch = torch\nF = F.F\ndef f(x=x):\n    return torch.sqrt(x)\n",
    "huge powers": "y = torch.clamp(x, 9**9**9**9, 10**10**10)\n",
    "elif": "def f(x):\n    if x: pass\n" + "".join(f"    elif x == {n}: y = x + {n}\n" for n in range(1500)),
    "many reads": "class M(torch.nn.Module):\n    def __init__(self):\n"
    + "".join(f"        self.p{n} = torch.nn.Parameter(torch.ones(3))\n" for n in range(400))
    + "".join(f"    def f{n}(self, x):\n        return x * self.p{n}.square()\n" for n in range(400)),
    "many uses": "def f(x):\n" + f"    d = {GUARD}\n    out.append(d)\n" * 2000,
    "one long line": "x = [" + ", ".join(["torch.where(a > 1, torch.log(a), b)"] * 2000) + "]\n",
}


def count_calls(text: str) -> int:
    """The calls and returns of Python that the check of a source takes: what it costs, on any machine."""
    count = 0

    def note(*event: object) -> None:
        nonlocal count
        count += 1

    sys.setprofile(note)
    try:
        check_bytes((HEAD + text).encode(), "x.py", ALL)
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("name", slow_but(DEEP.keys() - {"many reads"}, DEEP, pytest.mark.program))
def test_no_source_takes_long(name: str) -> None:
    assert count_calls(DEEP[name]) < 25_000_000


def test_long_things_are_read_to_their_end() -> None:
    """An elif, and a number with more digits than Python writes."""
    assert codes(DEEP["elif"].replace("y = x + 1499", f"y = {GUARD}")) == ["PG111"]
    assert codes(f"y = torch.clamp(x, 0, 0x{'f' * 20_000}).sqrt()\n") == ["PG111"]
    assert codes(f"y = torch.clamp(x, 0, 1{'0' * 400}).sqrt()\n") == ["PG111"]


def parameter(lines: str) -> str:
    return (
        "class M(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        f"        self.p = torch.nn.Parameter(torch.zeros(3))\n{lines}"
        "    def forward(self, x):\n        return x * self.p.clamp(0, 1)\n"
    )


NOT_BORN = {
    "added to": "        with torch.no_grad(): self.p += 5\n",
    "data added to": "        self.p.data += 5\n",
    "an entry": "        self.p.data[0] = 5\n",
    "by keyword": "        torch.nn.init.normal_(tensor=self.p)\n",
    "a helper": "        trunc_normal_(self.p, std=0.02)\n",
    "a loop": "        for p in self.parameters(): torch.nn.init.normal_(p)\n",
}


def test_a_start_that_is_changed_afterwards_is_not_known() -> None:
    """Also by a function that is applied to the model."""
    apply = "        self.apply(init)\n"
    assert "PG101" in codes(parameter(""))
    other = "class N(torch.nn.Module):\n    def __init__(self):\n        torch.nn.init.normal_(self.p)\n"
    assert "PG101" in codes(parameter("") + other)
    assert "PG101" in codes(parameter(apply) + "def init(m):\n    torch.nn.init.zeros_(m.bias)\n")
    assert "PG101" not in codes(parameter(apply) + "def init(m):\n    torch.nn.init.normal_(m.p)\n")
    for name, line in NOT_BORN.items():
        assert "PG101" not in codes(parameter(line)), name


SILENT = {
    "a global": f"low = 0\ndef set():\n    global low\n    low = 1\ndef f(x):\n    return {GUARD.replace('0', 'low')}\n",
    "a nonlocal": "def f(x):\n    low = 0\n    def g():\n        nonlocal low\n        low = 1\n    g()\n"
    "    return x.clamp(min=low).sqrt()\n",
    "out=": "def f(x):\n    y = x.clamp(min=0)\n    torch.add(y, 1, out=y)\n    return y.sqrt()\n",
    "a mask": "def f(x):\n    y = x.clamp(min=0)\n    return y[y > 0].sqrt()\n",
    "a mask by name": "def f(x):\n    y = x.clamp(min=0)\n    m = (y > 0) & (x < 5)\n    return y[m].sqrt()\n",
    "star": "from torch import *\ndef f(x):\n    return sqrt(clamp(x, 0, 1))\n",
    "hidden": "def f(torch, x):\n    return torch.sqrt(torch.clamp(x, 0))\n",
    "rest": "def f(*x):\n    return torch.nn.functional.margin_ranking_loss(*x)\n",
    "walrus": "def f(x):\n    if (y := x.clamp(min=0)) is not None and (y := y + 1) is not None:\n        return y.sqrt()\n",
    "match": "def f(x):\n    y = x.clamp(min=0)\n    match x:\n        case [y, *_]: return y.sqrt()\n",
    "a loop": "def f(x):\n    low = 0\n    while x:\n        y = x.clamp(min=low).sqrt()\n        low += 1\n    return y\n",
}


def test_nothing_false_is_said() -> None:
    """An index is no mask."""
    for name, text in SILENT.items():
        assert codes(text) == [], name
    assert codes("def f(x, i):\n    return x.clamp(min=0)[i].sqrt() + x.clamp(min=0)[:, 0].sqrt()\n") == ["PG111"] * 2


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("x = (7\n  %d)\n" + GUARD, 3),
        ("%matplotlib inline\n" + GUARD, 2),
        ("x = !ls\n%cd ..\\\n  more\n" + GUARD, 4),
        ("%%time\n" + GUARD, 2),
    ],
)
def test_cells_are_python_or_what_ipython_makes_of_it(source: str, line: int) -> None:
    cells = [{"cell_type": "code", "source": text} for text in (HEAD, source)]
    notices, problems = check_bytes(json.dumps({"cells": cells}).encode(), "n.ipynb", ALL)
    assert problems == []
    assert [(notice.cell, notice.line) for notice in notices] == [(2, line)]


def test_a_message_names_a_line_of_a_cell() -> None:
    first = "class M(torch.nn.Module):\n    def __init__(self):\n        self.p = torch.nn.Parameter(torch.zeros(3))\n"
    text = f"{first}\n    def forward(self, x):\n        return x * self.p.clamp(0, 1)\n"
    cells = [{"cell_type": "code", "source": part} for part in (HEAD, text)]
    (notice,), _ = check_bytes(json.dumps({"cells": cells}).encode(), "n.ipynb", ["PG101"])
    assert "(cell 2, line 3)" in notice.message


def test_what_is_no_notebook_is_a_line() -> None:
    cells = ('{"a": 1}', '[{"cell_type": "code"}]', '[{"cell_type": "code", "source": [1]}]')
    for text in ("[]", "5", "", "[" * 100_000, *(f'{{"cells": {several}}}' for several in cells)):
        notices, (problem,) = check_bytes(text.encode(), "n.ipynb", ALL)
        assert (notices, problem.message[:26]) == ([], "is no notebook of version ")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
def test_files_that_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pipes, links that lead nowhere or round, folders that are called as modules, and names with everything in them."""
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe.py")
    Path("folder.py").mkdir()
    for link, to in (("nowhere.py", "gone.py"), ("self.py", "self.py"), ("up", "..")):
        Path(link).symlink_to(to)
    Path("a b, c:%d ü.py").write_text(f"{HEAD}loss = {GUARD}\n")
    assert main(["lint", ".", "--output-format", "json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert [finding["path"] for finding in document["findings"]] == ["a b, c:%d ü.py"]
    assert document["problems"] == []
