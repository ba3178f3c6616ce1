"""Execute the scripts beside this file as notebooks, and tutorials/ as pages of docs: `python examples/make_notebooks.py [NAME ...]`.

Needs jupytext, nbconvert and ipykernel. The notebooks are for reading on the web; the scripts are what is edited and
tested. What would differ from run to run or from machine to machine is taken out: cell ids, execution times, versions.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbconvert import MarkdownExporter
from nbconvert.preprocessors import ExecutePreprocessor

HERE = Path(__file__).parent
SCRIPTS = ("analysis_of_clamp_with_grad", "questions")
TUTORIALS = tuple(sorted(path.stem for path in (HERE / "tutorials").glob("*.py")))
PAGES = HERE.parent / "docs" / "tutorials"
ANY_PYTHON = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def executed(script: Path) -> Any:
    """The script as a notebook with outputs."""
    notebook = jupytext.read(script, fmt="py:percent")
    ExecutePreprocessor(timeout=300, kernel_name="python3").preprocess(notebook, {"metadata": {"path": str(HERE)}})
    return notebook


def joined(outputs: list[Any]) -> list[Any]:
    """Printed text in one piece: how the kernel cuts it up depends on timing."""
    whole: list[Any] = []
    for output in outputs:
        if whole and output.output_type == "stream" == whole[-1].output_type and output.name == whole[-1].name:
            whole[-1].text += output.text
        else:
            whole.append(output)
    return whole


def anonymous(notebook: Any) -> Any:
    """Without what names the machine or the moment."""
    notebook.metadata = nbformat.from_dict(ANY_PYTHON)
    for position, cell in enumerate(notebook.cells):
        cell.id = f"cell-{position:02}"
        cell.metadata = nbformat.from_dict({})
        if "outputs" in cell:
            cell.outputs = joined(cell.outputs)
        for output in cell.get("outputs", []):
            if "metadata" in output:
                output.metadata = nbformat.from_dict({})
            if "text/plain" in output.get("data", {}):  # a figure's stand-in in plain text
                output.data["text/plain"] = re.sub(r"^<Figure.*>$", "<Figure>", output.data["text/plain"])
    return notebook


def write_notebook(name: str) -> Path:
    target = HERE / f"{name}.ipynb"
    nbformat.write(anonymous(executed(HERE / f"{name}.py")), target)
    return target


def write_page(name: str) -> Path:
    """Markdown, and beside it the pictures."""
    kept = {"unique_key": name, "output_files_dir": ""}
    text, found = MarkdownExporter().from_notebook_node(anonymous(executed(HERE / "tutorials" / f"{name}.py")), kept)
    PAGES.mkdir(exist_ok=True)
    for path, content in found["outputs"].items():
        (PAGES / path).write_bytes(content)
    target = PAGES / f"{name}.md"
    told = f"{one_blank_line(text).strip()}\n\nThis page is the script `examples/tutorials/{name}.py`, executed.\n"
    target.write_text(told, encoding="utf-8")
    return target


def one_blank_line(text: str) -> str:
    """Between paragraphs, as everywhere; code keeps its two."""
    parts = re.split(r"(^```.*?^```)", text, flags=re.S | re.M)
    return "".join(part if part.startswith("```") else re.sub(r"\n{3,}", "\n\n", part) for part in parts)


def main() -> None:
    chosen = sys.argv[1:] or [*SCRIPTS, *TUTORIALS]
    for name in chosen:
        target = write_page(name) if name in TUTORIALS else write_notebook(name)
        print(f"{target.name}: {target.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
