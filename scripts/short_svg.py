"""A figure as a short SVG file: one line for each panel, so that a rule more is a few changed lines in the picture of each op.

Matplotlib writes a line for each point, and text as outlines. Here a curve has the points that one can see, a marker is a circle, text is
text, and nothing has an id.
"""

from __future__ import annotations

import io
import itertools
import math
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree
from xml.sax.saxutils import escape

_SVG = "{http://www.w3.org/2000/svg}"
_HREF = "{http://www.w3.org/1999/xlink}href"
_NEAR = 0.1  # points of a curve that lie nearer to the line between their neighbours are left out
_FONTS = "'DejaVu Sans', Verdana, sans-serif"  # what matplotlib measures with, and what is as wide
_LOOK = f'fill="none" stroke-linejoin="round" font-family="{_FONTS}"'
_DEFAULTS = {
    "fill": "none",
    "stroke-width": "1",
    "stroke-dashoffset": "0",
    "stroke-linecap": "butt",
    "stroke-linejoin": "round",
}

_BACKGROUND = (("fill", "#ffffff"),)  # of figure and panels; the file has one of its own

Point = tuple[float, float]
Look = tuple[tuple[str, str], ...]


class Mark(NamedTuple):
    """A path or a circle, as text, and how it is drawn."""

    tag: str
    place: str
    look: Look
    is_clipped: bool


def save(figure: Any, path: Path) -> None:
    """Write `figure` to `path`."""
    import matplotlib

    drawn = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "pseudograd", "svg.fonttype": "none"}):
        figure.savefig(drawn, format="svg", metadata={"Date": None})
    path.write_text(short(drawn.getvalue()), encoding="utf-8")


def short(svg: str) -> str:
    """The same picture, one line for the legend and for each panel."""
    root = ElementTree.fromstring(svg)
    markers = {element.get("id"): element for element in root.iter(f"{_SVG}path") if element.get("id")}
    boxes = {element.get("id"): element[0] for element in root.iter(f"{_SVG}clipPath")}
    _, _, wide, high = root.get("viewBox", "").split()
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}pt" height="{high}pt" {_LOOK}>',
        f'<rect width="{wide}" height="{high}" fill="#ffffff"/>',
    ]
    (figure,) = root.findall(f"{_SVG}g")
    for group in figure.findall(f"{_SVG}g"):
        if line := _panel(group, markers, boxes):
            lines.append(line)
    return "\n".join([*lines, "</svg>", ""])


def _panel(group: ElementTree.Element, markers: dict[Any, Any], boxes: dict[Any, Any]) -> str:
    """What is drawn in a panel, then its texts. What lies outside the axes is cut off by an image in the image."""
    marks = [mark for mark in _marks(group, markers) if mark.look != _BACKGROUND]
    clip = next((element.get("clip-path") for element in group.iter() if element.get("clip-path")), None)
    inside = "".join(_written(mark for mark in marks if mark.is_clipped))
    if clip and inside:
        box = boxes[clip.removeprefix("url(#").removesuffix(")")]
        x, y, wide, high = (_number(float(box.get(name))) for name in ("x", "y", "width", "height"))
        place = f'x="{x}" y="{y}" width="{wide}" height="{high}" viewBox="{x} {y} {wide} {high}"'
        inside = f"<svg {place}>{inside}</svg>"
    around = "".join(_written(mark for mark in marks if not mark.is_clipped))
    texts = "".join(_text(element) for element in group.iter(f"{_SVG}text"))
    texts = f'<g fill="#000000">{texts}</g>' if texts else ""
    return f"<g>{inside}{around}{texts}</g>" if inside or around or texts else ""


def _written(marks: Iterable[Mark]) -> Iterator[str]:
    """Paths that follow each other and look the same are one."""
    for (tag, look), same in itertools.groupby(marks, key=lambda mark: (mark.tag, mark.look)):
        shown = "".join(f' {name}="{value}"' for name, value in look)
        if tag == "path":
            yield f'<path d="{"".join(mark.place for mark in same)}"{shown}/>'
        else:
            yield from (f"<circle {mark.place}{shown}/>" for mark in same)


def _marks(group: ElementTree.Element, markers: dict[Any, Any], clip: bool = False) -> Iterator[Mark]:
    for element in group:
        is_clipped = clip or element.get("clip-path") is not None
        if element.tag == f"{_SVG}g":
            yield from _marks(element, markers, is_clipped)
        elif element.tag == f"{_SVG}path":
            yield Mark("path", _path(element.get("d", "")), _look(element.get("style", "")), is_clipped)
        elif element.tag == f"{_SVG}use":
            yield _placed(markers[element.get(_HREF, "")[1:]], element, is_clipped)


def _placed(marker: ElementTree.Element, at: ElementTree.Element, is_clipped: bool) -> Mark:
    x, y = (float(at.get(name, "0")) for name in ("x", "y"))
    look, d = _look(f"{marker.get('style', '')}; {at.get('style', '')}"), marker.get("d", "")
    if "C" not in d:
        return Mark("path", _path(d, x, y), look, is_clipped)
    radius = float(d.split()[2])  # a circle begins at its lowest point
    return Mark("circle", f'cx="{_number(x)}" cy="{_number(y)}" r="{_number(radius)}"', look, is_clipped)


def _look(style: str) -> Look:
    pairs = dict(part.strip().split(": ") for part in style.split(";") if part.strip())
    return tuple((name, value) for name, value in pairs.items() if _DEFAULTS.get(name) != value)


def _text(element: ElementTree.Element) -> str:
    look = dict(_look(element.get("style", "")))
    x, y = (_number(float(element.get(name, "0"))) for name in ("x", "y"))
    turned = f' transform="rotate(-90 {x} {y})"' if "rotate(-90" in element.get("transform", "") else ""
    place = f'x="{x}" y="{y}" font-size="{look["font-size"].removesuffix("px")}" text-anchor="{look["text-anchor"]}"'
    return f"<text {place}{turned}>{escape(element.text or '')}</text>"


# --- paths ------------------------------------------------------------------------------------------------------------


def _path(d: str, x: float = 0.0, y: float = 0.0) -> str:
    """The strokes of a path that is moved by x and y."""
    written = []
    for stroke in re.split(r"(?=M)", d):
        numbers = [float(number) for number in re.findall(r"-?[\d.]+(?:e-?\d+)?", stroke)]
        points = [(a + x, b + y) for a, b in zip(numbers[::2], numbers[1::2], strict=True)]
        if points:
            first, *others = _without_needless(points)
            written.append("M" + "L".join(_point(point) for point in (first, *others)) + ("z" if "z" in stroke else ""))
    return "".join(written)


def _without_needless(points: list[Point]) -> list[Point]:
    """Those that are needed to draw the same line to a tenth of a point (Ramer, Douglas and Peucker)."""
    if len(points) < 3:
        return points
    distances = [_distance(point, points[0], points[-1]) for point in points[1:-1]]
    farthest = max(range(len(distances)), key=distances.__getitem__)
    if distances[farthest] < _NEAR:
        return [points[0], points[-1]]
    middle = farthest + 1
    return _without_needless(points[: middle + 1])[:-1] + _without_needless(points[middle:])


def _distance(point: Point, start: Point, end: Point) -> float:
    """Of a point from the line through two others; from the first, where these are one."""
    along, up = end[0] - start[0], end[1] - start[1]
    length = math.hypot(along, up)
    if length == 0:
        return math.dist(point, start)
    return abs(along * (point[1] - start[1]) - up * (point[0] - start[0])) / length


def _point(point: Point) -> str:
    return f"{_number(point[0])} {_number(point[1])}"


def _number(value: float) -> str:
    """To a tenth of a point."""
    return f"{round(value, 1) + 0.0:g}" if abs(value) < 1e5 else f"{value:.0f}"
