"""What `import pseudograd` costs beyond `import torch`, in milliseconds: python benchmarks/import_time.py [--check]

Each pair is two fresh interpreters, one of which imports torch alone, and they take turns in going first. Their
difference carries the noise of importing torch, so the promise is judged by a clock inside the second interpreter.
"""

from __future__ import annotations

import functools
import os
import statistics
import subprocess
import sys
import tempfile

from harness import Limit, judge, parser_of
from suite.results import has_native_kernels

PAIRS, FEWEST_PAIRS = 15, 9
CLOCK = "import time; start = time.perf_counter(); import torch; middle = time.perf_counter(); "
TORCH_ALONE = CLOCK + "print(middle - start, 0)"
WITH_PSEUDOGRAD = CLOCK + "import pseudograd; print(time.perf_counter() - start, time.perf_counter() - middle)"


def promised_ms() -> float:
    """The library of native kernels is loaded with the package."""
    return 25.0 if has_native_kernels() else 20.0


@functools.cache
def _bytecode() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()


def run(code: str) -> tuple[float, float]:
    """Milliseconds of both imports together, and of pseudograd's alone. A fresh interpreter has bytecode, as an installed package has."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = _bytecode().name
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment)
    both, alone = (float(part) * 1e3 for part in done.stdout.split())
    return both, alone


def measure(pairs: int) -> tuple[list[float], list[float]]:
    """The difference of each pair, and what the clock inside the second interpreter read."""
    run(WITH_PSEUDOGRAD)  # writes the bytecode and warms the disk cache
    differences, inside = [], []
    for turn in range(pairs):
        order = (TORCH_ALONE, WITH_PSEUDOGRAD) if turn % 2 else (WITH_PSEUDOGRAD, TORCH_ALONE)
        taken = {code: run(code) for code in order}
        differences.append(taken[WITH_PSEUDOGRAD][0] - taken[TORCH_ALONE][0])
        inside.append(taken[WITH_PSEUDOGRAD][1])
    return differences, inside


def main() -> int:
    options = parser_of(__doc__, rounds=PAIRS).parse_args()
    differences, inside = measure(max(options.rounds, FEWEST_PAIRS))
    median = statistics.median(inside)
    print(f"import pseudograd beyond import torch, {len(inside)} pairs of interpreters")
    print(f"  after torch, same interpreter   median {median:6.1f} ms, from {min(inside):.1f} to {max(inside):.1f}")
    print(f"  difference within a pair        median {statistics.median(differences):6.1f} ms")
    return judge([Limit("milliseconds after torch", median, promised_ms())], options.check)


if __name__ == "__main__":
    sys.exit(main())
