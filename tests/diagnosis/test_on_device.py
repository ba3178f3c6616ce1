"""A diagnosis on a stand-in for a device: no tensor says that it is on the CPU, and each call of torch counts as a launch."""

import contextlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from pseudograd import diagnose
from pseudograd.diagnosis.count import on_device as ledger
from pseudograd.diagnosis.count import recorder
from pseudograd.diagnosis.count.grads import MatchedGradients
from pseudograd.diagnosis.count.leaf import Leaf
from pseudograd.diagnosis.count.names import Names
from pseudograd.diagnosis.count.norms import Sizes
from pseudograd.diagnosis.count.on_device import Ledger
from pseudograd.kernels import native
from pseudograd.kernels.native import on_cuda
from pseudograd.listen import harmless
from pseudograd.torch_table.private import without_torch_function

WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2", "unique_dim", "is_nonzero")
VIEWS = ("promote_types", "view", "detach", "t", "transpose", "expand", "_unsafe_view", "slice", "select", "unsqueeze")


class Launches(TorchDispatchMode):
    """The calls of torch that are no views, and those that wait for a device."""

    launches = waits = 0

    def __torch_dispatch__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        self.launches += name not in (*VIEWS, WAITS[0])
        self.waits += name in WAITS
        with without_torch_function():
            return func(*args, **(kwargs or {}))


def test_the_kinds_of_an_entry_are_those_of_the_kernel() -> None:
    header = (Path(native.__file__).parent / "kernels.h").read_text(encoding="utf-8")
    (kinds,) = re.findall(r"enum \{ (.*) \}; .*kinds of an entry", header)
    assert [getattr(ledger, f"_{name}") for name in kinds.split(", ")] == [0, 1, 2]
    assert all(f"{name} = {getattr(ledger, f'_{name}')}" in header for name in ("MOST_LEFT", "MOST_ENTRIES"))


@pytest.fixture
def on_device(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    def begin() -> None:
        monkeypatch.setattr(Tensor, "is_cpu", property(lambda self: False), raising=False)
        monkeypatch.setattr(recorder, "dispatch_modes", lambda: 0)
        monkeypatch.setattr(harmless, "dispatch_modes", lambda: 0)
        monkeypatch.setattr(recorder, "nobody_else_runs", lambda: True)

    return begin


def training() -> tuple[nn.Module, Callable[[], None]]:
    torch.manual_seed(0)
    table, norm = nn.Embedding(9, 8), nn.BatchNorm1d(8)
    block = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 8), nn.ReLU6())
    net = nn.ModuleList([table, norm, block])
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, foreach=True)
    x = torch.tensor([0, 1, 2, 1, 7])

    def step() -> None:
        optimizer.zero_grad()
        (block(norm(table(x))).softmax(1) ** 2).sum().backward()
        optimizer.step()

    return net, step


def run(detail: str, steps: int) -> Any:
    net, step = training()
    with diagnose(net, detail=detail) as diagnosis:
        for _ in range(steps):
            step()
    return diagnosis


@pytest.mark.parametrize("detail", ["full", "counts"])
def test_the_report_is_that_of_the_cpu(detail: str, on_device: Callable[[], None]) -> None:
    expected = run(detail, 5)
    on_device()
    result = run(detail, 5)
    for site, own in zip(result.sites, expected.sites, strict=True):
        for name in ("op", "where", "calls", "elements", "arrived", "cut", "nonfinite", "elsewhere", "at_bound"):
            assert getattr(site, name) == getattr(own, name), (site.op, name)
        assert (site.magnitude, site.cut_magnitude) == pytest.approx((own.magnitude, own.cut_magnitude), rel=1e-5)
    numbers = [word for word in str(result).split() if word not in str(expected).split()]
    assert not numbers, (str(result), str(expected))


@pytest.mark.parametrize(("detail", "most"), [("full", 32), ("counts", 11)])
def test_no_step_waits_and_each_node_costs_few_launches(detail: str, most: int, on_device: Callable[[], None]) -> None:
    on_device()
    net, step = training()
    count = []
    for context in (contextlib.nullcontext(), diagnose(net, detail=detail)):
        with context:
            for _ in range(5):
                step()
            with Launches() as launches:
                step()
        count.append((launches.launches, launches.waits))
    (plain, _), (diagnosed, waits) = count
    assert waits == 0
    assert diagnosed - plain <= most * 8 + 20, "of 8 nodes"


def test_what_was_never_counted_is_zero() -> None:
    rows = Ledger(torch.device("cpu"), True).make_sums(may_move=False)
    assert set(rows.read().values()) == {0.0}


def measure_here(tensors: list[Tensor], entries: list[int], rows: Tensor) -> int:
    """As kernels/measures.cu measures them, but no gradient of integers. Returns a bit for each entry that it leaves out."""
    rest, missed = iter(tensors), 0
    for number, entry in enumerate(entries):
        row, left, kind = rows[entry >> 4], entry >> 2 & 3, entry & 3
        grad, leaving = next(rest), [next(rest) for _ in range(left)]
        if grad.numel() == 5:
            missed |= 1 << number
        elif kind == ledger._SQUARES:
            row[0], row[1] = grad.double().square().sum(), torch.count_nonzero(grad)
        elif kind == ledger._ELSEWHERE:
            row[4] += torch.count_nonzero(grad)
        else:
            leaves = torch.stack([torch.zeros_like(grad), *leaving]).any(0)
            cut = torch.where(leaves, 0, grad)
            counts = (grad, cut, leaves, grad * 0)
            row[:4] = torch.stack([torch.count_nonzero(values) for values in counts])
            row[5:] = torch.stack([values.abs().sum() for values in (grad, cut, torch.stack([0 * grad, *leaving]))])
    return missed


@pytest.mark.parametrize("is_full", [True, False])
def test_a_kernel_measures_what_is_measured_without_it(is_full: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tensor, "is_cpu", property(lambda self: False), raising=False)
    totals = []
    for operator in (None, measure_here):
        calls = Ledger(torch.device("cpu"), is_full)
        calls._measure, calls.may_wait = operator, True
        sums = [calls.make_sums(may_move) for may_move in (False, True)]
        for number in range(40):
            size = 4 + number % 3
            grad = torch.arange(1.0, size + 1) * (torch.arange(size) != number % 5)
            gone, other = grad * (torch.arange(size) > 1), torch.ones(number % 4)
            some = [gone, grad.flip(0), gone, None, gone][: number % 6]
            kept = [*some, other, *[other] * (60 * (number == 7))]
            grads = MatchedGradients.match(kept, (grad,))
            assert sums[number % 2].add(grads) is (grads is not None)
        totals.append([each.read() for each in sums])
        assert totals[-1] == [each.read() for each in sums]
    assert totals[0] == totals[1]


def test_a_kernel_measures_the_norms_of_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for operator, size in ((None, 4), (measure_here, 4), (measure_here, 5), (lambda *arguments: -1, 4)):
        calls = Ledger(torch.device("cpu"), True)
        calls._measure = operator
        leaves = [Leaf(number, nn.Parameter(torch.zeros(size)), Names(), 0) for number in range(60)]
        monkeypatch.setattr(on_cuda, "decline", lambda: None)
        for leaf in leaves:
            leaf.sizes = Sizes()
        for step in (1.0, 2.0):
            calls.add_arrivals([(leaf, torch.tensor([step, leaf.number, *[0.0] * (size - 2)])) for leaf in leaves])
        assert calls._measure in (operator, None)
        means = [leaf.sizes.mean for leaf in leaves if leaf.sizes is not None]
        assert means == pytest.approx([(2.5 + number**2) ** 0.5 for number in range(60)])
        assert [leaf.gradients for leaf in leaves] == [2] * 60
        steps = [(*leaf.sizes.norm_by_step, *leaf.sizes.zeros) for leaf in leaves if leaf.sizes is not None]
        results.append([value for pairs in steps for _, value in pairs])
    assert [results[at] == pytest.approx(results[0]) for at in (1, 3)] == [True, True]
