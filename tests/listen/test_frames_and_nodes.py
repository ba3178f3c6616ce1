"""Lines, expressions, nodes and backwards, as rewriting uses them and diagnosing will."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import pseudograd as pg
from pseudograd.listen import frames, functions, nodes
from pseudograd.listen.around import backwards

AT_FIRST = vars(torch.autograd.Function).get("apply")


def _here() -> Any:
    return frames.calling_frame()


def test_the_calling_frame_is_the_line_that_calls() -> None:
    frame = _here()
    assert frame.f_code.co_name == "_here"  # neither torch's nor ours
    assert frames.format_location(frame.f_code, frame.f_lineno).startswith("tests/listen/test_frames_and_nodes.py:")


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
    assert frames.format_location(frame.f_code, frame.f_lineno) == "library.py:2"
    found = frames.program_frame(frame)
    assert found is not None
    assert found.f_code.co_filename == __file__
    assert frames.program_frame(None) is None


def _calling(file: str, f: Callable[[], Any]) -> Callable[[], Any]:
    """A function of that file which calls `f` in its second line."""
    space: dict[str, Any] = {"f": f}
    exec(compile("def called():\n    return f()\n", file, "exec"), space)
    return space["called"]  # type: ignore[no-any-return]


def test_packages_and_frozen_modules_are_no_program(tmp_path: Path) -> None:
    package = str(tmp_path / "site-packages" / "library.py")
    called = _calling("<frozen importlib._bootstrap>", _calling(package, lambda: (frames.place(2), sys._getframe(1))))
    place, frame = called()
    found = frames.program_frame(frame)
    assert found is not None
    assert found.f_code.co_filename == __file__
    assert str(place.call) == "library.py:2"
    assert place.program is not None
    assert place.program.code is found.f_code


def test_a_line_is_shown_from_site_packages_or_the_current_folder_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for file, wanted in (
        (tmp_path / "program" / "train.py", "program/train.py"),
        (tmp_path.parent / "train.py", tmp_path.parent / "train.py"),
        (tmp_path / "site-packages" / "one" / "site-packages" / "two" / "model.py", "two/model.py"),
        ("<made by one//two>", "<made by one//two>"),
        ("", ""),
    ):
        assert frames.format_location(str(file), 3) == f"{wanted}:3"


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


def _point_in(path: Path, text: str) -> frames.Point:
    """Where a program of that text calls `see`."""
    path.write_text(text)
    seen: list[frames.Point] = []
    space: dict[str, Any] = {"see": lambda *_: seen.append(frames.point(sys._getframe(1)))}  # type: ignore[arg-type]
    exec(compile(text, str(path), "exec"), space)
    return seen[0]


def test_the_expression_in_the_last_line_of_a_file(tmp_path: Path) -> None:
    point = _point_in(tmp_path / "train.py", "found = 1, see(2)")
    assert point.expression == ("see(2)" if sys.version_info >= (3, 11) else "found = 1, see(2)")


def test_of_a_file_that_lost_its_end_the_expression_is_the_line_that_is_left(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    point = _point_in(path, "x = 1\nsee(\n    x,\n    x,\n)\n")
    path.write_text("x = 1\nsee(\n    x,\n")
    assert point.expression == "see("
    path.write_text("x = 1\n")
    assert point.expression == ""


def test_where_python_keeps_no_columns_the_expression_is_the_line(tmp_path: Path) -> None:
    """As under -X no_debug_ranges."""
    path = tmp_path / "train.py"
    path.write_text("x = see(\n    1)\n")
    code: Any = SimpleNamespace(co_filename=str(path), co_positions=lambda: [(1, 2, None, None)])
    assert frames.Point(code, 1, 0).expression == "x = see("


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


class Inner(torch.nn.Module):
    """Notes where it stands when it runs."""

    def __init__(self, seen: list[str | None]) -> None:
        super().__init__()
        self.seen = seen

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(frames.place(1).module)
        return x


def test_modules_have_their_path_in_the_outermost_one() -> None:
    seen: list[str | None] = []
    model = torch.nn.Sequential(torch.nn.Identity(), torch.nn.Sequential(Inner(seen)))
    model(torch.ones(1))
    assert seen == ["1.0"]
    assert frames.place(1).module is None


def test_a_module_that_moved_has_its_new_path() -> None:
    seen: list[str | None] = []

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.body = Inner(seen), torch.nn.Sequential(Inner(seen))
            self.used = [self.first, self.body[0]]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for module in self.used:
                x = module(x)
            return x

    def paths_of(model: Model) -> list[str | None]:
        seen.clear()
        model(torch.ones(1))
        return seen.copy()

    model = Model()
    assert paths_of(model) == ["first", "body.0"]
    model.used.append(model.body.append(Inner(seen))[1])
    assert paths_of(model) == ["first", "body.0", "body.1"]
    del model.body[0]
    assert paths_of(model) == ["first", None, "body.0"]
    model.first, model.body[0] = model.body[0], model.first
    assert paths_of(model) == ["body.0", None, "first"]
    model.body = None  # type: ignore[assignment]
    assert paths_of(model) == [None, None, "first"]
    model.used = model.used[2:]
    assert paths_of(model) == ["first"]
    del model.first
    assert paths_of(model) == [None]


def test_nodes_of_a_call_and_nodes_that_nobody_saw() -> None:
    x = torch.ones(2, requires_grad=True)
    ranges = nodes.Ranges()
    ranges.start_afresh()
    y, made = ranges.run_call(torch.sin, (x,), {})
    assert [node.name() for node in made] == ["SinBackward0"]
    assert ranges.unseen_behind((y,)) == []
    z = y.exp() * 2
    other = x.cos()
    assert sorted(node.name() for node in ranges.unseen_behind((z,))) == ["ExpBackward0", "MulBackward0"]
    assert ranges.unseen_behind((z,)) == [], "each is found once"
    assert [node.name() for node in nodes.nodes_of([x, (z, other)])] == ["MulBackward0", "CosBackward0"]


def test_a_node_that_two_ways_lead_to_is_found_once_and_a_call_hides_what_it_took() -> None:
    """Whoever looks at the result of a call has no need to look behind it."""
    x = torch.ones(2, requires_grad=True)
    ranges = nodes.Ranges()
    ranges.start_afresh()
    y = x.exp()
    assert sorted(node.name() for node in ranges.unseen_behind([y + y])) == ["AddBackward0", "ExpBackward0"]
    hidden = x.exp()
    assert ranges.unseen_behind([]) == []
    z, _ = ranges.run_call(torch.sin, (hidden,), {})
    assert ranges.unseen_behind([z]) == []
    assert ranges.unseen_behind([hidden]) == [hidden.grad_fn]


def test_the_last_sixteen_ranges_are_remembered() -> None:
    x = torch.ones(2, requires_grad=True)
    ranges = nodes.Ranges()
    ranges.start_afresh()
    made = []
    for _ in range(20):
        made.append(x.exp())
        ranges.unseen_behind([])
    assert [len(ranges.unseen_behind([y])) for y in made] == [0] * 4 + [1] * 16


def test_all_nodes_that_a_backward_can_reach() -> None:
    x = torch.ones(2, requires_grad=True)
    y = x.exp()
    z = y * x.cos() + y
    everything = ["AccumulateGrad", "AddBackward0", "CosBackward0", "ExpBackward0", "MulBackward0"]
    assert sorted(type(node).__name__ for node in nodes.reachable_from([z])) == everything
    edge = torch.autograd.graph.get_gradient_edge(y)
    assert sorted(type(node).__name__ for node in nodes.reachable_from([edge, x])) == ["AccumulateGrad", "ExpBackward0"]
    assert nodes.reachable_from([x]) == []


@pytest.fixture
def heard() -> Iterator[list[str]]:
    notes: list[str] = []

    def around(roots: Any, grads: Any, inputs: Any) -> Callable[[Any], None]:
        notes.append(f"begins, {len(roots)}")
        return lambda result: notes.append("raised" if result is None else f"ends, {len(result)} of {len(inputs)}")

    backwards.subscribe(around)
    backwards.subscribe(around)
    yield notes
    backwards.unsubscribe(around)


def test_each_backward_is_announced_once(heard: list[str]) -> None:
    x = torch.ones(2, requires_grad=True)
    x.sum().backward()
    torch.autograd.grad((x.sum(), x.prod()), x)
    torch.autograd.backward(x.sum())
    assert heard == ["begins, 1", "ends, 0 of 0", "begins, 2", "ends, 1 of 1", "begins, 1", "ends, 0 of 0"]
    thread = threading.Thread(target=lambda: x.sum().backward())
    thread.start()
    thread.join()
    assert len(heard) == 8


def test_it_ends_where_a_backward_raises(heard: list[str]) -> None:
    x = torch.ones(2, requires_grad=True)
    x.register_hook(lambda grad: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        x.sum().backward()
    assert heard == ["begins, 1", "raised"]


def test_torchs_function_keeps_its_name_among_subscribers_and_is_back_without(heard: list[str]) -> None:
    announced = torch.autograd._engine_run_backward  # type: ignore[attr-defined]
    stock = announced.__wrapped__
    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        assert getattr(announced, name) == getattr(stock, name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backwards, "subscribers", backwards.subscribers[:1])
        backwards.unsubscribe(backwards.subscribers[0])
        assert torch.autograd._engine_run_backward is stock  # type: ignore[attr-defined]


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


@pytest.mark.parametrize("is_patched", [True, False])
def test_functions_of_a_program_are_watched_and_left_as_they_were(
    is_patched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where somebody has put an `apply` of their own there."""
    inside: list[bool] = []
    calls: list[type] = []
    seen: list[torch.Tensor] = []

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            inside.append(functions.is_inside())
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> Any:
            return grad * 2

    def apply(cls: Any, *args: Any) -> Any:
        calls.append(cls)
        return super(torch.autograd.Function, cls).apply(*args)  # type: ignore[misc]

    x = torch.ones(2, requires_grad=True)
    with monkeypatch.context() as patch:
        if is_patched:
            patch.setattr(torch.autograd.Function, "apply", classmethod(apply))
        before = vars(torch.autograd.Function).get("apply")
        with functions.watched(seen.append):
            made = Twice.apply(x)
            assert not functions.is_inside()
        assert vars(torch.autograd.Function).get("apply") is before
        Twice.apply(x)
    assert [id(result) for result in seen] == [id(made)]
    assert made.tolist() == [2.0, 2.0]
    assert inside == [True, False]
    assert calls == [Twice, Twice] * is_patched
    assert vars(torch.autograd.Function).get("apply") == AT_FIRST
