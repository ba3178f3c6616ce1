"""The files of which mutants are made, and the others, with the reason.

A file of the package is called by its name in it, as `optim.py`; what stands beside the package in src by its name there, as
`pseudograd_lint/files.py`.
"""

import difflib
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src"
PACKAGE = "pseudograd"

# No mutants are made of these, and why. By the ends of their names.
OUT_OF_REACH = {
    ".c": "C: tests/kernels/test_native.py compares it with the formulas, for every processor and product",
    ".h": "C: tests/kernels/test_native.py compares it with the formulas, for every processor and product",
    ".html": "the frame of a page is no Python; tests/report and tests/diagnosis read the pages",
    ".css": "how a page looks is no Python; tests in a browser look at what it must not do",
    ".json": "what a script measured; tests/kinks compares it",
    "py.typed": "it is empty: type checkers only ask whether it is there",
    "ops/samples.py": "data of the tests: where a row is tested",
    "ops/bound_samples.py": "data of the tests: where a row is tested",
}


def every_file(source: Path = SOURCE) -> list[str]:
    """Of src, without what a compiler, an installation or a recording (reach.py) leaves there."""
    built = {".so", ".pyd", ".pyc", ".o"}
    paths = (path for path in sorted(source.rglob("*")) if path.is_file() and path.suffix not in built)
    names = [path.relative_to(source).as_posix().removeprefix(f"{PACKAGE}/") for path in paths]
    return [name for name in names if ".egg-info" not in name and name != "sitecustomize.py"]


def place_of(name: str, source: Path = SOURCE) -> Path:
    """Where the file of this name is."""
    return source / name if name.startswith(f"{PACKAGE}_") else source / PACKAGE / name


def why_not(file: str) -> str | None:
    """Why no mutant is made of it, if none is."""
    return next((reason for end, reason in OUT_OF_REACH.items() if file.endswith(end)), None)


def files_beginning_with(names: list[str], source: Path = SOURCE) -> list[str]:
    """Those of which mutants are made, whose names begin with one of these; all if there is none."""
    files = [file for file in every_file(source) if why_not(file) is None]
    for name in names:
        if not any(file.startswith(name) for file in files):
            raise SystemExit(_fits_nothing(name, files))
    return [file for file in files if not names or file.startswith(tuple(names))]


def _fits_nothing(name: str, files: list[str]) -> str:
    got = f"--files must be the beginnings of files of src/pseudograd, got {name!r}."
    reason = why_not(name)
    if reason is not None:
        return f"{got} No mutants are made of it: {reason}."
    close = [file for file in files if name.strip("./") and name.strip("./").split("/")[-1] in file]
    close = close or difflib.get_close_matches(name, files, n=1)
    return f"{got} Did you mean {close[0]}?" if close else f"{got} It fits nothing: write optim.py, or ops/."
