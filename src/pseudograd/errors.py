"""One form for every error: `<op>: <argument> must <requirement>, got <value>. <What to do>.`"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from .public_names import public_path

LONGEST_LIST, LONGEST_VALUE = 1_000, 80  # characters


def must(where: str, argument: str, requirement: str, got: object, remedy: str | None = None) -> str:
    """The text of an error; strings are quoted, everything else is shown as it prints."""
    text = f"{where}: {argument} must {requirement}, got {describe_value(got)}."
    if _is_traced(got):
        remedy = f"To trace it call pseudograd.{public_path(where)}, or write torch.fx.wrap({where!r}) below your import of it"
    return f"{text} {remedy}." if remedy else text


def not_installed(where: str, packages: str, extra: str) -> ImportError:
    """The error for packages that only a part of the library needs. extra: the extra of pyproject.toml that installs these packages."""
    return ImportError(f'{where}: {packages} must be installed, got none. Run pip install "pseudograd[{extra}]".')


def describe_value(value: object) -> str:
    """A value as an error should show it: short, and without the contents of tensors."""
    if not _is_traced(value) and hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"a {type(value).__name__} of {value.dtype} and shape {tuple(value.shape)}"
    text = " ".join(repr(value).split())
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 3]}..."


def _is_traced(value: object) -> bool:
    """Is the value a proxy of torch.fx? A proxy has every attribute, and none has a value."""
    return type(value).__module__ == "torch.fx.proxy"


class UnknownNameError(ValueError, KeyError):
    """A name that is not in the table. Both a ValueError and a KeyError, so that either `except` finds it."""

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would show its repr


def unknown_name(
    where: str, argument: str, allowed: Iterable[object], got: object, hint: str | None = None
) -> UnknownNameError:
    """The error for the name `got`, with the hint or else the closest allowed name. A list longer than LONGEST_LIST is cut."""
    names = sorted(map(str, allowed))
    listed = ", ".join(names)
    if len(listed) > LONGEST_LIST:
        listed = f"{', '.join(names[:12])} and {len(names) - 12} more names"
    text = must(where, argument, f"be one of {listed}", got)
    close = difflib.get_close_matches(got, names, n=1) if isinstance(got, str) else []
    if hint:
        text = f"{text} {hint}."
    elif close:
        text = f"{text} Did you mean {close[0]!r}?"
    return UnknownNameError(text)
