"""The networks for digits: one for each seed, as if each were alone; and what the four tasks that use them measure."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from pseudograd.comparison.variants import INSTALLED, eras
from pseudograd.torch_table.eras import ERAS as RECORDS
from pseudograd.torch_table.eras import installed_era
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


@pytest.mark.slow
@pytest.mark.parametrize("task", [TERNARY, FOUR_BITS], ids=lambda task: task.name)
def test_the_era_of_the_installed_torch_is_bit_equal_to_it(task: object) -> None:
    era = RECORDS[installed_era()].rule
    assert run(task, quantized.WORLD, era) == run(task, quantized.WORLD, INSTALLED)  # type: ignore[arg-type]


# Accuracies of ten seeds, the same on every torch.
ACCURACY = {
    "ternary": {"inward": 0.925, "identity": 0.939, "no clamp": 0.836},
    "four_bits": {"zero/closed": 0.965, "zero/open": 0.966, "sign": 0.903, "leaky": 0.966, "inverting": 0.864},
}


@pytest.mark.slow
@pytest.mark.parametrize(("task", "name"), [(task, name) for task, rows in ACCURACY.items() for name in rows])
def test_explicit_rules_give_the_same_on_every_torch(task: str, name: str) -> None:
    record = {"ternary": TERNARY, "four_bits": FOUR_BITS}[task]
    assert headline(record, quantized.WORLD, name) == pytest.approx(ACCURACY[task][name], abs=0.01)


# --- attack -----------------------------------------------------------------------------------------------------------


@pytest.mark.program
def test_attack_stays_within_its_bounds() -> None:
    x = digits.digits().test
    for name in ("inward", "project", "no clamp"):
        variant = next(one for one in attack_variants() if one.name == name)
        shown = attack.attacked(FROM_CHANCE, variant)
        assert ((shown >= 0) & (shown <= 1)).all()
        assert (shown - x).abs().max() <= attack.LARGEST + 1e-6


def attack_variants() -> list[object]:
    from pseudograd.comparison.variants import variants

    return variants(has_leaves=True)  # type: ignore[return-value]


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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world", "dead", "error"), [("usual start", 3.2, (0.0428, 0.0389)), ("far start", 10.5, (0.1000, 0.0547))]
)
def test_outputs_die_with_torch_clamp(world: str, dead: float, error: tuple[float, float]) -> None:
    closed, inward = (run(BOUNDED_HEAD, world, name) for name in ("zero/closed", "inward"))
    assert inward.numbers["dead"] == 0
    assert closed.numbers["dead"] == pytest.approx(dead, abs=1)
    assert closed.numbers["error"] == pytest.approx(error[0], rel=0.05)
    assert inward.numbers["error"] == pytest.approx(error[1], rel=0.02)


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
