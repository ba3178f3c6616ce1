"""How our records look in a notebook: their picture, if matplotlib is installed, above their text."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_TEXT = "overflow-x: auto; white-space: pre; line-height: 1.35; font-size: 0.85em"
_ESCAPED = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;"})
_PAGE = "width: 100%; height: 36em; border: 1px solid #8884; border-radius: 4px"


def escape(text: str) -> str:
    """As `html.escape`: a program may have a file html.py, which torch does not import and we must not."""
    return text.translate(_ESCAPED)


def to_html(text: str, figure: Callable[[], Figure] | None = None) -> str:
    """The text as it is printed. figure: makes the picture above it, if matplotlib is installed."""
    picture = "" if figure is None else _svg(figure)
    return f'{picture}<pre style="{_TEXT}">{escape(text)}</pre>'


def to_frame(page: str) -> str:
    """A whole page in a frame, which keeps its style apart from that of the notebook."""
    return f'<iframe style="{_PAGE}" srcdoc="{escape(page)}"></iframe>'


def figure_of(draw: Callable[[Axes], object], size: tuple[float, float]) -> Figure:
    """A figure drawn by draw(axes). It is not one of pyplot, so a notebook does not show it a second time."""
    from matplotlib import figure as figures

    figure = figures.Figure(figsize=size, layout="constrained")
    draw(figure.subplots())
    return figure


def _svg(figure: Callable[[], Figure]) -> str:
    buffer = io.StringIO()
    try:
        figure().savefig(buffer, format="svg")
    except ImportError:
        return ""
    drawn = buffer.getvalue()
    return f'<div style="background: white; max-width: 60em">{drawn[drawn.index("<svg") :]}</div>'
