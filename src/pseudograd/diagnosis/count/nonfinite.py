"""Gradients that are not finite: the op that made them, the parameters that got them, and the steps that were taken or skipped for it.

Nothing of this is imported before something was not finite. One file, as a backward, its search and its steps share one state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial, reduce
from operator import or_
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from ...listen import nodes
from ...listen.frames import named
from ...listen.harmless import quiet
from ...listen.nodes import GraphNode
from ...torch_table.private import current_node, saved
from ...wording import counted
from .births import (
    KIND_OF,
    Birth,
    Kind,
    describe,
    edge_of,
    excess,
    is_broken,
    kind_of,
    position_of,
    recompute,
    saved_inputs,
    saved_results,
    words_of,
)
from .grads import Leaving, are_readable
from .graph_shapes import op_of
from .influence import Influence, tensors_in
from .leaf import MOST_IN_WARM_UP, Leaf

if TYPE_CHECKING:
    from torch.autograd.graph import GradientEdge
    from torch.optim import Optimizer

    from ...listen.harmless import Errors
    from .leaves import Leaves
    from .norms import Losses
    from .tally import Tally

_MOST_BIRTHS = 16
_NAMES_OF_VIEWS = "View UnsafeView Reshape T Transpose Permute Alias Unsqueeze Squeeze Clone"
_VIEWS = frozenset(_NAMES_OF_VIEWS.split())


class Recorder(Protocol):
    """The part of the recorder that is read here."""

    noted: Errors
    leaves: Leaves
    influence: Influence
    backwards: int
    line: Losses | None
    is_on: bool

    def tally_of(self, node: GraphNode) -> Tally | None: ...


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
        self._is_loss_nan = False  # in the last backward
        self._is_searching = self._is_of_forward = self._is_inner = self._is_computed_again = False
        self._of_data: list[object] = []  # the births, by their keys, that came from what this backward can reach
        # The nodes of this backward whose result may be it, each with that result, if it is known to be it.
        self._frontier: dict[GraphNode, Tensor | None] = {}
        self._behind: list[GraphNode] = []  # the nodes of this backward
        # The first call in a backward that makes it, as where checkpoint computes once more.
        self._heard: Birth | None = None
        # The last op of the forward whose result is it, and of which the input is not known.
        self._candidate: Birth | None = None
        # The first op of a backward that makes it, where the loss was not finite either.
        self._fallback: Birth | None = None
        self._pending: dict[Leaf, None] = {}

    @property
    def is_on(self) -> bool:
        return self._recorder.is_on

    # --- a backward ---------------------------------------------------------------------------------------------------

    def begin(self, roots: Sequence[Tensor | GradientEdge], behind: list[GraphNode], is_loss_finite: bool) -> None:
        """A backward begins: attach hooks to its nodes, if there is something to search for."""
        self._settle()
        if not self._are_weights_known and not self.has_spread:
            self._are_weights_known = True
            leaves = [leaf for _, leaf in self._leaves if leaf.is_parameter or self.reached]
            weights = [leaf for leaf in leaves if is_broken(leaf.tensor())]
            self.has_spread = bool(weights)
            if weights and not self.reached:
                near, backward, tensor = weights[0].name, self._recorder.backwards, weights[0].tensor()
                dtype = torch.float32 if tensor is None else tensor.dtype
                self._add(Birth(None, "", "weights", backward, 0, 0, "", dtype, 0, is_forward=True, near=near))
        roots_known = [root.detach() for root in roots if isinstance(root, Tensor) and not is_loss_finite]
        self._is_loss_nan = any(bool(root.isnan().any()) for root in roots_known)
        if self.is_unplaced:
            self._place(behind)
        self._is_of_forward, self._is_computed_again = not is_loss_finite, False
        reach = reduce(or_, (self._leaves.upstream(node) for node in nodes.starts(roots)), 0)
        self._of_data = [key for key, birth in self.births.items() if birth.hidden & reach and self._is_of_forward]
        if not self._of_data and (self.has_spread or not (self._is_of_forward or self._is_searching)):
            return
        for node, root in zip(nodes.starts(roots), roots, strict=True):
            if node is not None and self._is_of_forward:
                self._frontier[node] = root if isinstance(root, Tensor) and is_broken(root) else None
        self._behind = behind
        for node in behind:
            if nodes.name_of(node) != nodes.LEAF:
                node.register_hook(partial(self._look_again))

    @property
    def is_unplaced(self) -> bool:
        """Is the line of an op not known? Nodes that hand on what arrives have none, unless the recorder attaches hooks to them, too."""
        oldest = self._recorder.backwards - 8  # an op that does not come again is not waited for
        births = self.births.values()
        return any(birth.tally is None and birth.op and birth.backward > oldest for birth in births)

    def _place(self, behind: Sequence[GraphNode]) -> None:
        """Look for the lines in the graph of a later backward of the same line: each op has its place among those of its kind."""
        for birth in self.births.values():
            if birth.tally is None and birth.line is self._recorder.line:
                alike = [node for node in behind if op_of(node) == birth.op]
                if alike and len(alike) == birth.place[1]:
                    birth.tally = self._recorder.tally_of(alike[birth.place[0]])

    def _place_of(self, node: GraphNode) -> tuple[int, int]:
        alike = [other for other in self._behind if op_of(other) == op_of(node)]
        return (alike.index(node), len(alike)) if node in alike else (0, 0)

    @quiet("what is not finite")
    def _look_again(self, leaving: Leaving, arriving: Leaving) -> None:
        node = current_node()
        if node is None:
            return
        if self._is_of_forward and node in self._frontier:
            self._follow(node, self._frontier.pop(node))
        if self._fallback is None:
            self.look(self._recorder.tally_of(node), node, leaving, arriving)

    def look(self, tally: Tally | None, node: GraphNode, leaving: Leaving, arriving: Leaving) -> None:
        """Note a node of which something leaves that is not finite, although all that arrives is."""
        if self.has_spread or not are_readable((*arriving, *leaving)) or any(map(is_broken, arriving)):
            return
        broken = next((grad for grad in leaving if is_broken(grad)), None)
        if broken is None:
            return
        is_inner, self._is_inner = self._is_inner, False
        if is_inner and tally is not None and tally.function is not None:
            return
        if tally in self.births:
            return
        birth = self._birth(node, broken, arriving)
        if self._is_of_forward:
            self._fallback = self._fallback or birth
        else:
            self._add(birth)

    def _add(self, birth: Birth | None) -> None:
        is_late = self.taken and self._recorder.backwards > self.taken[0]  # what a step has spread
        if birth is not None and self._of_data:  # here the graph goes on behind the detach
            is_finite = not any(is_broken(leaf.tensor()) for leaf in self._leaves.named(birth.upstream))
            is_late = not is_finite or birth.kind in ("data", "weights")
            for key in self._of_data if not is_late else ():
                known = self.births.pop(key)
                birth.upstream, birth.earlier = birth.upstream | known.upstream, known.backward
            self._of_data = self._of_data if is_late else []
        if birth is not None and len(self.births) < _MOST_BIRTHS and not is_late:
            birth.line = self._recorder.line
            self.births.setdefault(birth.tally or birth.near or birth.kind, birth)

    def arrived(self, leaf: Leaf, grad: Tensor | None) -> None:
        """A gradient arrived at a leaf whose norms nobody measures."""
        if leaf.sizes is None and is_broken(grad):
            self._leaves.broken[leaf] = None

    def end_inner(self) -> None:
        """A backward that an autograd.Function runs, as checkpoint does, has ended: what it made, that function does not make."""
        self._is_inner = any(birth.backward == self._recorder.backwards for birth in self.births.values())

    def end(self) -> None:
        """A backward has ended."""
        self._frontier, self._behind, self._is_of_forward = {}, [], False
        hit = dict(self._leaves.broken)
        self._leaves.broken.clear()
        backward = self._recorder.backwards
        if not self.births or self._of_data:
            self._add(self._heard or self._candidate or (None if self._of_data else self._fallback))
        self._of_data = []
        self._heard = self._candidate = self._fallback = None
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

    def look_at_step(self, optimizer: Optimizer) -> None:
        """An optimiser steps."""
        tensors = [tensor for group in optimizer.param_groups for tensor in group["params"]]
        pending = {*self._pending, *self._leaves.broken}
        if not any(self._leaves.leaf_of(tensor) in pending for tensor in tensors):
            return
        broken = sum(is_broken(tensor.grad) for tensor in tensors)
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
        if self._pending and not any(is_broken(getattr(leaf.tensor(), "grad", None)) for leaf in self._pending):
            self._pending = {}
            self.skipped += 1

    @property
    def is_told(self) -> bool:
        """Did gradients get it, or was the last loss nan, as where a mask keeps it from every gradient?"""
        return not self.is_calm if self.reached else self._is_loss_nan and bool(self.births)

    @property
    def is_calm(self) -> bool:
        """Did it reach no weight, as the program replaces such gradients before the step, or in the warm-up of a GradScaler?"""
        if self.taken:
            return False
        if self.mended and not self.lost:
            return True
        if not self.has_optimiser():
            return False
        backwards, last = self._recorder.backwards, self.backwards[-1]
        if last < backwards and self.lost <= backwards / 10:
            return True
        goes_on = last < backwards or len(self.backwards) < MOST_IN_WARM_UP
        return goes_on and all(birth.kind in ("half", "half result") for birth in self.births.values())

    def calm(self) -> list[str]:
        """A sentence where it reached no weight."""
        if not self.reached or not self.is_calm:
            return []
        parts = []
        if self.lost:
            why = "as a GradScaler, or a check of the program, skips such steps"
            parts.append(f"no step followed {self.lost:,} of them, {why}")
        if self.mended:
            parts.append(f"the program replaced them before {counted(self.mended, 'step')}")
        births = [birth.tally.location for birth in self.births.values() if birth.tally is not None]
        where = f", born at {named(births[0].call)}" if births else ""
        count = counted(len(self.backwards), "backward")
        return [f"gradients were not finite in {count}{where}: {', and '.join(parts)}"]

    @property
    def lost(self) -> int:
        """The number of steps that were skipped for it, as far as the program went."""
        return self.skipped + bool(self._pending)

    # --- a birth ------------------------------------------------------------------------------------------------------

    def _birth(self, node: GraphNode, value: Tensor, arriving: Leaving) -> Birth:
        """value: the result, or a gradient that leaves, which is not finite."""
        op, mask, grad = op_of(node), ~value.isfinite(), arriving[0] if arriving else None
        is_masked = grad is not None and grad.shape == mask.shape and not bool(torch.count_nonzero(grad[mask]))
        values, is_ordinary = describe(op, node, mask)
        origin, broken, words = self._origin(node)
        tally, kind = self._recorder.tally_of(node), kind_of(op, node, is_ordinary)
        is_half = value.dtype is torch.float16 and not (is_masked or origin)
        if tally is not None and tally.function is not None:
            kind = "function"
        elif broken and (is_ordinary or kind == "product") and kind not in ("factor", "row", "minus infinity"):
            kind = "entered"
        elif is_half and kind in ("overflow", "product", "factor", "other"):
            kind = "half"
        if kind == "factor":
            kind, values = ("factor", words) if broken else ("product", "")
        birth = self._make_birth(node, kind, value, values, broken)
        birth.is_masked = is_masked
        if kind != "row":
            birth.origin, birth.is_forward = origin, bool(origin)
        if kind == "half":
            birth.factor = excess(op, node, grad)
        return birth

    def _make_birth(self, node: GraphNode, kind: Kind, value: Tensor, values: str, broken: str) -> Birth:
        mask, tally, upstream = ~value.isfinite(), self._recorder.tally_of(node), self._leaves.upstream(node)
        counts = int(torch.count_nonzero(mask)), mask.numel()
        birth = Birth(tally, op_of(node), kind, self._recorder.backwards, *counts, values, value.dtype, upstream)
        birth.broken, birth.near, birth.place = broken, self._near(node), self._place_of(node)
        return birth

    def _origin(self, node: GraphNode) -> tuple[str, str, str]:
        """A saved input that is not finite: its source, its name, and the words for its values; "" where all are finite."""
        for name, value in saved_inputs(node).items():
            if is_broken(value):
                words = words_of(value)
                edge = edge_of(node, name)
                source = "a value that needs no gradient" if edge is None else self._source(edge) or "an op before it"
                return source, name, f"a factor is {words}"
        return "", "", ""

    def _source(self, node: GraphNode | None) -> str:
        """The op and the line that made a value."""
        while node is not None:
            if nodes.name_of(node) == nodes.LEAF:
                return "the weights" if is_broken(node.variable) else ""
            tally = self._recorder.tally_of(node)
            if tally is not None:
                from ..sites import site_of  # the words of the report

                site = site_of(tally)
                return f"{site.op} at {site.where}"
            ahead = [other for other, _ in node.next_functions]
            node = ahead[0] if len(ahead) == 1 else None
        return ""

    # --- a loss that is not finite -----------------------------------------------------------------------------------

    def after_call(self, args: Iterable[object], result: object) -> None:
        """The program called torch in a backward, as the forward of a checkpoint does, which is computed once more."""
        if not (self._is_of_forward and self._heard is None and isinstance(result, Tensor) and result.requires_grad):
            return
        self._is_computed_again = True
        # A checkpoint would count what we make of the result itself.
        node, result = nodes.node_of(result), result.detach()
        if node is None or not is_broken(result):
            return
        # -inf is how a row is masked
        is_row = KIND_OF.get(op_of(node)) == "row" and bool(result.isnan().any())
        if any(bool(x.isnan().any()) if is_row else is_broken(x) for x in map(Tensor.detach, tensors_in(args))):
            return
        if op_of(node) in KIND_OF or bool(result.isnan().any()):  # any other op was told to make infinity
            self._heard = self._note_origin(node, result)

    def _follow(self, node: GraphNode, result: Tensor | None) -> None:
        """The result of this node is not finite, or may be so: is its op the first that made it? result: where it is known to be it."""
        op, inputs, results = op_of(node), saved_inputs(node), saved_results(node)
        if results and not any(map(is_broken, results)):
            return
        broken = [name for name, value in inputs.items() if is_broken(value)]
        for name in broken:
            self._go_behind(node, name, inputs[name])
        if broken:
            return
        known = {position_of(node, name) for name in inputs}
        ahead = [other for at, (other, _) in enumerate(node.next_functions) if other is not None and at not in known]
        y = recompute(op, node)
        if y is None and results:
            y = results[0]
            # What entered may have been it, too: always so of an infinite root.
            if not inputs and (op not in KIND_OF or op == "Sqrt" or bool(y.isnan().any())):
                self._candidate, y = self._note_origin(node, y), None
        elif y is None and result is not None:
            if inputs and all(nodes.name_of(other) == nodes.LEAF for other in ahead):
                y = result
            elif self._is_computed_again and not inputs and op in KIND_OF:  # up to this op, and every call was finite
                self._candidate = self._note_origin(node, result)
        if y is not None:
            self._add(self._note_origin(node, y))
            return
        for other in ahead:
            self._frontier[other] = result if op in _VIEWS else self._frontier.get(other)

    def _note_origin(self, node: GraphNode, y: Tensor) -> Birth | None:
        """The birth at a node whose result is y; None if that is finite."""
        if not is_broken(y):
            return None
        birth = self._birth(node, y, ())
        birth.is_forward = True
        birth.kind = "half result" if birth.kind == "half" else birth.kind
        return birth

    def _go_behind(self, node: GraphNode, name: str, value: Tensor) -> None:
        """An input of this node is not finite: follow the node that made it, or note that no node did."""
        other = edge_of(node, name)
        if other is not None and nodes.name_of(other) != nodes.LEAF:
            self._frontier[other] = value
            return
        values = "nan" if bool(value.isnan().any()) else "inf"
        birth = self._make_birth(node, "data" if other is None else "weights", value, values, name)
        birth.is_forward = True
        if other is None:
            birth.hidden = self._recorder.influence.leaves_behind_cuts(saved(node, name))
        self._add(birth)

    def _near(self, node: GraphNode) -> str:
        """The parameter that is another input of this node; "" without one."""
        sets = [self._leaves.upstream(other) for other, _ in node.next_functions if other is not None]
        leaves = [leaf for upstream in sets if upstream.bit_count() == 1 for leaf in self._leaves.named(upstream)]
        return max(leaves, key=lambda leaf: len(leaf.shape)).name if leaves else ""
