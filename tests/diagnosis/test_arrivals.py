"""What is read from `.grad` when a backward has ended is what a hook of each parameter would have seen."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pseudograd.diagnosis import Diagnosis, diagnose
from pseudograd.diagnosis.count import recorder
from pseudograd.diagnosis.count.leaf import Arrivals, Leaf

STEPS = 5
Step = Callable[[nn.Sequential, Tensor, int], None]


def plainly(net: nn.Sequential, x: Tensor, step: int) -> None:
    net(x).sum().backward()


def accumulating(net: nn.Sequential, x: Tensor, step: int) -> None:
    for part in x.chunk(2):
        net(part).sum().backward()


def into_zeros(net: nn.Sequential, x: Tensor, step: int) -> None:
    net.zero_grad(set_to_none=False)
    net(x).sum().backward()


def with_a_hook_that_clears_gradients(net: nn.Sequential, x: Tensor, step: int) -> None:
    """As an optimiser that steps within the backward: those of the last layer have come by then."""

    def clears(grad: Tensor) -> None:
        for parameter in net.parameters():
            parameter.grad = None

    h = net[:2](x)
    h.register_hook(clears)
    net[2:](h).sum().backward()


def with_a_hook_that_scales_gradients(net: nn.Sequential, x: Tensor, step: int) -> None:
    def scales(*grads: Any) -> None:
        for parameter in net.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(100)

    h = net[:2](x)
    node: Any = h.grad_fn
    node.register_hook(scales)
    net[2:](h).sum().backward()


def with_a_hook_of_the_node_that_adds(net: nn.Sequential, x: Tensor, step: int) -> None:
    weight: Any = net[0].weight

    def scales(*grads: Any) -> None:
        weight.grad.mul_(100)

    node = weight.view_as(weight).grad_fn.next_functions[0][0]
    node.register_prehook(lambda grads: (grads[0] * 1,))
    node.register_hook(scales)
    net(x).sum().backward()


def with_a_hook_after_accumulation(net: nn.Sequential, x: Tensor, step: int) -> None:
    if not step:
        for parameter in net.parameters():
            parameter.register_post_accumulate_grad_hook(lambda one: setattr(one, "grad", None))
    net(x).sum().backward()


def with_a_backward_inside(net: nn.Sequential, x: Tensor, step: int) -> None:
    """The second layer is used twice: its gradient arrives once inside and once outside."""
    h = net[0](x)
    y = checkpoint(net[2], net[1](h), use_reentrant=True)
    (y.sum() + net[2](h).sum()).backward()


def of_some(net: nn.Sequential, x: Tensor, step: int) -> None:
    net(x).sum().backward(inputs=list(net[2].parameters()))


def that_raises(net: nn.Sequential, x: Tensor, step: int) -> None:
    h = net[:2](x)
    h.register_hook(lambda grad: 1 / 0)
    with contextlib.suppress(ZeroDivisionError):
        net[2:](h).sum().backward()


def in_another_thread(net: nn.Sequential, x: Tensor, step: int) -> None:
    thread = threading.Thread(target=plainly, args=(net, x, step))
    thread.start()
    thread.join()


PROGRAMS = (
    plainly,
    accumulating,
    into_zeros,
    with_a_hook_that_clears_gradients,
    with_a_hook_that_scales_gradients,
    with_a_hook_of_the_node_that_adds,
    with_a_hook_after_accumulation,
    with_a_backward_inside,
    of_some,
    that_raises,
    in_another_thread,
)


def run(program: Step) -> tuple[Diagnosis, list[Tensor | None]]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 2))
    with torch.no_grad():
        net[0].bias[:2] = -9.0  # two dead units
    with diagnose(net) as d:
        for step in range(STEPS):
            net.zero_grad()
            program(net, torch.randn(4, 5), step)
    return d, [parameter.grad for parameter in net.parameters()]


def told(d: Diagnosis) -> dict[str, Any]:
    found = d.to_json()
    return {key: found[key] for key in ("backwards", "findings", "starved", "partly", "norms", "sites", "errors")}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_it_tells_the_same_as_hooks(program: Step, monkeypatch: pytest.MonkeyPatch) -> None:
    found, grads = run(program)
    monkeypatch.setattr(Arrivals, "expect", lambda self, leaf, node: False)
    expected, right = run(program)
    assert told(found) == told(expected)
    assert all((a is None and b is None) or torch.equal(a, b) for a, b in zip(grads, right, strict=True))  # type: ignore[arg-type]


def test_a_plain_step_needs_no_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the second backward on: each parameter's first gradient tells their order."""
    by_hook: list[Leaf] = []
    count_before = Arrivals.count_before
    monkeypatch.setattr(recorder, "nobody_else_runs", lambda: True)  # compiling leaves threads behind
    monkeypatch.setattr(Arrivals, "count_before", lambda self, leaf: by_hook.append(leaf) or count_before(self, leaf))
    d, _ = run(plainly)
    assert len(by_hook) == 4
    assert [norm.passes for norm in d.norms] == [STEPS] * 4


def test_no_tensor_and_no_node_is_kept() -> None:
    net = nn.Linear(3, 1)
    with diagnose(net) as d:
        for _ in range(3):
            net.zero_grad()
            net(torch.ones(2, 3)).sum().backward()
        assert d._recorder.arrivals.expected == {}
