"""The report as text, whole, and the paragraph that stands in front of it."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from pseudograd.diagnosis.context import Diagnosis
from pseudograd.diagnosis.judge.starving import ZEROED
from pseudograd.diagnosis.processes import ProgramReport, fields_of
from pseudograd.diagnosis.records import Copied, Finding
from pseudograd.diagnosis.tell import text as texts
from pseudograd.torch_table.eras import installed_era

from ..written import assert_written
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


def below(**fields: Any) -> str:
    """The report without its first line, which names torch."""
    return str(report(**fields)).partition("\n")[2]


def head(*, findings: Sequence[Finding] = (), **fields: Any) -> str:
    """The paragraph in front of the report, each line of 80 columns at most."""
    answer = report(findings=[*findings], **fields)
    lines = texts.head(answer)
    learning = texts._describe_learning(answer)
    assert not lines or " ".join(lines).startswith(f"In short: {learning}")
    return "\n".join(lines)


def found(code: str, *parameters: str) -> Finding:
    return replace(FOUND, code=code, parameters=parameters, where="?", expression="")


def lengths(word: str) -> list[int]:
    """Of each line of the head, the lines of 80 columns that it fills. Two of twelve are for the remark on the line to paste."""
    long = replace(FOUND, expression=word * 40, evidence=word * 40, next_step=f"{word * 40}  # {word * 40}")
    lines = texts.head(report(findings=[long]))
    assert word[:8] in " ".join(lines)
    return [-(-len(line) // 80) for line in lines]


def test_the_written_heads_and_texts() -> None:
    assert_written(Path(__file__).with_name("heads.txt"), globals())


def test_an_expression_and_a_sentence_of_the_head_are_shortened() -> None:
    long = replace(FOUND, expression="b " * 99, evidence="a " * 199, next_step="c " * 199)
    words = " ".join(texts.head(report(findings=[long]))).split()
    assert [words.count(letter) for letter in "bac"] == [78, 118, 118]


def test_no_line_breaks_within_a_word() -> None:
    for word in ("a" * 200, f"{'a' * 60}-{'b' * 60}"):
        assert texts._narrow(f"{word} and more") == [word, "and more"]
