"""CPU seconds of `pseudograd lint` for a million lines. The promise is 60 seconds with two processes.

python benchmarks/lint.py FOLDER [--jobs 1]
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--jobs", default="2")
    options = parser.parse_args()
    lines = sum(file.read_bytes().count(b"\n") for file in options.folder.rglob("*.py"))
    command = [sys.executable, "-m", "pseudograd_lint", str(options.folder), "--jobs", options.jobs, "--exit-zero"]
    start = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
    wall = time.perf_counter() - start
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    for name, seconds in (("seconds", wall), ("seconds of CPU", used.ru_utime + used.ru_stime)):
        print(f"{lines:,} lines: {seconds:.1f} {name}; for a million lines {seconds / lines * 1e6:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
