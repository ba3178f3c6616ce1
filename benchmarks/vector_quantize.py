"""The memory of `vector_quantize` on 100,000 vectors of 64 numbers and 16,384 codes, and how often rounding could decide.

    python benchmarks/vector_quantize.py            # memory, time, share of vectors decided in float64
    python benchmarks/vector_quantize.py --check    # exit status 1 if the promise about memory does not hold

The full matrix of distances would take 6,250 MiB. Each line is a fresh interpreter, whose peak resident memory
(resource.getrusage: Linux and macOS) is read before and after one forward and backward pass. Vectors and codes are
standard normal; `mean` is added to both, so that the distances are small differences of large numbers.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

PROMISED_MIB = 600.0
CASES = [("identity", "float32", 0), ("rotation", "float32", 0), ("identity", "bfloat16", 0)]
CASES += [("identity", "float32", mean) for mean in (10, 1000)]
PROGRAM = """
import json, resource, sys, time
import torch
import pseudograd as pg
from pseudograd.ops import codebook as nearest

rule, dtype, mean, rows, size, codes = json.loads(sys.argv[1])
torch.manual_seed(0)
x = (torch.randn(rows, size) + mean).to(getattr(torch, dtype)).requires_grad_()
codebook = (torch.randn(codes, size) + mean).to(x.dtype)
settle, again = nearest._search_in_double, []
nearest._search_in_double = lambda x, codebook: (again.append(len(x)), settle(x, codebook))[1]

def peak():
    kilo = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * kilo / 2**20

pg.codebook.vector_quantize(x[:10], codebook[:10], rule=rule)[0].sum().backward()
again.clear()
before, start = peak(), time.perf_counter()
pg.codebook.vector_quantize(x, codebook, rule=rule)[0].sum().backward()
print(json.dumps([peak() - before, time.perf_counter() - start, sum(again) / rows]))
"""


def measure(case: tuple[str, str, int], rows: int, size: int, codes: int) -> tuple[float, float, float]:
    """MiB, seconds, and the share of rows decided again, in a fresh interpreter."""
    arguments = json.dumps([*case, rows, size, codes])
    done = subprocess.run([sys.executable, "-c", PROGRAM, arguments], check=True, capture_output=True, text=True)
    mib, seconds, again = json.loads(done.stdout)
    return mib, seconds, again


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--codes", type=int, default=16_384)
    parser.add_argument("--check", action="store_true", help="exit with 1 if the promise does not hold")
    options = parser.parse_args(arguments)
    print(
        f"vector_quantize: {options.rows} vectors of {options.size} numbers, {options.codes} codes, forward and backward"
    )
    print(f"  {'rule':10} {'dtype':9} {'mean':>5} {'MiB more':>9} {'seconds':>8}  decided again in float64")
    holds = True
    for case in CASES:
        mib, seconds, again = measure(case, options.rows, options.size, options.codes)
        rule, dtype, mean = case
        print(f"  {rule:10} {dtype:9} {mean:5} {mib:9.0f} {seconds:8.1f}  {again:.3%}", flush=True)
        holds = holds and mib <= PROMISED_MIB
    print(f"  {'holds' if holds else 'FAILS'}: promised at most {PROMISED_MIB:.0f} MiB more, in every case")
    return 1 if options.check and not holds else 0


if __name__ == "__main__":
    sys.exit(main())
