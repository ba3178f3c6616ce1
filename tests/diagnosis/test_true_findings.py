"""A sentence of the report is true where it stands, absent where it would be false, and its advice, pasted, works."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import pseudograd as pg
from pseudograd.diagnosis import diagnose
from pseudograd.diagnosis.context import Diagnosis
from pseudograd.listen import frames
from pseudograd.torch_table.eras import installed_era

from ..choices import one_in

PLACES = torch.tensor([3, 2, 1, 0])
PERMUTATION = torch.eye(4)[PLACES]


def codes(d: Diagnosis) -> list[str]:
    assert d.errors == []
    return [one.code for one in d.findings]


def followed(d: Diagnosis, code: str, step: Callable[[], object]) -> None:
    """The advice, pasted around a training step."""
    advice = next(one.next_step for one in d.findings if one.code == code)
    exec(advice.split("#")[0].replace("...", "step()"), {"pseudograd": pg, "step": step})


# --- dead: nothing leaves at all ---------------------------------------------------------------------------------------

MOVING: dict[str, Callable[[Tensor], Tensor]] = {
    "flip": lambda x: x.flip(0),
    "roll": lambda x: x.roll(1),
    "index": lambda x: x[PLACES],
    "sort": lambda x: x.sort().values,
    "gather": lambda x: x.gather(0, PLACES),
    "scatter": lambda x: torch.zeros(4).scatter(0, PLACES, x),
    "mv": lambda x: PERMUTATION.mv(x),
    "cumsum": lambda x: x.flip(0).cumsum(0),
    "softmax": lambda x: x.softmax(0),
    "fft": lambda x: torch.fft.fft(x).real.flip(0),
}


@pytest.mark.parametrize(("op", "detail"), one_in(2, MOVING, ["full", "counts"]))
def test_what_moves_or_mixes_elements_is_not_dead(op: str, detail: str) -> None:
    w = nn.Parameter(torch.tensor([4.0, 3.0, 2.0, 1.0]))
    with diagnose(detail=detail) as d:
        MOVING[op](w * 2)[0].backward()
    assert w.grad is not None
    assert w.grad.any()
    assert codes(d) == []
    assert all(site.cut == 0 for site in d.sites if site.op != "mul"), d.sites


def test_a_moving_op_that_loses_some_is_counted_by_numbers() -> None:
    """Two gradients of one place add up: one less leaves, and all of their size."""
    w = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
    with diagnose() as d:
        w[torch.tensor([2, 2, 0])].backward(torch.tensor([1.0, 2.0, 0.0]))
    (site,) = [site for site in d.sites if site.op == "index"]
    assert (site.arrived, site.cut, site.magnitude) == (2, 1, 3.0)
    assert site.cut_magnitude == 0.0  # it was added to the other


def test_an_activation_that_is_flat_everywhere_is_dead_and_leaky_revives_it() -> None:
    x = nn.Parameter(torch.full((3,), -2.0))

    def step() -> None:
        torch.relu(x * 2).sum().backward()

    with diagnose() as d:
        step()
    assert "starved" in codes(d)
    assert "all of 3 arriving gradients are cut" in d.findings[0].also[0]
    x.grad = None
    followed(d, "starved", step)
    assert x.grad is not None
    assert x.grad.ne(0).all()


CHOICES: dict[str, Callable[[Tensor], Tensor]] = {
    "a weight of 0": lambda h: (h * h).sum() + 0.0 * h.exp().sum(),
    "a mask of zeros": lambda h: (h * h).sum() + (h.exp() * torch.zeros(4, 3)).sum(),
    "a choice of none": lambda h: (h * h).sum() + torch.where(torch.zeros(4, 3).bool(), h.exp(), 0.0).sum(),
    "a branch that is masked": lambda h: (h * h).sum() + h.exp().masked_fill(torch.ones(4, 3).bool(), 0.0).sum(),
    "all is overwritten": lambda h: (h * h).sum() + _overwritten(h.exp()),
}


def _overwritten(h: Tensor) -> Tensor:
    h = h * 1
    h[:] = 1.0
    return h.sum()


@pytest.mark.parametrize("choice", CHOICES)
def test_a_choice_is_no_fault(choice: str) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(2, 3)
    with diagnose(layer) as d:
        CHOICES[choice](layer(torch.randn(4, 2))).backward()
    assert codes(d) == []


def test_a_gate_that_starts_at_zero_is_no_fault() -> None:
    """ReZero, a normalisation with zero gain, and one gate for all: the gate itself learns."""
    torch.manual_seed(0)
    gate, norm, layer = nn.Parameter(torch.zeros(())), nn.BatchNorm1d(3), nn.Linear(3, 3)
    nn.init.zeros_(norm.weight)
    with diagnose() as d:
        x = torch.randn(8, 3)
        (x + layer(x) + gate * layer(x).tanh() + norm(layer(x))).square().sum().backward()
    assert codes(d) == []
    assert any(site.elsewhere for site in d.sites if site.cut_share == 1.0)


# --- cut ---------------------------------------------------------------------------------------------------------------


def test_the_share_at_the_bound_hides_no_cut() -> None:
    """What stands outside is cut in either era; what stands at the bound in one."""
    x = torch.tensor([-1.0] * 4 + [0.0] * 4 + [1.0] * 2, requires_grad=True)
    with diagnose() as d:
        x.clamp(0.0, 2.0).sum().backward()
    told = [text for one in d.findings for text in (one.evidence, *one.also)]
    assert any("are cut" in text for text in told), told
    assert any("exactly at a bound" in text for text in told)


def test_what_only_stands_at_the_bound_is_an_edge_in_either_era() -> None:
    x = torch.tensor([0.0] * 4 + [1.0] * 6, requires_grad=True)
    with diagnose() as d:
        x.clamp(0.0, 2.0).sum().backward()
    assert codes(d) == ["edge"]


@pytest.mark.parametrize(("back", "advises"), [(0, "None"), (1, "Widen"), (5, "override"), (100, "override")])
def test_inward_is_advised_for_what_leads_back(back: int, advises: str) -> None:
    """Of 100 that stand below, so many have a gradient that leads back inside."""
    x = nn.Parameter(torch.full((100,), -1.0))
    towards = torch.where(torch.arange(100) < back, -1.0, 1.0)

    def step() -> None:
        (x.clamp(0.0, 2.0) * towards).sum().backward()

    with diagnose() as d:
        step()
    (site,) = [site for site in d.sites if site.op == "clamp"]
    assert site.recoverable == back
    (cut,) = [one for one in d.findings if one.code in ("cut", "starved")]
    assert cut.also or cut.code == "cut"
    from pseudograd.diagnosis.judge.findings.cut import advise_clamp
    from pseudograd.wording import percent

    said = advise_clamp(site)
    assert said.startswith({"None": "None", "Widen": "Widen", "override": "with pseudograd.override"}[advises])
    assert ("1.0 %" in said) == (back == 1)
    if advises == "override":
        assert f"it passes {percent(back / 100)} of what is cut" in said
        x.grad = None
        exec(said.split("#")[0].replace("...", "step()"), {"pseudograd": pg, "step": step})
        assert x.grad is not None
        assert int(torch.count_nonzero(x.grad)) == back


@pytest.mark.parametrize("detail", ["full", "counts"])
def test_a_clamp_in_place_on_a_view_is_found(detail: str) -> None:
    """Also of a view of a transposed base, and its slice alone is counted."""
    torch.manual_seed(0)
    x = nn.Parameter(torch.randn(64, 8))
    weight = torch.linspace(-1, 1, 512).reshape(8, 64)

    def step() -> None:
        y = (x * 6).t()
        y[:4].clamp_(0, 1)
        (y * weight).sum().backward()

    with diagnose(detail=detail) as d:
        step()
    assert x.grad is not None
    (site,) = [site for site in d.sites if site.op == "clamp"]
    cut = int((x.grad[:, :4] == 0).sum())
    assert cut > 50
    assert (site.elements, site.arrived, site.cut, site.recoverable) == (256, 256, cut, None)
    assert codes(d) == ["cut"]
    assert "would lead back" not in d.findings[0].evidence
    x.grad = None
    followed(d, "cut", step)
    assert x.grad is not None
    assert 0 < int((x.grad[:, :4] == 0).sum()) < cut


# --- a wind-up ---------------------------------------------------------------------------------------------------------


def _steps(
    z: Tensor, loss: Callable[[Tensor, int], Tensor], after: Callable[[Tensor], object], steps: int = 20
) -> Diagnosis:
    optimizer = torch.optim.SGD([z], 0.1)
    with diagnose() as d:
        for number in range(steps):
            optimizer.zero_grad()
            loss(z, number).backward()
            optimizer.step()
            with torch.no_grad():
                after(z)
    return d


SILENT: dict[str, tuple[Callable[[Tensor, int], Tensor], Callable[[Tensor], object]]] = {
    "a projection": (lambda z, n: (-z).sum(), lambda z: z.copy_(z.clamp(-0.5, 0.5))),
    "a projection by tensors": (
        lambda z, n: (-z).sum(),
        lambda z: z.copy_(z.maximum(torch.tensor(-0.5)).minimum(torch.tensor(0.5))),
    ),
    "a projection in place": (lambda z, n: (-z).sum(), lambda z: z.clamp_(-0.5, 0.5)),
    "a projection of .data": (lambda z, n: (-z).sum(), lambda z: z.data.copy_(z.data.clamp(-0.5, 0.5))),
    "a picture": (lambda z, n: (-z).sum(), lambda z: z.clamp(-0.5, 0.5)),
    "a picture in the loss's line": (
        lambda z, n: (-z).sum() + 0 * z.detach().clamp(-0.5, 0.5).max().item(),
        lambda z: None,
    ),
    "a clamp that cuts": (lambda z, n: (-z.clamp(-0.5, 0.5)).sum() - 0.1 * z.sum(), lambda z: None),
    "inward": (lambda z, n: (-pg.clamp(z, -0.5, 0.5)).sum() - 0.1 * z.sum(), lambda z: None),
    "to and fro": (lambda z, n: (-1.0) ** n * pg.clamp(z, -0.5, 0.5, rule="identity").sum(), lambda z: None),
}


@pytest.mark.parametrize("case", SILENT)
def test_no_wind_up(case: str) -> None:
    d = _steps(nn.Parameter(torch.linspace(-0.4, 0.4, 5)), *SILENT[case])
    assert "wind-up" not in codes(d), d.findings


ROUND: dict[str, Callable[[Tensor], Tensor]] = {
    "identity": lambda z: pg.clamp(z, -0.5, 0.5, rule="identity"),
    "detached after": lambda z: z + (z.clamp(-0.5, 0.5) - z).detach(),
    "detached before": lambda z: z - z.detach() + z.detach().clamp(-0.5, 0.5),
    "without grad": lambda z: z + (torch.no_grad()(lambda: z.clamp(-0.5, 0.5))() - z.detach()),
}


@pytest.mark.parametrize(("way", "turns"), one_in(2, ROUND, [False, True]))
def test_a_wind_up_also_of_one_that_turns(way: str, turns: bool) -> None:
    z = nn.Parameter(torch.linspace(-0.4, 0.4, 5))
    d = _steps(z, lambda z, n: ROUND[way](z).sum() * (1 if turns and n >= 30 else -1), lambda z: None, 60)
    (one,) = [one for one in d.findings if one.code == "wind-up"]
    assert "over 2" in one.evidence or "over 3" in one.evidence or "over 5" in one.evidence or "over 6" in one.evidence
    assert one.next_step.startswith("pseudograd.optim.project(optimizer, {parameter: (-0.5, 0.5)})")
    optimizer = torch.optim.SGD([z], 0.1)
    exec(one.next_step.split("#")[0], {"pseudograd": pg, "optimizer": optimizer, "parameter": z})
    assert z.detach().abs().max() <= 0.5


# --- values that leave torch --------------------------------------------------------------------------------------------

LEAVING: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "item": (lambda z: torch.full((16, 4), z.detach().mean().item()), ".item()"),
    "float": (lambda z: torch.full((16, 4), float(z.mean().detach())), "float()"),
    "tolist": (lambda z: torch.tensor(z.detach().tolist()), ".tolist()"),
    "a copy": (lambda z: torch.from_numpy(z.detach().numpy() * 2), ".numpy()"),
    "the same memory": (lambda z: torch.from_numpy(z.detach().numpy()) * 2, ".detach()"),
    "a part of it": (lambda z: torch.from_numpy(z.detach().numpy()[:, 1:]).repeat(1, 2)[:, :4], ".detach()"),
    "as_tensor": (lambda z: torch.as_tensor(z.detach().numpy()) + 0, ".detach()"),
}


@pytest.mark.parametrize("way", LEAVING)
def test_what_leaves_torch_is_blamed_at_its_line(way: str) -> None:
    torch.manual_seed(0)
    leave, kind = LEAVING[way]
    first, second = nn.Linear(8, 4), nn.Linear(4, 1)
    with diagnose(nn.ModuleList([first, second])) as d:
        second(leave(first(torch.randn(16, 8)))).pow(2).mean().backward()
    (starved,) = [one for one in d.starved if one.parameter == "0.weight"]
    assert starved.cause is not None
    assert kind in starved.why
    assert ("cut by" in starved.why) == (kind == ".detach()")  # where it shares memory, the loss surely depends on it
    assert starved.cause.where.startswith("tests/diagnosis/test_true_findings.py:")


# --- vanishing ----------------------------------------------------------------------------------------------------------


def _mlp(
    depth: int, activation: Callable[[], nn.Module], between: Callable[[], list[nn.Module]] = list
) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Linear(4, 32), *between(), activation()]
    for _ in range(depth - 2):
        layers += [nn.Linear(32, 32), *between(), activation()]
    return nn.Sequential(*layers, nn.Linear(32, 1))


class Skip(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.one, self.two = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.norm, self.last = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(x + self.last(self.two(functional.relu(self.norm(self.one(x))))))


class Words(nn.Module):
    def __init__(self, body: nn.Module, size: int) -> None:
        super().__init__()
        self.embedding, self.body, self.head = nn.Embedding(50, 32), body, nn.Linear(size, 50)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.body(self.embedding(x))
        return self.head(hidden[0] if isinstance(hidden, tuple) else hidden).mean(1)


def _encoder(norm_first: bool) -> nn.Module:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=norm_first)
    return nn.TransformerEncoder(layer, 8, enable_nested_tensor=False)


def _plain(depth: int) -> nn.Sequential:
    layers = [m for at in range(depth) for m in (nn.Conv2d(16 if at else 3, 16, 3, padding=1), nn.ReLU())]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5))


class LayerScale(nn.Module):
    """Branches that begin a million times smaller, as in CaiT and ConvNeXt."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(4, 32), nn.Linear(32, 1)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 32)) for _ in range(6))
        self.scales = nn.ParameterList(torch.full((32,), 1e-6) for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block, scale in zip(self.blocks, self.scales, strict=True):
            x = x + block(x) * scale
        return self.head(x)


NUMBERS, PIXELS, TEXT = (
    (lambda: torch.randn(64, 4)),
    (lambda: torch.randn(4, 3, 12, 12)),
    (lambda: torch.randint(50, (4, 12))),
)
CLEAN: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "ReLU, 10 layers": (lambda: _mlp(10, nn.ReLU), NUMBERS),
    "GELU, 10 layers": (lambda: _mlp(10, nn.GELU), NUMBERS),
    "SiLU, 10 layers": (lambda: _mlp(10, nn.SiLU), NUMBERS),
    "Tanh, 16 layers": (lambda: _mlp(16, nn.Tanh), NUMBERS),
    "Sigmoid, 4 layers": (lambda: _mlp(4, nn.Sigmoid), NUMBERS),
    "Sigmoid, 10 layers, normalised": (lambda: _mlp(10, nn.Sigmoid, lambda: [nn.LayerNorm(32)]), NUMBERS),
    "ResNet": (
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3), *[Skip(8) for _ in range(9)], nn.Flatten(), nn.Linear(800, 5)),
        PIXELS,
    ),
    "plain convolutions, 8": (lambda: _plain(8), PIXELS),
    "transformer": (lambda: Words(_encoder(False), 32), TEXT),
    "transformer, norm first": (lambda: Words(_encoder(True), 32), TEXT),
    "LSTM": (lambda: Words(nn.LSTM(32, 64, 3, batch_first=True), 64), TEXT),
    "GRU": (lambda: Words(nn.GRU(32, 64, 6, batch_first=True), 64), TEXT),
    "LayerScale": (LayerScale, NUMBERS),
}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", CLEAN)
def test_no_gradient_vanishes_in_a_usual_network(name: str, seed: int) -> None:
    torch.manual_seed(seed)
    make, inputs = CLEAN[name]
    net = make()
    with diagnose(net) as d:
        net(inputs()).square().mean().backward()
    assert "vanish" not in codes(d), d.findings


@pytest.mark.parametrize("depth", [10, 16])
def test_a_gradient_that_vanishes_is_told(depth: int) -> None:
    """What is advised ends it: see the test below."""
    torch.manual_seed(0)
    net = _mlp(depth, nn.Sigmoid)
    with diagnose(net) as d:
        net(torch.randn(64, 4)).square().mean().backward()
    (one,) = d.findings
    assert one.code == "vanish"
    assert "(0.weight)" in one.evidence
    assert "each sigmoid multiplies it by at most 1/4" in one.cause
    assert "Put a residual connection around each layer; or take relu" in one.next_step
    first, last = (net[at].weight.grad for at in (0, -1))
    assert isinstance(first, Tensor)
    assert isinstance(last, Tensor)
    assert one.share == pytest.approx(1 - float(first.norm() / last.norm()), rel=1e-6)


class _Residual(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x)


def _usual_start(net: nn.Module) -> nn.Module:
    for one in net.modules():
        if isinstance(one, nn.Linear):
            nn.init.kaiming_normal_(one.weight)
    return net


ADVISED: dict[str, Callable[[int], nn.Module]] = {
    "residual": lambda n: nn.Sequential(
        nn.Linear(4, 32), *[_Residual(nn.Linear(32, 32), nn.Sigmoid()) for _ in range(n)]
    ),
    "normalised relu": lambda n: _mlp(n, nn.ReLU, lambda: [nn.LayerNorm(32)]),
    "relu that starts well": lambda n: _usual_start(_mlp(n, nn.ReLU)),
}


@pytest.mark.parametrize("depth", [10, 16])
@pytest.mark.parametrize("name", ADVISED)
def test_what_is_advised_for_a_gradient_that_vanishes_ends_it(name: str, depth: int) -> None:
    """A normalisation before each sigmoid does not."""
    torch.manual_seed(0)
    net = ADVISED[name](depth)
    with diagnose(net) as d:
        net(torch.randn(64, 4)).square().mean().backward()
    assert codes(d) == []


def test_norms_are_root_mean_squares_over_the_passes() -> None:
    p, tiny = nn.Parameter(torch.tensor([3.0, 4.0])), nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    with diagnose(nn.ParameterList([p, tiny])) as d:
        for size in (1.0, 7.0):
            ((p * torch.tensor([3.0, 4.0])).sum() * size + tiny.float().sum() * 1e-30).backward()
    found = {one.parameter: one for one in d.norms}
    assert found["0"].norm == pytest.approx(5 * (25.0) ** 0.5)
    assert (found["0"].share, found["0"].weight, found["0"].passes) == (1.0, 5.0, 2)
    assert found["1"].norm == pytest.approx(2**0.5 * 1e-30, rel=0.01)  # its squares are none in float32
    assert f"norms of their gradients: {found['1'].norm:.2g} (1) to 25 (0)" in str(d)
    assert [one["parameter"] for one in d.to_json()["norms"]] == ["0", "1"] or len(d.norms) == 2


def test_counts_alone_measure_no_norm() -> None:
    p = nn.Parameter(torch.ones(2))
    with diagnose(detail="counts") as d:
        p.sum().backward()
    assert d.norms == []


# --- stalled ------------------------------------------------------------------------------------------------------------


def _trained(dtype: torch.dtype, rate: float, steps: int = 12, master: bool = False) -> Diagnosis:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)).to(dtype)
    whole = [p.detach().float() for p in net.parameters()] if master else []
    optimizer = torch.optim.AdamW(net.parameters() if not master else whole, rate, weight_decay=0.0)
    x, y = torch.randn(64, 16), torch.randint(4, (64,))
    with diagnose(net) as d:
        for _ in range(steps):
            net.zero_grad()
            functional.cross_entropy(net(x.to(dtype)).float(), y).backward()
            for one, p in zip(whole, net.parameters(), strict=False):
                one.grad = None if p.grad is None else p.grad.float()
            optimizer.step()
            with torch.no_grad():
                for one, p in zip(whole, net.parameters(), strict=False):
                    p.copy_(one)
    return d


@pytest.mark.parametrize(
    ("dtype", "rate", "steps", "master"),
    [
        (torch.float32, 3e-6, 12, False),
        (torch.bfloat16, 1e-2, 12, False),
        (torch.bfloat16, 3e-6, 9, False),  # too few steps to say never
        (torch.bfloat16, 0.0, 12, False),  # a warm-up's first steps
        (torch.bfloat16, 1e-4, 12, True),
    ],
)
def test_steps_that_arrive_are_silent(dtype: torch.dtype, rate: float, steps: int, master: bool) -> None:
    assert codes(_trained(dtype, rate, steps, master)) == []


def test_steps_that_rounding_swallows_are_told() -> None:
    d = _trained(torch.bfloat16, 3e-6)
    (one,) = d.findings
    assert one.code == "stalled"
    assert one.expression == "optimizer.step()"
    assert "never moved in 12 steps: 0.weight, 0.bias, 2.weight, 2.bias" in one.evidence
    assert one.share > 0.9
    net = nn.Linear(2, 2).bfloat16()
    line, then = one.next_step.split("#")
    exec(line, {"model": net})
    assert net.weight.dtype is torch.float32
    context = re.search(r"torch\.autocast\(.*\)", then)
    assert context is not None
    with eval(context[0]):
        assert net(torch.ones(1, 2)).dtype is torch.bfloat16


# --- what is deliberate --------------------------------------------------------------------------------------------------


def _cut_three(ignore: list[str]) -> Diagnosis:
    x = nn.Parameter(torch.tensor([3.0, 0.5]))
    teacher = nn.Parameter(torch.tensor([5.0]))
    holder = nn.ParameterDict({"student": x, "teacher": teacher})
    with diagnose(holder, ignore=ignore) as d:
        one = x.clamp(0, 1)
        two = x.clamp(0, 2)  # pseudograd: deliberate, the picture's range
        # pseudograd: deliberate
        three = x.clamp(
            0,
            1.5,
        )
        (one + two + three).sum().backward()
    return d


def test_a_comment_mutes_its_line_and_is_counted() -> None:
    d = _cut_three([])
    assert [one.expression for one in d.findings if one.code == "cut"] == ["x.clamp(0, 1)"]
    assert [one.parameter for one in d.starved] == ["teacher"]
    assert d.muted == 2
    assert "deliberate: 2 findings left out: a comment at the line, ignore or select says so" in str(d)
    assert d.to_json()["muted"] == 2
    assert sorted(site.is_deliberate for site in d.sites if site.op == "clamp") == [False, True, True]


@pytest.mark.parametrize(
    "pattern", ["test_true_findings.py:*", "tests/diagnosis/test_true_findings.py:{line}", "*:{line}"]
)
def test_patterns_for_lines_and_parameters(pattern: str) -> None:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    line = next(number for number, text in enumerate(lines, 1) if text.strip() == "one = x.clamp(0, 1)")
    d = _cut_three([pattern.format(line=line), "teach*"])
    assert codes(d) == []
    assert d.starved == []


@pytest.mark.parametrize("ignore", ["teacher.*", [3], [""]])
def test_patterns_are_checked(ignore: object) -> None:
    with pytest.raises(
        ValueError, match=r"diagnose: ignore must be a list of patterns, got .*Give parameters and lines"
    ):
        diagnose(ignore=ignore)  # type: ignore[arg-type]


# --- a next step works, wherever it is pasted ----------------------------------------------------------------------------

LIBRARY = """\
import torch
g = torch.nn.Parameter(torch.tensor(5.0))
def step():
    (g.clamp(0, 2) * 3).square().sum().backward()
"""


@pytest.mark.slow
def test_advice_holds_in_every_folder(tmp_path: Path) -> None:
    """Made by a program that leaves its folder, followed from there, from its own and from the one above."""
    (tmp_path / "steps.py").write_text(LIBRARY)
    (tmp_path / "run").mkdir()
    (tmp_path / "train.py").write_text("import os, steps\nsteps.step()\nos.chdir('run')\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    command = [sys.executable, "-W", "ignore", "-m", "pseudograd", "diagnose", "train.py"]
    report = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True).stderr
    advice = re.search(r"next:  (with .*\)): \.\.\.", report)
    assert advice is not None, report
    code = f"import pseudograd, steps\n{advice[1]} as c:\n    steps.step()\nprint(len(c.report().rewritten), steps.g.grad.item() != 0)"
    for folder in (tmp_path, tmp_path / "run", tmp_path.parent):
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, check=True
        )
        assert done.stdout.split() == ["1", "True"], folder


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("train.py:3", "train.py:3", True),
        ("train.py:3", "train.py:4", False),
        ("/home/me/train.py:3", "train.py:3", True),
        ("train.py:3", "/home/me/train.py:3", True),
        ("/home/me/train.py:3", "me/train.py:3", True),
        ("/home/me/pretrain.py:3", "train.py:3", False),
        ("/home/me/train.py:3", "you/train.py:3", False),
        ("?", "?", False),
        ("in compiled code", "in compiled code", False),
    ],
)
def test_lines_are_compared_by_the_end_of_their_path(one: str, other: str, same: bool) -> None:
    assert frames.is_same_line(one, other) is same


def test_a_relative_name_is_that_of_the_folder_in_which_a_program_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "gate.py").touch()
    monkeypatch.chdir(tmp_path / "models")
    assert frames.is_same_line("gate.py:7", "models/gate.py:7")
    assert not frames.is_same_line("gate.py:7", "other/gate.py:7")


def test_no_advice_for_a_line_that_nobody_saw(tmp_path: Path) -> None:
    import threading

    g = nn.Parameter(torch.tensor(5.0))
    with diagnose() as d:
        thread = threading.Thread(target=lambda: g.clamp(0, 2).sum().backward())
        thread.start()
        thread.join()
    assert all("'?'" not in one.next_step for one in d.findings)
    assert any("Enter pseudograd.diagnose in the thread" in one.next_step for one in d.findings)


COMPOSITES: dict[str, Callable[[Tensor], Tensor]] = {  # of x == 0.5, each with a clamp inside that cuts all of it
    "margin_ranking_loss": lambda x: functional.margin_ranking_loss(x, torch.ones(4), -torch.ones(4), margin=-1.0),
    "hinge_embedding_loss": lambda x: functional.hinge_embedding_loss(x, -torch.ones(4), margin=-9.0),
    "triplet_margin_loss": lambda x: functional.triplet_margin_loss(x, torch.full((4,), 0.25), torch.full((4,), 9.0)),
    "cosine_embedding_loss": lambda x: functional.cosine_embedding_loss(
        x, torch.tensor([1.0, 2.0, 3.0, -8.0]), torch.tensor(-1)
    ),
}


def test_no_override_is_advised_that_reaches_nothing() -> None:
    """Nobody has written this out, and torch keeps it private."""
    x = nn.Parameter(torch.full((3,), 9.0))
    with diagnose() as d:
        torch._fake_quantize_learnable_per_tensor_affine(
            x, torch.tensor([0.1]), torch.tensor([0.0]), -8, 7
        ).sum().backward()
    steps = [one.next_step for one in d.findings]
    assert steps
    assert all("override(" not in step for step in steps)


def test_an_override_is_advised_inside_a_network_that_torch_runs_as_one_call() -> None:
    net = nn.RNN(2, 3, nonlinearity="relu")
    for name in ("bias_ih_l0", "bias_hh_l0"):
        nn.init.constant_(getattr(net, name), -9.0)
    with diagnose(net) as d:
        net(torch.ones(4, 1, 2))[0].sum().backward()
    assert any("pseudograd.override(relu=" in one.next_step for one in d.findings)
    net.zero_grad()
    with pg.override(relu="leaky"):
        net(torch.ones(4, 1, 2))[0].sum().backward()
    assert bool((net.bias_ih_l0.grad != 0).all())


@pytest.mark.parametrize("name", COMPOSITES)
def test_an_override_is_advised_where_it_reaches_inside(name: str) -> None:
    """Torch runs this as one call too, and contexts write it out."""
    x = nn.Parameter(torch.full((4,), 0.5))

    def train() -> None:
        COMPOSITES[name](x).backward()

    with diagnose() as d:
        train()
    (one,) = [one for one in d.findings if one.code in ("starved", "cut")]
    assert all(site.within is None for site in d.sites)
    context = eval(one.next_step.removeprefix("with ").split(": ...")[0], {"pseudograd": pg})
    with context:
        train()
    assert [(site.op, site.calls) for site in context.report().rewritten] == [("clamp_min", 1)]
    assert context.report().missed == ()


def test_a_call_of_its_own_is_reached() -> None:
    x = nn.Parameter(torch.full((4,), 5.0))
    with diagnose() as d:
        functional.hardtanh(x).sum().backward()
    assert all(site.within is None for site in d.sites)


# --- pages and reports ---------------------------------------------------------------------------------------------------


def test_the_page_s_placeholders_are_data_where_a_program_holds_them(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text("def f(w):\n    # %TEXT% and %DATA%\n    return w.clamp(-1, 1).sum()\n")
    space: dict[str, Callable[[Tensor], Tensor]] = {}
    exec(compile(file.read_text(), str(file), "exec"), space)
    w = nn.Parameter(torch.full((4,), 5.0))
    with diagnose() as d:
        space["f"](w).backward()
    page = d.write_html(tmp_path / "page.html").read_text()
    data = re.search(r'id="data">(.*?)</script>', page, re.S)
    assert data is not None
    assert "%TEXT% and %DATA%" in json.dumps(json.loads(data[1]))


def test_positions_of_a_code_are_listed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    code = compile("\n".join(f"x{n} = f({n})" for n in range(50)), "<many>", "exec")
    frames._remembered.clear()
    spans = {frames.span_at(code, 2 * at) for at in range(0, 100, 7)}
    if sys.version_info >= (3, 11):
        assert len(spans) > 5
        assert [one[0] for one in frames._remembered.values()] == [code]
    for number in range(300):
        frames.span_at(compile("1", f"<{number}>", "exec"), 0)
    assert len(frames._remembered) <= frames._MOST_POSITIONS


def test_the_installed_era_is_known() -> None:
    assert installed_era() in ("torch<=2.13", "torch>=2.14")


def test_what_is_deliberate_fails_no_condition() -> None:
    from pseudograd.diagnosis.run import condition

    x = nn.Parameter(torch.tensor([3.0, 0.5]))
    with diagnose() as d:
        x.clamp(0, 1).sum().backward()  # pseudograd: deliberate
    assert condition("cut")(d) == condition("any")(d) == condition("vanish>0.5")(d) == []


def test_a_detached_tensor_may_be_swapped() -> None:
    """Torch refuses it where somebody holds a weak reference."""
    layer = nn.Linear(2, 2)
    with diagnose() as d:
        one = layer.weight.detach()
        other = one.clone()
        torch.utils.swap_tensors(one, other)
        torch.utils.swap_tensors(layer.weight, nn.Parameter(other))
        layer(torch.ones(1, 2)).sum().backward()
    assert codes(d) == []


@pytest.mark.parametrize("start", [[0.0, 0.2, 0.5, 1.0], [0.0, 0.0]])
@pytest.mark.parametrize("is_outside", [True, False])
def test_a_pin_is_known_also_where_it_pins_what_this_torch_does(start: list[float], is_outside: bool) -> None:
    """No mode is entered then, and another torch would do the same: the eras do not differ there."""

    def findings(*contexts: contextlib.AbstractContextManager[object]) -> list[str]:
        p = nn.Parameter(torch.tensor(start))
        d = diagnose()
        order = [*contexts, d] if is_outside else [d, *contexts]
        with contextlib.ExitStack() as stack:
            for one in order:
                stack.enter_context(one)
            p.clamp(0.0, 2.0).sum().backward()
        return codes(d)

    assert set(findings()) <= {"edge", "kink"}
    assert findings() != []
    own = findings(pg.pin_edge(installed_era()))
    assert own == [] if installed_era() == "torch<=2.13" else "edge" not in own
    assert findings() != [], "what was pinned before is not pinned any more"


@pytest.mark.parametrize(
    "context",
    [
        lambda: pg.pin_edge("closed"),
        lambda: pg.pin_edge("open"),
        lambda: pg.pin_edge("jax"),
        lambda: pg.override(clamp="inward"),
    ],
    ids=["closed", "open", "jax", "override"],
)
def test_where_a_context_decides_no_era_is_said_to(
    context: Callable[[], contextlib.AbstractContextManager[object]],
) -> None:
    p = nn.Parameter(torch.zeros(4))
    with context(), diagnose() as d:
        p.clamp(0.0, 2.0).sum().backward()
    assert "kink" not in codes(d)
    with diagnose() as d:
        p.clamp(0.0, 2.0).sum().backward()
    assert "kink" in codes(d)


def test_only_a_pin_of_its_own_family_settles_a_kink() -> None:
    """A pin of fmax to what torch does says nothing of clamp."""

    def eras(pin: Any, function: Callable[[Tensor], Tensor]) -> dict[str, float]:
        p = nn.Parameter(torch.zeros(3))
        with pin, diagnose() as d:
            function(p).sum().backward()
        (site,) = d.sites
        return site.eras

    def clamp(x: Tensor) -> Tensor:
        return torch.clamp(x, 0, 1)

    def fmax(x: Tensor) -> Tensor:
        return torch.fmax(x, torch.zeros(3))

    era = installed_era()
    assert eras(pg.pin_edge(fmax=era), clamp) == eras(contextlib.nullcontext(), clamp) != {}
    assert eras(pg.pin_edge(clamp=era), clamp) == eras(pg.pin_edge(era), clamp) == {}
    assert eras(pg.pin_edge(clamp=era), fmax) == eras(contextlib.nullcontext(), fmax) != {}
