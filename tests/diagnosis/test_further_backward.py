"""A further backward pass: the same gradients as those of torch's engine, bit for bit, without running any code of the program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

Made = tuple[Sequence[Tensor], Sequence[Tensor]]  # the roots, and the leaves


def _net(net: nn.Module, *inputs: Tensor) -> Made:
    found = net(*inputs)
    found = found[0] if isinstance(found, tuple) else found
    return [found.float().sin().sum()], list(net.parameters())


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(3))
        self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + functional.relu(norm(layer(x)))
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


def _views() -> Made:
    w = _weights()
    y = w * 2
    z = y.clone()
    z[:, 1:3] = y[:, 0:2] * 3
    z[0].clamp_(-1, 1)
    z.t().mul_(2)
    a, b = z.split([2, 3], 1)
    one, other = torch.unbind(a, 1)
    return [(one * other).sum() + b.cumsum(0).prod()], [w]


def _several_roots() -> Made:
    w = _weights()
    return [w.sum(), (w * w).sum(), w.sin()], [w]


def _broadcast() -> Made:
    w, one = _weights(), nn.Parameter(torch.ones(1))
    return [(w * one + w[:1] * w[:, :1]).sum() + (w.double() * w).sum()], [w, one]


def _complex() -> Made:
    w = _weights()
    return [(torch.complex(w, w) * 1j).abs().sum() + torch.view_as_real(torch.fft.fft(w)).sin().sum()], [w]


def _decompositions() -> Made:
    w = _weights()
    return [torch.linalg.svd(w)[1].sum() + torch.linalg.qr(w)[0].sum()], [w]


def _ours() -> Made:
    w, threshold = _weights(), nn.Parameter(torch.zeros(5))
    y = pg.clamp(w, threshold - 1, threshold + 1) * w + pg.round(w * 3) + pg.jumprelu(w, threshold, bandwidth=0.5)
    return [y.sum()], [w, threshold]


def _function() -> Made:
    w = _weights()
    return [(Scaled.apply(w, 3.0) * w).sum()], [w]


def _second() -> Made:
    w = _weights()
    (grad,) = torch.autograd.grad((w.sin() * w).pow(2).sum(), w, create_graph=True)
    return [grad.pow(2).sum()], [w]


def _on_cpu() -> Made:
    w = _weights()
    with torch.autograd.graph.save_on_cpu():
        return [(w.sin() * w).sum()], [w]


def _autocast() -> Made:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return _net(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), torch.randn(2, 5, 16))


def _sparse() -> Made:
    table = nn.Embedding(10, 4, sparse=True)
    return [(table(torch.tensor([1, 2, 3, 1])) + table(torch.tensor([1, 2, 3, 5]))).sin().sum()], [table.weight]


GRAPHS: dict[str, Callable[[], Made]] = {
    "residual net": lambda: _net(Residual(), torch.randn(4, 8, 6, 6)),
    "transformer": lambda: _net(nn.TransformerEncoderLayer(16, 4, 32, 0.1, batch_first=True), torch.randn(2, 5, 16)),
    "lstm": lambda: _net(nn.LSTM(4, 8, 2, dropout=0.2, bidirectional=True), torch.randn(2, 5, 4)),
    "gru": lambda: _net(nn.GRU(4, 8, 2), torch.randn(2, 5, 4)),
    "weight norm": lambda: _net(nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)), torch.randn(2, 3)),
    "autocast": _autocast,
    "views": _views,
    "several roots": _several_roots,
    "broadcast": _broadcast,
    "complex": _complex,
    "decompositions": _decompositions,
    "ours": _ours,
    "a pure Function": _function,
    "second order": _second,
    "save_on_cpu": _on_cpu,
    "sparse": _sparse,
}


@folded
@pytest.mark.parametrize("name", GRAPHS)
def test_the_same_as_torchs_engine(name: str) -> None:
    torch.manual_seed(0)
    roots, leaves = GRAPHS[name]()
    grads, behind = [torch.ones_like(root) for root in roots], nodes.reachable_from(roots)
    assert further_backward.refusal(behind) is None
    state = torch.get_rng_state()
    with torch.no_grad():
        graph = further_backward.Graph(roots, grads, behind)
        for _ in range(2):
            arrived = graph.run(lambda node, leaving, arriving: leaving)
    found = {node.variable: grad for node, grad in arrived.items()}
    assert torch.equal(state, torch.get_rng_state())
    assert all(leaf.grad is None for leaf in leaves)
    right = torch.autograd.grad(list(roots), list(leaves), grads)
    for leaf, grad in zip(leaves, right, strict=True):
        assert torch.equal(found[leaf].to_dense(), grad.to_dense())
        assert found[leaf].dtype == grad.dtype


class Counting(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.kept = [x]
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad * ctx.kept.pop()


def _module_hook(x: Tensor) -> Tensor:
    layer = nn.Linear(5, 5)
    layer.register_full_backward_hook(lambda *given: None)
    return layer(x)


def _saved(x: Tensor) -> Tensor:
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, lambda saved: saved):
        return x.sin()


REFUSED: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "a Function": (
        Counting.apply,
        "the backward of tests.diagnosis.test_further_backward.Counting would run once more",
    ),
    "a checkpoint": (
        lambda x: checkpoint(torch.sin, x, use_reentrant=False),
        "a checkpoint would run its forward once more",
    ),
    "with reentry": (
        lambda x: checkpoint(torch.sin, x, use_reentrant=True),
        "a checkpoint would run its forward once more",
    ),
    "a module's hook": (_module_hook, "the backward hook of a module would run once more"),
    "a saved-tensor hook": (
        _saved,
        "the saved-tensor hook _saved.<locals>.<lambda> of the program would run once more",
    ),
}


def _marks(name: str) -> Any:
    is_told = tells_unpack_hooks or name not in ("a checkpoint", "a saved-tensor hook")
    return pytest.mark.skipif(not is_told, reason="before torch 2.9 only a diagnosis knows the hooks that unpack")


@pytest.mark.parametrize("name", [pytest.param(name, marks=_marks(name)) for name in REFUSED])
def test_no_code_of_the_program_runs_once_more(name: str) -> None:
    f, why = REFUSED[name]
    refused = further_backward.refusal(nodes.reachable_from([f(_weights() * 1).sum()]))
    assert refused is not None
    assert refused.startswith(why)


# --- which backward is pure -------------------------------------------------------------------------------------------

SLOPE = 3.0
kept: list[Any] = []


def scaled(grad: Tensor, scale: float) -> Tensor:
    return grad * scale


def keeping(grad: Tensor) -> Tensor:
    kept.append(grad)
    return grad


class Pure:
    @staticmethod
    def hands_on(ctx: Any, grad: Tensor) -> Any:
        return grad, None, None

    @staticmethod
    def masks(ctx: Any, grad: Tensor) -> Any:
        (mask,) = ctx.saved_tensors
        return torch.where(mask, grad, torch.zeros_like(grad))

    @staticmethod
    @once_differentiable
    def clears_a_copy(ctx: Any, grad: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        grad_x = grad.clone()
        grad_x[x < 0] = 0
        return grad_x

    @staticmethod
    def calls_another(ctx: Any, grad: Tensor) -> Any:
        x, _ = ctx.saved_tensors
        slope = SLOPE / (1 + (SLOPE * x).abs()) ** 2
        grad_low = grad.sum() if ctx.needs_input_grad[1] else None
        return scaled(grad * slope, ctx.scale), grad_low

    @staticmethod
    def of_several(ctx: Any, *grads: Tensor) -> Any:
        return tuple(functional.hardtanh(grad) if grad is not None else None for grad in grads)


class NotPure:
    @staticmethod
    def uses_up(ctx: Any, grad: Tensor) -> Any:
        return grad * ctx.kept.pop()

    @staticmethod
    def draws(ctx: Any, grad: Tensor) -> Any:
        return grad + torch.rand_like(grad)

    @staticmethod
    def drops(ctx: Any, grad: Tensor) -> Any:
        return functional.dropout(grad, 0.5)

    @staticmethod
    def counts(ctx: Any, grad: Tensor) -> Any:
        ctx.count += 1
        return grad

    @staticmethod
    def changes_what_is_saved(ctx: Any, grad: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        x[0] = 0
        return grad

    @staticmethod
    def changes_a_view_of_it(ctx: Any, grad: Tensor) -> Any:
        y = ctx.saved_tensors[0].view(-1)
        y += 1
        return grad

    @staticmethod
    def changes_in_place(ctx: Any, grad: Tensor) -> Any:
        ctx.saved_tensors[0].mul_(2)
        return grad

    @staticmethod
    def writes_out(ctx: Any, grad: Tensor) -> Any:
        return torch.mul(grad, 2, out=ctx.saved_tensors[0])

    @staticmethod
    def keeps(ctx: Any, grad: Tensor) -> Any:
        return keeping(grad)

    @staticmethod
    def seeds(ctx: Any, grad: Tensor) -> Any:
        torch.manual_seed(0)
        return grad

    @staticmethod
    def calls_what_nobody_knows(ctx: Any, grad: Tensor) -> Any:
        return ctx.function(grad)

    @staticmethod
    def prints(ctx: Any, grad: Tensor) -> Any:
        print(grad)
        return grad

    @staticmethod
    def sends(ctx: Any, grad: Tensor) -> Any:
        torch.distributed.all_reduce(grad)
        return grad


def _backwards(owner: type) -> list[Any]:
    return [pytest.param(getattr(owner, name), id=name) for name in vars(owner) if not name.startswith("__")]


@pytest.mark.parametrize("backward", _backwards(Pure))
def test_a_backward_that_is_pure(backward: Any) -> None:
    assert is_pure(backward)


@folded
@pytest.mark.parametrize("backward", [*_backwards(NotPure), print, eval("lambda ctx, grad: grad")])
def test_a_backward_that_is_not_plainly_pure(backward: Any) -> None:
    assert not is_pure(backward)
