"""Patterns in a graph of autograd: a factor that starts at 0, as in a LoRA; a clip or step beside its own input; a term of the loss; a
clamp before or behind a steep op.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch

from ...listen import nodes
from ...listen.nodes import GraphNode
from ...torch_table.forms import form_of_node
from .leaf import Leaf, has_numbers
from .leaves import Leaves
from .norms import LOSSES

# The inputs that these nodes multiply with each other; their other inputs are added.
_FIRST_TWO = (
    "Mul Mm Bmm Mv Dot Convolution Linear NativeLayerNorm NativeGroupNorm NativeBatchNorm CudnnBatchNorm FusedRmsNorm"
)
_LAST_TWO = "Addmm Baddbmm Addbmm Addmv Addr Addcmul"
_FACTORS = {**dict.fromkeys(_FIRST_TWO.split(), (0, 1)), **dict.fromkeys(_LAST_TWO.split(), (1, 2))}
# These are 0 where all of their inputs are 0.
_SHAPES = (
    "T Transpose Permute View UnsafeView Reshape Expand Unsqueeze Squeeze Slice Select Split Unbind ToCopy Clone Alias"
)
_KEEP_ZERO = frozenset(f"{_SHAPES} Add Sub Neg Div Tanh Sin Sum Mean".split())
_MOST_STEPS = 24  # from a factor to a parameter
_CHOICES = ("MinimumBackward0", "MaximumBackward0")
# By the node that joins their result with x, as in `x - round(x)` or `sign(x) * f(x)`: steps that rightly pass no gradient.
_STEPS = {"Sub": ("Round", "Floor", "Ceil", "Trunc", "Div"), "Mul": ("Sign", "Sgn")}
_DIFFERENCES = ("Sub", *LOSSES)
_SCALES = frozenset(f"{_SHAPES} Mul Div Neg".split())
_POOLS = {"MaxPool2DWithIndices", "AvgPool2D", "AdaptiveAvgPool2D", "NativeDropout"}
# Between a clamp and what reads its result, or a distance and its clamp. No Cat, which would lead to the state beside an action.
_SCALES_AND_SUMS = _SCALES | _POOLS | {"Add", "Sub", "Rsub", "Sum", "Mean"}
_STEEP = frozenset(["Exp", "Exp2", "Expm1", "Sinh", "Cosh", "Tan", "Reciprocal", "Rsqrt"])
_POLES = ("Log", "Log2", "Log10", "Sqrt", "Rsqrt", "Reciprocal")
NEAR_A_POLE = 0.1  # a lower bound; the slope of a logarithm is 10 there
_DISTANCES = ("Abs", "Cdist", "EuclideanDist", "LinalgVectorNorm", "Norm", "Sqrt")
_CALM_POWER = 2  # the slope of a square is that of the usual loss
_NODES_LOOKED_AT = 24  # on each side of a choice
_MOST_SCALED = 8
_LIMITS = ("Relu", "Threshold", "Hardshrink", "Softshrink")
# The finding `cut` judges these, unless a power is taken of them.
_CLAMPS = ("Clamp", "ClampMin", "ClampMax", "Maximum", "Minimum")
FLOORS = ("Clamp", "ClampMin")  # they may have a lower bound, as for free bits
# Behind a limit these have the slope 0 where the limit gives 0, or they hand its result on.
_KEEPING_SLOPE_0 = ("Pow", "Abs", "Norm", "LinalgVectorNorm", "Sum", "Mean", "Div", "Mul")
_ADDING = (*_KEEPING_SLOPE_0[:-2], "Add", "Sub", "Rsub", "Sqrt", "Max", "Amax", "Stack", "Cat", "Index", "Nansum")
_SUMS = ("Add", "Sub", "Rsub", "Sum", "Mean", "Stack", "Cat")
_MOST_OF_A_LOSS = 500


def op_of(node: GraphNode) -> str:
    return nodes.name_of(node).rstrip("0123456789").removesuffix("Backward")


def _inputs(node: GraphNode) -> list[GraphNode | None]:
    return [other for other, _ in node.next_functions]


# --- a factor that starts at 0 ----------------------------------------------------------------------------------------


def note_zero_factors(starts: Iterable[GraphNode | None], suspects: int, leaves: Leaves) -> None:
    """Note in `zero_factor` of each suspect, a leaf that got only zeros, a parameter that is 0 now and will not stay 0.

    All paths from the suspect to the loss must lead through products with such parameters.
    """
    stack, blocked = list(starts), []
    met: set[GraphNode] = set()
    while stack:
        node = stack.pop()
        if node is None or node in met:
            continue
        met.add(node)
        inputs = _inputs(node)
        pair = _factors_of(node, inputs)
        for at, other in enumerate(inputs):
            # A node behind a product with a parameter that is 0 is blocked there.
            other_at = pair[1 - pair.index(at)] if at in pair else None  # the index of the other factor
            factor = None if other_at is None else _zero_leaf(inputs[other_at], leaves, 0)
            if factor is None:
                stack.append(other)
            elif other is not None:
                blocked.append((leaves.upstream(other), factor))
    reached = 0
    for node in met:
        if nodes.name_of(node) == nodes.LEAF:
            reached |= leaves.upstream(node)
    for leaf in leaves.unpack(suspects):
        leaf.zero_factor = None
    for upstream, factor in blocked:
        for leaf in leaves.unpack(upstream & suspects & ~reached):
            leaf.zero_factor = factor


def _factors_of(node: GraphNode, inputs: list[GraphNode | None]) -> tuple[int, ...]:
    pair = _FACTORS.get(op_of(node), ())
    return pair if pair and len(inputs) > max(pair) else ()


def _zero_leaf(node: GraphNode | None, leaves: Leaves, steps: int) -> Leaf | None:
    """The parameter that makes this value 0 and will not stay 0; None if there is none."""
    if node is None or steps > _MOST_STEPS:
        return None
    if nodes.name_of(node) == nodes.LEAF:
        leaf, tensor = leaves.leaf_of(node.variable), node.variable
        if leaf is None or not leaf.had_gradient or (leaf.is_stepped and leaf.step_saw_gradient):
            return None
        return leaf if has_numbers(tensor) and not bool(torch.count_nonzero(tensor.detach())) else None
    inputs = _inputs(node)
    pair = _factors_of(node, inputs)
    if pair:
        added = [_zero_leaf(other, leaves, steps + 1) for at, other in enumerate(inputs) if at not in pair]
        factors = [] if None in added else [_zero_leaf(inputs[at], leaves, steps + 1) for at in pair]
        return next((leaf for leaf in factors if leaf is not None), None)
    if op_of(node) not in _KEEP_ZERO and not (op_of(node) == "Mul" and len(inputs) == 1):
        return None
    zeros = [_zero_leaf(other, leaves, steps + 1) for other in inputs]
    return None if None in zeros or not zeros else zeros[0]


# --- a clip or a step beside its input --------------------------------------------------------------------------------


def find_beside(node: GraphNode) -> Iterator[tuple[str, GraphNode]]:
    """The clamps on one side of a minimum, maximum or difference, and the steps on one side of a difference or product, whose input is on
    the other side, too. Each comes after the name of the fact about it.
    """
    for step in _steps_beside(node):
        yield "reuses_input", step
    for clamp in _subtracted_clamps(node):
        yield "is_subtracted", clamp
    if nodes.name_of(node) not in _CHOICES:
        return
    sides = [_nodes_behind(other) for other in _inputs(node)]
    for side, other_side in zip(sides, sides[::-1], strict=True):
        for clamp in side:
            if _is_clamp(clamp) and clamp not in other_side:
                source = clamp.next_functions[0][0]
                if source is not None and any(before in other_side for before in _nodes_behind(source)[:3]):
                    yield "reuses_input", clamp


def _is_clamp(node: GraphNode) -> bool:
    form = form_of_node(nodes.name_of(node))
    return form is not None and form.switches[0] == "clamp"


def _subtracted_clamps(node: GraphNode) -> Iterator[GraphNode]:
    sides = _inputs(node) if op_of(node) in _DIFFERENCES else []
    for side, other_side in zip(sides, sides[::-1], strict=True):
        for clamp in _scaling_chain(side):
            source = _scaling_chain(other_side)
            if _is_clamp(clamp) and any(before in source for before in _scaling_chain(_inputs(clamp)[0])):
                yield clamp


def _steps_beside(node: GraphNode) -> Iterator[GraphNode]:
    sides, steps = _inputs(node), _STEPS.get(op_of(node), ())
    for side, other_side in zip(sides, sides[::-1], strict=True) if steps else ():
        chain = _scaling_chain(side)
        at = next((at for at, before in enumerate(chain) if _is_step(before, steps)), len(chain))
        near = _nodes_behind(other_side)[: 3 if "Round" in steps else None]
        if any(source in near for source in chain[at + 1 :]):
            yield chain[at]


def _is_step(node: GraphNode, steps: Sequence[str]) -> bool:
    return op_of(node) in steps and (op_of(node) != "Div" or getattr(node, "_saved_rounding_mode", None) is not None)


def _scaling_chain(node: GraphNode | None) -> list[GraphNode]:
    """A node and the nodes behind it, as long as each only scales or rounds its one input."""
    chain: list[GraphNode] = []
    while node is not None and len(chain) < _MOST_SCALED:
        chain.append(node)
        inputs = [other for other in _inputs(node) if other is not None]
        is_scale = op_of(node) in _SCALES or any(op_of(node) in steps for steps in _STEPS.values())
        node = inputs[0] if is_scale and len(inputs) == 1 else None
    return chain


# --- a term of the loss -----------------------------------------------------------------------------------------------


def is_term(node: GraphNode, starts: Iterable[GraphNode | None], limits: Sequence[str] = _LIMITS) -> bool:
    """Is it a lower limit, such as the relu of a penalty, or x - clamp(x), or a power of one, with only sums and constant factors up to
    the loss?
    """
    limit: GraphNode | None = node
    while limit is not None and op_of(limit) in _KEEPING_SLOPE_0:
        limit = _inputs(limit)[0]
    if limit is None:
        return False
    if op_of(limit) not in (limits if limit is node else _LIMITS + _CLAMPS) and not any(_subtracted_clamps(limit)):
        return False
    return is_addend(node, starts, _ADDING)


def is_addend(node: GraphNode, starts: Iterable[GraphNode | None], adding: Sequence[str] = _SUMS) -> bool:
    """Are there only these ops, shapes and constant factors between this node and the loss?"""
    stack, met = [start for start in starts if start is not None], set[GraphNode]()
    while stack and len(met) < _MOST_OF_A_LOSS:
        at = stack.pop()
        if at is node:
            return True
        inputs = [other for other in _inputs(at) if other is not None]
        if at not in met and (op_of(at) in adding or (op_of(at) in _SCALES and len(inputs) == 1)):
            stack += inputs
        met.add(at)
    return False


# --- a clamp behind or before an op whose slope grows without end -----------------------------------------------------


def find_guards(node: GraphNode) -> Iterator[tuple[str, GraphNode]]:
    """The clamp whose result enters an exp, or whose lower bound near 0 keeps x from 0 before a log, a root or a division."""
    op, inputs = op_of(node), _inputs(node)
    if op in ("Exp", "Exp2", "Expm1") and inputs[0] is not None:
        yield "is_before_exp", inputs[0]
    is_root = op == "Pow" and isinstance(power := getattr(node, "_saved_exponent", None), (int, float)) and power < 1
    if op in _POLES or is_root or (op == "Div" and len(inputs) > 1):
        for clamp in _scaling_chain(inputs[1 if op == "Div" else 0]):
            low = getattr(clamp, "_saved_min", None) if op_of(clamp) in FLOORS else None
            if isinstance(low, (int, float)) and 0 < low <= NEAR_A_POLE:
                yield "is_before_pole", clamp


def steep_op_behind(clamp: GraphNode) -> str:
    """The op whose result, perhaps scaled, enters a clamp, if the slope of this op grows without end; "" if there is none."""
    op = next((op_of(node) for node in _scaling_chain(_inputs(clamp)[0]) if _is_steep(node)), "")
    return op[:1].lower() + op[1:]


def is_window(clamp: GraphNode) -> bool:
    """Are only sums and scales between it and a distance that it clamps, as in `(1 - x.abs() / width).clamp(min=0)`?"""
    return any(op_of(node) in _DISTANCES for node in _walk_sums(_inputs(clamp)[:1]))


def find_activations(node: GraphNode) -> Iterator[GraphNode]:
    """The clamps whose results enter a product of matrices with a parameter, perhaps scaled or gated: the activations of a network."""
    inputs = _inputs(node)
    factors = [inputs[at] for at in _factors_of(node, inputs) if op_of(node) != "Mul"]
    if any(nodes.name_of(factor) == nodes.LEAF for start in factors for factor in _scaling_chain(start)):
        yield from (before for before in _walk_sums(factors) if op_of(before) in FLOORS)


def _walk_sums(starts: Sequence[GraphNode | None]) -> Iterator[GraphNode]:
    """These nodes, and those behind them as long as there are only sums, scales and pools."""
    queue = list(starts)
    for node in queue:
        if node is not None:
            yield node
            if op_of(node) in _SCALES_AND_SUMS and len(queue) < _NODES_LOOKED_AT:
                queue += _inputs(node)


def _is_steep(node: GraphNode) -> bool:
    op, inputs = op_of(node), _inputs(node)
    if op == "Pow":
        exponent = getattr(node, "_saved_exponent", _CALM_POWER)
        return not isinstance(exponent, torch.Tensor) and not 0 <= exponent <= _CALM_POWER
    divisor = inputs[1] if op == "Div" and len(inputs) > 1 else None
    return op in _STEEP or (divisor is not None and nodes.name_of(divisor) != nodes.LEAF)


def _nodes_behind(start: GraphNode | None) -> list[GraphNode]:
    """A node and the nodes behind it, the nearest first."""
    queue = [] if start is None else [start]
    for node in queue:
        queue += [other for other in _inputs(node) if other is not None and other not in queue]
        if len(queue) >= _NODES_LOOKED_AT:
            break
    return queue[:_NODES_LOOKED_AT]
