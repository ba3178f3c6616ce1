"""plot("leaky(0.01..1)"): a slider along the parameter of a rule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib import pyplot

import pseudograd as pg
from pseudograd.look.sliding import FRAMES


@pytest.fixture(autouse=True)
def _closed() -> Any:
    yield
    pyplot.close("all")


def _plot(*args: Any, **options: Any) -> Any:
    drawn = pg.plot(*args, **options)
    drawn.animation._draw_was_started = True  # else matplotlib warns of what nobody has looked at
    return drawn


def _far_out(axes: Any) -> list[float]:
    """What each line has at the right end."""
    lines = [line for line in axes.get_lines()[1:] if not line.get_label().startswith("_")]
    return [float(line.get_ydata()[-1]) for line in lines]


def test_each_frame_draws_the_rule_at_its_value() -> None:
    drawn = _plot("leaky(0.01..1)", -1, 1)
    limits = drawn.backward[0].get_ylim()
    for frame in (0, 12, FRAMES - 1):
        drawn.animation._func(frame)
        slope = float(f"{0.01 * 100 ** (frame / (FRAMES - 1)):.3g}")  # by a constant factor from frame to frame
        assert _far_out(drawn.backward[0]) == pytest.approx([slope, -slope])
        assert drawn.forward[0].get_title() == f"leaky(slope={slope:.3g})"
        assert drawn.backward[0].get_ylim() == limits
    assert limits[0] < -1 < 1 < limits[1]


def test_before_it_runs_it_stands_at_the_low_end() -> None:
    drawn = _plot("leaky(0.01..1)", -1, 1)
    assert _far_out(drawn.backward[0]) == pytest.approx([0.01, -0.01])
    assert drawn.forward[0].get_title() == "leaky(slope=0.01)"


def test_the_limits_hold_what_any_frame_draws() -> None:
    drawn = _plot("arctan(0.2..3)", op="sign")
    low, high = drawn.backward[0].get_ylim()
    assert low < -1 / 0.2 < 1 / 0.2 < high
    drawn.animation._func(FRAMES - 1)
    (line, _) = [line for line in drawn.backward[0].get_lines()[1:] if not line.get_label().startswith("_")]
    assert max(line.get_ydata()) == pytest.approx(1 / 3, rel=1e-3)


@pytest.mark.program
def test_other_rules_stay_and_the_legend_says_the_range() -> None:
    drawn = _plot(["zero", "leaky(slope=0.25..0.75)", torch.clamp], -1, 1, loss=torch.square)
    for frame, slope in ((0, 0.25), (FRAMES - 1, 0.75)):
        drawn.animation._func(frame)
        assert _far_out(drawn.backward[0])[1:] == pytest.approx([0.0, 2 * slope, 0.0])
        assert drawn.forward[0].get_title() == f"slope = {slope:g}"
    entries = [
        text.get_text()
        for axes in drawn.figure.axes
        for text in (axes.get_legend().get_texts() if axes.get_legend() else [])
    ]
    assert "dL/dx leaky(slope=0.25..0.75)" in entries


@pytest.mark.program
def test_it_saves_a_gif_and_a_page_with_a_slider(tmp_path: Path) -> None:
    drawn = _plot("leaky(0.01..1)")
    drawn.figure.set_dpi(30)
    drawn.animation._save_count = None
    drawn.animation._iter_gen = lambda: iter((0, 12, 24))
    drawn.animation.save(tmp_path / "leaky.gif", writer="pillow", dpi=30)
    assert (tmp_path / "leaky.gif").read_bytes()[:6] == b"GIF89a"
    assert pyplot.fignum_exists(drawn.figure.number)
    assert 'type="range"' in drawn._repr_html_()
    assert not pyplot.fignum_exists(drawn.figure.number), "a notebook shows it once"


def test_a_still_plot_is_left_to_the_notebook() -> None:
    assert pg.plot("leaky(0.5)")._repr_html_() is None


@pytest.mark.parametrize(
    ("what", "options", "text"),
    [
        (["leaky(0.1..1)", "elastic(0.1..1)"], {}, "plot: f_or_rules must have one range at most"),
        (["leaky_inward(0.1..1, 0.1..1)"], {}, "plot: f_or_rules must have one range at most"),
        ("leaky(1..0.1)", {}, "plot: f_or_rules must have ranges of two numbers"),
        ("leaky(0.1..1)", {"descend": 2.0}, r"plot: descend must be left out where leaky\(0.1..1\) slides"),
        ("leaki(0.1..1)", {}, "Did you mean 'leaky'"),
        ("leaky(-1..1)", {}, "slope must"),
    ],
)
def test_bad_calls(what: Any, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        pg.plot(what, **options)
