"""Who checks a block. What this package does not run itself stands here, with the code that the other tests run."""

from ..coming_from.lines import RECIPE
from .blocks import BLOCKS, Block

# Sphinx's own: `make docs` takes each of its warnings for an error.
DIRECTIVES = {"{toctree}", "{eval-rst}", "{grid} 1 1 2 2", "{grid-item-card}", "{raw} html", "math"}
DATA = ("yaml", "toml", "json")
# Copied from a run whose lines a test holds: (page, first line): the test.
SHOWN = {
    (
        "docs/upgrade.md",
        "upgrade: torch 2.13.0 -> 2.15.0: 412 tests: 405 the same to the last bit, 4 the same but for rounding, 3 different; 3 runs",
    ): "tests/upgrade/test_suite.py",
}


# Pages whose programs other tests run, and pages that a script writes from what tests run.
ELSEWHERE = (
    "contributing/adding.md",  # tests/test_adding.py
    "docs/tutorials/*.md",  # tests/examples
    "docs/codes.md",  # tests/test_codes.py
    "contributing/upstream.md",  # test_upstream.py
)


def is_run_elsewhere(block: Block) -> bool:
    if block.page == "docs/coming_from.md":
        return block.text.strip() == RECIPE.strip()  # tests/coming_from
    return block.is_on(*ELSEWHERE)


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
