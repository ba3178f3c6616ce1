"""Gradients that are read from `.grad` at the end of a backward are those that hooks would get. Calls of nodes that are counted together
have the same sums as calls that are counted at once.
"""

import contextlib  # noqa: F401
import threading  # noqa: F401
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint  # noqa: F401

from pseudograd.diagnosis import Diagnosis, diagnose
from pseudograd.diagnosis.count import recorder
from pseudograd.diagnosis.count.leaf import Arrivals, Leaf
from pseudograd.kernels.native import counts

from .checks import define, make_function, programs_in

STEPS = 4
Undefined = make_function("Undefined", lambda ctx, x: x * 1, lambda ctx, grad: None)


def through_a_hook(net: nn.Sequential, x: Tensor, act: Callable[[nn.Parameter], object]) -> None:
    """The hook acts on gradients when those of the last layer have come."""

    def hook(*grads: Any) -> None:
        for parameter in net.parameters():
            if parameter.grad is not None:
                act(parameter)

    h = net[:2](x)
    h.register_hook(hook)
    net[2:](h).sum().backward()


class Gates(nn.ReLU):
    """Ops of which nothing but the gradients has to be looked at, more of them than wait at a time, and a relu with two dead units."""

    def forward(self, x: Tensor) -> Tensor:
        x = super().forward(x)
        for _ in range(3):
            x = x * torch.sigmoid(x).tanh() - x.exp() * (x > 0.1)
        return x


# One training step each, of a net with a batch x.
PROGRAMS = programs_in("""
# plainly
net(x).sum().backward()

# accumulating
if step > 2:
    net.zero_grad(set_to_none=False)
for part in x.chunk(2):
    net(part).sum().backward()

# a hook clears gradients, as an optimiser that steps within the backward
through_a_hook(net, x, lambda parameter: setattr(parameter, "grad", None))

# a hook scales gradients
through_a_hook(net, x, lambda parameter: parameter.grad.mul_(100))

# a node that adds has hooks
weight = net[0].weight
node = weight.view_as(weight).grad_fn.next_functions[0][0]
node.register_prehook(lambda grads: (grads[0] * 1,))
node.register_hook(lambda *grads: [weight.grad.mul_(100)].clear())
net(x).sum().backward()

# a hook after accumulation
for parameter in net.parameters() if not step else ():
    parameter.register_post_accumulate_grad_hook(lambda parameter: setattr(parameter, "grad", None))
net(x).sum().backward()

# a backward inside: the gradient of the second layer arrives once inside and once outside
h = net[0](x)
y = checkpoint(net[2], net[1](h), use_reentrant=True)
(y.sum() + net[2](h).sum()).backward()

# a backward that names inputs
net(x).sum().backward(inputs=list(net[2].parameters()))

# a backward that raises
h = net[:2](x)
h.register_hook(lambda grad: 1 / 0)
with contextlib.suppress(ZeroDivisionError):
    net[2:](h).sum().backward()

# in another thread
thread = threading.Thread(target=lambda: net(x).sum().backward())
thread.start()
thread.join()

# a hook changes what arrives
h = net[:2](x)
h.register_hook(lambda grad: grad.mul_(0) if step % 2 else None)
g = h.sigmoid() * 2
g.register_hook(lambda grad: grad.numpy().__imul__(3) is None or None)
net[2:](g.exp()).sum().backward()

# second derivatives
x.requires_grad_()
(grad,) = torch.autograd.grad(net(x).tanh().sum(), x, create_graph=True)
(grad.sigmoid() * grad).sum().backward()

# gradients of other kinds
y = net(x[:, :1].expand(4, 5)).double().exp().t().exp().t()
(torch.view_as_complex(y.contiguous()).exp().abs() * torch.rand(4)).sum().backward()

# gradients that grow
net(x.repeat(2_000 if step == 3 else 1, 1)).sum().backward()

# a gradient that is undefined
h = net[:2](x)
y = Undefined.apply(h.sigmoid() * 2) if step == 2 else h.sigmoid() * 2
(net[2](y) + net[2](h)).sum().backward()
""")


def run(name: str, folder: Path) -> tuple[Diagnosis, list[Tensor | None]]:
    program = define(PROGRAMS[name], folder / "step.py", "net, x, step", **globals())
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 6), Gates(), nn.Linear(6, 2))
    with torch.no_grad():
        net[0].bias[:2] = -9.0  # two dead units
    with diagnose(net) as d:
        for step in range(STEPS):
            if name != "accumulating":
                net.zero_grad()
            program(net, torch.randn(4, 5), step)
        assert d._recorder.arrivals.expected == {}  # neither tensors nor nodes are kept
        assert (d._recorder.waiting_calls, d._recorder._may_wait) == ([], False)
    return d, [parameter.grad for parameter in net.parameters()]


@pytest.fixture(autouse=True)
def _nobody_else_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "nobody_else_runs", lambda: True)  # compiling leaves threads behind


def test_a_plain_step_needs_no_hook_from_the_second_backward_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A hook notes the first gradient of each parameter, for their order."""
    by_hook: list[Leaf] = []
    count_before = Arrivals.count_before
    monkeypatch.setattr(Arrivals, "count_before", lambda self, leaf: by_hook.append(leaf) or count_before(self, leaf))
    d, _ = run("plainly", tmp_path)
    assert len(by_hook) == 4
    assert [norm.passes for norm in d.norms] == [STEPS] * 4


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_report_is_that_of_hooks_and_of_single_calls(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    d, grads = run(name, tmp_path)
    monkeypatch.setattr(counts, "is_active", False)
    monkeypatch.setattr(Arrivals, "expect", lambda self, leaf, node: False)
    expected, right = run(name, tmp_path)
    assert d.to_json() == expected.to_json()
    for grad, own in zip(grads, right, strict=True):
        assert grad is own is None or torch.equal(grad, own)
