"""`pseudograd upgrade --routes`: the routes, blocks and segments, and programs in eager mode and under compilers."""

import copy
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

from pseudograd.listen import frames, patches
from pseudograd.torch_table.eras import installed_version
from pseudograd_upgrade.cutting.shrink import Mismatch
from pseudograd_upgrade.recording import Schedule
from pseudograd_upgrade.routes.blocks import BlockRecorder, Blocks, _find_tensors
from pseudograd_upgrade.routes.question import CPU, ENVIRONMENTS, parse_routes
from pseudograd_upgrade.routes.segments import Line, Segment, Segments, _find_module

from ..commands import answer

# --- blocks and segments, in this process -----------------------------------------------------------------------------


def double(x: Tensor) -> Tensor:
    return x * 2


def test_a_block_is_recorded_at_the_line_that_calls_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nn.Module, "__call__", nn.Module.__call__)
    recorder = BlockRecorder(Schedule())
    block = Blocks(recorder, None, Segments(recorder.end_segment, None)).make_block(
        lambda x: (double(x), x, 3), "double"
    )
    x = torch.ones(3, requires_grad=True)
    line, y = frames.file_and_line(frames.location().call), block(x)[0]
    y.sum().backward()
    events = [
        (*event.origin[:3], event.origin.expression, event.tensors[0].numbers[0])
        for event in recorder.content()["steps"][1]
    ]
    name = "double, all of it"
    assert recorder.noted.lines == []
    assert events == [("forward", name, line, "block(x)", 6), ("backward", name, line, "block(x)", 3)]


def test_modules_are_blocks_unless_the_program_compiles_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.compile stands here for itself: it notes its options and compiles nothing."""
    asked: list[dict[str, object]] = []

    def compile(model: Any, **options: object) -> Any:
        asked.append(options)
        return copy.copy(model)

    monkeypatch.setattr(nn.Module, "__call__", nn.Module.__call__)
    monkeypatch.setattr(torch, "compile", compile)
    monkeypatch.setattr("pseudograd_upgrade.routes.blocks.allow_recompilations", lambda count: None)
    recorder, x = BlockRecorder(Schedule()), torch.ones(2, requires_grad=True)
    segments = Segments(recorder.end_segment, None)
    Blocks(recorder, None, segments).install()
    try:
        nn.Sequential(nn.Tanh(), nn.LazyLinear(2))(x)
        nn.Tanh()(x)
        torch.compile(nn.Tanh(), mode="x", disable=True)(x)
        assert asked == [{"backend": segments}, {"mode": "x", "disable": True}]
        doubled = torch.compile(mode="x", dynamic=True)(double)(x)
        nn.Tanh()(x)  # no block, because the program compiles
        torch.compile(nn.Sequential(nn.ReLU()), backend="x", options={})(x)
        thread = threading.Thread(target=torch.compile(double), args=(x,))
        thread.start()
        thread.join()
    finally:
        patches.COMPILE.remove()
        patches.MODULE_CALL.remove()
    assert asked[2:] == [{"backend": segments, "dynamic": True}, {"backend": segments}, {"backend": segments}]
    names = [event.origin.op.removesuffix(", all of it") for event in recorder.content()["steps"][1]]
    assert names == ["Sequential", "Tanh", "Tanh", "double", "Sequential"]
    assert torch.equal(doubled, 2 * x)
    assert recorder.noted.lines == []


def test_the_tensors_of_a_result_are_found_in_containers() -> None:
    x, y, z = torch.ones(1), torch.zeros(1), torch.ones(2)
    nested = [[[[[x]]]]]
    assert list(_find_tensors((x, {"y": [y]}, Line(*"abc"), SimpleNamespace(x=x), Mismatch(None, None, "", z)))) == [
        x,
        y,
        z,
    ]  # type: ignore[arg-type]
    assert (list(_find_tensors(nested)), list(_find_tensors([nested]))) == ([x], [])


TRACES = [
    ("train.py", 2, "a = x.sin()"), ("train.py", 3, "b = a.cos()"), ("site-packages/p/m.py", 9, "y = y + 1"), None,
    ("train.py", 5, "y.exp()"),
]  # fmt: skip


RECORDED = "sin train.py:2 ?; cos train.py:3 ?; add, mul p/m.py:9 train.py:4; exp train.py:5 ?"


def traced(x: Tensor) -> Tensor:
    return ((x.sin().cos() + 1) * 2).exp()


@pytest.mark.parametrize(
    ("is_cut", "out", "compiled", "recorded"),
    [
        (False, (), ["sin cos add mul exp"], ""),
        (False, ("train.py:3",), ["sin", "add mul exp"], ""),
        (True, ("train.py:3",), ["sin", "add mul", "exp"], RECORDED),
    ],
)  # fmt: skip
def test_a_graph_is_compiled_without_the_lines_that_are_left_out(
    is_cut: bool, out: tuple[str, ...], compiled: list[str], recorded: str
) -> None:
    graph = fx.symbolic_trace(traced)
    in_torch = f'  File "{torch.__file__}", line 7, in g\n'
    nodes = [node for node in graph.graph.nodes if node.op.startswith("call")]
    for node, frame in zip(nodes, TRACES, strict=True):
        if frame is not None:
            file, line, text = frame
            outer = f'  File "{Path("train.py").absolute()}", line 4, in f\n    call()\n'
            own = f'  File "{Path(file).absolute()}", line {line}, in f\n    {text}\n'
            node.stack_trace = outer + own + in_torch if "packages" in file else own + in_torch
    parts: list[str] = []
    lines: list[str] = []

    def compile(part: fx.GraphModule, inputs: list[object]) -> object:
        parts.append(
            " ".join(
                str(node.target) if isinstance(node.target, str) else node.target.__name__
                for node in part.graph.nodes
                if node.op.startswith("call")
            )
        )
        return part.forward

    segments = Segments(lambda line, *values: lines.append(" ".join(line[:3])), compile, is_cut, out)
    forward, x = segments(graph, [torch.ones(2)]), torch.ones(2)
    for _ in range(2):  # the second call compiles nothing
        assert torch.equal(forward(x), traced(x))
    assert (segments.graphs, parts) == (1, compiled)
    assert "; ".join(lines) == "; ".join([recorded] * 2 if recorded else [])
    forward(torch.ones(3))
    assert len(parts) == (2 * len(compiled) if out else 1)


@pytest.mark.parametrize(
    ("stack", "module"),
    [
        ([], ""),
        ([("net", "__main__.Net")], ""),
        ([("net", "__main__.Net"), ("net.encoder.0", "torch.nn.Linear")], "module encoder.0"),
        ([("net", "torch.nn.Sequential"), ("net.0", "torch.nn.Linear")], "module 0"),
        ([("net.a", "__main__.Net"), ("net.a.b", nn.Linear)], "module b"),
        ([("net.0", "torch.nn.Linear")], "module 0"),
        ([("net", "torch.nn.Linear")], ""),
    ],
)
def test_a_node_belongs_to_the_module_of_torch_that_the_program_calls(
    stack: list[tuple[str, object]], module: str
) -> None:
    node: Any = SimpleNamespace(meta={"nn_module_stack": dict(enumerate(stack))})
    assert _find_module(node) == module


@pytest.mark.parametrize("is_moved", [True, False])
def test_the_inputs_of_a_moved_line_are_a_little_apart(is_moved: bool) -> None:
    calls: list[tuple[object, ...]] = []
    segments = Segments(lambda *call: calls.append(call), None, is_cut=True, moved=("train.py:2",))
    assert copy.deepcopy({"backend": segments}) == {"backend": segments}, "Lightning copies it"
    line = Line("train.py:2" if is_moved else "train.py:3", "?", "x * 2")
    x = torch.linspace(-1, 1, 64, requires_grad=True)
    y = Segment(segments, fx.symbolic_trace(double), line, False, "mul")(x)
    apart = ((y.detach() - 2 * x.detach()) / 2 / (x.detach().abs() + 1)).abs()
    assert 0.002 < apart.mean() < 0.05 if is_moved else apart.max() == 0
    ((origin, (taken,), result),) = calls
    assert (origin, result is y) == (("mul", *line), True)
    y.sum().backward()
    assert torch.equal(x.grad, torch.full((64,), 2.0))
    assert torch.equal(taken, x)
    assert taken is not x  # another name, so that its gradient comes from this segment alone


def test_the_cpu_is_the_first_of_two_devices_and_hides_the_others() -> None:
    assert parse_routes("cuda,cpu") == parse_routes("cpu,cuda") == ("cpu", "cuda")
    assert parse_routes("inductor,eager") == ("inductor", "eager")
    for text, message in (
        ("cpu,eager", "name two devices or two compilers, got 'cpu,eager'. Ask cpu,cuda or two of eager, "),
        ("eager,eager", "be two routes that differ, got 'eager,eager'. Write eager,inductor"),
        ("eager", "be two routes that differ, got 'eager'"),
        ("eager,tpu", "be one of aot_eager, cpu, cuda, eager, inductor, got 'tpu'"),
    ):
        with pytest.raises(ValueError, match=f"must {message}"):
            parse_routes(text)
    assert ENVIRONMENTS[CPU]["CUDA_VISIBLE_DEVICES"] == ENVIRONMENTS[CPU]["HIP_VISIBLE_DEVICES"] == "-1"


# --- programs ---------------------------------------------------------------------------------------------------------

TRAINING = """\
import torch
from torch import nn
from torch.nn import functional as F

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 4)
        nn.init.zeros_(self.b.weight), nn.init.zeros_(self.b.bias)
    def forward(self, x, y):
        h = F.dropout(F.gelu(self.a(x)), 0.2)
        scores = self.b(h)
        return {loss}

net = Net()
run = {compiled}
optimiser = torch.optim.Adam(net.parameters(), 1e-2)
for _ in range(3):
    x = torch.randn(16, 8)
    loss = run(x, x[:, :4].argmax(1))
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
"""
# Each of the two stands in the table of kinks, among those in which routes differ.
KINK = "F.multi_margin_loss(scores, y, margin=0.0)" if installed_version() < (2, 14) else "scores.quantile(0.5)"
KINK_LINE = "train.py:13  step 1, backward of " + ("multi_margin_loss" if "margin" in KINK else "quantile")
LEFT_OUT = "this line left out of what is compiled, the losses are equal"
# exp(200) is infinite: eager mode has inf/inf in the backward, Inductor has not.
INFINITE = "F.soft_margin_loss(scores - 200.0, torch.ones_like(scores))"


def ask(capfd: pytest.CaptureFixture[str], routes: str, program: str) -> tuple[int, str, str]:
    from .. import forked  # it imports Dynamo

    forked.load_compilers()
    Path("train.py").write_text(program, encoding="utf-8")
    return answer(capfd, "upgrade", "--routes", routes, "train.py")


@pytest.mark.program
@pytest.mark.parametrize(
    ("compiled", "loss", "compiler", "texts"),
    [
        ("torch.compile(net)", KINK, "aot_eager", [": a kink's convention; ", KINK_LINE, LEFT_OUT, "moved off the point"]),
        ("net", KINK, "aot_eager", [": a kink's convention; ", KINK_LINE, "the program compiles nothing"]),
        ("torch.compile(net)", INFINITE, "inductor", [": another op; ", "step 1, backward of ", LEFT_OUT, "report it upstream"]),
        ("torch.compile(net)", "F.cross_entropy(torch.tanh(scores + h[:, :4]), y)", "inductor", []),
    ],
    ids=["a kink", "a kink in a program that compiles nothing", "a wrong value", "rounding, with dropout"],
)  # fmt: skip
def test_a_compiler_is_compared_with_eager_mode(
    capfd: pytest.CaptureFixture[str], compiled: str, loss: str, compiler: str, texts: list[str]
) -> None:
    status, out, err = ask(capfd, f"eager,{compiler}", TRAINING.format(loss=loss, compiled=compiled))
    assert status == bool(texts), out + err
    assert all(text in out for text in texts), out
    assert texts or out.splitlines()[0].split(": ")[-1].split(";")[0] in ("nothing differs", "rounding only")


@pytest.mark.program
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_a_device_that_is_not_there_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    status, out, err = ask(capfd, "cpu,cuda", TRAINING)
    assert (status, out) == (2, "")
    assert "upgrade: --routes must name a device that is there, got 'cuda'. Torch 2." in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "--routes must be two routes that differ, got ''."),
        ("eager,inductor --to python", "--routes must not come with --to, got both."),
        ("eager,inductor --cut-out file", "--routes must not come with --cut-out, got both."),
    ],
)
def test_a_wrong_call_gets_one_line(capfd: pytest.CaptureFixture[str], arguments: str, message: str) -> None:
    Path("train.py").write_text("pass", encoding="utf-8")
    status, out, err = answer(capfd, "upgrade", "--routes", *arguments.split(" "), "train.py")
    assert (status, out) == (2, "")
    assert f"pseudograd: upgrade: {message}" in err
    assert os.listdir() == ["train.py"]
