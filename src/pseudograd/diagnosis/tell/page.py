"""A diagnosis as one self-contained page: the data of `to_json`, and the script that shows them."""

from __future__ import annotations

import json
import re
from pathlib import Path

from ...listen.frames import lines_of
from ...notebook import escape
from ..records import Report, Site, Structural
from .as_json import json_of, plain_record
from .text import text

_LINES_AROUND = 3  # lines of source before and after the line of a call


def page(report: Report) -> str:
    data = {
        **json_of(report),
        "sites": [_add_source(site) for site in report.sites],
        "structural": [_add_source(cut) for cut in report.structural],
        "parameters": len(report.parameters),
        "idle": len(report.idle),
    }
    # Inside a script element only "</" and "<!--" would end it.
    embedded = json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")
    parts = {"%DATA%": embedded, "%TEXT%": escape(text(report))}
    template = (Path(__file__).parent / "page.html").read_text(encoding="utf-8")
    # All at once, because the data may hold the name of a placeholder.
    return re.sub("|".join(parts), lambda match: parts[match[0]], template)


def _add_source(record: Site | Structural) -> dict[str, object]:
    """The record with some lines of the source, and the columns of the expression in characters."""
    values: dict[str, object] = {**plain_record(record), "source": None}
    file_lines = lines_of(record.source[0]) if record.source else []
    if record.source and file_lines:
        file, line, span = record.source
        first = max(line - _LINES_AROUND, 1)
        encoded = (file_lines[line - 1] if line <= len(file_lines) else "").encode()
        columns = span and [len(encoded[:at].decode(errors="replace")) for at in span]
        shown = [text.rstrip("\n") for text in file_lines[first - 1 : line + _LINES_AROUND]]
        values["source"] = {"file": file, "first": first, "line": line, "lines": shown, "columns": columns}
    return values
