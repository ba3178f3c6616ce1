"""Parameters of simulations, spiking neurons, implicit layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from pseudograd.diagnosis.context import Diagnosis

from ..programs import planted
from ..trainers import by_hand


@planted("starved", "encode.weight", "encode.bias")
def spikes_without_a_surrogate() -> Diagnosis:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encode, self.head = nn.Linear(6, 12), nn.Linear(12, 3)

        def forward(self, current: Tensor, y: Tensor) -> Tensor:
            voltage, total = torch.zeros(len(y), 12), torch.zeros(len(y), 3)
            for _ in range(4):
                voltage = 0.8 * voltage + self.encode(current)
                spikes = (voltage > 0.5).float()  # fault: spiking threshold without a surrogate
                voltage = voltage - spikes.detach()
                total = total + self.head(spikes)
            return functional.cross_entropy(total, y)

    return by_hand(Net(), torch.rand(16, 6), torch.randint(3, (16,)))


@planted("starved", "encode.weight", "encode.bias")
def spikes_of_a_step_function() -> Diagnosis:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encode, self.head = nn.Linear(6, 12), nn.Linear(12, 3)

        def forward(self, current: Tensor, y: Tensor) -> Tensor:
            voltage = self.encode(current)
            spikes = (torch.sign(voltage - 0.2) + 1) / 2  # fault: sign as a spike
            return functional.cross_entropy(self.head(spikes), y)

    return by_hand(Net(), torch.rand(16, 6), torch.randint(3, (16,)))


@planted("starved", "height")
def a_ball_that_never_touches_the_ground() -> Diagnosis:
    class Ball(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.height = nn.Parameter(torch.tensor([5.0, 6.0, 7.0]))

        def forward(self, force: Tensor) -> Tensor:
            depth = (0.5 - self.height).clamp(min=0)  # fault: contact that never happens
            return functional.mse_loss(1e3 * depth, force)

    return by_hand(Ball(), torch.ones(3))


@planted("cut")
def a_spring_with_a_friction_cone() -> Diagnosis:
    class Spring(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stiffness, self.damping = nn.Parameter(torch.tensor(5.0)), nn.Parameter(torch.tensor(0.1))

        def forward(self, seen: Tensor) -> Tensor:
            x, v, path = torch.tensor(1.0), torch.tensor(0.0), []
            for _ in range(len(seen)):
                pull = -self.stiffness * x - self.damping * v
                force = torch.clamp(pull, -0.5, 0.5)  # fault: actuator limit in a simulation
                v = v + 0.1 * force
                x = x + 0.1 * v
                path.append(x)
            return functional.mse_loss(torch.stack(path), seen)

    return by_hand(Spring(), torch.cos(torch.arange(20) * 0.2))


@planted("starved", "steps")
def a_number_of_steps_is_learned() -> Diagnosis:
    class Flow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rate, self.steps = nn.Parameter(torch.tensor(0.5)), nn.Parameter(torch.tensor(4.6))

        def forward(self, x: Tensor, seen: Tensor) -> Tensor:
            for _ in range(int(self.steps.round())):  # fault: loop count from a parameter
                x = x - 0.1 * self.rate * x
            return functional.mse_loss(x, seen)

    return by_hand(Flow(), torch.ones(4), torch.full((4,), 0.5))


@planted("starved", "weight.weight", "weight.bias")
def a_fixed_point_is_found_without_gradients() -> Diagnosis:
    class Implicit(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.head = nn.Linear(6, 6), nn.Linear(6, 2)

        def solve(self, x: Tensor) -> Tensor:
            z = torch.zeros_like(x)
            with torch.no_grad():
                for _ in range(10):
                    z = torch.tanh(0.3 * self.weight(z) + x)  # fault: fixed point without its last step
            return z

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return functional.cross_entropy(self.head(self.solve(x)), y)

    return by_hand(Implicit(), torch.randn(16, 6), torch.randint(2, (16,)))


@planted("starved", "mass")
def a_mass_is_read_as_a_number() -> Diagnosis:
    class Fall(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mass, self.drag = nn.Parameter(torch.tensor(2.0)), nn.Parameter(torch.tensor(0.3))

        def forward(self, seen: Tensor) -> Tensor:
            v, path, mass = torch.tensor(0.0), [], float(self.mass)  # fault: float() of a parameter
            for _ in range(len(seen)):
                v = v + 0.1 * (9.81 - self.drag * v / mass)
                path.append(v)
            return functional.mse_loss(torch.stack(path), seen)

    return by_hand(Fall(), torch.linspace(0, 9, 10))


@planted("starved", "valve")
def a_valve_behind_a_threshold() -> Diagnosis:
    class Tank(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.valve, self.inflow = nn.Parameter(torch.tensor(0.4)), nn.Parameter(torch.tensor(1.0))

        def forward(self, seen: Tensor) -> Tensor:
            opened = functional.threshold(self.valve, 0.5, 0.0)  # fault: threshold above a parameter
            return functional.mse_loss(self.inflow - opened * seen, seen)

    return by_hand(Tank(), torch.rand(8))
