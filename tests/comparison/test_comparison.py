"""The result of compare: JSON that reads back, a picture of what was measured, a frame."""

import json
import math
import random
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import pseudograd as pg
from pseudograd.comparison.compare import check_arguments, checked_seeds
from pseudograd.comparison.comparison import Comparison
from pseudograd.comparison.picture import seeds_picture
from pseudograd.comparison.reached import Reach
from pseudograd.comparison.training import read_result, read_signature
from pseudograd.comparison.tune import Round, Tuning, _plan
from pseudograd.comparison.variants import choose_own, choose_rules
from pseudograd.comparison.verdicts import needed_seeds

from ..written import assert_written, drawing
from .test_compare import noisy

Clamp = Callable[..., Tensor]


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


def error_of(function: Callable[..., object], *arguments: object) -> object:
    """What the function returns, or its error as text."""
    try:
        return function(*arguments)
    except (TypeError, ValueError) as error:
        return re.sub(r" at 0x\w+", "", f"{type(error).__name__}: {error}")


def more_names() -> dict[str, Any]:
    functions = error_of, _plan, checked_seeds, needed_seeds, choose_own, choose_rules, read_signature, read_result
    return {function.__name__: function for function in (*functions, check_arguments)} | {"pg": pg, "torch": torch}


def test_reports_their_json_and_their_pictures_are_written_out() -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    functions = made, drawn, json_of, drawing, seeds_picture, Reach, Round
    names: dict[str, Any] = {function.__name__: function for function in functions}
    names |= more_names() | {
        "nan": math.nan,
        "inf": math.inf,
        "tuning": lambda rounds, *rest: Tuning(tuple(rounds), *rest),
    }
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


def test_all_of_a_plot_stays_on_the_canvas() -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")

    def run(clamp: Clamp, seed: int) -> float:
        return math.nan if clamp.name == "no clamp" else noisy(clamp, seed)  # type: ignore[attr-defined]

    comparison = pg.compare(run, rules=["inward"], seeds=7)
    axes = comparison.plot()
    axes.figure.canvas.draw()
    width, height = axes.figure.bbox.size
    for text in [*axes.texts, axes.title, axes.xaxis.label]:
        box = text.get_window_extent()
        assert 0 <= box.x0 <= box.x1 <= width
        assert 0 <= box.y0 <= box.y1 <= height
    pyplot.close("all")


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
