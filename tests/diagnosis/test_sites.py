"""Every way to get a gradient has the expected counts: of 41 points 20 are outside [-1, 1], and two at its bounds."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, hessian, vmap
from torch.utils.checkpoint import checkpoint

import pseudograd as pg
from pseudograd.diagnosis import diagnose
from pseudograd.diagnosis.count.norms import Facts
from pseudograd.diagnosis.tell.as_json import plain_record
from pseudograd.torch_table.eras import installed_era

from ..choices import folded
from .checks import diagnosed, line_of, number_of, site_of
from .test_harmless import assert_nothing_is_left

X = [
    -1.0,
    1.0,
    *(0.09 * n - 0.9 for n in range(19)),
    *(0.1 * n - 2.0 for n in range(9)),
    *(0.1 * n + 1.1 for n in range(11)),
]
AT_BOUND, OUTSIDE = 2, 20
# What torch's own clamp lets through at its bound is measured here, not looked up.
CUT = OUTSIDE + AT_BOUND * int(installed_era() == "torch>=2.14")


def clamp(x: Tensor) -> Tensor:
    return torch.clamp(x * 1, -1.0, 1.0)


def leaf() -> Tensor:
    return torch.tensor(X, requires_grad=True)


def backward(f: Callable[[Tensor], Tensor] = clamp) -> None:
    (f(leaf()) * torch.linspace(-1, 1, 41).add(0.01)).sum().backward()


def _retained() -> None:
    y = clamp(leaf()).sum()
    y.backward(retain_graph=True)
    y.backward()


def _double() -> None:
    x = leaf()
    (first,) = torch.autograd.grad((clamp(x) ** 2).sum(), x, create_graph=True)
    first.sum().backward()


def _clamp_a_view(x: Tensor) -> Tensor:
    y = torch.cat([x * 1, x.detach()])
    y[:41].clamp_(-1.0, 1.0)
    return y[:41]


def _run_a_thread() -> None:
    thread = threading.Thread(target=clamp(leaf()).sum().backward)
    thread.start()
    thread.join()


class Own(torch.autograd.Function):
    """A clamp with the gradient of 2.15."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clamp(-1.0, 1.0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return grad * (x.abs() < 1)


def _grad_of_clamp(x: Tensor) -> Tensor:
    return torch.func.grad(lambda x: clamp(x).sum())(x)


def _ours(x: Tensor) -> Tensor:
    return pg.clamp(x, -1, 1, rule="zero", edge="open")


# By the way, if no single clamp of torch is counted: the name of the op, and how many entries arrive and are cut there.
OTHERS = {
    "retain_graph": ("clamp", 82, 2 * CUT),
    "double backward": ("clamp", 41 + (41 - CUT), CUT),
    "custom Function": ("OwnBackward", 41, OUTSIDE + AT_BOUND),
    "ours": ("clamp/zero/open", 41, OUTSIDE + AT_BOUND),
}
WAYS: dict[str, Callable[[], object]] = {
    "backward": backward,
    "retain_graph": _retained,
    "double backward": _double,
    "autograd.grad": lambda: torch.autograd.grad(clamp(x := leaf()).sum(), x),
    "checkpoint": lambda: backward(lambda x: checkpoint(clamp, x, use_reentrant=False)),
    "checkpoint with reentry": lambda: backward(lambda x: checkpoint(clamp, x, use_reentrant=True)),
    "in place": lambda: backward(lambda x: (x * 1).clamp_(-1.0, 1.0)),
    "in place on a view": lambda: backward(_clamp_a_view),
    "custom Function": lambda: backward(Own.apply),
    "ours": lambda: backward(_ours),
    "func.grad": lambda: _grad_of_clamp(torch.tensor(X)),
    "vmap of grad": lambda: torch.func.vmap(_grad_of_clamp)(torch.tensor(X)[:, None]),
    "another thread": _run_a_thread,
    "compiled": lambda: backward(torch.compile(clamp, backend="aot_eager")),
}


@folded
@pytest.mark.parametrize("detail", ["full", "counts"])
@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_get_a_gradient_is_counted_once(way: str, detail: str) -> None:
    op, arrived, cut = OTHERS.get(way, ("clamp", 41, CUT))
    with diagnose(detail=detail) as d:
        WAYS[way]()
    sites = [site for site in d.sites if site.op == op]
    assert sum(site.arrived for site in sites) == arrived, d.sites
    assert sum(site.cut for site in sites) == cut


@folded
@pytest.mark.parametrize("detail", ["full", "counts"])
@pytest.mark.parametrize("way", ["plain", "checkpoint", "checkpoint with reentry", "compiled"])
def test_every_way_shows_whether_a_clamp_is_a_guard(way: str, detail: str) -> None:
    def run(f: Callable[[Tensor], Tensor]) -> str:
        f = torch.compile(f, backend="aot_eager") if way == "compiled" else f
        with diagnose(detail=detail) as d:
            x = torch.tensor([-1.0, 0.0, 1e-9, 0.5, 2.0], requires_grad=True)
            (checkpoint(f, x, use_reentrant="with" in way) if "checkpoint" in way else f(x)).square().sum().backward()
        (finding,) = (finding for finding in d.findings if finding.code == "cut")
        return finding.next_step

    assert run(lambda x: x.clamp(min=1e-12).log()).startswith("None, if it is a floor or guards")
    advice = run(lambda x: torch.acos(x.clamp(-1 + 2e-3, 1 - 2e-3)))
    assert "'inward'" in advice
    assert "guards" not in advice


@pytest.mark.parametrize("grad", [2.0, -0.5])
def test_sides_are_counted_apart(grad: float) -> None:
    """Below, at, inside, above, for both signs of the gradient, and the magnitudes, written apart in plain Python."""
    x = torch.tensor([-2.0, -1.0, 0.0, 1.0, 3.0, float("nan")], requires_grad=True)
    d = diagnosed(lambda: (torch.clamp(x, -1.0, 1.0) * grad).sum())
    site, sign = site_of(d, "clamp"), "+" if grad > 0 else "-"
    counts = {"below": 1, "at": 2, "inside": 2, "above": 1}
    assert site.sides == {f"{side}{s}": count * (s == sign) for side, count in counts.items() for s in "+-"}
    is_closed = installed_era() == "torch<=2.13"
    # A gradient below 0 raises x: that leads back inside from below, and from the lower bound.
    assert (site.recoverable, site.at_bound, site.below, site.above) == (1 if is_closed else 2, 2, 1, 1)
    assert site.cut == (3 if is_closed else 5)  # torch gives NaN no gradient
    assert site.magnitude == 6 * abs(grad)
    assert site.cut_magnitude == site.cut * abs(grad)
    assert site.eras == {"torch<=2.13": 1.0, "torch>=2.14": 0.0}


def test_tensor_bounds_have_eras_of_their_own() -> None:
    x, low = torch.tensor([0.0, 1.0], requires_grad=True), torch.tensor([0.0, 0.0])
    d = diagnosed(lambda: torch.clamp(x, min=low).sum())
    (site,) = d.sites
    assert (site.at_bound, site.eras) == (1, {"torch<=2.13": 1.0, "torch>=2.14": 0.5})


def _curved(v: Tensor) -> Tensor:
    return (v.clamp(-0.5, 0.5) * v).abs().sum() + torch.relu(v).pow(2).sum()


def _penalty(x: Tensor) -> None:
    (slope,) = torch.autograd.grad(_curved(x), x, create_graph=True)
    slope.square().sum().backward()


def _graph_of_backward(x: Tensor) -> None:
    _curved(x).backward(inputs=[x], create_graph=True)
    torch.autograd.grad(x.grad.square().sum(), x)
    x.grad = None  # else it keeps itself alive


SECOND: dict[str, Callable[[Tensor], object]] = {
    "a gradient penalty": _penalty,
    "a graph of a backward": _graph_of_backward,
    "a Hessian": lambda x: torch.autograd.functional.hessian(_curved, x),
    "a product with a Hessian": lambda x: torch.autograd.functional.hvp(_curved, x, torch.ones_like(x)),
    "hessian of torch.func": lambda x: hessian(_curved)(x.detach()),
    "grad of grad under vmap": lambda x: vmap(grad(lambda v: grad(_curved)(v).sum()))(x.detach()[None]),
}


@pytest.mark.filterwarnings("ignore:Using backward")
@pytest.mark.parametrize("way", SECOND)
def test_second_derivatives_have_a_line(way: str) -> None:
    """That of abs is 0 everywhere, which is no finding."""
    with diagnose() as d:
        SECOND[way](torch.tensor([-1.5, -0.2, 0.1, 0.3, 0.9, 2.0], requires_grad=True))
    assert [site.op for site in d.sites if site.where == "?"] == []
    (finding,) = d.findings
    assert (finding.code, number_of(finding.where)) == ("cut", line_of("return (v.clamp("))


def test_everything_is_as_before_when_it_has_ended() -> None:
    x = torch.ones(2, requires_grad=True)
    x.register_hook(lambda grad: 1 / 0)
    with pytest.raises(ZeroDivisionError), diagnose():
        clamp(x).sum().backward()
    assert_nothing_is_left()
    with diagnose() as d:
        pass
    with pytest.raises(RuntimeError, match="diagnose: a diagnosis must be entered once"), d:
        pass
    assert "no backward started" in str(d)


BAD_ARGUMENTS: list[tuple[dict[str, Any], str]] = [
    ({"model": "net"}, r"model must be a torch\.nn\.Module, got 'net'"),
    ({"detail": "all"}, "detail must be 'full' or 'counts', got 'all'"),
    *(({"whatif": {"a": bad}}, "whatif") for bad in ({"clomp": "inward"}, "torch>=3", {"clamp": "onward"}, 3, {})),
    ({"whatif": {"": "open"}}, "whatif"),
    *(({"sensitivity": bad}, "sensitivity must be True, False, or n for every n") for bad in (0, -1, 1.5, "yes")),
    *(({"ignore": bad}, "ignore must be a list of patterns, got .*Give") for bad in ("teacher.*", [3], [""])),
]


def test_a_bad_argument_is_named_in_the_error() -> None:
    for arguments, message in BAD_ARGUMENTS:
        with pytest.raises(TypeError if "model" in arguments else ValueError, match=f"diagnose: {message}"):
            diagnose(**arguments)


def test_the_nodes_inside_a_recurrent_network_have_the_line_of_its_call() -> None:
    """Also where a backward goes through its last state alone; a second backward through the same graph counts them again."""
    network, x = torch.nn.GRU(2, 3), torch.randn(30, 1, 2)
    with diagnose(network) as d:
        every, last = network(x)
        last.sum().backward(retain_graph=True)
        every.sum().backward()
    assert {site.expression for site in d.sites} == {"network(x)"}
    assert {site.op: site.calls for site in d.sites} == {"mul": 120, "sub": 60, "tanh": 60, "sigmoid": 120}


def test_facts_for_the_judgement_are_in_no_report() -> None:
    (site,) = diagnosed(lambda: torch.tensor(2.0, requires_grad=True).relu()).sites
    assert not Facts.__annotations__.keys() & plain_record(site).keys()
    assert not any(f"{name}=" in repr(site) for name in Facts.__annotations__)
