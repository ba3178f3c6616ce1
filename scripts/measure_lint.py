"""Run `pseudograd lint` over the published packages of tests/lint/labels.jsonl, and compare what it finds with the labels.

python scripts/measure_lint.py FOLDER    FOLDER/<package>-<version>/ holds the unpacked sources; what is missing is downloaded there by pip
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from pseudograd_lint.rules import CODES as LINT  # noqa: E402
from pseudograd_lint.sources import check_file, files  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    labels = [
        json.loads(line) for line in (ROOT / "tests" / "lint" / "labels.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    known = {(one["package"], one["path"], one["code"], one["line"]) for one in labels}
    default = [code.number for code in LINT if code.is_default]
    numbers = sorted({*default, *(one["code"] for one in labels)})
    found = set()
    for package, version in sorted({(one["package"], one["version"]) for one in labels}):
        root = folder / f"{package}-{version}"
        if not root.is_dir():
            _download(package, version, root)
        for file in files([str(root)], []):
            for one in check_file(file, numbers)[0]:
                found.add((package, Path(one.path).relative_to(root).as_posix(), one.code, one.line))
    for row in sorted(known - found):
        print("no longer found:", *row)
    for row in sorted(one for one in found - known if one[2] in default):
        print("not labelled:", *row)
    return 0 if known <= found else 1


def _download(package: str, version: str, root: Path) -> None:
    """Its wheel; where there is none its source, which pip asks for its name."""
    with tempfile.TemporaryDirectory() as place:
        for kind in ("--only-binary=:all:", "--no-binary=:all:"):
            command = [
                sys.executable,
                "-m",
                "pip",
                "download",
                "-q",
                "--no-deps",
                kind,
                "-d",
                place,
                f"{package}=={version}",
            ]
            if subprocess.run(command, check=False).returncode == 0:
                break
        (file,) = Path(place).iterdir()
        if file.suffix == ".whl":
            with zipfile.ZipFile(file) as packed:
                packed.extractall(root, [name for name in packed.namelist() if name.endswith(".py")])
        else:
            with tarfile.open(file) as source:
                source.extractall(
                    root, [one for one in source if one.isfile() and one.name.endswith(".py")], filter="data"
                )


if __name__ == "__main__":
    sys.exit(main())
