"""Classifiers and regressions, with what belongs to a training loop around them."""

from __future__ import annotations

import copy
import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional

from pseudograd.diagnosis import diagnose
from pseudograd.diagnosis.context import Diagnosis

from ..programs import clean
from ..trainers import Parts, steps


def rows(count: int = 32, width: int = 8, kinds: int = 3) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, width)
    return x, (x[:, :kinds] + 0.1 * torch.randn(count, kinds)).argmax(-1)


def mlp(*widths: int) -> nn.Sequential:
    layers = [part for a, b in itertools.pairwise(widths) for part in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


@clean()
def a_classifier_with_everything_that_regularises() -> Diagnosis:
    net = nn.Sequential(
        nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 32), nn.LayerNorm(32), nn.GELU()
    )
    model = nn.Sequential(net, nn.Linear(32, 3))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.1)
    rates = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5)
    with diagnose(model) as d:
        for _ in range(5):
            x, y = rows()
            optimizer.zero_grad()
            functional.cross_entropy(model(x), y, label_smoothing=0.1).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            rates.step()
    return d


@clean()
def early_stopping_on_what_is_measured_and_logged() -> Diagnosis:
    net, log, best, patience = mlp(8, 32, 3), [], float("inf"), 2
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    held, labels = rows()
    best_state: dict[str, Tensor] = {}
    with diagnose(net) as d:
        for _ in range(8):
            x, y = rows()
            optimizer.zero_grad()
            logits = net(x)
            loss = functional.cross_entropy(logits, y)
            loss.backward()
            nn.utils.clip_grad_value_(net.parameters(), 0.5)
            optimizer.step()
            accuracy = (logits.argmax(-1) == y).float().mean().item()
            log.append((loss.item(), accuracy, logits.detach().numpy().mean()))
            net.eval()
            with torch.no_grad():
                value = float(functional.cross_entropy(net(held), labels))
            net.train()
            if value < best:
                best, best_state = value, copy.deepcopy(net.state_dict())
            elif (patience := patience - 1) == 0:
                break
        net.load_state_dict(best_state)
    return d


@clean()
def a_regression_with_weights_from_its_own_error() -> Diagnosis:
    """Iteratively reweighted: the weights are data."""
    net, x = mlp(8, 32, 1), torch.randn(64, 8)
    y = x[:, :1].sin() + 0.1 * torch.randn(64, 1)

    def loss() -> Tensor:
        error = net(x) - y
        weights = 1 / error.detach().abs().clamp(min=0.1)
        return (weights * error.square()).mean() + 0.1 * functional.smooth_l1_loss(net(x), y)

    return steps(net, loss)


@clean()
def tasks_in_turn() -> Diagnosis:
    net = nn.ModuleDict({"body": mlp(8, 16, 16), "one": nn.Linear(16, 3), "two": nn.Linear(16, 3)})
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    with diagnose(net) as d:
        for step in range(6):
            x, y = rows()
            optimizer.zero_grad()
            functional.cross_entropy(net["one" if step % 2 else "two"](net["body"](x)), y).backward()
            optimizer.step()
    return d


@clean()
def a_frozen_backbone() -> Diagnosis:
    net = nn.Sequential(mlp(8, 32, 16), nn.Linear(16, 3))
    net[0].requires_grad_(False).eval()
    x, y = rows()
    optimizer = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], 1e-3)
    return steps(net, lambda: functional.cross_entropy(net(x), y), optimizer=optimizer)


@clean()
def features_of_a_backbone_that_no_optimiser_has() -> Diagnosis:
    class Net(Parts):
        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                features = self.backbone(x)
            return self.head(features)

    net, (x, y) = Net(backbone=mlp(8, 32, 16), head=nn.Linear(16, 3)), rows()
    optimizer = torch.optim.Adam(net.head.parameters(), 1e-3)
    return steps(net, lambda: functional.cross_entropy(net(x), y), optimizer=optimizer)


@clean()
def layers_that_only_their_optimiser_leaves_out() -> Diagnosis:
    """Gradients come to them and nobody uses these: slow, and right."""
    net, (x, y) = nn.Sequential(mlp(8, 32, 16), nn.Linear(16, 3)), rows()
    optimizer = torch.optim.Adam(net[1].parameters(), 1e-3)
    return steps(net, lambda: functional.cross_entropy(net(x), y), optimizer=optimizer)


@clean()
def adapters_of_low_rank() -> Diagnosis:
    """The second factor starts at 0, so the first gets its first gradient in the second step."""

    class Adapted(nn.Module):
        def __init__(self, base: nn.Linear) -> None:
            super().__init__()
            self.base = base.requires_grad_(False)
            self.down = nn.Parameter(torch.randn(base.in_features, 2) / 4)
            self.up = nn.Parameter(torch.zeros(2, base.out_features))

        def forward(self, x: Tensor) -> Tensor:
            return self.base(x) + x @ self.down @ self.up

    net, (x, y) = nn.Sequential(Adapted(nn.Linear(8, 16)), nn.ReLU(), Adapted(nn.Linear(16, 3))), rows()
    optimizer = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], 1e-2)
    return steps(net, lambda: functional.cross_entropy(net(x), y), optimizer=optimizer)


@clean()
def tasks_are_learned_to_be_learned() -> Diagnosis:
    """Model-agnostic meta-learning: the inner step is differentiated through."""
    net = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))

    def loss() -> Tensor:
        phase, x = torch.rand(1), torch.randn(10, 1)
        fast = dict(net.named_parameters())
        inner = functional.mse_loss(torch.func.functional_call(net, fast, (x,)), (x + phase).sin())
        grads = torch.autograd.grad(inner, list(fast.values()), create_graph=True)
        fast = {name: p - 0.1 * g for (name, p), g in zip(fast.items(), grads, strict=True)}
        new = torch.randn(10, 1)
        return functional.mse_loss(torch.func.functional_call(net, fast, (new,)), (new + phase).sin())

    return steps(net, loss, 4)


@clean()
def gradients_by_function_transforms() -> Diagnosis:
    """torch.func.grad within the loss: a penalty on the slope of the network."""
    net, (x, y) = nn.Sequential(nn.Linear(8, 16), nn.Softplus(), nn.Linear(16, 3)), rows()

    def slope(row: Tensor) -> Tensor:
        return torch.func.grad(lambda z: torch.func.functional_call(net, dict(net.named_parameters()), (z,)).sum())(row)

    def loss() -> Tensor:
        return functional.cross_entropy(net(x), y) + 0.01 * torch.func.vmap(slope)(x).square().mean()

    return steps(net, loss)


@clean()
def a_hinge_and_a_triplet() -> Diagnosis:
    net, (x, y) = mlp(8, 32, 3), rows(64)

    def loss() -> Tensor:
        h = net(x)
        triplet = functional.triplet_margin_loss(h[:20], h[20:40], h[40:60], margin=1.0)
        return functional.multi_margin_loss(h, y) + triplet + functional.relu(0.5 - h[:, 0] * h[:, 1]).mean()

    return steps(net, loss)


@clean()
def labels_that_are_rare() -> Diagnosis:
    """Focal loss: probabilities are kept from 0 by a guard that nothing meets."""
    net, (x, y) = mlp(8, 32, 3), rows()

    def loss() -> Tensor:
        p = net(x).softmax(-1).gather(1, y[:, None]).clamp(min=1e-8)
        return (-((1 - p) ** 2) * p.log()).mean()

    return steps(net, loss)


@clean()
def weights_under_a_parametrisation() -> Diagnosis:
    net = nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Linear(8, 16)),
        nn.LeakyReLU(),
        nn.utils.parametrizations.spectral_norm(nn.Linear(16, 3)),
    )
    x, y = rows()
    return steps(net, lambda: functional.cross_entropy(net(x), y))


@clean()
def quantiles_by_the_pinball_loss() -> Diagnosis:
    net, x, levels = mlp(8, 32, 3), torch.randn(64, 8), torch.tensor([0.1, 0.5, 0.9])

    def loss() -> Tensor:
        error = x.sum(-1, keepdim=True) - net(x).sort(-1).values
        return torch.maximum(levels * error, (levels - 1) * error).mean()

    return steps(net, loss)


@clean()
def messages_on_a_graph() -> Diagnosis:
    class Net(Parts):
        def forward(self, edges: Tensor) -> Tensor:
            h, (source, target) = self.embed.weight, edges
            sent = functional.relu(self.message(torch.cat([h[source], h[target]], -1)))
            total = torch.zeros_like(h).index_add(0, target, sent)
            most = torch.zeros_like(h).scatter_reduce(0, target[:, None].expand_as(sent), sent, "amax")
            return self.head(torch.cat([total, most], -1))

    net, edges, y = (
        Net(embed=nn.Embedding(20, 16), message=nn.Linear(32, 16), head=nn.Linear(32, 3)),
        torch.randint(20, (2, 60)),
        torch.randint(3, (20,)),
    )
    return steps(net, lambda: functional.cross_entropy(net(edges), y))
