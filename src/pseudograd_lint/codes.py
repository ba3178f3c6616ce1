"""The one table of codes: what `lint` says, and what others of its kind say."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Sequence

from .code import Code
from .rules import RULES

LINT: tuple[Code, ...] = tuple(rule.code for rule in RULES)
Others = Callable[[], Sequence[Code]]  # those of `diagnose`, which stand with what finds them
_MISREAD = str.maketrans("OIL", "011")
_NUMBER = re.compile(r"PG\d*", re.IGNORECASE)


def asked(text: str, others: Others) -> Code:
    """By number or name; the others are looked up where `lint` has none of it, because that may take an import of torch."""
    for known in (lambda: LINT, others):
        for code in known():
            if text.upper() == code.number or text.lower() == code.name:
                return code
    raise _unknown("explain", "code", (*LINT, *others()), text)


def selected(
    where: str, argument: str, words: Sequence[str], known: Iterable[Code], more: Collection[str] = ()
) -> set[str]:
    """The numbers that these words mean: a number or its beginning, a name, `default` or `all`. more: what else may be asked for."""
    codes = list(known)
    found: set[str] = set()
    for word in words:
        if word == "all":
            found |= {code.number for code in codes}
        elif word == "default":
            found |= {code.number for code in codes if code.is_default}
        elif some := _meant(word, codes):
            found |= some
        else:
            raise _unknown(where, argument, codes, word)
    return found


def _meant(word: str, codes: Iterable[Code]) -> set[str]:
    if _NUMBER.fullmatch(word):
        return {code.number for code in codes if code.number.startswith(word.upper())}
    return {code.number for code in codes if code.name == word.lower()}


def _unknown(where: str, argument: str, codes: Sequence[Code], got: str) -> ValueError:
    names = [code.number for code in codes] + [code.name for code in codes]
    is_number = got[:2].upper() == "PG"
    asked_for = f"PG{got[2:].upper().translate(_MISREAD)}" if is_number else got.lower()
    close = difflib.get_close_matches(asked_for, names, n=1)
    hint = f"Did you mean {close[0]!r}?" if close else "`pseudograd explain` lists them."
    return ValueError(f"{where}: {argument} must be a code such as {names[0]} or {codes[0].name}, got {got!r}. {hint}")


def explained(code: Code) -> str:
    """A page of it, as text."""
    told = "" if code.is_default else "\nOff by default: told only where --select asks for it."
    parts = [f"{code.number} {code.name}  (pseudograd {code.said_by})", f"{_sentence(code.meaning)}{told}"]
    parts += [f"{'Why' if code.from_source else 'More'}: {code.why}"] if code.why else []
    parts.append(f"Do: {code.mend}")
    if code.bad:
        parts += ["Shows it:", _indented(code.bad).rstrip(), "Is silent:", _indented(code.good).rstrip()]
    return "\n\n".join(parts) + "\n"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _indented(text: str) -> str:
    return "".join(f"    {line}" if line.strip() else line for line in text.splitlines(keepends=True))


def listed(codes: Iterable[Code]) -> str:
    rows = [
        f"{code.number}  {code.name:24}  {code.meaning}{'' if code.is_default else ' (off by default)'}"
        for code in codes
    ]
    return "\n".join(rows) + "\n"
