"""Lines, expressions, nodes and backwards, as rewriting uses them and diagnosing will."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import pseudograd as pg
from pseudograd.trace import around_backward, frames, functions, nodes


def _here() -> Any:
    return frames.calling_frame(1)


def test_the_calling_frame_is_the_line_that_calls() -> None:
    frame = _here()
    assert frame.f_code.co_name == "_here"  # neither torch's nor ours
    assert frames.shown(frame.f_code, frame.f_lineno).startswith("tests/trace/test_trace.py:")


def test_ranges_that_start_afresh_find_no_earlier_node() -> None:
    y = torch.ones(1, requires_grad=True) * 2
    ranges = nodes.Ranges()
    assert ranges.unseen_behind([y]) == [y.grad_fn]
    y = y * 2
    ranges.start_afresh()
    assert not ranges.may_hide_some()
    assert ranges.unseen_behind([y]) == []


def test_the_program_is_outside_every_package(tmp_path: Path) -> None:
    package = tmp_path / "site-packages" / "library.py"
    package.parent.mkdir()
    package.write_text("def called(f):\n    return f()\n")
    space: dict[str, Any] = {}
    exec(compile(package.read_text(), str(package), "exec"), space)
    frame = space["called"](lambda: sys._getframe(1))
    assert frame.f_code.co_name == "called"
    assert frames.shown(frame.f_code, frame.f_lineno) == "library.py:2"
    found = frames.program_frame(frame)
    assert found is not None
    assert found.f_code.co_filename == __file__
    assert frames.program_frame(None) is None


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python before 3.11 knows the line alone")
def test_the_expression_is_the_call_and_not_its_line() -> None:
    def seen() -> str:
        frame = sys._getframe(1)
        return frames.expression(frame)

    x = 1.0
    text, other = [seen(), x], seen()  # é: positions count bytes
    assert text[0] == "seen()"
    assert other == "seen()"
    several = (
        x,
        seen(
        ),
    )  # fmt: skip
    assert several[1] == "seen( )"


def test_an_expression_without_source_is_empty() -> None:
    space: dict[str, Any] = {"frames": frames, "sys": sys}
    exec("found = frames.expression(sys._getframe())", space)
    assert space["found"] == ""


def test_a_file_that_changed_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a program of the same name runs in another folder."""
    for number, text in enumerate(["first", "the_second"]):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "train.py").write_text(
            f"def {text}(f): return f()\ncalled = {text}\nfound = called({text!r} and see)\n"
        )
        monkeypatch.chdir(folder)
        space: dict[str, Any] = {"see": lambda: frames.expression(sys._getframe(2))}
        exec(compile(Path("train.py").read_text(), "train.py", "exec"), space)
        assert f"{text!r} and see" in space["found"]


def test_modules_have_their_path_in_the_outermost_one() -> None:
    seen: list[str | None] = []

    class Inner(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(frames.place(1).module)
            return x

    model = torch.nn.Sequential(torch.nn.Identity(), torch.nn.Sequential(Inner()))
    model(torch.ones(1))
    assert seen == ["1.0"]
    assert frames.place(1).module is None


def test_nodes_of_a_call_and_nodes_that_nobody_saw() -> None:
    x = torch.ones(2, requires_grad=True)
    ranges = nodes.Ranges()
    ranges.start_afresh()
    y, made = ranges.of_call(torch.sin, (x,), {})
    assert [node.name() for node in made] == ["SinBackward0"]
    assert ranges.unseen_behind((y,)) == []
    z = y.exp() * 2
    other = x.cos()
    assert sorted(node.name() for node in ranges.unseen_behind((z,))) == ["ExpBackward0", "MulBackward0"]
    assert ranges.unseen_behind((z,)) == [], "each is found once"
    assert [node.name() for node in nodes.of([x, (z, other)])] == ["MulBackward0", "CosBackward0"]


@pytest.fixture
def heard() -> Iterator[list[str]]:
    notes: list[str] = []

    def around(roots: Any, grads: Any) -> Callable[[], None]:
        notes.append(f"begins, {len(roots)}")
        return lambda: notes.append("ends")

    around_backward.subscribe(around)
    around_backward.subscribe(around)
    yield notes
    around_backward.unsubscribe(around)


def test_each_backward_is_announced_once(heard: list[str]) -> None:
    x = torch.ones(2, requires_grad=True)
    x.sum().backward()
    torch.autograd.grad((x.sum(), x.prod()), x)
    torch.autograd.backward(x.sum())
    assert heard == ["begins, 1", "ends", "begins, 2", "ends", "begins, 1", "ends"]
    thread = threading.Thread(target=lambda: x.sum().backward())
    thread.start()
    thread.join()
    assert len(heard) == 8


def test_it_ends_where_a_backward_raises(heard: list[str]) -> None:
    x = torch.ones(2, requires_grad=True)
    x.register_hook(lambda grad: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        x.sum().backward()
    assert heard == ["begins, 1", "ends"]


def test_without_subscribers_torch_has_its_own_function() -> None:
    def around(roots: Any, grads: Any) -> Any:
        return lambda: None

    before = torch.autograd._engine_run_backward  # type: ignore[attr-defined]
    around_backward.subscribe(around)
    assert torch.autograd._engine_run_backward is not before  # type: ignore[attr-defined]
    around_backward.unsubscribe(around)
    assert torch.autograd._engine_run_backward is before  # type: ignore[attr-defined]


def test_watchers_of_functions_see_results_and_nothing_else() -> None:
    """One may come only to learn whether a Function runs; and `run_prepared` gives None where it is not asked."""
    x = torch.tensor([-2.0, 0.5, 2.0], requires_grad=True)
    seen: list[Any] = []
    with functions.watched(None), functions.watched(seen.append):
        made = [pg.clamp(x, -1, 1), pg.clamp(x.double(), -1, 1, rule="sign")]
    assert list(map(id, seen)) == list(map(id, made))
    with functions.watched(None):
        pg.clamp(x, -1, 1)
    assert len(seen) == len(made)
