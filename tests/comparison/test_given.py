"""compare and tune for anything: variants of the user's own, executors, limits of time, curves and pictures, tables."""

from __future__ import annotations

import math
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import pseudograd as pg
from pseudograd.comparison import time_limit
from pseudograd.comparison.comparison import from_json
from pseudograd.comparison.time_limit import TimeIsUp, limit_time

Step = Callable[[Tensor], Tensor]


def spikes(step: Step, seed: int) -> float:
    """A weight that fires too often learns from the slope of its step alone."""
    torch.manual_seed(seed)
    x = torch.randn(64)
    weight = torch.full((), 2.0, requires_grad=True)
    for _ in range(40):
        loss = (step(x + weight).mean() + 0.5).square()
        weight.grad = None
        loss.backward()
        assert weight.grad is not None
        with torch.no_grad():
            weight -= 1.0 * weight.grad
    return loss.item()


STEPS: dict[str, Step] = {
    "torch.sign": torch.sign,
    "window": partial(pg.sign, rule="window"),
    "arctan": partial(pg.sign, rule="arctan"),
}


def test_functions_are_handed_out_as_they_are() -> None:
    seen: list[Any] = []

    def run(step: Step, seed: int) -> float:
        seen.append(step)
        return float(seed)

    found = pg.compare(run, variants=STEPS, baseline="torch.sign", seeds=2)
    assert {id(one) for one in seen} == {id(one) for one in STEPS.values()}
    assert found.variants == tuple(STEPS)
    assert found.baseline == "torch.sign"
    assert found.eras == ()
    assert found.changed_nothing


def test_surrogates_are_told_from_the_step_without_one() -> None:
    found = pg.compare(spikes, variants=STEPS, seeds=10)
    expected = {name: [spikes(step, seed) for seed in range(10)] for name, step in STEPS.items()}
    for name, values in expected.items():
        assert list(found.values["the number"][name]) == values
    assert found.verdict("arctan").verdict == found.verdict("window").verdict == "better"
    assert "torch.clamp" not in str(found)
    assert "less torch.sign" in str(found)


def test_a_rule_among_them_is_a_clamp_with_that_rule() -> None:
    def run(clamp: Callable[..., Tensor], seed: int) -> float:
        x = torch.tensor([2.0], requires_grad=True)
        clamp(x, 0, 1).sum().backward()
        assert x.grad is not None
        return x.grad.item()

    variants = {
        "mine": lambda x, low, high: x * 3,
        "as it is": torch.clamp,
        "named": "inward",
        "made": pg.rules.leaky(0.25),
        "edged": "zero/closed",
    }
    found = pg.compare(run, variants=variants, baseline="as it is", seeds=2, better="higher")
    values = {name: rows[0] for name, rows in found.values["the number"].items()}
    assert values == {"mine": 3.0, "as it is": 0.0, "named": 1.0, "made": 0.25, "edged": 0.0}


def test_the_first_is_the_baseline_unless_one_is_named() -> None:
    def run(step: float) -> float:
        return 1.0

    variants = {"a": abs, "b": abs}
    assert pg.compare(run, variants=variants, seeds=2).baseline == "a"
    assert pg.compare(run, variants=variants, baseline="b", seeds=2).baseline == "b"


def test_names_of_eras_and_of_no_clamp_mean_nothing_here() -> None:
    def run(step: Callable[[], float]) -> float:
        return step()

    variants = {"no clamp": lambda: 2.0, "zero/closed": lambda: 2.0, "zero/open": lambda: 2.0}
    found = pg.compare(run, variants=variants, seeds=2)
    assert found.edges() == {}
    assert "The variants changed nothing: every variant gave the numbers of no clamp, to the bit." in str(found)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"variants": [abs]}, TypeError, "compare: variants must be functions or rules by name"),
        ({"variants": {"a": abs}}, ValueError, "compare: variants must be at least two"),
        (
            {"variants": {"a": abs, "b": 3}},
            TypeError,
            "compare: variants must be functions, or rules of clamp, got 'b=3'",
        ),
        ({"variants": {"a": abs, 2: abs}}, TypeError, "compare: variants must have names that are texts, got 2"),
        ({"variants": {"a": abs, "b": "inwrad"}}, ValueError, "Did you mean 'inward'"),
        (
            {"variants": {"a": abs, "b": abs}, "baseline": "c"},
            ValueError,
            "compare: baseline must be one of a, b, got 'c'",
        ),
        ({"variants": {"a": abs, "b": abs}, "rules": ["inward"]}, ValueError, "rules must be left out with variants"),
        ({"variants": {"a": abs, "b": abs}, "replace": "clamp"}, ValueError, "replace must be left out with variants"),
        ({"variants": {"a": abs, "b": abs}, "edges": ["open"]}, ValueError, "edges must be left out with variants"),
        ({"baseline": "a"}, ValueError, "compare: baseline must come with variants, got 'a'"),
        ({"time_limit": 0}, ValueError, "compare: time_limit must be finite and above 0, got 0"),
        ({"time_limit": math.nan}, ValueError, "compare: time_limit must be finite and above 0"),
        ({"time_limit": "1"}, TypeError, "compare: time_limit must be a number of seconds, got '1'"),
        ({"executor": object()}, TypeError, "compare: executor must have a method submit"),
        ({"executor": ThreadPoolExecutor(1), "jobs": 2}, ValueError, "jobs must be left out with an executor, got 2"),
    ],
)
def test_bad_calls(arguments: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        pg.compare(lambda step: 1.0, **arguments) if "replace" not in arguments else pg.compare(
            lambda: 1.0, **arguments
        )


def test_tune_drops_variants_and_keeps_the_baseline() -> None:
    def run(step: Callable[[], float], seed: int) -> float:
        return step() + 1e-3 * torch.rand(()).item()

    variants = {name: partial(float, place) for place, name in enumerate("dabcef")}
    tuned = pg.tune(run, variants=variants, baseline="f", budget=60)
    assert tuned.final.baseline == "f"
    assert "f" in tuned.final.variants
    assert tuned.best == ("d",)
    assert all("f" not in one.medians for one in tuned.rounds)


# --- executors --------------------------------------------------------------------------------------------------------


def with_a_rule(clamp: Callable[..., Tensor], seed: int) -> float:
    x = torch.full((4,), 2.0) + torch.rand(4)
    for _ in range(20):
        x = x.detach().requires_grad_()
        clamp(x, -1, 1).pow(2).sum().backward()
        assert x.grad is not None
        x = x - 0.1 * x.grad
    return clamp(x, -1, 1).pow(2).sum().item() + 0.01 * seed


class Recording:
    """An executor that runs things at once, here, and keeps what it was given."""

    def __init__(self) -> None:
        self.count = 0

    def submit(self, f: Callable[..., Any], *args: Any) -> Future[Any]:
        self.count += 1
        future: Future[Any] = Future()
        try:
            future.set_result(f(*args))
        except Exception as error:
            future.set_exception(error)
        return future


def test_an_executor_gives_the_numbers_of_this_process() -> None:
    executor = Recording()
    how: dict[str, Any] = {"rules": ["inward"], "seeds": 3}
    found = pg.compare(with_a_rule, executor=executor, **how)
    assert executor.count == 3 * len(found.variants)
    assert found.values == pg.compare(with_a_rule, **how).values


def test_threads_are_refused_as_they_share_the_random_numbers() -> None:
    with (
        ThreadPoolExecutor(1) as executor,
        pytest.raises(ValueError, match="must run things in processes of their own"),
    ):
        pg.compare(with_a_rule, executor=executor, seeds=2)


@pytest.mark.slow
def test_processes_of_concurrent_futures() -> None:
    how: dict[str, Any] = {"rules": ["inward"], "seeds": 3}
    with ProcessPoolExecutor(2, get_context("spawn")) as executor:
        found = pg.compare(with_a_rule, executor=executor, **how)
        with pytest.raises(ValueError, match="compare: run must be what the executor can send"):
            pg.compare(lambda clamp: 1.0, executor=executor, seeds=2)
    assert found.values == pg.compare(with_a_rule, **how).values


@pytest.mark.slow
def test_loky_sends_functions_of_a_notebook() -> None:
    from joblib.externals import loky

    factor = 2.0

    def run(step: Callable[[float], float], seed: int) -> float:
        return step(factor) + seed

    variants = {"double": lambda x: 2 * x, "half": lambda x: x / 2}
    with loky.get_reusable_executor(2) as executor:
        found = pg.compare(run, variants=variants, executor=executor, seeds=3)
    assert found.values["the number"] == {"double": (4.0, 5.0, 6.0), "half": (1.0, 2.0, 3.0)}


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_a_dask_cluster_of_two_workers() -> None:
    distributed = pytest.importorskip("distributed")
    how: dict[str, Any] = {"rules": ["inward"], "seeds": 3}
    cluster = distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, host="127.0.0.1")
    with cluster, distributed.Client(cluster) as client:
        found = pg.compare(with_a_rule, executor=client.get_executor(pure=False), **how)
    assert found.values == pg.compare(with_a_rule, **how).values


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_submitit_runs_a_job_for_each_run(tmp_path: Path) -> None:
    """With its local cluster: the same jobs, without SLURM."""
    submitit = pytest.importorskip("submitit")
    executor = submitit.AutoExecutor(tmp_path / "logs", cluster="local")
    executor.update_parameters(timeout_min=5)
    how: dict[str, Any] = {"rules": ["inward"], "seeds": 2}
    assert pg.compare(with_a_rule, executor=executor, **how).values == pg.compare(with_a_rule, **how).values


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_ray_by_the_class_of_the_page() -> None:
    """docs/clusters.md has the class; it is run from there."""
    ray = pytest.importorskip("ray")
    page = (Path(__file__).parents[2] / "docs" / "clusters.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    exec(page[page.index("import ray\n") : page.index("ray.init()")], names)
    how: dict[str, Any] = {"rules": ["inward"], "seeds": 2}
    ray.init(num_cpus=2, include_dashboard=False, logging_level="error")
    try:
        found = pg.compare(with_a_rule, executor=names["OnRay"](), **how)
    finally:
        ray.shutdown()
    assert found.values == pg.compare(with_a_rule, **how).values


def test_functions_that_no_process_can_import_are_told_with_their_name() -> None:
    with pytest.raises(ValueError, match="variants must be functions at the top of a module for jobs above 1, 'b' too"):
        pg.compare(with_a_rule, variants={"a": torch.clamp, "b": lambda *x: x[0]}, jobs=2, seeds=2)


# --- a limit of time --------------------------------------------------------------------------------------------------


def test_a_run_that_takes_too_long_has_failed_and_is_not_kept(tmp_path: Path) -> None:
    calls: list[str] = []

    def run(step: Callable[[], bool], seed: int) -> float:
        while step():
            try:
                time.sleep(0.001)
            except Exception:  # a program that goes on after errors
                calls.append("caught")
        return float(seed)

    variants: dict[str, Any] = {"quick": lambda: False, "endless": lambda: True}
    found = pg.compare(run, variants=variants, seeds=2, time_limit=0.2)
    assert found.values["the number"]["quick"] == (0.0, 1.0)
    assert all(map(math.isnan, found.values["the number"]["endless"]))
    assert set(found.failures.values()) == {"it took longer than time_limit=0.2 seconds"}
    assert not calls


def late(step: Callable[[], float], seed: int) -> float:
    time.sleep(step())
    return 1.0


def test_what_was_late_is_run_again_and_the_rest_is_kept(tmp_path: Path) -> None:
    variants: dict[str, Any] = {"quick": partial(float, 0), "slow": partial(float, 0.4)}
    how: dict[str, Any] = {"variants": variants, "seeds": 1, "keep": tmp_path}
    first = pg.compare(late, time_limit=0.1, **how)
    assert len(first.failures) == 1
    asked: list[str] = []
    second = pg.compare(late, time_limit=5, on_trial=lambda one, done, of: asked.append(one.variant), **how)
    assert not second.failures
    assert asked == ["slow"]


def test_a_limit_that_comes_at_once_leaves_nothing_behind() -> None:
    """As on a machine so slow that the time is up before the run begins."""
    for _ in range(200):
        with suppress(TimeIsUp), limit_time(1e-6):
            pass
    for thread in threading.enumerate():
        if thread.name == "pseudograd time limit":
            thread.join(5)
            assert not thread.is_alive()
    time.sleep(0.05)


def test_nothing_is_raised_after_a_run_that_ended_in_time() -> None:
    for _ in range(50):
        try:
            with limit_time(0.002):
                end = time.perf_counter() + 0.0019
                while time.perf_counter() < end:
                    pass
        except TimeIsUp:
            pass
    time.sleep(0.05)  # where something still came, it would come here


def test_after_a_run_in_time_python_expects_no_error_any_more() -> None:
    """Else 3.11 stands still for ever where the next traced function begins: a debugger's, a profiler's, coverage's."""
    program = (
        "import sys\nexec(open(sys.argv[1]).read())\n"  # without torch, which takes seconds
        "with limit_time(60):\n    pass\n"
        "sys.setprofile(lambda *_: None)\n(lambda: None)()\nsys.setprofile(None)\nprint('went on')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, time_limit.__file__], capture_output=True, text=True, timeout=100, check=True
    )
    assert done.stdout == "went on\n"


# --- curves and pictures ----------------------------------------------------------------------------------------------


def pictured(clamp: Callable[..., Tensor], seed: int) -> dict[str, Any]:
    picture = torch.rand(4, 5)
    losses = []
    for _ in range(3 + seed):
        picture = picture * 0.5
        losses.append(picture.sum().item())
    return {
        "loss": losses[-1],
        "curve": losses,
        "grey": picture,
        "colours": torch.rand(3, 4, 5),
        "bytes": torch.randint(0, 255, (4, 5, 3)),
    }


def test_curves_and_pictures_stand_beside_the_numbers(tmp_path: Path) -> None:
    variants = {"a": abs, "b": abs}
    found = pg.compare(pictured, variants=variants, seeds=2, keep=tmp_path)
    assert list(found.values) == ["loss"]
    assert list(found.arrays) == ["curve", "grey", "colours", "bytes"]
    assert [tuple(one.shape) for one in found.arrays["curve"]["a"].values()] == [(3,), (4,)]
    assert found.arrays["grey"]["b"][0].shape == (4, 5)
    again = pg.compare(
        pictured, variants=variants, seeds=2, keep=tmp_path, on_trial=lambda *_: pytest.fail("it is kept")
    )
    assert torch.equal(again.arrays["grey"]["a"][1], found.arrays["grey"]["a"][1])


def test_a_curve_is_drawn_with_the_numbers_of_its_seeds() -> None:
    found = pg.compare(pictured, variants={"a": abs, "b": abs}, seeds=2)
    axes = found.plot("curve")
    line = axes.get_lines()[0]
    first, second = found.arrays["curve"]["a"].values()
    drawn = torch.as_tensor(line.get_ydata())
    assert drawn[:3].tolist() == torch.stack([first, second[:3]]).median(0).values.tolist()
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["a", "b"]


@pytest.mark.parametrize("name", ["grey", "colours", "bytes"])
def test_a_picture_is_a_tile_for_each_variant(name: str) -> None:
    found = pg.compare(pictured, variants={"a": abs, "b": abs}, seeds=2)
    tiles = found.plot(name).child_axes
    assert [tile.get_title() for tile in tiles] == ["a", "b"]
    for tile, variant in zip(tiles, "ab", strict=True):
        shown = torch.as_tensor(tile.get_images()[0].get_array())
        expected = found.arrays[name][variant][0]
        if name == "colours":
            expected = expected.permute(1, 2, 0)
        if name == "bytes":
            expected = expected / 255
        assert torch.equal(shown, expected)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (torch.rand(2, 3, 4, 5), "a number, a curve or a picture"),
        (torch.rand(4, 5, 2), "a number, a curve or a picture"),
        (torch.rand(3, requires_grad=True), "without a gradient"),
        (["a", "b"], "return a number"),
        (torch.rand(0), "a number, a curve or a picture"),
        (torch.rand(3, dtype=torch.complex64), "a number, a curve or a picture"),
    ],
)
def test_other_arrays_are_refused(value: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        pg.compare(lambda step: {"loss": 1.0, "more": value}, variants={"a": abs, "b": abs}, seeds=2)


def test_arrays_alone_are_no_result() -> None:
    with pytest.raises(TypeError, match="return a number"):
        pg.compare(lambda step: {"curve": [1.0, 2.0]}, variants={"a": abs, "b": abs}, seeds=2)


# --- tables -----------------------------------------------------------------------------------------------------------


def test_a_frame_has_a_row_for_each_variant_and_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = pg.compare(
        lambda step, seed: {"loss": step(seed), "more": 1.0}, variants={"a": abs, "b": lambda x: 1 / x}, seeds=2
    )
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="to_frame: pandas must be installed"):
        found.to_frame()
    monkeypatch.undo()
    pandas = pytest.importorskip("pandas")
    frame = found.to_frame()
    assert list(frame.columns) == ["variant", "seed", "loss", "more", "failure"]
    assert frame["loss"].tolist()[:2] == [0.0, 1.0]
    assert frame["failure"].tolist()[2].startswith("ZeroDivisionError")
    assert pandas.isna(frame["loss"][2])


def test_json_says_that_the_variants_were_given() -> None:
    found = pg.compare(with_a_rule, variants={"zero/closed": torch.clamp, "zero/open": torch.clamp}, seeds=2)
    assert from_json(found.to_json()).eras == () == found.eras
