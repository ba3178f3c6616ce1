"""Findings that a person declares deliberate: by a comment, a pattern for parameters or lines, or a code."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence

from ...errors import must
from ...listen.frames import Location, Point, file_and_line, is_same_line, lines_of, span_at

_COMMENT = re.compile(r"#.*\bpseudograd:\s*deliberate\b")
_LINE = re.compile(r".*:(\d+|\*)")
_CODE = re.compile(r"(PG\d+)(?: in (.+))?")  # "PG204", or "PG204 in" and a pattern for files


class Deliberate:
    """What a person declared deliberate: by the patterns of `ignore=[...]`, or by a comment `# pseudograd: deliberate`.

    The methods `parameter`, `line`, `location` and `code` say whether one parameter, line, location or code is deliberate.
    """

    def __init__(self, patterns: Sequence[str] = ()) -> None:
        if isinstance(patterns, str) or not all(isinstance(pattern, str) and pattern for pattern in patterns):
            remedy = "Give parameters and lines, such as ['teacher.*', 'losses.py:12']"
            raise ValueError(must("diagnose", "ignore", "be a list of patterns", patterns, remedy))
        matches = [(pattern, _CODE.fullmatch(pattern)) for pattern in patterns]
        self._patterns = [pattern for pattern, match in matches if match is None]
        self._codes = [(match[1], match[2]) for _, match in matches if match is not None]

    def ignores_code(self, number: str, where: str) -> bool:
        """Is this code ignored everywhere, or in the file of this file:line?"""
        patterns = [pattern for code, pattern in self._codes if code == number]
        if not patterns or None in patterns:
            return bool(patterns)
        from pseudograd_notices.settings import is_file

        return any(is_file(where.rpartition(":")[0], pattern) for pattern in patterns)

    def parameter(self, *names: str) -> bool:
        """Does a pattern match one of the names of this parameter?"""
        return any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in self._patterns)

    def line(self, where: str) -> bool:
        """Does a pattern name this file:line? The file may be given by the end of its path, and the line may be `*`."""
        for pattern in filter(_LINE.fullmatch, self._patterns):
            line = f"{where.rpartition(':')[0]}:*" if pattern.endswith(":*") else where
            if is_same_line(line, pattern) or fnmatch.fnmatchcase(where, pattern):
                return True
        return False

    def location(self, location: Location) -> bool:
        """Is the line that calls torch, or the program's own line that led there, declared deliberate?"""
        points = [point for point in (location.call, location.program) if point is not None]
        return any(_has_comment(point) or self.line(file_and_line(point)) for point in points)


def _has_comment(point: Point) -> bool:
    """Is the comment on a line of this call, or alone on the line above the call?"""
    lines: Sequence[str] = lines_of(point.code.co_filename)
    span = span_at(point.code, point.instruction)
    first, last = (point.line, point.line) if span is None else (min(span[0], point.line), max(span[1], point.line))
    above = [line for line in lines[max(first - 2, 0) : first - 1] if line.lstrip().startswith("#")]
    return any(map(_COMMENT.search, [*above, *lines[first - 1 : last]]))
