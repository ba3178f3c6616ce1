"""Every test runs with one thread and fixed seeds. `--programs` and `--slow` add the tests with these markers."""

import gc
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from pseudograd.listen.program import follow as program
from pseudograd.rule import OPS, forget_calls

os.environ.setdefault("MPLBACKEND", "Agg")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run every test, those marked program too")
    parser.addoption("--programs", action="store_true", help="also run the tests marked program")
    parser.addoption(
        "--matrix", metavar="FILE", type=Path, help="write the value matrix of this run into its part of this page"
    )


def pytest_configure(config: pytest.Config) -> None:
    # The first process of a parallel run reads no conftest.py in the folders below, so the plugin is registered in this file.
    if config.getoption("--matrix") and not hasattr(config, "workerinput"):
        from .contract.matrix_page import Collector

        config.pluginmanager.register(Collector(config.getoption("--matrix")), "value matrix")
    # torch.manual_seed seeds every kind, and notes the traceback for one that is not there.
    if not torch.accelerator.is_available():
        for kind in (torch.cuda, torch.xpu):
            kind.manual_seed_all = lambda seed: None  # type: ignore[attr-defined]
    # torch itself warns when forward mode first loads its decompositions, and when Dynamo meets any autograd.Function.
    for warning in (
        "ignore:`torch.jit.(script|trace|trace_method|script_method)` is deprecated",
        "ignore:.*should not be instantiated",
    ):
        config.addinivalue_line("filterwarnings", warning)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give all cases of a test function to one process: pytest-xdist takes 20 s to distribute 16,000 cases one by one. Programs are few."""
    from xdist.scheduler import LoadGroupScheduling

    class ByFunction(LoadGroupScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return super()._split_scope(nodeid).partition("[")[0]

    is_by_function = config.getoption("dist") == "loadgroup" and not config.getoption("--programs")
    return ByFunction(config, log) if is_by_function else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[Any]:
    """Turn the garbage collector off: nothing that a collection makes is garbage."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Remove parameters that this run leaves out before they become tests, which saves seconds."""
    excluded = _excluded_markers(metafunc.config)
    for marker in metafunc.definition.iter_markers("parametrize"):
        cells = marker.args[1]
        if isinstance(cells, list):  # if no cell is left, the hook below deselects the whole test
            cells[:] = [cell for cell in cells if excluded.isdisjoint(_marks(cell))] or cells


def _excluded_markers(config: pytest.Config) -> set[str]:
    if config.getoption("--slow"):
        return set()
    return {"slow"} if config.getoption("--programs") else {"slow", "program"}


def _marks(cell: object) -> set[str]:
    return {mark.name for mark in getattr(cell, "marks", ())}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    excluded = _excluded_markers(config)
    deselected = {item for item in items if not excluded.isdisjoint(mark.name for mark in item.iter_markers())}
    config.hook.pytest_deselected(items=[*deselected])
    items[:] = [item for item in items if item not in deselected]


_frozen_with = 0  # modules
_tests = 0
_MANY = 25


def pytest_collection_finish() -> None:
    gc.set_threshold(20_000, 20, 50)  # with Python's own thresholds the collector takes a sixth of a test that compiles
    _freeze()


def _freeze() -> None:
    """Exempt tests and modules from garbage collection."""
    global _frozen_with
    gc.collect()
    gc.freeze()
    _frozen_with = len(sys.modules)


def _stop_dynamo_from_timing_guards() -> None:
    """Dynamo times its guards for a log line and flushes the processor's cache for it after each compilation."""
    guards: Any = sys.modules.get("torch._dynamo.guards")
    if guards is not None:
        guards.profile_guard_manager = lambda *_: 0.0


@pytest.fixture(autouse=True)
def _isolate_tests() -> Iterator[None]:
    """Also checks that the test leaves no rule, transform or mode behind, which would break later tests."""
    # torch.manual_seed asks every accelerator, which takes longer than most tests.
    torch.default_generator.manual_seed(0)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(0)
    torch.set_num_threads(1)
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
    global _tests
    _tests += 1
    if len(sys.modules) > _frozen_with + _MANY or _tests % _MANY == 0:  # Dynamo, Matplotlib, or the reports of tests
        _freeze()
        _stop_dynamo_from_timing_guards()
    rules = _count_of_rules()
    yield
    assert _count_of_rules() == rules, "this test leaves a rule behind"
    assert not torch._C._are_functorch_transforms_active(), "this test leaves a functorch transform behind"
    assert torch.autograd.forward_ad._current_level == -1, "this test leaves a forward-mode level behind"
    assert torch.is_grad_enabled(), "this test leaves grad mode off"
    assert torch._C._len_torch_dispatch_stack() == 0, "this test leaves a dispatch mode behind"


def _count_of_rules() -> int:
    return sum(len(op.rules) for op in OPS.values())


@pytest.fixture(scope="session")
def script() -> Iterator[Callable[[str], Any]]:
    """Imports a file of scripts/ by its name."""
    folder = str(Path(__file__).resolve().parents[1] / "scripts")
    sys.path.insert(0, folder)
    yield importlib.import_module
    sys.path.remove(folder)


@pytest.fixture
def in_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that a command runs become forks of this process, which saves the import of torch (one or two seconds)."""
    from . import forked  # it imports Dynamo

    monkeypatch.setattr(program, "_run_process", forked.run)


@pytest.fixture
def own_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undoes `in_copies` for one test: a command starts a new python for each program."""
    from . import forked

    monkeypatch.setattr(program, "_run_process", forked.begun)


@pytest.fixture
def table_as_it_was() -> Iterator[None]:
    """Removes the rules that a test registers."""
    before = {name: dict(op.rules) for name, op in OPS.items()}
    yield
    for name, op in OPS.items():
        for added in set(op.rules) - set(before.get(name, op.rules)):
            del op.rules[added]  # type: ignore[attr-defined]
    forget_calls()
