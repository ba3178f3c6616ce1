"""What `import pseudograd` costs beyond `import torch`, in milliseconds.

    python benchmarks/import_time.py            # the median, and whether the promise holds
    python benchmarks/import_time.py --check    # exit status 1 if it does not

Each pair is two fresh interpreters, one of which imports torch alone, and they take turns in going first. Their
difference carries the noise of importing torch, so the promise is judged by a clock inside the second interpreter.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import subprocess
import sys
import tempfile

from suite.machine import native_kernels

PROMISED_MS = 20.0
PROMISED_MS_NATIVE = 25.0  # with native kernels, whose library is loaded then
PAIRS, LEAST_PAIRS = 15, 9
CLOCK = "import time; start = time.perf_counter(); import torch; middle = time.perf_counter(); "
TORCH_ALONE = CLOCK + "print(middle - start, 0)"
WITH_PSEUDOGRAD = CLOCK + "import pseudograd; print(time.perf_counter() - start, time.perf_counter() - middle)"


@functools.cache
def _cache() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()


def _environment() -> dict[str, str]:
    """With bytecode, as an installed package has it, whatever this shell says about writing it."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPYCACHEPREFIX": _cache().name}


def run(code: str) -> tuple[float, float]:
    """Milliseconds of both imports together, and of pseudograd's alone, in a fresh interpreter."""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=_environment())
    both, alone = (float(part) * 1e3 for part in done.stdout.split())
    return both, alone


def measure(pairs: int) -> tuple[list[float], list[float]]:
    """The differences of each pair, and what the clock inside the second interpreter read."""
    run(WITH_PSEUDOGRAD)  # writes the bytecode and warms the disk cache
    differences, inside = [], []
    for turn in range(pairs):
        taken = {
            code: run(code) for code in ((TORCH_ALONE, WITH_PSEUDOGRAD) if turn % 2 else (WITH_PSEUDOGRAD, TORCH_ALONE))
        }
        differences.append(taken[WITH_PSEUDOGRAD][0] - taken[TORCH_ALONE][0])
        inside.append(taken[WITH_PSEUDOGRAD][1])
    return differences, inside


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=PAIRS, help=f"at least {LEAST_PAIRS}")
    parser.add_argument("--check", action="store_true", help="exit with 1 if the promise does not hold")
    options = parser.parse_args(arguments)
    if options.pairs < LEAST_PAIRS:
        parser.error(f"--pairs must be at least {LEAST_PAIRS}, got {options.pairs}")
    differences, inside = measure(options.pairs)
    median = statistics.median(inside)
    print(f"import pseudograd beyond import torch, {options.pairs} pairs of interpreters")
    print(f"  after torch, same interpreter   median {median:6.1f} ms, from {min(inside):.1f} to {max(inside):.1f}")
    print(f"  difference within a pair        median {statistics.median(differences):6.1f} ms")
    promised = PROMISED_MS_NATIVE if native_kernels() else PROMISED_MS
    holds = median <= promised
    print(f"  {'holds' if holds else 'FAILS'}: promised at most {promised:.0f} ms after torch")
    return 1 if options.check and not holds else 0


if __name__ == "__main__":
    sys.exit(main())
