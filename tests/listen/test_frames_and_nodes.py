"""Lines, expressions, nodes and backwards, as rewriting and diagnosing use them."""

import contextlib
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import pseudograd as pg
from pseudograd.listen import frames, hooks, nodes
from pseudograd.listen.hooks import backwards

AT_FIRST = vars(torch.autograd.Function).get("apply")


def _calling(file: str, f: Callable[[], Any]) -> Callable[[], Any]:
    """A function of that file which calls `f` in its second line."""
    space: dict[str, Any] = {"f": f}
    exec(compile("def called():\n    return f()\n", file, "exec"), space)
    return space["called"]


def test_the_program_is_outside_every_package_and_frozen_module(tmp_path: Path) -> None:
    package = str(tmp_path / "site-packages" / "library.py")
    location, frame = (
        _calling("<frozen importlib._bootstrap>", _calling(package, f))()
        for f in (frames.location, lambda: sys._getframe(1))
    )
    assert frame.f_code.co_name == "called"
    assert frames.format_location(frame.f_code, frame.f_lineno) == "library.py:2"
    own = frames.next_program_frame(frame)
    assert own.f_code.co_filename == __file__
    assert frames.next_program_frame(None) is None
    assert str(location.call) == "library.py:2"
    assert location.program.code is own.f_code
    calling = frames.calling_frame()
    assert calling.f_code.co_filename == __file__  # neither torch's nor ours
    assert frames.format_location(calling.f_code, 1) == "tests/listen/test_frames_and_nodes.py:1"


def test_generated_files_are_one_location_whatever_their_numbers() -> None:
    known, files = frames.Locations(), ("<string-1>", "<string-2>", "a1.py", "a2.py")
    first, again, one, other = (_calling(file, known.here)() for file in files)
    assert (first is again, one is other) == (True, False)


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


def _point_in(path: Path, text: str) -> frames.Point:
    """Where a program of that text calls `see`."""
    path.write_text(text)
    points: list[frames.Point] = []
    space: dict[str, Any] = {"see": lambda *_: points.append(frames.point(sys._getframe(1)))}
    exec(compile(text, str(path), "exec"), space)
    return points[0]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python before 3.11 knows the line alone")
@pytest.mark.parametrize(
    ("text", "left", "expression"),
    [
        ("x = 1\ny = [see(2), x]\n", None, "see(2)"),
        ("x = 'é', see(2)", None, "see(2)"),  # positions count bytes; the last line of a file
        ("x = 1, see(\n    2,\n), 3\n", None, "see( 2, )"),
        ("x = 1\nsee(\n    x,\n    x,\n)\n", "x = 1\nsee(\n    x,\n", "see("),  # the file lost its end
        ("x = 1\nsee(\n    x,\n)\n", "x = 1\n", ""),
    ],
)
def test_the_expression_is_the_call_and_not_its_line(
    text: str, left: str | None, expression: str, tmp_path: Path
) -> None:
    path = tmp_path / "train.py"
    point = _point_in(path, text)
    path.write_text(text if left is None else left)
    assert point.expression == expression


def test_without_columns_the_expression_is_the_line_and_without_source_empty(tmp_path: Path) -> None:
    """As under -X no_debug_ranges."""
    path = tmp_path / "train.py"
    path.write_text("x = see(\n    1)\n")
    code: Any = SimpleNamespace(co_filename=str(path), co_positions=lambda: [(1, 2, None, None)])
    assert frames.Point(code, 1, 0).expression == "x = see("
    space: dict[str, Any] = {"frames": frames, "sys": sys}
    exec("text = frames.point(sys._getframe()).expression", space)
    assert space["text"] == ""


def test_a_file_that_changed_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a program of the same name runs in another folder."""
    for number, text in enumerate(["first", "the_second"]):
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        assert text in _point_in(Path("train.py"), f"x = see({text!r})\n").expression


class Inner(torch.nn.Module):
    """Notes its path when it runs."""

    def __init__(self, paths: list[str | None]) -> None:
        super().__init__()
        self.paths = paths

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.paths.append(frames.location().module)
        return x


def test_modules_have_their_path_in_the_outermost_one_also_where_they_moved() -> None:
    paths: list[str | None] = []

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.body = Inner(paths), torch.nn.Sequential(Inner(paths))
            self.used = [self.first, self.body[0]]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for module in self.used:
                x = module(x)
            return x

    def paths_of(model: Model) -> list[str | None]:
        paths.clear()
        model(torch.ones(1))
        return paths.copy()

    model = Model()
    assert paths_of(model) == ["first", "body.0"]
    model.used.append(model.body.append(Inner(paths))[1])
    assert paths_of(model) == ["first", "body.0", "body.1"]
    del model.body[0]
    assert paths_of(model) == ["first", None, "body.0"]
    model.first, model.body[0] = model.body[0], model.first
    assert paths_of(model) == ["body.0", None, "first"]
    model.body = None
    assert paths_of(model) == [None, None, "first"]
    model.used = model.used[2:]
    del model.first
    assert paths_of(model) == [None]
    assert frames.location().module is None


@pytest.fixture
def ranges() -> nodes.Ranges:
    return nodes.Ranges()


def _names(results: list[torch.autograd.graph.Node]) -> list[str]:
    return sorted(node.name() for node in results)


def test_nodes_of_a_call_and_nodes_that_nobody_saw(ranges: nodes.Ranges) -> None:
    x = torch.ones(2, requires_grad=True)
    before = nodes.node_number()
    y = x.sin()
    assert _names(ranges.since(before, y)) == ["SinBackward0"]
    assert ranges.unseen_behind((y,)) == []
    z, other = y.exp() * 2, x.cos()
    assert _names(ranges.unseen_behind((z,))) == ["ExpBackward0", "MulBackward0"]
    assert ranges.unseen_behind((z,)) == [], "each is listed once"
    assert _names(nodes.nodes_of([x, (z, other)])) == ["CosBackward0", "MulBackward0"]
    y = x.exp()
    assert _names(ranges.unseen_behind([y + y])) == ["AddBackward0", "ExpBackward0"]
    y = y * 2
    ranges.start_afresh()
    assert not ranges.may_hide_some()
    assert ranges.unseen_behind([y]) == []


def test_a_call_hides_what_it_took(ranges: nodes.Ranges) -> None:
    """The unseen nodes behind the arguments of a call are not found behind its result."""
    hidden = torch.ones(2, requires_grad=True).exp()
    assert ranges.unseen_behind([]) == []
    before = nodes.node_number()
    z = hidden.sin()
    ranges.since(before, z)
    assert ranges.unseen_behind([z]) == []
    assert ranges.unseen_behind([hidden]) == [hidden.grad_fn]


def test_the_last_sixteen_ranges_are_remembered(ranges: nodes.Ranges) -> None:
    x, results = torch.ones(2, requires_grad=True), []
    for _ in range(20):
        results.append(x.exp())
        ranges.unseen_behind([])
    assert [len(ranges.unseen_behind([y])) for y in results] == [0] * 4 + [1] * 16


def test_all_nodes_that_a_backward_can_reach() -> None:
    x = torch.ones(2, requires_grad=True)
    y = x.exp()
    z = y * x.cos() + y
    everything = ["AccumulateGrad", "AddBackward0", "CosBackward0", "ExpBackward0", "MulBackward0"]
    assert sorted(type(node).__name__ for node in nodes.reachable_from([z])) == everything
    edge = torch.autograd.graph.get_gradient_edge(y)
    assert sorted(type(node).__name__ for node in nodes.reachable_from([edge, x])) == ["AccumulateGrad", "ExpBackward0"]
    assert nodes.reachable_from([x]) == []


@pytest.mark.program
@pytest.mark.skipif(not hasattr(os, "fork"), reason="a stack that overflows ends the process")
@pytest.mark.parametrize("is_made_inside", [True, False])
def test_a_long_chain_ends_in_a_small_stack(is_made_inside: bool) -> None:
    def train() -> None:
        w = torch.ones(1, requires_grad=True)
        with pg.override(relu="zero") if is_made_inside else contextlib.nullcontext():
            x = w
            for _ in range(10_000):
                x = x * 1.0
        if is_made_inside:
            x.sum().backward()
        else:
            with pg.diagnose():
                x.sum().backward()
        del x
        ended.append(w.grad)

    ended = list[object]()
    child = os.fork()
    if not child:
        threading.stack_size(3 << 19)
        thread = threading.Thread(target=train)
        thread.start()
        thread.join()
        os._exit(ended != [torch.ones(1)])
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("make_context", [pg.diagnose, lambda: pg.override(relu="zero")], ids=["diagnose", "override"])
def test_nodes_that_wait_for_their_end_end_with_the_context(make_context: Callable[[], Any]) -> None:
    w = x = torch.ones(1, requires_grad=True)
    leaf = weakref.ref(w)
    with make_context():
        for _ in range(10 * nodes.STRIDE):
            x = x * 1.0
        del w, x
    assert leaf() is None


@pytest.fixture
def backward_notes() -> Iterator[list[str]]:
    notes: list[str] = []

    def around(roots: Any, grads: Any, inputs: Any) -> Callable[[Any], None]:
        notes.append(f"begins, {len(roots)}")
        return lambda result: notes.append("raised" if result is None else f"ends, {len(result)} of {len(inputs)}")

    backwards.subscribe(around)
    backwards.subscribe(around)
    yield notes
    backwards.unsubscribe(around)


def test_each_backward_is_announced_once(backward_notes: list[str]) -> None:
    x = torch.ones(2, requires_grad=True)
    x.sum().backward()
    torch.autograd.grad((x.sum(), x.prod()), x)
    torch.autograd.backward(x.sum())
    assert backward_notes == ["begins, 1", "ends, 0 of 0", "begins, 2", "ends, 1 of 1", "begins, 1", "ends, 0 of 0"]
    thread = threading.Thread(target=lambda: x.sum().backward())
    thread.start()
    thread.join()
    assert len(backward_notes) == 8


def test_it_ends_where_a_backward_raises(backward_notes: list[str]) -> None:
    x = torch.ones(2, requires_grad=True)
    x.register_hook(lambda grad: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        x.sum().backward()
    assert backward_notes == ["begins, 1", "raised"]


def test_torchs_function_keeps_its_name_among_subscribers_and_is_back_without(backward_notes: list[str]) -> None:
    announced = torch.autograd._engine_run_backward
    stock = announced.__wrapped__
    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        assert getattr(announced, name) == getattr(stock, name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backwards, "subscribers", backwards.subscribers[:1])
        backwards.unsubscribe(backwards.subscribers[0])
        assert torch.autograd._engine_run_backward is stock


def test_watchers_of_functions_see_results_and_nothing_else() -> None:
    """`run_prepared` may return None, which is no result."""
    x = torch.tensor([-2.0, 0.5, 2.0], requires_grad=True)
    results_seen: list[Any] = []
    with hooks.watch_functions(results_seen.append):
        results = [pg.clamp(x, -1, 1), pg.clamp(x.double(), -1, 1, rule="sign")]
    assert list(map(id, results_seen)) == list(map(id, results))
    pg.clamp(x, -1, 1)
    assert len(results_seen) == len(results)


@pytest.mark.parametrize("is_patched", [True, False])
def test_functions_of_a_program_are_watched_and_left_as_they_were(
    is_patched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if another library has put its own `apply` there."""
    inside: list[bool] = []
    calls: list[type] = []
    results_seen: list[torch.Tensor] = []

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            inside.append(hooks.is_inside_function())
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> Any:
            return grad * 2

    def apply(cls: Any, *args: Any) -> Any:
        calls.append(cls)
        return super(torch.autograd.Function, cls).apply(*args)

    x = torch.ones(2, requires_grad=True)
    with monkeypatch.context() as patch:
        if is_patched:
            patch.setattr(torch.autograd.Function, "apply", classmethod(apply))
        before = vars(torch.autograd.Function).get("apply")
        with hooks.watch_functions(results_seen.append):
            results = Twice.apply(x)
            assert not hooks.is_inside_function()
        assert vars(torch.autograd.Function).get("apply") is before
        Twice.apply(x)
    assert [id(result) for result in results_seen] == [id(results)]
    assert results.tolist() == [2.0, 2.0]
    assert inside == [True, False]
    assert calls == [Twice, Twice] * is_patched
    assert vars(torch.autograd.Function).get("apply") == AT_FIRST
