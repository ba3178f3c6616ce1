"""The output of commands: on terminals that lack characters, and to pipes whose reader has left."""

from __future__ import annotations

import codecs
import io
import os
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

_SIMILAR = {"–": "-", "—": "-", "−": "-", "·": "*", "×": "x", "≤": "<=", "≥": ">=", "→": "->", "…": "...", "’": "'"}


@contextmanager
def plain() -> Iterator[None]:
    """Inside, a character that the terminal lacks is printed as a similar character, and text for a stream that is None is lost."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, io.StringIO())
    before = [(stream, stream.errors) for stream in (sys.stdout, sys.stderr) if hasattr(stream, "reconfigure")]
    try:
        for stream, _ in before:
            stream.reconfigure(errors="pseudograd.plain")
        yield
    finally:
        for stream, errors in before:
            stream.reconfigure(errors=errors)  # this also flushes


def abandon(stream: TextIO) -> None:
    """Send the rest of a stream whose reader has left to nowhere, so that Python's last flush does not fail."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _replace_missing(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    return "".join(_SIMILAR.get(character) or _letter(character) for character in missing), error.end


def _letter(character: str) -> str:
    """The ASCII part of a character: e for é, 2 for ²; a question mark if it has none."""
    return unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode("ascii") or "?"


codecs.register_error("pseudograd.plain", _replace_missing)
