"""Plain networks, bounded parameters, losses rebuilt by hand."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from pseudograd.diagnosis.context import Diagnosis

from ..programs import planted
from ..trainers import Parts, mlp, train_by_hand, trains


def classes(count: int = 32, width: int = 8, kinds: int = 3) -> tuple[Tensor, Tensor]:
    return torch.randn(count, width), torch.randint(kinds, (count,))


class Classifier(Parts):
    def __init__(self, **parts: object) -> None:
        super().__init__(**parts)
        self.body, self.head = mlp(8, 16, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(self.head(self.body(x)), y)


@planted("starved", "temperature")
@trains(lambda: Classifier(temperature=nn.Parameter(torch.tensor(5.0))), classes)
def a_temperature_starts_outside_its_clamp(net: Classifier, x: Tensor, y: Tensor) -> Tensor:
    sharp = net.temperature.clamp(0.01, 1.0)  # fault: parameter initialised outside its clamp
    return functional.cross_entropy(net.head(net.body(x)) / sharp, y)


@planted("cut")
@trains(Classifier, classes)
def probabilities_are_clamped_before_the_log(net: Classifier, x: Tensor, y: Tensor) -> Tensor:
    p = (net.head(net.body(x)) * 30).softmax(-1)
    safe = p.clamp(min=1e-2)  # fault: clamp before log
    return -safe.log().gather(1, y[:, None]).mean()


@planted("starved", "body.0.weight", "body.0.bias", "body.2.weight", "body.2.bias", "head.weight", "head.bias")
@trains(lambda: Parts(body=mlp(8, 16, 16), head=nn.Linear(16, 1)), lambda: classes(kinds=2))
def a_binary_head_has_a_softmax_of_one_class(net: Parts, x: Tensor, y: Tensor) -> Tensor:
    p = functional.softmax(net.head(net.body(x)), dim=1)  # fault: softmax over one class
    return functional.mse_loss(p[:, 0], y.float())


@planted("vanish")
@trains(lambda: Parts(first=nn.Linear(8, 1), norm=nn.LayerNorm(1), head=nn.Linear(1, 3)), classes)
def a_layer_norm_over_one_feature(net: Parts, x: Tensor, y: Tensor) -> Tensor:
    hidden = net.norm(net.first(x))  # fault: normalisation of one number
    return functional.cross_entropy(net.head(hidden), y)


@planted("starved", "body.0.weight", "body.0.bias", "body.2.weight", "body.2.bias", "head.weight", "head.bias")
@trains(Classifier, classes)
def the_loss_is_rebuilt_from_a_number(net: Classifier, x: Tensor, y: Tensor) -> Tensor:
    loss = functional.cross_entropy(net.head(net.body(x)), y)
    return torch.tensor(loss.item(), requires_grad=True)  # fault: loss rebuilt from .item()


@planted("starved", "gain")
@trains(lambda: Classifier(gain=nn.Parameter(torch.ones(16))), classes)
def a_parameter_is_copied_with_torch_tensor(net: Classifier, x: Tensor, y: Tensor) -> Tensor:
    gain = torch.tensor(net.gain)  # fault: torch.tensor(x)
    return functional.cross_entropy(net.head(net.body(x) * gain), y)


@planted("starved", "projection.weight", "projection.bias")
def a_layer_is_never_called() -> Diagnosis:
    class Net(Classifier):
        def __init__(self) -> None:
            super().__init__()
            self.projection = nn.Linear(16, 16)  # fault nowhere: a parameter that is not used

    return train_by_hand(Net(), *classes())


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        return x * factor

    @staticmethod
    def backward(ctx, grad):
        return None, None


@planted("starved", "first.weight", "first.bias")
@trains(lambda: Parts(first=nn.Linear(8, 16), head=nn.Linear(16, 3)), classes)
def a_custom_backward_returns_none(net: Parts, x: Tensor, y: Tensor) -> Tensor:
    hidden = Scale.apply(net.first(x), 2.0)  # fault: custom Function that returns None
    return functional.cross_entropy(net.head(hidden), y)


@planted("starved", "first.weight", "first.bias")
@trains(lambda: Parts(first=nn.Linear(8, 16), head=nn.Linear(16, 3)), classes)
def a_hook_zeroes_an_activation(net: Parts, x: Tensor, y: Tensor) -> Tensor:
    hidden = net.first(x)
    hidden.register_hook(lambda grad: grad * 0.0)  # fault: hook that zeroes an activation
    return functional.cross_entropy(net.head(hidden), y)


@planted(
    *("starved", "hyper.0.weight", "hyper.0.bias", "hyper.2.weight", "hyper.2.bias"),
    missed="they starve without a line: torch tells nobody that a Parameter is made of a tensor",
)
def a_hypernetwork_writes_a_new_parameter() -> Diagnosis:
    class Net(Parts):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            weight = self.hyper(torch.ones(4)).view(16, 8)
            self.body.weight = nn.Parameter(weight)  # fault: nn.Parameter of a computed tensor
            return functional.cross_entropy(self.head(self.body(x).relu()), y)

    net = Net(hyper=mlp(4, 8, 16 * 8), body=nn.Linear(8, 16), head=nn.Linear(16, 3))
    del net.body.weight
    net.body.register_parameter("weight", None)
    return train_by_hand(net, *classes())


@planted("starved", "down", "up")
@trains(lambda: Classifier(down=nn.Parameter(torch.zeros(8, 2)), up=nn.Parameter(torch.zeros(2, 16))), classes)
def an_adapter_starts_with_two_zeros(net: Classifier, x: Tensor, y: Tensor) -> Tensor:
    hidden = net.body(x) + x @ net.down @ net.up  # fault: both factors of an adapter start at 0
    return functional.cross_entropy(net.head(hidden), y)


@planted("vanish")
@trains(lambda: Parts(body=mlp(8, *[16] * 12, activation=nn.Sigmoid), head=nn.Linear(16, 3)), classes)
def twelve_sigmoids_in_a_row(net: Parts, x: Tensor, y: Tensor) -> Tensor:
    hidden = net.body(x).sigmoid()  # fault: gradients vanish in a stack of sigmoids
    return functional.cross_entropy(net.head(hidden), y)


@planted("starved", "centres", "head.weight")
@trains(lambda: Parts(centres=nn.Parameter(torch.randn(16, 8)), head=nn.Linear(16, 3)), classes)
def a_kernel_is_far_too_narrow(net: Parts, x: Tensor, y: Tensor) -> Tensor:
    distances = (x[:, None] - net.centres).square().sum(-1)
    near = torch.exp(-distances / 1e-6)  # fault: exp that underflows
    return functional.cross_entropy(net.head(near), y)


@planted("starved", "first.weight", "first.bias")
@trains(lambda: Parts(first=nn.Linear(8, 16), head=nn.Linear(16, 3)), classes)
def a_straight_through_the_wrong_way_round(net: Parts, x: Tensor, y: Tensor) -> Tensor:
    h = net.first(x) * 4
    levels = torch.round(h) + (h - torch.round(h)).detach() * 0.0  # fault: straight-through detached wrongly
    return functional.cross_entropy(net.head(levels), y)
