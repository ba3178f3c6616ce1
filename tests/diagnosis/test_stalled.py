"""Steps that rounding swallows: told where it does, silent on trainings that are well."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from pseudograd import diagnose
from pseudograd.diagnosis.context import Diagnosis
from pseudograd.diagnosis.count.swallowed import Together, Vectors, Watched, expected_step, spacing

LOW = torch.bfloat16
Optimizer = Callable[[Any], torch.optim.Optimizer]


def _train(
    optimizer_of: Optimizer,
    dtype: torch.dtype = LOW,
    *,
    steps: int = 20,
    amp: torch.dtype | None = None,
    batches: bool = False,
    after: Callable[[nn.Module], None] | None = None,
) -> tuple[Diagnosis, nn.Module]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 10)).to(dtype)
    optimizer = optimizer_of(net.parameters())
    x, y = torch.randn(256, 64), torch.randint(0, 10, (256,))
    scaler = torch.amp.GradScaler("cpu", enabled=amp is torch.float16)
    context = torch.autocast("cpu", amp) if amp is not None else contextlib.nullcontext()
    with diagnose(net) as d:
        for _ in range(steps):
            some = torch.randint(0, 256, (32,)) if batches else torch.arange(256)
            optimizer.zero_grad()
            with context:
                loss = functional.cross_entropy(net(x[some].to(dtype)).float(), y[some])
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            if after is not None:
                after(net)
    assert d.errors == []
    return d, net


def _adamw(rate: float, decay: float = 0.0) -> Optimizer:
    return lambda some: torch.optim.AdamW(some, rate, weight_decay=decay)


def _codes(d: Diagnosis) -> list[str]:
    return [one.code for one in d.findings if one.code == "stalled"]


@pytest.mark.parametrize(
    ("dtype", "rate", "never_moved", "is_told"),
    [(torch.float32, 3e-6, 0.0, False), (LOW, 1e-3, 0.001, False), (LOW, 1e-4, 0.739, True), (LOW, 3e-6, 0.989, True)],
)
def test_the_four_rows(dtype: torch.dtype, rate: float, never_moved: float, is_told: bool) -> None:
    """As counted over all entries by comparing them before and after; a thousand of each parameter are looked at here."""
    d, net = _train(_adamw(rate), dtype)
    sizes = {name: parameter.numel() for name, parameter in net.named_parameters()}
    share = sum(one.share * sizes[one.parameter] for one in d.stalled) / sum(sizes.values())
    assert share == pytest.approx(never_moved, abs=0.03)
    assert bool(_codes(d)) == is_told


def test_what_it_says_and_records() -> None:
    d, _ = _train(_adamw(3e-6))
    (one,) = [one for one in d.findings if one.code == "stalled"]
    assert re.search(r"rounded away: a step is 0\.0\d+ of that distance in the median", one.cause)
    assert "compensated summation or stochastic rounding, or a rate" in one.next_step
    record = next(one for one in d.stalled if one.parameter == "0.weight")
    assert (record.dtype, record.steps) == ("bfloat16", 20)
    assert len(record.by_step) == 20
    assert min(share for _, share in record.by_step) > 0.9
    assert 0.001 < record.size < 0.1
    assert d.metrics()["pseudograd/stalled/0.weight"] == record.by_step[-1][1]
    assert d.to_json()["stalled"][0]["dtype"] == "bfloat16"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_the_distance_to_the_next_number(dtype: torch.dtype) -> None:
    values = torch.tensor([1.0, 1.5, -0.7, 2.0, 3e-3, 100.0], dtype=dtype)
    expected = [_next(float(one.abs()), dtype) - float(one.abs()) for one in values]
    assert spacing(values).tolist() == pytest.approx(expected, rel=1e-6)


def _next(value: float, dtype: torch.dtype) -> float:
    """By trying: the smallest number of the dtype above it."""
    step = value * torch.finfo(dtype).eps
    low, high = 0.0, 2 * step
    for _ in range(60):
        middle = (low + high) / 2
        if float(torch.tensor(value, dtype=torch.float64).add(middle).to(dtype)) > value:
            high = middle
        else:
            low = middle
    return float(torch.tensor(value + high * 1.001, dtype=torch.float64).to(dtype))


@pytest.mark.parametrize(
    "optimizer_of",
    [
        lambda some: torch.optim.SGD(some, 0.1),
        lambda some: torch.optim.SGD(some, 0.1, momentum=0.9),
        lambda some: torch.optim.Adam(some, 0.01),
        lambda some: torch.optim.AdamW(some, 0.01, weight_decay=0.0),
    ],
)
def test_the_expected_step_is_the_step(optimizer_of: Optimizer) -> None:
    p = nn.Parameter(torch.linspace(-1, 1, 7))
    optimizer = optimizer_of([p])
    for _ in range(3):
        p.grad = torch.sin(3 * p.detach())
        before = p.detach().clone()
        optimizer.step()
    found = expected_step(p, optimizer.param_groups[0], optimizer.state[p])
    assert found is not None
    assert found.tolist() == pytest.approx((p.detach() - before).abs().tolist(), rel=1e-3)


def test_a_rate_that_is_too_small_for_full_precision() -> None:
    d, _ = _train(lambda some: torch.optim.SGD(some, 1e-9), torch.float32, steps=30)
    (one,) = [one for one in d.findings if one.code == "stalled"]
    assert re.fullmatch(r"Give the optimizer a rate [\d,]+ times as large\.", one.next_step)
    times = float(re.search(r"[\d,]+", one.next_step)[0].replace(",", ""))  # type: ignore[index]
    assert _codes(_train(lambda some: torch.optim.SGD(some, 1e-9 * times * 4), torch.float32, steps=30)[0]) == []


def test_a_warm_up_that_moves_nothing_is_forgotten() -> None:
    """Three steps whose rate is too small for full precision, and then a training."""
    torch.manual_seed(0)
    net = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(net.parameters(), 1e-12)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 if step < 3 else 1e10)
    with diagnose(net) as d:
        for _ in range(12):
            x = torch.randn(16, 8)
            optimizer.zero_grad()
            functional.mse_loss(net(x), x * x).backward()
            optimizer.step()
            schedule.step()
    assert [one.share for one in d.stalled] == [0.0, 0.0]
    assert _codes(d) == []


@pytest.mark.parametrize(("rate", "looks"), [(1e-9, [1, 2, 10, 18, 26, 34]), (1e-2, [1, 9])])
def test_full_precision_is_looked_at_now_and_then(rate: float, looks: list[int]) -> None:
    d, _ = _train(lambda some: torch.optim.SGD(some, rate), torch.float32, steps=40)
    for one in d.stalled:
        assert [step for step, _ in one.by_step] == looks
        assert one.steps == 40
        assert not math.isnan(one.size)


def test_parameters_that_come_and_go() -> None:
    """Frozen and set free, in groups of their own, of two dtypes: as a comparison of all entries before and after each step has it."""
    torch.manual_seed(0)
    some = [
        nn.Parameter(torch.randn(size).to(dtype))
        for size, dtype in ((40, LOW), (9, torch.float16), (24, LOW), (30, LOW))
    ]
    optimizer = torch.optim.SGD([{"params": some[:3]}, {"params": some[3:], "lr": 1e-3}], 3e-4)
    had, moved = ([torch.zeros(p.shape, dtype=torch.bool) for p in some] for _ in range(2))
    with diagnose(nn.ParameterDict(zip("abcd", some, strict=True))) as d:
        for step in range(30):
            for at, p in enumerate(some):
                p.requires_grad_(step >= 6 * at and (step - at) % (at + 2) < 2)
            optimizer.zero_grad()
            slopes = [torch.randn(p.shape) * (torch.rand(p.shape) < 0.3) for p in some]
            sum((p.float() * k).sum() for p, k in zip(some, slopes, strict=True) if p.requires_grad).backward()  # type: ignore[union-attr]
            before = [p.detach().clone() for p in some]
            optimizer.step()
            for at, p in enumerate(some):
                if p.grad is not None:
                    had[at] |= p.grad != 0
                    moved[at] |= p.detach() != before[at]
    assert d.errors == []
    expected = [float((one & ~other).sum() / one.sum()) for one, other in zip(had, moved, strict=True)]
    assert all(0.02 < share < 0.98 for share in expected)
    assert not any(math.isnan(one.size) for one in d.stalled)
    assert {one.parameter: one.share for one in d.stalled} == pytest.approx(dict(zip("abcd", expected, strict=True)))


def test_what_weight_decay_alone_moves_has_not_moved() -> None:
    """A decay of a hundredth in each step changes the weights; of the gradient nothing is left."""
    d, net = _train(_adamw(1e-5, decay=1000.0))
    fresh = nn.Linear(64, 64)
    assert float(net[0].weight.detach().float().abs().mean()) < 0.9 * float(fresh.weight.detach().abs().mean())  # type: ignore[index, union-attr]
    assert _codes(d) == ["stalled"]


class _LastRows(torch.optim.Optimizer):
    """Moves one row and holds the others, as pruning and partial training do."""

    def __init__(self, some: Any, rate: float) -> None:
        super().__init__(some, {"lr": rate})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for p in self.param_groups[0]["params"]:
            p[-1] -= self.param_groups[0]["lr"] * p.grad[-1]


def test_rows_that_something_else_holds() -> None:
    assert _codes(_train(lambda some: _LastRows(some, 100.0))[0]) == []


def test_weights_that_are_copied_from_others() -> None:
    """The program keeps weights of full precision beside those of the model, and copies them after each step."""
    masters: dict[str, Tensor] = {}

    def copy(net: nn.Module) -> None:
        for name, p in net.named_parameters():
            masters.setdefault(name, p.detach().float()).add_(0.02 * p.grad.float().sign())  # type: ignore[union-attr]
            p.data.copy_(masters[name])

    assert _codes(_train(lambda some: torch.optim.SGD(some, 1e-6), after=copy)[0]) == []


class _WithMaster(torch.optim.Optimizer):
    """Keeps weights of full precision in its state, and hands out what they round to."""

    def __init__(self, some: Any, rate: float) -> None:
        super().__init__(some, {"lr": rate})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for p in self.param_groups[0]["params"]:
            master = self.state[p].setdefault("copy", p.float())
            master -= self.param_groups[0]["lr"] * p.grad.float().sign()
            p.copy_(master)


class _Kahan(torch.optim.Optimizer):
    def __init__(self, some: Any, rate: float) -> None:
        super().__init__(some, {"lr": rate})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for p in self.param_groups[0]["params"]:
            rest = self.state[p].setdefault("kahan_comp", torch.zeros_like(p))
            rest -= self.param_groups[0]["lr"] * p.grad.sign()
            before = p.clone()
            p += rest
            rest += before - p


@pytest.mark.parametrize("kind", [_WithMaster, _Kahan])
def test_an_optimiser_that_keeps_what_rounding_takes(kind: Any) -> None:
    assert _codes(_train(lambda some: kind(some, 3e-6))[0]) == []


def test_a_converged_model_of_full_precision() -> None:
    """Least squares at its minimum: what is left of the gradient is rounding."""
    torch.manual_seed(0)
    x = torch.randn(64, 8)
    y = x @ torch.randn(8, 1) + 0.1 * torch.randn(64, 1)
    net = nn.Linear(8, 1, bias=False)
    with torch.no_grad():
        net.weight.copy_(torch.linalg.lstsq(x.double(), y.double()).solution.T.float())
    optimizer = torch.optim.SGD(net.parameters(), 1e-2)
    with diagnose(net) as d:
        for _ in range(30):
            optimizer.zero_grad()
            functional.mse_loss(net(x), y).backward()
            assert net.weight.grad is not None
            assert net.weight.grad.any()
            optimizer.step()
    assert _codes(d) == []


@pytest.mark.parametrize(("looks", "agree", "is_noise"), [(10, False, True), (9, False, False), (10, True, False)])
def test_ten_gradients_that_cancel_are_noise(looks: int, agree: bool, is_noise: bool) -> None:
    signs = (
        torch.ones(looks, 64) if agree else torch.randn(looks, 64, generator=torch.Generator().manual_seed(0)).sign()
    )
    parameter = Watched(torch.zeros(64), None)
    parameter.home, parameter.apart = Together(torch.float32), Vectors.fresh(torch.zeros(64))
    for grad in 3 * signs:
        parameter.looks += 1
        parameter.apart.sum += grad
        parameter.apart.squares += grad**2
    assert parameter.is_noise == is_noise


def test_a_converged_model_of_half_precision() -> None:
    """At the minimum the gradients of batches cancel; they are as large as those of a training."""
    torch.manual_seed(0)
    x = torch.randn(4096, 8)
    y = x @ torch.ones(8, 1) + torch.randn(4096, 1)
    net = nn.Linear(8, 1, bias=False)
    with torch.no_grad():
        net.weight.copy_(torch.linalg.lstsq(x, y).solution.T)
    net = net.to(LOW)
    optimizer = torch.optim.SGD(net.parameters(), 1e-4)
    with diagnose(net) as d:
        for _ in range(40):
            some = torch.randint(0, 4096, (64,))
            optimizer.zero_grad()
            functional.mse_loss(net(x[some].to(LOW)).float(), y[some]).backward()
            optimizer.step()
    assert d.stalled[0].share > 0.5
    assert d.stalled[0].is_noise
    assert _codes(d) == []


HEALTHY: dict[str, tuple[Optimizer, torch.dtype, dict[str, Any]]] = {
    "SGD": (lambda some: torch.optim.SGD(some, 0.1), torch.float32, {}),
    "SGD with momentum, batches": (
        lambda some: torch.optim.SGD(some, 0.01, momentum=0.9),
        torch.float32,
        {"batches": True},
    ),
    "SGD, a small rate": (lambda some: torch.optim.SGD(some, 1e-4), torch.float32, {}),
    "Adam": (lambda some: torch.optim.Adam(some, 1e-3), torch.float32, {"batches": True}),
    "AdamW, fine tuning": (_adamw(1e-6, 0.01), torch.float32, {}),
    "RMSprop": (lambda some: torch.optim.RMSprop(some, 1e-3), torch.float32, {}),
    "double": (_adamw(1e-8), torch.float64, {}),
    "autocast, bfloat16": (_adamw(3e-6), torch.float32, {"amp": LOW}),
    "autocast, bfloat16, batches": (_adamw(1e-4, 0.1), torch.float32, {"amp": LOW, "batches": True}),
    "GradScaler": (_adamw(1e-3), torch.float32, {"amp": torch.float16}),
    "GradScaler, SGD": (lambda some: torch.optim.SGD(some, 0.05), torch.float32, {"amp": torch.float16}),
    "bfloat16, a usual rate": (_adamw(1e-3), LOW, {"batches": True}),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_trainings(name: str) -> None:
    optimizer_of, dtype, more = HEALTHY[name]
    assert _codes(_train(optimizer_of, dtype, **more)[0]) == []


def test_a_step_that_raises_is_not_looked_at_twice() -> None:
    class Failing(torch.optim.Optimizer):
        fails = True

        @torch.no_grad()
        def step(self, closure: Any = None) -> Any:
            if self.fails:
                raise RuntimeError("no step")
            for p in self.param_groups[0]["params"]:
                p.sub_(p.grad)

    weight = nn.Parameter(torch.ones(8, dtype=LOW))
    optimiser = Failing([weight], {"lr": 1.0})
    with diagnose(nn.ParameterList([weight])) as d:
        for _ in range(3):
            weight.grad = None
            (weight * 0.5).sum().backward()
            with contextlib.suppress(RuntimeError):
                optimiser.step()
            Failing.fails = False
    assert d.errors == []
    (one,) = d.stalled
    assert one.steps == 2
    assert [share for _, share in one.by_step] == [0.0, 0.0]


def test_a_step_of_nothing_known_has_no_size() -> None:
    d, _ = _train(lambda some: torch.optim.Adagrad(some, 1e-6))
    assert all(math.isnan(one.size) for one in d.stalled)


def test_the_program_is_as_without() -> None:
    def last(watched: bool) -> list[Tensor]:
        torch.manual_seed(0)
        net = nn.Linear(8, 8).to(LOW)
        optimizer = torch.optim.AdamW(net.parameters(), 1e-4)
        with diagnose(net) if watched else contextlib.nullcontext():
            for _ in range(4):
                optimizer.zero_grad()
                net(torch.randn(4, 8, dtype=LOW)).square().sum().backward()
                optimizer.step()
        state = [value for kept in optimizer.state.values() for value in kept.values()]
        return [*(p.detach().clone() for p in net.parameters()), *state, torch.get_rng_state()]

    for one, other in zip(last(False), last(True), strict=True):
        assert torch.equal(one, other)
