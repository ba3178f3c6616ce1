"""Findings as text, as JSON (`findings.schema.json`), as annotations of GitHub and as SARIF 2.1.0."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from pathlib import PurePath
from typing import NamedTuple
from urllib.parse import quote

from . import baseline
from .code import Code
from .notice import Notice, Problem

_SARIF = "https://json.schemastore.org/sarif-2.1.0.json"


class Report(NamedTuple):
    """command: which of ours made it. codes: the table that its findings are of. known: how many a baseline held."""

    command: str
    version: str
    found: Sequence[Notice]
    problems: Sequence[Problem]
    codes: Sequence[Code]
    files: int = 0
    known: int = 0


def text(report: Report) -> str:
    lines = [f"{one.where}: {one.code} [{one.name}] {one.message}" for one in report.found]
    lines += [f"{one.where}: {one.message}" for one in report.problems]
    count = len(report.found)
    said = f"{count} finding{'' if count == 1 else 's'}" if count else "no findings"
    if report.files:
        said += f" in {report.files:,} file{'' if report.files == 1 else 's'}"
    if report.known:
        said += f", {report.known} known from the baseline"
    if report.problems:
        said += f", {len(report.problems)} file{'' if len(report.problems) == 1 else 's'} or cells not read"
    lines.append(
        f"{report.command}: {said}" + (f"; pseudograd explain {report.found[0].code} says more" if count else "")
    )
    return "\n".join(lines) + "\n"


def as_json(report: Report) -> str:
    said = {one.code for one in report.found}
    whole = {
        "kind": "pseudograd findings",
        "version": 1,
        "command": report.command,
        "pseudograd": report.version,
        "findings": [_row(one) for one in report.found],
        "problems": [one._asdict() for one in report.problems],
        "known": report.known,
        "codes": [
            {"code": code.number, "name": code.name, "meaning": code.meaning, "mend": code.mend}
            for code in report.codes
            if code.number in said
        ],
    }
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def _row(one: Notice) -> dict[str, object]:
    return {**one._asdict(), "path": PurePath(one.path).as_posix()}


def github(report: Report) -> str:
    """Commands of a workflow: GitHub shows each at its line."""
    lines = []
    for one in report.found:
        place = {"file": _relative(one.path)}
        if one.line and one.cell is None:
            place |= {"line": str(one.line), "endLine": str(one.end_line)}
            if one.line == one.end_line and one.column:
                place |= {"col": str(one.column), "endColumn": str(one.end_column)}
        inside = f"cell {one.cell}, line {one.line}: " if one.cell is not None else ""
        lines.append(_annotation("warning", {**place, "title": f"{one.code} {one.name}"}, inside + one.message))
    for problem in report.problems:
        place = {"file": _relative(problem.path)} | ({"line": str(problem.line)} if problem.line else {})
        lines.append(_annotation("error", {**place, "title": "not read"}, problem.message))
    return "".join(f"{line}\n" for line in lines)


def _annotation(kind: str, place: dict[str, str], message: str) -> str:
    properties = ",".join(
        f"{name}={_escaped(value).replace(':', '%3A').replace(',', '%2C')}" for name, value in place.items()
    )
    return f"::{kind} {properties}::{_escaped(message)}"


def _escaped(value: str) -> str:
    return value.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def sarif(report: Report) -> str:
    """With what GitHub's code scanning asks for: rules with help, locations, and fingerprints that hold when lines move."""
    numbers = [code.number for code in report.codes]
    seen: dict[baseline.Key, int] = {}
    results = []
    for one in report.found:
        key = baseline.key(one)
        seen[key] = seen.get(key, 0) + 1
        results.append(_result(one, numbers.index(one.code), seen[key]))
    notes = [
        {"level": "error", "message": {"text": f"{one.where}: {one.message}"}, "locations": [_location(one.path, None)]}
        for one in report.problems
    ]
    driver = {
        "name": "pseudograd",
        "semanticVersion": report.version,
        "rules": [_rule(code) for code in report.codes],
    }
    run = {
        "tool": {"driver": driver},
        "invocations": [{"executionSuccessful": not notes, "toolExecutionNotifications": notes}],
        "columnKind": "unicodeCodePoints",
        "results": results,
    }
    return json.dumps({"$schema": _SARIF, "version": "2.1.0", "runs": [run]}, indent=1, ensure_ascii=False) + "\n"


def _rule(code: Code) -> dict[str, object]:
    """Without an address of a page, as none is published: GitHub shows the help."""
    meaning = f"{code.meaning[0].upper()}{code.meaning[1:]}."
    help_text = "\n\n".join(part for part in (code.why, code.mend) if part)
    return {
        "id": code.number,
        "name": "".join(part.capitalize() for part in code.name.split("-")),
        "shortDescription": {"text": meaning},
        "fullDescription": {"text": f"{meaning} {code.why}".rstrip()},
        "help": {"text": help_text, "markdown": help_text},
        "defaultConfiguration": {"level": "warning" if code.is_default else "note", "enabled": code.is_default},
        "properties": {"tags": ["gradient"], "precision": "high" if code.is_default else "medium"},
    }


def _result(one: Notice, index: int, occurrence: int) -> dict[str, object]:
    key = "\n".join((*baseline.key(one), str(occurrence)))
    inside = f"Cell {one.cell}, line {one.line}: " if one.cell is not None else ""
    return {
        "ruleId": one.code,
        "ruleIndex": index,
        "level": "warning",
        "message": {"text": inside + one.message},
        "locations": [_location(one.path, one)],
        "partialFingerprints": {
            "pseudogradFinding/v1": hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()[:32]
        },
    }


def _location(path: str, one: Notice | None) -> dict[str, object]:
    region: dict[str, object] = {"startLine": 1}
    if one is not None and one.line and one.cell is None:
        region = {"startLine": one.line, "endLine": one.end_line, "snippet": {"text": one.expression}}
        if one.column:
            region |= {"startColumn": one.column, "endColumn": one.end_column}
    return {"physicalLocation": {"artifactLocation": {"uri": quote(_relative(path))}, "region": region}}


def _relative(path: str) -> str:
    """To the folder that one is in, which in a workflow is the root of the repository."""
    try:
        inside = os.path.relpath(path)
    except ValueError:  # another drive
        return PurePath(path).as_posix()
    return PurePath(path if inside.startswith("..") else inside).as_posix()


FORMATS: dict[str, Callable[[Report], str]] = {"text": text, "json": as_json, "github": github, "sarif": sarif}
