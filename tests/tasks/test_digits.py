"""The networks for digits: one for each seed, as if each were alone; and what the four tasks that use them measure."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from pseudograd.comparison.variants import eras, variants
from pseudograd_tasks import attack, bounded_head, digits, quantized
from pseudograd_tasks.attack import ATTACK, FROM_CHANCE, FROM_PICTURE, NO_MAXIMIZE
from pseudograd_tasks.bounded_head import BOUNDED_HEAD
from pseudograd_tasks.quantized import FOUR_BITS, FOUR_BITS_EACH, TERNARY, TERNARY_WEIGHTS

from .running import headline, run


def test_a_network_depends_on_its_seed_alone_and_so_does_its_gradient() -> None:
    several, alone = digits.draw_networks((3, 5), (64, 6, 10), 2), digits.draw_networks((5,), (64, 6, 10), 2)
    for ours, theirs in zip((*several.weights, *several.biases), (*alone.weights, *alone.biases), strict=True):
        assert torch.equal(ours[1:], theirs)
    assert torch.equal(several.batches[:, 1:], alone.batches)
    assert several.batches.shape == (2, 2, 128)
    images, seen = digits.digits(), several.batches[0]
    for p in several.parameters:
        p.requires_grad_()
    shown = digits.pictures(images.train, seen)
    assert torch.equal(shown, images.train[seen])
    digits.cross_entropy(digits.logits(shown, several), images.train_labels[seen]).backward()
    for index in (0, 1):
        own = [p.detach()[index].clone().requires_grad_() for p in several.parameters]
        (first, second), (one, two) = own[:2], own[2:]
        hidden = functional.relu(functional.linear(shown[index], first, one[0]))
        functional.cross_entropy(functional.linear(hidden, second, two[0]), images.train_labels[seen[index]]).backward()
        for ours, theirs in zip(several.parameters, own, strict=True):
            assert torch.allclose(ours.grad[index], theirs.grad, atol=1e-6)


@pytest.mark.parametrize("quantiser", [TERNARY_WEIGHTS, FOUR_BITS_EACH])
def test_quantised_values(quantiser: quantized.Quantiser) -> None:
    """By hand, in float64: what codes there are, and the layers between them."""
    networks = digits.draw_networks((1,), (64, 5, 10), 1)
    x = digits.digits().test[:7]
    found = quantized.logits(x[None], networks, quantiser, torch.clamp)[0]
    h = x
    for number, weight in enumerate(networks.weights):
        w = weight[0]
        if quantiser is TERNARY_WEIGHTS:
            scale = w.abs().mean()
            codes = (w / scale).round().clamp(-1, 1)
        else:
            scale = w.abs().amax(1, keepdim=True) / 7
            codes = (w / scale).round().clamp(-8, 7)
        assert set(codes.unique().tolist()) <= {float(code) for code in range(-8, 8)}
        if number:
            h = functional.relu(h)
            if quantiser.of_activations:
                h = (h * 7.5).round().clamp(0, 15) / 7.5
        h = h @ (codes * scale).T
    assert torch.allclose(found, h, atol=1e-5)


@pytest.mark.program
def test_ternary_weights_need_the_edge() -> None:
    closed, opened = (run(TERNARY, quantized.WORLD, era) for era in eras())
    assert closed.numbers["accuracy"] >= 0.91
    assert opened.numbers["accuracy"] <= 0.78
    assert closed.numbers["silent"] == pytest.approx(0.43, abs=0.01)
    assert opened.numbers["silent"] == pytest.approx(0.81, abs=0.01)


@pytest.mark.program
def test_identity_harms_activations() -> None:
    assert headline(FOUR_BITS, quantized.WORLD, "identity") <= 0.80
    assert headline(FOUR_BITS, quantized.WORLD, "inward") >= 0.95


# --- attack -----------------------------------------------------------------------------------------------------------


@pytest.mark.program
def test_attack_stays_within_its_bounds() -> None:
    x = digits.digits().test
    for name in ("inward", "project", "no clamp"):
        variant = next(variant for variant in variants(has_leaves=True) if variant.name == name)
        shown = attack.attacked(FROM_CHANCE, variant)
        assert ((shown >= 0) & (shown <= 1)).all()
        assert (shown - x).abs().max() <= attack.LARGEST + 1e-6


@pytest.mark.program
def test_attack_with_inward_is_as_strong_as_with_project() -> None:
    for world in (FROM_PICTURE, FROM_CHANCE):
        inward, project = (headline(ATTACK, world, name) for name in ("inward", "project"))
        assert abs(inward - project) <= 0.01
        assert inward < 0.02


@pytest.mark.program
def test_the_edge_decides_from_the_picture_and_the_rule_from_chance() -> None:
    assert headline(ATTACK, FROM_PICTURE, "zero/open") > 0.3
    assert headline(ATTACK, FROM_PICTURE, "zero/closed") < 0.05
    assert headline(ATTACK, FROM_CHANCE, "zero/closed") == headline(ATTACK, FROM_CHANCE, "zero/open") > 0.08


def test_ascent_needs_maximize() -> None:
    assert headline(ATTACK, FROM_CHANCE, "inward") < 0.01
    without = run(ATTACK, NO_MAXIMIZE, "inward")
    assert without.numbers["right"] > 0.08
    assert without == run(ATTACK, NO_MAXIMIZE, "zero/closed")
    assert run(ATTACK, NO_MAXIMIZE, "identity") == run(ATTACK, FROM_CHANCE, "identity")


# --- bounded head -----------------------------------------------------------------------------------------------------


def test_no_output_dies_with_inward() -> None:
    assert run(BOUNDED_HEAD, "far start", "inward").numbers["dead"] == 0


def test_a_far_start_has_its_last_layer_thirty_times_as_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_head, "STEPS", 0)
    usual, far = (bounded_head.trained(world, torch.sigmoid) for world in ("usual start", "far start"))
    torch.testing.assert_close(far.weights[-1], 30 * usual.weights[-1])
    assert torch.equal(far.weights[0], usual.weights[0])
    assert usual.weights[0].abs().max().item() == pytest.approx(32**-0.5, rel=0.01)


def test_a_dead_output_is_one_that_has_something_to_learn() -> None:
    networks = digits.draw_networks(bounded_head.SEEDS, bounded_head.SIZES, 1)
    for p in networks.weights:
        p.zero_()
    networks.biases[-1].fill_(-1.0)
    varies = int((digits.digits().train[:, 32:].std(0) > bounded_head.VARIES).sum())
    assert bounded_head._dead(networks).tolist() == [varies] * 10
    networks.weights[0][:, 0] = 1.0
    networks.weights[-1][:, 4, 0] = 0.1  # outside for some pictures, inside for others
    assert bounded_head._dead(networks).tolist() == [varies - 1] * 10
    networks.weights[-1].zero_()
    networks.biases[-1].fill_(0.5)
    assert bounded_head._dead(networks).tolist() == [0] * 10
