"""Arguments that are no tensors, rates that learn and complex weights: the program runs as it would, and the numbers are right."""

import functools
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import symbolic_trace
from torch.nn import functional

import pseudograd as pg
from pseudograd.diagnosis import diagnose

from .checks import codes, diagnosed


class Bounded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        low = torch.maximum(x.sum(1), torch.zeros(())).clamp(min=0).detach()
        return functional.hardtanh(self.layer(x)).sum(1) + low + functional.relu(x).norm(dim=1)


class Wrapped:
    """Torch asks its class what a call does. Whatever else is asked of it is noted."""

    def __init__(self, value: Tensor, asked: list[str]) -> None:
        self.__dict__.update(value=value, asked=asked)

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: object, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        asked = next(value.__dict__["asked"] for value in args if isinstance(value, Wrapped))
        plain = [value.__dict__["value"] if isinstance(value, Wrapped) else value for value in args]
        result = func(*plain, **(kwargs or {}))
        return cls(result, asked) if isinstance(result, Tensor) and result.dim() else result

    def __getattr__(self, name: str) -> object:
        self.__dict__["asked"].append(name)
        raise AttributeError(name)

    def __bool__(self) -> bool:
        self.__dict__["asked"].append("bool")
        raise TypeError


wrap: Any = Wrapped


@pytest.mark.parametrize("detail", ["full", "counts"])
def test_a_trace_of_fx_has_no_steps_of_ours(detail: Any) -> None:
    net, plain = Bounded(), symbolic_trace(Bounded()).code
    with diagnose(detail=detail) as d:
        net(torch.randn(2, 3)).sum().backward()
        code = symbolic_trace(net).code
    assert code == plain
    assert d.errors == []


@pytest.mark.parametrize("context", [diagnose, lambda: pg.pin_edge("closed"), lambda: pg.override(clamp="inward")])
def test_a_class_that_is_no_tensor_is_asked_what_torch_asks(context: Callable[[], Any]) -> None:
    def train(asked: list[str]) -> Tensor:
        w = torch.full((3,), 2.0, requires_grad=True)
        h: Any = torch.relu(torch.clamp(wrap(w * 1, asked), -3, 3))
        assert type(h) is wrap
        loss: Tensor = torch.mean(h)
        loss.backward()
        return w.grad

    alone: list[str] = []
    inside: list[str] = []
    plain = train(alone)
    with context() as d:
        assert torch.equal(train(inside), plain)
    assert inside == alone
    assert not getattr(d, "errors", [])


def test_a_cut_in_such_a_class_has_advice_that_is_true() -> None:
    w = torch.full((3,), 5.0, requires_grad=True)
    d = diagnosed(lambda: torch.mean(torch.clamp(wrap(w * 1, []), -3, 3)))
    assert d.findings
    assert all("override(" not in finding.next_step for finding in d.findings)


def test_a_rate_that_learns_is_read_without_a_warning() -> None:
    rate = torch.tensor(0.1, requires_grad=True)
    weight = torch.zeros(3).requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with diagnose() as d:
            for _ in range(3):
                moved = weight.clone()
                optimizer = torch.optim.SGD([moved], lr=rate, differentiable=True)
                (moved.grad,) = torch.autograd.grad((moved - 1).square().sum(), [moved], create_graph=True)
                optimizer.step()
                (moved - 1).square().sum().backward()
    assert codes(d) == []


@pytest.mark.parametrize("scale", [1.0, 1e-30])
def test_the_norms_of_a_complex_parameter_are_whole(scale: float) -> None:
    weight = nn.Parameter(torch.tensor([3j, 4j], dtype=torch.complex64))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        d = diagnosed(lambda: scale * weight.abs().square().sum())
        (norm,) = d.norms
    assert d.errors == []
    assert norm.norm == pytest.approx(10 * scale)
    assert norm.weight == pytest.approx(5.0)


def test_a_scripted_module_is_diagnosed() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net = torch.jit.script(nn.Sequential(nn.Linear(3, 3), nn.ReLU6(), nn.Linear(3, 1)))
    d = diagnosed(lambda: net(torch.ones(2, 3)).sum(), times=2)
    assert codes(d) == []
    assert {"0.weight", "2.bias"} <= {norm.parameter for norm in d.norms}


def test_functions_of_the_program_in_the_place_of_torchs_leave_the_report_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("clamp", "maximum"):
        known = getattr(torch, name)
        monkeypatch.setattr(torch, name, functools.partial(known))
    w = nn.Parameter(torch.tensor([-1.0, 0.5, 2.0]))
    with diagnose(whatif={"inward": {"clamp": "inward"}}) as d:
        (torch.clamp(w, 0, 1) + torch.maximum(w, torch.zeros(3))).sum().backward()
    assert d.errors == []
    assert [site.cut for site in d.sites if site.op == "clamp"] == [2]
    assert d.whatif["inward"]
