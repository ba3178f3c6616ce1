"""Every Python block of a page is run, in the order of the page and in one namespace, as a reader would paste them one below the other."""

import ast
import doctest
import gc
import importlib
import linecache
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ..importing import can_import
from .blocks import Block
from .checked import PYTHON

# (page, a line of the block): what is run before that block, in the names of the page.
BEFORE = {
    ("docs/compare.md", "with concurrent.futures"): """
import sys
import types

import torch


def run(clamp, seed):
    x = torch.tensor([2.0 + seed], requires_grad=True)
    clamp(x, 0, 1).sum().backward()
    return float(x.grad.sum()) + seed


sys.modules["mine"] = mine = types.ModuleType("mine")
mine.run = run
""",
    ("docs/in_your_tools.md", "from pseudograd.integrations.transformers"): """
import transformers

trainer = transformers.Trainer(model=torch.nn.Linear(1, 1), args=transformers.TrainingArguments("trained", report_to=[]))
""",
    ("docs/in_your_tools.md", "def test_every_parameter_learns"): """
from pseudograd.integrations.pytest import diagnosed
""",
}
# ... and what is run after it, so that what it defines is used.
AFTER = {
    ("docs/compare.md", "def objective(trial)"): "del sys.modules['mine']",
    ("docs/in_your_tools.md", "def test_every_parameter_learns"): "test_every_parameter_learns(diagnosed)",
    ("docs/kinks.md", "point = load()"): """
assert [point.gradient("torch", "2.13"), point.gradient("jax")] == [[[1.0]], [[0.5]]]
""",
    ("docs/policy_clips.md", "loss = pg.policy.loss"): """
loss.sum().backward()
assert loss.shape == log_prob.grad.shape == (4, 5)
""",
}
# (page, a line of the block): why it is not run here. It is compiled, and every name it takes from pseudograd is looked up.
_RUNS = "tests/comparison/test_runs.py"
NOT_RUN = {
    ("docs/compare.md", "with concurrent.futures"): f"processes of eight; {_RUNS} runs both executors",
    ("docs/compare.md", "from dask.distributed"): f"needs the package dask; {_RUNS} runs it where it is installed",
    ("docs/compare.md", "import submitit"): f"needs the package submitit; {_RUNS} runs it where it is installed",
    ("docs/compare.md", "import ray"): f"needs the package ray; {_RUNS} runs it where it is installed",
}
# Pages that take seconds: .ci/run runs them before a change lands. What the packages of the first load warns of what it pleases.
SLOW = ("docs/compare.md", "docs/in_your_tools.md", "docs/your_own_rule.md")
# Without these modules, which an older torch may refuse to import, the block is looked up and not run: the extras bring them.
NEEDS = {
    "lightning": "import lightning",
    "transformers.trainer": "import transformers",
    "optuna": "import optuna",
    "matplotlib": "pg.plot(",
}

PAGES = sorted({block.page for block in PYTHON})
_PARSER = doctest.DocTestParser()
_OF_SLOW = (pytest.mark.program, pytest.mark.filterwarnings("default"))


def entry_of(block: Block, table: dict[tuple[str, str], str]) -> str:
    """What the table has for this block, or nothing."""
    return next((entry for (page, line), entry in table.items() if page == block.page and line in block.text), "")


def _blocks_of(page: str) -> list[Block]:
    return [block for block in PYTHON if block.page == page]


def run(block: Block, names: dict[str, Any]) -> None:
    """With >>> it must print what it says; without, it must not raise. An error tells the line of the page."""
    for code in (entry_of(block, BEFORE), None, entry_of(block, AFTER)):
        if code is None and ">>>" in block.text:
            _run_doctest(block, names)
        else:
            exec(_compiled(block, code), names)


def _run_doctest(block: Block, names: dict[str, Any]) -> None:
    test = _PARSER.get_doctest(block.text, {}, str(block), block.page, block.line)
    test.globs = names  # itself, not a copy: the next block goes on with what this one defines
    said: list[str] = []
    result = doctest.DocTestRunner().run(test, out=said.append, clear_globs=False)
    assert result.attempted > 0
    assert result.failed == 0, "".join(said)


def _compiled(block: Block, code: str | None) -> Any:
    """As if it stood in a file: torch.compile and inspect ask for its source."""
    text = block.text if code is None else code
    file = f"<{block}>" if code is None else f"<prepared for {block}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    return compile(text, file, "exec")


def names_of_pseudograd(text: str) -> Iterator[str]:
    """The dotted names that a program takes from the package: `pseudograd.compare` for `pg.compare`, and its imports."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pseudograd"):
            yield from (f"{node.module}.{name.name}" for name in node.names)
        elif isinstance(node, ast.Attribute):
            dotted = ast.unparse(node)
            if dotted.startswith(("pg.", "pseudograd.")):
                yield "pseudograd." + dotted.partition(".")[2]


def look_up(name: str) -> Any:
    dotted, *parts = name.split(".")
    value: Any = importlib.import_module(dotted)
    for part in parts:
        dotted = f"{dotted}.{part}"
        value = getattr(value, part) if hasattr(value, part) else importlib.import_module(dotted)
    return value


def only_looked_up(block: Block) -> bool:
    return bool(entry_of(block, NOT_RUN)) or lacks_a_module(block)


def lacks_a_module(block: Block) -> bool:
    used = entry_of(block, BEFORE) + block.text
    return any(line in used and not can_import(name) for name, line in NEEDS.items())


@pytest.mark.usefixtures("table_as_it_was")
@pytest.mark.parametrize("page", [pytest.param(page, marks=_OF_SLOW if page in SLOW else ()) for page in PAGES])
def test_the_blocks_of_a_page_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in _blocks_of(page):
        if only_looked_up(block):
            if not lacks_a_module(block):
                exec(entry_of(block, BEFORE), names)
            for name in names_of_pseudograd(block.text):
                look_up(name)
        else:
            run(block, names)
    names.clear()
    gc.collect()  # what warns when it is forgotten does it here, not in the next test


def test_every_exception_is_of_one_block() -> None:
    for table in (BEFORE, AFTER, NOT_RUN):
        for page, line in table:
            assert len([block for block in PYTHON if block.page == page and line in block.text]) == 1, (page, line)
    assert set(SLOW) <= set(PAGES)
