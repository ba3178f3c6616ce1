"""Plain networks, bounded parameters, losses rebuilt by hand."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional

import pseudograd as pg
from pseudograd.diagnosis.context import Diagnosis

from ..programs import planted
from ..trainers import by_hand, steps


def classes(count: int = 32, width: int = 8, kinds: int = 3) -> tuple[Tensor, Tensor]:
    return torch.randn(count, width), torch.randint(kinds, (count,))


def mlp(*widths: int) -> nn.Sequential:
    layers = [part for a, b in itertools.pairwise(widths) for part in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = mlp(8, 16, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(self.head(self.body(x)), y)


@planted("starved", "temperature")
def a_temperature_starts_outside_its_clamp() -> Diagnosis:
    class Net(Classifier):
        def __init__(self) -> None:
            super().__init__()
            self.temperature = nn.Parameter(torch.tensor(5.0))

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            sharp = self.temperature.clamp(0.01, 1.0)  # fault: parameter initialised outside its clamp
            return functional.cross_entropy(self.head(self.body(x)) / sharp, y)

    return by_hand(Net(), *classes())


@planted("cut")
def probabilities_are_clamped_before_the_log() -> Diagnosis:
    class Net(Classifier):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            p = (self.head(self.body(x)) * 30).softmax(-1)
            safe = p.clamp(min=1e-2)  # fault: clamp before log
            return -safe.log().gather(1, y[:, None]).mean()

    return by_hand(Net(), *classes())


@planted("starved", "first.weight", "first.bias", "head.weight")
def every_relu_is_dead() -> Diagnosis:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.head = nn.Linear(8, 16), nn.Linear(16, 3)
            nn.init.constant_(self.first.bias, -10.0)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            hidden = functional.relu(self.first(x))  # fault: relus dead by a bias of -10
            return functional.cross_entropy(self.head(hidden), y)

    return by_hand(Net(), *classes())


@planted("starved", "first.weight", "first.bias")
def a_hard_sigmoid_is_saturated() -> Diagnosis:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.head = nn.Linear(8, 16), nn.Linear(16, 3)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            gate = functional.hardsigmoid(self.first(x) + 20)  # fault: hard sigmoid saturated
            return functional.cross_entropy(self.head(gate), y)

    return by_hand(Net(), *classes())


@planted("starved", "first.weight", "first.bias")
def a_tanh_is_fed_unscaled_features() -> Diagnosis:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.head = nn.Linear(8, 16), nn.Linear(16, 3)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            hidden = torch.tanh(self.first(x))  # fault: tanh saturated by unscaled features
            return functional.cross_entropy(self.head(hidden), y)

    x, y = classes()
    return by_hand(Net(), (x.sign() + 2) * 1e5, y)


@planted("starved", "body.0.weight", "body.0.bias", "body.2.weight", "body.2.bias", "head.weight", "head.bias")
def a_binary_head_has_a_softmax_of_one_class() -> Diagnosis:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = mlp(8, 16, 16), nn.Linear(16, 1)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            p = functional.softmax(self.head(self.body(x)), dim=1)  # fault: softmax over one class
            return functional.mse_loss(p[:, 0], y.float())

    return by_hand(Net(), *classes(kinds=2))


@planted("starved", "first.weight", "first.bias", missed="later steps hand on what rounding leaves, which is not 0")
def a_layer_norm_over_one_feature() -> Diagnosis:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm, self.head = nn.Linear(8, 1), nn.LayerNorm(1), nn.Linear(1, 3)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            hidden = self.norm(self.first(x))  # fault: normalisation of one number
            return functional.cross_entropy(self.head(hidden), y)

    return by_hand(Net(), *classes())


@planted("starved", "body.0.weight", "body.0.bias", "body.2.weight", "body.2.bias", "head.weight", "head.bias")
def the_loss_is_rebuilt_from_a_number() -> Diagnosis:
    net = Classifier()
    x, y = classes()

    def loss() -> Tensor:
        value = net(x, y)
        return torch.tensor(value.item(), requires_grad=True)  # fault: loss rebuilt from .item()

    return steps(net, loss)


@planted("starved", "gain")
def a_parameter_is_copied_with_torch_tensor() -> Diagnosis:
    class Net(Classifier):
        def __init__(self) -> None:
            super().__init__()
            self.gain = nn.Parameter(torch.ones(16))

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            gain = torch.tensor(self.gain)  # fault: torch.tensor(x)
            return functional.cross_entropy(self.head(self.body(x) * gain), y)

    return by_hand(Net(), *classes())


@planted("starved", "body.0.weight", "body.0.bias", "body.2.weight", "body.2.bias")
def a_hidden_layer_goes_through_numpy() -> Diagnosis:
    class Net(Classifier):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            hidden = torch.from_numpy(self.body(x).detach().numpy() * 2)  # fault: numpy round trip
            return functional.cross_entropy(self.head(hidden), y)

    return by_hand(Net(), *classes())


@planted("starved", "shift")
def a_parameter_is_read_through_data() -> Diagnosis:
    class Net(Classifier):
        def __init__(self) -> None:
            super().__init__()
            self.shift = nn.Parameter(torch.zeros(3))

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            logits = self.head(self.body(x)) + self.shift.data  # fault: .data
            return functional.cross_entropy(logits, y)

    return by_hand(Net(), *classes())


@planted("starved", "body.0.weight", "body.0.bias", "body.2.weight", "body.2.bias")
def a_backbone_that_is_trained_runs_without_gradients() -> Diagnosis:
    class Net(Classifier):
        @torch.no_grad()
        def features(self, x: Tensor) -> Tensor:
            return self.body(x)  # fault: no_grad around part of the forward

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return functional.cross_entropy(self.head(self.features(x)), y)

    return by_hand(Net(), *classes())


@planted("starved", "projection.weight", "projection.bias")
def a_layer_is_never_called() -> Diagnosis:
    class Net(Classifier):
        def __init__(self) -> None:
            super().__init__()
            self.projection = nn.Linear(16, 16)  # fault nowhere: a parameter that is not used

    return by_hand(Net(), *classes())


@planted("starved", "body.0.weight", "body.0.bias", "body.2.weight", "body.2.bias", "head.weight")
def dropout_of_everything() -> Diagnosis:
    class Net(Classifier):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            hidden = functional.dropout(self.body(x), p=1.0)  # fault: dropout of everything
            return functional.cross_entropy(self.head(hidden), y)

    return by_hand(Net(), *classes())


@planted("starved", "body.0.weight", "body.0.bias", "body.2.weight", "body.2.bias", "head.weight")
def a_mask_that_is_never_true() -> Diagnosis:
    class Net(Classifier):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            is_valid = torch.isnan(x[:, :1])  # meant: ~
            hidden = torch.where(is_valid, self.body(x), 0.0)  # fault: mask that kills all
            return functional.cross_entropy(self.head(hidden), y)

    return by_hand(Net(), *classes())


@planted("starved", "score.weight", "score.bias")
def a_comparison_is_a_gate() -> Diagnosis:
    class Net(Classifier):
        def __init__(self) -> None:
            super().__init__()
            self.score = nn.Linear(8, 16)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            gate = (self.score(x) > 0).float()  # fault: comparison as a gate
            return functional.cross_entropy(self.head(self.body(x) * gate), y)

    return by_hand(Net(), *classes())


@planted("starved", "first.weight", "first.bias")
def a_custom_backward_returns_none() -> Diagnosis:
    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, factor):
            ctx.factor = factor
            return x * factor

        @staticmethod
        def backward(ctx, grad):
            return None, None

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.head = nn.Linear(8, 16), nn.Linear(16, 3)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            hidden = Scale.apply(self.first(x), 2.0)  # fault: custom Function that returns None
            return functional.cross_entropy(self.head(hidden), y)

    return by_hand(Net(), *classes())


@planted("starved", "first.weight", "first.bias")
def a_custom_backward_returns_zeros() -> Diagnosis:
    class Step(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return (x > 0).float()

        @staticmethod
        def backward(ctx, grad):
            return torch.zeros_like(grad)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.head = nn.Linear(8, 16), nn.Linear(16, 3)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            spikes = Step.apply(self.first(x))  # fault: custom Function that returns zeros
            return functional.cross_entropy(self.head(spikes), y)

    return by_hand(Net(), *classes())


@planted("starved", "first.weight", "first.bias")
def a_hook_zeroes_an_activation() -> Diagnosis:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.head = nn.Linear(8, 16), nn.Linear(16, 3)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            hidden = self.first(x)
            hidden.register_hook(lambda grad: grad * 0.0)  # fault: hook that zeroes an activation
            return functional.cross_entropy(self.head(hidden), y)

    return by_hand(Net(), *classes())


@planted("starved", "body.0.weight")
def a_hook_zeroes_a_parameter() -> Diagnosis:
    net = Classifier()
    x, y = classes()
    with torch.no_grad():
        rows = torch.zeros(16, 8)  # meant: ones where it may learn
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    with pg.diagnose(net) as d:
        net.body[0].weight.register_hook(lambda grad: grad * rows)  # fault: hook that freezes a parameter
        for _ in range(5):
            optimizer.zero_grad()
            net(x, y).backward()
            optimizer.step()
    return d


@planted(
    *("starved", "hyper.0.weight", "hyper.0.bias", "hyper.2.weight", "hyper.2.bias"),
    missed="they starve without a line: torch tells nobody that a Parameter is made of a tensor",
)
def a_hypernetwork_writes_a_new_parameter() -> Diagnosis:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.hyper, self.body, self.head = mlp(4, 8, 16 * 8), nn.Linear(8, 16), nn.Linear(16, 3)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            weight = self.hyper(torch.ones(4)).view(16, 8)
            self.body.weight = nn.Parameter(weight)  # fault: nn.Parameter of a computed tensor
            return functional.cross_entropy(self.head(self.body(x).relu()), y)

    net = Net()
    del net.body.weight
    net.body.register_parameter("weight", None)
    return by_hand(net, *classes())


@planted("starved", "hyper.0.weight", "hyper.0.bias", "hyper.2.weight", "hyper.2.bias")
def a_hypernetwork_copies_into_data() -> Diagnosis:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.hyper, self.body, self.head = mlp(4, 8, 16 * 8), nn.Linear(8, 16), nn.Linear(16, 3)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            weight = self.hyper(torch.ones(4)).view(16, 8)
            self.body.weight.data.copy_(weight)  # fault: .data.copy_ of a computed tensor
            return functional.cross_entropy(self.head(self.body(x).relu()), y)

    return by_hand(Net(), *classes())


@planted("starved", "down", "up")
def an_adapter_starts_with_two_zeros() -> Diagnosis:
    class Net(Classifier):
        def __init__(self) -> None:
            super().__init__()
            self.down, self.up = nn.Parameter(torch.zeros(8, 2)), nn.Parameter(torch.zeros(2, 16))

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            hidden = self.body(x) + x @ self.down @ self.up  # fault: both factors of an adapter start at 0
            return functional.cross_entropy(self.head(hidden), y)

    return by_hand(Net(), *classes())


@planted("vanish")
def twelve_sigmoids_in_a_row() -> Diagnosis:
    layers = [part for _ in range(12) for part in (nn.Linear(16, 16), nn.Sigmoid())]

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.body, self.head = nn.Linear(8, 16), nn.Sequential(*layers), nn.Linear(16, 3)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            hidden = self.body(self.first(x))  # fault: gradients vanish in a stack of sigmoids
            return functional.cross_entropy(self.head(hidden), y)

    return by_hand(Net(), *classes())


@planted("starved", "centres", "log_width", "head.weight")
def a_kernel_is_far_too_narrow() -> Diagnosis:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.centres, self.log_width = nn.Parameter(torch.randn(16, 8)), nn.Parameter(torch.tensor(-6.0))
            self.head = nn.Linear(16, 3)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            distances = (x[:, None] - self.centres).square().sum(-1)
            near = torch.exp(-distances / self.log_width.exp() ** 2)  # fault: exp that underflows
            return functional.cross_entropy(self.head(near), y)

    return by_hand(Net(), *classes())


@planted("starved", "level")
def a_floor_above_every_value() -> Diagnosis:
    class Net(Classifier):
        def __init__(self) -> None:
            super().__init__()
            self.level = nn.Parameter(torch.full((3,), 0.1))

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            scale = torch.maximum(self.level, torch.tensor(1.0))  # fault: maximum with a larger constant
            return functional.cross_entropy(self.head(self.body(x)) * scale, y)

    return by_hand(Net(), *classes())


@planted("cut")
def two_columns_of_a_weight_are_clamped_in_place() -> Diagnosis:
    class Net(Classifier):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            logits = self.head(self.body(x)) * 10
            logits[:, :2].clamp_(-0.1, 0.1)  # fault: in-place clamp of a view
            return functional.cross_entropy(logits, y)

    return by_hand(Net(), *classes())


@planted("starved", "body.0.weight", "body.0.bias", "body.2.weight", "body.2.bias", "head.weight", "head.bias")
def a_loss_of_the_predicted_classes() -> Diagnosis:
    class Net(Classifier):
        def __init__(self) -> None:
            super().__init__()
            self.prior = nn.Parameter(torch.zeros(3))

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            guess = self.head(self.body(x)).argmax(-1).float()  # fault: argmax in a loss
            return functional.mse_loss(guess + self.prior[y], y.float())

    return by_hand(Net(), *classes())


@planted("starved", "cuts")
def features_are_bucketed() -> Diagnosis:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cuts = nn.Parameter(torch.linspace(-1, 1, 5))
            self.table, self.head = nn.Embedding(6, 4), nn.Linear(32, 3)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            bins = torch.bucketize(x, self.cuts)  # fault: bucketize with learnable edges
            return functional.cross_entropy(self.head(self.table(bins).flatten(1)), y)

    return by_hand(Net(), *classes())


@planted("starved", "first.weight", "first.bias")
def a_straight_through_the_wrong_way_round() -> Diagnosis:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.head = nn.Linear(8, 16), nn.Linear(16, 3)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            h = self.first(x) * 4
            levels = torch.round(h) + (h - torch.round(h)).detach() * 0.0  # fault: straight-through detached wrongly
            return functional.cross_entropy(self.head(levels), y)

    return by_hand(Net(), *classes())


@planted("starved", "encode.weight", "encode.bias", "decode.weight")
def a_sparse_code_shrinks_everything() -> Diagnosis:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encode, self.decode = nn.Linear(8, 16), nn.Linear(16, 8)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            code = functional.softshrink(self.encode(x), 10.0)  # fault: softshrink of everything
            return functional.mse_loss(self.decode(code), x)

    return by_hand(Net(), *classes())


@planted("starved", "threshold")
def a_jumprelu_with_a_narrow_window() -> Diagnosis:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encode, self.decode = nn.Linear(8, 16), nn.Linear(16, 8)
            self.threshold = nn.Parameter(torch.full((16,), 0.1))

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            code = pg.jumprelu(self.encode(x), self.threshold, bandwidth=1e-7)  # fault: jumprelu window too narrow
            return functional.mse_loss(self.decode(code), x)

    return by_hand(Net(), *classes())
