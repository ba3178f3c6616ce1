"""Every planted fault is found at its line and nothing besides; healthy programs are told nothing."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import pytest
import torch

from . import clean, planted
from . import programs as corpus
from .programs import Outcome, Program

PLANTED, CLEAN = corpus.of(planted), corpus.of(clean)
Outcomes = Callable[[Program], list[Outcome]]


def _cases(programs: list[Program]) -> list[object]:
    on_two = [pytest.mark.xdist_group("two processes"), pytest.mark.program]

    def marks(one: Program) -> list[object]:
        missed = [pytest.mark.xfail(reason=one.missed, strict=True)] if one.missed else []
        return [*missed, *(on_two if one.ranks > 1 else [])]

    return [pytest.param(one, id=one.name, marks=marks(one)) for one in programs]


@pytest.fixture(scope="module")
def outcomes() -> Outcomes:
    """Those on two ranks run together: to start a pair of processes takes longer than all of them."""

    @functools.cache
    def ranked() -> dict[str, list[Outcome]]:
        return corpus.outcomes_on_two_ranks([one for one in (*PLANTED, *CLEAN) if one.ranks > 1])

    def of(program: Program) -> list[Outcome]:
        if not program.is_runnable:
            pytest.skip(f"{program.needs} is not installed")
        if program.ranks == 1:
            return [corpus.outcome(program)]
        if not torch.distributed.is_available():
            pytest.skip("torch was built without distributed")
        return ranked()[program.name]

    return of


@pytest.mark.parametrize("program", _cases(PLANTED))
def test_a_planted_fault_is_found_at_its_line(program: Program, outcomes: Outcomes) -> None:
    assert [reason for one in outcomes(program) for reason in corpus.amiss(program, one)] == []


@pytest.mark.parametrize("program", _cases(CLEAN))
def test_a_healthy_program_is_told_nothing(program: Program, outcomes: Outcomes) -> None:
    assert [reason for one in outcomes(program) for reason in corpus.amiss(program, one)] == []


def test_there_are_enough_of_both() -> None:
    kinds = [one.marked[1] for one in PLANTED]
    assert len(set(kinds)) == len(kinds)
    assert sum(one.missed is None for one in PLANTED) >= 40
    assert len(CLEAN) >= 40
    names = [one.name for one in (*PLANTED, *CLEAN)]
    assert len(set(names) & {one.name for one in PLANTED}) + len({one.name for one in CLEAN}) >= 80


def test_a_wrong_expectation_is_seen() -> None:
    """Of the judge: another line, code or parameter, a silence and an alarm are all amiss."""
    program = next(one for one in PLANTED if one.run.__name__ == "a_temperature_starts_outside_its_clamp")
    healthy = next(one for one in CLEAN if one.run.__name__ == "a_frozen_backbone")
    found, silent = corpus.outcome(program), corpus.outcome(healthy)
    assert not list(corpus.amiss(program, found))
    for wrong in (
        dataclasses.replace(program, code="cut"),
        dataclasses.replace(program, parameters=("other",)),
        dataclasses.replace(program, run=PLANTED[1].run),
        dataclasses.replace(program, code=None),
    ):
        assert list(corpus.amiss(wrong, found))
    assert list(corpus.amiss(program, silent))
    assert list(corpus.amiss(program, dataclasses.replace(found, errors=["one"])))
