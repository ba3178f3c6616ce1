"""Parameters of simulations, spiking neurons, implicit layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

import pseudograd as pg
from pseudograd.diagnosis.context import Diagnosis

from ..programs import clean
from ..trainers import Parts, steps


@clean()
def spikes_with_a_surrogate() -> Diagnosis:
    class Net(Parts):
        def forward(self, x: Tensor) -> Tensor:
            voltage, total = torch.zeros(len(x), 32), torch.zeros(len(x), 3)
            for _ in range(6):
                voltage = torch.sigmoid(self.leak) * voltage + self.encode(x)
                spikes = pg.heaviside(voltage - 0.3, rule="arctan")
                voltage = voltage - 0.3 * spikes.detach()
                total = total + self.head(spikes)
            return total

    net, x, y = (
        Net(encode=nn.Linear(6, 32), head=nn.Linear(32, 3), leak=nn.Parameter(torch.tensor(2.0))),
        torch.rand(32, 6),
        torch.randint(3, (32,)),
    )
    return steps(net, lambda: functional.cross_entropy(net(x), y))


@clean()
def spikes_with_a_surrogate_of_ones_own() -> Diagnosis:
    class Spike(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return (x > 0).float()

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return grad / (1 + 10 * x.abs()) ** 2

    net = nn.ModuleDict({"encode": nn.Linear(6, 32), "head": nn.Linear(32, 3)})
    x, y = torch.rand(32, 6), torch.randint(3, (32,))
    return steps(net, lambda: functional.cross_entropy(net["head"](Spike.apply(net["encode"](x))), y))


@clean()
def a_spring_from_its_path() -> Diagnosis:
    class Spring(Parts):
        def forward(self, count: int) -> Tensor:
            stiffness, damping = functional.softplus(self.raw)
            x, v, path = torch.tensor(1.0), torch.tensor(0.0), []
            for _ in range(count):
                v = v - 0.1 * (stiffness * x + damping * v)
                x = x + 0.1 * v
                path.append(x)
            return torch.stack(path)

    net, seen = Spring(raw=nn.Parameter(torch.tensor([1.0, -2.0]))), torch.cos(torch.arange(30) * 0.2)
    return steps(net, lambda: functional.mse_loss(net(30), seen), optimizer=torch.optim.Adam(net.parameters(), 0.05))


@clean()
def a_ball_that_bounces() -> Diagnosis:
    """A penalty pushes while the ball is below the ground, which it is in part of the steps."""

    class Ball(Parts):
        def forward(self) -> Tensor:
            x, v = torch.tensor(0.3), self.speed
            for _ in range(40):
                depth = functional.relu(-x)
                v = v + 0.05 * (self.stiffness * depth - 1.0)
                x = x + 0.05 * v
            return x

    net = Ball(speed=nn.Parameter(torch.tensor(0.5)), stiffness=nn.Parameter(torch.tensor(30.0)))
    return steps(net, lambda: (net() - 0.5).square(), optimizer=torch.optim.Adam(net.parameters(), 0.01))


@clean()
def an_orbit_by_four_stage_integration() -> Diagnosis:
    field = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))
    start, seen = torch.randn(16, 2), torch.randn(16, 2)

    def loss() -> Tensor:
        x, h = start, 0.1
        for _ in range(5):
            a = field(x)
            b = field(x + h / 2 * a)
            c = field(x + h / 2 * b)
            x = x + h / 6 * (a + 2 * b + 2 * c + field(x + h * c))
        return functional.mse_loss(x, seen)

    return steps(field, loss)


@clean()
def a_fixed_point_and_one_more_step() -> Diagnosis:
    """The iteration runs without gradients; its last step has one."""

    class Implicit(Parts):
        def step(self, z: Tensor, x: Tensor) -> Tensor:
            return torch.tanh(0.5 * self.again(z) + x)

        def forward(self, x: Tensor) -> Tensor:
            x = self.input(x)
            with torch.no_grad():
                z = torch.zeros_like(x)
                for _ in range(10):
                    z = self.step(z, x)
            return self.head(self.step(z, x))

    net, x, y = (
        Implicit(again=nn.Linear(8, 8), input=nn.Linear(6, 8), head=nn.Linear(8, 2)),
        torch.randn(16, 6),
        torch.randint(2, (16,)),
    )
    return steps(net, lambda: functional.cross_entropy(net(x), y))


@clean()
def an_equation_is_solved_by_a_network() -> Diagnosis:
    """u'' = -u with its values at both ends, by second derivatives."""
    net = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))

    def loss() -> Tensor:
        t = (torch.rand(32, 1) * 3).requires_grad_()
        u = net(t)
        (first,) = torch.autograd.grad(u.sum(), t, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), t, create_graph=True)
        ends = net(torch.tensor([[0.0], [3.0]])) - torch.tensor([[0.0], [0.141]])
        return (second + u).square().mean() + ends.square().mean()

    return steps(net, loss)
