"""Execute the scripts beside this file as notebooks: `python examples/make_notebooks.py`.

Needs jupytext, nbconvert and ipykernel. The notebooks are for reading on the web; the scripts are what is edited and
tested. What would differ from run to run or from machine to machine is taken out: cell ids, execution times, versions.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbconvert.preprocessors import ExecutePreprocessor

HERE = Path(__file__).parent
SCRIPTS = ("analysis_of_clamp_with_grad", "questions")
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


def main() -> None:
    for name in SCRIPTS:
        target = HERE / f"{name}.ipynb"
        nbformat.write(anonymous(executed(HERE / f"{name}.py")), target)
        print(f"{target.name}: {target.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
