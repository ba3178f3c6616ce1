"""Whole texts of reports, beside the calls that make them: a file of tests/ has `>>> call` and, below it, the text."""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any


def assert_written(file: Path, names: Mapping[str, Any]) -> None:
    """Every call gives its text. With WRITE_TEXTS=1 in the environment, the file is written anew instead: read what `git diff` shows."""
    head, *parts = f"\n{file.read_text(encoding='utf-8')}".split("\n>>> ")
    for number, part in enumerate(parts):
        call, _, text = part.partition("\n")
        given = str(eval(call, dict(names))).rstrip()
        assert given == text.rstrip() or "WRITE_TEXTS" in os.environ, call
        parts[number] = f"{call}\n{given}\n"
    if "WRITE_TEXTS" in os.environ:
        file.write_text("\n>>> ".join([head, *parts])[1:], encoding="utf-8")


def error_of(call: Callable[[], object]) -> str:
    """The error of a call, with its kind."""
    try:
        call()
    except (TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def shown(value: Any) -> str:
    """The value with six digits: fields of a tuple by name, of a tensor up to twelve numbers and the sum of their sizes."""
    if hasattr(value, "_fields"):
        return "\n".join(f"{name}: {shown(part)}" for name, part in value._asdict().items())
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(shown, value))}]"
    if hasattr(value, "dtype") and hasattr(value, "abs"):
        numbers = value.double().flatten()
        size = float(numbers.nan_to_num(0.0, 0.0, 0.0).abs().sum())
        return f"{value.dtype} {_numbers(numbers.tolist(), digits=6, places=300)}, sum {size:.6g}"
    return f"{value:.9g}" if isinstance(value, float) else repr(value)


def drawing(figure: Any) -> str:
    """What a figure shows: of each axes the limits and texts, and each line, bar and text with its look and its numbers."""
    from matplotlib import pyplot

    pyplot.close(figure)  # pyplot warns of many open figures
    figure.draw_without_rendering()
    size = f"{figure.get_figwidth():g} x {figure.get_figheight():g} inches"
    return "\n".join([size, *(line for axes in figure.axes for line in _lines_of(axes))])


def _lines_of(axes: Any) -> Iterator[str]:
    from matplotlib.ticker import FixedLocator

    texts = [axes.get_title(), axes.get_title(loc="left"), axes.get_xlabel(), axes.get_ylabel()]
    spines = [name for name, spine in axes.spines.items() if spine.get_visible()]
    is_fixed = isinstance(axes.yaxis.get_major_locator(), FixedLocator)
    ticks = [label.get_text() for label in axes.get_yticklabels()] if is_fixed else ""
    ticks_of_x = axes.xaxis.get_tick_params().get("labelbottom"), axes.xaxis.get_tick_params().get("length")
    yield f"axes {texts} {axes.get_xscale()} x {_numbers(axes.get_xlim())}, y {_numbers(axes.get_ylim())}"
    spec = axes.get_subplotspec()
    yield f"  rows {spec.rowspan}, columns {spec.colspan} of {spec.get_gridspec().get_height_ratios()}"
    yield f"  shown {axes.axison}, spines {spines}, ticks {ticks} {ticks_of_x}, below {axes.get_axisbelow()}"
    for line in axes.lines:
        x, y = (_numbers(values) for values in (line.get_xdata(), line.get_ydata()))
        look = line.get_color(), line._unscaled_dash_pattern, line.get_linewidth(), line.get_marker()
        label = re.sub(r"^_child\d+", "", line.get_label())
        yield f"  line {label!r} {(*look, line.get_markerfacecolor())} x {x} y {y}"
    for patch in axes.patches:
        bounds = patch.get_extents().transformed(axes.transData.inverted()).bounds
        yield f"  patch {_numbers(patch.get_facecolor())} {_numbers(bounds)}"
    for text in axes.texts:
        yield f"  text {text.get_text()!r} at {getattr(text, 'xy', text.get_position())} {text.get_ha()} {text.get_va()}"
    if legend := axes.get_legend():
        entries = [f"{handle.get_label()} {handle.get_color()}" for handle in legend.legend_handles]
        yield f"  legend in {legend._ncols} columns: {', '.join(entries)}"


def _numbers(values: Iterable[Any], digits: int = 5, places: int = 10) -> str:
    """Up to twelve of the numbers, and how many there are."""
    numbers = [round(float(value), places) + 0.0 for value in values]
    return f"{len(numbers)}: {' '.join(f'{value:.{digits}g}' for value in numbers[:: max(1, len(numbers) // 12)])}"
