"""Spots and digits from words: what is painted, and who paints it."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch

from pseudograd_tasks import TASKS, retarget, splats, text_to_digit
from pseudograd_tasks.base import Settings
from pseudograd_tasks.photos import photo
from pseudograd_tasks.splats import SPLATS
from pseudograd_tasks.text_to_digit import PLAIN, STRONG, TEXT_TO_DIGIT, WITHOUT

from .running import headline, run


def test_spots_are_gaussians() -> None:
    """Three pixels of one seed, summed over the spots one by one."""
    places, sizes, colours = splats.start("soft start")
    shown = splats.painted(places, sizes, colours)
    assert shown.shape == (len(splats.SEEDS), 3, splats.HEIGHT, splats.WIDTH)
    for colour, row, column in ((0, 0, 0), (1, 20, 33), (2, 47, 71)):
        down, across = row / (splats.HEIGHT - 1), column / (splats.WIDTH - 1) * splats.WIDTH / splats.HEIGHT
        expected = 0.0
        for place, size, value in zip(places[3].tolist(), sizes[3].exp().tolist(), colours[3].tolist(), strict=True):
            squared = (down - place[0]) ** 2 + (across - place[1]) ** 2
            expected += value[colour] * math.exp(-squared / (2 * size[0] ** 2))
        assert float(shown[3, colour, row, column]) == pytest.approx(expected, abs=1e-4)


def test_what_is_left_of_a_spot_far_away_is_nothing() -> None:
    """Denormal numbers there took five times as long as all the rest; so none may come back, nor a NaN gradient with their going."""
    places, sizes, colours = (part.clone().requires_grad_() for part in splats.start("soft start"))
    bell = splats._bell(places[..., :1], sizes, torch.linspace(0, 1, splats.HEIGHT)).detach()
    assert (bell == 0).any()
    assert float(bell[bell > 0].min()) > 1e-14
    splats.painted(places, sizes, colours).sum().backward()
    assert all(part.grad.isfinite().all() for part in (places, sizes, colours))


@pytest.mark.program
def test_a_rule_that_lets_gradients_pass_paints_better(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splats, "STEPS", 40)
    closed, inward = (run(SPLATS, "soft start", name) for name in ("zero/closed", "inward"))
    assert all(ours > theirs + 0.5 for ours, theirs in zip(inward.seeds, closed.seeds, strict=True))
    assert inward.arrays["picture"].shape == (3, splats.HEIGHT, splats.WIDTH)


def test_the_start_that_is_shown_is_that_of_the_picture_s_seed() -> None:
    """The first one, painted alone."""
    assert SPLATS.figure is not None
    for world in splats.COLOURS:
        alone = splats.painted(*(part[:1] for part in splats.start(world)))[0]
        torch.testing.assert_close(SPLATS.figure.first["the start"](world), alone.clamp(0, 1))


PICTURES = [name for name, task in TASKS.items() if task.figure is not None and task.figure.first]


@pytest.mark.parametrize("name", PICTURES)
def test_what_a_gallery_shows_first_are_pictures(name: str) -> None:
    task = TASKS[name]
    assert task.figure is not None
    for picture in task.figure.first.values():
        shape = picture(task.worlds(Settings())[0]).shape
        assert len(shape) == 2 or (len(shape) == 3 and shape[0] == 3)


def test_how_far_values_ran_out_is_measured_before_the_way_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three steps away and three back, with identity; the three away once more here, in plain torch."""
    monkeypatch.setattr(retarget, "AWAY_STEPS", 3)
    monkeypatch.setattr(retarget, "BACK_STEPS", 3)
    found = run(retarget.RETARGET, retarget.PLAIN, "identity").numbers["largest"]
    spectrum = retarget._to_spectrum(photo("china")).requires_grad_()
    optimizer = torch.optim.Adam([spectrum], retarget.RATE)
    for _ in range(3):
        x = retarget._to_picture(spectrum)
        shown = x + (x.clamp(0, 1) - x).detach()
        optimizer.zero_grad()
        (0.5 * (shown - retarget.out_of_gamut()).square().sum()).backward()
        optimizer.step()
    assert found == pytest.approx(float(retarget._to_picture(spectrum).detach().abs().max()), rel=1e-5)


# --- a digit from a word ----------------------------------------------------------------------------------------------


def test_the_nearest_code_is_the_nearest() -> None:
    generator = torch.Generator().manual_seed(0)
    z, codes = torch.randn(5, 4, 16, generator=generator), torch.randn(128, 16, generator=generator)
    found = text_to_digit.nearest(z, codes)
    for picture in range(5):
        for place in range(4):
            distances = [math.dist(z[picture, place].tolist(), code) for code in codes.tolist()]
            assert found[picture, place] == min(range(128), key=distances.__getitem__)


def test_a_view_is_the_picture_moved_by_a_pixel_at_most() -> None:
    pictures = torch.zeros(64, 64)
    pictures[:, 4 * 8 + 3] = 1.0
    seen = text_to_digit.jitter(pictures, torch.Generator().manual_seed(0)).view(64, 8, 8)
    rows, columns = (seen == seen.amax((1, 2), keepdim=True)).nonzero()[:, 1:].T
    assert set(rows.tolist()) == {3, 4, 5}
    assert set(columns.tolist()) == {2, 3, 4}
    assert float((seen - pictures.view(64, 8, 8)).abs().mean()) < 0.2


def test_a_sheet_shows_a_column_for_each_word() -> None:
    pictures = torch.arange(10.0).repeat(10)[:, None].expand(100, 64) / 10
    sheet = text_to_digit.sheet(pictures)
    assert sheet.shape == (3, 70, 100)
    for word in range(10):
        assert torch.equal(sheet[:, 11:19, word * 10 + 1 : word * 10 + 9].unique(), torch.tensor([word / 10]))
    assert (sheet[:, 0] == 0.5).all()


def test_codes_that_nothing_is_near_to_start_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or they would stay where they were drawn: nothing else moves them."""
    monkeypatch.setattr(text_to_digit, "GENERATOR_STEPS", 222)
    codes, _ = text_to_digit._generator(torch.Generator().manual_seed(0))
    drawn = torch.randn(codes.shape, generator=torch.Generator().manual_seed(0)) * 0.3
    assert not (codes == drawn).all(1).any()


@pytest.fixture
def quickly_built(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A third of the training, and the whole afterwards for whoever asks."""
    for name, steps in (("GENERATOR_STEPS", 300), ("SCORER_STEPS", 250), ("STEPS", 100)):
        monkeypatch.setattr(text_to_digit, name, steps)
    text_to_digit.built.cache_clear()
    yield
    text_to_digit.built.cache_clear()


@pytest.mark.program
@pytest.mark.usefixtures("quickly_built")
def test_replace_grad_makes_the_picture() -> None:
    before = torch.get_rng_state()
    with_it, without = (headline(TEXT_TO_DIGIT, world, "inward") for world in (PLAIN, WITHOUT))
    assert torch.equal(torch.get_rng_state(), before)
    assert with_it > 0.5
    assert without < 0.3


@pytest.mark.slow
def test_digits_are_what_was_asked_for_with_replace_grad_alone() -> None:
    assert text_to_digit.built().judge_right > 0.96
    for name in ("inward", "zero/closed", "zero/open"):
        assert headline(TEXT_TO_DIGIT, PLAIN, name) >= 0.80
        assert headline(TEXT_TO_DIGIT, STRONG, name) >= 0.75
        assert headline(TEXT_TO_DIGIT, WITHOUT, name) <= 0.20
    assert headline(TEXT_TO_DIGIT, STRONG, "sign") <= 0.5
