"""Gradients that are not finite: the op that made them, the parameters that got them, and the steps that were taken or skipped for it.

Nothing of this is imported before something was not finite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from ...listen import nodes
from ...listen.frames import named
from ...listen.harmless import quiet
from ...listen.nodes import GraphNode
from ...torch_table.private import current_node, saved, saved_names
from ...wording import counted
from .grads import Leaving, are_readable
from .leaf import MOST_IN_WARM_UP, Leaf, has_numbers

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from ...listen.harmless import Errors
    from .leaves import Leaves
    from .tally import Tally

_MOST_BIRTHS = 16
# the kinds of a birth
ROOT, DIVISION, LOG, ARC, OVERFLOW, ROW, FACTOR = "root", "division", "log", "arc", "overflow", "row", "factor"
HALF, FUNCTION, MATRIX, DATA, WEIGHTS, OTHER = "half", "function", "matrix", "data", "weights", "other"
PRODUCT, MINUS_INFINITY = "product", "minus infinity"
_KINDS = {
    ROOT: "Sqrt Pow LinalgVectorNorm Norm Cdist Hypot",
    DIVISION: "Div Reciprocal Rsqrt Atan2 Addcdiv",
    LOG: "Log Log2 Log10 Log1P Logit Xlogy",
    ARC: "Acos Asin Acosh Atanh Erfinv",
    OVERFLOW: "Exp Exp2 Expm1 Sinh Cosh",
    ROW: "Softmax LogSoftmax Logsumexp ScaledDotProductFlashAttentionForCpu",
    FACTOR: "Mul Addcmul",
    PRODUCT: "Mm Addmm Bmm Baddbmm Convolution Prod Cumprod",
}
_KIND_OF: dict[str, str] = {name: kind for kind, names in _KINDS.items() for name in names.split()}
# the position of the edge of a saved input, where it is not the first
_EDGES = {
    "other": 1,
    "weight": 1,
    "exponent": 1,
    "target": 1,
    "mat2": 1,
    "mat1": 1,
    "x2": 1,
    "tensor1": 1,
    "tensor2": 2,
    "key": 1,
    "value": 2,
    "bias": 2,
    "attn_mask": 3,
}
_RESULTS = frozenset(("result", "output", "logsumexp"))
# the saved value that an op has its slope from
_DECIDING = {"Div": "other", "Atan2": "other", "Xlogy": "other", "Addcdiv": "tensor2"}
_LIMITS = {"Exp": torch.log, "Exp2": torch.log2, "Expm1": torch.log}  # of the largest number of a dtype
_FORWARDS: Mapping[str, Callable[..., Tensor]] = {
    **{
        name: getattr(torch, name.lower())
        for name in ["Log", "Log2", "Log10", "Log1P", "Logit", "Acos", "Asin", "Acosh", "Atanh", "Erfinv"]
    },
    **{
        "Sinh": torch.sinh,
        "Cosh": torch.cosh,
        "Mul": torch.mul,
        "Div": torch.div,
        "Pow": torch.pow,
        "Xlogy": torch.xlogy,
    },
    **{"Mm": torch.mm, "Bmm": torch.bmm, "Addmm": torch.mm},
}


class Recorder(Protocol):
    """The part of the recorder that is read here."""

    noted: Errors
    leaves: Leaves
    backwards: int
    is_on: bool

    def tally_of(self, node: GraphNode) -> Tally | None: ...


@dataclass
class Birth:
    """The op of which something leaves that is not finite, although all that arrives is; or one that made such a value in the forward.

    tally: None where nobody saw the call. values: of x, where it happened. is_masked: is all that arrives at these entries 0? origin:
    the op that made an input that is not finite, and broken: its name in the node. near: the parameter that is used there. factor: how
    often the largest exceeds the range of its dtype; 0 where nobody knows.
    """

    tally: Tally | None
    op: str
    kind: str
    backward: int
    entries: int
    elements: int
    values: str
    is_masked: bool
    dtype: torch.dtype
    upstream: int
    is_forward: bool = False
    origin: str = ""
    broken: str = ""
    near: str = ""
    factor: float = 0.0
    backwards: int = 1


class Nonfinite:
    """Everything that is known of what is not finite."""

    def __init__(self, recorder: Recorder, has_optimiser: Callable[[], bool]) -> None:
        self.has_optimiser = has_optimiser
        self._recorder, self._leaves, self.noted = recorder, recorder.leaves, recorder.noted
        self.births: dict[object, Birth] = {}
        self.reached: dict[Leaf, int] = {}  # the leaves that got it, each with the backward
        self.backwards: list[int] = []  # in which a leaf got it
        self.taken: list[int] = []  # the backwards before the steps that used it
        self.spread_to = 0  # parameters whose gradient was not finite in such a step
        self.skipped = self.mended = 0  # steps
        self.has_spread = False  # do weights hold it?
        self._are_weights_known = False
        self._is_searching = self._is_of_forward = False
        self._frontier: dict[GraphNode, None] = {}  # nodes of this backward whose result may be it
        self._candidate: Birth | None = (
            None  # the last op of the forward whose result is it, and of which the input is not known
        )
        self._fallback: Birth | None = (
            None  # the first op of a backward that makes it, where the loss was not finite either
        )
        self._pending: dict[Leaf, None] = {}

    @property
    def is_on(self) -> bool:
        return self._recorder.is_on

    # --- a backward ---------------------------------------------------------------------------------------------------

    def begin(self, starts: Iterable[GraphNode | None], behind: Iterable[GraphNode], is_loss_finite: bool) -> None:
        """A backward begins: attach hooks to its nodes, if there is something to search for."""
        self._settle()
        if not self._are_weights_known and not self.has_spread:
            self._are_weights_known = True
            leaves = [leaf for _, leaf in self._leaves if leaf.is_parameter or self.reached]
            weights = [leaf for leaf in leaves if _is_broken(leaf.tensor())]
            self.has_spread = bool(weights)
            if weights and not self.reached:
                near, backward = weights[0].name, self._recorder.backwards
                self._add(
                    Birth(None, "", WEIGHTS, backward, 0, 0, "", False, torch.float32, 0, is_forward=True, near=near)
                )
        behind = list(behind)
        if self.is_unplaced:
            self._place(behind)
        self._is_of_forward = not is_loss_finite
        if self.has_spread or not (self._is_of_forward or self._is_searching):
            return
        self._frontier = {node: None for node in starts if node is not None} if self._is_of_forward else {}
        for node in behind:
            if nodes.name_of(node) != nodes.LEAF:
                node.register_hook(partial(self._look_again))

    @property
    def is_unplaced(self) -> bool:
        """Is the line of an op not known? Nodes that hand on what arrives have none, unless the recorder attaches hooks to them, too."""
        oldest = self._recorder.backwards - 2  # an op that does not come again is not waited for
        births = self.births.values()
        return any(birth.tally is None and birth.near and birth.op and birth.backward > oldest for birth in births)

    def _place(self, behind: Sequence[GraphNode]) -> None:
        """Look for the lines in the graph of a later backward: those of the ops with the same parameter."""
        for birth in self.births.values():
            for node in behind if birth.tally is None and birth.near else ():
                if _op_of(node) == birth.op and self._near(node) == birth.near:
                    birth.tally = self._recorder.tally_of(node)

    @quiet("what is not finite")
    def _look_again(self, leaving: Leaving, arriving: Leaving) -> None:
        node = current_node()
        if node is None:
            return
        if self._is_of_forward:
            if node in self._frontier:
                del self._frontier[node]
                self._follow(node)
        else:
            self.look(self._recorder.tally_of(node), node, leaving, arriving)

    def look(self, tally: Tally | None, node: GraphNode, leaving: Leaving, arriving: Leaving) -> None:
        """Note a node of which something leaves that is not finite, although all that arrives is."""
        if self.has_spread or not are_readable((*arriving, *leaving)) or any(map(_is_broken, arriving)):
            return
        broken = next((grad for grad in leaving if _is_broken(grad)), None)
        if broken is None:
            return
        known = self.births.get(tally)
        if known is not None:
            known.backwards += known.backward != self._recorder.backwards
            return
        birth = self._birth(tally, node, ~broken.isfinite(), arriving, broken.dtype)
        if self._is_of_forward:
            self._fallback = self._fallback or birth
        else:
            self._add(birth)

    def _add(self, birth: Birth | None) -> None:
        is_late = self.taken and self._recorder.backwards > self.taken[0]  # what a step has spread
        if birth is not None and len(self.births) < _MOST_BIRTHS and not is_late:
            self.births.setdefault(birth.tally or birth.near or birth.kind, birth)

    def arrived(self, leaf: Leaf, grad: Tensor | None) -> None:
        """A gradient arrived at a leaf whose norms nobody measures."""
        if leaf.sizes is None and _is_broken(grad):
            self._leaves.broken[leaf] = None

    def end(self) -> None:
        """A backward has ended."""
        self._frontier = {}
        hit = dict(self._leaves.broken)
        self._leaves.broken.clear()
        backward = self._recorder.backwards
        if not self.births:
            self._add(self._candidate or self._fallback)
        self._candidate = self._fallback = None
        self._is_searching = bool(hit) and not self.births
        if not hit:
            return
        if not self.has_spread or not self.reached:
            for leaf in hit:
                self.reached.setdefault(leaf, backward)
        self._pending |= hit
        self._are_weights_known = False
        self.backwards.append(backward)

    # --- steps --------------------------------------------------------------------------------------------------------

    def at_step(self, optimizer: Optimizer) -> None:
        """An optimiser steps."""
        tensors = [tensor for group in optimizer.param_groups for tensor in group["params"]]
        pending = {*self._pending, *self._leaves.broken}
        if not any(self._leaves.leaf_of(tensor) in pending for tensor in tensors):
            return
        broken = sum(_is_broken(tensor.grad) for tensor in tensors)
        if broken:
            self.taken.append(self._recorder.backwards)
            self.spread_to = max(self.spread_to, broken)
        else:
            self.mended += 1
        for leaf in map(self._leaves.leaf_of, tensors):
            if leaf is not None:
                self._pending.pop(leaf, None)

    def _settle(self) -> None:
        """No step used a gradient that is gone now."""
        if self._pending and not any(_is_broken(getattr(leaf.tensor(), "grad", None)) for leaf in self._pending):
            self._pending = {}
            self.skipped += 1

    @property
    def is_calm(self) -> bool:
        """Did it reach no weight, as the program replaces such gradients before the step, or in the warm-up of a GradScaler?"""
        if self.taken:
            return False
        if self.mended and not self.lost:
            return True
        backwards = self._recorder.backwards
        if self.backwards[-1] < backwards and self.lost <= backwards / 10 and self.has_optimiser():
            return True
        goes_on = self.backwards[-1] < backwards or len(self.backwards) < MOST_IN_WARM_UP
        return goes_on and self.has_optimiser() and all(birth.kind == HALF for birth in self.births.values())

    def calm(self) -> list[str]:
        """A sentence where it reached no weight."""
        if not self.reached or not self.is_calm:
            return []
        parts = (
            [f"no step followed {self.lost:,} of them, as a GradScaler, or a check of the program, skips such steps"]
            if self.lost
            else []
        )
        parts += [f"the program replaced them before {counted(self.mended, 'step')}"] if self.mended else []
        births = [birth.tally.location for birth in self.births.values() if birth.tally is not None]
        where = f", born at {named(births[0].call)}" if births else ""
        return [
            f"gradients were not finite in {counted(len(self.backwards), 'backward')}{where}: {', and '.join(parts)}"
        ]

    @property
    def lost(self) -> int:
        """The number of steps that were skipped for it, as far as the program went."""
        return self.skipped + bool(self._pending)

    # --- a birth ------------------------------------------------------------------------------------------------------

    def _birth(
        self, tally: Tally | None, node: GraphNode, mask: Tensor, arriving: Leaving, dtype: torch.dtype
    ) -> Birth:
        op = _op_of(node)
        grad = arriving[0] if arriving else None
        is_masked = grad is not None and grad.shape == mask.shape and not bool(torch.count_nonzero(grad[mask]))
        values, is_ordinary = _describe(op, node, mask)
        origin, broken, words = self._origin(node)
        kind = _kind_of(op, node, is_ordinary)
        if tally is not None and tally.function is not None:
            kind = FUNCTION
        elif dtype is torch.float16 and kind in (OVERFLOW, PRODUCT, FACTOR, OTHER) and not (is_masked or origin):
            kind = HALF
        if kind == FACTOR:
            kind, values = (FACTOR, words) if broken else (PRODUCT, "")
        values = "" if op in ("Mm", "Addmm", "Bmm", "Baddbmm", "Convolution") else values
        return Birth(
            tally,
            op,
            kind,
            self._recorder.backwards,
            int(torch.count_nonzero(mask)),
            mask.numel(),
            values,
            is_masked,
            dtype,
            self._leaves.upstream(node),
            is_forward=bool(origin) and kind != ROW,
            origin="" if kind == ROW else origin,
            broken=broken,
            near=self._near(node) if tally is None else "",
            factor=_excess(op, node, grad) if kind == HALF else 0.0,
        )

    def _origin(self, node: GraphNode) -> tuple[str, str, str]:
        """A saved input that is not finite: its source, its name, and the words for its values; "" where all are finite."""
        for name, value in _inputs(node).items():
            if _is_broken(value):
                words = [
                    f"{number}" for number in (torch.nan, torch.inf, -torch.inf) if bool(_equals(value, number).any())
                ]
                source = self._source(_edge(node, name)) or "a value that needs no gradient"
                return source, name, f"a factor is {' or '.join(words)}"
        return "", "", ""

    def _source(self, node: GraphNode | None) -> str:
        """The op and the line that made a value."""
        while node is not None:
            if nodes.name_of(node) == nodes.LEAF:
                return "the weights" if _is_broken(node.variable) else ""
            tally = self._recorder.tally_of(node)
            if tally is not None:
                from ..sites import site_of  # the words of the report

                site = site_of(tally)
                return f"{site.op} at {site.where}"
            ahead = [other for other, _ in node.next_functions]
            node = ahead[0] if len(ahead) == 1 else None
        return ""

    # --- a loss that is not finite -----------------------------------------------------------------------------------

    def _follow(self, node: GraphNode) -> None:
        """The result of this node is not finite, or may be so: is its op the first that made it?"""
        op, inputs, results = _op_of(node), _inputs(node), _results(node)
        if results and not any(map(_is_broken, results)):
            return
        broken = [name for name, value in inputs.items() if _is_broken(value)]
        for name in broken:
            self._go_behind(node, name, inputs[name])
        if broken:
            return
        y = _recompute(op, node)
        if y is None and results:
            y = results[0]
            if not inputs and (op not in _KIND_OF or bool(y.isnan().any())):  # what entered may have been it, too
                self._candidate, y = self._note_origin(node, y), None
        if y is not None:
            self._add(self._note_origin(node, y))
            return
        known = {_position(node, name) for name in inputs}
        for position, (other, _) in enumerate(node.next_functions):
            if other is not None and position not in known:
                self._frontier[other] = None

    def _note_origin(self, node: GraphNode, y: Tensor) -> Birth | None:
        """The birth at a node whose result is y; None if that is finite."""
        mask = ~y.isfinite()
        if not bool(mask.any()):
            return None
        birth = self._birth(self._recorder.tally_of(node), node, mask, (), y.dtype)
        birth.is_forward = True
        return birth

    def _go_behind(self, node: GraphNode, name: str, value: Tensor) -> None:
        """An input of this node is not finite: follow the node that made it, or note that no node did."""
        other = _edge(node, name)
        if other is not None and nodes.name_of(other) != nodes.LEAF:
            self._frontier[other] = None
            return
        entries = int(torch.count_nonzero(~value.isfinite()))
        values = "nan" if bool(value.isnan().any()) else "inf"
        self._add(
            Birth(
                self._recorder.tally_of(node),
                _op_of(node),
                DATA if other is None else WEIGHTS,
                self._recorder.backwards,
                entries,
                value.numel(),
                values,
                is_masked=False,
                dtype=value.dtype,
                upstream=self._leaves.upstream(node),
                is_forward=True,
                broken=name,
                near=self._near(node),
            )
        )

    def _near(self, node: GraphNode) -> str:
        """The parameter that is another input of this node; "" without one."""
        sets = [self._leaves.upstream(other) for other, _ in node.next_functions if other is not None]
        leaves = [
            leaf for leaves in sets if leaves and not leaves & (leaves - 1) for leaf in self._leaves.named(leaves)
        ]
        return max(leaves, key=lambda leaf: len(leaf.shape)).name if leaves else ""


def _is_broken(value: object) -> bool:
    """Does a tensor hold anything that is not finite?"""
    if not isinstance(value, Tensor) or not has_numbers(value) or not (value.is_floating_point() or value.is_complex()):
        return False
    value = value.detach()
    return not bool((value._values() if value.is_sparse else value).isfinite().all())


def _equals(value: Tensor, number: float) -> Tensor:
    return value.isnan() if number != number else value == number


def _read(node: GraphNode, name: str) -> Tensor | None:
    """A saved value, if it is a tensor of numbers that can be read without running anything of the program again."""
    try:
        value = saved(node, name, None)
    except RuntimeError:
        return None
    if not isinstance(value, Tensor) or not has_numbers(value) or value.layout is not torch.strided:
        return None
    return value.detach() if value.is_floating_point() or value.is_complex() else None


def _inputs(node: GraphNode) -> dict[str, Tensor]:
    values = {name: _read(node, name) for name in saved_names(node) if name not in _RESULTS and name[:6] != "result"}
    return {name: value for name, value in values.items() if value is not None}


def _results(node: GraphNode) -> list[Tensor]:
    values = [_read(node, name) for name in saved_names(node) if name in _RESULTS]
    return [value for value in values if value is not None]


def _edge(node: GraphNode, name: str) -> GraphNode | None:
    """The node that made a saved input; None where it needs no gradient."""
    position, edges = _position(node, name), node.next_functions
    return edges[position][0] if position < len(edges) else None


def _op_of(node: GraphNode) -> str:
    return nodes.name_of(node).rstrip("0123456789").removesuffix("Backward")


def _kind_of(op: str, node: GraphNode, is_ordinary: bool) -> str:
    """The kind of a birth by its op. is_ordinary: is x known, and nowhere at the ends of the range of the op?"""
    kind = _KIND_OF.get(op, MATRIX if op.startswith("Linalg") else OTHER)
    if op == "LogSoftmax" and not any(bool(value.isnan().any()) for value in _results(node)):
        return MINUS_INFINITY
    if is_ordinary and (kind == ROOT or op in _LIMITS or (op == "Div" and not _is_small(node))):
        return PRODUCT
    return DIVISION if op == "Pow" and _exponent(node) < 0 else kind


def _position(node: GraphNode, name: str) -> int:
    """The position of the edge of a saved input."""
    return _EDGES.get(name, 0) + (name == "mat2" and nodes.name_of(node).startswith(("Add", "Badd")))


def _is_small(node: GraphNode) -> bool:
    """Does the divisor have an entry near 0?"""
    value = _read(node, "other")
    return value is None or not value.numel() or float(value.abs().min()) < 1


def _exponent(node: GraphNode) -> float:
    value = saved(node, "exponent", 1.0)
    return float(value.detach().min()) if isinstance(value, Tensor) else float(value)


def _recompute(op: str, node: GraphNode) -> Tensor | None:
    """The result of an op from its saved inputs; None if they are not known."""
    forward = _FORWARDS.get(op)
    if forward is None:
        return None
    names = {
        "Addmm": ("mat1", "mat2"),
        "Mm": ("self", "mat2"),
        "Bmm": ("self", "mat2"),
        "Pow": ("self", "exponent"),
    }.get(op, ("self", "other") if op in ("Mul", "Div", "Xlogy") else ("self",))
    values = [_read(node, name) for name in names]
    if op == "Pow" and values[1] is None:
        return None if values[0] is None else values[0] ** _exponent(node)
    try:
        return None if any(value is None for value in values) else forward(*values)
    except RuntimeError:
        return None


# --- the values that did it -------------------------------------------------------------------------------------------


def _describe(op: str, node: GraphNode, mask: Tensor) -> tuple[str, bool]:
    """The values of x where something that is not finite leaves, and whether all are ordinary numbers, as far as they are known."""
    results, inputs = _results(node), _inputs(node)
    x = inputs.get(_DECIDING.get(op, "self"))
    if op in ("Softmax", "LogSoftmax", "Logsumexp"):
        return "", False
    if op in _LIMITS and results:
        at = _chosen(results[0], mask)
        limit = float(_LIMITS[op](torch.tensor(torch.finfo(results[0].dtype).max, dtype=torch.float64)))
        return (f"x is above {limit:.4g}", False) if bool(at.isinf().any()) else ("", True)
    if op in ("Sqrt", "Rsqrt", "Reciprocal") and results:
        at = _chosen(results[0], mask)
        zero, below = (at == 0) if op == "Sqrt" else at.isinf(), at.isnan()
        return _counts({"0": zero, "below 0": below}, at), not bool((zero | below).any())
    if x is None:
        return "", False
    at = _chosen(x, mask)
    if at.is_complex():
        return _counts({"0": at == 0}, at), not bool((at == 0).any())
    groups = {"0": at == 0, "inf": at == torch.inf, "-inf": at == -torch.inf, "nan": at.isnan()}
    if op == "Log1P":
        groups = {"-1": at == -1}
    if op in ("Acos", "Asin", "Atanh", "Erfinv", "Acosh"):
        groups = {"1": at == 1, "-1": at == -1, "outside of [-1, 1]": at.abs() > 1}
    elif op == "Logit":
        groups = {"0": at == 0, "1": at == 1, "outside of [0, 1]": (at < 0) | (at > 1)}
    elif op == "Log" or (op == "Pow" and _exponent(node) % 1):
        groups["below 0"] = at < 0
    text = _counts(groups, at)
    is_ordinary = not any(bool(group.any()) for group in groups.values())
    return (
        f"x lies from {float(at.min()):.3g} to {float(at.max()):.3g}" if is_ordinary and at.numel() else text
    ), is_ordinary


def _chosen(value: Tensor, mask: Tensor) -> Tensor:
    """The entries of the mask, where the shapes allow it, else all."""
    try:
        return torch.broadcast_to(value, mask.shape)[mask]
    except RuntimeError:
        return value.reshape(-1)


def _counts(groups: Mapping[str, Tensor], at: Tensor) -> str:
    counts = {text: int(torch.count_nonzero(group)) for text, group in groups.items()}
    counts = {text: count for text, count in counts.items() if count}
    if len(counts) < 2:
        return "".join(f"x is {text}" for text in counts)
    return "x is " + " or ".join(f"{text} ({count:,})" for text, count in counts.items())


def _excess(op: str, node: GraphNode, grad: Tensor | None) -> float:
    """How often the largest gradient that leaves exceeds the range of float16; 0 where nobody knows."""
    if grad is None:
        return 0.0
    largest = grad.detach().float().abs()
    if op == "Mul":
        factors = [value.float().abs() for value in _inputs(node).values()]
        if not factors:
            return 0.0
        try:
            largest = torch.stack([(largest * factor).max() for factor in factors])
        except RuntimeError:
            return 0.0
    elif op != "ToCopy":
        return 0.0
    return float(largest.max()) / torch.finfo(torch.float16).max
