"""Runs: in this process or others, stored in a folder and found again by what decides them."""

import copy
import functools
import importlib
import os
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import pseudograd as pg
from pseudograd.comparison.reached import Reach
from pseudograd.comparison.runs import Outcome, Run, Runner, _pool
from pseudograd.comparison.store import Store, fingerprint

from ..choices import folded
from .test_compare import noisy

Clamp = Callable[..., Tensor]


def quiet(clamp: Clamp, seed: int) -> float:
    return 0.0 * noisy(clamp, seed)


class Steps:
    """An experiment whose numbers and curves show the variant, the seed and the steps."""

    name = "steps"
    variants = ("a", "bb")
    rules = ()

    def __init__(self, factor: float = 1.0) -> None:
        self.factor, self.runs = factor, 0

    @property
    def depends_on(self) -> Any:
        return [self.factor]

    def measure(self, run: Run) -> Outcome:
        self.runs += 1
        value = self.factor * (100 * len(run.variant) + 10 * run.seed + (run.steps or 0))
        curve = {"curve": torch.arange(3.0) * value}
        return Outcome({"value": value}, curve, (value, value), reached=Reach(own=(("f", "a.py:1"),)))

    def check_can_be_sent(self) -> None:
        raise AssertionError("nothing travels here")


class Backwards:
    """An executor that makes the last run first, once it is asked for."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.waiting.append((future, lambda: function(*arguments)))
        return future

    def run(self) -> None:
        while self.waiting:
            future, call = self.waiting.pop()
            future.set_result(call())


def plan(experiment: Steps) -> list[tuple[Steps, Run]]:
    return [(experiment, Run(variant, seed)) for seed in (3, 1) for variant in experiment.variants]


def test_outcomes_come_in_the_order_of_the_plan_from_whatever_submits() -> None:
    executor = Backwards()
    runner = Runner("compare", [Steps()], lambda *_: executor.run(), executor, None)
    rows = list(runner.outcomes(plan(Steps())))
    assert [run for _, run, _ in rows] == [("a", 3, None), ("bb", 3, None), ("a", 1, None), ("bb", 1, None)]
    assert [outcome.numbers["value"] for *_, outcome in rows] == [130.0, 230.0, 110.0, 210.0]
    assert [outcome.arrays["curve"].tolist() for *_, outcome in rows][:2] == [[0.0, 130.0, 260.0], [0.0, 230.0, 460.0]]


def test_a_stored_run_is_found_whole_and_not_made_again(tmp_path: Path) -> None:
    calls: list[tuple[Any, ...]] = []

    def outcomes(experiment: Steps, runs: list[tuple[Steps, Run]], **progress: int) -> list[Outcome]:
        calls.clear()
        store = Store(tmp_path, "compare")
        runner = Runner("compare", [experiment], lambda _, *rest: calls.append(rest), None, store)
        return [outcome for *_, outcome in runner.outcomes(runs, **progress)]

    first, again, other = Steps(), Steps(), Steps(2.0)
    earlier = outcomes(first, plan(first)[:3], done=2, total=9)
    assert calls == [(Run("a", 3), 2, 9), (Run("bb", 3), 3, 9), (Run("a", 1), 4, 9)]
    later = outcomes(again, plan(again))
    assert calls == [(Run("bb", 1), 3, 4)]
    for ours, theirs in zip(earlier, later[:3], strict=True):
        assert torch.equal(ours.arrays.pop("curve"), theirs.arrays.pop("curve"))
        assert ours == theirs
    assert (first.runs, again.runs) == (3, 1)
    assert outcomes(again, [(again, Run("a", 3, 5))])[0].numbers["value"] == 135.0  # another length is another run
    assert outcomes(other, [(other, Run("a", 3))])[0].numbers["value"] == 260.0  # and so is another experiment


@dataclass
class BrokenOff:
    """A training that is stopped before its 18th run while the file `stops` exists. Files do not count in its fingerprint."""

    folder: Path

    def __call__(self, clamp: Clamp, seed: int) -> float:
        log = self.folder / "log"
        dots = log.read_text() if log.exists() else ""
        if len(dots) == 17 and (self.folder / "stops").exists():
            raise KeyboardInterrupt
        log.write_text(dots + ".")
        return noisy(clamp, seed)


def test_a_comparison_that_was_broken_off_goes_on(tmp_path: Path) -> None:
    run, keep = BrokenOff(tmp_path), tmp_path / "kept"
    (tmp_path / "stops").touch()
    with pytest.raises(KeyboardInterrupt):
        pg.compare(run, rules=["inward"], seeds=6, keep=keep)
    assert len(list(keep.iterdir())) == 17
    (tmp_path / "stops").unlink()
    calls: list[tuple[int, int]] = []
    again = pg.compare(
        run, rules=["inward"], seeds=6, keep=keep, on_trial=lambda _, done, total: calls.append((done, total))
    )
    assert calls == [(done, 30) for done in range(17, 30)]
    pg.compare(run, rules=["inward"], seeds=6, keep=keep)
    assert len((tmp_path / "log").read_text()) == 30
    assert again.values == pg.compare(run, rules=["inward"], seeds=6).values


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda data: data[:50],
    "a bit of the numbers": lambda data: data[:-200] + bytes([data[-200] ^ 1]) + data[-199:],
    "without its start": lambda data: data[40:],
}


@folded
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_run_is_made_again(tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the current folder can be named
    first = pg.compare(noisy, rules=["inward"], seeds=2, keep=".")
    file = sorted(tmp_path.glob("*.run"))[3]
    file.write_bytes(DAMAGES[damage](file.read_bytes()))
    again = pg.compare(noisy, rules=["inward"], seeds=2, keep=tmp_path)
    assert again.values == first.values
    assert torch.load(file, weights_only=True)["numbers"]


def test_a_run_without_a_fingerprint_is_not_kept_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep = tmp_path / "kept"

    def run(clamp: Clamp, seed: int) -> float:
        return noisy(clamp, seed)

    refusal = r"pickle does not take what run holds \(.*\)\. Define it at the top of a file"
    with pytest.warns(UserWarning, match=f"compare: nothing is kept: {refusal}"):
        comparison = pg.compare(run, rules=["inward"], seeds=2, keep=keep)
    assert comparison.values == pg.compare(noisy, rules=["inward"], seeds=2).values
    with (
        pg.pin_edge("closed"),
        pytest.warns(UserWarning, match="nothing is kept: it runs inside a context of override"),
    ):
        pg.compare(noisy, rules=["inward"], seeds=2, keep=keep)
    monkeypatch.setitem(sys.modules, "__main__", types.ModuleType("__main__"))  # a notebook
    monkeypatch.setattr(sys.modules["__main__"], "noisy", noisy, raising=False)
    monkeypatch.setattr(noisy, "__module__", "__main__")
    with pytest.warns(UserWarning, match="nothing is kept: run is in no file"):
        pg.compare(noisy, rules=["inward"], seeds=2, keep=keep)
    assert not keep.exists()


# By the part that differs: two values that must not be taken for each other.
APART: dict[str, tuple[Any, Any]] = {
    "two functions": (noisy, quiet),
    "functions of torch": (torch.sin, torch.cos),
    "an argument of partial": (functools.partial(noisy, seed=1), functools.partial(noisy, seed=2)),
    "an object that is called": (BrokenOff(Path("a")), BrokenOff(Path("b"))),
    "a method": (BrokenOff(Path("a")).__call__, BrokenOff(Path("a"))),
    "a number and a text": (1, "1"),
    "the order of a dict": ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    "data": (torch.zeros(5000), torch.zeros(5000).index_fill(0, torch.tensor([2500]), 1.0)),
    "the dtype of data": (torch.zeros(3), torch.zeros(3, dtype=torch.float64)),
    "an array": (np.zeros(3), np.ones(3)),
    "a parameter of a rule": (pg.rules.leaky(0.1), pg.rules.leaky(0.2)),
}


@folded
@pytest.mark.parametrize("part", APART)
def test_what_a_run_holds_is_in_its_fingerprint(part: str) -> None:
    ours, others = map(fingerprint, APART[part])
    assert ours != others
    assert fingerprint(copy.deepcopy(APART[part][0])) == ours


def test_equal_texts_count_the_same_whether_they_are_one_object_or_not() -> None:
    text = "".join(["a", "b"])
    assert fingerprint([text, text]) == fingerprint([text, "".join(["a", "b"])])


def test_the_settings_of_torch_are_in_the_fingerprint() -> None:
    before = fingerprint(noisy)
    torch.set_default_dtype(torch.float64)
    try:
        assert fingerprint(noisy) != before
    finally:
        torch.set_default_dtype(torch.float32)
    assert fingerprint(noisy) == before


def test_the_source_and_the_numbers_of_the_programs_modules_are_in_the_fingerprint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = fingerprint(noisy)
    file = tmp_path / "library_of_mine.py"
    file.write_text("RATE = 1.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("library_of_mine")
    monkeypatch.delitem(sys.modules, "library_of_mine")
    assert fingerprint(noisy) == before  # it is not loaded
    monkeypatch.setitem(sys.modules, "library_of_mine", module)
    first = fingerprint(noisy)
    assert before != first == fingerprint(noisy)
    monkeypatch.setattr(module, "RATE", 2.0)
    second = fingerprint(noisy)
    file.write_text("RATE = 3.0\n")
    assert len({before, first, second, fingerprint(noisy)}) == 4


PROGRAM = """\
import library_of_mine, torch
NET = torch.nn.Linear(2, 2)
def run(clamp, seed):
    return library_of_mine.RATE * clamp(NET(torch.zeros(2)), 0, 1).sum().item()
from pseudograd.comparison.store import fingerprint
print(fingerprint([run, {"rate": 1.0}]))
"""


@pytest.mark.slow
def test_a_fingerprint_is_the_same_in_every_process(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "library_of_mine.py").write_text("RATE = 1.0\n")

    def printed(hash_seed: str, *options: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, *options, "program.py"]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
        return done.stdout

    assert len({printed("1", "-B"), printed("2"), printed("2")}) == 1  # compiled now, then from its cache


MODULE = """\
import os
import torch
import pseudograd as pg

@pg.register_rule("clamp", formula="grad * share", source="a test", is_linear=True)
def part_of_it(grad, x, y, min, max, *, share=0.5):
    return grad * share

def run(clamp, seed):
    model = torch.nn.Linear(200, 50)
    x = torch.randn(300, 200)
    for _ in range(3):
        loss = clamp(model(x) * 3, -1, 1).pow(2).mean()
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= p.grad
    if clamp.name == "sign" and seed == 1:
        raise ValueError("gone")
    return {"loss": loss.item(), "process": 0.0 * os.getpid()}

def dies(clamp):
    os._exit(1)
"""


@pytest.fixture
def case_of_mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table_as_it_was: None) -> Iterator[Any]:
    (tmp_path / "case_of_mine.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("case_of_mine")
    sys.modules.pop("case_of_mine", None)


@pytest.mark.program
def test_other_processes_give_the_same_to_the_bit(case_of_mine: Any) -> None:
    rules = ["inward", "sign", "part_of_it(0.25)"]
    alone = pg.compare(case_of_mine.run, rules=rules, seeds=2)
    spread = pg.compare(case_of_mine.run, rules=rules, seeds=2, jobs=2)
    assert str(spread.values) == str(alone.values)  # NaN where it failed
    assert spread.failures == alone.failures == {("sign", 1): "ValueError: gone"}
    with pytest.raises(
        ValueError, match="compare: jobs must be processes that live to the end, got 'one that did not'"
    ):
        pg.compare(case_of_mine.dies, rules=[], seeds=1, jobs=2)


def test_after_an_error_nobody_waits_for_what_other_processes_have_begun() -> None:
    def fail() -> None:
        with _pool("compare", 1) as processes:
            begun = processes.submit(time.sleep, 60)
            while not begun.running():
                time.sleep(0.01)
            raise ZeroDivisionError

    start = time.monotonic()
    with pytest.raises(ZeroDivisionError):
        fail()
    assert time.monotonic() - start < 30


@pytest.mark.filterwarnings("default")
@pytest.mark.program
@pytest.mark.parametrize("package", ["concurrent", "joblib"])
def test_an_executor_gives_the_numbers_of_this_process(package: str) -> None:
    pytest.importorskip(package)
    if package == "joblib":
        executor = importlib.import_module("joblib.externals.loky").get_reusable_executor(2)
    else:
        executor = ProcessPoolExecutor(2, get_context("spawn"))
    try:
        if package == "concurrent":
            with pytest.raises(ValueError, match="compare: run must be what the executor can send"):
                pg.compare(lambda clamp: 1.0, executor=executor, seeds=2)
        # After the error: until another result comes, an executor of Python 3.11 may wait for ever at its end.
        comparison = pg.compare(noisy, executor=executor, rules=["inward"], seeds=3)
        if package == "joblib":  # loky sends functions of a notebook
            variants = {"double": lambda x: 2 * x, "half": lambda x: x / 2}
            rows = pg.compare(lambda step, seed: step(2.0) + seed, variants=variants, executor=executor, seeds=2)
            assert rows.values["the number"] == {"double": (4.0, 5.0), "half": (1.0, 2.0)}
    finally:
        executor.shutdown()
    assert comparison.values == pg.compare(noisy, rules=["inward"], seeds=3).values


def test_threads_are_refused_as_they_share_the_random_numbers() -> None:
    with (
        ThreadPoolExecutor(1) as executor,
        pytest.raises(ValueError, match="must run things in processes of their own"),
    ):
        pg.compare(noisy, executor=executor, seeds=2)


@pytest.mark.program
@pytest.mark.skipif(not Path("/proc").exists(), reason="needs /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_process_outlives_a_comparison_that_is_ended(number: signal.Signals, tmp_path: Path) -> None:
    """A run has processes of its own too, as a DataLoader has."""
    (tmp_path / "mine.py").write_text(
        "import os, time\nfrom multiprocessing import Process, active_children\ndef run(f, seed):\n"
        "    active_children() or Process(target=time.sleep, args=(600,), daemon=True).start()\n"
        "    for one in (os.getpid(), active_children()[0].pid):\n        open(str(one), 'w').close()\n"
        "    time.sleep(0.1)\n    return seed\n"
    )
    (tmp_path / "program.py").write_text(
        "import math, mine, pseudograd as pg\nif __name__ == '__main__':\n"
        "    pg.compare(mine.run, variants={'a': math.cos, 'b': math.sin}, seeds=5000, jobs=2)\n"
    )
    program = subprocess.Popen([sys.executable, "program.py"], cwd=tmp_path, start_new_session=True)
    try:
        workers = wait_for(lambda: [int(path.name) for path in tmp_path.iterdir() if path.name.isdigit()], 4)
    finally:
        program.send_signal(number)
        program.wait()
    wait_for(lambda: [worker for worker in workers if not is_alive(worker)], 4)


def wait_for(count: Callable[[], list[int]], number: int) -> list[int]:
    end = time.monotonic() + 120
    while len(count()) < number:
        assert time.monotonic() < end, f"{len(count())} of {number}"
        time.sleep(0.1)
    return count()


def is_alive(process: int) -> bool:
    stat = Path(f"/proc/{process}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"
