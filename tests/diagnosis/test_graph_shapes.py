"""What the graph around an op shows, each fact with what just misses it."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional  # noqa: F401

from pseudograd.diagnosis.count import graph_shapes
from pseudograd.diagnosis.count.leaves import Leaves
from pseudograd.listen import nodes

W = nn.Parameter(torch.eye(2))
LOW = torch.full((2, 2), 0.05)
CONV = nn.Parameter(torch.ones(1, 1, 1, 1))


def _repeat(function: Callable[[Tensor], Tensor], times: int) -> Callable[[Tensor], Tensor]:
    return lambda x: function(_repeat(function, times - 1)(x)) if times else x


# a function of x -> the facts about it
SHAPES = """
(x.clamp(0.1, 9).log()).tanh() -> is_before_pole
(x.clamp(0.11, 9).log()).tanh() ->
x.clamp(0, 9).log().tanh() ->
x.clamp(LOW).log().tanh() ->
x.clamp(max=0.05).log().tanh() ->
(2 * x.clamp(min=0.05)).log2().tanh() -> is_before_pole
(x.clamp(min=0.05) + 1).log10().tanh() ->
x.clamp(min=0.05).sqrt().tanh() -> is_before_pole
x.clamp(min=0.05).pow(0.9).tanh() -> is_before_pole
x.clamp(min=0.05).pow(1.0).tanh() ->
x.clamp(min=0.05).pow(LOW).tanh() ->
(x.tanh() / x.clamp(min=0.05)).tanh() -> is_before_pole
(x.clamp(min=0.05) / x.tanh()).tanh() ->
x.clamp(min=0.05).tanh() ->
x.clamp(0, 9).exp().tanh() -> is_before_exp
_repeat(torch.neg, 7)(x.clamp(min=0.05)).log().tanh() -> is_before_pole
_repeat(torch.neg, 8)(x.clamp(min=0.05)).log().tanh() ->
(2 * x.exp()).clamp(max=9).tanh() -> behind exp, is_before_exp
x.pow(3).clamp(max=9).tanh() -> behind pow
x.pow(2).clamp(max=9).tanh() ->
x.pow(-1).clamp(max=9).tanh() -> behind pow
x.pow(0).clamp(max=9).tanh() ->
x.pow(LOW).clamp(max=9).tanh() ->
(1 / x).clamp(max=9).tanh() -> behind reciprocal
(x.sin() / x.cos()).clamp(max=9).tanh() -> behind div
(x / W).clamp(max=9).tanh() ->
(x / 2).clamp(max=9).tanh() ->
(x.exp() + 1).clamp(max=9).tanh() -> is_before_exp
(1 - x.abs() / 2).clamp(0, 1).tanh() -> is_window
(1 - x.norm() / 2 + x).clamp(0, 1).tanh() -> is_window
(1 - x.abs().tanh()).clamp(0, 1).tanh() ->
x.clamp(x.abs()).tanh() ->
functional.linear((x * 4).clamp(-1, 1), W).tanh() -> is_activation
torch.mm(x * x.clamp(0, 1).sum(), W).tanh() -> is_activation
torch.mm(x.clamp(0, 1).tanh(), W).tanh() ->
torch.mm(x.clamp(0, 1), W.tanh()).tanh() ->
torch.mm(x.clamp(0, 1), 2 * W).tanh() -> is_activation
torch.addmm(x.clamp(0, 1), x.tanh(), W).tanh() ->
torch.addmm(x.tanh(), x.clamp(0, 1), W).tanh() -> is_activation
(x.clamp(0, 1) * W).tanh() ->
functional.conv2d(functional.max_pool2d(x.clamp(0, 1)[None, None], 1), CONV).tanh() -> is_activation
torch.cat([x.clamp(0, 1), x]) @ W ->
x.relu().sum() -> is_term
x.relu().square().mean() * 3 + 1 -> is_term
x.relu().tanh().sum() ->
_repeat(lambda x: x + x, 99)(x.relu()).sum() -> is_term
_repeat(torch.neg, 498)(x.relu()).sum() -> is_term
_repeat(torch.neg, 499)(x.relu()).sum() ->
(x - x.clamp(0, 1)).square().sum() -> is_floor, is_subtracted, is_term
(x - x.clamp(0, 1)).tanh().sum() -> is_subtracted
x.clamp(min=1).sum() -> is_addend, is_floor, is_term
x.clamp(min=1).square().sum() -> is_floor, is_term
x.clamp(min=1).mul(x.tanh()).sum() -> is_term
x.clamp(max=1).sum() -> is_addend, is_floor, is_term
x.clamp(max=1).square().sum() -> is_floor, is_term
torch.stack([x.clamp(max=1), x]).sum() -> is_addend, is_floor
x.clamp(max=1).sqrt().sum() -> is_floor
x.clamp(max=1).square().sum().sqrt() -> is_floor, is_term
x.relu().square().sum().sqrt() -> is_term
(x - x.round()).tanh() -> reuses_input
(x - 5 * (x / 5).round()).tanh() -> reuses_input
(lambda y: y - y.round())(x.sin()).tanh() -> reuses_input
(x - (x * x).round()).tanh() ->
(x.sin().cos() - x.round()).tanh() -> reuses_input
(x.sin().cos().tanh() - x.round()).tanh() ->
(x.sign() * x.sin().cos().tanh().sin()).tanh() -> reuses_input
_repeat(torch.neg, 23)(x.abs()).clamp(0, 1).tanh() -> is_window
_repeat(torch.neg, 24)(x.abs()).clamp(0, 1).tanh() ->
torch.maximum(_repeat(torch.sin, 23)(x), x.clamp(0, 1)).tanh() -> reuses_input
torch.maximum(_repeat(torch.sin, 24)(x), x.clamp(0, 1)).tanh() ->
(x.sign() * x.abs().log()).tanh() -> reuses_input
(x.sin().sign() * x.abs().log()).tanh() ->
(x - torch.div(x, 2, rounding_mode='floor') * 2).tanh() -> reuses_input
(x - x / 2).tanh() ->
torch.stack([x.round(), x]).tanh() ->
torch.minimum(x * x.detach(), x.clamp(0, 1) * x.detach()).tanh() -> reuses_input
torch.maximum(x.sin().cos().clamp(0, 1), x * 2).tanh() -> reuses_input
torch.maximum(x.sin().cos().sin().clamp(0, 1), x * 2).tanh() ->
torch.maximum(x.clamp(0, 1), W).tanh() ->
torch.minimum(x.clamp(0, 1), x.clamp(0, 2)).tanh() -> reuses_input
functional.mse_loss(x.clamp(0, 1), x) -> is_subtracted, is_term
functional.mse_loss(x.clamp(0, 1), x.tanh()) ->
(0.5 * (x * 2).clamp(0, 2) - x).tanh() -> is_subtracted
(x.clamp(0, 1) * x).tanh() ->
"""


def facts_of(y: Tensor) -> str:
    """The names of the facts in order, of all nodes behind y."""
    root, facts = nodes.node_of(y), set()
    for node in nodes.reachable_from([y]):
        facts |= {fact for fact, _ in (*graph_shapes.find_beside(node), *graph_shapes.find_guards(node))}
        facts |= {"is_activation" for _ in graph_shapes.find_activations(node)}
        if graph_shapes.op_of(node).startswith("Clamp"):
            steep_op = graph_shapes.steep_op_behind(node)
            facts |= {f"behind {steep_op}"} if steep_op else set()
            facts |= {"is_window"} if graph_shapes.is_window(node) else set()
            facts |= {"is_addend"} if graph_shapes.is_addend(node, [root]) else set()
            facts |= {"is_floor"} if graph_shapes.is_term(node, [root], graph_shapes.FLOORS) else set()
        facts |= {"is_term"} if graph_shapes.is_term(node, [root]) else set()
    return ", ".join(sorted(facts))


@pytest.mark.parametrize("row", SHAPES.strip().splitlines())
def test_the_graph_around_an_op_shows_these_facts(row: str) -> None:
    function, _, facts = row.partition(" ->")
    x = nn.Parameter(torch.ones(2, 2)) * 1
    assert facts_of(eval(function, globals() | {"x": x})) == facts.strip()


@pytest.mark.parametrize(
    ("make", "is_known"),
    [
        (lambda a: _repeat(torch.neg, 24)(a), True),
        (lambda a: _repeat(torch.neg, 25)(a), False),
        (lambda a: _repeat(lambda x: x @ W, 24)(a), True),
        (lambda a: _repeat(lambda x: x @ W, 25)(a), False),
        (lambda a: _repeat(lambda x: torch.addmm(x, W, a), 24)(a), True),
        (lambda a: _repeat(lambda x: torch.addmm(x, W, a), 25)(a), False),
        (lambda a: a * 2, True),
        (lambda a: a.tanh() - a.sin(), True),
        (lambda a: a.cos(), False),
        (lambda a: a + 1, False),
        (lambda a: a + W, False),
        (lambda a: a @ W, True),
        (lambda a: W * a, True),
        (lambda a: torch.addmm(a, W, a), True),
        (lambda a: torch.addmm(W, W, a), False),
    ],
)
def test_a_factor_that_is_0_is_known_behind_ops_that_keep_0(make: Callable[[Tensor], Tensor], is_known: bool) -> None:
    leaves, zero, other = Leaves("key", {}), nn.Parameter(torch.zeros(2, 2)), nn.Parameter(torch.ones(2, 2))
    third = nn.Parameter(torch.ones(2, 2))
    zero_leaf, leaf, beside = leaves.add(zero), leaves.add(other), leaves.add(third)
    assert zero_leaf is not None
    assert leaf is not None
    assert beside is not None
    zero_leaf.entries.add(torch.ones(2, 2))
    for loss in ((third + other.sin()) @ make(zero), torch.addmm(zero.tanh(), other, make(zero))):
        graph_shapes.note_zero_factors([nodes.node_of(loss)], 0b10, leaves)
        assert (leaf.zero_factor, beside.zero_factor) == (zero_leaf if is_known else None, None)
    graph_shapes.note_zero_factors([nodes.node_of(other @ zero + other)], 0b10, leaves)
    assert leaf.zero_factor is None
    zero_leaf.is_stepped = True
    graph_shapes.note_zero_factors([nodes.node_of((other @ zero).sin())], 0b10, leaves)
    assert leaf.zero_factor is zero_leaf
    graph_shapes.note_zero_factors([nodes.node_of(zero @ other)], 0b01, leaves)
    assert zero_leaf.zero_factor is None  # the other factor is not 0
    zero_leaf.step_saw_gradient.add(True)
    graph_shapes.note_zero_factors([nodes.node_of(other @ zero)], 0b10, leaves)
    assert leaf.zero_factor is None


def test_a_product_or_quotient_of_one_input_has_a_number_beside_it() -> None:
    """As C++ code makes it."""

    def facts(op: str, behind: Tensor) -> list[object]:
        stub: Any = SimpleNamespace(name=lambda: f"{op}Backward1", next_functions=((nodes.node_of(behind), 0),))
        assert graph_shapes._zero_leaf(stub, leaves, 0) is (leaf if op == "Mul" else None)
        return [*graph_shapes.find_guards(stub), graph_shapes._is_steep(stub)]

    leaves, zero = Leaves("key", {}), nn.Parameter(torch.zeros(2))
    leaf = leaves.add(zero)
    assert leaf is not None
    leaf.entries.add(torch.ones(2))
    assert facts("Mul", zero * 1) == facts("Max", zero * 1) == facts("Div", zero.sin().clamp(min=0.05)) == [False]
