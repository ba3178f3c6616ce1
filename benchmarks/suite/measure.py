"""Time and memory of the routes of one case.

Time: every round takes a sample of every route, in an order of its own; a sample is as many calls as fill a few milliseconds, after some
that are not timed. Memory: the storages that saved_tensors_hooks see, once each, and the allocations that the
profiler sees in one call. Allocations are counted by torch's own allocator, so they neither miss a kernel nor depend on when the system
hands out pages, as a peak of resident memory would.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, record_function

from interleaved import Taken, ratio, seconds_of

from .cases import Case, Workload, workload
from .routes import ROUTES, Forward, Missing

REFERENCES = ("floor", "native", "snippet", "formula, compiled", "snippet, compiled", "native, compiled")
PROFILED = 1_000_000  # the size at which allocations are counted: a profile takes half a second
NUMBER = 16  # bytes: the most that a single number takes
HUGE = 30_000_000  # from here on a call takes so long that what stands in the cache does not matter
SETTLES = (
    8  # calls: the previous route left the cache full, and perhaps gave memory back that a heap of its size needs again
)
Call = Callable[[], object]
Routes = dict[str, dict[str, Any]]


def measure(case: Case, names: tuple[str, ...], rounds: int, seconds: float) -> tuple[Routes, dict[str, str]]:
    """What was found for each route, and why others were left out."""
    torch.set_num_threads(case.threads)
    if any(name.endswith("compiled") for name in names):
        torch._dynamo.reset()  # which imports the compiler: a second
    work = workload(case)
    forwards, missing = _ready(work, names)
    calls = {name: _timed(work, forward) for name, forward in forwards.items()}
    taken = _times(calls, rounds if case.size < HUGE else max(3, rounds // 5), seconds, warm=case.size < HUGE)
    found: Routes = {}
    for name, samples in taken.items():
        low, _, high = statistics.quantiles(samples, n=4, method="inclusive") if len(samples) > 1 else samples * 3
        found[name] = {
            "microseconds": statistics.median(samples) * 1e6,
            "quartiles": [low * 1e6, high * 1e6],
            "over": {other: ratio(taken, name, other) for other in REFERENCES if other in taken and other != name},
        }
        if case.size < HUGE:
            found[name]["saved_bytes"] = saved_bytes(forwards[name])
    if case.size == PROFILED and case.threads == 1:
        for name, (number, size) in allocations(calls).items():
            found[name] |= {"allocations": number, "allocated_bytes": size}
    return found, missing


def _ready(work: Workload, names: tuple[str, ...]) -> tuple[dict[str, Forward], dict[str, str]]:
    forwards: dict[str, Forward] = {}
    missing: dict[str, str] = {}
    for name in names:
        try:
            forwards[name] = ROUTES[work.case.op][name](work)
        except Missing as why:
            missing[name] = str(why)
    return forwards, missing


def _timed(work: Workload, forward: Forward) -> Call:
    """Forward and backward, or backward alone of a graph that is kept."""
    x, grad = work.x, work.grad
    if work.case.op.endswith(", backward"):
        y = forward()
        return lambda: torch.autograd.grad(y, x, grad, retain_graph=True)
    return lambda: torch.autograd.grad(forward(), x, grad)


def _times(calls: dict[str, Call], rounds: int, seconds: float, *, warm: bool) -> Taken:
    counts = {name: _calls_per_sample(call, seconds) for name, call in calls.items()}

    def sample(name: str) -> float:
        call, count = calls[name], counts[name]
        for _ in range(min(count, SETTLES) if warm else 0):
            call()
        start = time.perf_counter()
        for _ in range(count):
            call()
        return (time.perf_counter() - start) / count

    return seconds_of(calls, sample, rounds) if calls else {}


def _calls_per_sample(call: Call, seconds: float) -> int:
    """As many calls as fill `seconds`, so that the clock's own resolution does not count."""
    call()
    start = time.perf_counter()
    call()
    taken = time.perf_counter() - start
    if taken < seconds:  # the second call of all is slower than those to come
        call()
        start = time.perf_counter()
        call()
        taken = time.perf_counter() - start
    return max(1, int(seconds / max(taken, 1e-7)))


# --- memory -----------------------------------------------------------------------------------------------------------


def saved_bytes(forward: Forward, exists: tuple[Tensor, ...] = ()) -> int:
    """Of all tensors kept for backward, each storage once; without those of `exists`."""
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()  # a saved output that is handed back as it is would keep its own graph alive

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = forward()
    for tensor in exists:
        kept.pop(tensor.untyped_storage().data_ptr(), None)
    del y
    return sum(kept.values())


def allocations(calls: dict[str, Call]) -> dict[str, tuple[int, int]]:
    """How many blocks of memory one call of each takes, and their bytes together; numbers that torch wraps in tensors do not count."""
    for call in calls.values():
        call()
    gc.collect()
    with _quiet(), torch.profiler.profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profile:
        for name, call in calls.items():
            with record_function(f"call: {name}"):
                call()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    taken = [(event["ts"], event["args"]["Bytes"]) for event in events if event["name"] == "[memory]"]
    spans = {event["name"]: (event["ts"], event["ts"] + event["dur"]) for event in events if "dur" in event}
    found = {}
    for name in calls:
        start, end = spans[f"call: {name}"]
        sizes = [size for when, size in taken if size > NUMBER and start <= when <= end]
        found[name] = len(sizes), sum(sizes)
    return found


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Some builds of torch announce each profile on stderr, from C++; torch 2.10 warns that a profile has one cycle."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Warning: Profiler clears events")
            yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
