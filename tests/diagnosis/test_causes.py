"""Causes that no op names by what it cuts: zeros of a product, hooks, memory that is written to; and what is idle or asked for nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from pseudograd.diagnosis import diagnose
from pseudograd.diagnosis.context import Diagnosis


def line_of(text: str) -> int:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.strip().startswith(text))


def cause_of(d: Diagnosis, parameter: str) -> tuple[int, str]:
    """The line and the sentence."""
    assert d.errors == []
    (one,) = [one for one in d.starved if one.parameter == parameter]
    return (0 if one.cause is None else int(one.cause.where.rpartition(":")[2])), one.why


def test_a_factor_of_zeros_is_followed_to_what_made_it() -> None:
    net = nn.ModuleDict({"first": nn.Linear(3, 4), "head": nn.Linear(4, 2)})
    nn.init.constant_(net["first"].bias, -50.0)
    with diagnose(net) as d:
        for _ in range(2):
            dead = net["first"](torch.rand(5, 3)).relu()
            net["head"](dead.mean(0)).sum().backward()  # past a node that hands on
    assert cause_of(d, "head.weight") == (
        line_of("dead = net"),
        "it is multiplied with what relu gives, which is 0 everywhere",
    )


def test_one_backward_with_something_is_enough_for_a_factor() -> None:
    weight = nn.Parameter(torch.ones(3, 2))
    with diagnose() as d:
        for step in range(6):
            (torch.full((4, 3), float(step == 5)) @ weight).sum().backward()
    assert d.starved == []


def test_a_reduction_that_hands_on_nothing() -> None:
    sides = nn.Parameter(torch.tensor([-1.0, -2.0]))
    with diagnose() as d:
        for _ in range(2):
            area = sides.clamp(min=0).prod()
            (1 - area).backward()
    (one,) = d.starved
    assert one.cause is not None
    assert one.cause.where.endswith(f":{line_of('area = sides')}")


class Stops(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: object, grad: torch.Tensor) -> None:
        return None


def test_a_backward_that_returns_none_hands_nothing_on() -> None:
    net, head = nn.Linear(3, 2), nn.Linear(2, 1)
    with diagnose(nn.ModuleList([net, head])) as d:
        for _ in range(2):
            stopped = Stops.apply(net(torch.ones(4, 3)))
            head(stopped).sum().backward()
    assert [one.parameter for one in d.starved] == ["0.weight", "0.bias"]
    assert cause_of(d, "0.weight") == (line_of("stopped ="), "the backward of StopsBackward hands nothing on")


@pytest.mark.parametrize("of_leaf", [False, True])
def test_a_hook_is_a_site(of_leaf: bool) -> None:
    """Half of its gradient passes, so nothing starves."""
    weight, half = nn.Parameter(torch.ones(4)), torch.tensor([1.0, 1.0, 0.0, 0.0])
    with diagnose() as d:
        for step in range(3):
            x = weight if of_leaf else weight * 2
            if not of_leaf or not step:
                x.register_hook(lambda grad: grad * half)
            (x * 3).sum().backward()
    site = next(site for site in d.sites if site.op == "hook")
    assert (site.calls, site.arrived, site.cut, site.where.rpartition(":")[2]) == (
        3,
        12,
        6,
        str(line_of("x.register_hook(lambda grad: grad * half)")),
    )
    assert d.starved == []
    assert weight.grad is not None
    assert weight.grad.tolist() == ([9.0, 9.0, 0.0, 0.0] if of_leaf else [18.0, 18.0, 0.0, 0.0])
    if of_leaf:  # ours are gone, the program's is not
        assert len(weight._backward_hooks or ()) == 1


def test_a_hook_may_raise_and_be_removed() -> None:
    weight = nn.Parameter(torch.ones(2))

    def fails(grad: torch.Tensor) -> None:
        raise ZeroDivisionError

    with diagnose() as d:
        handle = weight.register_hook(fails)
        with pytest.raises(ZeroDivisionError):
            (weight * 2).sum().backward()
        handle.remove()
        (weight * 2).sum().backward()
    assert d.errors == []
    assert weight.grad is not None
    assert weight.grad.tolist() == [2.0, 2.0]


@pytest.mark.parametrize("how", ["data", "detach", "no_grad"])
def test_what_is_written_into_a_parameter_decides(how: str) -> None:
    source, target = nn.Linear(2, 3), nn.Parameter(torch.zeros(3))
    with diagnose(source) as d:
        if how == "data":
            target.data.copy_(source(torch.ones(2)))
        elif how == "detach":
            target.detach().copy_(source(torch.ones(2)))
        else:
            with torch.no_grad():
                target.copy_(source(torch.ones(2)))
        (target * 2).sum().backward()
    line = {"data": "target.data.copy_", "detach": "target.detach().copy_", "no_grad": "target.copy_"}[how]
    assert cause_of(d, "weight")[0] == line_of(line)


def test_a_parameter_that_is_projected_does_not_cut_itself() -> None:
    weight = nn.Parameter(torch.ones(2))
    with diagnose() as d:
        weight.data.clamp_(-1, 1)
        (weight.argmax().float() + nn.Parameter(torch.ones(()))).backward()
    (one,) = d.starved
    assert one.why == "its only way to the loss is cut by argmax"


def test_a_view_under_no_grad_is_of_its_base() -> None:
    layer = nn.Linear(2, 4)
    with diagnose(layer) as d:
        h = layer(torch.ones(3, 2))
        with torch.no_grad():
            flat = h.view(-1)
        (flat * nn.Parameter(torch.ones(12))).sum().backward()
    assert cause_of(d, "weight")[0] == line_of("flat = h.view")
    assert not any("leaf" in one.parameter for one in d.starved)


@pytest.mark.filterwarnings("ignore:None of the inputs")
def test_a_reentrant_checkpoint_of_data() -> None:
    layer, head = nn.Linear(2, 4), nn.Linear(4, 1)
    net = nn.ModuleList([layer, head])
    with diagnose(net) as d:
        h = checkpoint(layer, torch.ones(3, 2), use_reentrant=True)
        head(h).sum().backward()
    assert cause_of(d, "0.weight")[0] == line_of("h = checkpoint(layer")
    assert "use_reentrant=False" in d.findings[0].next_step


def test_a_reentrant_checkpoint_that_works_is_no_cut() -> None:
    layer = nn.Linear(2, 4)
    with diagnose(layer) as d:
        checkpoint(layer, torch.ones(3, 2, requires_grad=True), use_reentrant=True).sum().backward()
    assert d.starved == []
    assert not any(one.reaches_loss for one in d.structural)


class Routed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.experts, self.lonely = nn.ModuleList(nn.Linear(2, 2) for _ in range(3)), nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.experts[0](x) + self.experts[2](x)


def test_an_idle_expert_is_calm_and_a_lonely_layer_is_not() -> None:
    net = Routed()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with diagnose(net) as d:
        net(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    assert {one.parameter for one in d.starved} == {"lonely.weight", "lonely.bias"}
    assert any("2 parameters" in line and "experts that no router chose" in line for line in d.calm)


def test_where_every_backward_asks_for_others_nothing_starves() -> None:
    net, x = nn.Linear(2, 2), torch.ones(1, 2, requires_grad=True)
    unused = nn.Parameter(torch.ones(2))
    with diagnose() as d:
        torch.autograd.grad(net(x).sum(), x)
    assert d.findings == []
    with diagnose() as d:  # but what is asked for does
        torch.autograd.grad(net(x).sum() + 0 * unused.detach().sum(), [x, unused], allow_unused=True)
    assert [one.shape for one in d.starved] == [(2,)]


def test_a_quantiser_may_clip_some() -> None:
    x = torch.linspace(-1, 1, 100)
    for scale, codes in ((0.1, []), (0.05, ["cut"])):
        leaf = x.clone().requires_grad_()
        with diagnose() as d:
            (torch.fake_quantize_per_tensor_affine(leaf, scale, 0, -8, 7) * 2).sum().backward()
        assert [one.code for one in d.findings] == codes


@pytest.mark.parametrize("name", ["T", "mT", "H", "mH", "real", "imag", "data"])
def test_a_value_that_was_cut_is_followed_through_a_property(name: str) -> None:
    """It is a view, or the tensor itself, under another name."""
    dtype = torch.complex64 if name == "imag" else torch.float32
    weight, other = nn.Parameter(torch.ones(2, 2, dtype=dtype)), nn.Parameter(torch.ones(2, 2))
    with diagnose() as d:
        cut = weight.detach()
        (getattr(cut, name) * other).sum().backward()
    (found,) = [one for one in d.structural if one.kind == ".detach()"]
    assert (found.where.rpartition(":")[2], found.reaches_loss) == (str(line_of("cut = weight.detach()")), True)
