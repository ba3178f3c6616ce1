"""The kernels in each setting of a CUDA device: streams, graphs, threads, no memory, compiled, forked, sharded, diagnosed."""

import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import pseudograd as pg
from pseudograd import kernels

if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

from pseudograd.kernels.native import on_cuda

SIZE = 100_000
CALLS: dict[str, Callable[[Tensor], Tensor]] = {
    "numbers": lambda x: pg.clamp(x, -1.0, 1.0),
    "tensors": lambda x: pg.clamp(x, torch.full_like(x, -1.0), torch.ones_like(x)),
    "in place": lambda x: pg.clamp_(x * 1, -1.0, 1.0),
    "gelu": lambda x: pg.gelu(x, rule="fewbit"),
    "sign": pg.sign,
    "loss": lambda x: pg.policy.loss(x, x.detach().neg()),
    "overridden": lambda x: overridden(lambda: functional.relu6(x * 1, inplace=True)),
}


def overridden(call: Callable[[], Tensor]) -> Tensor:
    with pg.override(relu="inward"):
        return call()


def gradients(call: Callable[[Tensor], Tensor], x: Tensor, grad: Tensor) -> list[Tensor]:
    x = x.detach().requires_grad_()
    y = call(x)
    return [y.detach(), *torch.autograd.grad(y, x, grad)]


def numbers() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(SIZE, device="cuda") * 1.5, torch.randn(SIZE, device="cuda")


def by_formula(call: Callable[[Tensor], Tensor], x: Tensor, grad: Tensor) -> list[Tensor]:
    with kernels.switch_off("cuda", "portable"):
        return gradients(call, x, grad)


def same(ours: list[Tensor], theirs: list[Tensor]) -> bool:
    torch.cuda.synchronize()
    return all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.fixture(autouse=True)
def kernels_stay_on() -> Iterator[None]:
    yield
    assert on_cuda.read_status()[0] != "failed"


@pytest.mark.parametrize("name", CALLS)
def test_on_a_side_stream_and_in_a_thread(name: str) -> None:
    call, (x, grad) = CALLS[name], numbers()
    expected, found = by_formula(call, x, grad), []
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        found.append(gradients(call, x, grad))
    thread = threading.Thread(target=lambda: found.append(gradients(call, x, grad)))
    thread.start()
    thread.join()
    assert len(found) == 2
    assert all(same(ours, expected) for ours in found)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one device")
@pytest.mark.parametrize("name", CALLS)
def test_on_a_device_that_is_not_the_current_one(name: str) -> None:
    call, (x, grad) = CALLS[name], numbers()
    expected, current = by_formula(call, x, grad), torch.cuda.current_device()
    for device in ("cuda:1", "cuda:0", "cuda:1"):
        ours = gradients(call, x.to(device), grad.to(device))
        assert {tensor.device for tensor in ours} == {torch.device(device)}
        assert same([tensor.to(x.device) for tensor in ours], expected)
        assert torch.cuda.current_device() == current


@pytest.mark.parametrize("name", CALLS)
def test_a_graph_replays_with_other_numbers(name: str) -> None:
    call, (x, grad) = CALLS[name], numbers()
    static_x, static_grad = x.clone(), grad.clone()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            gradients(call, static_x, static_grad)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outcome = gradients(call, static_x, static_grad)
    static_x.copy_(-x), static_grad.copy_(grad.flip(0))
    graph.replay()
    assert same(outcome, by_formula(call, -x, grad.flip(0)))


def test_a_graph_is_told_of_a_kernel_that_is_not_compiled() -> None:
    """And gets the numbers of the formula."""
    x, grad = (
        torch.randn(SIZE, device="cuda", dtype=torch.float16),
        torch.ones(SIZE, device="cuda", dtype=torch.float16),
    )

    def call(x: Tensor) -> Tensor:
        return pg.clamp(x, -0.5, 0.25, rule="leaky_inward", edge="half")

    expected = by_formula(call, x, grad)
    graph = torch.cuda.CUDAGraph()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with torch.cuda.graph(graph):
            outcome = gradients(call, x, grad)
    graph.replay()
    assert same(outcome, expected)
    assert any("a CUDA graph is being recorded" in str(warning.message) for warning in caught)


def test_without_memory_torch_raises_its_own_error() -> None:
    x = torch.zeros(2**28, device="cuda", requires_grad=True)  # 1 GiB
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 2**26) / total)
    try:
        with pytest.raises(torch.OutOfMemoryError):
            pg.clamp(x, -1.0, 1.0)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert pg.clamp(x, -1.0, 1.0).grad_fn is not None


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")  # of torch's own first graph
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled(mode: str) -> None:
    x, grad = numbers()
    call = CALLS["numbers"]
    compiled = torch.compile(call, fullgraph=True, mode=mode)
    for _ in range(3):
        ours = [tensor.clone() for tensor in gradients(compiled, x, grad)]
    assert same(ours, by_formula(call, x, grad))


PROGRAM = """
import os, torch, pseudograd as pg
x = torch.linspace(-2, 2, 10_000)
def gradient(device):
    moved = x.to(device).requires_grad_()
    pg.clamp(moved, -1.0, 1.0).sum().backward()
    return moved.grad.cpu()
if {starts}:
    gradient("cuda")
child = os.fork()
if not child:
    try:
        is_right = torch.equal(gradient("cpu"), (x >= -1).float()) and not {starts}
    except RuntimeError as error:  # torch's own: its threads of a backward do not outlive a fork
        is_right = {starts} and "fork" in str(error)
    os._exit(int(not is_right))
assert os.waitpid(child, 0)[1] == 0
assert torch.equal(gradient("cuda"), gradient("cpu"))
"""


@pytest.mark.parametrize("starts", [False, True])
@pytest.mark.parametrize("blocking", ["0", "1"])
def test_a_fork_before_and_after_cuda_was_started(starts: bool, blocking: str, tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM.format(starts=starts))
    environment = {**os.environ, "CUDA_LAUNCH_BLOCKING": blocking, "HOME": "/nonexistent"}
    result = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", str(file)], env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(64, 256), pg.nn.ReLU(rule="inward"), nn.Linear(256, 64), pg.nn.GELU(rule="fewbit"), nn.Linear(64, 8)
    ).cuda()


def trained(net: nn.Module, steps: int = 3) -> list[Tensor]:
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
    x = torch.randn(128, 64, device="cuda", generator=torch.Generator("cuda").manual_seed(1))
    for _ in range(steps):
        optimiser.zero_grad()
        net(x).square().mean().backward()
        optimiser.step()
    return [getattr(p, "full_tensor", lambda p=p: p)().detach().clone() for p in net.parameters()]


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_data_parallel(kind: str, tmp_path: Path) -> None:
    expected = trained(network())
    torch.distributed.init_process_group("nccl", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        net = network()
        if kind == "ddp":
            net = nn.parallel.DistributedDataParallel(net, device_ids=[0])
        else:
            torch.distributed.fsdp.fully_shard(net)
        ours = trained(net)
    finally:
        torch.distributed.destroy_process_group()
    assert all(torch.allclose(a, b, rtol=1e-5, atol=1e-6) for a, b in zip(ours, expected, strict=True))


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("detail", ["counts", "full"])
def test_most_diagnosed_steps_wait_for_nothing_and_count_as_on_the_cpu(detail: Literal["counts", "full"]) -> None:
    def net() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.Hardtanh(), nn.Linear(64, 4))

    def diagnosed(device: str) -> list[tuple[str, int, int]]:
        model = net().to(device)
        optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
        x, y = (torch.randn(32, n, generator=torch.Generator().manual_seed(n)).to(device) for n in (16, 4))
        with pg.diagnose(model, detail=detail) as d:
            try:
                for step in range(7):  # it looks more closely at the first three
                    torch.cuda.set_sync_debug_mode("error" if step > 4 and device == "cuda" else "default")
                    optimiser.zero_grad()
                    functional.mse_loss(model(x), y).backward()
                    optimiser.step()
            finally:
                torch.cuda.set_sync_debug_mode("default")
        return [(site.op, site.elements, site.cut) for site in d.sites]

    ours, theirs = diagnosed("cuda"), diagnosed("cpu")
    assert [op for op, *_ in ours] == [op for op, *_ in theirs]
    for (_, elements, cut), (_, others, other_cut) in zip(ours, theirs, strict=True):
        assert elements == others
        assert abs(cut - other_cut) <= max(2, elements // 100)  # a device rounds otherwise


def test_a_diagnosis_counts_what_side_streams_compute() -> None:
    def cut(streams: bool) -> list[tuple[str, int, int]]:
        torch.manual_seed(0)
        net = nn.ModuleList(nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 64)) for _ in range(4)).cuda()
        x, main = torch.randn(256, 64, device="cuda"), torch.cuda.current_stream()
        with pg.diagnose(net) as d:
            for _ in range(3):
                results = []
                for branch in net:
                    stream = torch.cuda.Stream() if streams else main
                    stream.wait_stream(main)
                    with torch.cuda.stream(stream):
                        results.append(branch(x))
                    main.wait_stream(stream)
                torch.stack(results).square().mean().backward()
        return [(site.op, site.elements, site.cut) for site in d.sites]

    assert cut(streams=True) == cut(streams=False)
