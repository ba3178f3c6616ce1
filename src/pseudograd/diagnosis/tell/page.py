"""A diagnosis as one page: no network, no server; the data of `to_json` and the script that shows it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from ...listen.frames import lines_of
from ..count.differing import lines
from ..records import Site, Structural, plain

_AROUND = 3  # lines of source before and behind the one that counts


def page(diagnosis: Any) -> str:
    here = Path(__file__).parent
    data = diagnosis.to_json()
    data["sites"] = [{**plain(site), "source": _excerpt(site)} for site in diagnosis.sites]
    data["structural"] = [{**plain(cut), "source": _excerpt(cut)} for cut in diagnosis.structural]
    data["parameters"] = len(diagnosis.parameters)
    data["between_ranks"] = lines(getattr(diagnosis, "differences", ()))
    # Inside a script element only "</" and "<!--" would end it.
    embedded = json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")
    template = (here / "page.html").read_text(encoding="utf-8")
    parts = {"%DATA%": embedded, "%TEXT%": _escaped(str(diagnosis))}
    # In one go: what is filled in may hold the name of a placeholder too.
    return re.sub("|".join(parts), lambda found: parts[found[0]], template)


def _excerpt(record: Site | Structural) -> dict[str, object] | None:
    """Some lines of the source, and where in the middle one the expression stands, counted in characters."""
    if record.source is None:
        return None
    file, line, start, end = record.source
    lines = lines_of(file)
    if not lines:
        return None
    first = max(line - _AROUND, 1)
    text = lines[line - 1] if line <= len(lines) else ""
    encoded = text.encode()
    columns = [len(encoded[:at].decode(errors="replace")) for at in (start, end)] if 0 <= start < end else None
    return {
        "file": file,
        "first": first,
        "line": line,
        "lines": [one.rstrip("\n") for one in lines[first - 1 : line + _AROUND]],
        "columns": columns,
    }


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
