"""What a command prints to: terminals that lack characters, and pipes whose reader has left."""

from __future__ import annotations

import codecs
import os
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

_ALIKE = {"–": "-", "—": "-", "−": "-", "·": "*", "×": "x", "≤": "<=", "≥": ">=", "→": "->", "…": "...", "’": "'"}


@contextmanager
def plain() -> Iterator[None]:
    """Characters that the terminal does not have are printed as those that are most alike."""
    before = [(stream, stream.errors) for stream in (sys.stdout, sys.stderr) if hasattr(stream, "reconfigure")]
    try:
        for stream, _ in before:
            stream.reconfigure(errors="pseudograd.plain")
        yield
    finally:
        for stream, errors in before:
            stream.reconfigure(errors=errors)  # which flushes, too


def abandon(stream: TextIO) -> None:
    """Nobody reads this stream: what is still to be written to it goes nowhere, so that Python's own last flush does not fail."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _alike(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    return "".join(_ALIKE.get(character) or _letter(character) for character in missing), error.end


def _letter(character: str) -> str:
    """é is e, ² is 2; what has no such part is a question mark."""
    return unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode("ascii") or "?"


codecs.register_error("pseudograd.plain", _alike)
