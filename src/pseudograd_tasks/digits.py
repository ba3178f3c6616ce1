"""The digits that ship with scikit-learn, and small networks for them: one for each seed, all trained at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

TRAINING, BATCH = 1300, 128


class Digits(NamedTuple):
    """Images (n, 64) with values k / 16 from 0 to 1, and labels (n,): 1300 for training, 497 for tests. Do not write into them."""

    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor


@cache
def digits() -> Digits:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    x, y = torch.from_numpy(images).float()[order] / 16, torch.from_numpy(labels)[order]
    return Digits(x[:TRAINING], y[:TRAINING], x[TRAINING:], y[TRAINING:])


class Networks(NamedTuple):
    """A network for each seed.

    weights, biases: for each layer, tensors (seeds, out, in) and (seeds, 1, out).
    batches: indices of images, (steps, seeds, 128).
    """

    weights: list[Tensor]
    biases: list[Tensor]
    batches: Tensor

    @property
    def parameters(self) -> list[Tensor]:
        return [*self.weights, *self.biases]


def draw_networks(seeds: Sequence[int], sizes: Sequence[int], steps: int) -> Networks:
    """For each seed a network with layers of these sizes. A network depends on its seed alone. Weights are uniform with variance 1 / in,
    biases are 0.
    """
    layers = list(pairwise(sizes))
    weights: list[list[Tensor]] = [[] for _ in layers]
    batches = []
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        for layer, (size, out) in zip(weights, layers, strict=True):
            layer.append((torch.rand(out, size, generator=generator) * 2 - 1) * (3 / size) ** 0.5)
        batches.append(torch.randint(TRAINING, (steps, BATCH), generator=generator))
    biases = [torch.zeros(len(seeds), 1, out) for _, out in layers]
    return Networks([torch.stack(layer) for layer in weights], biases, torch.stack(batches, 1))


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """(seeds, n, out): the layer of each seed, applied to the part of this seed in x (seeds, n, in)."""
    return torch.baddbmm(bias, x, weight.mT)


def pictures(images: Tensor, indices: Tensor) -> Tensor:
    """The same as images[indices], but faster."""
    return images.index_select(0, indices.flatten()).view(*indices.shape, *images.shape[1:])


def logits(x: Tensor, networks: Networks) -> Tensor:
    """(seeds, n, out): layers with relu between them."""
    for layer, (weight, bias) in enumerate(zip(networks.weights, networks.biases, strict=True)):
        x = linear(torch.relu(x) if layer else x, weight, bias)
    return x


def expand_seeds(seeds: int, x: Tensor) -> Tensor:
    return x.expand(seeds, *x.shape)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """The sum over seeds of the mean over images, so no network changes the gradients of another.

    logits: of shape (seeds, n, 10).
    labels: of shape (seeds, n).
    """
    return functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum") / labels.shape[1]


def train(networks: Networks, rate: float, loss: Callable[[Tensor], Tensor], falls: bool = False) -> Iterator[int]:
    """Train by Adam on loss(indices of a batch). Yields the number of each step before its update. falls: does the rate fall to 0?"""
    # Without `fused`, the steps of Adam would take a third of the time of a training of this size.
    optimizer = torch.optim.Adam([p.requires_grad_() for p in networks.parameters], rate, fused=True)
    for step, batch in enumerate(networks.batches):
        optimizer.param_groups[0]["lr"] = rate * (1 - step / len(networks.batches)) if falls else rate
        optimizer.zero_grad()
        loss(batch).backward()
        yield step
        optimizer.step()


def classification_loss(forward: Callable[[Tensor], Tensor], batch: Tensor) -> Tensor:
    images = digits()
    return cross_entropy(forward(pictures(images.train, batch)), pictures(images.train_labels, batch))


def accuracy(logits: Tensor, labels: Tensor) -> Tensor:
    """(seeds,), float64: the share of images whose largest logit is that of the label."""
    return (logits.argmax(-1) == labels).double().mean(-1)
