"""Codes: their rows, how a user names them, and the page that `pseudograd explain` prints."""

from __future__ import annotations

import difflib
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

_MISREAD = str.maketrans("OIL", "011")
_NUMBER = re.compile(r"PG\d*", re.IGNORECASE)
_GROUPS = ("all", "default")
# A section of the page codes.md of a command: its head, and the whole section, in which some parts may be missing.
_HEAD = re.compile(r"^# (PG\d{3}) (\S+)$", re.MULTILINE)
_SECTION = re.compile(
    r"# (PG\d+) (\S+)\n\n(.+?)\.( Off by default\.)?\n\n(?:(.+?)\n\n)??Instead: (.+?)\n"
    r"(?:\n```python\n(.+?)```\n\n```python\n(.+?)```\n)?(?=\n#|\Z)",
    re.S,
)


class Code(NamedTuple):
    """A kind of notice of `lint` (PG1xx), `diagnose` (PG2xx), `upgrade` (PG3xx) or `bisect` (PG4xx). A removed number is not used again.

    number, name: two ways to ask for the code. meaning: what is true at the line, a sentence without its full stop. why: why that is bad.
    mend: what to do instead. bad, good: programs with and without this fault; tests run both. is_default: is it reported without
    `--select`? from_source: does `lint` report it?
    """

    number: str
    name: str
    meaning: str
    why: str
    mend: str
    bad: str = ""
    good: str = ""
    is_default: bool = True
    from_source: bool = True

    @property
    def command(self) -> str:
        return {"1": "lint", "2": "diagnose", "3": "upgrade", "4": "bisect"}[self.number[2]]

    @property
    def sentence(self) -> str:
        """The meaning as a sentence."""
        return f"{self.meaning[0].upper()}{self.meaning[1:]}."


def read_codes(page: Path) -> tuple[Code, ...]:
    """The codes that a page explains: a section for each of them, with the parts in this order."""
    sections = [
        [" ".join(part.split("\n")) for part in groups[:6]] + [*groups[6:]]
        for groups in _SECTION.findall(page.read_text(encoding="utf-8"))
    ]
    return tuple(
        Code(
            number, name, f"{meaning[0].lower()}{meaning[1:]}", why, mend, bad, good, not off, number.startswith("PG1")
        )
        for number, name, meaning, off, why, mend, bad, good in sections
    )


def find_code(word: str, codes: Iterable[Code]) -> Code | None:
    """The code with this number or name."""
    return next((code for code in codes if word.upper() == code.number or word.lower() == code.name), None)


def select_codes(where: str, argument: str, words: Sequence[str], codes: Sequence[Code]) -> set[str]:
    """The numbers that these words mean: a number or the beginning of one, a name, `default` or `all`."""
    numbers: set[str] = set()
    for word in words:
        start = word.upper() if _NUMBER.fullmatch(word) else "none"
        matches = {
            code.number
            for code in codes
            if word in ("all", code.name) or (word == "default" and code.is_default) or code.number.startswith(start)
        }
        if not matches and word not in _GROUPS:
            raise unknown_code(where, argument, codes, word)
        numbers |= matches
    return numbers


def drop_codes_of_others(words: Sequence[str], codes: Sequence[Code]) -> list[str]:
    """The words of a list, which all commands read, without those that name only codes of other commands."""
    own = [text for code in codes for text in (code.number, code.name)]

    def is_in(texts: Iterable[str], word: str) -> bool:
        is_number = _NUMBER.fullmatch(word) is not None
        return any(text.startswith(word.upper()) if is_number else text == word for text in texts)

    if all(word in _GROUPS or is_in(own, word) for word in words):
        return list(words)
    known = list(_names_of_all_codes())
    return [word for word in words if word in _GROUPS or is_in(own, word) or not is_in(known, word)]


def _names_of_all_codes() -> Iterator[str]:
    """The numbers and the names of the codes of all commands. Their files are not imported, because some of them import torch."""
    from .command_line import code_modules

    for module in code_modules():
        for page in Path(__file__).parents[1].joinpath(*module.split(".")).glob("codes.md"):
            for groups in _HEAD.findall(page.read_text(encoding="utf-8")):
                yield from groups


def unknown_code(where: str, argument: str, codes: Sequence[Code], word: str) -> ValueError:
    names = [code.number for code in codes] + [code.name for code in codes]
    meant = f"PG{word[2:].upper().translate(_MISREAD)}" if word[:2].upper() == "PG" else word.lower()
    close = difflib.get_close_matches(meant, names, n=1)
    hint = f"Did you mean {close[0]!r}?" if close else "`pseudograd explain` lists them."
    return ValueError(f"{where}: {argument} must be a code such as {names[0]} or {codes[0].name}, got {word!r}. {hint}")


def explain(code: Code) -> str:
    """The page of a code, as text."""
    off = "" if code.is_default else "\nOff by default: told only where --select asks for it."
    parts = [f"{code.number} {code.name}  (pseudograd {code.command})", f"{code.sentence}{off}"]
    parts += [f"{'Why' if code.from_source else 'More'}: {code.why}"] if code.why else []
    parts.append(f"Do: {code.mend}")
    if code.bad:
        bad, good = (textwrap.indent(program.rstrip(), "    ") for program in (code.bad, code.good))
        parts += ["Shows it:", bad, "Is silent:", good]
    return "\n\n".join(parts) + "\n"


def list_codes(codes: Iterable[Code]) -> str:
    off = " (off by default)"
    return "".join(f"{code.number}  {code.name:24}  {code.meaning}{off * (not code.is_default)}\n" for code in codes)
