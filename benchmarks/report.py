"""A results file of `speed.py` as a page with tables and figures: draws, and measures nothing.

python benchmarks/report.py                              # the newest in benchmarks/results: docs/speed.md, README.md
python benchmarks/report.py speed.json --folder mine     # any other, its page and figures in a folder of yours
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from options import Parser
from suite import figures, page
from suite.results import FOLDER, Run, newest, read

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
README = ROOT / "README.md"


def main(arguments: list[str] | None = None) -> int:
    parser = Parser(__doc__)
    parser.add_argument("results", type=Path, nargs="?", help="default: the newest in benchmarks/results")
    parser.add_argument("--folder", type=Path, help="where to write, in place of docs; leaves README.md as it is")
    options = parser.parse_args(arguments)
    try:
        path = options.results or newest()
        if path is None:
            parser.error(f"there are no results in {FOLDER.relative_to(ROOT)} yet, run benchmarks/speed.py")
        run = read(path)
        folder = options.folder or DOCS
        folder.mkdir(parents=True, exist_ok=True)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    figures.draw(run, folder)
    (folder / "speed.md").write_text(page.text(run), encoding="utf-8")
    if options.folder is None:
        README.write_text(_with_part(README.read_text(encoding="utf-8"), page.for_readme(run)), encoding="utf-8")
    print(f"{folder / 'speed.md'}")
    return 0


def _with_part(text: str, part: str) -> str:
    marks = r"(<!-- speed: generated -->\n).*?(\n<!-- end -->)"
    return re.sub(marks, lambda found: found[1] + part + found[2], text, flags=re.DOTALL)


# --- for scripts/generate_docs.py -------------------------------------------------------------------------------------


def kept() -> Run | None:
    path = newest()
    return None if path is None else read(path)


def pages() -> dict[Path, str]:
    run = kept()
    return {} if run is None else {DOCS / "speed.md": page.text(run)}


def pictures() -> list[Path]:
    run = kept()
    return [] if run is None else [DOCS / name for name in figures.names(run)]


def part() -> str:
    run = kept()
    return page.NOT_MEASURED if run is None else page.for_readme(run)


def draw() -> None:
    run = kept()
    if run is not None:
        figures.draw(run, DOCS)


if __name__ == "__main__":
    sys.exit(main())
