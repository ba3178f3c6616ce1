"""Parameters of simulations, spiking neurons, implicit layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from pseudograd.diagnosis.context import Diagnosis

from ..programs import planted
from ..trainers import Parts, by_hand, trains


@planted("starved", "encode.weight", "encode.bias")
@trains(
    lambda: Parts(encode=nn.Linear(6, 12), head=nn.Linear(12, 3)), lambda: (torch.rand(16, 6), torch.randint(3, (16,)))
)
def spikes_without_a_surrogate(net: Parts, current: Tensor, y: Tensor) -> Tensor:
    voltage, total = torch.zeros(len(y), 12), torch.zeros(len(y), 3)
    for _ in range(4):
        voltage = 0.8 * voltage + net.encode(current)
        spikes = (voltage > 0.5).float()  # fault: spiking threshold without a surrogate
        voltage = voltage - spikes.detach()
        total = total + net.head(spikes)
    return functional.cross_entropy(total, y)


@planted("starved", "encode.weight", "encode.bias")
@trains(
    lambda: Parts(encode=nn.Linear(6, 12), head=nn.Linear(12, 3)), lambda: (torch.rand(16, 6), torch.randint(3, (16,)))
)
def spikes_of_a_step_function(net: Parts, current: Tensor, y: Tensor) -> Tensor:
    voltage = net.encode(current)
    spikes = (torch.sign(voltage - 0.2) + 1) / 2  # fault: sign as a spike
    return functional.cross_entropy(net.head(spikes), y)


@planted("starved", "height")
@trains(lambda: Parts(height=nn.Parameter(torch.tensor([5.0, 6.0, 7.0]))), lambda: (torch.ones(3),))
def a_ball_that_never_touches_the_ground(net: Parts, force: Tensor) -> Tensor:
    depth = (0.5 - net.height).clamp(min=0)  # fault: contact that never happens
    return functional.mse_loss(1e3 * depth, force)


@planted("cut")
@trains(
    lambda: Parts(stiffness=nn.Parameter(torch.tensor(5.0)), damping=nn.Parameter(torch.tensor(0.1))),
    lambda: (torch.cos(torch.arange(20) * 0.2),),
)
def a_spring_with_a_friction_cone(net: Parts, seen: Tensor) -> Tensor:
    x, v, path = torch.tensor(1.0), torch.tensor(0.0), []
    for _ in range(len(seen)):
        pull = -net.stiffness * x - net.damping * v
        force = torch.clamp(pull, -0.5, 0.5)  # fault: actuator limit in a simulation
        v = v + 0.1 * force
        x = x + 0.1 * v
        path.append(x)
    return functional.mse_loss(torch.stack(path), seen)


@planted("starved", "steps")
@trains(
    lambda: Parts(rate=nn.Parameter(torch.tensor(0.5)), steps=nn.Parameter(torch.tensor(4.6))),
    lambda: (torch.ones(4), torch.full((4,), 0.5)),
)
def a_number_of_steps_is_learned(net: Parts, x: Tensor, seen: Tensor) -> Tensor:
    for _ in range(int(net.steps.round())):  # fault: loop count from a parameter
        x = x - 0.1 * net.rate * x
    return functional.mse_loss(x, seen)


@planted("starved", "weight.weight", "weight.bias")
def a_fixed_point_is_found_without_gradients() -> Diagnosis:
    class Implicit(Parts):
        def solve(self, x: Tensor) -> Tensor:
            z = torch.zeros_like(x)
            with torch.no_grad():
                for _ in range(10):
                    z = torch.tanh(0.3 * self.weight(z) + x)  # fault: fixed point without its last step
            return z

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return functional.cross_entropy(self.head(self.solve(x)), y)

    return by_hand(Implicit(weight=nn.Linear(6, 6), head=nn.Linear(6, 2)), torch.randn(16, 6), torch.randint(2, (16,)))


@planted("starved", "mass")
@trains(
    lambda: Parts(mass=nn.Parameter(torch.tensor(2.0)), drag=nn.Parameter(torch.tensor(0.3))),
    lambda: (torch.linspace(0, 9, 10),),
)
def a_mass_is_read_as_a_number(net: Parts, seen: Tensor) -> Tensor:
    v, path, mass = torch.tensor(0.0), [], float(net.mass)  # fault: float() of a parameter
    for _ in range(len(seen)):
        v = v + 0.1 * (9.81 - net.drag * v / mass)
        path.append(v)
    return functional.mse_loss(torch.stack(path), seen)


@planted("starved", "valve")
@trains(
    lambda: Parts(valve=nn.Parameter(torch.tensor(0.4)), inflow=nn.Parameter(torch.tensor(1.0))),
    lambda: (torch.rand(8),),
)
def a_valve_behind_a_threshold(net: Parts, seen: Tensor) -> Tensor:
    opened = functional.threshold(net.valve, 0.5, 0.0)  # fault: threshold above a parameter
    return functional.mse_loss(net.inflow - opened * seen, seen)
