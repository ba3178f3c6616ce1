"""Run `pseudograd lint` over the published packages of tests/lint/labels.jsonl, and compare its notices with the labels.

python scripts/measure_lint.py FOLDER    FOLDER/<package>-<version>/ has the unpacked sources; pip downloads missing ones
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from pseudograd_lint.rules import CODES  # noqa: E402
from pseudograd_lint.sources import check_file, files  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    lines = (ROOT / "tests" / "lint" / "labels.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    labels = {(row["package"], row["path"], row["code"], row["line"]) for row in rows}
    default = [code.number for code in CODES if code.is_default]
    notices = set()
    for package, version in sorted({(row["package"], row["version"]) for row in rows}):
        root = folder / f"{package}-{version}"
        if not root.is_dir():
            _download(package, version, root)
        for file in files([str(root)], []):
            for notice in check_file(file, sorted({*default, *(row["code"] for row in rows)}))[0]:
                notices.add((package, Path(notice.path).relative_to(root).as_posix(), notice.code, notice.line))
    for label in sorted(labels - notices):
        print("no longer found:", *label)
    for notice in sorted(notice for notice in notices - labels if notice[2] in default):
        print("not labelled:", *notice)
    return 0 if labels <= notices else 1


def _download(package: str, version: str, root: Path) -> None:
    """Download the wheel of the package, or its source if there is no wheel."""
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("--only-binary=:all:", "--no-binary=:all:"):
            pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", kind, "-d", folder]
            if subprocess.run([*pip, f"{package}=={version}"], check=False).returncode == 0:
                break
        (file,) = Path(folder).iterdir()
        how = {"format": "zip"} if file.suffix == ".whl" else {"filter": "data"}
        shutil.unpack_archive(file, root, **how)


if __name__ == "__main__":
    sys.exit(main())
