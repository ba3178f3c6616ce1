"""torch.compile under a rewriting: no graph break, the rule of the moment, nothing baked in."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from pseudograd import rules
from pseudograd.rewrite import override, pin_edge
from pseudograd.rewrite.context import Rewriting

from .calls import SPELLINGS, inputs_for

X = [-2.0, -1.0, 0.0, 1.0, 2.0]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    assert torch.overrides._get_current_function_mode_stack() == []


def compiled(f: Callable[..., Any], backend: str = "aot_eager") -> Callable[..., Any]:
    return torch.compile(f, backend=backend, fullgraph=True)


def slope(f: Callable[[Tensor], Tensor], x: Any = None) -> list[float]:
    x = torch.tensor(X, requires_grad=True) if x is None else x
    return torch.autograd.grad(f(x).sum(), x)[0].tolist()


def clamp_to_one(x: Tensor) -> Tensor:
    return torch.clamp(x * 1, -1.0, 1.0)


CONTEXTS: dict[str, Callable[[], list[Rewriting]]] = {
    "rules": lambda: [override(clamp="inward"), override(clamp="identity"), override(relu="identity")],
    "parameters": lambda: [
        override(clamp=rules.leaky(0.5)),
        override(clamp=rules.leaky(0.25)),
        override(clamp="leaky"),
    ],
    "edges": lambda: [pin_edge("half"), pin_edge("open"), pin_edge("closed"), pin_edge("torch<=2.13")],
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize("which", CONTEXTS)
def test_switching_on_and_off_switches(which: str, backend: str) -> None:
    """One compiled function, called under rules in turn, twice: a baked rule would show in the second round."""
    f = compiled(clamp_to_one, backend)
    seen = []
    for _ in range(2):
        assert slope(f) == slope(clamp_to_one)
        for context in CONTEXTS[which]():
            with context:
                seen.append(slope(f))
                assert seen[-1] == slope(clamp_to_one), context
    assert slope(f) == slope(clamp_to_one)
    assert len({tuple(slopes) for slopes in seen}) >= 3


def test_a_new_context_of_the_same_rule_compiles_nothing_new() -> None:
    f = compiled(clamp_to_one)
    with override(clamp="inward"):
        slope(f)
    slope(f)
    with torch.compiler.set_stance("fail_on_recompile"):
        for _ in range(3):
            with override(clamp="inward"):
                assert slope(f) == [0.0, 1.0, 1.0, 1.0, 1.0]
            slope(f)


SOME = ("torch.clamp", "torch.clamp, tensors", "x.clamp_", "x.clamp_min", "aten.clamp", "torch.minimum")
SOME += ("torch.minimum, constant first", "F.relu", "x.relu_", "nn.ReLU6", "nn.Hardtanh, in place", "nn.Hardsigmoid")


@pytest.mark.parametrize("name", [n if n in SOME else pytest.param(n, marks=pytest.mark.slow) for n in SPELLINGS])
def test_each_spelling_compiles_to_what_it_does_eagerly(name: str) -> None:
    spelling = SPELLINGS[name]
    x = inputs_for(spelling)
    grad = torch.arange(1.0, 10.0, dtype=torch.float64) * torch.tensor([1.0, -1.0, 1.0] * 3)
    with override(**{spelling.family: "inward"}):
        (wanted,) = torch.autograd.grad(spelling.f(x), x, grad)
        (found,) = torch.autograd.grad(compiled(spelling.f)(x), x, grad)
    torch.testing.assert_close(found, wanted, rtol=1e-15, atol=0)


def test_nested_contexts() -> None:
    f = compiled(lambda x: torch.relu(torch.clamp(x * 1, -1.0, 1.0)))
    with override(clamp="identity", relu="identity"):
        assert slope(f) == [1.0] * 5
        with override(clamp="inward"):
            assert slope(f) == [0.0, 1.0, 1.0, 1.0, 1.0]
        assert slope(f) == [1.0] * 5


def test_a_model_and_its_optimiser_step() -> None:
    def train(run: Callable[[nn.Module], Callable[[Tensor], Tensor]]) -> list[float]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4), nn.Hardtanh())
        forward, optimiser, losses = run(model), torch.optim.SGD(model.parameters(), lr=0.5), []
        for _ in range(5):
            loss = (forward(torch.randn(16, 4)) - 2).pow(2).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
        return losses

    with override(relu="inward"):
        eager = train(lambda model: model)
        assert train(compiled) == pytest.approx(eager, rel=1e-5)
    assert train(lambda model: model) != pytest.approx(eager, rel=1e-3)


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_of_a_compiled_block(reentrant: bool) -> None:
    f = compiled(lambda x: functional.relu(torch.clamp(x * 2, -1.0, 1.0) * 3))
    x = torch.tensor(X, requires_grad=True)
    for _ in range(2):
        x.grad = None
        with override(clamp="inward", relu="identity"):
            checkpoint(f, x, use_reentrant=reentrant).sum().backward()
        assert x.grad is not None
        assert x.grad.tolist() == [0.0, 0.0, 6.0, 6.0, 6.0]


def test_backward_of_a_compiled_call_after_the_context() -> None:
    x = torch.tensor(X, requires_grad=True)
    with override(clamp="inward"):
        y = compiled(clamp_to_one)(x)
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0.0, 1.0, 1.0, 1.0, 1.0]


def test_inside_the_compiled_function() -> None:
    @compiled
    def f(x: Tensor) -> Tensor:
        with override(clamp="inward"):
            inner = torch.clamp(x * 1, -1.0, 1.0)
        return inner + torch.clamp(x * 1, -1.0, 1.0).detach() * 0

    assert slope(f) == [0.0, 1.0, 1.0, 1.0, 1.0]


def test_the_first_context_of_a_process_may_be_made_inside_the_compiled_function() -> None:
    program = (
        "import torch, pseudograd as pg\n"
        "@torch.compile(backend='aot_eager', fullgraph=True)\n"
        "def f(x):\n"
        "    with pg.override(clamp='inward'):\n"
        "        return torch.clamp(x * 1, -1.0, 1.0)\n"
        "x = torch.tensor([-2.0, 0.0, 2.0], requires_grad=True)\n"
        "print(torch.autograd.grad(f(x).sum(), x)[0].tolist())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[0.0, 1.0, 1.0]", done.stderr


def test_over_functorch() -> None:
    @compiled
    def f(x: Tensor) -> Tensor:
        return torch.func.grad(lambda x: torch.clamp(x, -1.0, 1.0).sum())(x)

    @compiled
    def g(x: Tensor) -> Tensor:
        return torch.func.vmap(torch.func.grad(lambda x: torch.clamp(x, -1.0, 1.0)))(x)

    x = torch.tensor(X)
    for _ in range(2):
        with override(clamp="inward"):
            assert f(x).tolist() == g(x).tolist() == [0.0, 1.0, 1.0, 1.0, 1.0]
        with override(clamp="identity"):
            assert f(x).tolist() == g(x).tolist() == [1.0] * 5


def test_the_rule_of_a_site_by_its_bounds() -> None:
    f = compiled(lambda x: torch.clamp(x * 1, -1.0, 1.0) + torch.clamp(x * 1, -1.5, 1.5))
    with override(clamp=lambda site: "identity" if site.max == 1.0 else None):
        eager = slope(lambda x: torch.clamp(x * 1, -1.0, 1.0) + torch.clamp(x * 1, -1.5, 1.5))
        assert slope(f) == eager == [1.0, 2.0, 2.0, 2.0, 1.0]


def test_the_report_names_compiled_lines() -> None:
    f = compiled(clamp_to_one)
    with override(clamp="inward") as context:
        slope(f)
        slope(f)
    (site,) = context.report().rewritten
    assert (site.op, site.rule, site.compiled) == ("clamp", "inward/closed", True)
    assert "test_compile.py:" in site.where
    assert "traced into compiled code" in str(context.report())
