"""The seven parts of our docstrings as Sphinx reads them: a summary, then `Name:` at the start of a line begins a part.

Each part becomes a field of that name, in the order of the docstring. A word in backticks is code, as in Markdown; `docs/memory.md` in a
text becomes a link to that page.
"""

from __future__ import annotations

import inspect
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

PART = re.compile(r"^(Forward|Backward|Args|Returns|Raises|Example|Source):[ \t]*(.*)$")
ARGUMENT = re.compile(r"^    ([*\w][\w, *]*): (.*)$")
# What scripts/torch_inventory.py wrote: four lines of text, then compressed ones that begin with a name.
_INVENTORY = Path(__file__).with_name("torch.inv").read_bytes().split(b"\n", 4)[4]
TORCHS = frozenset(line.split()[0] for line in zlib.decompress(_INVENTORY).decode().splitlines())


def parts(lines: list[str]) -> Iterator[tuple[str, list[str]]]:
    """("", the summary's lines), and then each part by its name. What stands behind the colon is its first line."""
    name, held = "", []
    for line in lines:
        found = PART.match(line)
        if found is None:
            held.append(line)
            continue
        yield name, held
        name, held = found[1], [found[2]] if found[2] else []
    yield name, held


def arguments(lines: list[str]) -> Iterator[tuple[str, str]]:
    """The name or names of each argument, and its text."""
    name, held = "", []
    for line in lines:
        found = ARGUMENT.match(line)
        if found is None:
            held.append(line.strip())
            continue
        if name:
            yield name, " ".join(held)
        name, held = found[1], [found[2]]
    if name:
        yield name, " ".join(held)


def as_rst(lines: list[str]) -> list[str]:
    """The docstring in reStructuredText."""
    done: list[str] = []
    for name, held in parts(lines):
        if name == "Args":
            done += [":Arguments:", *(f"    * **{one}** – {_inline(text)}" for one, text in arguments(held))]
        elif name == "Example":
            done += [":Example:", "    .. code-block:: pycon", ""]
            done += [
                f"        {line}".rstrip()
                for line in dedent("\n".join(held)).replace("  # doctest: +SKIP", "").strip("\n").split("\n")
            ]
        elif name:
            done += [f":{name}:", f"    {_inline(_joined(held))}"]
        else:
            done += [_inline(line) for line in held]
        done += [""]
    return done


def _joined(lines: list[str]) -> str:
    return " ".join(line.strip() for line in lines if line.strip())


def _inline(text: str) -> str:
    """Our backticks are code; stars, bars and underscores are themselves; a page of docs is a link."""
    pieces = re.split(r"(`[^`]+`|docs/[\w/]+\.md|torch(?:\.\w+)+)", text)
    return "".join(_piece(piece) for piece in pieces)


def _piece(piece: str) -> str:
    if piece.startswith("`"):
        return f"``{piece[1:-1]}``"
    if piece.startswith("docs/") and piece.endswith(".md"):
        return f":doc:`/{piece[5:-3]}`"
    if piece in TORCHS:
        return f":py:obj:`{piece}`\\ "  # the end of a role, which may stand before a bracket
    return re.sub(r"([*|\\_])", r"\\\1", piece)


def _process(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = as_rst(inspect.cleandoc("\n".join(lines)).split("\n"))


def _as_on_the_site(app: Any, name: str, source: list[str]) -> None:
    """On GitHub a page may link to a file outside docs; on the site such a link is the file's name, and the README the first page."""
    up = name.count("/")
    if name in _OF_THE_ROOT:
        source[0] = _read_root(_OF_THE_ROOT[name]) + source[0].partition("\n\n")[2]
    source[0] = source[0].replace("](" + "../" * (up + 1) + "README.md)", "](" + "../" * up + "index.md)")
    source[0] = re.sub(r"(```python\n.*?)\n\n```", r"\1\n```", source[0], flags=re.S)  # the end of a doctest
    source[0] = re.sub(r"\]\((?:\.\./)+examples/(\w+)\.ipynb\)", "](" + "../" * up + r"notebooks/\1.md)", source[0])
    source[0] = re.sub(r"\[([^\]]+)\]\(" + re.escape("../" * (up + 1)) + r"[^)]+\)", r"\1", source[0])


# Pages whose first paragraph only names a file of the root: on the site it is that file.
_OF_THE_ROOT = {"index": "README.md", "changelog": "CHANGELOG.md"} | {
    f"notebooks/{name}": f"examples/{name}.ipynb" for name in ("analysis_of_clamp_with_grad", "questions")
}


def _read_root(name: str) -> str:
    """The file names the pages of the site by their paths, and notebooks by their files. A link to any other file is that link's text."""
    text = Path(__file__).parents[1].joinpath(name).read_text(encoding="utf-8")
    if name.endswith(".ipynb"):
        return "\n\n".join(cells_as_markdown(text)) + "\n"
    text = re.sub(r"\]\(examples/(\w+)\.ipynb\)", r"](docs/notebooks/\1.md)", text)
    text = re.sub(r"(?<!!)\[([^\]]+)\]\((?!docs/|https?:|#)[^)]+\)", r"\1", text)
    text = re.sub(r"\[([^\]]+)\]\(docs/([\w/]+\.html)\)", r'<a href="\2">\1</a>', text)
    return text.replace("](docs/", "](") + "\n"


def cells_as_markdown(notebook: str) -> Iterator[str]:
    """The text and the code of the cells, and what the code printed and drew when the notebook was executed."""
    for cell in json.loads(notebook)["cells"]:
        text = "".join(cell["source"])
        yield text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```"
        for output in cell.get("outputs", ()):
            if "text" in output:
                yield f"```text\n{''.join(output['text']).rstrip()}\n```"
            if "image/png" in output.get("data", {}):
                yield f"![What the code above draws](data:image/png;base64,{''.join(output['data']['image/png']).strip()})"


def setup(app: Any) -> dict[str, bool]:
    app.setup_extension("sphinx.ext.autodoc")
    app.connect("autodoc-process-docstring", _process)
    app.connect("source-read", _as_on_the_site)
    return {"parallel_read_safe": True}
