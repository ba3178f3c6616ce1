"""Run the programs of contributing/upstream.md with the given interpreters, unchanged and with the remedy, and write what they print.

python scripts/check_upstream.py PYTHON [PYTHON ...]       PYTHON: interpreters with different torches and the packages of the reports

A report has a program, a remedy as a diff of one line of the program or of a file of the package, and a table of what both print.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).resolve().parent.parent / "contributing" / "upstream.md"
_TABLE = re.compile(r"(<!-- prints: generated -->\n).*?(<!-- end -->)", re.S)


class Report(NamedTuple):
    """section: its part of the page. file: that of the package that the remedy changes, or "" for the program. before, after: the line."""

    title: str
    section: str
    program: str
    file: str
    before: str
    after: str


def reports() -> list[Report]:
    return [_parse_report(section) for section in PAGE.read_text(encoding="utf-8").split("\n## ")[1:]]


def _parse_report(section: str) -> Report:
    title = section.partition("\n")[0]
    program = re.search(r"```python\n(.*?)```", section, re.S)
    diff = re.search(r"```diff\n(?:--- (\S+)\n)?-(.*?)\n\+(.*?)\n```", section)
    assert program is not None, f"{title} needs a program"
    assert diff is not None, f"{title} needs a diff of one line"
    return Report(title, section, program[1], diff[1] or "", diff[2].strip(), diff[3].strip())


def printed(python: str, report: Report, *, mended: bool) -> str:
    """The last line that the program prints, or the last line of its error."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = report.program
        if mended and report.file:
            _copied_package(python, report, folder)
        elif mended:
            program = _changed(program, report)
        (folder / "program.py").write_text(program, encoding="utf-8")
        done = subprocess.run([python, "program.py"], cwd=folder, capture_output=True, text=True, timeout=300)
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    return lines[-1] if lines else f"nothing (status {done.returncode})"


def _copied_package(python: str, report: Report, folder: Path) -> None:
    """Copy the package into the folder of the program, where Python finds it first, and change the line."""
    package = report.file.split("/")[0]
    code = f"import importlib.util as u; print(u.find_spec({package!r}).submodule_search_locations[0])"
    installed = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    shutil.copytree(installed, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    path = folder / report.file
    path.write_text(_changed(path.read_text(encoding="utf-8"), report), encoding="utf-8")


def _changed(text: str, report: Report) -> str:
    assert text.count(report.before) == 1, f"{report.title}: the remedy's line is not there once: {report.before}"
    return text.replace(report.before, report.after)


def torch_of(python: str) -> str:
    code = "import torch; print(torch.__version__.split('+')[0])"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def table(report: Report, pythons: dict[str, str]) -> str:
    rows = ["| torch | as it is | with the remedy |", "|---|---|---|"]
    for version, python in sorted(pythons.items()):
        rows.append(f"| {version} | {printed(python, report, mended=False)} | {printed(python, report, mended=True)} |")
    return "\n".join(rows) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python", nargs="+")
    pythons = {torch_of(python): python for python in parser.parse_args().python}
    text = PAGE.read_text(encoding="utf-8")
    for report in reports():
        rows = table(report, pythons)
        print(report.title, rows, sep="\n")
        text = text.replace(
            report.section, _TABLE.sub(lambda match, rows=rows: match[1] + rows + match[2], report.section)
        )
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
