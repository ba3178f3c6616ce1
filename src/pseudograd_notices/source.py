"""Lines of Python source, and of notebook cells that IPython reads and Python does not."""

from __future__ import annotations

import ast
import io
import os
import re
import tempfile
import tokenize
from collections.abc import Callable
from pathlib import Path

_MAGIC = re.compile(r"^\s*(?:%|!|\?)|^\s*[\w.]+\s*\?\??\s*$|^\s*[\w, ]+=\s*[%!]")
_OTHER_LANGUAGES = re.compile("%%(bash|sh|html|javascript|js|latex|markdown|writefile|cython|R|sql|script)")


def split_lines(text: str) -> list[str]:
    """The lines as ast counts them: a form feed, unlike in str.splitlines, ends no line."""
    return re.split(r"\r\n|\r|\n", text)


def blank_magics(source: str) -> str:
    """The cell with `pass` in place of each line of IPython, so that all other lines keep their numbers."""
    lines = split_lines(source)
    first = next((line for line in lines if line.strip()), "")
    if _OTHER_LANGUAGES.match(first):
        return ""
    result = []
    is_continued = False
    indent = ""
    for line in lines:
        is_format = line.lstrip().startswith("%s")  # a line of a long string, and no magic
        is_magic = is_continued or (_MAGIC.match(line) is not None and not is_format)
        if is_magic and not is_continued:  # the lines that continue it may have any indent
            indent = line[: len(line) - len(line.lstrip())]
        result.append(f"{indent}pass" if is_magic else line)
        is_continued = is_magic and line.rstrip().endswith("\\")
    return "\n".join(result)


def span(text: str, node: ast.expr) -> slice:
    """The position of the expression in the text. ast counts bytes, and this counts characters."""
    lines = re.findall(r"[^\r\n]*(?:\r\n|\r|\n|$)", text)

    def position(line: int, column: int) -> int:
        return sum(map(len, lines[: line - 1])) + len(lines[line - 1].encode()[:column].decode())

    return slice(
        position(node.lineno, node.col_offset), position(node.end_lineno or node.lineno, node.end_col_offset or 0)
    )


def edit_file(where: str, path: str, edit: Callable[[str], str]) -> bool:
    """Edit a file. Returns whether its text changed. The file is written as a whole or not at all; encoding, line ends, mode and links
    stay.
    """
    file = Path(path).resolve()
    content = file.read_bytes()
    encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
    edited = edit(content.decode(encoding)).encode(encoding)
    if edited == content:
        return False
    staged = ""
    try:
        file.open("ab").close()  # raises where the file may not be written
        handle, staged = tempfile.mkstemp(dir=file.parent)
        with os.fdopen(handle, "wb") as stream:
            stream.write(edited)
        os.chmod(staged, file.stat().st_mode)
        os.replace(staged, file)
    except OSError as error:
        remedy = "Nothing in it changed; see that its folder can be written."
        raise ValueError(
            f"{where}: {path} must be a file that can be written, got {error.strerror!r}. {remedy}"
        ) from error
    finally:
        if staged:
            Path(staged).unlink(missing_ok=True)
    return True
