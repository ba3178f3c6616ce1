"""The engine tells its watchers of every call, without a patch."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import pseudograd as pg
from pseudograd import engine


class Watcher:
    """Notes the begin and the result of each call."""

    def __init__(self, name: str = "", notes: list[Any] | None = None) -> None:
        self.name = name
        self.notes: list[Any] = [] if notes is None else notes

    def __call__(self) -> Callable[[Tensor | None], None]:
        self.notes.append(f"{self.name}begins")
        return self.ends

    def ends(self, result: Tensor | None) -> None:
        self.notes.append(result if self.name == "" else f"{self.name}ends")


def _x() -> Tensor:
    return torch.tensor([-2.0, 0.0, 2.0], requires_grad=True)


CALLS: dict[str, Callable[[Tensor], Tensor]] = {
    "clamp": lambda x: pg.clamp(x, -1, 1),
    "round": lambda x: pg.round(x),
    "in place": lambda x: pg.clamp_(x * 1, -1, 1),
    "in place on a view": lambda x: pg.clamp_((x * 1)[:], -1, 1),
    "replace_grad": lambda x: pg.replace_grad(x.detach(), x),
    "under override": lambda x: pg.override(clamp="inward")(torch.clamp)(x, -1, 1),
}


@pytest.mark.parametrize("name", CALLS)
def test_every_call_is_told_once_with_its_result(name: str) -> None:
    CALLS[name](_x())  # prepared
    watcher = Watcher()
    with engine.watch(watcher):
        y = CALLS[name](_x())
    assert watcher.notes[-2] == "begins"
    assert [id(note) for note in watcher.notes if isinstance(note, Tensor)] == [id(y)]


def test_nothing_is_told_after_the_end_and_contexts_end_in_any_order() -> None:
    notes: list[Any] = []
    first, second = engine.watch(Watcher("first ", notes)), engine.watch(Watcher("second ", notes))
    pg.round(_x())  # prepares it
    first.__enter__()
    second.__enter__()
    pg.round(_x())
    assert notes == ["first begins", "second begins", "second ends", "first ends"]
    first.__exit__(None, None, None)
    pg.round(_x())
    assert notes[4:] == ["second begins", "second ends"]
    second.__exit__(None, None, None)
    pg.round(_x())
    assert len(notes) == 6


def test_a_call_that_raises_or_runs_in_another_thread_or_under_a_transform_is_told() -> None:
    watcher = Watcher()
    with engine.watch(watcher), pytest.raises(RuntimeError, match="leaf Variable"):
        pg.clamp_(_x(), -1, 1)
    assert watcher.notes == ["begins", None]
    with engine.watch(watcher):
        thread = threading.Thread(target=lambda: pg.round(_x()))
        thread.start()
        thread.join()
        assert watcher.notes[2] == "begins"
        watcher.notes.clear()
        torch.func.vmap(lambda x: pg.clamp(x, -1, 1))(_x())
    assert watcher.notes.count("begins") == 2  # prepared calls do not serve it
    assert sum(isinstance(note, Tensor) for note in watcher.notes) == 1


def test_compiled_code_is_not_told_and_has_no_break() -> None:
    watcher = Watcher()
    compiled = torch.compile(lambda x: pg.clamp(x, -1, 1) * 2, fullgraph=True, backend="aot_eager")
    with engine.watch(watcher):
        x = _x()
        y = compiled(x)
        y.sum().backward()
    assert watcher.notes == []
    assert (y.tolist(), x.grad.tolist()) == ([-2.0, 0.0, 2.0], [0.0, 2.0, 2.0])
    torch.compiler.reset()
