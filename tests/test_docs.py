"""The pages of the ops: one for each, with what the table says, links that lead somewhere, and a picture."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest

from pseudograd.rule import OPS

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "ops"


@pytest.fixture(scope="module")
def op_pages(script: Any) -> Any:
    return script("op_pages")


def test_pages_are_what_the_table_says_today(op_pages: Any) -> None:
    pages = op_pages.pages()
    assert {path.stem for path in pages} == {*OPS, "vector_quantize", "README"}
    for path, text in pages.items():
        assert path.read_text(encoding="utf-8") == text, f"run scripts/generate_docs.py: {path.name}"
    assert {path.name for path in FOLDER.iterdir()} == {path.name for path in [*pages, *op_pages.pictures()]}


@pytest.mark.parametrize("name", OPS)
def test_a_page_has_every_rule_edge_and_link(name: str) -> None:
    text = (FOLDER / f"{name}.md").read_text(encoding="utf-8")
    op = OPS[name]
    rows = [re.sub(r"\\\|", "|", line) for line in text.splitlines() if line.startswith("| ")]
    for rule in op.rules.values():
        row = next(row for row in rows if re.match(rf"\| `{rule.name}[(`]", row))  # an edge may bear its name, below
        assert rule.formula in row
        assert rule.source in row
    if name != "abs":  # whose edge is a number
        assert all(any(row.startswith(f"| `{edge}`") for row in rows) for edge in op.edges)
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert len(links) == 3 + (name == "policy_loss")  # and to the losses by their names
    assert all((FOLDER / link).is_file() for link in links)
    assert f"pytest -k {name}" in text


def test_a_picture_is_the_same_every_time(op_pages: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    drawn = []
    for folder in (tmp_path / "one", tmp_path / "two"):
        monkeypatch.setattr(op_pages, "FOLDER", folder)
        monkeypatch.setattr(op_pages, "OPS", {"abs": OPS["abs"]})
        op_pages.draw()
        drawn.append((folder / "abs.svg").read_bytes())
    assert drawn[0] == drawn[1]


def test_a_short_picture_shows_what_matplotlib_drew(script: Any, tmp_path: Path) -> None:
    """A corner of 401 points is three, where they lie; a circle is one; text is text; and every panel is one line."""
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4, 2))
    for panel in figure.subplots(1, 2):
        x = [i / 200 - 1 for i in range(401)]
        panel.plot(x, [abs(value) for value in x], color="#0072b2", linewidth=2)
        panel.plot([0.5], [0.5], "o", color="#d55e00")
        panel.set(title="a < b", xlim=(-1, 1), ylim=(-1, 2))
    script("short_svg").save(figure, tmp_path / "two.svg")
    head, back, first, second, end = (tmp_path / "two.svg").read_text(encoding="utf-8").splitlines()
    assert (head[:4], back[:5], end) == ("<svg", "<rect", "</svg>")
    for line, panel in zip((first, second), figure.axes, strict=True):
        to_points = panel.transData + figure.dpi_scale_trans.inverted()
        places = [(72 * x, 144 - 72 * y) for x, y in to_points.transform([(-1, 1), (0, 0), (1, 1), (0.5, 0.5)])]
        assert re.findall(r'd="M([^"]*)" stroke="#0072b2" stroke-width="2"', line) == [
            "L".join(f"{round(x, 1):g} {round(y, 1):g}" for x, y in places[:3])
        ]
        x, y = places[3]
        assert f'<circle cx="{round(x, 1):g}" cy="{round(y, 1):g}" r="3"' in line
        assert ">a &lt; b</text>" in line


@pytest.mark.parametrize(
    "call", ["clip_grad(x, limit=0.5)", "scale_grad(x, scale=0.25)", "leaky_relu(x, negative_slope=0.1)"]
)
def test_a_picture_of_one_rule_says_what_it_is_drawn_with(call: str) -> None:
    name = call.partition("(")[0]
    assert f">{call}</text>" in (FOLDER / f"{name}.svg").read_text(encoding="utf-8")
    assert f"Drawn: `{call}`" in (FOLDER / f"{name}.md").read_text(encoding="utf-8")


# --- formulas as mathematics ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mathematics(script: Any) -> Any:
    return script("mathematics")


EXPRESSIONS = [
    "slope * grad",
    "grad * (max - x) / (max - min)",
    "grad * (x - min) / (max - min)",
    "-grad * min(1, |x - y| / (width * (max - min)))",
    "grad * height * max(0, 1 - |u|)",
    "grad * height / scale / (1 + (pi * u)^2)",
    "grad * height / scale * e / (1 + e)^2",
    "grad * height / (1 + |u|)^2",
    "grad * height / (scale * sqrt(2 * pi)) * exp(-u^2 / 2)",
]


def _braced(text: str, at: int) -> tuple[str, str]:
    """What stands between the brace that opens at `at` and its partner, and what stands behind."""
    depth = 0
    for end in range(at, len(text)):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if depth == 0:
            return text[at + 1 : end], text[end + 1 :]
    raise AssertionError(f"unbalanced: {text}")


def _as_python(latex: str) -> str:
    for command, pattern in ((r"\frac", "(({})/({}))"), (r"\sqrt", "sqrt({})"), ("^", "**({})"), (r"\mathrm", "{}")):
        while command + "{" in latex:
            before, _, _ = latex.partition(command + "{")
            first, rest = _braced(latex, len(before) + len(command))
            second, rest = _braced(rest, 0) if "/" in pattern else ("", rest)
            latex = before + pattern.format(first, second) + rest
    for old, new in {
        r"\left|": "abs(", r"\right|": ")", r"\left(": "(", r"\right)": ")", r"\,": "*", r"x_{\min}": "low", r"x_{\max}": "high",
        r"\pi": "pi", r"\min": "min", r"\max": "max", r"\exp": "exp",
    }.items():  # fmt: skip
        latex = latex.replace(old, new)
    return latex


def test_mathematics_has_the_value_of_the_formula(mathematics: Any) -> None:
    """Both are computed: the formula by its own words, its LaTeX as it is read."""
    written = {formula for op in OPS.values() for rule in op.rules.values() for formula in [rule.formula]}
    known = {"abs": abs, "min": min, "max": max, "exp": math.exp, "sqrt": math.sqrt, "pi": math.pi}
    numbers = {"x": 1.7, "y": 0.9, "u": -0.6, "e": 0.3, "g": -1.3, "low": -0.4, "high": 0.9}
    numbers |= {"slope": 0.3, "width": 0.7, "height": 1.9, "scale": 0.8}
    for text in EXPRESSIONS:
        assert any(text in formula for formula in written), "no formula of the table"
        code = re.sub(r"\|([^|]+)\|", r"abs(\1)", text).replace("^", "**").replace("grad", "g")
        code = re.sub(r"\bmin\b(?!\()", "low", re.sub(r"\bmax\b(?!\()", "high", code))
        expected = eval(code, {**known, **numbers})
        found = eval(_as_python(mathematics.of_rule(text)), {**known, **numbers})
        assert found == pytest.approx(expected, rel=1e-12), text


def test_mathematics_of_cases(mathematics: Any) -> None:
    assert mathematics.of_rule("grad, or 0 where grad points strictly outward") == (
        r"\begin{cases} 0 & g \text{ points strictly outward} \\ g & \text{else} \end{cases}"
    )
    assert mathematics.of_rule("grad where x > 0, -grad where x < 0, edge * grad where x is 0") == (
        r"\begin{cases} g & x > 0 \\ -g & x < 0 \\ \mathrm{edge} \, g & x = 0 \end{cases}"
    )
    assert mathematics.of_rule("height * grad where |x| <= scale, else 0") == (
        r"\begin{cases} \mathrm{height} \, g & \left| x \right| \leq \mathrm{scale} \\ 0 & \text{else} \end{cases}"
    )


def test_a_formula_in_other_words_stands_there_as_text(mathematics: Any) -> None:
    assert mathematics.of_rule("grad, as seen in a mirror") == r"\text{grad, as seen in a mirror}"
    for op in OPS.values():
        for rule in op.rules.values():
            assert not mathematics.of_rule(rule.formula).startswith(r"\text"), rule.formula


@pytest.mark.parametrize("name", OPS)
def test_a_page_has_a_line_of_mathematics_for_each_rule(name: str) -> None:
    (block,) = re.findall(r"```math\n(.*?)```", (FOLDER / f"{name}.md").read_text(encoding="utf-8"), re.DOTALL)
    lines = block.splitlines()[1:-1]
    assert [re.findall(r"^\\texttt{([^}]*)}", line)[0].replace("\\", "") for line in lines] == list(OPS[name].rules)
    assert block.count("{") == block.count("}")
    assert block.count(r"\left") == block.count(r"\right")


# --- the picture of the policies --------------------------------------------------------------------------------------


def test_the_picture_of_the_policies_has_a_title_and_each_line_once_in_its_legend(
    script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    figure_module = pytest.importorskip("matplotlib.figure")
    page = script("policy_page")
    saved: list[Any] = []
    monkeypatch.setattr(figure_module.Figure, "savefig", lambda figure, *_, **__: saved.append(figure))
    page.draw()
    (figure,) = saved
    assert "gradient" in figure.get_suptitle()
    (legend,) = figure.legends
    shown = [text.get_text() for text in legend.get_texts()]
    assert shown == ["without a clip", "advantage up, A = 1", "advantage down, A = -1", "bounds of the clip"]
