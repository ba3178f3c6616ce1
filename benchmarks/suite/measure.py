"""Time and memory of the routes of a case.

Memory: the storages that saved_tensors_hooks see, once each, and the allocations that the profiler sees in a call. Allocations are
counted by torch's own allocator, so they neither miss a kernel nor depend on when the system hands out pages, as a peak of resident
memory would.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import os
import statistics
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, record_function

from harness import Route, ratio, time_routes

from .cases import Case, Workload, workload
from .results import Measured
from .routes import ACTIVATIONS, ROUTES, Forward, Missing

REFERENCES = ("floor", "native", "snippet", "formula, compiled", "snippet, compiled", "native, compiled")
PROFILED = 1_000_000  # the size at which allocations are counted: a profile takes half a second
NUMBER = 16  # bytes: the most that a single number takes
HUGE = 30_000_000  # from here on a call takes so long that what stands in the cache does not matter


def measure(case: Case, names: tuple[str, ...], rounds: int, seconds: float) -> tuple[Measured, dict[str, str]]:
    """What was measured of each route, and why others were left out."""
    torch.set_num_threads(case.threads)
    if any(name.endswith("compiled") for name in names):
        torch._dynamo.reset()  # which imports the compiler: a second
    work = workload(case)
    forwards, missing = prepare(work, names)
    calls = {name: _call(work, forward) for name, forward in forwards.items()}
    is_huge = case.size >= HUGE
    routes = {name: Route(call) for name, call in calls.items()}
    taken = time_routes(routes, max(3, rounds // 5) if is_huge else rounds, seconds, settles=0 if is_huge else 8)
    measured: Measured = {}
    for name, samples in taken.items():
        low, _, high = statistics.quantiles(samples, n=4, method="inclusive") if len(samples) > 1 else samples * 3
        measured[name] = {
            "microseconds": statistics.median(samples) * 1e6,
            "quartiles": [low * 1e6, high * 1e6],
            "over": {other: ratio(taken, name, other) for other in REFERENCES if other in taken and other != name},
        }
        if not is_huge:
            measured[name]["saved_bytes"] = saved_bytes(forwards[name])
    if case.size == PROFILED and case.threads == 1:
        for name, (number, size) in allocations(calls).items():
            measured[name] |= {"allocations": number, "allocated_bytes": size}
    return measured, missing


def prepare(work: Workload, names: tuple[str, ...]) -> tuple[dict[str, Forward], dict[str, str]]:
    forwards: dict[str, Forward] = {}
    missing: dict[str, str] = {}
    for name in names:
        try:
            forwards[name] = ROUTES[work.case.op][name](work)
        except Missing as why:
            missing[name] = str(why)
    return forwards, missing


def _call(work: Workload, forward: Forward) -> Callable[[], object]:
    """Forward and backward, or backward alone of a graph that is kept."""
    x, grad = work.x, work.grad
    if work.case.op.endswith(", backward"):
        y = forward()
        return lambda: torch.autograd.grad(y, x, grad, retain_graph=True)
    return lambda: torch.autograd.grad(forward(), x, grad)


# --- memory ---------------------------------------------------------------------------------------------------------


def saved_bytes(forward: Forward, exists: tuple[Tensor, ...] = ()) -> int:
    """The bytes of all tensors kept for backward, each storage once; without those of `exists`."""
    saved: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()  # a saved output that is handed back as it is would keep its own graph alive

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = forward()
    for tensor in exists:
        saved.pop(tensor.untyped_storage().data_ptr(), None)
    del y
    return sum(saved.values())


def measure_network(names: tuple[str, ...], side: int = 192, layers: int = 12) -> Measured:
    """What a network keeps for backward: twelve times a 3 x 3 convolution of 32 channels and an activation, 4 images of 192 x 192.

    Parameters and the images exist anyway and do not count.
    """
    torch.manual_seed(0)
    torch.set_num_threads(1)
    images = torch.randn(4, 3, side, side)
    convolutions = nn.ModuleList(nn.Conv2d(32 if layer else 3, 32, 3, padding=1) for layer in range(layers))

    def forward(activation: Callable[[Tensor], Tensor]) -> Tensor:
        x = images
        for convolution in convolutions:
            x = activation(convolution(x))
        return x

    exists = (images, *convolutions.parameters())
    return {name: {"saved_bytes": saved_bytes(functools.partial(forward, ACTIVATIONS[name]), exists)} for name in names}


def allocations(calls: dict[str, Callable[[], object]]) -> dict[str, tuple[int, int]]:
    """How many blocks of memory a call of each takes, and their bytes together; numbers that torch wraps in tensors do not count."""
    for call in calls.values():
        call()
    gc.collect()
    with _silence(), torch.profiler.profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profile:
        for name, call in calls.items():
            with record_function(f"call: {name}"):
                call()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    blocks = [(event["ts"], event["args"]["Bytes"]) for event in events if event["name"] == "[memory]"]
    spans = {event["name"]: (event["ts"], event["ts"] + event["dur"]) for event in events if "dur" in event}
    counts = {}
    for name in calls:
        start, end = spans[f"call: {name}"]
        sizes = [size for when, size in blocks if size > NUMBER and start <= when <= end]
        counts[name] = len(sizes), sum(sizes)
    return counts


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Some builds of torch announce each profile on stderr, from C++; torch 2.10 warns that a profile has one cycle."""
    stderr, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Warning: Profiler clears events")
            yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nowhere)
