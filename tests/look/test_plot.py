"""plot: the numbers that are drawn, where they are drawn, and that all of it is on the canvas."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import pseudograd as pg
from pseudograd.rule import OPS

from ..choices import slow_but

pytest.importorskip("matplotlib")
UP, DOWN = "dL/dx where dL/dy = +1", "dL/dx where dL/dy = −1"


@pytest.fixture
def ax() -> Iterator[Any]:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots()
    yield axes
    pyplot.close(figure)


@pytest.fixture
def close() -> Iterator[None]:
    from matplotlib import pyplot

    yield
    pyplot.close("all")


def _lines(ax: Any) -> dict[str, Any]:
    """The curves by their label: not the zero line, the dots and the rings."""
    return {line.get_label(): line for line in ax.lines if not line.get_label().startswith("_")}


def _points(line: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Without the gaps at jumps."""
    x, y = (torch.as_tensor(data) for data in line.get_data())
    keep = ~x.isnan()
    return x[keep], y[keep]


def _marks(ax: Any, label: str) -> list[tuple[list[float], list[float]]]:
    return [
        tuple(torch.as_tensor(d).tolist() for d in line.get_data()) for line in ax.lines if line.get_label() == label
    ]  # type: ignore[misc]


def _dots(ax: Any) -> list[tuple[list[float], list[float]]]:
    return _marks(ax, "_exactly")


def _rings(ax: Any) -> list[tuple[list[float], list[float]]]:
    return _marks(ax, "_beside")


def _legend(figure: Any) -> list[str]:
    (legend,) = [axes.get_legend() for axes in figure.axes if axes.get_legend()]
    return [text.get_text() for text in legend.get_texts()]


# --- one curve --------------------------------------------------------------------------------------------------------


def test_one_rule_is_its_forward_above_both_signs_of_grad(ax: Any) -> None:
    drawn = pg.plot("inward", -1, 1, ax=ax)
    (forward,), (backward,) = drawn.forward, drawn.backward
    assert forward is ax
    assert drawn.figure is ax.figure
    assert forward.get_position().y0 >= backward.get_position().y1
    (name,) = _lines(forward)
    assert name == "y = clamp(x, -1, 1)"
    x, y = _points(_lines(forward)[name])
    assert torch.equal(y, torch.where(x < -1, -1.0, torch.where(x > 1, 1.0, x)))
    assert list(_lines(backward)) == [UP, DOWN]
    x, up = _points(_lines(backward)[UP])
    assert torch.equal(up, (x > -1).double())
    x, down = _points(_lines(backward)[DOWN])
    assert torch.equal(down, -(x < 1).double())


def test_x_runs_over_the_range_and_half_of_it_on_both_sides(ax: Any) -> None:
    drawn = pg.plot("zero", 0, 4, ax=ax)
    x, _ = _points(_lines(ax)["y = clamp(x, 0, 4)"])
    assert (x.min().item(), x.max().item()) == (-2, 6)
    assert not ((x == 0) | (x == 4)).any()  # the bounds are dots, because the gradient may jump there
    assert drawn.forward[0].get_xlim() == drawn.backward[0].get_xlim() == (-2, 6)


def test_xlim_is_what_is_drawn(ax: Any) -> None:
    drawn = pg.plot("zero", -1, 1, xlim=(-0.5, 7), ax=ax)
    x, y = _points(_lines(drawn.backward[0])[UP])
    assert (x.min().item(), x.max().item()) == (-0.5, 7)
    assert torch.equal(y, (x <= 1).double())
    assert _dots(drawn.backward[0])[0] == ([1], [1])  # -1 is outside
    assert drawn.backward[0].get_xlim() == (-0.5, 7)


@pytest.mark.parametrize(("edge", "share"), [("closed", 1), ("open", 0), ("half", 0.5)])
@pytest.mark.parametrize("how", ["in the name", "as an argument"])
def test_dots_are_the_values_at_the_bounds_and_rings_those_beside_them(
    ax: Any, edge: str, share: float, how: str
) -> None:
    drawn = pg.plot(f"zero/{edge}", ax=ax) if how == "in the name" else pg.plot("zero", edge=edge, ax=ax)
    (backward,) = drawn.backward
    assert _dots(backward) == [([-1, 1], [share, share]), ([-1, 1], [-share, -share])]
    missed = sorted({0.0, 1.0} - {share})
    for sign, (x, y) in zip((1, -1), _rings(backward), strict=True):
        at = {bound: sorted(sign * value for a, value in zip(x, y, strict=True) if a == bound) for bound in (-1, 1)}
        assert at == {-1: missed, 1: missed}
    assert ax.get_title() == f"zero/{edge}"
    assert _dots(ax) == _rings(ax) == []  # y is continuous


def test_dots_are_full_and_rings_are_empty(ax: Any) -> None:
    (backward,) = pg.plot("zero", ax=ax).backward
    look = {line.get_label(): line for line in backward.lines}
    assert look["_exactly"].get_markerfacecolor() == look["_exactly"].get_color()
    assert look["_beside"].get_markerfacecolor() == "white"
    assert _legend(ax.figure)[-2:] == ["value at a bound", "value just beside it"]


def test_a_rule_that_names_its_edge_keeps_it_and_one_without_edge_says_none(ax: Any) -> None:
    drawn = pg.plot(["zero/half", "zero", "identity"], edge="open", panels="rules", ax=ax)
    assert [panel.get_title() for panel in drawn.forward] == ["zero/half", "zero/open", "identity"]
    assert [_dots(panel)[0][1] for panel in drawn.backward] == [[0.5, 0.5], [0, 0], [1, 1]]


def test_maximize_draws_the_rule_of_ascent(ax: Any) -> None:
    (backward,) = pg.plot("inward", maximize=True, ax=ax).backward
    x, up = _points(_lines(backward)[UP])
    assert torch.equal(up, (x < 1).double())  # an ascent step along +1 leads back from below only
    x, down = _points(_lines(backward)[DOWN])
    assert torch.equal(down, -(x > -1).double())


def test_parameters_of_a_rule_as_text_and_as_an_object(ax: Any) -> None:
    drawn = pg.plot(["leaky(0.25)", pg.rules.leaky(0.25), "leaky(0.25)/open"], panels="rules", ax=ax)
    assert [panel.get_title() for panel in drawn.forward] == ["leaky(0.25)", "leaky(slope=0.25)", "leaky(0.25)/open"]
    for panel, at_bound in zip(drawn.backward, (1, 1, 0), strict=True):
        x, y = _points(_lines(panel)[UP])
        assert set(y[x < -1].tolist()) == {0.25}
        assert _dots(panel)[0][1] == [at_bound, at_bound]


@pytest.mark.parametrize(
    ("bounds", "dots", "text"),
    [((None, 1), [1], "x, max=1"), ((0, None), [0], "x, min=0"), ((2, 2), [2], "x, 2, 2")],
    ids=str,
)
def test_one_bound_or_one_point(ax: Any, bounds: tuple[Any, Any], dots: list[float], text: str) -> None:
    (backward,) = pg.plot("zero", *bounds, grad=(1.0,), ax=ax).backward
    assert _dots(backward) == [(dots, [1.0] * len(dots))]
    x, y = _points(_lines(ax)[f"y = clamp({text})"])
    assert torch.allclose(y, x.clamp(*bounds))
    assert (x.min().item(), x.max().item()) == (dots[0] - 1, dots[0] + 1)


def test_the_range_is_shaded_in_both_panels(ax: Any) -> None:
    drawn = pg.plot("zero", min=0.5, ax=ax)
    for panel in (*drawn.forward, *drawn.backward):
        (shade,) = panel.patches
        assert (shade.get_x(), shade.get_x() + shade.get_width()) == (0.5, panel.get_xlim()[1])


# --- functions --------------------------------------------------------------------------------------------------------


def test_a_function_of_the_bounds(ax: Any) -> None:
    (backward,) = pg.plot(pg.familiar.ClampWithGrad.apply, -1, 1, grad=(1.0,), ax=ax).backward
    x, slope = _points(_lines(backward)[UP])
    assert torch.equal(slope, (x > -1).double())
    assert list(_lines(ax)) == ["y = clamp_with_grad(x, -1, 1)"]


def test_values_that_are_not_finite_leave_the_rest_visible(ax: Any) -> None:
    drawn = pg.plot(torch.log, xlim=(-1, 4), ax=ax)
    x, y = _points(_lines(ax)["y = log(x)"])
    assert torch.equal(y[x > 0], torch.log(x[x > 0]))
    assert y[x <= 0].isnan().all()
    assert torch.tensor(drawn.forward[0].get_ylim()).isfinite().all()


def test_functions_with_different_values_have_a_forward_each(ax: Any) -> None:
    drawn = pg.plot([torch.tanh, torch.sigmoid], grad=(2.0,), ax=ax)
    assert list(_lines(ax)) == ["tanh", "sigmoid"]
    x, y = _points(_lines(ax)["sigmoid"])
    assert torch.equal(y, torch.sigmoid(x))
    x, slope = _points(_lines(drawn.backward[0])["sigmoid"])
    assert torch.allclose(slope, 2 * torch.sigmoid(x) * (1 - torch.sigmoid(x)))
    assert len({line.get_linestyle() for line in _lines(ax).values()}) == 2


def test_a_loss_of_functions_with_different_values_has_a_panel_of_its_own(ax: Any) -> None:
    drawn = pg.plot([torch.tanh, torch.sigmoid], loss=torch.square, ax=ax)
    assert [panel.get_ylabel() for panel in drawn.forward] == ["y", "loss"]
    x, y = _points(_lines(drawn.forward[1])["tanh"])
    assert torch.equal(y, torch.tanh(x) ** 2)
    assert list(_lines(drawn.backward[0])) == ["dL/dx tanh", "dL/dx sigmoid"]
    x, y = _points(_lines(drawn.backward[0])["dL/dx tanh"])
    assert torch.allclose(y, 2 * torch.tanh(x) * (1 - torch.tanh(x) ** 2))


# --- several curves ---------------------------------------------------------------------------------------------------


def test_several_rules_share_one_forward_and_have_a_panel_for_each_sign(ax: Any) -> None:
    names = ["zero", "inward", "leaky(slope=0.25)", "sign"]
    drawn = pg.plot(["zero", "inward", pg.rules.leaky(0.25), "sign"], ax=ax)
    assert list(_lines(ax)) == ["y = clamp(x, -1, 1)"]
    assert [panel.get_ylabel() for panel in drawn.backward] == ["dL/dx where\ndL/dy = +1", "dL/dx where\ndL/dy = −1"]
    for sign, panel in zip((1, -1), drawn.backward, strict=True):
        lines = _lines(panel)
        assert list(lines) == names
        outside = {
            "zero": (0, 0),
            "inward": (0, 1) if sign > 0 else (-1, 0),
            "leaky(slope=0.25)": (0.25 * sign, 0.25 * sign),
            "sign": (-1, 1),
        }
        for name, sides in outside.items():
            x, y = _points(lines[name])
            expected = torch.where(x < -1, sides[0], torch.where(x > 1, sides[1], sign)).double()
            assert torch.equal(y, expected), (name, sign)
        assert panel.get_ylim() == pytest.approx((-1.2, 1.2))  # all of it, and a tenth more at each end
    assert drawn.forward[0].get_ylim() == pytest.approx((-1.2, 1.2))


def test_coincident_lines_stay_visible_and_are_told_apart_without_colour(ax: Any) -> None:
    drawn = pg.plot(["zero", "inward", "leaky", "sign"], ax=ax)
    for panel in drawn.backward:
        lines = list(_lines(panel).values())
        widths = [line.get_linewidth() for line in lines]
        assert widths == sorted(set(widths), reverse=True)
        assert len({str(line._unscaled_dash_pattern) for line in lines}) == 4
        assert len({line.get_color() for line in lines}) == 4


def test_a_column_for_each_rule(ax: Any) -> None:
    drawn = pg.plot(["zero", "sign"], panels="rules", ax=ax)
    assert len(drawn.forward) == len(drawn.backward) == 2
    assert [panel.get_title() for panel in drawn.forward] == ["zero", "sign"]
    for column, (above, below) in enumerate(zip(drawn.forward, drawn.backward, strict=True)):
        assert above.get_subplotspec().colspan == below.get_subplotspec().colspan == range(column, column + 1)
        assert above.get_ylim() == drawn.forward[0].get_ylim()
        assert below.get_ylim() == drawn.backward[0].get_ylim()
    x, y = _points(_lines(drawn.backward[1])[DOWN])
    assert torch.equal(y, torch.where(x < -1, -1.0, torch.where(x > 1, 1.0, -1.0)).double())
    assert _legend(ax.figure) == ["y = clamp(x, -1, 1)", UP, DOWN, "value at a bound", "value just beside it"]


def test_many_columns_wrap_below_one_forward(ax: Any) -> None:
    names = list(OPS["clamp"].rules)
    drawn = pg.plot(names, panels="rules", ax=ax)
    assert (len(drawn.forward), len(drawn.backward)) == (4, 8)
    titles = [panel.get_title() for panel in (*drawn.forward, *drawn.backward[4:])]
    assert titles == names
    assert [panel.get_title() for panel in drawn.backward[:4]] == [""] * 4
    assert [panel.get_xlabel() for panel in drawn.backward] == [""] * 4 + ["x"] * 4
    x, y = _points(_lines(drawn.backward[names.index("elastic")])[DOWN])
    expected = torch.where(x > 1, (x - 1) / 2, -1.0)  # from above, -1 points outward: pulled back with the distance
    assert torch.allclose(y, expected)


# --- loss -------------------------------------------------------------------------------------------------------------


def _sine(y: torch.Tensor) -> torch.Tensor:
    return torch.sin(torch.pi * y) + 1


def test_a_loss_is_above_and_its_gradient_below(ax: Any) -> None:
    (backward,) = pg.plot("inward", -1, 1, loss=_sine, ax=ax).backward
    x, loss = _points(_lines(ax)["loss"])
    c = torch.where(x < -1, -1.0, torch.where(x > 1, 1.0, x))
    slope = torch.pi * torch.cos(torch.pi * c)
    assert torch.allclose(loss, torch.sin(torch.pi * c) + 1)
    assert list(_lines(backward)) == ["dL/dy", "dL/dx"]
    assert torch.allclose(_points(_lines(backward)["dL/dy"])[1], slope)
    assert torch.allclose(_points(_lines(backward)["dL/dx"])[1], torch.where((x > 1) & (slope < 0), 0.0, slope))
    assert _dots(backward) == [([-1, 1], [pytest.approx(-torch.pi)] * 2)]
    assert _rings(backward) == [([1], [0])]  # from the left the value at -1 is reached, from the right not that at 1


def test_a_loss_of_several_rules_in_one_panel(ax: Any) -> None:
    (backward,) = pg.plot(["zero", "inward"], -1, 1, loss=torch.square, ax=ax).backward
    assert list(_lines(backward)) == ["dL/dy", "dL/dx zero", "dL/dx inward"]
    x, y = _points(_lines(backward)["dL/dx zero"])
    assert torch.allclose(y, torch.where(x.abs() > 1, 0.0, 2 * x))
    x, y = _points(_lines(backward)["dL/dx inward"])
    assert torch.allclose(y, 2 * x.clamp(-1, 1))


def test_the_articles_three_panels_by_arguments_alone(ax: Any) -> None:
    """torch.clamp, clamp_with_grad, clamp_with_grad_proposed with its loss: the values of its figure."""
    clamps = [torch.clamp, pg.familiar.clamp_with_grad, pg.familiar.clamp_with_grad_proposed]
    drawn = pg.plot(clamps, -1, 1, loss=_sine, panels="rules", ax=ax)
    assert [panel.get_title() for panel in drawn.forward] == [
        "torch.clamp",
        "clamp_with_grad",
        "clamp_with_grad_proposed",
    ]
    found = [_points(_lines(panel)["dL/dx"]) for panel in drawn.backward]
    for (x, y), (left, right) in zip(found, ((0, 0), (-torch.pi, 0), (-1, 1)), strict=True):
        assert torch.allclose(y[x < -1], torch.tensor(left, dtype=torch.float64))
        assert torch.allclose(y[x > 1], torch.tensor(right, dtype=torch.float64))
        inside = x.abs() < 1
        assert torch.allclose(y[inside], torch.pi * torch.cos(torch.pi * x[inside]))


# --- titles and places ------------------------------------------------------------------------------------------------


def test_a_title_for_each_column_or_for_all_of_them(close: None) -> None:
    drawn = pg.plot(["zero", "inward"], panels="rules", title=["one", "two"])
    assert [panel.get_title() for panel in drawn.forward] == ["one", "two"]
    drawn = pg.plot(["zero", "inward"], panels="rules", title="both")
    assert [panel.get_title() for panel in drawn.forward] == ["zero", "inward"]
    assert "both" in [axes.get_title() for axes in drawn.figure.axes]


def test_axes_are_named(ax: Any) -> None:
    drawn = pg.plot("zero", ax=ax)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("", "y")
    assert (drawn.backward[0].get_xlabel(), drawn.backward[0].get_ylabel()) == ("x", "dL/dx")


def test_without_axes_it_takes_the_current_figure_if_that_is_empty(close: None) -> None:
    from matplotlib import pyplot

    figure = pyplot.figure(figsize=(5, 4))
    assert pg.plot("zero").figure is figure
    assert figure.get_size_inches().tolist() == [5, 4]
    other = pg.plot("inward").figure
    assert other is not figure
    assert other is pyplot.gcf()  # so that a notebook shows it


SEVERAL = ["zero", "inward", "elastic(0.5)", "leaky(0.2)/open"]
FIGURES: dict[str, tuple[tuple[float, float], Any, dict[str, Any]]] = {
    "tiny": ((1.2, 1.2), SEVERAL, {}),
    "narrow": ((2, 6), "inward", {}),
    "flat": ((8, 2), ["zero", "inward", "sign"], {"panels": "rules", "title": "A title that is above three columns"}),
    "wide": ((14, 4), SEVERAL, {"panels": "rules", "loss": torch.square}),
    "usual": ((6.4, 4.8), torch.clamp, {"loss": _sine}),
    "long names": (
        (4, 3),
        [torch.clamp, pg.familiar.clamp_with_grad, pg.familiar.clamp_with_grad_proposed],
        {"panels": "rules"},
    ),
}


@pytest.mark.parametrize(
    ("name", "own"),
    slow_but(
        [("tiny", True), ("flat", True), ("narrow", False)],
        [*((name, True) for name in FIGURES), ("narrow", False), ("flat", False)],
        pytest.mark.program,
    ),
)
def test_all_of_it_stays_on_the_canvas(name: str, own: bool, close: None) -> None:
    from matplotlib import pyplot

    size, what, how = FIGURES[name]
    figure = pyplot.figure(figsize=size)
    drawn = pg.plot(what, -1, 1, **how, ax=None if own else figure.add_subplot())
    figure.draw_without_rendering()
    box = figure.get_tightbbox()
    assert box.x0 >= 0
    assert box.y0 >= 0
    assert box.x1 <= size[0]
    assert box.y1 <= size[1]
    panels = [panel.get_window_extent() for panel in (*drawn.forward, *drawn.backward)]
    assert all(panel.width > 0.15 * figure.dpi and panel.height > 0.08 * figure.dpi for panel in panels)
    assert not any(a.overlaps(b) for i, a in enumerate(panels) for b in panels[:i])


# --- bad calls --------------------------------------------------------------------------------------------------------


BAD: list[tuple[Any, dict[str, Any], str]] = [
    ([], {}, "TypeError: plot: f_or_rules must name at least one rule or function, got []."),
    (3, {}, "TypeError: plot: f_or_rules must be rules or functions, got 3."),
    ("inwards", {}, "got 'inwards'. Did you mean 'inward'?"),
    ("inward/shut", {}, "ValueError: clamp: edge must be one of closed, half, inward, open, got 'shut'."),
    ("leaky(", {}, "ValueError: plot: f_or_rules must be NAME, NAME(VALUE) or NAME(KEY=VALUE, ...), got 'leaky('."),
    ("zero", {"edge": "shut"}, "ValueError: clamp: edge must be one of closed, half, inward, open, got 'shut'."),
    ("zero", {"min": "inward"}, "TypeError: plot: min must be a number or None, got 'inward'. Write several rules or functions as"),
    ("zero", {"min": [0]}, "TypeError: plot: min must be a number or None, got [0]."),
    ("zero", {"min": torch.nan}, "ValueError: plot: min must be finite, got nan. Use None for no bound."),
    ("zero", {"min": 2, "max": 1}, "ValueError: plot: min and max must be in this order, got (2, 1)."),
    ("zero", {"grad": 1}, "TypeError: plot: grad must be a list of numbers, got 1. Write grad=(1,)."),
    ("zero", {"grad": ()}, "ValueError: plot: grad must have 1 to 4 numbers, got ()."),
    ("zero", {"grad": (torch.inf,)}, "TypeError: plot: grad must be a list of finite numbers, got (inf,)."),
    ("zero", {"grad": "+-"}, "TypeError: plot: grad must be a list of numbers, got '+-'."),
    ("zero", {"loss": 3}, "TypeError: plot: loss must be an element-wise function of y, or None, got 3."),
    ("zero", {"loss": lambda y: (y**2).sum()}, "ValueError: plot: loss must be element-wise, one value for each element of its input"),
    ("zero", {"loss": lambda y: y - y.mean()}, "ValueError: plot: loss must be element-wise, got 'f'. Its value at one x differs"),
    (torch.sum, {}, "ValueError: plot: f_or_rules must be element-wise, one value for each"),
    (torch.tanh, {"edge": "open"}, "ValueError: plot: edge must be left out for tanh, got 'open'."),
    (torch.tanh, {"maximize": True}, "ValueError: plot: maximize must be left out for tanh, got True."),
    ("zero", {"panels": "columns"}, "ValueError: plot: panels must be 'rules' or None, got 'columns'."),
    (["zero"] * 5, {}, "ValueError: plot: f_or_rules must be at most 4 for one panel, got 5. Give each a column of its own with"),
    ("zero", {"xlim": (1, 1)}, "ValueError: plot: xlim must be two finite numbers, the lower one first, got (1, 1)."),
    ("zero", {"title": 3}, "TypeError: plot: title must be a text or a list of texts, got 3."),
    ("zero", {"title": ["a", "b"]}, "ValueError: plot: title must have a text for each of the 1 columns, got ['a', 'b']."),
    ("window", {"op": "sine"}, "ValueError: plot: op must be one of abs, ceil,"),
    ("window", {"op": "sign", "min": -1}, "ValueError: plot: min and max must be None for sign, got (-1, None). Give a function"),
    ("window", {"op": "sign", "maximize": True}, "ValueError: plot: maximize must be left out for sign, got True."),
]  # fmt: skip


@pytest.mark.parametrize(("what", "how", "text"), BAD)
def test_bad_calls(ax: Any, what: Any, how: dict[str, Any], text: str) -> None:
    with pytest.raises((TypeError, ValueError)) as raised:
        pg.plot(what, **how, ax=ax)
    kind = "TypeError" if isinstance(raised.value, TypeError) else "ValueError"
    assert text in f"{kind}: {raised.value}"
    assert len(ax.lines) == 0
    assert ax.figure.axes == [ax]


@pytest.mark.parametrize("what", [3, "figure", "free axes"])
def test_axes_that_have_no_place_to_share(what: Any, close: None) -> None:
    from matplotlib import pyplot

    figure = pyplot.figure()
    given = {"figure": figure, "free axes": figure.add_axes((0.1, 0.1, 0.8, 0.8))}.get(what, what)
    with pytest.raises(
        TypeError, match=r"plot: ax must be axes that pyplot.subplots or add_subplot made, or None, got"
    ):
        pg.plot("zero", ax=given)


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(
        ImportError, match=r'matplotlib must be installed, got none. Run pip install "pseudograd\[report\]"'
    ):
        pg.plot("zero")


# --- rules of other ops -----------------------------------------------------------------------------------------------


def test_rules_of_another_op(ax: Any) -> None:
    drawn = pg.plot(["window", pg.rules.triangle(2.0, 0.5)], op="sign", ax=ax)
    x, y = _points(_lines(ax)["y = sign(x)"])
    assert torch.equal(y, torch.where(x < 0, -1.0, 1.0).double())
    assert (_dots(ax), _rings(ax)) == ([([0], [0])], [([0, 0], [-1, 1])])
    x, slope = _points(_lines(drawn.backward[0])["window"])
    assert torch.equal(slope, (x.abs() < 1).double())
    x, slope = _points(_lines(drawn.backward[1])["triangle(scale=2.0, height=0.5)"])
    assert torch.allclose(slope, -0.5 * (1 - x.abs() / 2).clamp(min=0))
    assert "value at a jump" in _legend(ax.figure)


def test_dots_are_the_values_at_jumps_of_values_and_slopes(ax: Any) -> None:
    (backward,) = pg.plot(pg.rules.window(0.5, 0.25), op="heaviside", grad=(1,), ax=ax).backward
    assert (_dots(ax), _rings(ax)) == ([([0], [1])], [([0], [0])])
    assert (_dots(backward), _rings(backward)) == ([([-0.5, 0.5], [0.25, 0.25])], [([-0.5, 0.5], [0, 0])])


def test_a_line_breaks_only_where_its_own_value_jumps(ax: Any) -> None:
    (backward,) = pg.plot("identity", op="round", ax=ax).backward
    gaps = [int(torch.as_tensor(line.get_data()[0]).isnan().sum()) for line in (ax.lines[1], _lines(backward)[UP])]
    assert gaps == [4, 0]
    assert _dots(ax) == [([-1.5, -0.5, 0.5, 1.5], [-2, 0, 0, 2])]
    assert _rings(ax) == [([-1.5, -0.5, 0.5, 1.5], [-1, -1, 1, 1])]
    assert _dots(backward) == []


def test_an_edge_of_another_op(ax: Any) -> None:
    (backward,) = pg.plot("slope/-1", op="abs", ax=ax).backward
    assert _dots(backward) == [([0], [-1]), ([0], [1])]
    assert _rings(backward) == [([0], [1]), ([0], [-1])]


@pytest.mark.parametrize("name", OPS)
def test_every_rule_of_every_op_can_be_drawn(ax: Any, name: str) -> None:
    """And shows what the op computes: y of the picture's inputs, and a gradient for both signs."""
    op = OPS[name]
    given = dict(zip(op.inputs[1:], op.picture.others, strict=False))
    rules: list[Any] = [
        pg.rules.custom(torch.cos) if rule.name == "custom" else rule.name
        for rule in op.rules.values()
        if not any(given[missing] is None for missing in rule.requires)
    ]
    drawn = pg.plot(rules, op=name, panels="rules", ax=ax)
    assert len(drawn.backward) == len(rules) >= len(op.rules) - 2
    (line,) = _lines(ax).values()
    x, y = _points(line)
    inputs = op.picture.of(x) if op.picture.of else (x, *op.picture.others)
    torch.testing.assert_close(y, op.forward(*inputs), rtol=1e-14, atol=1e-15)  # gelu rounds by the layout of memory
    for panel, rule in zip(drawn.backward, rules, strict=True):
        assert list(_lines(panel)) == [UP, DOWN]
        for sign, label in ((1.0, UP), (-1.0, DOWN)):
            x, found = _points(_lines(panel)[label])
            how = {"rule": rule} if len(op.rules) > 1 else {}

            def computed(x: torch.Tensor, how: dict[str, Any] = how) -> torch.Tensor:
                return op.public(*(op.picture.of(x) if op.picture.of else (x, *op.picture.others)), **how)

            torch.testing.assert_close(found, pg.gradient(computed, x, sign), rtol=1e-12, atol=1e-14)


# --- functions that jump ----------------------------------------------------------------------------------------------

_JUMPING: dict[str, tuple[Callable[[Tensor], Tensor], list[float]]] = {
    "relu": (torch.relu, [0.0]),
    "abs": (torch.abs, [0.0]),
    "clamp": (lambda x: x.clamp(-1, 1), [-1.0, 1.0]),
    "clamp at 0.3": (lambda x: x.clamp(min=0.3), [0.3]),
    "softshrink": (torch.nn.functional.softshrink, [-0.5, 0.5]),
}


@pytest.mark.parametrize("name", _JUMPING)
def test_a_jump_of_a_functions_gradient_is_a_dot_and_rings_and_no_stroke(name: str) -> None:
    f, at = _JUMPING[name]
    (axes,) = pg.plot(f).backward
    for line in axes.lines:
        y = torch.as_tensor(line.get_ydata(), dtype=torch.float64)
        assert len(y) < 10 or not (y.diff().abs() > 0.9).any()
    for label in ("_exactly", "_beside"):
        marks = [line for line in axes.lines if str(line.get_label()) == label]
        assert len(marks) == 2  # for both signs of dL/dy
        for line in marks:
            assert sorted(set(map(float, line.get_xdata()))) == at
    dots = next(line for line in axes.lines if str(line.get_label()) == "_exactly")
    for x, y in zip(dots.get_xdata(), dots.get_ydata(), strict=True):
        assert y == pg.gradient(f, torch.tensor([float(x)], dtype=torch.float64)).item()


def test_a_jump_of_a_functions_value_and_of_a_loss_is_not_joined_either() -> None:
    drawn = pg.plot([torch.round, torch.relu], panels="rules", xlim=(-3, 3), loss=torch.abs)
    for axes in (*drawn.forward, *drawn.backward):
        for line in axes.lines:
            y = torch.as_tensor(line.get_ydata(), dtype=torch.float64)
            assert len(y) < 10 or not (y.diff().abs() > 0.5).any()


def test_many_jumps_are_not_joined_and_do_not_take_long() -> None:
    (axes,) = pg.plot(torch.round, xlim=(-150, 150)).forward
    (curve,) = [line for line in axes.lines if len(line.get_xdata()) > 10 and line.get_marker() != "o"]
    y = torch.as_tensor(curve.get_ydata(), dtype=torch.float64)
    assert int(y.isnan().sum()) == 300
    assert len(y) < 10000


class _Clamped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, low: float, high: float) -> Tensor:
        ctx.save_for_backward(x)
        return x.clamp(low, high)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad, None, None


class _Passed(_Clamped):
    pass


def test_an_apply_has_the_name_of_its_function() -> None:
    drawn = pg.plot([_Clamped.apply, functools.partial(_Passed.apply)], -1, 1, panels="rules")
    assert [axes.get_title() for axes in drawn.forward] == ["_Clamped", "_Passed"]


def test_functions_of_one_name_are_told_apart() -> None:
    drawn = pg.plot([lambda x: x.relu(), lambda x: x.abs(), torch.sin], panels="rules")
    assert [axes.get_title() for axes in drawn.forward] == ["f (1)", "f (2)", "sin"]
