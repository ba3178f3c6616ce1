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
from pseudograd.diagnosis.count.on_device import Ledger
from pseudograd.kernels import native
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
