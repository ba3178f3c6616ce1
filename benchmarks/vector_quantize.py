"""The memory of `vector_quantize` on 100,000 vectors of 64 numbers and 16,384 codes, and how often rounding could decide.

python benchmarks/vector_quantize.py [--check]

The full matrix of distances would take 6,250 MiB. Each line is a fresh interpreter, whose peak resident memory
(resource.getrusage: Linux and macOS) is read before and after one forward and backward pass. Vectors and codes are
standard normal; `mean` is added to both, so that the distances are small differences of large numbers.
"""

from __future__ import annotations

import json
import subprocess
import sys

from harness import Limit, judge, parser_of

ROWS, SIZE, CODES = 100_000, 64, 16_384
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


def main() -> int:
    options = parser_of(__doc__, rounds=1).parse_args()
    print(f"vector_quantize: {ROWS:,} vectors of {SIZE} numbers, {CODES:,} codes, forward and backward")
    print(f"  {'rule':10} {'dtype':9} {'mean':>5} {'MiB more':>9} {'seconds':>8}  decided again in float64")
    limits = []
    for rule, dtype, mean in CASES:
        program = [sys.executable, "-c", PROGRAM, json.dumps([rule, dtype, mean, ROWS, SIZE, CODES])]
        mib, seconds, again = json.loads(subprocess.run(program, check=True, capture_output=True, text=True).stdout)
        print(f"  {rule:10} {dtype:9} {mean:5} {mib:9.0f} {seconds:8.1f}  {again:.3%}", flush=True)
        limits.append(Limit(f"{rule}, {dtype}, mean {mean}: MiB more", mib, PROMISED_MIB))
    return judge(limits, options.check)


if __name__ == "__main__":
    sys.exit(main())
