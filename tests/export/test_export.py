"""torch.export and ONNX show torch's own op, and say that the rule is dropped where the program might be trained."""

import warnings

import pytest
import torch
from torch import Tensor, nn

import pseudograd as pg

from ..choices import slow_but


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return pg.clamp(self.linear(x), -0.3, 0.7)


def exported(strict: bool) -> tuple[list[str], list[str]]:
    """The calls in the graph of three, and our warnings under Python's own filter, for which those of one text and place are one."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        program = torch.export.export(nn.Sequential(Net(), Net(), Net()), (torch.randn(2, 4),), strict=strict)
    calls = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    return calls, [str(warning.message) for warning in caught if "drops the rule" in str(warning.message)]


CALLS = ["aten.linear.default", "aten.clamp.default"] * 3


@pytest.mark.parametrize("strict", slow_but([False], [False, True], pytest.mark.program))
def test_the_graph_holds_plain_clamps_and_a_program_that_may_be_trained_gets_one_warning(strict: bool) -> None:
    calls, texts = exported(strict)
    assert calls == CALLS
    (text,) = set(texts)  # strict, Dynamo on torch 2.8 resets Python's memory of warnings
    assert text.startswith("clamp/inward: torch.export keeps the values and drops the rule")
    assert "Export under torch.no_grad() for inference, or train the original." in text


def test_a_program_for_inference_gets_none_and_a_compiled_one_keeps_its_rule_after_it() -> None:
    with torch.no_grad():
        assert exported(strict=False) == (CALLS, [])
    x = torch.tensor([-2.0, 0.0, 2.0], requires_grad=True)
    torch.compile(lambda x: pg.clamp(x, -1, 1), backend="aot_eager", fullgraph=True)(x).sum().backward()
    assert x.grad.tolist() == [0, 1, 1]


class Only(nn.Module):
    """Nothing but the op: one node in a graph, and a model that calls it for TorchScript."""

    def forward(self, x: Tensor) -> Tensor:
        return pg.clamp(x, -0.3, 0.7)


NAMES = ["clamp", "clamp_", "lower_bound", "upper_bound", "relu", "relu6", "hardtanh", "replace_grad"]


@pytest.mark.parametrize("name", [*NAMES, "a model"])
@pytest.mark.filterwarnings("ignore:.*torch.jit.*")
def test_torchscript_gets_our_error(name: str) -> None:
    function = getattr(pg, "clamp" if name == "a model" else name)
    text = f"{function.__name__}: torch.jit.script must not be used, TorchScript cannot hold a custom backward.*Use torch.compile"
    with pytest.raises(NotImplementedError, match=text):
        torch.jit.script(Only() if name == "a model" else function)


@pytest.mark.program
@pytest.mark.filterwarnings("ignore")
def test_onnx_holds_one_clip_with_our_values() -> None:
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")

    x = torch.tensor([-torch.inf, -2.0, -0.3, -0.0, 0.5, 0.7, 2.0, torch.inf])
    program = torch.onnx.export(Only(), (x,), dynamo=True, verbose=False)
    assert program is not None
    model = program.model_proto
    assert [node.op_type for node in model.graph.node] == ["Clip"]
    session = runtime.InferenceSession(model.SerializeToString())
    (y,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    assert torch.equal(torch.from_numpy(y), pg.clamp(x, -0.3, 0.7))
