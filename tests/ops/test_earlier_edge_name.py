"""The edge "inward" by its earlier name, "projected": one call, one graph, one row, however it is spelled."""

from __future__ import annotations

import io
import itertools
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import pseudograd as pg
from pseudograd import nn
from pseudograd.comparison.variants import variants
from pseudograd.ops.bounds import CLAMP, RELU
from pseudograd.parse_rule import parsed
from pseudograd.rule import OPS, call_for, call_named, make_call, split

WITH_IT = [name for name, op in OPS.items() if "inward" in op.edges]
X = (-2.0, -1.0, -0.0, 0.0, 0.5, 1.0, 2.0, torch.inf, -torch.inf, torch.nan)


def slopes(f: Callable[[Tensor], Tensor], grad: float, dtype: torch.dtype = torch.float32) -> Tensor:
    x = torch.tensor(X, dtype=dtype, requires_grad=True)
    f(x).backward(torch.full((len(X),), grad, dtype=dtype))
    assert x.grad is not None
    return x.grad


def expected(grad: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """Of clamp(x, -1, 1, rule="zero") by this edge: at a bound grad passes, but where a descent step along it leads out."""
    at = {-1.0: grad if grad <= 0 else 0.0, 1.0: grad if grad >= 0 else 0.0}
    return torch.tensor([at.get(x, grad if abs(x) < 1 else 0.0) for x in X[:-1]] + [0.0], dtype=dtype)


@pytest.mark.parametrize("edge", ["inward", "projected"])
@pytest.mark.parametrize("grad", [1.0, -1.0, 0.0, 3e-4])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_both_names_have_the_gradient_of_the_box(edge: str, grad: float, dtype: torch.dtype) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = slopes(lambda x: pg.clamp(x, -1, 1, rule="zero", edge=edge), grad, dtype)
    wanted = expected(torch.tensor(grad, dtype=dtype).item(), dtype)
    assert torch.equal(found[:-1], wanted[:-1])


@pytest.mark.parametrize("name", WITH_IT)
@pytest.mark.parametrize("maximize", [False, True])
def test_every_op_and_rule_makes_one_call_of_both(name: str, maximize: bool) -> None:
    op = OPS[name]
    for rule in op.rules.values():
        if None in rule.parameters.values():
            continue
        made, earlier = (make_call(op, rule.name, edge, maximize) for edge in ("inward", "projected"))
        assert made.spec == earlier.spec
        assert made.edge == earlier.edge == "inward"
        assert made.is_linear == earlier.is_linear == (rule.is_linear and rule.ignores_edge)
        assert call_for(op, rule.name, "projected", maximize).spec == made.spec


def test_what_was_stored_under_the_earlier_name_is_read() -> None:
    spec = make_call(CLAMP, "inward", "inward").spec
    stored = tuple("projected" if value == "inward" and at == 2 else value for at, value in enumerate(spec))
    assert stored != spec
    assert call_named(stored).spec == split(stored)[0].spec == spec


@pytest.mark.parametrize("make", [lambda **how: nn.Clamp(-1, 1, **how), nn.ReLU, nn.ReLU6, nn.Hardtanh])
def test_modules_take_both_and_are_pickled(make: Callable[..., torch.nn.Module]) -> None:
    layers = [make(rule="zero", edge=edge) for edge in ("inward", "projected")]
    layers += [pickle.loads(pickle.dumps(layer)) for layer in layers]
    file = io.BytesIO()
    torch.save(layers[1], file)
    file.seek(0)
    layers.append(torch.load(file, weights_only=False))
    for grad in (1.0, -1.0):
        found = [slopes(layer, grad) for layer in layers]
        assert all(torch.equal(one.nan_to_num(7), found[0].nan_to_num(7)) for one in found)


TRANSFORMS: dict[str, Callable[[Callable[[Tensor], Tensor]], Callable[[Tensor], Tensor]]] = {
    "compiled": lambda f: torch.compile(f, backend="aot_eager", fullgraph=True),
    "vmap": torch.func.vmap,
    "checkpoint": lambda f: lambda x: torch.utils.checkpoint.checkpoint(f, x, use_reentrant=False),
}


@pytest.mark.parametrize("way", TRANSFORMS)
def test_the_earlier_name_through_transforms(way: str) -> None:
    for edge, grad in itertools.product(("inward", "projected"), (1.0, -1.0)):
        f = TRANSFORMS[way](lambda x, edge=edge: pg.clamp(x, -1, 1, rule="zero", edge=edge))
        assert torch.equal(slopes(f, grad)[:-1], expected(grad)[:-1]), edge


def test_a_compiled_function_is_given_the_edge_as_an_argument() -> None:
    @torch.compile(backend="aot_eager", fullgraph=True)
    def f(x: Tensor, edge: str) -> Tensor:
        return pg.clamp(x, -1, 1, rule="zero", edge=edge)

    for edge in ("projected", "inward", "closed", "projected"):
        wanted = expected(1.0) if edge != "closed" else torch.tensor([0.0, 1, 1, 1, 1, 1, 0, 0, 0, 0])
        assert torch.equal(slopes(lambda x, edge=edge: f(x, edge), 1.0)[:-1], wanted[:-1]), edge


def test_texts_of_rules_name_it_either_way() -> None:
    for text in ("zero/inward", "zero/projected", "zero / projected"):
        assert parsed(CLAMP, text, "compare: rules") == ("zero", "inward")
    found = {
        one.name: slopes(lambda x, one=one: one.clamp(x, -1.0, 1.0), 1.0)
        for one in variants(["zero/inward", "zero/projected"], has_leaves=False)
    }
    assert torch.equal(found["zero/projected"][:-1], expected(1.0)[:-1])
    assert torch.equal(found["zero/inward"][:-1], expected(1.0)[:-1])


def test_compare_counts_both_as_edges() -> None:
    def run(clamp: Any, seed: int) -> float:
        x = torch.tensor([1.0, 0.25], requires_grad=True)
        clamp(x, 0, 1).sub(seed / 8).square().sum().backward()
        assert x.grad is not None
        return float(x.grad.sum())

    found = pg.compare(run, rules=["zero"], edges=["inward", "projected"], seeds=2)
    (values,) = found.values.values()
    assert values["zero/inward"] == values["zero/projected"]


def test_an_op_without_this_edge_names_what_was_given() -> None:
    with pytest.raises(ValueError, match=r"abs: edge must be .*, got 'projected'"):
        pg.abs(torch.zeros(1), edge="projected")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"pin_edge: edge must be one of .*, got 'projected'"):
        pg.pin_edge("projected")
    with pytest.raises(NotImplementedError, match="with an edge other than 'inward'"):
        torch.func.jvp(lambda x: pg.relu(x, rule="zero", edge="projected"), (torch.ones(1),), (torch.ones(1),))
    assert RELU.edges == ("closed", "open", "half", "inward")
