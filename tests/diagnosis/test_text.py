"""The report as text, whole, and the paragraph that stands in front of it."""

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pseudograd.diagnosis.context import Diagnosis
from pseudograd.diagnosis.judge.starving import ZEROED
from pseudograd.diagnosis.processes import ProgramReport, fields_of
from pseudograd.diagnosis.records import Copied, Finding
from pseudograd.diagnosis.tell import text as texts
from pseudograd.torch_table.eras import installed_era

from .test_limits_of_findings import site

FOUND = Finding(
    "cut", "a.py:1", "x.clamp(0, 1)", "half is cut", "it stands outside", "rule='inward'  # here; or not", 0.5
)


def report(**fields: Any) -> ProgramReport:
    empty = fields_of(Diagnosis(None, None, "full"))
    return ProgramReport({**empty, "backwards": 1, "parameters": ["w"], **fields})


def change(name: str, zero: float, norm: float) -> Any:
    return SimpleNamespace(parameter=name, zero=zero, norm=norm, cosine=0.5)


def sensitivity(family: str, share: float, **fields: Any) -> Any:
    names = {"where": None, "parameter": None, "other": "jax", "first": math.inf, "last": 0.25}
    return SimpleNamespace(family=family, share=share, **{**names, **fields})


def test_the_whole_text() -> None:
    other = replace(
        FOUND,
        where="b.py:2",
        expression="y" * 111,
        module="0.1",
        also=("1", "2", "3", "4"),
        issue="http",
        next_step="None.",
    )
    own = [
        *(change(f"p{number}", 0.5, 2.0) for number in range(9)),
        change("large", 0.5, 100.0),
        change("none", 0.5, 0.0),
    ]
    new = [*(change(f"p{number}", 0.5, 2.0 + number) for number in range(9)), change("large", 0.5, 103.0)]
    new += [change("none", 0.25, 0.0)]
    answer = report(
        backwards=2,
        parameters=["w"] * 1000,
        findings=[FOUND, replace(other, expression="y" * 110, also=(), issue=None, module=None), other],
        known=[replace(FOUND, where="c.py:3")],
        muted=2,
        starved=[SimpleNamespace(gradient=ZEROED)] * 2,
        idle=["v", "u"],
        calm=["a net is a target net, " * 5],
        copied=[
            Copied("Clip", "c.py:9", "clamp", "pg.clamp  # here"),
            Copied("Step", "c.py:10", "round", ""),
        ],
        norms=[SimpleNamespace(parameter=str(norm), norm=norm) for norm in (2.0, 0.0, 0.125, 0.5)],
        sites=[
            site(cut=500, where="a.py:1"),
            site(cut=500, where="c.py:3"),
            site(cut=0, where="d.py:1", op="tanh"),
            *(site(cut=3, where=f"{number}.py:1", op=f"op{number}") for number in range(8)),
            *(site(cut=cut, arrived=8, where=f"d.py:{cut}") for cut in (1, 5)),
        ],
        sensitivity=[
            sensitivity("abs", 1.0),
            sensitivity("relu", 1.5),
            sensitivity("no", 1.0, where="a.py:1"),
            sensitivity("no", 1.0, parameter="w"),
        ],
        unsensed={"a hook": 1},
        inexact={"a": ["one reason", "another"]},
        untouched=["b"],
        whatif={"as it is": own, "b": new, "c": [], "d": new, "e": own[:1], "f": [*new[2:8], *new[9:]]},
        errors=["a hook: ValueError"],
    )
    assert str(answer) == WHOLE.format(
        torch=torch.__version__, era=installed_era(), long="y" * 110, cut="y" * 107, zeroed=ZEROED
    )


WHOLE = Path(__file__).with_name("report.txt").read_text(encoding="utf-8").removesuffix("\n")


def test_a_text_without_a_backward_and_one_about_a_single_parameter() -> None:
    lines = str(report(backwards=0, errors=["a hook"])).splitlines()
    assert lines[1:4] == [
        "  no backward started inside the context, so there is nothing to say",
        "",
        "    incomplete: a hook",
    ]
    lines = str(
        report(norms=[SimpleNamespace(parameter="w", norm=1.0)], starved=[SimpleNamespace(gradient="zeros")])
    ).splitlines()
    assert lines[2:] == ["parameters: 1 of 1 starve: no gradient, or zeros alone"]
    norms = [SimpleNamespace(parameter=str(norm), norm=norm) for norm in (2.0, 0.125)]
    assert "norms of their gradients: 0.12 (0.125) to 2 (2.0)" in str(report(norms=norms))


LEARNS: dict[str, dict[str, Any]] = {
    "no parameter was met": {"parameters": []},
    "none of 1 parameter starves": {},
    "1 of 2 parameters starves": {"parameters": ["v", "w"], "starved": ["w"]},
    "2 of 3 parameters starve": {"parameters": ["u", "v", "w"], "starved": ["v", "w"]},
    "nothing learns, as the one parameter starves": {"starved": ["w"]},
    "nothing learns, as all 2 parameters starve": {"parameters": ["v", "w"], "starved": ["v", "w"]},
    "none of 1 parameter starves, and 2 get a gradient that no optimiser uses": {
        "findings": [
            replace(FOUND, code="unused", parameters=("v", "w")),
            replace(FOUND, code="unused", parameters=("w",)),
        ]
    },
    "1 of 1 parameter got a gradient that is not finite, from which nothing can be learned": {
        "findings": [
            replace(FOUND, code="nonfinite", parameters=("w",)),
            replace(FOUND, code="unused", parameters=("w",)),
        ]
    },
}


@pytest.mark.parametrize("learns", LEARNS)
def test_the_head_says_what_learns(learns: str) -> None:
    answer = report(**LEARNS[learns])
    assert texts._describe_learning(answer) == learns
    assert " ".join(texts.head(answer)).startswith(f"In short: {learns}")


def test_the_head_names_the_finding_that_comes_first() -> None:
    assert texts.head(report(backwards=0)) == []
    assert texts.head(report()) == [
        "In short: none of 1 parameter starves, and nothing wrong was found in 1 backward",
        "pass.",
    ]
    known = texts.head(report(backwards=2, known=[FOUND]))
    assert " ".join(known).endswith("found in 2 backward passes; 1 finding of the baseline left out.")
    assert texts.head(report(findings=[FOUND])) == [
        "In short: none of 1 parameter starves. First: cut at a.py:1, x.clamp(0, 1): half",
        "is cut.",
        "What to do:",
        "    rule='inward'",
        "    # here; or not",
        "More stands below.",
    ]
    codes = ["guard", "cut", "unused", "starved", "nonfinite"]
    for number in range(1, 6):
        findings = [replace(FOUND, code=code, where="?", expression="") for code in codes[:number]]
        lines = texts.head(report(findings=findings))
        assert f"First: {codes[number - 1]}: half is cut." in " ".join(lines)
        assert lines[-1] == ("More stands below." if number == 1 else f"All {number} findings stand below.")


WORDS = {
    "gradient ": [1] * 12,
    "gradient" * 18 + " ": [1, 2, 1, 1, 2, 1, 1, 1],
    "torch.log(x).exp() ": [1] * 12,
}


@pytest.mark.parametrize("word", WORDS)
def test_the_head_has_twelve_lines_of_80_columns_at_most(word: str) -> None:
    """Two of these are for the remark on the line to paste."""
    long = replace(FOUND, expression=word * 40, evidence=word * 40, next_step=f"{word * 40}  # {word * 40}")
    lines = texts.head(report(findings=[long]))
    assert [-(-len(line) // 80) for line in lines] == WORDS[word]
    assert word[:8] in " ".join(lines)


def test_an_expression_and_a_sentence_of_the_head_are_shortened() -> None:
    long = replace(FOUND, expression="b " * 99, evidence="a " * 199, next_step="c " * 199)
    words = " ".join(texts.head(report(findings=[long]))).split()
    assert [words.count(letter) for letter in "bac"] == [78, 118, 118]


def test_no_line_breaks_within_a_word() -> None:
    for word in ("a" * 200, f"{'a' * 60}-{'b' * 60}"):
        assert texts._narrow(f"{word} and more") == [word, "and more"]
