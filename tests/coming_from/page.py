"""Write docs/coming_from.md from the table in `lines.py`."""

from __future__ import annotations

from pathlib import Path

from .lines import DEFECTS, LINES, NOT_THERE, RECIPE, Line

PAGE = Path(__file__).resolve().parents[2] / "docs" / "coming_from.md"

_START = """\
# Coming from another library

One line before, one line after, and what differs. Generated from `tests/coming_from/lines.py` by `scripts/generate_docs.py`; every
`after` on this page is run, as it stands here, by `tests/coming_from/test_formulas.py` and compared with the formula of the left side
written apart: value and gradient, both signs of grad and zero, at, around and far from every bound, in float64 and float32. Where a
project has a defect, the formula is the one it means. The projects are not run here; those on TensorFlow were only ever read.

`x` is a tensor; `lo`, `hi`, `b`, `s`, `z` and the like are the numbers or tensors you have; `pg` is `import pseudograd as pg`.
What a *rule* and an *edge* are: [clamp](ops/clamp.md).
"""

_RECIPE = """\
## For libraries: an optional dependency

The fallback has the same values and gradients for number bounds, in every float dtype, at the bounds and for infinities and NaN; a test
runs this block with pseudograd hidden and compares. It lacks torch.func, forward mode, and gradients to tensor bounds. Leave the `if` out
and it is `rule="identity"`.
"""


def text() -> str:
    parts = [_START]
    for project, lines in LINES.items():
        parts.append(
            f"## {project}\n\n| before | after | what differs |\n|---|---|---|\n" + "\n".join(map(_row, lines)) + "\n"
        )
    defects = "\n".join(f"- **{whose}**: {what}" for whose, what in DEFECTS.values())
    parts.append(
        f"## Defects that ours must not have\n\nEach has a test in `tests/coming_from/test_defects.py`.\n\n{defects}\n"
    )
    missing = "\n".join(f"- **{what}**: {why}" for what, why in NOT_THERE)
    parts.append(f"## What we do not reproduce\n\n{missing}\n")
    parts.append(f"{_RECIPE}\n```python\n{RECIPE}```\n")
    return "\n".join(parts)


def _row(line: Line) -> str:
    return f"| {_code(line.before)} | {_code(line.after)} | {line.differs} |"


def _code(source: str) -> str:
    """As code in a table cell, where a bar must be escaped."""
    return "`" + source.replace("|", "\\|") + "`"
