"""docs/codes.md: a section for each code of every command. And the table in docs/lint.md of how often each rule is right."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from pseudograd.diagnosis.judge.findings import CODES
from pseudograd_lint.rules import CODES as LINT
from pseudograd_notices.answers import CODES as ANSWERS
from pseudograd_notices.code import Code

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "codes.md"
Label = dict[str, Any]
LABELS = ROOT / "tests" / "lint" / "labels.jsonl"


def text() -> str:
    head = (
        "# Codes\n\n`pseudograd lint` reports PG1xx, `diagnose` PG2xx, `upgrade` PG3xx and `bisect` PG4xx. `pseudograd explain PG203` "
        "prints a program that has\nthe code, and one without it; [ten ways to lose a gradient](ten_ways.md) has programs for `diagnose`. "
        "A number is never given to another code.\n"
    )
    return "\n".join([head, *map(_section, (*LINT, *CODES, *ANSWERS))])


def _section(code: Code) -> str:
    off = "" if code.is_default else " Off by default: `--select " + code.number + "`."
    mend = code.mend if code.from_source else f"{code.mend[0].upper()}{code.mend[1:]}."
    parts = [f"## {code.number}", f"**{code.name}**: {code.meaning}.{off} {code.why}".rstrip(), f"Instead: {mend}"]
    if code.bad and code.from_source:
        parts += [f"```python\n{code.bad}```", "Silent with:", f"```python\n{_new_lines(code.bad, code.good)}```"]
    return "\n\n".join(parts) + "\n"


def _new_lines(bad: str, good: str) -> str:
    """The lines of the second program that the first lacks, with two blank lines before a function, as the formatter puts them."""
    old, new = re.sub(r"  # PG\d+$", "", bad, flags=re.M).splitlines(), good.splitlines()
    operations = SequenceMatcher(None, old, new).get_opcodes()
    groups = [new[start:end] for name, _, _, start, end in operations if name in ("insert", "replace")]
    text = "\n".join(textwrap.dedent("\n".join(group)).strip("\n") for group in groups)
    return re.sub(r"\n+(?=def )", "\n\n\n", text) + "\n"


def precision() -> str:
    """For each rule: how many of its labelled findings are true and worth knowing."""
    labels = [json.loads(line) for line in LABELS.read_text(encoding="utf-8").splitlines()]
    rows = [
        "| code | name | on by default | right in packages that led to changes | right in other packages |",
        "|---|---|---|---|---|",
    ]
    for code in LINT:
        by_default = "yes" if code.is_default else "no"
        figures = " | ".join(_shares(label for label in labels if label["code"] == code.number))
        rows.append(f"| [{code.number}](codes.md#{code.number.lower()}) | {code.name} | {by_default} | {figures} |")
    default = {code.number for code in LINT if code.is_default}
    fitted, fresh = _shares(label for label in labels if label["code"] in default)
    count = len(labels), sum(label["fresh"] for label in labels), len({label["package"] for label in labels})
    rows += ["", f"The default codes together: {fitted} in packages that led to changes, {fresh} in others. "]
    rows[-1] += "{} labels, {} of them in the last column, in {} packages.".format(*count)
    off = [code.number for code in LINT if not code.is_default]
    rows.append(
        f"{' and '.join(off)} are off by default, because they are right too seldom: `--select default,{','.join(off)}` turns them on."
    )
    return "\n".join(rows)


def _shares(labels: Iterable[Label]) -> list[str]:
    """The share of true findings in the packages that the rules were fitted to, and in fresh ones."""
    verdicts: dict[bool, list[bool]] = {False: [], True: []}
    for label in labels:
        verdicts[label["fresh"]].append(label["verdict"])
    return [
        f"{sum(true)} of {len(true)} ({sum(true) / len(true):.2f})" if true else "none was found"
        for true in verdicts.values()
    ]
