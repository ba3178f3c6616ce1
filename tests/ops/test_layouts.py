"""Sparse and jagged tensors: what torch's own function differentiates, every rule of ours does, with the gradient of the dense call."""

from collections.abc import Callable

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
    """A sparse tensor that has every position twice."""
    indices, values = x.to_sparse().indices(), x.to_sparse().values()
    return torch.sparse_coo_tensor(
        torch.cat([indices, indices], 1), torch.cat([values / 4, values * 0.75]), x.shape, check_invariants=True
    )


def _jagged(x: Tensor) -> Tensor:
    return torch.nested.nested_tensor([x[0], x[1, :3]], layout=torch.jagged)


Function = Callable[[Tensor], Tensor]
LAYOUTS: dict[str, Function] = {
    "coo": lambda x: x.to_sparse(),
    "uncoalesced coo": _uncoalesced,
    "hybrid coo": lambda x: x.to_sparse(1),
    "csr": lambda x: x.to_sparse_csr(),
    "jagged": _jagged,
}
# Torch's function, and the arguments behind x.
TORCH: dict[str, tuple[Callable[..., Tensor], tuple[float, ...]]] = {
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


def _ours(name: str, how: dict[str, object]) -> Function:
    op, others = getattr(pg, name.split(" ")[0]), TORCH[name][1]
    return (lambda x: pg.replace_grad(x, x)) if name == "replace_grad" else lambda x: op(x, *others, **how)


def _leaf(layout: str) -> Tensor:
    return LAYOUTS[layout](X).requires_grad_()


def _values(x: Tensor, layout: str) -> Tensor:
    return torch.cat([part.flatten() for part in x.unbind()]) if layout == "jagged" else x.to_dense()


def _grad_of(f: Function, layout: str) -> Tensor:
    x = _leaf(layout)
    y = f(x)
    if layout == "jagged":
        y.backward(torch.nested.nested_tensor_from_jagged(_values(_jagged(GRAD), layout), offsets=x.offsets()))
    else:
        (y.to_dense() * GRAD).sum().backward()
    assert x.grad.shape == x.shape
    return x.grad


def _dense_gradient(f: Function, layout: str) -> Tensor:
    """The gradient of the dense call, 0 where the layout holds no value."""
    gradient = pg.gradient(f, X, GRAD)
    if layout == "jagged":
        return _values(_jagged(gradient), layout)
    return gradient if layout == "hybrid coo" else torch.where(X != 0, gradient, 0.0)


def _is_refused(f: Function, layout: str) -> bool:
    try:
        f(_leaf(layout))
    except (NotImplementedError, RuntimeError):
        return True
    return False


def _layouts_of_cases() -> list[object]:
    """In every run each op, rule and edge in each layout, and each op with each of its rules and edges."""
    cells = [(*case, layout) for case in CASES for layout in LAYOUTS]
    return as_parameters(cells, lambda cell: pairs(cell[0], *map(cell[1].get, ("rule", "edge")), cell[2]))


@folded
@pytest.mark.parametrize(("name", "how", "layout"), _layouts_of_cases())
def test_every_rule_in_every_layout_of_torch(name: str, how: dict[str, object], layout: str) -> None:
    f, (theirs, others) = _ours(name, how), TORCH[name]
    if _is_refused(lambda x: theirs(x, *others), layout) and _is_refused(f, layout):
        return
    gradient = _grad_of(f, layout)
    assert gradient.layout is (_leaf(layout).layout)
    assert torch.equal(_values(gradient, layout), _dense_gradient(f, layout))


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
def test_a_grad_of_another_pattern_and_a_dense_grad(name: str, layout: str) -> None:
    """A grad may hold positions that x does not: there x is 0, and what grad does not hold is 0. A product of matrices hands a
    dense grad to a CSR tensor.
    """
    f = _ours(name, PSEUDO[name])
    grad = torch.tensor([[1.0, -3.0, 0.0, 0.0], [5.0, 0.0, 0.0, -2.0]])
    x = _leaf(layout)
    (gradient,) = torch.autograd.grad(f(x), x, LAYOUTS[layout](grad))
    assert torch.equal(gradient.to_dense(), pg.gradient(f, X, grad))
    if layout == "uncoalesced coo":
        return
    other = torch.arange(8.0).reshape(4, 2) - 3
    x, dense = _leaf(layout), X.clone().requires_grad_()
    (torch.sparse.mm(f(x), other) * GRAD[:, :2]).sum().backward()
    ((f(dense) @ other) * GRAD[:, :2]).sum().backward()
    assert torch.equal(torch.where(X != 0, x.grad.to_dense(), 0.0), torch.where(X != 0, dense.grad, 0.0))


EMBEDDED = ("abs", "round", "floor", "sign", "scale_grad", "scale_grad by 0", "clip_grad", "fake_quantize")


@pytest.mark.parametrize("name", EMBEDDED)
def test_a_sparse_grad_of_a_dense_tensor(name: str) -> None:
    """embedding(sparse=True) makes one. torch's clamp and relu refuse it; only ops that need no kernel take it."""
    index, rules = torch.tensor([[1, 0, 1]]), OPS[name.split(" ")[0]].rules
    for rule in rules:
        how = {"rule": rule} if len(rules) > 1 and rule != "custom" else {}
        gradients = []
        for sparse in (True, False):
            x = X.clone().requires_grad_()
            (functional.embedding(index, _ours(name, how)(x), sparse=sparse) * GRAD[:1]).sum().backward()
            gradients.append(x.grad.to_dense())
        assert torch.equal(*gradients), rule


@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_second_derivatives_are_those_of_the_dense_call(layout: str) -> None:
    f = _ours("sign", {"rule": "triangle"})
    seconds = []
    for x, grad in ((_leaf(layout), LAYOUTS[layout](GRAD)), (X.clone().requires_grad_(), GRAD.clone())):
        grad = grad.detach().requires_grad_()
        (first,) = torch.autograd.grad(f(x), x, grad, create_graph=True)
        second = torch.autograd.grad((first.to_dense() * X.exp()).sum(), (x, grad))
        seconds.append([torch.where(X != 0, value.to_dense(), 0.0) for value in second])
    for ours, expected in zip(*seconds, strict=True):
        torch.testing.assert_close(ours, expected)
        assert ours.count_nonzero() > 1


NESTED_OPS: dict[str, Function] = {
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
    """No autograd.Function can take a nested tensor, so the op runs on its components one after the other."""
    f, dense, grad = NESTED_OPS[name], torch.linspace(-4, 4, 8 * columns).reshape(8, columns), torch.randn(8, columns)
    x = torch.nested.nested_tensor([dense[:3], dense[3:]], layout=torch.strided, requires_grad=True)
    y = f(x)
    assert (y.is_nested, y.layout, y.requires_grad) == (True, torch.strided, True)
    (gradient,) = torch.autograd.grad(y, x, torch.nested.nested_tensor([grad[:3], grad[3:]]))
    assert torch.equal(torch.cat(list(gradient.unbind())), pg.gradient(f, dense, grad))
    torch.testing.assert_close(torch.cat(list(y.detach().unbind())), f(dense))
    if name == "relu":
        y = f(x) * x
        (first,) = torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)
        (second,) = torch.autograd.grad(first, x, torch.ones_like(first))
        assert torch.equal(torch.cat(list(second.unbind())), 2.0 * (dense > 0))


FAKE_OPS: dict[str, Function] = {
    **NESTED_OPS,
    "hardsigmoid": pg.ops.hardsigmoid,
    "fake_quantize": lambda x: pg.fake_quantize(x, 0.1),
    "inverting": lambda x: pg.clamp(x, -1, 1, rule="inverting", edge="half"),
    "arctan": lambda x: pg.sign(x, rule="arctan"),
}


@pytest.mark.parametrize("name", FAKE_OPS)
def test_the_backward_of_a_fake_tensor_runs_outside_its_mode(name: str) -> None:
    with FakeTensorMode() as mode:
        x = mode.from_tensor(torch.randn(70, 70)).requires_grad_()
    y = FAKE_OPS[name](x)
    (gradient,) = torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)
    assert isinstance(gradient, FakeTensor)
    assert (gradient.shape, gradient.dtype, gradient.stride()) == (x.shape, x.dtype, x.stride())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_storage_is_shared_where_no_view_exists(layout: str) -> None:
    x = _leaf(layout)
    y = pg.scale_grad(x, 0.5)
    assert torch.equal(_values(y, layout), _values(x, layout))
    with torch.no_grad():
        y.mul_(2)
    assert torch.equal(_values(x, layout), _values(_leaf(layout), layout))
