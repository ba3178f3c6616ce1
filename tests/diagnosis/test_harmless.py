"""Whatever of a diagnosis fails inside a program, the program's numbers are those without it, bit for bit, and the report says what failed.

A tracer finds each line of ours that runs during a program, and makes it raise.
"""

import contextlib
import ctypes
import functools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.checkpoint import checkpoint

import pseudograd as pg
from pseudograd.diagnosis import diagnose
from pseudograd.diagnosis.count.names import instances_of
from pseudograd.diagnosis.count.recorder import Recorder
from pseudograd.formula import our_formulas
from pseudograd.listen import harmless, hooks, patches
from pseudograd.listen.hooks import backwards, clearings, swaps
from pseudograd.listen.listener import Listener
from pseudograd.torch_table.private import dispatch_modes, mode_stack

from .checks import Heard, make_function

SOURCE = Path(pg.__file__).parent
OURS = tuple(str(SOURCE / part) for part in ("diagnosis", "listen"))
# What catches an error of ours: a line that one of these has called may raise.
CATCH = {
    harmless.harmless("")(print).__code__,
    harmless.quiet("")(print).__code__,
    Listener.__torch_function__.__code__,
}
# These drop a reference to a swapped tensor, or put a mode back. If they fail, nothing can be undone.
CANNOT_BE_UNDONE = {
    "Recorder.on_swap",
    "Leaves.drop_references",
    "Leaves.known",
    "Leaves._known",
    "Influence.drop_references",
    "Rest.end",
    "take_off",
    "Listener.run",  # which is the program's own call
    "Listener.__torch_function__",  # its own look at the kinds of the arguments
}
WHATIF: dict[str, Any] = {"inward": {"clamp": "inward"}, "open": "open"}
Line = tuple[CodeType, int]


Doubled = make_function("Doubled", lambda ctx, x: x * 2, lambda ctx, grad: grad * 2)


def trained() -> list[Tensor]:
    """A program with most of the events that a diagnosis hears."""
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.3))
    scale = nn.Parameter(torch.tensor([0.5, 3.0, -2.0, 1.0]))
    optimizer = torch.optim.SGD([*net.parameters(), scale], lr=0.1)
    y = net(torch.randn(6, 4))
    code = y.detach().argmax(1)
    y = Doubled.apply(y.clamp(-0.5, 0.5)) + torch.relu(y) * scale.clamp(0, 1) + code[:, None]
    y = y + pg.jumprelu(y, scale, bandwidth=0.5)
    z = y * 1
    z[:, :2].clamp_(-1, 1)
    (torch.minimum(y, torch.tensor(0.5)).sum() + torch.nn.functional.hardtanh(z).sum()).backward()
    optimizer.step()
    scale.data.clamp_(min=-1)
    torch.autograd.grad(net(torch.randn(6, 4)).clamp(-1, 1).sum(), list(net.parameters()))
    return [*(p.grad for p in (*net.parameters(), scale) if p.grad is not None), scale, *net.buffers(), torch.rand(2)]


def elsewhere() -> list[Tensor]:
    """Checkpoints, transforms, other threads, other tensors, and a backward that raises."""
    w = nn.Parameter(torch.tensor([0.5, 3.0, -2.0]))

    def f(x: Tensor) -> Tensor:
        return (x * x).clamp(-1, 1)

    checkpoint(lambda x: nn.functional.dropout(f(x)), w, use_reentrant=False).sum().backward()
    checkpoint(f, w * 1, use_reentrant=True).sum().backward()
    transformed = [torch.func.grad(lambda x: f(x).sum())(w.detach()), torch.func.vmap(f)(w.detach())]
    (h := f(w * 1)).register_hook(lambda grad: grad * 2)
    h.sum().backward()
    y = w * 1
    y.register_hook(lambda grad: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        y.sum().backward()
    thread = threading.Thread(target=lambda: f(w).sum().backward())
    thread.start()
    thread.join()
    layer = nn.Linear(3, 3)
    f(layer(w)).sum().backward()
    torch.utils.swap_tensors(layer.weight, nn.Parameter(layer.weight.detach().double()))
    torch._foreach_clamp_min_([layer.bias.data], 0.0)
    torch.autograd.grad((w * w).sum(), w, create_graph=True)[0].clamp(-1, 1).sum().backward()
    return [w.grad, *transformed, *layer.parameters(), torch.rand(2)]


def twice() -> list[Tensor]:
    """Gradients that are read when a backward has ended, and one that is counted because a hook runs before."""
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2))
    grads = []
    for step in range(4):
        net.zero_grad()
        h = net[:2](torch.randn(4, 3))
        if step == 3:
            h.register_hook(lambda grad: grad * 2)
        net[2](h).sum().backward()
        grads += [p.grad for p in net.parameters() if p.grad is not None]
    return grads


def numbers(program: Callable[[], list[Tensor]]) -> list[Tensor]:
    torch.manual_seed(0)
    return [tensor.detach().clone() for tensor in [*program(), torch.get_rng_state()]]


BETWEEN = (functools.__file__, "<frozen importlib")  # frames between two of ours


def is_tried(frame: FrameType) -> bool:
    """Is it a line of ours whose error a caller of ours catches?"""
    inner: FrameType | None = frame
    while inner is not None and inner.f_code.co_filename.startswith(OURS + BETWEEN):
        if inner.f_code.co_qualname.split(".<locals>")[0] in CANNOT_BE_UNDONE:
            return False
        inner = inner.f_back
        if inner is not None and inner.f_code in CATCH:
            return frame.f_code not in CATCH and Path(frame.f_code.co_filename).stem not in ("harmless", "quietly")
    return False


def qualified(line: Line) -> str:
    code, number = line
    return f"{Path(code.co_filename).name}:{number} in {code.co_qualname}"


def choose(lines: set[Line]) -> list[Line]:
    """One line of each function, the first and the last in turn: all of them would take minutes."""
    by_code: dict[CodeType, list[Line]] = {}
    for line in sorted(lines, key=lambda line: (line[0].co_filename, line[1])):
        by_code.setdefault(line[0], []).append(line)
    return [ours[-(at % 2)] for at, ours in enumerate(by_code.values())]


_ALONE = "PSEUDOGRAD_TEST_ALONE"
ROOT = Path(__file__).resolve().parents[2]


class PlantedError(Exception):
    pass


def run(
    program: Callable[[], list[Tensor]], at: Sequence[Line] | None, ran: set[Line]
) -> tuple[list[Tensor], Any, set[Line]]:
    """Run the program under a diagnosis in which these lines raise, each once. Add the lines that ran to `ran`.

    Returns the numbers of the program, the diagnosis, and the lines that raised.
    """
    hits = set[Line]()

    def local(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            line = frame.f_code, frame.f_lineno
            ran.add(line)
            if at and line in at and line not in hits:
                hits.add(line)
                raise PlantedError(qualified(line))
        return local

    def tracer(frame: FrameType, event: str, argument: Any) -> Any:
        return local if (at is None or frame.f_code in codes) and is_tried(frame) else None

    def noted(errors: harmless.Errors, what: str, error: BaseException, note: Any = harmless.Errors.note) -> None:
        note(errors, what, error)
        sys.settrace(tracer)  # python ends the tracing where a tracer raises

    codes = {code for code, _ in at or ()}
    with diagnose(whatif=WHATIF) as d, pytest.MonkeyPatch.context() as patch:
        patch.setattr(harmless.Errors, "note", noted)
        before = sys.gettrace()
        sys.settrace(tracer)
        try:
            result = numbers(program)
        finally:
            sys.settrace(before)
    return result, d, hits


def calls_are_heard() -> bool:
    """Does a function mode hear calls? If a context of ours had not ended, torch would call no mode."""
    with Heard() as heard:
        torch.zeros(1).abs()
    return bool(heard.names)


def assert_nothing_is_left() -> None:
    assert not mode_stack()
    assert dispatch_modes() == 0
    assert (our_formulas.depth, harmless.unheard.depth) == (0, 0)
    assert torch.is_grad_enabled()
    assert calls_are_heard()
    assert backwards.subscribers == hooks._watchers == harmless._listening == ()
    assert swaps.subscribers == clearings.subscribers == ()


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    assert_nothing_is_left()


@pytest.mark.program
@pytest.mark.skipif(sys.version_info < (3, 11), reason="code objects tell their qualified name")
def test_any_line_may_raise_in_a_process_of_its_own() -> None:
    """In one process with thousands of other tests, the traced program once hung."""
    test = f"{__file__}::test_any_line_of_ours_may_raise"
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", "--slow", test]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, _ALONE: "1"}, cwd=ROOT, timeout=1800
    )
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


@pytest.mark.skipif(_ALONE not in os.environ, reason="run by the test above")
def test_any_line_of_ours_may_raise() -> None:
    """Twelve lines raise in one run. A line that another one kept from running gets a run of its own."""
    done = set[CodeType]()
    wrong = []
    for program in (trained, elsewhere, twice):
        ran = set[Line]()
        right = numbers(program)
        result, d, _ = run(program, None, ran)
        assert all(map(torch.equal, right, result))
        assert d.errors == []
        assert len(ran) > 200
        lines = choose({line for line in ran if line[0] not in done})
        runs = -(-len(lines) // 12)
        for group in [lines[first::runs] for first in range(runs)]:
            reasons, raised = faults(program, group, right)
            silent = [line for line in group if line not in raised] if len(group) > 1 else []
            wrong += reasons + [reason for line in silent for reason in faults(program, [line], right)[0]]
        done |= {code for code, _ in ran}
    assert wrong == []


def faults(program: Callable[[], list[Tensor]], lines: list[Line], right: list[Tensor]) -> tuple[list[str], set[Line]]:
    """The faults of a program in which these lines raise, and the lines that did raise. right: its numbers without an error."""
    where = ", ".join(map(qualified, lines))
    try:
        result, d, raised = run(program, lines, set())
    except Exception as error:
        return [f"{where}: the program raises {type(error).__name__}"], set()
    assert_nothing_is_left()
    reasons = [*d.errors, *(why for reasons in d.inexact.values() for why in reasons)]
    wrong = [] if all(map(torch.equal, right, result)) else [f"{where}: other numbers"]
    silent = [line for line in raised if not any(f"PlantedError: {qualified(line)}" in why for why in reasons)]
    return wrong + [f"{qualified(line)}: the report does not have it" for line in silent], raised


def test_nothing_of_a_diagnosis_is_called_without_a_guard() -> None:
    """Exceptions: code that counts the depth of backward passes, forgets a tensor that is gone, or catches errors itself."""
    bare = set[str]()

    def tracer(frame: FrameType, event: str, argument: Any) -> Any:
        outer = frame.f_back
        while outer is not None and outer.f_code.co_filename.startswith(BETWEEN):
            outer = outer.f_back
        is_entered = outer is not None and not outer.f_code.co_filename.startswith(str(SOURCE / "diagnosis"))
        is_bare = is_entered and outer is not None and outer.f_code not in CATCH and not is_tried(frame)
        if frame.f_code.co_filename.startswith(OURS[0]) and is_bare:
            bare.add(frame.f_code.co_qualname.split(".<locals>")[0])

    for program in (trained, elsewhere, twice):
        with diagnose(whatif=WHATIF):
            before = sys.gettrace()
            sys.settrace(tracer)
            try:
                numbers(program)
            finally:
                sys.settrace(before)
    depths = {"Recorder.on_backward", "Recorder._end", "_InBackward.__torch_function__", "Rest.end"}
    others = {"Leaves._remember", "Recorder._hook_of", "<lambda>", "_recompute_as_before", "_on_dynamo"}
    assert bare <= depths | others


@pytest.mark.parametrize("fails", [ValueError, RecursionError])
def test_a_watcher_that_fails_leaves_our_ops_alone(monkeypatch: pytest.MonkeyPatch, fails: type[Exception]) -> None:
    def broken(*args: Any) -> Any:
        raise fails("planted")

    x = torch.tensor([-2.0, 0.5], requires_grad=True)
    with diagnose() as d:
        monkeypatch.setattr(d._recorder.influence, "after_function", broken)
        pg.clamp(Doubled.apply(x), -1, 1).sum().backward()
        assert not hooks.is_inside_function()
    assert torch.equal(x.grad, torch.tensor([0.0, 2.0]))
    assert [line.partition(" (")[0] for line in d.errors] == [f"a custom Function: {fails.__name__}: planted"]
    assert d.errors[0].endswith("2 times")


@pytest.mark.parametrize("method", ["before_call", "after_call", "count_now", "_begin", "_end_step"])
def test_what_a_handler_of_a_signal_raises_reaches_the_program(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def expire(number: int, frame: FrameType | None) -> None:
        raise TimeoutError("the program waits no longer")

    whole = getattr(Recorder, method)

    @functools.wraps(whole)
    def interrupted(*args: Any) -> Any:
        signal.raise_signal(signal.SIGALRM)
        return whole(*args)

    decorate = {"count_now": harmless.quiet, "_begin": harmless.harmless, "_end_step": harmless.harmless}.get(method)
    monkeypatch.setattr(Recorder, method, interrupted if decorate is None else decorate("a hook")(interrupted))
    known = signal.signal(signal.SIGALRM, expire)
    try:
        with diagnose() as d, pytest.raises(TimeoutError, match="waits no longer"):
            torch.ones(3, requires_grad=True).clamp(0, 2).sum().backward()
    finally:
        signal.signal(signal.SIGALRM, known)
    assert not d.errors
    assert mode_stack() == []


def test_what_a_handler_raises_between_our_lines_leaves_gradients_on(monkeypatch: pytest.MonkeyPatch) -> None:
    set_grad_enabled = harmless.set_grad_enabled

    def expire(is_on: bool) -> None:
        set_grad_enabled(is_on)
        if not is_on:
            raise KeyboardInterrupt

    monkeypatch.setattr(harmless, "set_grad_enabled", expire)
    with pytest.raises(KeyboardInterrupt):
        harmless.quietly().__enter__()
    assert torch.is_grad_enabled()
    monkeypatch.undo()
    skipped = harmless.quietly()
    skipped.__enter__()
    assert not torch.is_grad_enabled()
    del skipped  # an error at the begin of `__exit__`
    assert (torch.is_grad_enabled(), harmless.unheard.depth) == (True, 0)


class ExpiredError(Exception):
    pass


@pytest.mark.parametrize(("sent", "arrives"), [(ExpiredError, True), (TimeoutError, True), (ValueError, False)])
def test_an_exception_that_another_thread_sends_reaches_the_program(sent: type[Exception], arrives: bool) -> None:
    """Python raises it wherever the thread is. One of ours could be of the same class as the last."""
    send = ctypes.pythonapi.PyThreadState_SetAsyncExc
    ours = {"send": functools.partial(send, ctypes.c_ulong(threading.get_ident()), ctypes.py_object(sent))}
    exec(compile("def hook():\n    send()\n    for _ in range(10): pass", f"{SOURCE}/planted.py", "exec"), ours)
    with pytest.raises(sent) if arrives else contextlib.nullcontext():
        harmless.harmless("a hook")(ours["hook"])()


def test_an_error_without_a_diagnosis_of_its_own_is_noted_in_each_that_is_entered() -> None:
    class Recorded:
        noted = harmless.Errors()

    @harmless.harmless("a hook", otherwise=7)
    def fails(owner: object) -> int:
        raise PlantedError("planted")

    entered = harmless.Errors()
    harmless.listen(entered)
    try:
        assert fails(Recorded()) == fails(None) == 7
    finally:
        harmless.leave(entered)
    for errors in (Recorded.noted, entered):
        assert [line.split(" (")[0] for line in errors.lines] == ["a hook: PlantedError: planted"]


def test_twenty_different_errors_are_kept_with_their_counts_and_the_others_counted() -> None:
    errors = harmless.Errors()
    for place in range(25):
        errors.note(f"place {place}", ValueError("x"))
    assert harmless._describe(ValueError("y" * 201 + "\nz")) == f"ValueError: {'y' * 200}"
    for place in (0, 19, 24):  # the last is one of those that are only counted
        errors.note(f"place {place}", ValueError("x"))
    twice = [f"place {place}: ValueError: x, 2 times" for place in (0, 19)]
    once = [f"place {place}: ValueError: x" for place in range(1, 19)]
    assert errors.lines == [twice[0], *once, twice[1], "6 errors of further kinds"]


def test_a_clamp_that_raises_is_no_error_of_the_diagnosis() -> None:
    with diagnose() as diagnosis, pytest.raises(RuntimeError, match="must match the size"):
        torch.maximum(torch.ones(3, requires_grad=True), torch.ones(2))
    assert diagnosis.errors == []


def test_a_tuple_that_another_thread_makes_is_not_held_while_modules_are_searched() -> None:
    failures, has_ended, interval = list[Exception](), threading.Event(), sys.getswitchinterval()

    def make_tuples() -> None:
        while not has_ended.is_set():
            try:
                tuple(number for number in range(200))
            except SystemError as error:  # Python makes a tuple longer only if nobody else holds it
                failures.append(error)

    thread = threading.Thread(target=make_tuples)
    sys.setswitchinterval(1e-6)
    try:
        thread.start()
        for _ in range(20):
            instances_of(nn.Module)
    finally:
        has_ended.set()
        thread.join()
        sys.setswitchinterval(interval)
    assert not failures


def test_a_diagnosis_may_begin_and_end_while_another_optimiser_steps() -> None:
    parameter = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    parameter.grad = torch.ones(2)

    def other_thread(*_: object) -> None:
        with diagnose():
            pass

    handles = [
        register(other_thread) for register in (register_optimizer_step_pre_hook, register_optimizer_step_post_hook)
    ]
    try:
        with diagnose() as diagnosis:
            optimizer.step()
    finally:
        for handle in handles:
            handle.remove()
    assert parameter.tolist() == [0, 0]
    assert diagnosis.errors == []
    assert not any(patch.is_applied for patch in patches.HOOKS_OF_STEPS)
