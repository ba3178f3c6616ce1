"""Each class of finding on a case that has it, the right line named; and none on programs that are as they should be."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import pseudograd as pg
from pseudograd.diagnosis import diagnose
from pseudograd.diagnosis.context import Diagnosis
from pseudograd.torch_table.eras import ERAS, installed_era

HERE = "tests/diagnosis/test_findings.py"


def line_of(text: str) -> str:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return f"{HERE}:{next(number for number, line in enumerate(lines, 1) if line.strip().startswith(text))}"


def codes(d: Diagnosis) -> list[str]:
    assert d.to_json()["errors"] == []
    return [one.code for one in d.findings]


# --- eight planted faults ---------------------------------------------------------------------------------------------


class Planted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.code, self.gate = nn.Linear(4, 8), nn.Embedding(8, 6), nn.Linear(4, 6)
        self.scale, self.heat = nn.Parameter(torch.tensor(1.0)), nn.Parameter(torch.tensor(2.0))
        self.offset, self.stuck = nn.Parameter(torch.zeros(6)), nn.Parameter(torch.tensor(-5.0))
        self.middle = nn.Parameter(torch.ones(6))
        self.head, self.unused, self.logged = nn.Linear(6, 3), nn.Linear(2, 2), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        index = self.encoder(x).argmax(-1)
        h = self.code(index)
        mask = (self.gate(x) > 0).float()
        h = h * mask
        h = h * self.scale.item()
        heat = torch.tensor(self.heat)
        h = h / heat
        h = h + self.offset.data
        with torch.no_grad():
            mean = (h + self.middle).mean(0)
        h = h - mean
        h = h * self.stuck.clamp(0.1, 1)
        self.log = self.logged(x).detach().sum()
        return self.head(h)


@pytest.fixture(scope="module")
def planted() -> Diagnosis:
    torch.manual_seed(0)
    net, x, y = Planted(), torch.randn(16, 4), torch.randint(3, (16,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.tensor(x)
        with diagnose(net) as d:
            out = net(x)
            (out.argmax(-1) == y).float().mean()
            functional.cross_entropy(out, y).backward()
    return d


BLAMED = {
    "encoder.weight": "index =",
    "gate.weight": "mask =",
    "scale": "h = h * self.scale.item()",
    "heat": "heat =",
    "offset": "h = h + self.offset",
    "middle": "mean =",
    "stuck": "h = h * self.stuck",
}


@pytest.mark.parametrize("parameter", BLAMED)
def test_a_planted_cut_is_named_at_its_line(planted: Diagnosis, parameter: str) -> None:
    (starved,) = [one for one in planted.starved if one.parameter == parameter]
    assert starved.cause is not None
    assert starved.cause.where == line_of(BLAMED[parameter])
    assert any(one.code == "starved" and one.where == starved.cause.where for one in planted.findings)


def test_what_is_on_no_path_is_said_to_be(planted: Diagnosis) -> None:
    alone = {one.parameter for one in planted.starved if one.cause is None}
    assert alone == {"unused.weight", "unused.bias", "logged.weight", "logged.bias"}
    assert "on no path to the loss" in next(one.why for one in planted.starved if one.parameter == "unused.weight")


def test_a_cut_that_decides_nothing_is_harmless(planted: Diagnosis) -> None:
    found = {cut.where: cut.reaches_loss for cut in planted.structural}
    assert found[line_of("self.log =")] is False
    assert found[line_of("(out.argmax(-1) == y)")] is False
    assert found[line_of("index =")] is True
    assert found[line_of("h = h * self.scale.item()")] is None
    trained = {one.parameter for one in planted.starved}
    assert not trained & {"head.weight", "head.bias", "code.weight"}


KINDS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "detach": (lambda p: p.detach(), ".detach()"),
    "data": (lambda p: p.data, ".data"),
    "argmin": (lambda p: p.argmin().float() + p.detach() * 0, "argmin"),
    "topk": (lambda p: torch.topk(p.detach() * 0 + 1, 2).values + torch.topk(p * 1, 2).indices, "indices of topk"),
    "sort": (lambda p: p.sort().indices.float(), "indices of sort"),
    "comparison": (lambda p: (p <= 0.5).float(), "comparison"),
    "cast": (lambda p: p.long().float(), "cast to integers"),
    "to": (lambda p: p.to(torch.int32).float(), "cast to integers"),
    "no_grad": (lambda p: torch.no_grad()(lambda: p.exp())(), "exp under no_grad"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_structural_cut(kind: str) -> None:
    """Among other operations that only hand the value on, and an in-place one."""
    cut, name = KINDS[kind]
    p, q = nn.Parameter(torch.tensor([0.2, 0.9])), nn.Parameter(torch.ones(2))
    with diagnose() as d:
        value = cut(p)
        total = torch.zeros(2)
        total[:] = value.reshape(-1)[:2] * 2
        (torch.stack([total, q]).sum(0) * q).sum().backward()
    assert name in {found.kind for found in d.structural if found.reaches_loss}
    (starved,) = d.starved
    assert starved.shape == (2,)
    assert starved.cause is not None
    assert starved.cause.where.startswith(HERE)


def test_one_line_that_serves_several_parameters() -> None:
    """In a loop without modules: every parameter that the line starves is known to lie behind it."""
    stuck = nn.ParameterList([nn.Parameter(torch.tensor([5.0])), nn.Parameter(torch.tensor([-5.0]))])
    with diagnose(stuck) as d:
        torch.stack([p.clamp(0.0, 1.0) for p in stuck]).sum().backward()
    assert [one.parameter for one in d.starved] == ["0", "1"]
    assert len({one.cause.where for one in d.starved if one.cause is not None}) == 1
    assert all(one.cause is not None for one in d.starved)


def test_a_lazy_module_is_met_when_it_has_a_shape() -> None:
    net = nn.Sequential(nn.LazyLinear(3), nn.ReLU())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with diagnose(net) as d:
            net(torch.randn(4, 2)).sum().backward()
    assert d.starved == []
    assert len(d.parameters) == 2


# --- the other classes ------------------------------------------------------------------------------------------------


class Angle(nn.Module):
    """As PolarEmbedding of x-transformers: zeros, clamped to (-2 pi, 0)."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(7))

    def forward(self, x: Tensor) -> Tensor:
        bounded = self.bias.clamp(-6.28, 0.0)
        return (x * bounded).sum()


def test_what_has_no_elements_stands_on_no_bound() -> None:
    for start, codes in ((torch.zeros(3), ["kink"]), (torch.zeros(0), [])):
        p = torch.nn.Parameter(start)
        with diagnose() as d:
            p.clamp(-1.0, 0.0).sum().backward()
        assert [one.code for one in d.findings if one.code == "kink"] == codes


def test_at_the_kink_from_the_start() -> None:
    torch.manual_seed(0)
    net = Angle()
    with diagnose(net) as d:
        net(torch.randn(7)).backward()
    (one,) = d.findings
    assert (one.code, one.where, one.expression) == ("kink", line_of("bounded ="), "self.bias.clamp(-6.28, 0.0)")
    assert "Every entry of bias (7) starts exactly at the bound 0 of this clamp" in one.evidence
    assert "torch<=2.13 passes 100 % there; torch>=2.14 passes 0 % there, so it never trains" in one.evidence
    is_frozen = installed_era() == "torch>=2.14"
    assert [one.parameter for one in d.starved] == (["bias"] if is_frozen else [])
    assert ("pin_edge('torch<=2.13')" in one.next_step) == is_frozen
    namespace = {"pseudograd": pg, "torch": torch, "net": net}
    if is_frozen:  # the remedy, pasted
        step = one.next_step.split("#")[0].replace("...", "net(torch.ones(7)).backward()")
        exec(step, namespace)
        assert net.bias.grad is not None
        assert net.bias.grad.abs().sum() > 0


def test_a_zero_last_layer_before_a_relu() -> None:
    torch.manual_seed(0)
    last = nn.Linear(3, 4)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    with diagnose() as d:
        shown = torch.relu(last(torch.randn(5, 3)))
        shown.sum().backward()
    kinks = [one for one in d.findings if one.code == "kink"]
    assert [one.where for one in kinks] == [line_of("shown = ")]
    assert "a last layer of zeros" in kinks[0].cause
    assert {one.parameter for one in d.starved} == {"weight", "bias"}


@pytest.mark.parametrize("how", ["ours", "detached"])
def test_winding_up(how: str) -> None:
    """An identity rule in front of a bound: the value runs away while the forward stands still."""
    log_alpha = nn.Parameter(torch.tensor([0.5]))
    optimizer = torch.optim.SGD([log_alpha], 0.5)
    with diagnose() as d:
        for _ in range(15):
            optimizer.zero_grad()
            if how == "ours":
                y = pg.clamp(log_alpha, -1.0, 1.0, rule="identity")
            else:
                y = log_alpha + (log_alpha.clamp(-1.0, 1.0) - log_alpha).detach()
            (-y).sum().backward()
            optimizer.step()
    found = [one for one in d.findings if one.code == "wind-up"]
    assert [one.where for one in found] == [line_of("y = pg.clamp(log" if how == "ours" else "y = log_alpha + ")]
    assert "project" in found[0].next_step


def test_a_clamp_that_holds_is_no_wind_up() -> None:
    p = nn.Parameter(torch.tensor([0.5]))
    optimizer = torch.optim.SGD([p], 0.5)
    with diagnose() as d:
        for _ in range(15):
            optimizer.zero_grad()
            (-p.clamp(-1.0, 1.0)).sum().backward()
            optimizer.step()
    assert "wind-up" not in codes(d)


def test_a_guard_is_left_alone() -> None:
    """clamp(cos, -1, 1).acos() where cos is 1 or beyond: the clamp stops an infinite gradient."""
    cosine = torch.tensor([0.5, 1.0, 1.0 + 1e-6, -1.5], requires_grad=True)
    with diagnose() as d:
        cosine.clamp(-1.0, 1.0).acos().sum().backward()
    assert codes(d) == ["guard"]
    assert "override" not in d.findings[0].next_step.replace("no override", "")
    assert d.sites[-1].is_guard


def test_a_step_without_a_surrogate() -> None:
    x = torch.randn(5, requires_grad=True)
    with diagnose() as d:
        (torch.round(x) * 3).sum().backward()
    assert codes(d)[0] in ("cut", "starved")
    assert "override(round=" in d.findings[0].next_step
    assert "identity" in d.findings[0].next_step


def test_what_stands_at_a_bound_is_told_for_every_era() -> None:
    image = torch.rand(4, 4)
    image[0] = 0.0
    image.requires_grad_()
    with diagnose() as d:
        image.clamp(0.0, 1.0).sum().backward()
    (one,) = d.findings
    assert (one.code, one.share) == ("edge", 0.25)
    assert all(name in one.evidence for name in ERAS)
    assert "pin_edge('torch<=2.13')" in one.next_step


# --- none -------------------------------------------------------------------------------------------------------------


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.one, self.two = nn.BatchNorm2d(4), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu6(self.two(self.second(functional.hardtanh(self.one(self.first(x))))) + x)


def test_a_policy_clip_is_told_that_it_does_what_it_is_for() -> None:
    """The clipped loss silences by the sign of the advantage: what arrives at the clamp would only lead further outside."""
    log_ratio = torch.tensor([-1.0, -1.0, 0.1, 1.0, 1.0], requires_grad=True)
    advantage = torch.tensor([1.0, -1.0, 1.0, 1.0, -1.0])
    with diagnose() as d:
        ratio = log_ratio.exp()
        clipped = torch.clamp(ratio, 0.8, 1.2)
        (-torch.minimum(ratio * advantage, clipped * advantage)).sum().backward()
    (one,) = [one for one in d.findings if one.code == "cut"]
    assert one.where == line_of("clipped = torch.clamp(ratio, 0.8, 1.2)")
    assert one.next_step.startswith("None, if the clip is meant")
    (site,) = [site for site in d.sites if site.op == "clamp"]
    assert (site.sides["below+"], site.sides["below-"], site.sides["above-"], site.sides["above+"]) == (1, 0, 1, 0)


def _resnet() -> Iterator[Tensor]:
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3),
        Residual(),
        nn.MaxPool2d(2),
        Residual(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 5),
    )
    for _ in range(3):
        yield functional.cross_entropy(net(torch.randn(8, 3, 12, 12)), torch.randint(5, (8,)))


def _transformer() -> Iterator[Tensor]:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.2, batch_first=True, activation="gelu")
    net = nn.Sequential(
        nn.Embedding(11, 16), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(16, 11)
    )
    mask = nn.Transformer.generate_square_subsequent_mask(6)
    for _ in range(3):
        words = torch.randint(11, (4, 6))
        hidden = net[1](net[0](words), mask=mask, is_causal=True)
        yield functional.cross_entropy(net[2](hidden).transpose(1, 2), words)


def _spiking() -> Iterator[Tensor]:
    first, second = nn.Linear(6, 12), nn.Linear(12, 3)
    for _ in range(3):
        voltage, total = torch.zeros(8, 12), torch.zeros(8, 3)
        for _ in range(4):
            voltage = 0.8 * voltage + first(torch.rand(8, 6))
            spikes = pg.heaviside(voltage - 0.5, rule="arctan")
            voltage = voltage - spikes.detach()
            total = total + second(spikes)
        yield functional.cross_entropy(total, torch.randint(3, (8,)))


@pytest.mark.parametrize("losses", [_resnet, _transformer, _spiking])
def test_no_finding_on_a_clean_program(losses: object) -> None:
    torch.manual_seed(0)
    with diagnose() as d:
        for loss in losses():  # type: ignore[operator]
            loss.backward()
    assert codes(d) == [], d.findings
    assert d.backwards == 3
    assert d.starved == []
