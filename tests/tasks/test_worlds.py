"""The worlds of the tasks: their problems, their networks and their pictures, against references that are written apart."""

import math
import re

import pytest
import torch
from torch.nn import functional

from pseudograd.comparison.variants import variants
from pseudograd_tasks import TASKS, attack, basin, canvas, digits, least_squares, quantized, retarget, splats
from pseudograd_tasks.base import Settings, descend, make_leaf
from pseudograd_tasks.photos import photo, psnr
from pseudograd_tasks.sentences import Section

from .running import run


def test_a_network_and_its_gradient_depend_on_its_seed_alone() -> None:
    several, alone = digits.draw_networks((3, 5), (64, 6, 10), 2), digits.draw_networks((5,), (64, 6, 10), 2)
    for ours, theirs in zip((*several.weights, *several.biases), (*alone.weights, *alone.biases), strict=True):
        assert torch.equal(ours[1:], theirs)
    assert torch.equal(several.batches[:, 1:], alone.batches)
    assert several.batches.shape == (2, 2, 128)
    images, indices = digits.digits(), several.batches[0]
    for parameter in several.parameters:
        parameter.requires_grad_()
    shown = digits.pictures(images.train, indices)
    assert torch.equal(shown, images.train[indices])
    digits.cross_entropy(digits.logits(shown, several), images.train_labels[indices]).backward()
    for index in (0, 1):
        own = [parameter.detach()[index].clone().requires_grad_() for parameter in several.parameters]
        (first, second), biases = own[:2], own[2:]
        hidden = functional.relu(functional.linear(shown[index], first, biases[0]))
        labels = images.train_labels[indices[index]]
        functional.cross_entropy(functional.linear(hidden, second, biases[1]), labels).backward()
        for ours, theirs in zip(several.parameters, own, strict=True):
            assert torch.allclose(ours.grad[index], theirs.grad, atol=1e-6)


def test_digits_are_sixteenths_and_the_rate_of_a_training_falls_to_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    images = digits.digits()
    assert (float(images.train.min()), float(images.train.max())) == (0, 1)
    assert torch.equal(images.train * 16, (images.train * 16).round())
    assert (len(images.train), len(images.test), len(images.test_labels)) == (1300, 497, 497)
    optimizers: list[torch.optim.Adam] = []
    make = torch.optim.Adam
    monkeypatch.setattr(
        torch.optim, "Adam", lambda *args, **named: optimizers.append(make(*args, **named)) or optimizers[0]
    )
    networks = digits.draw_networks((1,), (64, 10), 4)
    assert float(networks.weights[0].abs().max()) == pytest.approx((3 / 64) ** 0.5, rel=0.01)
    loss = lambda batch: networks.weights[0].sum() + networks.biases[0].sum()  # noqa: E731
    steps = digits.train(networks, 0.5, loss, falls=True)
    assert [(step, optimizers[0].param_groups[0]["lr"]) for step in steps] == [
        (0, 0.5),
        (1, 0.375),
        (2, 0.25),
        (3, 0.125),
    ]
    right = torch.tensor([[[0.0, 1.0], [2.0, 1.0]]])
    assert digits.accuracy(right, torch.tensor([1, 1])).tolist() == [0.5]


def test_a_line_of_starts_reaches_half_the_range_beyond_each_bound() -> None:
    starts = basin.starts(Settings(low=-1.0, high=2.0))
    assert (len(starts), float(starts[0])) == (400, -2.5)
    assert float(starts[-1]) == pytest.approx(3.5 - 6 / 400)


def test_a_tenth_of_the_range_is_twenty_decibels() -> None:
    target = torch.full((1, 3, 4, 4), 0.5)
    assert psnr(target + 0.1, target) == pytest.approx(20, abs=1e-4)
    assert psnr(torch.full_like(target, 3.0), torch.ones_like(target)) == math.inf


@pytest.mark.parametrize("quantiser", [quantized.TERNARY_WEIGHTS, quantized.FOUR_BITS_EACH], ids=["ternary", "4 bits"])
def test_weights_and_activations_are_quantised(quantiser: quantized.Quantiser) -> None:
    networks = digits.draw_networks((1,), (64, 5, 10), 1)
    h = x = digits.digits().test[:7]
    for number, (w,) in enumerate(networks.weights):
        if quantiser is quantized.TERNARY_WEIGHTS:
            scale = w.abs().mean()
            codes = (w / scale).round().clamp(-1, 1)
        else:
            scale = w.abs().amax(1, keepdim=True) / 7
            codes = (w / scale).round().clamp(-8, 7)
        if number:
            h = functional.relu(h)
            if quantiser.has_activations:
                h = (h * 7.5).round().clamp(0, 15) / 7.5
        h = h @ (codes * scale).T
    assert torch.allclose(quantized.logits(x[None], networks, quantiser, torch.clamp)[0], h, atol=1e-5)


def test_a_silent_weight_has_a_gradient_of_exactly_zero() -> None:
    networks = digits.draw_networks((0, 1), (4, 3, 2), 1)
    for weight in networks.weights:
        weight.grad = torch.ones_like(weight)
    networks.weights[0].grad[0, 0, :3] = 0.0
    networks.weights[1].grad[0, 1] = -0.0
    assert quantized._silent_share(networks).tolist() == [6 / 18, 0.0]


@pytest.mark.parametrize(
    ("name", "last"), [("no clamp", [-0.5, 4.0]), ("project", [0.0, 1.0]), ("zero/closed", [-0.5, 3.0])]
)
def test_a_descent_steps_by_the_gradient_of_the_loss(name: str, last: list[float]) -> None:
    """Of y from 0.5 and of -y from 3, with a rate of 1/2: the clamp passes nothing at 3."""
    (variant,) = (variant for variant in variants(has_leaves=True) if variant.name == name)
    x = make_leaf(variant, torch.tensor([0.5, 3.0]))
    steps = descend(variant, x, torch.optim.SGD([x], 0.5), 2, lambda y: (torch.tensor([1.0, -1.0]) * y).sum())
    assert [at.tolist() for at in steps][-1] == last


@pytest.mark.parametrize("name", ["no clamp", "project"])
def test_an_attack_ascends_within_its_bounds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (variant,) = (variant for variant in variants(has_leaves=True) if variant.name == name)
    networks, x = digits.draw_networks(attack.SEEDS, attack.SIZES, 1), digits.digits().test
    monkeypatch.setattr(attack, "classifiers", lambda: networks)
    monkeypatch.setattr(attack, "STEPS", 3)
    labels, change = digits.digits().test_labels.expand(10, -1), attack.start(attack.FROM_CHANCE).clone()
    assert 0.199 < float(change.abs().max()) <= 0.2
    for _ in range(4):
        change = ((x + change).clamp(0, 1) - x if name == "project" else change).requires_grad_()
        attacked = (x + change).detach().clamp(0, 1)
        digits.cross_entropy(digits.logits(x + change, networks), labels).backward()
        change = (change.detach() + 0.05 * change.grad.sign()).clamp(-0.2, 0.2)
    assert torch.equal(attack.attacked(attack.FROM_CHANCE, variant), attacked)


def test_a_start_of_basin_is_held_beside_the_upper_bound_and_reaches_the_minimum_to_a_hundredth() -> None:
    settings = Settings(-1.0, 1.0, torch.square, "square")
    ends = torch.tensor([0.0099, -0.0101, 0.81, 0.79])
    positions = torch.stack([torch.tensor([-3.0, 0.0, 0.0, 0.0]), ends])
    numbers = basin._numbers(positions, ends[None], torch.square, settings)
    assert numbers == {"reached": 1, "stray": 3, "chatter": pytest.approx(0.81**2 - 1)}
    assert basin._numbers(positions[:, :2], ends[None, :2], torch.square, settings)["chatter"] == 0


# The numbers of the opening sentences.
NUMBERS = {
    "retarget": "200 84% 100", "retarget_srgb": "200 84% 100", "canvas": "200 4 85%", "basin": "400 400 0.01 0.00 0.50",
    "least_squares": "60 40 0 1 60 20 10 100 1000 66% 85% 500 1 20 0.001 20", "attack": "10 97.0% 0.2 20 49% 9% 10",
    "ternary": "64 48 32 10 400 0.003 90.0% 75% 10", "four_bits": "64 48 32 10 400 0.003 90.0% 2 10",
    "splats": "200 150 0.02 0.5 2 54% 80% 10",
}  # fmt: skip


def test_the_setting_of_a_task_has_its_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attack, "right", lambda pictures: torch.tensor([0.96, 0.98]))
    monkeypatch.setattr(quantized, "unquantised", lambda: 0.9)
    texts = {name: Section(task, task.context(Settings()), {}, {}).setting for name, task in TASKS.items()}
    assert {
        name: " ".join(re.findall(r"(?<!w / )\b\d[\d.]*(?<!\.)%?", text)) for name, text in texts.items()
    } == NUMBERS


@pytest.mark.program
def test_ascent_needs_maximize() -> None:
    without = run(attack.ATTACK, attack.NO_MAXIMIZE, "inward")
    assert without.numbers["right"] > 0.08
    assert without == run(attack.ATTACK, attack.NO_MAXIMIZE, "zero/closed")
    identity = (run(attack.ATTACK, world, "identity") for world in (attack.NO_MAXIMIZE, attack.FROM_CHANCE))
    assert next(identity) == next(identity)


def test_the_answers_are_minima_of_the_box() -> None:
    """The gradient vanishes inside, and at a bound points out of the box: the conditions of Karush, Kuhn and Tucker."""
    box = least_squares.problems()
    best = box.best
    residual = torch.stack([a @ c - b for a, c, b in zip(box.matrix, best, box.observed, strict=True)])
    grad = torch.stack([a.T @ r for a, r in zip(box.matrix, residual, strict=True)])
    assert ((best >= -1e-9) & (best <= 1 + 1e-9)).all()
    at_low, at_high = best < 1e-9, best > 1 - 1e-9
    assert grad[~at_low & ~at_high].abs().max() < 1e-8
    assert (grad[at_low] >= -1e-8).all()
    assert (grad[at_high] <= 1e-8).all()
    assert 0.5 < float((at_low | at_high).double().mean()) < 0.8


def test_the_problems_have_their_condition_numbers_and_gaps() -> None:
    box = least_squares.problems()
    sizes = torch.linalg.svdvals(box.matrix)
    conditions = torch.tensor([10.0, 100.0, 1000.0], dtype=torch.float64).repeat_interleave(20)
    assert torch.allclose(sizes[:, 0], torch.ones(60, dtype=torch.float64))
    assert torch.allclose((sizes[:, 0] / sizes[:, -1]) ** 2, conditions)
    assert torch.equal(box.gap(box.best), torch.zeros(60, dtype=torch.float64))
    assert torch.allclose(box.gap(torch.full_like(box.best, 0.5)), torch.ones(60, dtype=torch.float64))
    largest = float(sizes.max()) ** 2
    assert pytest.approx(1 / largest) == least_squares.RATE, "no step is too long: only a rule can hold descent up"


def test_a_problem_arrives_at_its_first_small_gap() -> None:
    gap = torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0], [1.0, 1.0, 1.0]])
    assert least_squares.arrivals(gap).tolist() == [2, 3, 1]


def test_a_blur_is_symmetric_and_keeps_what_is_even() -> None:
    for size in (canvas.HEIGHT, canvas.WIDTH):
        blurring = canvas._make_blur_matrix(size)
        assert blurring.shape == (size, size)
        torch.testing.assert_close(blurring.flip(0, 1), blurring)
        torch.testing.assert_close(blurring.sum(1), torch.ones(size))


def test_spots_are_gaussians() -> None:
    """Three pixels of one seed, summed over the spots one by one."""
    places, sizes, colours = splats.start("soft start")
    shown = splats.paint(places, sizes, colours)
    assert shown.shape == (len(splats.SEEDS), 3, splats.HEIGHT, splats.WIDTH)
    for colour, row, column in ((0, 0, 0), (1, 20, 33), (2, 47, 71)):
        down, across = row / (splats.HEIGHT - 1), column / (splats.WIDTH - 1) * splats.WIDTH / splats.HEIGHT
        expected = 0.0
        for place, size, value in zip(places[3].tolist(), sizes[3].exp().tolist(), colours[3].tolist(), strict=True):
            squared = (down - place[0]) ** 2 + (across - place[1]) ** 2
            expected += value[colour] * math.exp(-squared / (2 * size[0] ** 2))
        assert float(shown[3, colour, row, column]) == pytest.approx(expected, abs=1e-4)


def test_a_spot_ends_before_its_denormal_tail() -> None:
    """Denormal numbers took five times as long as all the rest. Their cut leaves no NaN in the gradient."""
    places, sizes, colours = (part.clone().requires_grad_() for part in splats.start("soft start"))
    bell = splats._bell(places[..., :1], sizes, torch.linspace(0, 1, splats.HEIGHT)).detach()
    assert (bell == 0).any()
    assert float(bell[bell > 0].min()) > 1e-14
    splats.paint(places, sizes, colours).sum().backward()
    assert all(part.grad.isfinite().all() for part in (places, sizes, colours))


def test_first_pictures_are_pictures_and_the_start_is_that_of_the_first_seed() -> None:
    for task in TASKS.values():
        for picture in task.figure.first.values() if task.figure else ():
            shape = picture(task.worlds(Settings())[0]).shape
            assert len(shape) == 2 or (len(shape) == 3 and shape[0] == 3), task.name
    for world in splats.COLOURS:
        alone = splats.paint(*(part[:1] for part in splats.start(world)))[0]
        torch.testing.assert_close(splats.SPLATS.figure.first["the start"](world), alone.clamp(0, 1))
    for world in (retarget.PLAIN, retarget.SRGB):
        assert psnr(retarget.display(world, retarget.start(world)), photo("china")) > 120


def test_the_largest_value_is_measured_before_the_way_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three steps away and three back, with identity; the three away once more here, in plain torch."""
    monkeypatch.setattr(retarget, "AWAY_STEPS", 3)
    monkeypatch.setattr(retarget, "BACK_STEPS", 3)
    largest = run(retarget.RETARGET, retarget.PLAIN, "identity").numbers["largest"]
    spectrum = retarget._to_spectrum(photo("china")).requires_grad_()
    optimizer = torch.optim.Adam([spectrum], retarget.RATE)
    for _ in range(3):
        x = retarget._to_picture(spectrum)
        shown = x + (x.clamp(0, 1) - x).detach()
        optimizer.zero_grad()
        (0.5 * (shown - retarget.out_of_gamut()).square().sum()).backward()
        optimizer.step()
    assert largest == pytest.approx(float(retarget._to_picture(spectrum).detach().abs().max()), rel=1e-5)
