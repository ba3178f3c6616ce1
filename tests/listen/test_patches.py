"""Every patch of torch is in the table, is taken out again, and is shown by `doctor`."""

import contextlib
import functools
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch

import pseudograd as pg
from pseudograd import doctor
from pseudograd.listen import frames, harmless, hooks, patches
from pseudograd.listen.program import process

PAGE = Path(__file__).resolve().parents[2] / "docs" / "override.md"


def patches_of_torch() -> list[str]:
    return [
        row["name"] for row in patches.status() if row["name"].startswith("torch.") and "_dynamo" not in row["name"]
    ]


def test_the_page_has_the_rows_of_the_registry() -> None:
    assert patches.table() in PAGE.read_text(encoding="utf-8")
    assert all(f"`{patch.name}`" in patches.table() for patch in patches.PATCHES)


def test_a_note_is_forgotten_for_its_own_reference_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    mine, other = weakref.ref(harmless.Errors), object()
    notes: dict[int, tuple[object, ...]] = {1: (mine, "note")}
    errors = harmless.Errors()
    monkeypatch.setattr(harmless, "_listening", (errors,))
    harmless.forget(notes, 2, mine)
    harmless.forget(notes, 1, other)
    assert notes == {1: (mine, "note")}
    harmless.forget(notes, 1, mine)
    assert (notes, errors.lines) == ({}, [])


@pytest.mark.parametrize("is_spawned", [True, False])
def test_a_process_begins_at_once_unless_it_may_be_one_that_loads_data(
    is_spawned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = mock.MagicMock()
    monkeypatch.setattr(process, "Process", made)
    monkeypatch.setattr(process, "_is_being_spawned", lambda: is_spawned)
    for name in ("_end_with", "_before_exit", "_before_sigterm", "atexit", "os"):
        monkeypatch.setattr(process, name, mock.Mock())
    process.begin("folder")
    made.assert_called_once_with(Path("folder"))
    assert (made().await_bootstrap.called, made().begin.called) == (is_spawned, not is_spawned)
    process._before_exit.assert_called_once_with(made())
    process.os.register_at_fork.assert_called_once_with(after_in_child=made().forked)


def test_torch_is_patched_inside_contexts_alone_and_doctor_shows_it() -> None:
    assert patches_of_torch() == []
    forward = torch.nn.MultiheadAttention.forward
    with pg.override(clamp="inward"):
        inside = patches_of_torch()
        assert torch.nn.MultiheadAttention.forward is not forward
        assert "torch.utils.checkpoint.CheckpointFunction._backward_cls.run_function" in inside
        with pg.diagnose():
            assert {"torch.autograd.Function.apply", "torch.optim.Optimizer.zero_grad", *inside} <= set(
                patches_of_torch()
            )
            findings = doctor.examine()
            assert {row["name"] for row in findings["patched"]} >= set(patches_of_torch())
            assert "torch.utils.swap_tensors, until the last diagnosis has ended" in doctor.text(findings)
        assert patches_of_torch() == inside
    assert patches_of_torch() == []
    assert torch.nn.MultiheadAttention.forward is forward


@pytest.fixture
def owner(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(patches, "PATCHES", [])
    module = SimpleNamespace(own=abs)
    monkeypatch.setitem(sys.modules, "patched_here", module)
    return module


@pytest.mark.parametrize("name", ["own", "inherited"])
def test_a_patch_is_applied_once_and_put_back(owner: Any, name: str) -> None:
    patch, before = patches.Patch(f"patched_here.{name}", "", ""), dict(vars(owner))
    for number in range(2):
        patch.apply(lambda hidden, number=number: (number, hidden))
    assert getattr(owner, name) == (0, before.get(name))
    assert patch.is_applied
    patch.remove()
    patch.remove()
    assert vars(owner) == before
    assert not patch.is_applied


def test_what_somebody_else_put_in_front_stays(owner: Any) -> None:
    patch = patches.Patch("patched_here.own", "", "")
    patch.apply(lambda hidden: "ours")
    owner.own = "theirs"
    assert not patch.is_applied
    patch.remove()
    assert owner.own == "theirs"


def test_a_module_that_nobody_imported_is_left_alone(owner: Any) -> None:
    patch = patches.Patch("nowhere.function", "", "")
    patch.apply(lambda hidden: hidden)
    assert not patch.is_applied


FILTERS: dict[str, Callable[[], object]] = {
    "always": lambda: warnings.simplefilter("always"),
    "once for each location": lambda: warnings.simplefilter("default"),
    "nothing of this module": lambda: warnings.filterwarnings("ignore", module=__name__),
    "an error in this module": lambda: warnings.filterwarnings("error", "Using a target", module=__name__),
    "errors elsewhere": lambda: [
        warnings.simplefilter("error"),
        warnings.filterwarnings("ignore", module=f"{__name__}|torch.nn"),
    ],
}
MAKERS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "diagnose": pg.diagnose,
    "override": lambda: pg.override(clamp="inward"),
    "pin": lambda: pg.pin_edge("jax"),
}


def warned_at(*entered: AbstractContextManager[object]) -> list[tuple[str, int]]:
    """The warnings of a program, and the line of one that is an error."""
    globals().pop("__warningregistry__", None)
    with contextlib.ExitStack() as stack:
        caught = stack.enter_context(warnings.catch_warnings(record=True))
        for context in entered:
            stack.enter_context(context)
        x = torch.ones(2, requires_grad=True) * 2
        try:
            for _ in range(2):
                _ = x.grad  # torch warns of it in C++
                torch.nn.functional.mse_loss(x, torch.ones(1))  # in Python, at its caller
                torch.nn.MSELoss()(x, torch.ones(1))
                torch.nn.Softmax()(x)  # at the caller of its caller
                warnings.warn("of the program", stacklevel=1)
        except UserWarning as error:
            trace = error.__traceback__
            return [(str(error), 0 if trace is None else trace.tb_lineno)]
    return [(warning.filename, warning.lineno) for warning in caught]


@pytest.mark.parametrize("name", MAKERS)
def test_a_warning_that_names_a_line_outside_of_our_frames_keeps_its_line(name: str) -> None:
    def line(context: AbstractContextManager[object]) -> int:
        with warnings.catch_warnings(record=True) as caught, context:
            warnings.simplefilter("always")
            torch.nn.functional.softmax(torch.ones(2), _stacklevel=6)
        return caught[0].lineno

    assert line(MAKERS[name]()) == line(contextlib.nullcontext())


@contextlib.contextmanager
def filtered(name: str) -> Iterator[None]:
    FILTERS[name]()
    assert warnings.filters.count(patches._FILTER) < 2
    yield


@pytest.mark.parametrize("is_inside", [False, True])
@pytest.mark.parametrize("name", FILTERS)
def test_a_warning_stands_at_the_line_of_the_program_for_its_filters(name: str, is_inside: bool) -> None:
    alone = warned_at(filtered(name))
    for make in MAKERS.values():
        contexts = (make(), filtered(name))
        assert warned_at(*(contexts if is_inside else contexts[::-1])) == alone
    assert not patches.FILTERS_CHANGE.is_applied
    assert not patches.FILTER.is_applied


def test_a_process_has_the_rank_of_torch_or_of_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    def distributed(available: bool, initialized: bool) -> SimpleNamespace:
        return SimpleNamespace(is_available=lambda: available, is_initialized=lambda: initialized, get_rank=lambda: 3)

    for rank, text in ((None, "x"), (5, "5")):
        monkeypatch.setenv("RANK", text)
        for torchs in (None, distributed(False, False), distributed(True, False)):
            monkeypatch.setitem(sys.modules, "torch.distributed", torchs)
            assert process._rank() == rank
        monkeypatch.setitem(sys.modules, "torch.distributed", distributed(True, True))
        assert process._rank() == 3


@pytest.mark.parametrize(
    ("where", "text", "is_same"),
    [
        ("/a/train.py:3", "train.py:3", True), ("/a/train.py:3", "a/train.py:3", True), ("/a/train.py:3", "train.py:4", False),
        ("/a/train.py:3", "rain.py:3", False), ("/a/train.py:3", "b/train.py:3", False), ("train.py", "train.py", False),
        ("<string>:3", "<string>:3", True), ("gone/f.py:3", "/lib/site-packages/gone/f.py:3", True), ("gone/f.py:3", "f.py:3", True),
    ],
)  # fmt: skip
def test_the_end_of_a_path_names_a_line(where: str, text: str, is_same: bool) -> None:
    assert frames.is_same_line(where, text) == is_same


def test_a_warning_that_torch_hides_while_it_lists_its_functions_stays_hidden() -> None:
    with warnings.catch_warnings(record=True) as shown, pg.diagnose():
        vars(torch.overrides.get_ignored_functions)["__wrapped__"]()
    assert [str(warning.message) for warning in shown] == []


def test_each_new_thread_runs_in_the_contexts_that_are_entered() -> None:
    entered: list[str] = []

    @contextlib.contextmanager
    def named_context(name: str) -> Iterator[None]:
        entered.append(name)
        yield
        entered.append(f"end of {name}")

    def run_thread() -> None:
        thread = threading.Thread(target=lambda: entered.append("run"))
        thread.start()
        thread.join()
        assert "run" not in vars(thread)

    start = threading.Thread.start
    outer, inner = (hooks.NewThreads(functools.partial(named_context, name)) for name in ("outer", "inner"))
    with outer:
        with inner:
            assert "threading.Thread.start" in [row["name"] for row in patches.status()]
            run_thread()
        run_thread()
    assert entered == ["outer", "inner", "run", "end of inner", "end of outer", "outer", "run", "end of outer"]
    assert threading.Thread.start is start
