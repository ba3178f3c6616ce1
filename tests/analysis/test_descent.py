"""plot(..., descend=x0): the points are those of gradient descent, and the animation is a file that others can show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib import pyplot

import pseudograd as pg


@pytest.fixture(autouse=True)
def _closed() -> Any:
    yield
    pyplot.close("all")


def _loss(y: torch.Tensor) -> torch.Tensor:
    return (y - 0.25).square()


def _plot(*args: Any, **options: Any) -> Any:
    drawn = pg.plot(*args, **options)
    drawn.animation._draw_was_started = True  # else matplotlib warns of what nobody has looked at
    return drawn


def _shown(axes: Any) -> list[tuple[list[float], list[float]]]:
    lines = [line for line in axes.get_lines() if line.get_label() == "_descending"]
    return [(list(line.get_xdata()), list(line.get_ydata())) for line in lines]


def _by_hand(x: float, rate: float, steps: int) -> float:
    """Of a clamp to -1 and 1 with inward, written apart: the target lies inside, so outside all leads back and passes."""
    for _ in range(steps):
        y = min(max(x, -1.0), 1.0)
        x -= rate * 2 * (y - 0.25)
    return x


def test_the_points_are_those_of_descent_with_each_rule() -> None:
    drawn = _plot(["zero", "inward"], -1, 1, loss=_loss, descend=[1.5, -1.2])
    update = drawn.animation._func
    update(0)
    assert [x for x, _ in _shown(drawn.forward[0])] == [[1.5, -1.2]] * 2
    rate = 0.03 * 4.0 / (2 * 1.25)  # the picture is -2 to 2; the steepest slope of the loss is at y = -1
    for step in (1, 7, 80):
        update(step)
        (zero, zero_y), (inward, inward_y) = _shown(drawn.forward[0])
        assert zero == [1.5, -1.2]
        assert inward == pytest.approx([_by_hand(x, rate, step) for x in (1.5, -1.2)])
        assert zero_y == pytest.approx([0.75**2, 1.25**2])
        assert inward_y == pytest.approx([(min(max(x, -1), 1) - 0.25) ** 2 for x in inward])


@pytest.mark.parametrize("side", [1.0, -1.0])
def test_where_the_loss_is_infinitely_steep_the_rest_of_it_sets_the_rate(side: float) -> None:
    """0.1 * sqrt(1 + y) at y = -1, and its mirror image at 1, whose slope falls to minus infinity."""
    drawn = _plot("inward", -1, 1, loss=lambda y: 0.1 * (1 + side * y).sqrt(), descend=[0.0])
    drawn.animation._func(1)
    (((x,), _),) = _shown(drawn.forward[0])
    rate = (
        0.03 * 4.0 / (0.05 / 0.02**0.5)
    )  # the steepest finite slope is one point of the grid of 0.02 away from the bound
    assert x == pytest.approx(-side * rate * 0.05)


def test_without_a_loss_it_goes_down_y_times_the_first_grad() -> None:
    for grad, direction in (((1.0, -1.0), -1), ((-1.0, 1.0), 1)):
        drawn = _plot("identity", -1, 1, grad=grad, descend=0.0)
        drawn.animation._func(3)
        ((x, y),) = _shown(drawn.forward[0])
        assert x == pytest.approx([direction * 3 * 0.03 * 4.0])
        assert y == x


def test_each_column_has_its_own_points() -> None:
    drawn = _plot(["zero", "inward", "leaky"], panels="rules", loss=_loss, descend=1.4)
    drawn.animation._func(1)
    assert [len(_shown(axes)) for axes in drawn.forward] == [1, 1, 1]


@pytest.mark.program
def test_it_saves_a_gif_and_a_page(tmp_path: Path) -> None:
    drawn = _plot("inward", loss=_loss, descend=1.4)
    drawn.figure.set_dpi(30)
    drawn.animation._save_count = None
    drawn.animation._iter_gen = lambda: iter((0, 40, 80))
    drawn.animation.save(tmp_path / "descent.gif", writer="pillow", dpi=30)
    assert (tmp_path / "descent.gif").read_bytes()[:6] == b"GIF89a"
    assert "<img" in drawn.animation.to_jshtml()


def test_none_is_animated_unless_asked() -> None:
    assert pg.plot("inward").animation is None


@pytest.mark.parametrize("descend", ["1", [], [1.0, float("nan")], torch.tensor([1.0, 2.0]), [None]])
def test_what_is_no_number_is_told(descend: Any) -> None:
    with pytest.raises(TypeError, match="plot: descend must be a finite number, a list of them, or None"):
        pg.plot("inward", descend=descend)
