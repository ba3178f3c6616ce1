"""One thread and fixed seeds for every test. Every run makes a choice; `--programs` and `--slow` add what it leaves out."""

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
    parser.addoption(
        "--slow", action="store_true", help="run all: also whole products, what takes minutes, and what --programs adds"
    )
    parser.addoption("--programs", action="store_true", help="also run the tests marked program")
    parser.addoption(
        "--matrix", metavar="FILE", type=Path, help="write the value matrix of this run as a page of the docs"
    )


def pytest_configure(config: pytest.Config) -> None:
    # Here, because the first process of a parallel run collects nothing and reads no conftest.py further down.
    if config.getoption("--matrix") and not hasattr(config, "workerinput"):
        from .contract.matrix_page import Collector

        config.pluginmanager.register(Collector(config.getoption("--matrix")), "value matrix")
    config.addinivalue_line(
        "markers", "slow: takes minutes, or repeats what others show; left out unless --slow is given"
    )
    config.addinivalue_line(
        "markers",
        "program: a whole program, in processes of its own, trained to its end, or compiled; left out unless --programs is given",
    )
    # Both are torch's own: when forward mode first loads its decompositions, and when Dynamo meets any autograd.Function.
    config.addinivalue_line(
        "filterwarnings", "ignore:`torch.jit.(script|trace|trace_method|script_method)` is deprecated"
    )
    config.addinivalue_line("filterwarnings", "ignore:.*should not be instantiated")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """All cases of a test function, or of an xdist_group, go to one process, the most first. Handed out one by one, 16,000 cases cost 20
    seconds: for each, all that were handed out before are counted.
    """
    from xdist.scheduler import LoadGroupScheduling

    class ByFunction(LoadGroupScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return super()._split_scope(nodeid).partition("[")[0]

    return ByFunction(config, log) if config.getoption("dist") == "loadgroup" else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[Any]:
    """Whatever is made stays, so that to look for garbage, a sixth of the time, finds none."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parameters that are left out become no tests: to make tens of thousands and leave them out costs many seconds."""
    left_out = _left_out(metafunc.config)
    for marker in metafunc.definition.iter_markers("parametrize"):
        cells = marker.args[1]
        if isinstance(cells, list):  # where all are left out, so are the tests, below
            cells[:] = [cell for cell in cells if left_out.isdisjoint(_marks(cell))] or cells


def _left_out(config: pytest.Config) -> set[str]:
    """The marks of tests that this run leaves out."""
    if config.getoption("--slow"):
        return set()
    return {"slow"} if config.getoption("--programs") else {"slow", "program"}


def _marks(cell: object) -> set[str]:
    return {mark.name for mark in getattr(cell, "marks", ())}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    marks = _left_out(config)
    left_out = {item for item in items if not marks.isdisjoint(mark.name for mark in item.iter_markers())}
    config.hook.pytest_deselected(items=[*left_out])
    items[:] = [item for item in items if item not in left_out]


_frozen_with = 0  # modules
_MANY = 100


def pytest_collection_finish() -> None:
    gc.set_threshold(20_000, 20, 50)  # a sixth of the time of a test that compiles went into looking for garbage
    _freeze()


def _freeze() -> None:
    """What is there by now stays: whoever looks at all objects, as the collector of garbage does, need not look at tests and modules."""
    global _frozen_with
    gc.collect()
    gc.freeze()
    _frozen_with = len(sys.modules)


def _let_dynamo_not_time_its_guards() -> None:
    """For its log alone it flushes the cache of the processor after each compilation: a fifteenth of the time of a test that compiles."""
    guards: Any = sys.modules.get("torch._dynamo.guards")
    if guards is not None:
        guards.profile_guard_manager = lambda *_: 0.0


@pytest.fixture(autouse=True)
def _same_start_for_every_test():
    """And the same end: a test that leaves a transform or a mode behind would fail its successors in ways nobody understands."""
    torch.default_generator.manual_seed(
        0
    )  # torch.manual_seed asks every accelerator, which takes longer than most tests
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(0)
    torch.set_num_threads(1)
    if len(sys.modules) > _frozen_with + _MANY:  # Dynamo, Matplotlib, or the like
        _freeze()
        _let_dynamo_not_time_its_guards()
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
    """A script of the project as a module, by its name."""
    folder = str(Path(__file__).resolve().parents[1] / "scripts")
    sys.path.insert(0, folder)
    yield importlib.import_module
    sys.path.remove(folder)


@pytest.fixture
def in_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that a command follows run in copies of this process: a tenth of a second instead of one or two."""
    from . import forked  # it imports Dynamo

    monkeypatch.setattr(program, "_process", forked.run)


@pytest.fixture
def own_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a test that is not content with `in_copies`, as the others of its file are: programs are run by python itself."""
    from . import forked

    monkeypatch.setattr(program, "_process", forked.begun)


@pytest.fixture
def table_as_it_was() -> Iterator[None]:
    """For tests that register rules: takes them out of the table again."""
    before = {name: dict(op.rules) for name, op in OPS.items()}
    yield
    for name, op in OPS.items():
        for added in set(op.rules) - set(before.get(name, op.rules)):
            del op.rules[added]  # type: ignore[attr-defined]
    forget_calls()
