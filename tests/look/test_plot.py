"""plot: the numbers that are drawn, where they are drawn, and that all of it is on the canvas."""

import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import softshrink

import pseudograd as pg
from pseudograd.rule import OPS

from ..choices import folded, slow_but
from ..written import assert_written, drawing, error_of
from .functions import make_function

pyplot = pytest.importorskip("matplotlib.pyplot")
UP, DOWN = "dL/dx where dL/dy = +1", "dL/dx where dL/dy = −1"
Marks = list[tuple[list[float], list[float]]]


@pytest.fixture(autouse=True)
def _close_figures() -> Iterator[None]:
    yield
    pyplot.close("all")


def _lines(axes: Any) -> dict[str, Any]:
    """The curves by their label: not the zero line, the dots and the rings."""
    return {line.get_label(): line for line in axes.lines if not line.get_label().startswith("_")}


def _curve(axes: Any, label: str) -> tuple[Tensor, Tensor]:
    """The numbers of a curve, without the gaps at jumps."""
    x, y = (torch.as_tensor(data) for data in _lines(axes)[label].get_data())
    return x[~x.isnan()], y[~x.isnan()]


def _marks(axes: Any, label: str) -> Marks:
    marks = [line.get_data() for line in axes.lines if line.get_label() == label]
    return [(torch.as_tensor(x).tolist(), torch.as_tensor(y).tolist()) for x, y in marks]


def _dots(axes: Any) -> Marks:
    return _marks(axes, "_exactly")


def _rings(axes: Any) -> Marks:
    return _marks(axes, "_beside")


def _legend(figure: Any) -> list[str]:
    (legend,) = [axes.get_legend() for axes in figure.axes if axes.get_legend()]
    return [text.get_text() for text in legend.get_texts()]


def _titles(panels: Any) -> list[str]:
    return [panel.get_title() for panel in panels]


def names_of_figures() -> dict[str, Any]:
    return {"pg": pg, "torch": torch, "rules": pg.rules, "drawing": drawing}


def test_what_figures_show_is_written_out() -> None:
    assert_written(Path(__file__).with_name("figures.txt"), names_of_figures())


def test_the_axes_that_are_given_become_the_first_panel_above_the_second() -> None:
    ax = pyplot.figure().add_subplot()
    drawn = pg.plot("inward", -1, 1, ax=ax)
    (forward,), (backward,) = drawn.forward, drawn.backward
    assert forward is ax
    assert drawn.figure is ax.figure
    assert forward.get_position().y0 >= backward.get_position().y1


def test_maximize_draws_the_rule_of_ascent() -> None:
    (backward,) = pg.plot("inward", maximize=True).backward
    x, up = _curve(backward, UP)
    assert torch.equal(up, (x < 1).double())  # an ascent step along +1 leads back from below only
    x, down = _curve(backward, DOWN)
    assert torch.equal(down, -(x > -1).double())


class _Clamped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clamp(-1, 1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad


def test_functions_have_their_names_or_numbers() -> None:
    functions = [
        _Clamped.apply,
        functools.partial(_Clamped.apply),
        lambda x: x.relu(),
        lambda x: x.abs(),
        torch.nn.PReLU(),
        torch.relu_,
    ]
    names = ["_Clamped (1)", "_Clamped (2)", "f (1)", "f (2)", "PReLU", "relu_"]
    assert _titles(pg.plot(functions, panels="rules").forward) == names


def _sine(y: Tensor) -> Tensor:
    return torch.sin(torch.pi * y) + 1


def test_a_loss_is_above_and_its_gradient_below() -> None:
    (forward,), (backward,) = pg.plot("inward", -1, 1, loss=_sine)[1:]
    x, loss = _curve(forward, "loss")
    slope = torch.pi * torch.cos(torch.pi * x.clamp(-1, 1))
    assert torch.allclose(loss, _sine(x.clamp(-1, 1)))
    assert list(_lines(backward)) == ["dL/dy", "dL/dx"]
    assert torch.allclose(_curve(backward, "dL/dy")[1], slope)
    assert torch.allclose(_curve(backward, "dL/dx")[1], torch.where((x > 1) & (slope < 0), 0.0, slope))
    assert _dots(backward) == [([-1, 1], [pytest.approx(-torch.pi)] * 2)]
    assert _rings(backward) == [([1], [0])]  # from the left the value at -1 is reached, from the right not that at 1
    (backward,) = pg.plot(["zero", "inward"], -1, 1, loss=torch.square).backward
    assert list(_lines(backward)) == ["dL/dy", "dL/dx zero", "dL/dx inward"]
    x, y = _curve(backward, "dL/dx zero")
    assert torch.allclose(y, torch.where(x.abs() > 1, 0.0, 2 * x))
    x, y = _curve(backward, "dL/dx inward")
    assert torch.allclose(y, 2 * x.clamp(-1, 1))


def test_without_axes_the_current_figure_is_taken_if_it_is_empty() -> None:
    figure = pyplot.figure(figsize=(5, 4))
    assert pg.plot("zero").figure is figure
    assert figure.get_size_inches().tolist() == [5, 4]
    other = pg.plot("inward").figure
    assert figure is not other is pyplot.gcf()  # so that a notebook shows it


SEVERAL = ["zero", "inward", "elastic(0.5)", "leaky(0.2)/open"]
LONG = [torch.clamp, pg.familiar.clamp_with_grad, pg.familiar.clamp_with_grad_proposed]
FIGURES: dict[str, tuple[tuple[float, float], Any, dict[str, Any]]] = {
    "narrow": ((3, 6), SEVERAL, {}),
    "flat": ((8, 2), ["zero", "inward", "sign"], {"panels": "rules", "title": "A title that is above three columns"}),
    "wide": ((14, 4), SEVERAL, {"panels": "rules", "loss": torch.square}),
    "usual": ((6.4, 4.8), torch.clamp, {"loss": _sine}),
    "long names": ((4, 3), LONG, {"panels": "rules"}),
}


@pytest.mark.parametrize("name", slow_but(["narrow"], FIGURES, pytest.mark.program))
def test_all_of_it_stays_on_the_canvas(name: str) -> None:
    size, drawable, options = FIGURES[name]
    figure = pyplot.figure(figsize=size)
    ax = figure.add_subplot() if name in ("narrow", "flat") else None
    drawn = pg.plot(drawable, -1, 1, **options, ax=ax)
    figure.draw_without_rendering()
    box = figure.get_tightbbox()
    assert min(box.x0, box.y0) >= 0
    assert box.x1 <= size[0]
    assert box.y1 <= size[1]
    panels = [panel.get_window_extent() for panel in (*drawn.forward, *drawn.backward)]
    assert all(panel.width > 0.15 * figure.dpi and panel.height > 0.08 * figure.dpi for panel in panels)
    assert not any(a.overlaps(b) for i, a in enumerate(panels) for b in panels[:i])


class Floor(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.floor()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


def test_the_remedy_of_a_sum_is_said_of_sums_alone() -> None:
    for f, is_sum in ((torch.sum, True), (Tensor.tolist, False), (lambda x: x[:, None], False)):
        with pytest.raises(ValueError, match="one value for each element of its input") as raised:
            pg.plot(f)
        assert ("Leave out .sum()" in str(raised.value)) == is_sum


def test_a_class_of_autograd_is_drawn_as_its_apply() -> None:
    drawn, as_apply = (pg.plot(f, xlim=(-1, 1)) for f in (Floor, Floor.apply))
    ours, theirs = ([list(line.get_ydata()) for line in panels.backward[0].lines] for panels in (drawn, as_apply))
    assert str(ours) == str(theirs)  # NaN at each jump
    assert drawn.forward[0].get_title() == "Floor"


def test_bad_calls_get_the_written_errors_and_draw_nothing() -> None:
    ax = pyplot.figure().add_subplot()
    names = {"torch": torch, "pg": pg, "make_function": make_function, "error_of": error_of, "ax": ax}
    assert_written(Path(__file__).with_name("bad_plots.txt"), names)
    with pytest.raises(ValueError, match=r"^plot: op must be one of abs, ceil,"):
        pg.plot("window", op="sine", ax=ax)
    assert len(ax.lines) == 0
    assert ax.figure.axes == [ax]


def test_axes_need_a_place_to_share(monkeypatch: pytest.MonkeyPatch) -> None:
    figure = pyplot.figure()
    text = r"plot: ax must be axes that pyplot.subplots or add_subplot made, or None, got"
    for ax in (3, figure, figure.add_axes((0.1, 0.1, 0.8, 0.8))):
        with pytest.raises(TypeError, match=text):
            pg.plot("zero", ax=ax)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(
        ImportError, match=r'matplotlib must be installed, got none. Run pip install "pseudograd\[report\]"'
    ):
        pg.plot("zero")


@folded
@pytest.mark.parametrize("name", slow_but(["sign", "abs", "jumprelu"], OPS, pytest.mark.program))
def test_every_rule_of_every_op_can_be_drawn(name: str) -> None:
    """And shows the values that the op computes: y of the picture's inputs, and a gradient for both signs."""
    op = OPS[name]
    inputs = op.picture.inputs_of or (lambda x: (x, *op.picture.others))
    others = dict(zip(op.inputs[1:], op.picture.others, strict=False))
    rules: list[Any] = [
        pg.rules.custom(torch.cos) if rule.name == "custom" else rule.name
        for rule in op.rules.values()
        if not any(others[missing] is None for missing in rule.requires)
    ]
    drawn = pg.plot(rules, op=name, panels="rules")
    assert len(drawn.backward) == len(rules) >= len(op.rules) - 2
    (label,) = _lines(drawn.forward[0])
    x, y = _curve(drawn.forward[0], label)
    torch.testing.assert_close(y, op.forward(*inputs(x)), rtol=1e-14, atol=1e-15)  # gelu rounds by the layout of memory
    for panel, rule in zip(drawn.backward, rules, strict=True):
        options = {"rule": rule} if len(op.rules) > 1 else {}
        function = lambda x, options=options: op.public(*inputs(x), **options)  # noqa: E731
        for sign, label in ((1.0, UP), (-1.0, DOWN)):
            x, slopes = _curve(panel, label)
            torch.testing.assert_close(slopes, pg.gradient(function, x, sign), rtol=1e-12, atol=1e-14)
    pyplot.close(drawn.figure)


_JUMPING: dict[str, tuple[Callable[[Tensor], Tensor], list[float]]] = {
    "abs": (torch.abs, [0.0]),
    "clamp": (lambda x: x.clamp(-1, 1), [-1.0, 1.0]),
    "clamp at 0.3": (lambda x: x.clamp(min=0.3), [0.3]),
    "softshrink": (softshrink, [-0.5, 0.5]),
}


def _largest_step(axes: Any) -> float:
    """Of the lines, without dots and rings."""
    lines = [
        torch.as_tensor(line.get_ydata(), dtype=torch.float64) for line in axes.lines if len(line.get_xdata()) > 10
    ]
    return max(line.diff().abs().nan_to_num().max().item() for line in lines)


@pytest.mark.parametrize("name", _JUMPING)
def test_a_jump_of_a_functions_gradient_is_a_dot_and_rings_and_no_stroke(name: str) -> None:
    f, at = _JUMPING[name]
    (axes,) = pg.plot(f).backward
    assert _largest_step(axes) < 0.9
    for marks in (_dots(axes), _rings(axes)):
        assert [sorted(set(x)) for x, _ in marks] == [at, at]  # for both signs of dL/dy
    for x, y in zip(*_dots(axes)[0], strict=True):
        assert y == pg.gradient(f, torch.tensor([x], dtype=torch.float64)).item()


def test_jumps_of_a_functions_value_and_of_a_loss_are_not_joined() -> None:
    drawn = pg.plot([torch.round, torch.relu], panels="rules", xlim=(-3, 3), loss=torch.abs)
    assert all(_largest_step(axes) < 0.5 for axes in (*drawn.forward, *drawn.backward))
    (axes,) = pg.plot(torch.round, xlim=(-150, 150)).forward
    y = torch.as_tensor(_lines(axes)["y = round(x)"].get_ydata(), dtype=torch.float64)
    assert int(y.isnan().sum()) == 300
    assert len(y) < 10000
