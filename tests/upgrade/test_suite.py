"""`upgrade -m pytest`: a suite, test by test. The runs of most tests here are written as numbers; the last ones run pytest."""

import itertools
import json
import os
import pickle
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from pseudograd_notices.answers import report_upgrade
from pseudograd_notices.formats import FORMATS
from pseudograd_upgrade import suite, suite_plugin, suite_recorder
from pseudograd_upgrade.answer import CONVENTION, FAILS, OTHER_OP, OWN
from pseudograd_upgrade.recording import Schedule, SuiteRun, SuiteTest
from pseudograd_upgrade.runs import Interpreter, LimitError, open_runner
from pseudograd_upgrade.suite import Suite, SuiteAnswer
from pseudograd_upgrade.suite_plugin import watch
from pseudograd_upgrade.suite_recorder import SuiteSession

from ..pages.blocks import ROOT
from .made_runs import CLAMP_GRAD, GELU, GELU_GRAD, LEAF, LINEAR, SILU, run
from .test_upgrade import upgrade

OLD, NEW = Interpreter("/old/python", "2.13.0"), Interpreter("/new/python", "2.15.0")
Record = Callable[["Asked"], "dict[str, SuiteTest]"]


class Asked:
    """A run of a suite. tests: those that were asked for."""

    def __init__(self, python: Interpreter, schedule: Schedule, tests: Sequence[str] | None) -> None:
        self.schedule, self.tests, self.is_old = schedule, tests, python.torch == OLD.torch
        self.pin, self.is_repeated = python.settings.get("pin"), bool(python.settings.get("is_repeated"))
        self.is_noise = bool(python.settings.get("has_other_order") or python.settings.get("is_shaken"))


class Runner:
    program = ("-m", "pytest")

    def __init__(self, record: Record) -> None:
        self.record = record
        self.all: list[Asked] = []

    @property
    def count(self) -> int:
        return len(self.all)

    def run_suite(self, python: Interpreter, schedule: Schedule, tests: Sequence[str] | None = None) -> SuiteRun:
        self.all.append(Asked(python, schedule, tests))
        made = self.record(self.all[-1])
        return SuiteRun(python.torch, 0, {name: made[name] for name in (made if tests is None else tests)})


def ended(
    *events: tuple[int, float], outcome: str = "passed", message: str = "", losses: tuple[float, ...] = (1.0,)
) -> SuiteTest:
    content = {name: run(*events, losses=losses).raw[name] for name in ("steps", "losses")}
    return SuiteTest(outcome, message, (zlib.compress(pickle.dumps(content)),))


def gated(slope: float, **named: object) -> SuiteTest:
    """A test through the clamp of a package, whose gradient is `slope`."""
    return ended((LINEAR, 1.0), (CLAMP_GRAD, slope), (LEAF, slope), **named)  # type: ignore[arg-type]


def kinked(run: Asked, **failing: object) -> SuiteTest:
    """A test whose gradient a pin of the newer torch brings back."""
    return gated(1.0) if run.is_old or run.pin else gated(0.0, **failing)


def ask(record: Record) -> tuple[SuiteAnswer, Runner]:
    runner = Runner(record)
    return Suite(runner, OLD, NEW).answer(), runner  # type: ignore[arg-type]


def test_tests_that_are_the_same_cost_one_run_per_torch() -> None:
    passing, failing = ended((LINEAR, 1.0)), ended((LINEAR, 2.0), outcome="failed", message="at 0x7f")
    answer, runner = ask(lambda run: {"t.py::a": passing, "t.py::b": failing})
    assert answer.survives
    assert runner.count == 2
    assert str(answer) == (
        "upgrade: torch 2.13.0 -> 2.15.0: 2 tests: 2 the same to the last bit; 2 runs\n"
        "upgrade: 1 test failing under both, such as t.py::b: at 0x7f"
    )


def test_tests_of_one_line_are_one_cause_and_share_their_runs() -> None:
    def record(run: Asked) -> dict[str, SuiteTest]:
        test = kinked(run, outcome="failed", message="t.py:9: assert 0 == 1")
        return {**{f"t.py::test[{n}]": test for n in range(7)}, "t.py::same": ended((LINEAR, 1.0))}

    answer, runner = ask(record)
    assert [(cause.answer.kind, len(cause.endings)) for cause in answer.causes] == [(CONVENTION, 7)]
    assert [len(run.tests or ()) for run in runner.all] == [0, 0, 7]
    text = str(answer)
    assert "  7 of 8 tests: a kink's convention\n    package/gate.py:7  step 1, backward of ClampBackward1" in text
    assert "t.py::test[0]: failed under torch 2.15.0 alone: t.py:9: assert 0 == 1" in text
    assert "and 2 more" in text
    assert "under the pin it ends as under torch 2.13.0" in text
    assert "pytest --pseudograd-pin 'torch<=2.13'  # the whole suite" in text
    assert not answer.survives


def test_a_cause_is_an_annotation_and_what_was_not_compared_is_an_error() -> None:
    """At the line of the package, if it lies here; else at the program's own line, or at the first test."""
    Path("tests").mkdir()
    Path("tests/test_it.py").write_text("")

    def record(run: Asked) -> dict[str, SuiteTest]:
        test = kinked(run, outcome="failed", message="tests/test_it.py:9: assert 0 == 1")
        gone = {"outcome": "failed", "message": "AttributeError: gone"} if not run.is_old else {}
        tests = {f"tests/test_it.py::test[{n}]": test for n in range(7)}
        alone = {"u": ended((LINEAR, 1.0))} if run.is_old else {}
        return {**tests, "tests/test_it.py::test_gone": ended((LINEAR, 1.0), **gone), **alone}  # type: ignore[arg-type]

    answer, _ = ask(record)
    text = json.dumps({**answer.to_json(), "not_compared": ["not heard: an error"]})
    for file, place in (("", "tests/test_it.py"), ("train.py", "train.py,line=6,endLine=6")):
        if file:
            Path(file).write_text("")
        kink, gone, error = FORMATS["github"](report_upgrade(text, "pytest")).splitlines()
        assert kink.startswith(f"::warning file={place},title=PG301 other-convention::torch 2.13.0 -> 2.15.0: a kink's")
        assert "x.clamp(0, 1) at package/gate.py:7%0Anext: pytest --pseudograd-pin 'torch<=2.13'" in kink
        assert (
            "%0Atests/test_it.py::test[0]: passed under torch 2.13.0, failed under torch 2.15.0: tests/test_it" in kink
        )
        assert "%0Aand 2 more tests" in kink
        assert gone.startswith("::warning file=tests/test_it.py,title=PG304 fails-in-one::")
        assert error == "::error file=pytest,title=not read::not heard: an error"


def test_the_plugin_is_in_both_environments_and_a_pin_of_the_settings_is_named(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where pseudograd is not installed; unless somebody blocked it."""
    with open_runner("pytest", [], True, 0) as runner:
        assert Path(runner.home, "pseudograd_pytest.py").is_file()
    for known, blocked, imported in (("", "", ["pseudograd_pytest"]), ("pseudograd", "", []), ("", "pseudograd", [])):
        names: list[str] = []
        manager = SimpleNamespace(has_plugin=known.__eq__, is_blocked=blocked.__eq__, import_plugin=names.append)
        suite_plugin.pytest_addoption(manager)  # type: ignore[arg-type]
        assert names == imported
    same, _ = ask(lambda run: {"u": ended((LINEAR, 1.0))})
    monkeypatch.setattr(suite, "compare_suites", lambda *arguments: same)
    Path("pyproject.toml").write_text('[tool.pseudograd]\npin = "half"\n', encoding="utf-8")
    note = "upgrade: the suite ran under the pin 'half', by pin of [tool.pseudograd] in pyproject.toml"
    assert note in upgrade(capfd, "-m", "pytest")[1]
    assert note not in upgrade(capfd, "-m", "pytest", "--pseudograd-pin=none")[1]


def test_the_page_shows_an_answer() -> None:
    names = ["test_black_patch_learns", "test_black_again[2]", "test_gate"]

    def record(run: Asked) -> dict[str, SuiteTest]:
        message = "tests/test_gate.py:{}: assert 0.25 < 0.2"
        ends = [{"outcome": "failed", "message": message.format(line)} for line in (18, 23)]
        tests = {
            f"tests/test_gate.py::{name}": kinked(run, **end) for name, end in zip(names, [*ends, {}], strict=True)
        }
        rounded = {f"rounded[{n}]": ended((LINEAR, 1.0 if run.is_old else 1.0 + 1e-7)) for n in range(4)}
        return {**tests, **rounded, **{f"same[{n}]": ended((LINEAR, 1.0)) for n in range(405)}}

    answer, _ = ask(record)
    page = (ROOT / "docs" / "upgrade.md").read_text(encoding="utf-8")
    assert str(answer).replace("train.py:6", "tests/test_gate.py:14") in page, str(answer)


def test_a_pinned_run_comes_first_and_then_only_when_no_other_is_missing() -> None:
    def record(run: Asked) -> dict[str, SuiteTest]:
        x = 1.0 if run.is_old else 2.0
        return {"op": ended((LINEAR, 1.0), (GELU_GRAD, x), (LEAF, x), losses=(x,)), "kink": kinked(run)}

    _, runner = ask(record)
    pin = "torch<=2.13"
    runs = [(run.pin, run.is_noise, run.tests) for run in runner.all[2:]]
    assert runs == [(pin, False, ["kink"]), (None, True, ["op"]), (pin, False, ["op"])]


def test_causes_are_told_apart() -> None:
    def record(run: Asked) -> dict[str, SuiteTest]:
        x = 1.0 if run.is_old else 2.0
        op = ended((LINEAR, 1.0), (GELU_GRAD, x), (LEAF, x), losses=(x,))
        return {"op": op, "own": gated(1.0, losses=(next(losses),))}

    losses = itertools.count(1.0)
    answer, _ = ask(record)
    kinds = {name: cause.answer.kind for cause in answer.causes for name in cause.endings}
    assert kinds == {"op": OTHER_OP, "own": OWN}
    assert "it differs from run to run, or with the tests that run before it" in str(answer)


BROKEN = {"outcome": "failed", "message": "t.py:9: assert"}


def test_tests_that_share_a_fixture_have_the_line_of_its_training() -> None:
    def record(run: Asked) -> dict[str, SuiteTest]:
        trained = gated(1.0 if run.is_old or run.pin else 0.0).parts
        own = ended((LINEAR, 1.0 if run.is_old or run.pin else 2.0), losses=()).parts
        return {"first": SuiteTest("passed", "", (*trained, *own)), "second": SuiteTest("passed", "", (*trained, b""))}

    answer, _ = ask(record)
    (cause,) = answer.causes
    assert cause.answer.difference is not None
    assert (cause.answer.difference.old.origin.where, [*cause.endings]) == ("package/gate.py:7", ["first", "second"])
    assert "pytestmark = pytest.mark.pseudograd_pin('torch<=2.13')" in str(answer)


def test_tests_that_share_a_fixture_that_is_the_same_are_marked_one_by_one() -> None:
    answer, _ = ask(
        lambda run: {f"t[{n}]": SuiteTest("passed", "", gated(1.0).parts + kinked(run).parts) for n in range(5)}
    )
    assert "    next: @pytest.mark.pseudograd_pin('torch<=2.13')  # or one test" in str(answer)
    assert " more" not in str(answer)


def test_other_ops_at_the_end_of_a_test_are_the_cause_of_its_failure() -> None:
    def record(run: Asked) -> dict[str, SuiteTest]:
        return {
            "t": ended((LINEAR, 1.0), (GELU, 1.0))
            if run.is_old
            else ended((LINEAR, 1.0), (SILU, 2.0), outcome="failed")
        }

    answer, _ = ask(record)
    assert [cause.answer.kind for cause in answer.causes] == [OTHER_OP]
    assert "only under torch 2.13.0: gelu at train.py:2" in str(answer)


@pytest.mark.parametrize(("fails_again", "kind"), [(False, OWN), (True, FAILS)])
def test_a_failure_that_torch_does_not_explain_is_repeated(fails_again: bool, kind: str) -> None:
    def record(run: Asked) -> dict[str, SuiteTest]:
        fails = not run.is_old and (fails_again or not run.is_repeated)
        return {"t": ended((LINEAR, 1.0), outcome="failed" if fails else "passed")}

    answer, runner = ask(record)
    assert [cause.answer.kind for cause in answer.causes] == [kind]
    assert ("what torch computes in the process of pytest is the same" in str(answer)) == fails_again
    assert runner.count == 3


@pytest.mark.parametrize(("passes", "kind"), [(30, FAILS), (31, OTHER_OP)])
def test_a_failure_after_thirty_backward_passes_is_asked_with_all_steps(passes: int, kind: str) -> None:
    def record(run: Asked) -> dict[str, SuiteTest]:
        x = 2.0 if run.schedule.first == 1000 and not run.is_old else 1.0
        return {"t": ended((LINEAR, x), losses=(1.0,) * passes, outcome="passed" if run.is_old else "failed")}

    answer, runner = ask(record)
    assert [cause.answer.kind for cause in answer.causes] == [kind]
    assert {run.schedule.first for run in runner.all} == ({30, 1000} if passes > 30 else {30})


@pytest.mark.parametrize("is_skipped", [False, True])
def test_the_suite_is_not_pinned_if_another_test_fails_under_the_pin(is_skipped: bool) -> None:
    """Also a test that the older torch skips."""

    def record(run: Asked) -> dict[str, SuiteTest]:
        other = gated(0.0, **(BROKEN if run.is_old or run.pin else {}))
        return {"a": kinked(run, **BROKEN), "b": SuiteTest("skipped") if run.is_old and is_skipped else other}

    answer, runner = ask(record)
    text = str(answer)
    assert answer.runs == runner.count
    assert "--pseudograd-pin" not in text
    assert "not the whole suite: under the pin others fail" in text


@pytest.mark.parametrize(
    ("old", "new", "mark"),
    [
        (BROKEN, {}, ""),
        ({"outcome": "xfailed"}, {"outcome": "xpassed"}, " and drop the mark xfail"),
        ({"outcome": "xfailed"}, {**BROKEN, "message": "[XPASS(strict)] known"}, " and drop the mark xfail"),
    ],
)
def test_a_test_that_passes_under_the_newer_torch_alone_keeps_its_convention(
    old: dict[str, Any], new: dict[str, Any], mark: str
) -> None:
    answer, _ = ask(lambda run: {"t": gated(0.0, **old) if run.is_old or run.pin else gated(1.0, **new)})
    assert [cause.answer.next_steps for cause in answer.causes] == [
        (f"they pass under torch 2.15.0: keep its convention{mark}",)
    ]


def test_a_file_that_one_torch_does_not_collect_is_a_cause() -> None:
    lost = {"u.py": SuiteTest("not collected", "u.py:1: ImportError: gone")}
    answer, _ = ask(
        lambda run: {"t.py::a": ended((LINEAR, 1.0)), **({"u.py::b": ended((LINEAR, 1.0))} if run.is_old else lost)}
    )
    assert not answer.survives
    assert "  1 file: fails in one of them\n" in str(answer)
    assert "u.py: not collected under torch 2.15.0 alone: u.py:1: ImportError: gone" in str(answer)
    assert [cause.answer.steps for cause in answer.causes] == [0]


@pytest.mark.parametrize(("old", "new"), [("skipped", "passed"), ("failed", "skipped")])
def test_a_test_that_one_torch_skips_is_counted(old: str, new: str) -> None:
    answer, runner = ask(lambda run: {"t": SuiteTest(old if run.is_old else new), "u": ended((LINEAR, 1.0))})
    assert answer.survives
    assert answer.counts["skipped under one alone"] == 1
    assert runner.count == 2


def test_a_test_that_ended_under_one_torch_only_is_a_note() -> None:
    answer, _ = ask(lambda run: {"u": ended((LINEAR, 1.0)), **({"t": ended((LINEAR, 1.0))} if run.is_old else {})})
    assert answer.notes == ("1 test ended only under torch 2.13.0, such as t",)


def test_tests_that_no_further_run_explains_are_counted() -> None:
    def record(run: Asked) -> dict[str, SuiteTest]:
        if run.is_noise:
            raise LimitError
        return {"t": gated(1.0 if run.is_old else 0.0), "u": ended((LINEAR, 1.0))}

    answer, _ = ask(record)
    assert not answer.survives
    assert "1 different, and not explained in --max-runs" in str(answer)


@pytest.mark.parametrize(("status", "why"), [(1, ""), (143, " --time-limit stopped it before a test ended.")])
def test_a_suite_without_a_test_is_refused(status: int, why: str) -> None:
    runner: Any = SimpleNamespace(run_suite=lambda *_: SuiteRun("2.13.0", status, {}))
    with pytest.raises(ValueError, match=rf"^upgrade: a test must run under --from, got none\.{why}$"):
        Suite(runner, OLD, NEW).answer()


# --- pytest itself ----------------------------------------------------------------------------------------------------

SUITE = """\
import os, sys
import pytest, torch

IS_NEW = os.path.exists("ran") and "ATEN_CPU_CAPABILITY" not in os.environ
state = []

@pytest.fixture(scope="session", autouse=True)
def _note():
    yield
    open("ran", "a").close()

@pytest.mark.parametrize("n", [1, 2])
def test_same(n):
    x = torch.randn(n, requires_grad=True)
    x.exp().sum().backward()

def test_other_op():
    x = torch.randn(3, requires_grad=True)
    y = x.sin() if IS_NEW else x.cos()
    y.sum().backward()
    assert not IS_NEW, "the sine"

@pytest.fixture(scope="module")
def trained():
    x = torch.ones(3, requires_grad=True)
    (x.exp() if IS_NEW else x.sigmoid()).sum().backward()
    return x.grad

@pytest.mark.parametrize("n", [1, 2])
def test_trained(trained, n):
    assert trained.sum() > 0

@pytest.mark.xfail(not IS_NEW, reason="known")
def test_expected():
    assert IS_NEW

def test_that_starts_python():
    import subprocess
    subprocess.run([sys.executable, "-c", "import torch; torch.ones(2)"], check=True)

@pytest.mark.skip
def test_skipped(): ...

def test_after():
    assert torch.randn(1).item() == pytest.approx(1.5409961)  # each test is seeded by itself
"""


@pytest.mark.parametrize("most", [99, 3])
def test_a_session_records_each_test_by_itself_under_one_seed(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Where a test has more tensors than that, its end is not compared."""
    monkeypatch.setattr("pseudograd_upgrade.recorder.MOST_DIGESTS", most)
    for name in ("on_begin", "on_end"):
        monkeypatch.setattr(watch, name, None)
    monkeypatch.setattr(SuiteSession, "prepare", lambda *_: None)  # it compiles nothing in this process, to its end
    calls: list[object] = []
    monkeypatch.setattr("pseudograd_upgrade.recorder.shake_after_each_step", lambda: calls.append("shaken"))
    monkeypatch.setattr(torch, "set_num_threads", calls.append)
    process: Any = SimpleNamespace(mark=lambda: calls.append("marked"))
    session = SuiteSession({"seed": 0, "schedule": [*Schedule()], "threads": 2, "is_shaken": True}, process)
    try:
        assert calls == [2, "shaken", "marked"]
        assert session.recorder.listener_of_backward is not None
        for name in ("first", "second"):
            watch.begin(name)
            torch.randn(3, requires_grad=True).exp().sum().backward()
            watch.end()
        watch.begin("third")
        numbers = [torch.randn(3)]
        for fixture in ("fixture 1", "fixture 2"):
            watch.begin(fixture)
            numbers += [torch.randn(3)] if fixture == "fixture 1" else []
            watch.end()
        numbers.append(torch.randn(3, requires_grad=True).exp().detach())
        monkeypatch.setitem(watch.shared, "third", ["fixture 1", "fixture 2"])
        watch.end()
        assert torch.equal(numbers[0], numbers[1])
        assert torch.equal(numbers[0].exp(), numbers[2])
        assert session._parts_of("third") == (session.parts["fixture 1"], session.parts["third"])
        assert session._parts_of("fourth") == (b"",)
    finally:
        session.listening.__exit__(None, None, None)
    assert session.parts["first"] == session.parts["second"] != b""
    assert pickle.loads(zlib.decompress(session.parts["first"] or b""))["steps"]
    full = () if most == 99 else ("after 20,000 tensors of step 1 of first, and of 1 test more",)
    ops = [event.origin.op for event in pickle.loads(zlib.decompress(session.parts["third"] or b""))["steps"][1]]
    assert ops == ["randn", "randn", "exp"]
    assert session.content()["errors"] == [*full]
    runs = (SuiteRun("2.13.0", 0, {}, errors=full),) * 2
    assert suite._list_missing(*runs) == tuple(f"not heard: {error}" for error in full)


@pytest.mark.parametrize(
    ("is_main", "worker", "runs", "records"),
    [(True, "", "", True), (False, "gw0", "", True), (False, "gw0", "own", True), (False, "gw0", "1", False), (False, "", "", False)],
)  # fmt: skip
def test_workers_are_recorded_and_processes_that_a_test_starts_are_not(
    is_main: bool, worker: str, runs: str, records: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suite_recorder, "SuiteSession", lambda *_: "recorded")
    for name, value in (
        ("PYTEST_XDIST_WORKER", worker),
        (suite_plugin.RUNS_TESTS, runs.replace("own", str(os.getpid()))),
    ):
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name, raising=False)
    process: Any = SimpleNamespace(is_main=is_main)
    assert (suite_recorder.begin({"settings": {}}, process) == "recorded") == records


@pytest.mark.parametrize(("given", "seed"), [("default", 0), (7, 7), ("last", "last")])
def test_pytest_randomly_has_one_order_unless_the_command_names_another(given: object, seed: object) -> None:
    """Tests that depend on their order do so in the same way under both torches."""
    option = SimpleNamespace(randomly_seed=given)
    suite_plugin.pytest_configure(cast("pytest.Config", SimpleNamespace(option=option)))
    assert option.randomly_seed == seed


WATCHED = """\
import pytest

@pytest.fixture(scope="module")
def shared():
    return 1

@pytest.fixture
def broken():
    yield
    raise OSError("the end\\nof it")

def test_passes(shared, request): request.getfixturevalue("late")
@pytest.fixture(scope="session")
def late(): ...
def test_fails(shared):
    assert shared == 2, "why"
def test_ends_badly(broken):
    assert 0, "first"
def test_breaks_at_its_end(broken): ...
@pytest.mark.xfail
def test_expected(): assert 0
@pytest.mark.xfail
def test_unexpected(): ...
@pytest.mark.skip
def test_skipped(): ...
@pytest.mark.skip
@pytest.mark.parametrize("n", [1, 2])
def test_two(n): ...
"""


def test_the_plugin_knows_the_end_of_each_test_and_its_shared_fixtures(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    begun: list[str] = []
    watched = suite_plugin.Watch()
    watched.on_begin, watched.on_end = begun.append, lambda name: begun.append(f"end of {name}")
    monkeypatch.setattr(suite_plugin, "watch", watched)
    Path("test_it.py").write_text(WATCHED, encoding="utf-8")
    Path("test_lost.py").write_text("import nothing_here", encoding="utf-8")
    words = ["-p", "no:terminal", "-p", "no:cacheprovider", "-p", "no:xdist", f"--rootdir={tmp_path}", "."]
    monkeypatch.setenv("PYTEST_PLUGINS", "pseudograd_upgrade.suite_plugin")
    suite_plugin._load_tests.cache_clear()
    assert pytest.main(words) == 1
    ends = {name.rpartition("::")[2]: (test.outcome, test.message) for name, test in watched.endings.items()}
    assert ends == {
        "test_lost.py": ("not collected", "ModuleNotFoundError: No module named 'nothing_here'"),
        "test_passes": ("passed", ""),
        "test_fails": ("failed", "test_it.py:16: AssertionError: why"),
        "test_ends_badly": ("failed", "test_it.py:18: AssertionError: first"),
        "test_breaks_at_its_end": ("failed", "test_it.py:10: OSError: the end"),
        "test_expected": ("xfailed", ""),
        "test_unexpected": ("xpassed", ""),
        **dict.fromkeys(("test_skipped", "test_two[1]", "test_two[2]"), ("skipped", "")),
    }
    name, fixtures = "test_it.py::test_passes", [f"{end}fixture {n}" for n in (1, 2) for end in ("", "end of ")]
    assert begun[:7] == [name, *fixtures, f"end of {name}", "test_it.py::test_fails"]
    assert [name for name in begun if "fixture" in name] == fixtures
    assert (watched.shared[name], watched.shared[begun[6]]) == (["fixture 1", "fixture 2"], ["fixture 1"])
    Path("names.json").write_text('["test_it.py::test_two[2]"]', encoding="utf-8")
    monkeypatch.setenv(suite_plugin.TESTS, "names.json")
    suite_plugin._load_tests.cache_clear()
    watched.endings = {}
    try:
        assert pytest.main(words) == 0
    finally:
        suite_plugin._load_tests.cache_clear()
    assert [*watched.endings] == ["test_it.py::test_two[2]"]
    for longrepr, error in (("a\nb\n", "b"), ("", ""), ("a\nE   b: c\nd", "b: c")):
        assert (
            suite_plugin._describe(cast("pytest.CollectReport", SimpleNamespace(outcome="failed", longrepr=longrepr)))
            == error
        )


def test_a_further_run_imports_only_files_with_its_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"t/test_a.py::A::test", "test_b.py::test[0]"}
    monkeypatch.setattr(suite_plugin, "_load_tests", lambda: names)
    files = ["test_a.py", "test_b.py", "conftest.py", "test_c.py"]
    assert [suite_plugin.pytest_ignore_collect(Path("x") / file) for file in files] == [None, None, None, True]


@pytest.mark.program
@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["one process", "xdist"])
def test_a_suite_is_compared_test_by_test(capfd: pytest.CaptureFixture[str], workers: tuple[str, ...]) -> None:
    Path("test_it.py").write_text(SUITE, encoding="utf-8")
    Path("conftest.py").write_text("import torch", encoding="utf-8")  # also in the process that starts the workers
    words = ["--json", "answer.json", "--output-format", "github", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    status, out, err = upgrade(capfd, *words, *workers, "test_it.py")
    assert status == 1, out + err
    assert "::warning file=test_it.py,line=19,endLine=19,title=PG302 other-op::torch " in out
    document = json.loads(Path("answer.json").read_text(encoding="utf-8"))
    assert "; runs after the second have only the tests that differ\n" in err
    *_, shared = document["causes"]
    cause, expected = sorted(document["causes"][:2], key=lambda cause: cause["difference"] is None)
    assert document["tests"] == 9
    assert document["counts"]["the same to the last bit"] == 5
    ends = {"old": ["passed", ""], "new": ["failed", "test_it.py:21: AssertionError: the sine"]}
    assert cause["tests"] == {"test_it.py::test_other_op": ends}
    assert (cause["answer"], cause["difference"]["where"].split("/")[-1]) == (OTHER_OP, "test_it.py:19")
    assert expected["tests"] == {"test_it.py::test_expected": {"old": ["xfailed", ""], "new": ["passed", ""]}}
    assert (shared["difference"]["where"].split("/")[-1], len(shared["tests"])) == ("test_it.py:26", 2)


@pytest.mark.program
def test_a_suite_that_hangs_is_stopped_and_says_where(capfd: pytest.CaptureFixture[str]) -> None:
    source = "import time, torch\ndef test_first():\n    torch.ones(2).sum()\ndef test_hangs():\n    time.sleep(60)\n"
    Path("test_it.py").write_text(source, encoding="utf-8")
    _, out, err = upgrade(capfd, "--time-limit", "8", "-m", "pytest", "-q", "test_it.py")
    assert "1 test: 1 the same to the last bit" in out, out + err
    assert "the suite ended during test_it.py::test_hangs" in out
