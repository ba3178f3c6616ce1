"""Sparse and jagged tensors: what torch's own function differentiates, every rule of ours does, with the gradient of the dense call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.nn import functional

import pseudograd as pg
from pseudograd.rule import OPS

from ..choices import as_parameters, folded, pairs

pytestmark = [
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
    pytest.mark.filterwarnings("ignore:Sparse CSR tensor support"),
]
X = torch.tensor([[-2.0, 0.0, 2.0, 0.5], [0.0, 0.3, 0.0, -0.7]])
GRAD = torch.tensor([[1.0, -3.0, 2.0, -1.0], [5.0, -0.5, 3.0, -2.0]])


def _uncoalesced(x: Tensor) -> Tensor:
    """Every position twice."""
    indices, values = x.to_sparse().indices(), x.to_sparse().values()
    return torch.sparse_coo_tensor(
        torch.cat([indices, indices], 1), torch.cat([values / 4, values * 0.75]), x.shape, check_invariants=True
    )


def _jagged(x: Tensor) -> Tensor:
    return torch.nested.nested_tensor([x[0], x[1, :3]], layout=torch.jagged)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "coo": lambda x: x.to_sparse(),
    "uncoalesced coo": _uncoalesced,
    "hybrid coo": lambda x: x.to_sparse(1),
    "csr": lambda x: x.to_sparse_csr(),
    "jagged": _jagged,
}
# What torch calls it, and what it is given behind x.
TORCH: dict[str, tuple[Callable[..., Tensor], tuple[Any, ...]]] = {
    "abs": (torch.abs, ()),
    "clamp": (torch.clamp, (-1.0, 1.0)),
    "lower_bound": (lambda x, bound: torch.clamp(x, min=bound), (-1.0,)),
    "upper_bound": (lambda x, bound: torch.clamp(x, max=bound), (1.0,)),
    "relu": (torch.relu, ()),
    "relu6": (functional.relu6, ()),
    "hardtanh": (functional.hardtanh, ()),
    "round": (torch.round, ()),
    "floor": (torch.floor, ()),
    "ceil": (torch.ceil, ()),
    "trunc": (torch.trunc, ()),
    "sign": (torch.sign, ()),
    "heaviside": (lambda x: torch.heaviside(x, torch.ones(())), ()),
    "fake_quantize": (lambda x, *grid: torch.fake_quantize_per_tensor_affine(x, *grid), (0.25, 0, -4, 3)),
    "scale_grad": (lambda x, scale: x * scale, (0.5,)),
    "scale_grad by 0": (lambda x, scale: x * scale, (0.0,)),
    "reverse_grad": (lambda x, scale: x * -scale, (1.0,)),
    "clip_grad": (lambda x, limit: x * limit, (1.5,)),
    "replace_grad": (lambda x: x * 1, ()),
}
CASES = [
    (name, {**({"rule": rule} if len(OPS[op].rules) > 1 else {}), **({"edge": edge} if edge is not None else {})})
    for name in TORCH
    for op in [name.split(" ")[0]]
    for rule, case in OPS[op].rules.items()
    if None not in case.parameters.values()
    for edge in OPS[op].edges or (None,)
]


def _ours(name: str, how: dict[str, Any]) -> Callable[[Tensor], Tensor]:
    op, given = getattr(pg, name.split(" ")[0]), TORCH[name][1]
    return (lambda x: pg.replace_grad(x, x)) if name == "replace_grad" else lambda x: op(x, *given, **how)


def _leaf(layout: str) -> Tensor:
    return LAYOUTS[layout](X).requires_grad_()


def _values(x: Tensor, layout: str) -> Tensor:
    return torch.cat([part.flatten() for part in x.unbind()]) if layout == "jagged" else x.to_dense()


def _grad_of(f: Callable[[Tensor], Tensor], layout: str) -> Tensor:
    x = _leaf(layout)
    y = f(x)
    if layout == "jagged":
        grad = torch.nested.nested_tensor_from_jagged(_values(_jagged(GRAD), layout), offsets=x.offsets())
        y.backward(grad)
    else:
        (y.to_dense() * GRAD).sum().backward()
    assert x.grad is not None
    assert x.grad.shape == x.shape
    return x.grad


def _held(layout: str) -> Tensor:
    """Where the layout holds a value: what it leaves out gets no gradient."""
    if layout == "jagged":
        return torch.ones(7, dtype=torch.bool)
    if layout == "hybrid coo":
        return torch.ones_like(X, dtype=torch.bool)
    return X != 0


def _how_torch_does(name: str, layout: str) -> str:
    try:
        y = TORCH[name][0](_leaf(layout), *TORCH[name][1])
    except (NotImplementedError, RuntimeError):
        return "refuses the forward"
    try:
        y.backward(y.detach().clone())
    except (NotImplementedError, RuntimeError):
        return "refuses the backward"
    return "differentiates"


def _layouts_of_cases() -> list[Any]:
    """In every run each op, rule and edge in each layout, and each op with each of its rules and edges."""
    cells = [(*case, layout) for case in CASES for layout in LAYOUTS]
    return as_parameters(cells, lambda cell: pairs(cell[0], *map(cell[1].get, ("rule", "edge")), cell[2]))


@folded
@pytest.mark.parametrize(("name", "how", "layout"), _layouts_of_cases())
def test_every_rule_in_every_layout_of_torch(name: str, how: dict[str, Any], layout: str) -> None:
    f = _ours(name, how)
    if _how_torch_does(name, layout) == "refuses the forward":
        try:
            y = f(_leaf(layout))
        except (NotImplementedError, RuntimeError):
            return
        assert name == "fake_quantize"  # made of functions that a jagged tensor has
        assert y.layout is torch.jagged
    found = _grad_of(f, layout)
    assert found.layout is (_leaf(layout).layout)
    dense = X.clone().requires_grad_()
    (expected,) = torch.autograd.grad(f(dense), dense, GRAD)
    expected = _values(_jagged(expected), layout) if layout == "jagged" else torch.where(_held(layout), expected, 0.0)
    assert torch.equal(_values(found, layout), expected)


def test_torch_differentiates_what_this_page_says() -> None:
    """So that the test above does not pass by skipping."""
    sparse = ["abs", "relu", "round", "floor", "ceil", "trunc", "sign", "scale_grad", "scale_grad by 0", "reverse_grad"]
    for layout in ("coo", "uncoalesced coo", "hybrid coo", "csr"):
        assert [name for name in TORCH if _how_torch_does(name, layout) == "differentiates"][:-2] == sparse
    refused = [name for name in TORCH if _how_torch_does(name, "jagged") != "differentiates"]
    assert refused == ["heaviside", "fake_quantize"]


TRUE = {
    "abs": {},
    "relu": {},
    "round": {"rule": "zero"},
    "sign": {"rule": "zero"},
    "scale_grad": {},
    "scale_grad by 0": {},
}


@folded
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", TRUE)
def test_true_gradients_are_torchs_own(name: str, layout: str) -> None:
    f, given = TORCH[name]
    ours = _grad_of(_ours(name, TRUE[name]), layout)
    assert torch.equal(_values(ours, layout), _values(_grad_of(lambda x: f(x, *given), layout), layout))


PSEUDO = {
    "abs": {"edge": 1},
    "relu": {"rule": "leaky", "edge": "half"},
    "sign": {"rule": "triangle"},
    "clip_grad": {},
    "round": {"rule": "zero"},
}


@folded
@pytest.mark.parametrize("layout", ["coo", "uncoalesced coo", "csr"])
@pytest.mark.parametrize("name", PSEUDO)
def test_a_grad_of_another_pattern(name: str, layout: str) -> None:
    """It may hold positions that x does not: there x is 0, and what grad does not hold is 0."""
    f = _ours(name, PSEUDO[name])
    other = torch.tensor([[1.0, -3.0, 0.0, 0.0], [5.0, 0.0, 0.0, -2.0]])
    x, dense = _leaf(layout), X.clone().requires_grad_()
    (found,) = torch.autograd.grad(f(x), x, LAYOUTS[layout](other))
    (expected,) = torch.autograd.grad(f(dense), dense, other)
    assert torch.equal(found.to_dense(), expected)


@pytest.mark.parametrize("layout", ["coo", "csr"])
@pytest.mark.parametrize("name", PSEUDO)
def test_through_a_product_of_matrices(name: str, layout: str) -> None:
    """Its backward hands a dense grad to a CSR tensor."""
    f, other = _ours(name, PSEUDO[name]), torch.arange(8.0).reshape(4, 2) - 3
    x, dense = _leaf(layout), X.clone().requires_grad_()
    (torch.sparse.mm(f(x), other) * GRAD[:, :2]).sum().backward()
    ((f(dense) @ other) * GRAD[:, :2]).sum().backward()
    assert x.grad is not None
    assert dense.grad is not None
    held = torch.where(X != 0, dense.grad, 0.0)
    assert torch.equal(torch.where(X != 0, x.grad.to_dense(), 0.0), held)


EMBEDDED = ("abs", "round", "floor", "sign", "scale_grad", "scale_grad by 0", "clip_grad", "fake_quantize")


@pytest.mark.parametrize("name", EMBEDDED)
def test_a_sparse_grad_of_a_dense_tensor(name: str) -> None:
    """embedding(sparse=True) makes one. torch's clamp and relu refuse it; here only what needs no kernel takes it."""
    index = torch.tensor([[1, 0, 1]])
    for rule in OPS[name.split(" ")[0]].rules:
        how = {"rule": rule} if len(OPS[name.split(" ")[0]].rules) > 1 and rule != "custom" else {}
        gradients = []
        for sparse in (True, False):
            x = X.clone().requires_grad_()
            y = functional.embedding(index, _ours(name, how)(x), sparse=sparse)
            (y * GRAD[:1]).sum().backward()
            assert x.grad is not None
            gradients.append(x.grad.to_dense())
        assert torch.equal(*gradients), rule


@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_second_derivatives(layout: str) -> None:
    f = _ours("sign", {"rule": "triangle"})
    second = []
    for x, grad in ((_leaf(layout), LAYOUTS[layout](GRAD)), (X.clone().requires_grad_(), GRAD.clone())):
        grad = grad.detach().requires_grad_()
        (first,) = torch.autograd.grad(f(x), x, grad, create_graph=True)
        found = torch.autograd.grad((first.to_dense() * X.exp()).sum(), (x, grad))
        second.append([torch.where(X != 0, value.to_dense(), 0.0) for value in found])
    for ours, expected in zip(*second, strict=True):
        torch.testing.assert_close(ours, expected)
        assert ours.count_nonzero() > 1


NESTED_OPS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": pg.relu,
    "relu, inward": lambda x: pg.relu(x, rule="inward"),
    "clamp": lambda x: pg.clamp(x, -1, 1),
    "gelu": lambda x: pg.gelu(x, rule="fewbit"),
    "abs": pg.abs,
    "sign": pg.sign,
    "scale_grad": lambda x: pg.scale_grad(x, 0.5),
}


@folded
@pytest.mark.parametrize("columns", [4, 1024])  # few elements, and enough for a code
@pytest.mark.parametrize("name", NESTED_OPS)
def test_strided_nested_tensors_have_the_gradient_of_each_of_their_tensors(name: str, columns: int) -> None:
    """torch refuses them to every autograd.Function, so the op runs on one after the other."""
    dense, grad = torch.linspace(-4, 4, 8 * columns).reshape(8, columns), torch.randn(8, columns)
    x = torch.nested.nested_tensor([dense[:3], dense[3:]], layout=torch.strided, requires_grad=True)
    y = NESTED_OPS[name](x)
    assert y.is_nested
    assert y.layout is torch.strided
    assert y.requires_grad
    (found,) = torch.autograd.grad(y, x, torch.nested.nested_tensor([grad[:3], grad[3:]]))
    leaf = dense.clone().requires_grad_()
    (expected,) = torch.autograd.grad(NESTED_OPS[name](leaf), leaf, grad)
    assert torch.equal(torch.cat(list(found.unbind())), expected)
    torch.testing.assert_close(torch.cat(list(y.detach().unbind())), NESTED_OPS[name](dense))


def test_a_strided_nested_tensor_has_a_second_derivative() -> None:
    x = torch.nested.nested_tensor([X[0], X[1]], layout=torch.strided, requires_grad=True)
    y = pg.relu(x) * x
    (first,) = torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)
    (second,) = torch.autograd.grad(first, x, torch.ones_like(first))
    assert torch.equal(torch.stack(list(second.unbind())), 2.0 * (X > 0))


FAKE_OPS: dict[str, Callable[[Tensor], Tensor]] = {
    **NESTED_OPS,
    "hardsigmoid": pg.ops.hardsigmoid,
    "fake_quantize": lambda x: pg.fake_quantize(x, 0.1),
    "elastic": lambda x: pg.clamp(x, -1, 1, rule="elastic"),
    "inverting": lambda x: pg.clamp(x, -1, 1, rule="inverting", edge="half"),
    "arctan": lambda x: pg.sign(x, rule="arctan"),
}


@folded
@pytest.mark.parametrize("name", FAKE_OPS)
def test_the_backward_of_a_fake_tensor_runs_outside_its_mode(name: str) -> None:
    with FakeTensorMode() as mode:
        x = mode.from_tensor(torch.randn(70, 70)).requires_grad_()
    y = FAKE_OPS[name](x)
    (found,) = torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)
    assert isinstance(found, FakeTensor)
    assert (found.shape, found.dtype, found.stride()) == (x.shape, x.dtype, x.stride())


def test_no_storage_is_shared_where_there_are_no_views() -> None:
    for layout in LAYOUTS:
        x = _leaf(layout)
        y = pg.scale_grad(x, 0.5)
        assert torch.equal(_values(y, layout), _values(x, layout))
        with torch.no_grad():
            y.mul_(2)
        assert torch.equal(_values(x, layout), _values(_leaf(layout), layout))
