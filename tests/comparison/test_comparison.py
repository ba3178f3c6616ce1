"""The result of compare: JSON that reads back, a picture of what was measured, a frame."""

import json
import math
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import pseudograd as pg
from pseudograd.comparison.comparison import Comparison
from pseudograd.comparison.picture import seeds_picture
from pseudograd.comparison.reached import Reach
from pseudograd.comparison.tune import Round, Tuning

from ..written import assert_written, drawing
from .test_compare import noisy

Clamp = Callable[..., Tensor]
TWO = {"a": abs, "b": abs}


def made(**values: Any) -> Comparison:
    """A comparison of numbers that are written by hand. A field of the record has its own name; all others are numbers."""
    fields = {name: values.pop(name) for name in list(values) if name in Comparison.__dataclass_fields__}
    seeds = tuple(range(len(next(iter(next(iter(values.values())).values())))))
    how = {"better": dict.fromkeys(values, "lower"), "run": "mine", "torch": "2.13.0"} | fields
    return Comparison(seeds=seeds, values=values, **how)


def drawn(*names: str) -> dict[str, tuple[float, ...]]:
    gauss = random.Random(4).gauss
    return {name: tuple(round(gauss(0, 1), 3) for _ in range(10)) for name in names}


def json_of(comparison: Comparison) -> str:
    return "\n".join(
        f"{key}: {json.dumps(value)}" for key, value in comparison.to_json().items() if key != "pseudograd"
    )


def test_reports_their_json_and_their_pictures_are_written_out() -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    functions = made, drawn, json_of, drawing, seeds_picture, Reach, Round
    names: dict[str, Any] = {function.__name__: function for function in functions}
    names |= {"nan": math.nan, "inf": math.inf, "tuning": lambda rounds, *rest: Tuning(tuple(rounds), *rest)}
    names["line"] = lambda start, seeds=12: tuple(start + seed / 8 for seed in range(seeds))
    assert_written(Path(__file__).with_name("reports.txt"), names)
    pyplot.close("all")


def test_json_holds_all_of_it_and_reads_back(tmp_path: Path) -> None:
    def run(clamp: Clamp, seed: int) -> dict[str, float]:
        if clamp.name == "sign" and seed == 1:  # type: ignore[attr-defined]
            raise ValueError("gone")
        return {"loss": math.inf if clamp.name == "leaky" else noisy(clamp, seed), "score": noisy(clamp, seed)}  # type: ignore[attr-defined]

    comparison = pg.compare(
        run, rules=["inward", "sign", "leaky"], seeds=7, better={"loss": "lower", "score": "higher"}
    )
    stored = json.loads(json.dumps(comparison.to_json(), allow_nan=False))
    assert stored["kind"] == "pseudograd comparison"
    assert stored["values"]["loss"]["leaky"] == ["inf"] * 7
    assert stored["values"]["loss"]["sign"][1] is None
    assert stored["verdicts"]["score"]["inward"]["verdict"] == comparison.verdict("inward", "score").verdict
    assert stored["edge"]["loss"]["p"] == comparison.edge().p
    comparison.write(tmp_path / "found.json")
    assert json.loads((tmp_path / "found.json").read_text(encoding="utf-8")) == stored
    with pytest.raises(ValueError, match="compare: file must lie where files can be written"):
        comparison.write(tmp_path / "nowhere" / "found.json")


def test_plot_draws_every_seed_and_the_median_and_says_the_verdicts() -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")

    def run(clamp: Clamp, seed: int) -> float:
        return math.nan if clamp.name == "no clamp" else noisy(clamp, seed)  # type: ignore[attr-defined]

    comparison = pg.compare(run, rules=["inward"], seeds=7)
    axes = comparison.plot()
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == list(comparison.variants)
    finite = [name for name in names if name != "no clamp"]
    dots = [tuple(line.get_xdata()) for line in axes.lines if line.get_linestyle() == "None" and len(line.get_xdata())]
    assert dots == [comparison.values["the number"][name] for name in finite]
    medians = [line.get_xdata()[0] for line in axes.lines if line.get_linestyle() == "-"]
    assert medians == [comparison.median(name) for name in finite]
    texts = [text.get_text() for text in axes.texts]
    # The least p of seven seeds, 2 / 128, divided by this comparison's share of the level, 0.35.
    assert f"worse (p = 0.045)\n{comparison.verdict('inward').size}" in texts
    assert {"no run ends in a number", "what you have"} <= set(texts)
    axes.figure.canvas.draw()
    width, height = axes.figure.bbox.size
    for text in [*axes.texts, axes.title, axes.xaxis.label]:
        box = text.get_window_extent()
        assert 0 <= box.x0 <= box.x1 <= width
        assert 0 <= box.y0 <= box.y1 <= height
    pyplot.close("all")


def test_what_is_no_number_is_refused() -> None:
    for value, text in (
        (torch.rand(3), "return a number"),
        (torch.rand(1, requires_grad=True), "return numbers without a gradient"),
        (["a", "b"], "return a number"),
        (torch.rand(0), "return a number"),
        (torch.rand(1, dtype=torch.complex64), "return a number"),
    ):
        with pytest.raises(TypeError, match=f"run's 'more' must {text}"):
            pg.compare(lambda step, value=value: {"loss": 1.0, "more": value}, variants=TWO, seeds=2)  # type: ignore[misc]


def test_a_frame_has_a_row_for_each_variant_and_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    variants = {"a": abs, "b": lambda x: 1 / x}
    comparison = pg.compare(lambda step, seed: {"loss": step(seed), "more": 1.0}, variants=variants, seeds=2)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="to_frame: pandas must be installed"):
        comparison.to_frame()
    monkeypatch.undo()
    pandas = pytest.importorskip("pandas")
    frame = comparison.to_frame()
    assert list(frame.columns) == ["variant", "seed", "loss", "more", "failure"]
    assert frame["loss"].tolist()[:2] == [0.0, 1.0]
    assert frame["failure"].tolist()[2].startswith("ZeroDivisionError")
    assert pandas.isna(frame["loss"][2])
