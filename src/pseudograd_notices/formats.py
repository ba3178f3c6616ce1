"""Findings as text, as JSON (`findings.schema.json`), as annotations of GitHub and as SARIF 2.1.0."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import PurePath
from typing import NamedTuple
from urllib.parse import quote

from . import own_version
from .code import Code
from .notice import Key, Notice, Problem

_WIDTH = 160  # characters of a line of source
_SARIF = "https://json.schemastore.org/sarif-2.1.0.json"


class Report(NamedTuple):
    """The findings that a command prints."""

    command: str
    notices: Sequence[Notice]
    problems: Sequence[Problem]  # the files that could not be read
    codes: Sequence[Code]  # all codes of the command
    files: int = 0  # the number of files that the command read
    known: int = 0  # the number of findings that a baseline leaves out
    has_statistics: bool = False  # does the text count the findings of each code?


def text(report: Report) -> str:
    lines: list[str] = []
    for notice in report.notices:
        lines.append(f"{notice.where}: {notice.code} [{notice.name}] {notice.message}")
        source = notice.source if len(notice.source) <= _WIDTH else notice.source[notice.column - 1 :][:_WIDTH]
        lines += [f"    {source.strip()}"] if source else []
    lines += [f"{problem.where}: {problem.message}" for problem in report.problems]
    count, problems = len(report.notices), len(report.problems)
    counts = Counter(f"{notice.code} {notice.name}" for notice in report.notices if report.has_statistics)
    lines += [f"{number:>6,}  {code}" for code, number in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))]
    summary = f"{report.command}: {_count(count, 'finding') if count else 'no findings'}"
    files_read = report.files - len({problem.path for problem in report.problems})
    is_lint_without_files = report.command == "lint" and not report.files  # its summary says "in 0 files"
    summary += f" in {_count(files_read, 'file')}" if files_read > 0 or is_lint_without_files else ""
    summary += f", {report.known} known from the baseline" if report.known else ""
    summary += f", {_count(problems, 'file')} or cells not read" if problems else ""
    summary += f"; pseudograd explain {report.notices[0].code} says more" if count else ""
    return "\n".join([*lines, summary]) + "\n"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def as_json(report: Report) -> str:
    used = {notice.code for notice in report.notices}
    document = {
        "kind": "pseudograd findings",
        "version": 1,
        "command": report.command,
        "pseudograd": own_version(),
        "findings": [_finding_fields(notice) for notice in report.notices],
        "problems": [problem._asdict() for problem in report.problems],
        "known": report.known,
        "codes": [
            {"code": code.number, "name": code.name, "meaning": code.meaning, "mend": code.mend}
            for code in report.codes
            if code.number in used
        ],
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _finding_fields(notice: Notice) -> dict[str, object]:
    fields = {**notice._asdict(), "path": PurePath(notice.path).as_posix()}
    del fields["source"]
    return fields


def github(report: Report) -> str:
    """Workflow commands, by which GitHub shows each finding at its line."""
    lines = []
    for notice in report.notices:
        location: dict[str, object] = {"file": _relative(notice.path)}
        if notice.line and notice.cell is None:
            location |= {"line": notice.line, "endLine": notice.end_line}
            if notice.line == notice.end_line and notice.column:
                location |= {"col": notice.column, "endColumn": notice.end_column}
        location["title"] = f"{notice.code} {notice.name}"
        in_cell = notice.inside.lower()  # for a notebook, "cell 3, line 4: "; otherwise empty
        lines.append(_annotation("warning", location, in_cell + notice.message))
    for problem in report.problems:
        location = {"file": _relative(problem.path)} | ({"line": problem.line} if problem.line else {})
        lines.append(_annotation("error", location | {"title": "not read"}, problem.message))
    return "".join(f"{line}\n" for line in lines)


def _annotation(kind: str, location: dict[str, object], message: str) -> str:
    values = {name: _escape(str(value)).replace(":", "%3A").replace(",", "%2C") for name, value in location.items()}
    properties = ",".join(f"{name}={value}" for name, value in values.items())
    return f"::{kind} {properties}::{_escape(message)}"


def _escape(value: str) -> str:
    return value.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def sarif(report: Report) -> str:
    """SARIF as GitHub's code scanning needs it: rules with help, locations, and fingerprints that do not change when lines move."""
    numbers = [code.number for code in report.codes]
    counts: Counter[Key] = Counter()
    results = []
    for notice in report.notices:
        counts[notice.key] += 1
        key = "\n".join((*notice.key, str(counts[notice.key])))
        fingerprint = hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()[:32]
        results.append(
            {
                "ruleId": notice.code,
                "ruleIndex": numbers.index(notice.code),
                "level": "warning",
                "message": {"text": notice.inside + notice.message},
                "locations": [_location(notice.path, notice)],
                "partialFingerprints": {"pseudogradFinding/v1": fingerprint},
            }
        )
    errors = [
        {
            "level": "error",
            "message": {"text": f"{problem.where}: {problem.message}"},
            "locations": [_location(problem.path, None)],
        }
        for problem in report.problems
    ]
    rules = [_rule(code) for code in report.codes]
    run = {
        "tool": {"driver": {"name": "pseudograd", "semanticVersion": own_version(), "rules": rules}},
        "invocations": [{"executionSuccessful": not errors, "toolExecutionNotifications": errors}],
        "columnKind": "unicodeCodePoints",
        "results": results,
    }
    return json.dumps({"$schema": _SARIF, "version": "2.1.0", "runs": [run]}, indent=1, ensure_ascii=False) + "\n"


def _rule(code: Code) -> dict[str, object]:
    """The rule of a code. It has no `helpUri`, because no page is published; GitHub shows the help."""
    help_text = "\n\n".join(part for part in (code.why, code.mend) if part)
    return {
        "id": code.number,
        "name": "".join(part.capitalize() for part in code.name.split("-")),
        "shortDescription": {"text": code.sentence},
        "fullDescription": {"text": f"{code.sentence} {code.why}".rstrip()},
        "help": {"text": help_text, "markdown": help_text},
        "defaultConfiguration": {"level": "warning" if code.is_default else "note", "enabled": code.is_default},
        "properties": {"tags": ["gradient"], "precision": "high" if code.is_default else "medium"},
    }


def _location(path: str, notice: Notice | None) -> dict[str, object]:
    region: dict[str, object] = {"startLine": 1}
    if notice is not None and notice.line and notice.cell is None:
        region = {"startLine": notice.line, "endLine": notice.end_line, "snippet": {"text": notice.expression}}
        if notice.column:
            region |= {"startColumn": notice.column, "endColumn": notice.end_column}
    return {"physicalLocation": {"artifactLocation": {"uri": quote(_relative(path))}, "region": region}}


def _relative(path: str) -> str:
    """The path from the current folder, which in a workflow is the root of the repository."""
    try:
        relative = os.path.relpath(path)
    except ValueError:  # another drive
        relative = path
    return PurePath(path if relative.startswith("..") else relative).as_posix()


FORMATS: dict[str, Callable[[Report], str]] = {"text": text, "json": as_json, "github": github, "sarif": sarif}
