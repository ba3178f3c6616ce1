"""What the graph around an op shows, each fact with what just misses it."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pseudograd.diagnosis.count import graph_shapes
from pseudograd.diagnosis.count.leaves import Leaves
from pseudograd.listen import nodes

from ..written import assert_written


def repeat(function: Callable[[Tensor], Tensor], times: int) -> Callable[[Tensor], Tensor]:
    return lambda x: function(repeat(function, times - 1)(x)) if times else x


def facts_of(function: Callable[[Tensor], Tensor]) -> str:
    """The names of the facts in order, of all nodes of this function of x."""
    y, facts = function(nn.Parameter(torch.ones(2, 2)) * 1), set()
    root = nodes.node_of(y)
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
    return ", ".join(sorted(facts)) or "nothing"


def is_known_behind(make: Callable[[Tensor], Tensor]) -> bool:
    """If a parameter that is 0 is known as the factor of another one, behind these ops."""
    leaves, zero, other, third = (
        Leaves("key", {}),
        *(nn.Parameter(torch.full((2, 2), value)) for value in (0.0, 1.0, 1.0)),
    )
    zero_leaf, leaf, beside = map(leaves.add, (zero, other, third))
    assert zero_leaf is not None
    assert leaf is not None
    assert beside is not None
    zero_leaf.entries.add(torch.ones(2, 2))
    factors = []
    for loss in ((third + other.sin()) @ make(zero), torch.addmm(zero.tanh(), other, make(zero))):
        graph_shapes.note_zero_factors([nodes.node_of(loss)], 0b10, leaves)
        factors.append(leaf.zero_factor)
        assert beside.zero_factor is None
    assert factors in ([zero_leaf] * 2, [None] * 2)
    return factors[0] is zero_leaf


def test_the_graph_around_an_op_shows_the_written_facts() -> None:
    names = {"repeat": repeat, "facts_of": facts_of, "is_known_behind": is_known_behind, "functional": functional}
    names |= {"torch": torch, "W": nn.Parameter(torch.eye(2)), "LOW": torch.full((2, 2), 0.05)}
    names |= {"CONV": nn.Parameter(torch.ones(1, 1, 1, 1))}
    assert_written(Path(__file__).with_name("graph_shapes.txt"), names)


def test_a_factor_that_is_0_is_named_while_it_gets_no_gradient() -> None:
    leaves, zero, other = Leaves("key", {}), nn.Parameter(torch.zeros(2, 2)), nn.Parameter(torch.ones(2, 2))
    zero_leaf, leaf = map(leaves.add, (zero, other))
    assert zero_leaf is not None
    assert leaf is not None
    zero_leaf.entries.add(torch.ones(2, 2))

    def factors(loss: Tensor, mask: int) -> tuple[object, ...]:
        graph_shapes.note_zero_factors([nodes.node_of(loss)], mask, leaves)
        return zero_leaf.zero_factor, leaf.zero_factor

    assert factors(other @ zero, 0b10) == (None, zero_leaf)
    assert factors(other @ zero + other, 0b10) == (None, None)
    zero_leaf.is_stepped = True
    assert factors((other @ zero).sin(), 0b10) == (None, zero_leaf)
    assert factors(zero @ other, 0b01) == (None, zero_leaf), "the other factor is not 0"
    zero_leaf.step_saw_gradient.add(True)
    assert factors(other @ zero, 0b10) == (None, None)


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
