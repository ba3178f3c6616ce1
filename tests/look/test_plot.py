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
from ..written import assert_written, drawing
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
    return {"pg": pg, "torch": torch, "drawing": drawing}


def test_what_figures_show_is_written_out() -> None:
    assert_written(Path(__file__).with_name("figures.txt"), names_of_figures())


def test_one_rule_has_its_forward_above_both_signs_of_grad() -> None:
    ax = pyplot.figure().add_subplot()
    drawn = pg.plot("inward", -1, 1, ax=ax)
    (forward,), (backward,) = drawn.forward, drawn.backward
    assert forward is ax
    assert drawn.figure is ax.figure
    assert forward.get_position().y0 >= backward.get_position().y1
    assert list(_lines(forward)) == ["y = clamp(x, -1, 1)"]
    x, y = _curve(forward, "y = clamp(x, -1, 1)")
    assert torch.equal(y, x.clamp(-1, 1))
    assert list(_lines(backward)) == [UP, DOWN]
    x, up = _curve(backward, UP)
    assert torch.equal(up, (x > -1).double())
    x, down = _curve(backward, DOWN)
    assert torch.equal(down, -(x < 1).double())
    assert (forward.get_xlabel(), forward.get_ylabel()) == ("", "y")
    assert (backward.get_xlabel(), backward.get_ylabel()) == ("x", "dL/dx")


def test_x_runs_over_the_range_and_half_of_it_on_both_sides_or_over_xlim() -> None:
    (forward,), (backward,) = pg.plot("zero", 0, 4)[1:]
    x, _ = _curve(forward, "y = clamp(x, 0, 4)")
    assert (x.min().item(), x.max().item()) == (-2, 6)
    assert not ((x == 0) | (x == 4)).any()  # the bounds are dots, because the gradient may jump there
    assert forward.get_xlim() == backward.get_xlim() == (-2, 6)
    (backward,) = pg.plot("zero", -1, 1, xlim=(-0.5, 7)).backward
    x, y = _curve(backward, UP)
    assert (x.min().item(), x.max().item()) == (-0.5, 7)
    assert torch.equal(y, (x <= 1).double())
    assert _dots(backward)[0] == ([1], [1])  # -1 is outside
    assert backward.get_xlim() == (-0.5, 7)


@pytest.mark.parametrize(("edge", "share"), [("closed", 1), ("open", 0), ("half", 0.5)])
def test_dots_are_the_values_at_the_bounds_and_rings_those_beside_them(edge: str, share: float) -> None:
    for drawn in (pg.plot(f"zero/{edge}"), pg.plot("zero", edge=edge)):
        (forward,), (backward,) = drawn[1:]
        assert _dots(backward) == [([-1, 1], [share, share]), ([-1, 1], [-share, -share])]
        missed = sorted({0.0, 1.0} - {share})
        for sign, (x, y) in zip((1, -1), _rings(backward), strict=True):
            for bound in (-1, 1):
                assert sorted(sign * value for at, value in zip(x, y, strict=True) if at == bound) == missed
        assert forward.get_title() == f"zero/{edge}"
        assert _dots(forward) == _rings(forward) == []  # y is continuous
        look = {line.get_label(): line for line in backward.lines}
        assert look["_exactly"].get_markerfacecolor() == look["_exactly"].get_color()
        assert look["_beside"].get_markerfacecolor() == "white"
        assert _legend(drawn.figure)[-2:] == ["value at a bound", "value just beside it"]


def test_a_rule_that_names_its_edge_keeps_it_and_a_rule_without_edge_names_none() -> None:
    drawn = pg.plot(["zero/half", "zero", "identity"], edge="open", panels="rules")
    assert _titles(drawn.forward) == ["zero/half", "zero/open", "identity"]
    assert [_dots(panel)[0][1] for panel in drawn.backward] == [[0.5, 0.5], [0, 0], [1, 1]]


def test_maximize_draws_the_rule_of_ascent() -> None:
    (backward,) = pg.plot("inward", maximize=True).backward
    x, up = _curve(backward, UP)
    assert torch.equal(up, (x < 1).double())  # an ascent step along +1 leads back from below only
    x, down = _curve(backward, DOWN)
    assert torch.equal(down, -(x > -1).double())


@pytest.mark.parametrize(
    ("bounds", "at", "text"),
    [((None, 1), 1, "x, max=1"), ((0, None), 0, "x, min=0"), ((2, 2), 2, "x, 2, 2")],
    ids=str,
)
def test_one_bound_or_one_point_is_drawn(bounds: tuple[Any, Any], at: float, text: str) -> None:
    (forward,), (backward,) = pg.plot("zero", *bounds, grad=(1.0,))[1:]
    assert _dots(backward) == [([at], [1.0])]
    x, y = _curve(forward, f"y = clamp({text})")
    assert torch.allclose(y, x.clamp(*bounds))
    assert (x.min().item(), x.max().item()) == (at - 1, at + 1)
    for panel in (forward, backward):
        (shade,) = panel.patches
        ends = [limit if bound is None else bound for bound, limit in zip(bounds, panel.get_xlim(), strict=True)]
        assert [shade.get_x(), shade.get_x() + shade.get_width()] == ends


def test_a_function_of_the_bounds_is_drawn_by_its_name() -> None:
    (forward,), (backward,) = pg.plot(pg.familiar.ClampWithGrad.apply, -1, 1, grad=(1.0,))[1:]
    x, slope = _curve(backward, UP)
    assert torch.equal(slope, (x > -1).double())
    assert list(_lines(forward)) == ["y = clamp_with_grad(x, -1, 1)"]


def test_values_that_are_not_finite_leave_the_rest_visible() -> None:
    (forward,), _ = pg.plot(torch.log, xlim=(-1, 4))[1:]
    x, y = _curve(forward, "y = log(x)")
    assert torch.equal(y[x > 0], torch.log(x[x > 0]))
    assert y[x <= 0].isnan().all()
    assert torch.tensor(forward.get_ylim()).isfinite().all()


def test_functions_with_different_values_have_a_forward_and_a_loss_each() -> None:
    """Beside a rule, or with bounds, a function that takes no bounds is drawn without them."""
    (forward,), _ = pg.plot(["zero", torch.tanh, torch.nn.Tanh()], -1, 1)[1:]
    assert list(_lines(forward)) == ["zero", "tanh", "Tanh"]
    (forward,), (backward,) = pg.plot([torch.tanh, torch.sigmoid], grad=(2.0,))[1:]
    assert list(_lines(forward)) == ["tanh", "sigmoid"]
    x, y = _curve(forward, "sigmoid")
    assert torch.equal(y, torch.sigmoid(x))
    x, slope = _curve(backward, "sigmoid")
    assert torch.allclose(slope, 2 * torch.sigmoid(x) * (1 - torch.sigmoid(x)))
    assert len({line.get_linestyle() for line in _lines(forward).values()}) == 2
    drawn = pg.plot([torch.tanh, torch.sigmoid], loss=torch.square)
    assert [panel.get_ylabel() for panel in drawn.forward] == ["y", "loss"]
    x, y = _curve(drawn.forward[1], "tanh")
    assert torch.equal(y, torch.tanh(x) ** 2)
    assert list(_lines(drawn.backward[0])) == ["dL/dx tanh", "dL/dx sigmoid"]
    x, y = _curve(drawn.backward[0], "dL/dx tanh")
    assert torch.allclose(y, 2 * torch.tanh(x) * (1 - torch.tanh(x) ** 2))


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
    (lambda x: x.cumsum(0), {}, "ValueError: plot: f_or_rules must be element-wise, got 'f'. Its value at one x differs"),
    (make_function(torch.clone, lambda g, x: g - g.mean()), {}, "Its gradient at one x differs with the other x"),
    (make_function(torch.clone, lambda g, x: torch.rand_like(x)), {}, "must return the same gradients for the same x"),
    (lambda x: x > 0, {}, "TypeError: plot: f_or_rules must return floating-point numbers, got a Tensor of torch.bool"),
    (lambda x: x + torch.rand_like(x), {}, "ValueError: plot: f_or_rules must return the same values for the same x, got 'f'. Fix"),
    (torch.nn.Dropout(), {}, "got 'Dropout'. Fix what is random in it; a module in training mode needs eval()."),
    (pg.familiar.ClampWithGrad, {}, "TypeError: plot: f_or_rules must be rules or functions, got 'ClampWithGrad'. Give ClampWithGrad.app"),
    (torch.nn.ReLU, {}, "TypeError: plot: f_or_rules must be a module that was made, got 'ReLU'. Call it first: ReLU(...)."),
    ("zero", {"loss": torch.nn.ReLU}, "TypeError: plot: loss must be a module that was made, got 'ReLU'."),
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


def test_bad_calls() -> None:
    ax = pyplot.figure().add_subplot()
    for drawable, options, text in BAD:
        with pytest.raises((TypeError, ValueError)) as raised:
            pg.plot(drawable, **options, ax=ax)
        kind = "TypeError" if isinstance(raised.value, TypeError) else "ValueError"
        assert text in f"{kind}: {raised.value}"
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


def test_rules_of_another_op_have_its_jumps_and_edges() -> None:
    drawn = pg.plot(["window", pg.rules.triangle(2.0, 0.5)], op="sign")
    (forward,) = drawn.forward
    x, y = _curve(forward, "y = sign(x)")
    assert torch.equal(y, torch.where(x < 0, -1.0, 1.0).double())
    assert (_dots(forward), _rings(forward)) == ([([0], [0])], [([0, 0], [-1, 1])])
    x, slope = _curve(drawn.backward[0], "window")
    assert torch.equal(slope, (x.abs() < 1).double())
    x, slope = _curve(drawn.backward[1], "triangle(scale=2.0, height=0.5)")
    assert torch.allclose(slope, -0.5 * (1 - x.abs() / 2).clamp(min=0))
    assert "value at a jump" in _legend(drawn.figure)
    (forward,), (backward,) = pg.plot(pg.rules.window(0.5, 0.25), op="heaviside", grad=(1,))[1:]
    assert (_dots(forward), _rings(forward)) == ([([0], [1])], [([0], [0])])
    assert (_dots(backward), _rings(backward)) == ([([-0.5, 0.5], [0.25, 0.25])], [([-0.5, 0.5], [0, 0])])
    (backward,) = pg.plot("slope/-1", op="abs").backward
    assert _dots(backward) == [([0], [-1]), ([0], [1])]
    assert _rings(backward) == [([0], [1]), ([0], [-1])]


def test_a_line_breaks_only_where_its_own_value_jumps() -> None:
    (forward,), (backward,) = pg.plot("identity", op="round")[1:]
    lines = (forward.lines[1], _lines(backward)[UP])
    assert [int(torch.as_tensor(line.get_data()[0]).isnan().sum()) for line in lines] == [4, 0]
    assert _dots(forward) == [([-1.5, -0.5, 0.5, 1.5], [-2, 0, 0, 2])]
    assert _rings(forward) == [([-1.5, -0.5, 0.5, 1.5], [-1, -1, 1, 1])]
    assert _dots(backward) == []


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
