"""A further backward pass: the same gradients as those of torch's engine, bit for bit, without running any code of the program."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import pseudograd as pg
from pseudograd.diagnosis.count import further_backward
from pseudograd.listen import nodes
from pseudograd.look.purity import is_pure
from pseudograd.torch_table.private import tells_unpack_hooks

from ..choices import folded
from .checks import make_function

Graph = tuple[Sequence[Tensor], Sequence[Tensor]]  # the roots, and the leaves


def _net(net: nn.Module, *inputs: Tensor) -> Graph:
    result = net(*inputs)
    result = result[0] if isinstance(result, tuple) else result
    return [result.float().sin().sum()], list(net.parameters())


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.utils.parametrizations.weight_norm(nn.Conv2d(8, 8, 3, padding=1)), nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = x + functional.relu(self.norm(self.layer(x)))
        return x.mean((2, 3))


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:
        ctx.scale = scale
        return x * scale

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        grad = grad.clone()
        grad[grad < 0] = 0
        return grad * ctx.scale, None


def _weights() -> nn.Parameter:
    return nn.Parameter(torch.randn(4, 5))


def _views() -> Graph:
    w = _weights()
    y = w * 2
    z = y.clone()
    z[:, 1:3] = y[:, 0:2] * 3
    z[0].clamp_(-1, 1)
    z.t().mul_(2)
    a, b = z.split([2, 3], 1)
    first, second = torch.unbind(a, 1)
    return [(first * second).sum() + b.cumsum(0).prod()], [w]


def _several_roots() -> Graph:
    """The roots: broadcasting and two dtypes, complex numbers, decompositions, a pure Function, a saved-tensor hook of torch."""
    w, scale = _weights(), nn.Parameter(torch.ones(1))
    roots = [
        (w * scale + w[:1] * w[:, :1]).sum() + (w.double() * w).sum(),
        torch.complex(w, w).mul(1j).abs().sum() + torch.view_as_real(torch.fft.fft(w)).sin().sum(),
        torch.linalg.svd(w)[1].sum() + torch.linalg.qr(w)[0].sum(),
        (Scaled.apply(w, 3.0) * w).sum(),
    ]
    with torch.autograd.graph.save_on_cpu():
        return [*roots, (w.sin() * w).sum()], [w, scale]


def _ours() -> Graph:
    w, threshold = _weights(), nn.Parameter(torch.zeros(5))
    y = pg.clamp(w, threshold - 1, threshold + 1) * w + pg.round(w * 3) + pg.jumprelu(w, threshold, bandwidth=0.5)
    return [y.sum()], [w, threshold]


def _second_order() -> Graph:
    w = _weights()
    (grad,) = torch.autograd.grad((w.sin() * w).pow(2).sum(), w, create_graph=True)
    return [grad.pow(2).sum()], [w]


def _autocast() -> Graph:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return _net(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), torch.randn(2, 5, 16))


def _sparse() -> Graph:
    table = nn.Embedding(10, 4, sparse=True)
    return [(table(torch.tensor([1, 2, 3, 1])) + table(torch.tensor([1, 2, 3, 5]))).sin().sum()], [table.weight]


GRAPHS: dict[str, Callable[[], Graph]] = {
    "residual net": lambda: _net(Residual(), torch.randn(4, 8, 6, 6)),
    "transformer": lambda: _net(nn.TransformerEncoderLayer(16, 4, 32, 0.1, batch_first=True), torch.randn(2, 5, 16)),
    "lstm": lambda: _net(nn.LSTM(4, 8, 2, dropout=0.2, bidirectional=True), torch.randn(2, 5, 4)),
    "autocast": _autocast,
    "views": _views,
    "several roots": _several_roots,
    "ours": _ours,
    "second order": _second_order,
    "sparse": _sparse,
}


@folded
@pytest.mark.parametrize("name", GRAPHS)
def test_the_gradients_are_those_of_torchs_engine(name: str) -> None:
    roots, leaves = GRAPHS[name]()
    grads, behind = [torch.ones_like(root) for root in roots], nodes.reachable_from(roots)
    assert further_backward.refusal(behind) is None
    state = torch.get_rng_state()
    with torch.no_grad():
        graph = further_backward.Graph(roots, grads, behind)
        for _ in range(2):
            arrived = graph.run(lambda node, leaving, arriving: leaving)
    by_leaf = {node.variable: grad for node, grad in arrived.items()}
    assert torch.equal(state, torch.get_rng_state())
    assert all(leaf.grad is None for leaf in leaves)
    right = torch.autograd.grad(list(roots), list(leaves), grads)
    for leaf, grad in zip(leaves, right, strict=True):
        assert torch.equal(by_leaf[leaf].to_dense(), grad.to_dense())
        assert by_leaf[leaf].dtype == grad.dtype


Random = make_function("Random", lambda ctx, x: x.clone(), lambda ctx, grad: grad * torch.rand(1))


def _module_hook(x: Tensor) -> Tensor:
    layer = nn.Linear(5, 5)
    layer.register_full_backward_hook(lambda *arguments: None)
    return layer(x)


def _saved(x: Tensor) -> Tensor:
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
        return x.sin()


REFUSED: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "a Function": (
        Random.apply,
        f"the backward of {Random.__module__}.Random would run once more, and may keep, draw or change something; ask without it",
    ),
    "a checkpoint": (lambda x: checkpoint(torch.sin, x, use_reentrant=False), further_backward.CHECKPOINT),
    "with reentry": (lambda x: checkpoint(torch.sin, x, use_reentrant=True), further_backward.CHECKPOINT),
    "a module's hook": (_module_hook, "the backward hook of a module would run once more; ask without it"),
    "a saved-tensor hook": (
        _saved,
        "the saved-tensor hook _saved.<locals>.<lambda> of the program would run once more",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_no_code_of_the_program_runs_once_more(name: str) -> None:
    if not tells_unpack_hooks and name in ("a checkpoint", "a saved-tensor hook"):
        pytest.skip("before torch 2.9 only a diagnosis knows the hooks that unpack")
    f, why = REFUSED[name]
    assert further_backward.refusal(nodes.reachable_from([f(_weights() * 1).sum()])) == why


_EPS = torch.finfo(torch.float32).eps


@pytest.mark.parametrize(
    ("first", "second", "are_same"),
    [
        (torch.ones(2), torch.ones(3), False),
        (torch.ones(2), torch.ones(2).double(), False),
        (torch.tensor([torch.nan, 1]), torch.tensor([1, torch.nan]), False),
        (torch.tensor([torch.nan, 1]), torch.tensor([torch.nan, 1]), True),
        (torch.tensor([1 + 32 * _EPS]), torch.ones(1), True),
        (torch.tensor([1 + 33 * _EPS]), torch.ones(1), False),
        (torch.tensor([1j]), torch.tensor([-1j]), False),
        (torch.eye(2).to_sparse(), torch.eye(2).to_sparse(), True),
    ],
)
def test_gradients_are_the_same_up_to_rounding(first: Tensor, second: Tensor, are_same: bool) -> None:
    assert further_backward.are_same(first, second) == are_same


HEAD = """\
import torch
from torch.nn import functional
SLOPE, log = 3.0, []
def scaled(grad, scale):
    return grad * scale
def logged(grad):
    log.append(grad)
    return grad
def backward(ctx, grad, *grads):
    x, low = ctx.saved_tensors
"""
PURE = (
    "return grad, None",
    "return torch.where(x > 0, grad, torch.zeros_like(grad))",
    "grad_x = grad.clone()\n    grad_x[x < 0] = 0\n    return grad_x",
    "slope = SLOPE / (1 + (SLOPE * x).abs()) ** 2\n    grad_low = grad.sum() if ctx.needs_input_grad[1] else None\n"
    "    return scaled(grad * slope, ctx.scale), grad_low",
    "return tuple(functional.hardtanh(other) if other is not None else None for other in grads)",
)
IMPURE = (
    "return grad * ctx.inputs.pop()",
    "return grad + torch.rand_like(grad)",
    "return functional.dropout(grad, 0.5)",
    "ctx.count += 1\n    return grad",
    "x[0] = 0\n    return grad",
    "y = x.view(-1)\n    y += 1\n    return grad",
    "x.mul_(2)\n    return grad",
    "return torch.mul(grad, 2, out=x)",
    "return logged(grad)",
    "torch.manual_seed(0)\n    return grad",
    "return ctx.function(grad)",
    "print(grad)\n    return grad",
    "torch.distributed.all_reduce(grad)\n    return grad",
)


@pytest.mark.parametrize("body", [*PURE, *IMPURE])
def test_a_backward_that_only_computes_is_pure(body: str, tmp_path: Path) -> None:
    file = tmp_path / "backward.py"
    file.write_text(f"{HEAD}    {body}\n")
    space: dict[str, Any] = {"__name__": "backward"}
    exec(compile(file.read_text(), str(file), "exec"), space)
    assert is_pure(space["backward"]) == (body in PURE)


@pytest.mark.parametrize("backward", [print, eval("lambda ctx, grad: grad")])
def test_a_backward_without_a_source_is_not_plainly_pure(backward: Any) -> None:
    assert not is_pure(backward)
