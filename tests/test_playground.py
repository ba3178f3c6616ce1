"""docs/playground.html: its curves are the library's, wherever the bounds are moved, and a browser shows them."""

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import pseudograd as pg
from pseudograd.rule import OPS

from .browser import needs_browser, shown, title_of
from .choices import folded

PAGE = Path(__file__).resolve().parents[1] / "docs" / "playground.html"
DATA: dict[str, Any] = {op["name"]: op for op in json.loads(re.search(r"const OPS = (.*);\n", PAGE.read_text())[1])}  # type: ignore[index]


def test_the_page_is_what_the_library_computes_today(script: Any) -> None:
    assert PAGE.read_text(encoding="utf-8") == script("playground_page").text(), "run scripts/generate_docs.py"
    assert set(DATA) == {*OPS}


@folded
@pytest.mark.parametrize("rule", DATA["clamp"]["rules"], ids=lambda rule: rule["name"])
@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-0.5, 1.75)])
def test_moving_the_bounds_is_moving_x(rule: dict[str, Any], low: float, high: float) -> None:
    """As toPage of the page does, for both signs of grad, and every edge."""
    x = low + (torch.tensor(DATA["clamp"]["x"], dtype=torch.float64) + 1) / 2 * (high - low)
    x[[abs(at + 1) < 1e-9 for at in DATA["clamp"]["x"]]] = low
    x[[abs(at - 1) < 1e-9 for at in DATA["clamp"]["x"]]] = high
    for edge in DATA["clamp"]["edges"]:
        for row, grad in enumerate((1.0, -1.0)):
            expected = torch.tensor(rule["slopes"][DATA["clamp"]["edge"]][row], dtype=torch.float64)
            if edge != DATA["clamp"]["edge"]:
                for place, *values in rule["slopes"][edge]:
                    expected[place] = values[row]
            leaf = x.clone().requires_grad_()
            y = pg.clamp(leaf, low, high, rule=rule["name"], edge=edge)
            gradient = torch.autograd.grad(y, leaf, torch.full_like(x, grad))[0]
            assert torch.allclose(gradient, expected, atol=2e-4)


def test_one_bound_is_moved_as_it_is() -> None:
    x = torch.tensor(DATA["lower_bound"]["x"], dtype=torch.float64)
    for rule in DATA["lower_bound"]["rules"]:
        leaf = (x + 1.5).requires_grad_()  # the bound of the curves is -1, here 0.5
        leaf.data[[abs(at + 1) < 1e-9 for at in DATA["lower_bound"]["x"]]] = 0.5
        gradient = torch.autograd.grad(pg.lower_bound(leaf, 0.5, rule=rule["name"]).sum(), leaf)[0]
        assert torch.allclose(gradient, torch.tensor(rule["slopes"]["closed"][0], dtype=torch.float64), atol=2e-4)


def test_a_jump_has_a_value_before_at_and_behind_it() -> None:
    gaps = [b - a for a, b in pairwise(DATA["clamp"]["x"])]
    assert sum(gap < 1e-3 for gap in gaps) == 4  # two bounds
    inward = next(rule for rule in DATA["clamp"]["rules"] if rule["name"] == "inward")
    at = DATA["clamp"]["x"].index(-1.0)
    assert [inward["slopes"]["closed"][0][at + side] for side in (-1, 0, 1)] == [0, 1, 1]


@needs_browser
@pytest.mark.program
@pytest.mark.parametrize("size", [(1280, 720), (500, 900)], ids=["laptop", "phone"])
def test_the_sentence_and_both_curves_are_on_the_first_screen(size: tuple[int, int], tmp_path: Path) -> None:
    script = """
    const bottoms = [...document.querySelectorAll('#said, #picture')].map((element) => element.getBoundingClientRect().bottom);
    document.title = JSON.stringify([Math.max(...bottoms), document.querySelectorAll('.slope').length]);
    """
    bottom, curves = json.loads(title_of(shown(PAGE, script, tmp_path, "--window-size={},{}".format(*size))))
    assert (bottom <= size[1], curves) == (True, 1)


@needs_browser
@pytest.mark.program
def test_a_browser_shows_it_by_address_and_by_keyboard(tmp_path: Path) -> None:
    script = """
    const said = () => document.getElementById('said').textContent;
    const ask = (hash) => { location.hash = hash; read(); return said(); };
    const found = [
      ask('#op=clamp&rule=inward&edge=closed&grad=1&x=1.5&min=-1&max=1'),
      ask('#op=clamp&rule=inward&edge=closed&grad=-1&x=1.5&min=-1&max=1'),
      ask('#op=clamp&rule=elastic&grad=-1&x=1.3&min=0&max=1'),
      ask('#op=clamp&rule=zero&edge=half&grad=1&x=1&min=-1&max=1'),
      ask('#op=relu&rule=zero&edge=open&grad=1&x=0'),
      ask('#op=nonsense&x=nonsense'),
      ask('#op=clamp&rule=inward&grad=0&target=0.5&other=zero&x=1.5&min=-1&max=1'),
    ];
    const step = document.getElementById('descend');
    step.click();
    const stepped = [said()];
    ask('#op=clamp&rule=sign&grad=0&x=1.5');
    stepped.push(document.getElementById('squared').hidden, location.hash);
    const moved = ['#op=round&rule=identity&x=7.4', '#op=clamp&x=1.5&min=-1&max=0.5'].map((hash) =>
      ask(hash) + document.getElementById('dot').getAttribute('cx') + ' of ' + document.getElementById('picture').viewBox.baseVal.width);
    const drawn = OPS.filter((op) => ask('#op=' + op.name) !== '' && document.querySelectorAll('.slope').length).map((op) => op.name);
    ask('');
    const x = document.getElementById('x');
    x.value = -1.5; x.dispatchEvent(new Event('input')); found.push(said());
    const rules = [...document.querySelectorAll('[name=rule]')].map((input) => input.value);
    const widest = Math.max(...[...document.querySelectorAll('body *')].map((e) => e.getBoundingClientRect().right));
    const room = document.documentElement.clientWidth;
    document.title = JSON.stringify({found, moved, stepped, drawn, rules, widest, room, hash: location.hash});
    """
    state = json.loads(title_of(shown(PAGE, script, tmp_path, "--window-size=400,900")).replace("&amp;", "&"))
    gradients = [re.search(r"dL/dx = ([−\d.]+)\.", text)[1] for text in state["found"]]  # type: ignore[index]
    assert gradients == ["1", "0", "0.3", "0.5", "0", "1", "1", "0"]
    assert state["drawn"] == list(OPS)
    assert ["At x = 2.25 the value is 2." in state["moved"][0], "At x = 1.25 the" in state["moved"][1]] == [True, True]
    for at, room in (re.search(r"([-\d.]+) of ([\d.]+)$", text).groups() for text in state["moved"]):  # type: ignore[union-attr]
        assert 0 <= float(at) <= float(room)
    assert "moves x to 1.25" in state["found"][0]
    assert "does not move x" in state["found"][1]
    assert ["With zero, x = 1.5 gets 0." in text for text in (state["found"][6], state["stepped"][0])] == [True, True]
    assert "At x = 1.25 the value is 1. The loss hands down dL/dy = 1;" in state["stepped"][0]
    # A rule that does not scale with grad has no such loss.
    assert [state["stepped"][1], "grad=1" in state["stepped"][2]] == [True, True]
    assert state["rules"] == list(OPS["clamp"].rules)
    assert "x=-1.5" in state["hash"]
    assert state["widest"] <= state["room"] + 1
