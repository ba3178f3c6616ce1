"""plot: the numbers that are drawn, not the picture."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import pseudograd as pg
from pseudograd.rule import OPS

pytest.importorskip("matplotlib")


@pytest.fixture
def ax() -> Iterator[Any]:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots()
    yield axes
    pyplot.close(figure)


def _lines(ax: Any) -> dict[str, Any]:
    return {line.get_label(): line for line in ax.lines}


def _points(line: Any) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = (torch.as_tensor(data) for data in line.get_data())
    keep = ~torch.as_tensor(x).isnan()
    return x[keep], y[keep]


def _dots(ax: Any) -> list[tuple[list[float], list[float]]]:
    return [tuple(map(list, line.get_data())) for line in ax.lines if line.get_marker() == "o"]


def test_one_rule_is_its_forward_and_both_signs_of_grad(ax: Any) -> None:
    assert pg.plot("inward", -1, 1, ax=ax) is ax
    lines = _lines(ax)
    x, y = _points(lines["y = inward"])
    assert torch.allclose(y, x.clamp(-1, 1))
    x, up = _points(lines["dL/dx inward, grad = +1"])
    assert torch.equal(up, (x > -1).double())
    x, down = _points(lines["dL/dx inward, grad = -1"])
    assert torch.equal(down, -(x < 1).double())


def test_x_runs_over_the_range_and_half_of_it_on_both_sides(ax: Any) -> None:
    pg.plot("zero", 0, 4, ax=ax)
    x, _ = _points(_lines(ax)["y = zero"])
    assert x.min().item() == pytest.approx(-2)
    assert x.max().item() == pytest.approx(6)
    assert not ((x == 0) | (x == 4)).any()  # the bounds are dots, because the gradient may jump there


@pytest.mark.parametrize(("edge", "share"), [("closed", 1), ("open", 0), ("half", 0.5)])
def test_dots_are_the_values_at_the_bounds(ax: Any, edge: str, share: float) -> None:
    pg.plot(f"zero/{edge}", -1, 1, ax=ax)
    assert _dots(ax) == [([-1, 1], [share, share]), ([-1, 1], [-share, -share])]
    assert f"dL/dx zero/{edge}, grad = +1" in _lines(ax)


def test_curves_are_broken_at_the_bounds(ax: Any) -> None:
    """A jump is not a slope."""
    pg.plot("zero", -1, 1, ax=ax)
    x, y = _lines(ax)["dL/dx zero, grad = +1"].get_data()
    assert torch.as_tensor(x).isnan().sum() == 2
    assert set(torch.as_tensor(y).nan_to_num(0.0).tolist()) == {0.0, 1.0}


def test_several_rules_share_one_forward_and_coincident_lines_stay_visible(ax: Any) -> None:
    pg.plot(["zero", "inward", pg.rules.leaky(0.25)], ax=ax)
    lines = _lines(ax)
    assert "y" in lines
    widths = [lines[f"dL/dx {name}, grad = +1"].get_linewidth() for name in ("zero", "inward", "leaky(slope=0.25)")]
    assert widths == sorted(widths, reverse=True)
    assert len(set(widths)) == 3
    colours = {lines[f"dL/dx {name}, grad = +1"].get_color() for name in ("zero", "inward", "leaky(slope=0.25)")}
    assert len(colours) == 3
    x, y = _points(lines["dL/dx leaky(slope=0.25), grad = +1"])
    assert set(y[x < -1].tolist()) == {0.25}


def test_grads_that_are_asked_for(ax: Any) -> None:
    pg.plot("sign", 0, 1, grad=(0.5,), ax=ax)
    lines = _lines(ax)
    x, y = _points(lines["dL/dx sign, grad = +0.5"])
    assert (set(y[x > 1].tolist()), set(y[x < 0].tolist()), set(y[(x > 0) & (x < 1)].tolist())) == ({1}, {-1}, {0.5})
    assert not any("-1" in str(label) for label in lines)


def test_loss_draws_each_factor_of_the_chain(ax: Any) -> None:
    pg.plot("inward", -1, 1, loss=lambda y: torch.sin(torch.pi * y) + 1, ax=ax)
    lines = _lines(ax)
    x, loss = _points(lines["loss"])
    c = x.clamp(-1, 1)
    slope = torch.pi * torch.cos(torch.pi * c)
    assert torch.allclose(loss, torch.sin(torch.pi * c) + 1)
    assert torch.allclose(_points(lines["dL/dy"])[1], slope)
    assert torch.equal(
        _points(lines["dy/dx for the sign of dL/dy"])[1], torch.where((x > 1) & (slope < 0), 0.0, 1.0).double()
    )
    assert torch.allclose(_points(lines["dL/dx inward"])[1], torch.where((x > 1) & (slope < 0), 0.0, slope))


def test_loss_of_several_rules_has_no_single_chain(ax: Any) -> None:
    pg.plot(["zero", "inward"], -1, 1, loss=torch.square, ax=ax)
    assert {"y", "loss", "dL/dx zero", "dL/dx inward"} <= set(_lines(ax))
    assert "dL/dy" not in _lines(ax)


def test_any_function(ax: Any) -> None:
    pg.plot(torch.tanh, ax=ax)
    x, slope = _points(_lines(ax)["dL/dx tanh, grad = +1"])
    assert torch.allclose(slope, 1 - torch.tanh(x) ** 2)
    assert (x.min().item(), x.max().item()) == (-2, 2)
    assert _dots(ax) == []


def test_a_function_of_the_bounds(ax: Any) -> None:
    pg.plot(pg.ClampWithGrad.apply, -1, 1, grad=(1.0,), ax=ax)
    x, slope = _points(_lines(ax)["dL/dx clamp_with_grad, grad = +1"])
    assert torch.equal(slope, (x > -1).double())


@pytest.mark.parametrize(("bounds", "dots"), [((None, 1), [1]), ((0, None), [0]), ((2, 2), [2, 2])], ids=str)
def test_one_bound_or_one_point(ax: Any, bounds: tuple[Any, Any], dots: list[float]) -> None:
    pg.plot("zero", *bounds, grad=(1.0,), ax=ax)
    assert _dots(ax) == [(dots, [1.0] * len(dots))]
    x, y = _points(_lines(ax)["y = zero"])
    assert torch.allclose(y, x.clamp(*bounds))


def test_axes_are_named_and_the_legend_names_every_curve(ax: Any) -> None:
    pg.plot("zero", ax=ax)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("x", "y and dL/dx")
    named = [text.get_text() for text in ax.get_legend().get_texts()]
    assert named == ["y = zero", "dL/dx zero, grad = +1", "dL/dx zero, grad = -1"]


def test_without_axes_it_takes_the_current_ones() -> None:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots()
    assert pg.plot("zero") is axes
    pyplot.close(figure)


@pytest.mark.parametrize(
    ("what", "kind", "text"),
    [
        ([], TypeError, "plot: f_or_rules must name at least one rule or function, got []"),
        (3, TypeError, "plot: f_or_rules must"),
        ([3], TypeError, "plot: f_or_rules must be rules or functions, got 3"),
        ("inwards", ValueError, "rule must be one of"),
        ("inward/shut", ValueError, "edge must be one of"),
    ],
)
def test_bad_calls(ax: Any, what: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind) as caught:
        pg.plot(what, -1, 1, ax=ax)
    assert text in str(caught.value)
    assert len(ax.lines) == 0


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"matplotlib must be installed, got none. Run pip install '\.\[report\]'"):
        pg.plot("zero")


# --- rules of other ops -----------------------------------------------------------------------------------------------


def test_rules_of_another_op(ax: Any) -> None:
    pg.plot(["window", pg.rules.triangle(2.0, 0.5)], op="sign", ax=ax)
    lines = _lines(ax)
    x, y = _points(lines["y"])
    assert torch.equal(y, torch.sign(x))
    x, slope = _points(lines["dL/dx window, grad = +1"])
    assert torch.equal(slope, (x.abs() < 1).double())
    x, slope = _points(lines["dL/dx triangle(scale=2.0, height=0.5), grad = -1"])
    assert torch.allclose(slope, -0.5 * (1 - x.abs() / 2).clamp(min=0))


def test_dots_are_the_values_at_jumps_of_values_and_slopes(ax: Any) -> None:
    pg.plot(pg.rules.window(0.5, 0.25), op="heaviside", ax=ax)
    assert _dots(ax) == [([0], [1]), ([-0.5, 0.5], [0.25, 0.25]), ([-0.5, 0.5], [-0.25, -0.25])]


def test_a_line_breaks_only_where_its_own_value_jumps(ax: Any) -> None:
    pg.plot("identity", op="round", ax=ax)
    lines = _lines(ax)
    assert [
        int(torch.as_tensor(lines[name].get_data()[0]).isnan().sum())
        for name in ("y = identity", "dL/dx identity, grad = +1")
    ] == [4, 0]
    assert _dots(ax) == [([-1.5, -0.5, 0.5, 1.5], [-2, 0, 0, 2])]


def test_an_edge_of_another_op(ax: Any) -> None:
    pg.plot("slope/-1", op="abs", ax=ax)
    assert _dots(ax) == [([0], [-1]), ([0], [1])]
    assert str(pg.rules.inward()) not in _lines(ax)


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ({"op": "sine"}, "plot: op must be one of abs, ceil,"),
        (
            {"op": "sign", "min": -1},
            "plot: min and max must be None for sign, got (-1, None). Give a function of x instead.",
        ),
        ({"op": "relu"}, "relu: rule must be one of"),
    ],
)
def test_bad_ops(ax: Any, how: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match="must") as caught:
        pg.plot("window", **how, ax=ax)
    assert text in str(caught.value)
    assert len(ax.lines) == 0


@pytest.mark.parametrize("name", OPS)
def test_every_rule_of_every_op_can_be_drawn(ax: Any, name: str) -> None:
    """And shows what the op computes: y of the picture's inputs, and a gradient for both signs."""
    op = OPS[name]
    given = dict(zip(op.inputs[1:], op.picture.others, strict=False))
    drawn = 0
    for rule in op.rules.values():
        if any(given[missing] is None for missing in rule.requires):
            continue
        ax.clear()
        pg.plot(pg.rules.custom(torch.cos) if rule.name == "custom" else rule.name, op=name, ax=ax)
        lines = [line for line in ax.lines if not str(line.get_label()).startswith("_")]
        assert len(lines) == 3
        x, y = _points(lines[0])
        inputs = op.picture.of(x) if op.picture.of else (x, *op.picture.others)
        assert torch.equal(y, op.forward(*inputs))
        drawn += 1
    assert drawn >= len(op.rules) - 2
