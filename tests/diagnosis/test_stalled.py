"""Steps that rounding swallows are a finding, and a healthy training has none."""

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
from pseudograd.diagnosis.count.norms import expected_step, spacing

from ..choices import folded
from .checks import codes, only
from .trainers import steps as train

LOW, FULL = torch.bfloat16, torch.float32
Optimizer = Callable[[Any], torch.optim.Optimizer]


def sgd(rate: float, **options: Any) -> Optimizer:
    return lambda parameters: torch.optim.SGD(parameters, rate, **options)


def adamw(rate: float, decay: float = 0.0) -> Optimizer:
    return lambda parameters: torch.optim.AdamW(parameters, rate, weight_decay=decay)


def scheduled(factor: Callable[[int], float]) -> Optimizer:
    def optimizer_of(parameters: Any) -> torch.optim.Optimizer:
        optimizer = torch.optim.AdamW(parameters, 3e-6, weight_decay=0.0)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        optimizer.register_step_post_hook(lambda *args: schedule.step())
        return optimizer

    return optimizer_of


def _train(
    optimizer_of: Optimizer,
    dtype: torch.dtype = LOW,
    *,
    steps: int = 20,
    amp: torch.dtype | None = None,
    batches: bool = False,
    after: Callable[[nn.Module], None] | None = None,
) -> tuple[Diagnosis, nn.Sequential]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 10)).to(dtype)
    optimizer = optimizer_of(net.parameters())
    x, y = torch.randn(256, 64), torch.randint(0, 10, (256,))
    scaler = torch.amp.GradScaler("cpu", enabled=amp is torch.float16)
    context = torch.autocast("cpu", amp) if amp is not None else contextlib.nullcontext()
    with diagnose(net) as d:
        for _ in range(steps):
            rows = torch.randint(0, 256, (32,)) if batches else torch.arange(256)
            optimizer.zero_grad()
            with context:
                loss = functional.cross_entropy(net(x[rows].to(dtype)).float(), y[rows])
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            if after is not None:
                after(net)
    return d, net


# --- a finding -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "rate", "never_moved", "is_stalled"),
    [(FULL, 3e-6, 0.0, False), (LOW, 1e-3, 0.001, False), (LOW, 3e-6, 0.989, True)],
)
def test_the_share_that_never_moved_is_that_of_all_entries(
    dtype: torch.dtype, rate: float, never_moved: float, is_stalled: bool
) -> None:
    """never_moved: counted over all entries. A diagnosis samples a thousand entries of each parameter."""
    d, net = _train(adamw(rate), dtype)
    sizes = {name: parameter.numel() for name, parameter in net.named_parameters()}
    share = sum(record.share * sizes[record.parameter] for record in d.stalled) / sum(sizes.values())
    assert share == pytest.approx(never_moved, abs=0.03)
    assert codes(d) == (["stalled"] if is_stalled else [])


def test_a_stall_has_its_share_its_cause_and_advice_that_works() -> None:
    d, _ = _train(adamw(3e-6))
    finding = only(d, "stalled")
    assert finding.expression == "scaler.step(optimizer)"
    assert "never moved in 20 steps: 0.weight, 0.bias, 2.weight, 2.bias" in finding.evidence
    assert finding.share > 0.9
    assert "other parameter" not in finding.evidence
    assert re.search(r"rounded away: a step is 0\.0\d+ of that distance in the median", finding.cause)
    assert "rate" not in finding.next_step
    record = next(record for record in d.stalled if record.parameter == "0.weight")
    assert (record.dtype, record.steps, len(record.by_step)) == ("bfloat16", 20, 20)
    assert min(share for _, share in record.by_step) > 0.9
    assert 0.001 < record.size < 0.1
    assert d.metrics()["pseudograd/stalled/0.weight"] == record.by_step[-1][1]
    # The advice, pasted.
    net = nn.Linear(2, 2).bfloat16()
    line, then = finding.next_step.split("#")
    exec(line, {"net": net})
    assert net.weight.dtype is FULL
    context = re.search(r"torch\.autocast\(.*\)", then)
    with eval(context[0]):
        assert net(torch.ones(1, 2)).dtype is LOW


def test_entries_that_leave_0_are_no_sign_of_random_rounding() -> None:
    """Nothing rounds a step from 0 away, as that of a bias."""
    net = nn.Sequential(nn.Linear(16, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 4)).to(LOW)
    x, y = torch.randn(64, 16, dtype=LOW), torch.randint(4, (64,))
    d = train(net, lambda: functional.cross_entropy(net(x).float(), y), 14, torch.optim.AdamW(net.parameters(), 1e-5))
    assert "1 other parameter of this dtype moves" in only(d, "stalled").evidence


def test_the_advice_for_a_small_rate_has_the_factor_that_moves_the_weights() -> None:
    d, _ = _train(sgd(1e-9), FULL, steps=30)
    advice = re.fullmatch(
        r"Give the optimizer a rate ([\d,]+) times as large; compare a training with it\.", only(d, "stalled").next_step
    )
    times = float(advice[1].replace(",", ""))
    assert codes(_train(sgd(1e-9 * times * 4), FULL, steps=30)[0]) == []


@pytest.mark.parametrize(("start", "unit", "rate"), [(1e5, 1.0, 1e-3), (1e6, 1e6, 1e-2)])
def test_small_steps_at_large_numbers_stall_in_full_precision(start: float, unit: float, rate: float) -> None:
    """As for hertz or dates: the gradient is small beside the weight, but the weight has a long way to go."""
    p = nn.Parameter(start + 100 * torch.arange(1.0, 9.0))
    d = train(None, lambda: ((p - start) / unit).square().mean().sqrt(), 20, torch.optim.Adam([p], rate))
    assert only(d, "stalled").share == 1


def test_no_larger_rate_is_advised_while_other_parameters_move() -> None:
    """A larger rate might break the parameters that move."""
    net = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Tanh(), nn.Linear(16, 3)).to(LOW)
    x, y = torch.randn(32, 8).to(LOW), torch.arange(32) % 3
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    d = train(net, lambda: functional.cross_entropy(net(x).float(), y), 20, optimizer)
    finding = only(d, "stalled")
    assert finding.evidence == (
        "100 % of the entries that have a gradient never moved in 20 steps: 1.weight; 5 other parameters of this dtype move"
    )
    assert "rate" not in finding.next_step


def test_the_steps_of_an_unknown_optimiser_are_not_measured() -> None:
    d, _ = _train(writing(1e-6, lambda p, state, rate: p.sub_(rate * p.grad.sign())))
    assert only(d, "stalled").cause.endswith("is not known: it may also hold these weights on purpose")
    assert all(math.isnan(record.size) for record in d.stalled)


def test_the_size_of_a_step_is_that_at_the_highest_rate() -> None:
    alone, _ = _train(adamw(3e-6), steps=14)
    decayed, _ = _train(scheduled(lambda step: 1.0 if step < 14 else 0.01))
    assert [record.size for record in decayed.stalled] == [record.size for record in alone.stalled]
    assert "never moved in 14 steps" in only(decayed, "stalled").evidence


@pytest.mark.parametrize("highest", [5, 1000])
def test_a_warm_up_is_judged_when_it_has_ended(highest: int) -> None:
    d, _ = _train(scheduled(lambda step: min(1.0, (step + 1) / highest)))
    assert codes(d) == (["stalled"] if highest == 5 else [])
    if highest == 5:
        assert "never moved in 16 steps" in only(d, "stalled").evidence


def test_a_weight_that_only_decays_is_stalled() -> None:
    """The decay takes a hundredth of the weights in each step; rounding swallows the part of the gradient."""
    d, net = _train(adamw(1e-5, decay=1000.0))
    mean = float(nn.Linear(64, 64).weight.detach().abs().mean())
    assert float(net[0].weight.detach().float().abs().mean()) < 0.9 * mean
    assert codes(d) == ["stalled"]


# --- silent -----------------------------------------------------------------------------------------------------------


class _Writes(torch.optim.Optimizer):
    """An optimiser by a function of the parameter, its state and the rate."""

    def __init__(self, parameters: Any, rate: float, write: Callable[[Any, Any, float], object]) -> None:
        super().__init__(parameters, {"lr": rate})
        self.write = write

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for p in self.param_groups[0]["params"]:
            self.write(p, self.state[p], self.param_groups[0]["lr"])


def writing(rate: float, write: Callable[[Any, Any, float], object]) -> Optimizer:
    return lambda parameters: _Writes(parameters, rate, write)


def _last_row(p: Any, state: Any, rate: float) -> None:
    """Writes the last row alone, as pruning and partial training hold the others."""
    p[-1] -= rate * p.grad[-1]


def _master(p: Any, state: Any, rate: float) -> None:
    """Keeps weights of full precision in its state, and hands out what they round to."""
    master = state.setdefault("copy", p.float())
    master -= rate * p.grad.float().sign()
    p.copy_(master)


def _kahan(p: Any, state: Any, rate: float) -> None:
    rest = state.setdefault("kahan_comp", torch.zeros_like(p))
    rest -= rate * p.grad.sign()
    before = p.clone()
    p += rest
    rest += before - p


def _round_at_random(p: Any, new: Tensor) -> None:
    bits = new.view(torch.int32) + torch.randint(0, 1 << 16, p.shape, dtype=torch.int32)
    p.copy_((bits & -65536).view(torch.float32))


def _random_like_sgd(p: Any, state: Any, rate: float) -> None:
    _round_at_random(p, p.float() - rate * p.grad.float())


def _random_like_lion(p: Any, state: Any, rate: float) -> None:
    mean = state.setdefault("mean", torch.zeros_like(p))
    mean.lerp_(p.grad, 0.1)
    _round_at_random(p, p.float() - rate * mean.float().sign())


def _random_like_adam(p: Any, state: Any, rate: float) -> None:
    grad, state["step"] = p.grad.float(), state.get("step", 0) + 1
    mean, square = (state.setdefault(name, torch.zeros_like(grad)) for name in ("exp_avg", "exp_avg_sq"))
    mean.lerp_(grad, 1.0)  # as with betas of 0
    square.lerp_(grad * grad, 1.0)
    _round_at_random(p, p.float() - rate * mean / (square.sqrt() + 1e-8))


def _proximal(p: Any, state: Any, rate: float) -> None:
    """A penalty draws entries to 0 and holds them there."""
    state.setdefault("count", torch.zeros_like(p))
    p.copy_(functional.softshrink(p - rate * p.grad, 100 * rate))


HEALTHY: dict[str, tuple[Optimizer, torch.dtype, dict[str, Any]]] = {
    "SGD": (sgd(0.1), FULL, {}),
    "momentum, batches": (sgd(0.01, momentum=0.9), FULL, {"batches": True}),
    "AdamW, fine tuning": (adamw(1e-6, 0.01), FULL, {}),
    "autocast, bfloat16": (adamw(3e-6), FULL, {"amp": LOW}),
    "GradScaler": (adamw(1e-3), FULL, {"amp": torch.float16}),
    "too few steps to say never": (adamw(3e-6), LOW, {"steps": 9}),
    "rows that something else holds": (writing(100.0, _last_row), LOW, {}),
    "weights of full precision in the state": (writing(3e-6, _master), LOW, {}),
    "stochastic rounding, as SGD": (writing(1e-2, _random_like_sgd), LOW, {}),
    "stochastic rounding, as Adam": (writing(1e-5, _random_like_adam), LOW, {}),
    "stochastic rounding, as Lion": (writing(1e-5, _random_like_lion), LOW, {"steps": 20}),
    "zeros that a penalty holds": (writing(0.1, _proximal), FULL, {}),
    "compensated summation": (writing(3e-6, _kahan), LOW, {}),
}


@folded
@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_training_is_no_stall(name: str) -> None:
    optimizer_of, dtype, more = HEALTHY[name]
    assert codes(_train(optimizer_of, dtype, **{"steps": 12, **more})[0]) == []


def test_a_converged_model_is_no_stall() -> None:
    """Least squares at its minimum: the gradients of batches are as large as those of a training, but they cancel."""
    x = torch.randn(4096, 8)
    y = x @ torch.randn(8, 1) + torch.randn(4096, 1)
    net = nn.Linear(8, 1, bias=False)
    net.weight.data = torch.linalg.lstsq(x, y).solution.T.to(LOW)

    def loss() -> Tensor:
        batch = torch.randint(0, 4096, (64,))
        return functional.mse_loss(net(x[batch].to(LOW)).float(), y[batch])

    d = train(net, loss, 40, torch.optim.SGD(net.parameters(), 1e-4))
    assert codes(d) == []
    assert d.stalled[0].share > 0.5
    assert d.stalled[0].is_noise


# --- what is measured -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_spacing_is_the_distance_to_the_next_number(dtype: torch.dtype) -> None:
    values = torch.tensor([1.0, 1.5, -0.7, 2.0, 3e-3, 100.0], dtype=dtype)
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[values.itemsize]
    next_values = (values.abs().view(bits) + 1).view(dtype)
    assert spacing(values).tolist() == pytest.approx((next_values - values.abs()).tolist(), rel=1e-6)


@pytest.mark.parametrize(
    "optimizer_of",
    [
        sgd(0.1),
        sgd(0.1, momentum=0.9),
        sgd(0.1, momentum=0.9, nesterov=True, weight_decay=0.3),
        lambda parameters: torch.optim.Adam(parameters, 0.01, amsgrad=True),
        adamw(0.01),
        lambda parameters: torch.optim.AdamW(parameters, torch.tensor(0.01), weight_decay=0.0),
    ],
    ids=["SGD", "momentum", "Nesterov", "Adam", "AdamW", "a rate that is a tensor"],
)
def test_the_expected_step_is_the_step(optimizer_of: Optimizer) -> None:
    p = nn.Parameter(torch.linspace(-1, 1, 7))
    optimizer = optimizer_of([p])
    for _ in range(3):
        p.grad = torch.sin(3 * p.detach())
        before = p.detach().clone()
        optimizer.step()
    expected = expected_step(p, optimizer.param_groups[0], optimizer.state[p], before)
    assert expected.tolist() == pytest.approx((p.detach() - before).abs().tolist(), rel=1e-3)
