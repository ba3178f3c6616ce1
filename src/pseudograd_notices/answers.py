"""The answers of `upgrade` and `bisect` as notices, each at the line that differs or decides. The answers are read from their JSON."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypedDict

from .code import Code
from .formats import Report
from .notice import Notice, Problem

_MOST_TESTS = 5  # of one cause, that a message names
CODES = (
    Code(
        "PG301",
        "other-convention",
        "two versions of torch choose different gradients at a kink or a tie, and the training differs from this line on",
        "`upgrade` tries a pin to the older torch, and the message says whether the pin mends it.",
        "Do what the message says: a pin, a marker of pytest, or the newer convention. Or do not start exactly at the bound.",
    ),
    Code(
        "PG302",
        "other-op",
        "two versions of torch compute different values or gradients here, by more than rounding",
        "",
        "Look at the line. If it should compute the same under both, report it upstream; `--cut-out FILE` writes a program for the report.",
    ),
    Code(
        "PG303",
        "no-repeat",
        "two equal runs under one torch differ here",
        "From this line on, a difference between two versions of torch cannot be seen.",
        "Seed what the program or the test draws, and run `upgrade` again.",
    ),
    Code(
        "PG304",
        "fails-in-one",
        "the program or the test fails under one torch alone, and up to this line both compute the same",
        "",
        "Read the error in the message. Often a function was removed, or the program compares versions.",
    ),
    Code(
        "PG401",
        "decides",
        "the change of the rule or edge at this line decides whether the program passes",
        "`bisect` ran the program with the change at fewer and fewer lines. Without this line, the change is not enough.",
        "Put the pin or the override around this line alone.",
    ),
)
_NAMES = {code.number: code.name for code in CODES}
_NUMBERS = {
    "a kink's convention": "PG301",
    "another op": "PG302",
    "the program's own": "PG303",
    "fails in one of them": "PG304",
}
_UNKNOWN = "?"  # a location that nobody recorded
_TRACEBACK, _MESSAGE = re.compile(r'File "(.+)", line (\d+)'), re.compile(r"(\S.*?):(\d+): ")


class Location(TypedDict):
    op: str
    where: str
    user_where: str
    expression: str


class Difference(Location):
    kind: str  # forward, backward or update
    step: int


class Answer(TypedDict, total=False):
    """The answer of `upgrade` for a program; or, with `causes`, for a suite; or, with `tests`, for one cause of a suite."""

    answer: str
    survives: bool
    torch: Sequence[str]
    why: Sequence[str]
    next_steps: Sequence[str]
    difference: Difference | None
    not_compared: Sequence[str]
    tests: Mapping[str, Mapping[str, Sequence[str]]]
    causes: Sequence[Answer]
    counts: Mapping[str, int]


class Site(Location):
    callers: Sequence[str]


class Bisection(TypedDict):
    change: str
    outcome: str
    passes: Sequence[bool]
    decide: Sequence[Site]
    is_alone: bool


def report_upgrade(text: str, program: str) -> Report:
    """A notice for each cause. Each part that was not compared is a problem, so that the command fails. text: the answer as JSON."""
    answer: Answer = json.loads(text)
    notices, problems = [], [*answer["not_compared"]]
    for cause in answer.get("causes", [answer]):
        if cause["answer"] in _NUMBERS:
            notices.append(_describe_cause(cause, answer, program))
        elif not cause["survives"]:
            problems.append("; ".join([cause["answer"], *cause["why"], *cause.get("tests", ())]))
    counts = answer.get("counts", {}).items()
    problems += [f"{count} of the tests: {kind}" for kind, count in counts if "not explained" in kind and count]
    return Report("upgrade", notices, [Problem(program, 0, message) for message in dict.fromkeys(problems)], CODES)


def _describe_cause(cause: Answer, answer: Answer, program: str) -> Notice:
    """The notice of a cause. If no line is known to differ, it is at the line where the program or the first test fails."""
    number, difference, tests = _NUMBERS[cause["answer"]], cause.get("difference"), cause.get("tests", {})
    old, new = answer["torch"]
    head, expression, locations = f"torch {old} -> {new}: {cause['answer']}", "", []
    if difference is not None:
        expression = difference["expression"]
        call = f"{difference['kind']} of {difference['op']}, step {difference['step']}"
        head += f", {call}: {expression}" if expression else f", {call}"
        locations = [difference["where"], difference["user_where"]]
    else:
        locations = [f"{file}:{line}" for text in reversed(cause["why"]) for file, line in _TRACEBACK.findall(text)]
        messages = [message for pair in tests.values() for _, message in pair.values()]
        locations += [f"{match[1]}:{match[2]}" for message in messages if (match := _MESSAGE.match(message))]
    locations += [f"{name.partition('::')[0]}:0" for name in tests]
    lines = [*(f"next: {step}" for step in cause["next_steps"]), *_describe_tests(tests, old, new), *cause["why"]]
    return _make_notice(number, head, lines, expression, locations, program)


def _describe_tests(tests: Mapping[str, Mapping[str, Sequence[str]]], old: str, new: str) -> Iterator[str]:
    for name, ends in list(tests.items())[:_MOST_TESTS]:
        (before, message), (after, new_message) = ends["old"], ends["new"]
        text = f"{before} under both" if before == after else f"{before} under torch {old}, {after} under torch {new}"
        yield ": ".join(filter(None, [name, text, new_message or message]))
    if len(tests) > _MOST_TESTS:
        yield f"and {len(tests) - _MOST_TESTS} more tests"


def report_bisection(text: str, program: str) -> Report:
    """A notice for each line that decides. text: the answer as JSON."""
    answer: Bisection = json.loads(text)
    before, after = ("passes" if passes else "fails" for passes in answer["passes"])
    head = f"as it is the program {before}, with {answer['change']} everywhere it {after}; "
    rest = len(answer["decide"]) - 1
    head += "this line decides" if not rest else f"this line decides, together with {rest} more"
    contexts = answer["change"].replace(" and ", ", pseudograd.")
    step = f"with pseudograd.{contexts}: ...  # around it" if answer["passes"][1] else "keep what this line does now"
    notices = []
    for site in answer["decide"]:
        lines = [f"next: {step}", *(f"reached by way of {caller}" for caller in site["callers"])]
        lines += [] if answer["is_alone"] else ["the change is enough here, and it is enough elsewhere"]
        locations = [site["where"], *site["callers"], site["user_where"]]
        notices.append(_make_notice("PG401", f"{head}: {site['op']}", lines, site["expression"], locations, program))
    problems = []
    if answer["outcome"] == "the program does not repeat":
        problems = [Problem(program, 0, f"the same run passed once and failed once: {answer['outcome']}")]
    return Report("bisect", notices, problems, CODES)


def _make_notice(
    number: str, head: str, lines: Iterable[str], expression: str, locations: Sequence[str], program: str
) -> Notice:
    """A notice at the first of the locations that is in the working folder. If the first location is elsewhere, the text names it."""
    path, line = next(filter(None, map(_find_file, locations)), (program, 0))
    if locations and locations[0] not in (f"{path}:{line}", _UNKNOWN):
        head += f" at {locations[0]}"
    return Notice(number, _NAMES[number], path, line, 0, line, 0, "\n".join([head, *lines]), expression)


def _find_file(location: str) -> tuple[str, int] | None:
    file, _, line = location.rpartition(":")
    path = os.path.relpath(file) if os.path.isabs(file) else file
    is_inside = os.path.isfile(path) and not path.startswith(os.pardir) and "site-packages" not in path
    return (path, int(line)) if is_inside and line.isdigit() else None
