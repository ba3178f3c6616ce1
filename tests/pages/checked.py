"""Who checks a block. What this package does not run itself stands here, with the code that the other tests run."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from functools import cache
from operator import attrgetter

import pseudograd as pg
from pseudograd.public_names import public_path
from pseudograd.rule import OPS

from .. import test_adding, test_codes
from ..coming_from.lines import RECIPE
from ..examples.test_examples import EXAMPLES, TUTORIALS, cells_of_script
from .blocks import BLOCKS, ROOT, Block, text_of

# Sphinx's own: `make docs` takes each of its warnings for an error.
DIRECTIVES = {"{toctree}", "{eval-rst}", "{grid} 1 1 2 2", "{grid-item-card}", "{raw} html", "math"}
DATA = ("yaml", "toml", "json")
# Copied from a run whose lines a test holds: (page, first line): the test.
SHOWN = {
    ("docs/diagnose.md", "between ranks:"): "tests/diagnosis/test_differing.py",
}


def _tutorials() -> Iterable[str]:
    for name in TUTORIALS:
        for kind, text in cells_of_script((EXAMPLES / "tutorials" / f"{name}.py").read_text(encoding="utf-8")):
            if kind == "code":
                yield text


def _adding() -> Iterable[str]:
    for page in test_adding.PAGES:
        text = text_of(f"docs/{page}")
        yield from (step["code"] for step in test_adding._STEP.finditer(text))
        yield from re.findall(r"```sh\n(.*?)```", text, re.S)


def _upstream() -> Iterable[str]:
    """As scripts/check_upstream.py reads them: one program and one diff of each page."""
    for page in sorted((ROOT / "docs" / "upstream").glob("*.md")):
        for language in ("python", "diff"):
            yield from re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.S)[:1]


def _signatures() -> Iterable[str]:
    for name in (*OPS, "vector_quantize"):
        place = public_path(name)
        signature = re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(inspect.signature(attrgetter(place)(pg))))
        yield f"pseudograd.{place}{signature}".replace("'", '"')


# Pages whose blocks other tests run: exactly the code that a function here hands out.
ELSEWHERE: dict[str, Callable[[], Iterable[str]]] = {
    "docs/adding_a*.md": _adding,  # tests/test_adding.py
    "docs/tutorials/*.md": _tutorials,  # tests/examples
    "docs/codes.md": lambda: [
        text for code in test_codes.TABLE for text in (code.bad, code.good)
    ],  # tests/test_codes.py
    "docs/upstream/*.md": _upstream,  # test_upstream.py
    "docs/coming_from.md": lambda: [RECIPE],  # tests/coming_from
    "docs/ops/*.md": _signatures,
}


@cache
def _run_elsewhere(pattern: str) -> frozenset[str]:
    return frozenset(text.strip() for text in ELSEWHERE[pattern]())


def is_run_elsewhere(block: Block) -> bool:
    return any(block.is_on(pattern) and block.text.strip() in _run_elsewhere(pattern) for pattern in ELSEWHERE)


PYTHON = [block for block in BLOCKS if block.language == "python" and not is_run_elsewhere(block)]
SHELL = [block for block in BLOCKS if block.language == "sh" and not is_run_elsewhere(block)]


def checker(block: Block) -> str | None:
    """Of this block; None where nobody is."""
    if is_run_elsewhere(block):
        return "the tests of its page"
    if block.language in ("python", "sh", *DATA):
        return f"tests/pages/test_{'data' if block.language in DATA else block.language}.py"
    if block.language in DIRECTIVES or block.language.startswith("{grid-item-card}"):
        return "make docs"
    if block.language == "text":
        shown = SHOWN.get((block.page, block.text.partition("\n")[0]))
        return "scripts/generate_docs.py" if block.is_generated else shown
    return None
