"""Make a page with tables and figures from a results file of `speed.py`. Measures nothing.

python benchmarks/report.py                              # the newest in benchmarks/results: docs/speed.md, README.md
python benchmarks/report.py speed.json --folder mine     # any other, its page and figures in a folder of yours
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from suite import figures, page
from suite.results import FOLDER, Run, load_run, newest

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
README = ROOT / "README.md"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="?", help="default: the newest in benchmarks/results")
    parser.add_argument("--folder", type=Path, help="where to write, in place of docs; leaves README.md as it is")
    options = parser.parse_args(arguments)
    path = options.results or newest()
    if path is None:
        parser.error(f"there are no results in {FOLDER.relative_to(ROOT)} yet, run benchmarks/speed.py")
    try:
        run = load_run(path)
    except ValueError as error:
        parser.error(str(error))
    folder = options.folder or DOCS
    folder.mkdir(parents=True, exist_ok=True)
    figures.draw(run, folder)
    (folder / "speed.md").write_text(page.text(run), encoding="utf-8")
    if options.folder is None:
        README.write_text(replace_part(README.read_text(encoding="utf-8"), page.readme_part(run)), encoding="utf-8")
    print(f"{folder / 'speed.md'}")
    return 0


def replace_part(text: str, part: str) -> str:
    marks = r"(<!-- speed: generated -->\n).*?(\n<!-- end -->)"
    return re.sub(marks, lambda match: match[1] + part + match[2], text, flags=re.DOTALL)


# --- for scripts/generate_docs.py -----------------------------------------------------------------------------------


def newest_run() -> Run | None:
    path = newest()
    return None if path is None else load_run(path)


def pages() -> dict[Path, str]:
    run = newest_run()
    return {} if run is None else {DOCS / "speed.md": page.text(run)}


def pictures() -> list[Path]:
    run = newest_run()
    return [] if run is None else [DOCS / name for name in figures.names(run)]


def part() -> str:
    run = newest_run()
    return page.NOT_MEASURED if run is None else page.readme_part(run)


def draw() -> None:
    run = newest_run()
    if run is not None:
        figures.draw(run, DOCS)


if __name__ == "__main__":
    sys.exit(main())
