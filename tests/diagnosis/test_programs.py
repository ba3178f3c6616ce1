"""`diagnose` finds every planted fault at its line and nothing else, and has no finding for a healthy program."""

import functools

import pytest
import torch

from .programs import Outcome, Program, find_mistakes, load_programs, run_here, run_on_two_ranks

PLANTED, CLEAN = load_programs("planted"), load_programs("clean")


def _cases(programs: list[Program]) -> list[object]:
    # To import a trainer, or to start two processes, takes longer than all other programs.
    slow = {program.name: [pytest.mark.program] * bool(program.needs or program.ranks > 1) for program in programs}
    return [pytest.param(program, id=program.name, marks=slow[program.name]) for program in programs]


@functools.cache
def _ranked_outcomes() -> dict[str, list[Outcome]]:
    return run_on_two_ranks([program for program in (*PLANTED, *CLEAN) if program.ranks > 1])


@pytest.mark.xdist_group("programs of diagnose")
@pytest.mark.parametrize("program", _cases(PLANTED + CLEAN))
def test_a_fault_has_one_finding_at_its_line_and_a_healthy_program_none(program: Program) -> None:
    if not program.is_runnable:
        pytest.skip(f"{program.needs} is not installed")
    if program.ranks > 1 and not torch.distributed.is_available():
        pytest.skip("torch was built without distributed")
    outcomes = [run_here(program)] if program.ranks == 1 else _ranked_outcomes()[program.name]
    assert [mistake for outcome in outcomes for mistake in find_mistakes(program, outcome)] == []
