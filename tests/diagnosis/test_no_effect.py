"""A term of the loss that does nothing is a finding at its line; a metric, a surrogate and a trick for ranks are none."""

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from pseudograd.diagnosis import diagnose
from pseudograd.diagnosis.context import Diagnosis

from .checks import codes, define, make_function, number_of, programs_in
from .trainers import steps

Reversed = make_function("Reversed", lambda ctx, x: x.view_as(x), lambda ctx, grad: -grad)
X, Y = torch.randn(32, 8), torch.randint(3, (32,))


def error(net: nn.Module) -> Tensor:
    return functional.cross_entropy(net(X), Y)


NAMES = {"torch": torch, "functional": functional, "Reversed": Reversed, "X": X, "Y": Y, "error": error}


def train(body: str, folder: Path) -> Diagnosis:
    net, numbers, teacher = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)), count(), nn.Linear(8, 3)
    loss = define(body, folder / "loss.py", "net", **NAMES, numbers=numbers, teacher=teacher)
    return steps(net, lambda: loss(net), 6)


# The losses of a net, each with what the next step begins with, at its line.
FAULTS = programs_in("""
# item
penalty = net[0].get_parameter("weight").square().sum()
return error(net) + 0.1 * penalty.item()  # next: penalty

# item before
entropy = net(X).softmax(-1).std().item()
return error(net) - 0.1 * entropy  # next: net(X).softmax(-1).std()

# detached
h = net[0](X)
commitment = functional.mse_loss(h.detach(), torch.ones_like(h))
return error(net) + 0.25 * commitment  # next: h

# without grad
with torch.no_grad():
    spread = net(X).softmax(-1).std()
return error(net) - spread  # next: Compute it with a gradient

# compared
loss = error(net)
loss += (net(X) > 0).float().mean()  # next: Compute it with a gradient
return loss

# factor 0
weight = 1 // 10
return error(net) + weight * net(X).square().mean()  # next: Give it a factor other than 0

# function thrown away
h = net[1](net[0](X))
Reversed.apply(h)  # next: h = Reversed.apply(h)
return functional.cross_entropy(net[2](h), Y)

# detached behind an index
outputs = net(X)
chosen = outputs.topk(1).indices
term = (outputs.detach().gather(1, chosen) - 1).square().mean()
return functional.cross_entropy(outputs, Y) + term  # next: outputs  # in place of outputs.detach()

# clamp thrown away
h = net[0](X)
h.clamp(-1, 1)  # next: h = h.clamp(-1, 1)
return functional.cross_entropy(net[2](h), Y)

# detached twice
spread = net(X).detach().std()
return error(net) + 0.1 * spread.detach()  # next: net(X)  # in place of net(X).detach()

# a penalty that nobody reads
penalty = 0.1 * net[0].get_parameter("weight").square().mean()  # next: Let the loss use penalty
return error(net)
""")


@pytest.mark.parametrize("name", FAULTS)
def test_a_term_without_effect_is_one_finding_at_its_line(name: str, tmp_path: Path) -> None:
    d = train(FAULTS[name], tmp_path)
    (finding,) = d.findings
    assert (codes(d), finding.number) == (["no-effect"], "PG213")
    line = (tmp_path / "loss.py").read_text().splitlines()[number_of(finding.where) - 1]
    assert finding.next_step.startswith(line.partition("# next: ")[2]), line
    assert ("cut as well at" in finding.evidence) == (name == "detached twice")
    assert ("if the term should change" in finding.next_step) == ("a term without" in finding.evidence)


MEANT = programs_in("""
# metrics
outputs = net(X)
brier = (outputs.softmax(-1) - functional.one_hot(Y, 3)).square().mean()
print(brier.item(), (outputs.argmax(-1) == Y).float().mean().item())
return functional.cross_entropy(outputs, Y)

# a surrogate
soft, hard = net(X).softmax(-1)[:, 0].mean(), (net(X).argmax(-1) == 0).float().mean()
return error(net) + soft + (hard - soft).detach()

# a factor without a gradient
return error(net) * net[0].get_parameter("weight").norm().item()

# for ranks
return error(net) + 0.0 * sum(parameter.sum() for parameter in net.parameters())

# a zero of the dtype and device of a weight, as in a matrix of a rotation
a = net[0].get_parameter("bias")[0]
spin = torch.stack([a * 0, -a, a, a * 0]).reshape(2, 2).matrix_exp()
return error(net) + spin[0, 0]

# a weight from 0
return error(net) + min(1.0, next(numbers) / 10) * net(X).square().mean()

# made for what they do
h = net[0](X)
h.retain_grad()
h.register_hook(lambda grad: None)
h.mul_(1)
h.square().mean().backward(retain_graph=True)
return functional.cross_entropy(net[2](h), Y)

# in place
h = net[0](X)
h.clamp_(-3, 3)
functional.relu(h, inplace=True)
functional.batch_norm(h, torch.zeros(len(h[0])), torch.ones(len(h[0])), training=True)
functional.embedding(Y, net[0].get_parameter("weight"), max_norm=1.0)
return (functional.cross_entropy(net[2](h), Y) + 1e-8).sqrt()

# the entropy of a teacher
with torch.no_grad():
    targets = teacher(X).softmax(-1)
    entropy = -(targets * targets.log()).sum(-1).mean()
return functional.cross_entropy(net(X), targets) - entropy
""")


@pytest.mark.parametrize("name", MEANT)
def test_what_is_meant_has_no_finding(name: str, tmp_path: Path) -> None:
    assert codes(train(MEANT[name], tmp_path)) == []


@pytest.mark.parametrize("distance", [torch.abs, torch.square, lambda x: x * x], ids=["abs", "square", "product"])
def test_a_number_is_compared_with_its_average(distance: Callable[[Tensor], Tensor]) -> None:
    average, a = torch.tensor(0.5), torch.tensor(1.0, requires_grad=True)
    with diagnose() as d:
        for _ in range(8):
            loss = (a - 3).square() + 0.1 * distance(a - average)
            (grad,) = torch.autograd.grad(loss, a)
            a = (a - 0.1 * grad).detach().requires_grad_()
            average = 0.9 * average + 0.1 * a.detach()
    assert codes(d) == []


def test_the_step_of_a_parameter_that_is_one_number_is_no_term_of_the_loss() -> None:
    x = torch.linspace(-1, 1, 9)
    scale, shift = nn.Parameter(torch.tensor(0.5)), nn.Parameter(torch.tensor(0.0))
    optimizer = torch.optim.LBFGS([scale, shift], max_iter=4, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = (scale.exp() * x + shift - x.sin()).square().mean()
        loss.backward()
        return loss

    with diagnose() as d:
        for _ in range(3):
            optimizer.step(closure)
        for _ in range(3):  # by hand
            loss = closure()
            with torch.no_grad():
                for parameter in (scale, shift):
                    parameter.add_(parameter.grad.clone() * loss, alpha=-0.1)
    assert codes(d) == []
