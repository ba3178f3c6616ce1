"""Time of our ops on a CUDA device, forward and backward, as multiples of torch's own call or of what people write by hand.

    python benchmarks/on_cuda.py            # a line for each op and dtype
    python benchmarks/on_cuda.py --write    # and docs/speed_on_cuda.md, with the name of the device

A sample is many calls between two events of the device, so it is what a program waits for: the kernels, or, below some ten million
elements, the Python that starts them.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

import pseudograd as pg
from harness import EmptyMode, parser_of, ratio, seconds_of
from suite.routes import copied

SIZES = (10_000, 1_000_000, 10_000_000, 30_000_000, 100_000_000)
MOST = 200_000_000  # elements of a sample
PAGE = Path(__file__).parents[1] / "docs" / "speed_on_cuda.md"
IS_OLD = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 14)
OTHER_ERA = "torch>=2.14" if IS_OLD else "torch<=2.13"
Call = Callable[[Tensor], Tensor]


class Row(NamedTuple):
    """`limits`: the largest multiples that are promised up to 1e6 elements, for 1e7, and from 3e7 on."""

    name: str
    ours: Call
    theirs: Call
    limits: tuple[float, float, float] = (0.0, 0.0, 0.0)
    context: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext
    dtypes: tuple[torch.dtype, ...] = (torch.float32,)
    sizes: tuple[int, ...] = SIZES
    is_compiled: bool = False


def _clamp(x: Tensor) -> Tensor:
    return torch.clamp(x, -1.0, 1.0)


def _bounds(x: Tensor) -> tuple[Tensor, Tensor]:
    """Made once for each size."""
    if _bounds_of.get("x") is not x:
        _bounds_of.update(x=x, bounds=(torch.full_like(x, -1.0).detach(), torch.full_like(x, 1.0).detach()))
    bounds: tuple[Tensor, Tensor] = _bounds_of["bounds"]
    return bounds


_bounds_of: dict[str, object] = {}


@lru_cache
def _scale() -> Tensor:
    return torch.full((1,), 0.02, device="cuda", requires_grad=True)


_HALF = (torch.float32, torch.bfloat16)
_CLAMP, _ACTIVATION, _STEP = (0.95, 0.95, 0.60), (1.1, 1.05, 1.0), (1.1, 1.0, 0.8)


def _window(function: Call) -> Call:
    """By two lines: the value of a step, the gradient of a clamp."""

    def call(x: Tensor) -> Tensor:
        window = torch.clamp(x, -1.0, 1.0)
        return window + (function(x) - window).detach()

    return call


ROWS = (
    Row("two copies, beside clamp", copied, _clamp, dtypes=_HALF),
    Row("clamp, inward", lambda x: pg.clamp(x, -1.0, 1.0), _clamp, _CLAMP, dtypes=_HALF),
    Row("clamp, zero", lambda x: pg.clamp(x, -1.0, 1.0, rule="zero"), _clamp, _CLAMP, dtypes=_HALF),
    Row("clamp, sign", lambda x: pg.clamp(x, -1.0, 1.0, rule="sign"), _clamp, _CLAMP, dtypes=_HALF),
    Row(
        "clamp between tensors",
        lambda x: pg.clamp(x, *_bounds(x)),
        lambda x: torch.clamp(x, *_bounds(x)),
        (1.0, 1.0, 0.60),
    ),
    Row(
        "clamp between tensors, inverting",
        lambda x: pg.clamp(x, *_bounds(x), rule="inverting"),
        lambda x: torch.clamp(x, *_bounds(x)),
    ),
    Row("an empty mode of functions", _clamp, _clamp, context=EmptyMode),
    Row("override(clamp='inward')", _clamp, _clamp, (1.25, 1.2, 0.65), lambda: pg.override(clamp="inward")),
    Row("pin to the other era", _clamp, _clamp, (1.25, 1.2, 0.65), lambda: pg.pin_edge(OTHER_ERA)),
    Row("two copies, beside relu", copied, torch.relu),
    Row("relu, inward", lambda x: pg.relu(x, rule="inward"), torch.relu, _ACTIVATION),
    Row("gelu, few bits", lambda x: pg.gelu(x, rule="fewbit"), functional.gelu, _ACTIVATION, dtypes=_HALF),
    Row("silu, few bits", lambda x: pg.silu(x, rule="fewbit"), functional.silu, _ACTIVATION),
    Row("sign, gaussian", lambda x: pg.sign(x, rule="gaussian"), _window(torch.sign)),
    Row("sign, window", pg.sign, _window(torch.sign), _STEP),
    Row("heaviside, window", pg.heaviside, _window(lambda x: (x >= 0).to(x.dtype)), _STEP),
    Row("round, identity", pg.round, lambda x: x + (torch.round(x) - x).detach(), _STEP),
    Row("abs", pg.abs, torch.abs, _STEP),
    Row(
        "fake_quantize",
        lambda x: pg.fake_quantize(x, 0.02),
        lambda x: torch.fake_quantize_per_tensor_affine(x, 0.02, 0, -128, 127),
        _STEP,
    ),
    Row(
        "fake_quantize, learned scale",
        lambda x: pg.fake_quantize(x, _scale()),
        lambda x: torch._fake_quantize_learnable_per_tensor_affine(x, _scale(), _scale().detach() * 0, -128, 127, 1.0),
        _STEP,
    ),
    Row("jumprelu", lambda x: pg.jumprelu(x, 0.5, bandwidth=0.1), lambda x: torch.threshold(x, 0.5, 0.0), dtypes=_HALF),
    Row("clamp, inverting", lambda x: pg.clamp(x, -1.0, 1.0, rule="inverting"), _clamp, dtypes=_HALF),
    Row(
        "clamp, compiled",
        torch.compile(lambda x: pg.clamp(x, -1.0, 1.0), fullgraph=True, dynamic=False),
        torch.compile(_clamp, fullgraph=True, dynamic=False),
        (1.05, 1.05, 1.05),
        sizes=(1_000_000, 10_000_000, 30_000_000),
        is_compiled=True,
    ),
)


def microseconds(call: Callable[[], object], calls: int) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(calls):
        call()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / calls * 1000


def multiple(row: Row, x: Tensor, grad: Tensor, rounds: int) -> float:
    """The time of ours as a multiple of theirs."""
    steps = {
        "ours": lambda: torch.autograd.grad(row.ours(x), x, grad),
        "theirs": lambda: torch.autograd.grad(row.theirs(x), x, grad),
    }
    calls = max(5, min(100, MOST // x.numel()))

    def sample(name: str) -> float:
        with row.context() if name == "ours" else contextlib.nullcontext():
            microseconds(steps[name], 3)
            return microseconds(steps[name], calls)

    for name in steps:
        sample(name)  # compiles
    return ratio(seconds_of(steps, sample, rounds), "ours", "theirs")


def _limit_of(row: Row, size: int) -> float:
    return row.limits[0 if size <= 1_000_000 else 1 if size <= 10_000_000 else 2]


def measure(row: Row, dtype: torch.dtype, rounds: int) -> dict[int, float]:
    multiples = {}
    for size in row.sizes:
        x = (torch.randn(size, device="cuda") * 1.5).to(dtype).requires_grad_()
        multiples[size] = multiple(row, x, torch.randn_like(x), rounds)
        _bounds_of.clear()
    return multiples


# --- ops with shapes of their own ----------------------------------------------------------------------------------------


def _against(
    ours: Callable[[], Tensor], theirs: Callable[[], Tensor], of: tuple[Tensor, ...], rounds: int
) -> tuple[float, str]:
    """The time of ours as a multiple of theirs, and the memory that each takes beside its inputs."""

    def step(call: Callable[[], Tensor]) -> None:
        torch.autograd.grad(call().sum(), of)

    steps, peaks = {"ours": lambda: step(ours), "theirs": lambda: step(theirs)}, []
    for call in steps.values():
        microseconds(call, 3)
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call()
        peaks.append(f"{(torch.cuda.max_memory_allocated() - before) / 2**20:,.0f}")
    multiple = ratio(seconds_of(steps, lambda name: microseconds(steps[name], 10), rounds), "ours", "theirs")
    return multiple, " : ".join(peaks)


def vector_quantize(rows: int, codes: int, rounds: int) -> tuple[float, str]:
    x, codebook = torch.randn(rows, 64, device="cuda", requires_grad=True), torch.randn(codes, 64, device="cuda")

    def by_hand() -> Tensor:
        flat = x.detach()
        distances = codebook.pow(2).sum(1) - 2 * flat @ codebook.T
        return x + (codebook[distances.argmin(1)] - x).detach()

    return _against(lambda: pg.codebook.vector_quantize(x, codebook)[0], by_hand, (x,), rounds)


def policy_loss(shape: tuple[int, int], rounds: int) -> tuple[float, str]:
    log_ratio = (torch.randn(shape, device="cuda") * 0.2).requires_grad_()
    advantage = torch.randn(shape, device="cuda")

    def by_hand() -> Tensor:
        ratio = torch.exp(log_ratio)
        return -torch.min(ratio * advantage, torch.clamp(ratio, 0.8, 1.2) * advantage)

    return _against(lambda: pg.policy.loss(log_ratio, advantage), by_hand, (log_ratio,), rounds)


OTHERS = (
    ("vector_quantize, 8,192 vectors, 1,024 codes", lambda rounds: vector_quantize(8192, 1024, rounds), 1.5),
    ("vector_quantize, 65,536 vectors, 8,192 codes", lambda rounds: vector_quantize(65536, 8192, rounds), 1.3),
    ("policy.loss, 64 x 2,048 tokens", lambda rounds: policy_loss((64, 2048), rounds), 1.2),
    ("policy.loss, 1,024 x 10,240 tokens", lambda rounds: policy_loss((1024, 10240), rounds), 1.0),
    ("policy.loss, 1,024 x 32,768 tokens", lambda rounds: policy_loss((1024, 32768), rounds), 1.0),
)


# --- the page ---------------------------------------------------------------------------------------------------------------


def cell(value: float, limit: float) -> str:
    return f"{value:.2f}" if value <= limit or not limit else f"**{value:.2f}**"


def write(lines: list[str], others: list[str]) -> None:
    text = [
        "# Speed on CUDA\n",
        f"The time of forward and backward on an {torch.cuda.get_device_name()} under torch {torch.__version__}, divided by that of",
        "another call: `torch.clamp` for a clamp, `override` and a pin; torch's own op for an activation, `abs` and `fake_quantize`; the",
        "two lines with `detach` that people write for steps and `round`; compiled code for compiled code. Below some ten million",
        "elements the time is that of Python and of starting kernels. A bold figure is above our aim.",
        "`python benchmarks/on_cuda.py --write` measured this page.\n",
        f"| op, dtype | {' | '.join(f'{size:,}' for size in SIZES)} | aim up to 1e6, at 1e7, from 3e7 |",
        "|---|" + "---:|" * len(SIZES) + "---|",
        *lines,
        "",
        "| op | multiple of the same by hand | aim | MiB taken, ours : by hand |",
        "|---|---:|---:|---:|",
        *others,
    ]
    _, mark, steps = (
        PAGE.read_text(encoding="utf-8").partition("## Training steps\n") if PAGE.exists() else ("", "", "")
    )
    PAGE.write_text("\n".join(text) + "\n" + (f"\n{mark}{steps}" if mark else ""), encoding="utf-8")


def main() -> int:
    parser = parser_of(__doc__, rounds=5)
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    parser.add_argument("--only", default="", help="the rows whose name contains this")
    parser.add_argument("--seconds", type=float, default=600.0, help="begin no row after these; default 600")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("on_cuda.py: a CUDA device must be there, got none.", file=sys.stderr)
        return 2
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    lines, others, failures, misses, start = [], [], [], 0, time.monotonic()
    for row in ROWS:
        for dtype in row.dtypes:
            if options.only not in row.name or time.monotonic() - start > options.seconds:
                continue
            name = str(dtype).removeprefix("torch.")
            try:
                multiples = measure(row, dtype, options.rounds)
            except Exception as error:  # one row stops no other
                failures.append(f"{row.name}, {name}: {error!r}")
                continue
            misses += sum(value > _limit_of(row, size) > 0 for size, value in multiples.items())
            cells = [cell(multiples[size], _limit_of(row, size)) if size in multiples else "" for size in SIZES]
            aims = ", ".join(f"{limit:.2f}" for limit in row.limits) if row.limits[0] else ""
            lines.append(f"| {row.name}, {name} | {' | '.join(cells)} | {aims} |")
            print(lines[-1], flush=True)
    for name, measured, limit in OTHERS:
        if options.only not in name or time.monotonic() - start > options.seconds:
            continue
        try:
            value, memory = measured(options.rounds)
        except Exception as error:
            failures.append(f"{name}: {error!r}")
            continue
        misses += value > limit
        others.append(f"| {name} | {cell(value, limit)} | {limit:.2f} | {memory} |")
        print(others[-1], flush=True)
    if options.write:
        write(lines, others)
        print(f"wrote {PAGE.name}")
    print(f"{misses} figures above their aim")
    print(*failures, sep="\n", file=sys.stderr)
    return int(bool(failures) or (options.check and misses > 0))


if __name__ == "__main__":
    sys.exit(main())
