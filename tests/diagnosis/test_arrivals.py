"""The gradients that are read from `.grad` when a backward has ended are those that a hook of each parameter would have had, and what
nodes count together, later, is what each counts when it runs.
"""

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
from pseudograd.kernels.native import counts

STEPS = 4
Step = Callable[[nn.Sequential, Tensor, int], None]


def plainly(net: nn.Sequential, x: Tensor, step: int) -> None:
    net(x).sum().backward()


def accumulating(net: nn.Sequential, x: Tensor, step: int) -> None:
    if step > 2:
        net.zero_grad(set_to_none=False)
    for part in x.chunk(2):
        net(part).sum().backward()


def through_a_hook(net: nn.Sequential, x: Tensor, act: Callable[[nn.Parameter], object]) -> None:
    """The hook acts on gradients when those of the last layer have come."""

    def hook(*grads: Any) -> None:
        for parameter in net.parameters():
            if parameter.grad is not None:
                act(parameter)

    h = net[:2](x)
    h.register_hook(hook)
    net[2:](h).sum().backward()


def a_hook_clears_gradients(net: nn.Sequential, x: Tensor, step: int) -> None:
    """As an optimiser that steps within the backward."""
    through_a_hook(net, x, lambda parameter: setattr(parameter, "grad", None))


def a_hook_scales_gradients(net: nn.Sequential, x: Tensor, step: int) -> None:
    through_a_hook(net, x, lambda parameter: parameter.grad.mul_(100))  # type: ignore[union-attr]


def a_node_that_adds_has_hooks(net: nn.Sequential, x: Tensor, step: int) -> None:
    weight: Any = net[0].weight
    node = weight.view_as(weight).grad_fn.next_functions[0][0]
    node.register_prehook(lambda grads: (grads[0] * 1,))
    node.register_hook(lambda *grads: [weight.grad.mul_(100)].clear())
    net(x).sum().backward()


def a_hook_after_accumulation(net: nn.Sequential, x: Tensor, step: int) -> None:
    for parameter in net.parameters() if not step else ():
        parameter.register_post_accumulate_grad_hook(lambda parameter: setattr(parameter, "grad", None))
    net(x).sum().backward()


def backward_inside(net: nn.Sequential, x: Tensor, step: int) -> None:
    """The second layer is used twice: its gradient arrives once inside and once outside."""
    h = net[0](x)
    y = checkpoint(net[2], net[1](h), use_reentrant=True)
    (y.sum() + net[2](h).sum()).backward()


def backward_names_inputs(net: nn.Sequential, x: Tensor, step: int) -> None:
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


class Gates(nn.ReLU):
    """Ops of which nothing but the gradients has to be looked at, more of them than wait at a time, and a relu with two dead units."""

    def forward(self, x: Tensor) -> Tensor:
        x = super().forward(x)
        for _ in range(3):
            x = x * torch.sigmoid(x).tanh() - x.exp() * (x > 0.1)
        return x


def run(program: Step) -> tuple[Diagnosis, list[Tensor | None]]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 6), Gates(), nn.Linear(6, 2))
    with torch.no_grad():
        net[0].bias[:2] = -9.0  # two dead units
    with diagnose(net) as d:
        for step in range(STEPS):
            if program is not accumulating:
                net.zero_grad()
            program(net, torch.randn(4, 5), step)
        assert d._recorder.arrivals.expected == {}  # neither tensors nor nodes are kept
        assert not d._recorder.waiting_calls
    return d, [parameter.grad for parameter in net.parameters()]


def test_a_plain_step_needs_no_hook_from_the_second_backward_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hook notes the first gradient of each parameter, for their order."""
    by_hook: list[Leaf] = []
    count_before = Arrivals.count_before
    monkeypatch.setattr(recorder, "nobody_else_runs", lambda: True)  # compiling leaves threads behind
    monkeypatch.setattr(Arrivals, "count_before", lambda self, leaf: by_hook.append(leaf) or count_before(self, leaf))
    d, _ = run(plainly)
    assert len(by_hook) == 4
    assert [norm.passes for norm in d.norms] == [STEPS] * 4


def a_hook_changes_what_arrives(net: nn.Sequential, x: Tensor, step: int) -> None:
    h = net[:2](x)
    h.register_hook(lambda grad: grad.mul_(0) if step % 2 else None)
    g = h.sigmoid() * 2
    g.register_hook(lambda grad: grad.numpy().__imul__(3) is None or None)
    net[2:](g.exp()).sum().backward()


def second_derivatives(net: nn.Sequential, x: Tensor, step: int) -> None:
    x.requires_grad_()
    (grad,) = torch.autograd.grad(net(x).tanh().sum(), x, create_graph=True)
    (grad.sigmoid() * grad).sum().backward()


def gradients_of_other_kinds(net: nn.Sequential, x: Tensor, step: int) -> None:
    y = net(x[:, :1].expand(4, 5)).double().exp().t().exp().t()
    (torch.view_as_complex(y.contiguous()).exp().abs() * torch.rand(4)).sum().backward()


def gradients_that_grow(net: nn.Sequential, x: Tensor, step: int) -> None:
    net(x.repeat(2_000 if step == 3 else 1, 1)).sum().backward()


class Undefined(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor | None:  # type: ignore[override]
        return None


def a_gradient_is_undefined(net: nn.Sequential, x: Tensor, step: int) -> None:
    h = net[:2](x)
    y = Undefined.apply(h.sigmoid() * 2) if step == 2 else h.sigmoid() * 2  # type: ignore[no-untyped-call]
    (net[2](y) + net[2](h)).sum().backward()


PROGRAMS = (
    plainly,
    accumulating,
    a_hook_clears_gradients,
    a_hook_scales_gradients,
    a_node_that_adds_has_hooks,
    a_hook_after_accumulation,
    backward_inside,
    backward_names_inputs,
    that_raises,
    in_another_thread,
    a_hook_changes_what_arrives,
    second_derivatives,
    gradients_of_other_kinds,
    gradients_that_grow,
    a_gradient_is_undefined,
)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_the_report_is_that_of_hooks_and_of_single_calls(program: Step, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "nobody_else_runs", lambda: True)  # compiling leaves threads behind
    d, grads = run(program)
    assert not d.errors
    monkeypatch.setattr(counts, "is_active", False)
    monkeypatch.setattr(Arrivals, "expect", lambda self, leaf, node: False)
    expected, right = run(program)
    assert d.to_json() == expected.to_json()
    for grad, own in zip(grads, right, strict=True):
        assert grad is own is None or torch.equal(grad, own)  # type: ignore[arg-type]
