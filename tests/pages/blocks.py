"""Every fenced block of every page, and whose pages these are."""

import re
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "contributing").rglob("*.md"),
        *(ROOT / "skills").rglob("*.md"),
        ROOT / "llms.txt",
    )
)
_OPENS = re.compile(r"^ *(`{3,}|~{3,}|:{3,})([^`]*)$")


class Block(NamedTuple):
    """page: its path from the root. line: of the opening fence. language: what stands behind the fence. text: the lines between."""

    page: str
    line: int
    language: str
    text: str
    is_generated: bool

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    def is_on(self, *patterns: str) -> bool:
        return any(fnmatch(self.page, pattern) for pattern in patterns)


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks_of(page: str, text: str | None = None) -> Iterator[Block]:
    """Of a page, or of a text in its place. A colon fence holds Markdown, so that what stands in it is read like the rest."""
    lines = iter(enumerate((text_of(page) if text is None else text).splitlines(), 1))
    is_generated = False
    for number, line in lines:
        is_generated = (is_generated or line.endswith(": generated -->")) and line != "<!-- end -->"
        opens = _OPENS.match(line)
        if opens is None:
            continue
        fence, language = opens[1], opens[2].strip()
        if fence[0] == ":":
            if language:  # else it is the end of one
                yield Block(page, number, language, "", is_generated)
            continue
        inside = []
        for _, line in lines:
            if line.strip().startswith(fence) and not line.strip(" `~"):
                break
            inside.append(line)
        else:
            raise AssertionError(f"{page}:{number}: the block never ends")
        yield Block(page, number, language, "\n".join(inside) + "\n", is_generated)


def prose_of(page: str) -> str:
    """The page without its fenced blocks; its lines keep their numbers."""
    return re.sub(
        r"^ *(`{3,}|~{3,}).*?^ *\1", lambda match: "\n" * match[0].count("\n"), text_of(page), flags=re.M | re.S
    )


BLOCKS = [block for page in PAGES for block in blocks_of(page)]
