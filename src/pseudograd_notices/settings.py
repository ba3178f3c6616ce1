"""`[tool.pseudograd]`: the settings of a project, in the nearest pyproject.toml that has the table, from the working folder upward."""

from __future__ import annotations

import difflib
import fnmatch
import glob
import os
import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path, PurePath
from typing import NamedTuple, TypeVar

_FILE = "pyproject.toml"
# Only a text with this can have the table; other files are not parsed.
_TABLE = re.compile(r"""tool["']?\s*\.\s*["']?pseudograd\b|^\s*\[\s*tool\s*\]""", re.MULTILINE)
_TOML_MODULES = ("tomllib", "tomli")  # the first is of Python 3.11
Pin = TypeVar("Pin")
Ignores = tuple[tuple[str, tuple[str, ...]], ...]


class Settings(NamedTuple):
    """The values of the table; a value is empty if the table does not have its key.

    file: the file with the table; None if no file has it.
    per_file_ignores: pairs of a pattern for files, and the codes to leave out there.
    """

    file: Path | None = None
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    per_file_ignores: Ignores = ()
    exclude: tuple[str, ...] = ()
    baseline: str = ""
    pin: str = ""

    @property
    def root(self) -> Path | None:
        return None if self.file is None else self.file.parent

    def argument(self, key: str) -> str:
        """The name of a setting in the text of an error."""
        return f"{key} of [tool.pseudograd] in {shorten_path(self.file)}"

    @property
    def baseline_file(self) -> Path | None:
        return self.file.parent / self.baseline if self.file is not None and self.baseline else None

    def file_patterns(self, pattern: str) -> list[str]:
        """The patterns that match `pattern` at the end of a path, for paths from the working folder and from the folder of the settings."""
        pattern = pattern.replace("**/", "").removeprefix("./").rstrip("/")
        folder = glob.escape(PurePath(self.root or "").as_posix().rstrip("/"))
        return [f"{start}{pattern}" for start in ("", "*/", f"{folder}/", f"{folder}/*/")]

    def make_pin(self, where: str, make: Callable[[str], Pin]) -> Pin:
        """The context that `make` makes for the pin. An error names the file of the settings."""
        try:
            return make(self.pin)
        except ValueError as error:
            raise ValueError(f"{where}: {self.argument('pin')} must be an edge, got {self.pin!r}. {error}") from error

    def excludes(self, path: str) -> bool:
        """Does `exclude` leave out this file, or a folder around it?"""
        patterns = [pattern for text in self.exclude for pattern in self.file_patterns(text)]
        files = (PurePath(path), PurePath(os.path.abspath(path))) if patterns else ()
        parts = [str(part) for file in files for part in (file, *file.parents) if str(part) != os.curdir]
        return any(is_file(part, pattern) for part in parts for pattern in patterns)


def is_file(path: str, pattern: str) -> bool:
    """Does a pattern of `file_patterns` match the file? An absolute pattern is compared with the absolute path."""
    is_absolute = os.path.isabs(pattern)
    if os.path.isabs(path) and not is_absolute:
        return False
    return fnmatch.fnmatchcase(PurePath(os.path.abspath(path) if is_absolute else path).as_posix(), pattern)


def shorten_path(file: Path | None) -> str:
    """The name of a file in the working folder; else its whole path."""
    return str(file) if file is None or file.parent != Path.cwd() else file.name


def read_settings(where: str) -> Settings:
    """The settings for a command that runs in the working folder.

    Raises: ValueError with the file, the key and the value for a file that is no TOML, and for a table with other keys or values.
    """
    try:
        folder = Path.cwd()
    except OSError:  # the working folder was removed
        return Settings()
    for file in (parent / _FILE for parent in (folder, *folder.parents)):
        try:
            content = file.read_bytes()
        except OSError:
            continue
        text = content.decode("utf-8", "replace")
        if _TABLE.search(text) and (table := _parse_table(where, file, content)) is not None:
            return _check_table(where, file, table)
    return Settings()


def _parse_table(where: str, file: Path, content: bytes) -> object:
    for name in _TOML_MODULES:
        try:
            loads = import_module(name).loads
        except ImportError:
            continue
        try:
            tool = loads(content.decode()).get("tool")
        except ValueError as error:
            raise ValueError(
                f"{where}: {shorten_path(file)} must be TOML, got what cannot be read: {error}."
            ) from error
        return tool.get("pseudograd") if isinstance(tool, dict) else None
    remedy = "Install tomli, or run this with Python 3.11 or later."
    raise ValueError(
        f"{where}: [tool.pseudograd] in {shorten_path(file)} must be read by a parser of TOML, got none. {remedy}"
    )


def _check_table(where: str, file: Path, table: object) -> Settings:
    name = shorten_path(file)
    if not isinstance(table, dict):
        raise ValueError(f"{where}: tool.pseudograd in {name} must be a table, got {table!r}. Write [tool.pseudograd].")
    settings, keys = Settings(file), sorted(_KEYS)
    for key, value in table.items():
        if key not in _KEYS:
            close = difflib.get_close_matches(key.replace("_", "-"), keys, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise ValueError(
                f"{where}: a key of [tool.pseudograd] in {name} must be one of {', '.join(keys)}, got {key!r}.{hint}"
            )
        read, kind, example = _KEYS[key]
        try:
            content = read(value)
        except TypeError as error:
            remedy = f"Write it as in {key} = {example}."
            raise ValueError(f"{where}: {settings.argument(key)} must be {kind}, got {value!r}. {remedy}") from error
        settings = Settings(**{**settings._asdict(), key.replace("-", "_"): content})
    return settings


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise TypeError
    return value


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise TypeError
    return tuple(map(_text, value))


def _texts_by_pattern(value: object) -> Ignores:
    if not isinstance(value, dict):
        raise TypeError
    return tuple((_text(pattern), _texts(codes)) for pattern, codes in value.items())


_LIST_OF_TEXTS = (_texts, "a list of texts")
_KEYS: dict[str, tuple[Callable[[object], object], str, str]] = {
    "select": (*_LIST_OF_TEXTS, '["default", "PG104"]'),
    "ignore": (*_LIST_OF_TEXTS, '["PG102", "losses.py:12"]'),
    "per-file-ignores": (_texts_by_pattern, "a table of lists of codes", '{ "tests/*" = ["PG102"] }'),
    "exclude": (*_LIST_OF_TEXTS, '["vendored"]'),
    "baseline": (_text, "the path of a file", '"pseudograd.json"'),
    "pin": (_text, "an edge", '"torch<=2.13"'),
}
