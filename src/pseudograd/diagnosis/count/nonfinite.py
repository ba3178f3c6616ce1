"""Broken gradients, which hold nan or inf: the op that made them (the *birth*), and the parameters and the steps that got them.

This module is imported when a gradient or a loss is broken for the first time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from torch import Tensor

from ...listen import nodes
from ...listen.frames import file_and_line
from ...listen.harmless import quiet
from ...listen.nodes import GraphNode
from ...torch_table.private import current_node, saved
from ...wording import counted
from .births import (
    KIND_OF,
    NO_POSITION,
    TOO_FEW,
    Birth,
    Kind,
    Position,
    broken_numbers,
    describe_input,
    divides_by_number,
    excess_over_float16,
    is_broken,
    kind_of,
    maker_of,
    position_of,
    recompute,
    replay_of,
    saved_inputs,
    saved_results,
)
from .grads import Gradients, are_readable
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
_BACKWARDS_TO_FIND_A_LINE = 8  # an op that has not come again by then probably never will
_BACKWARDS_FOR_A_LOST_STEP = 10  # if steps are lost more often, the program has a fault
# If an entry of the result is nan, the same entry of the input is nan, too.
_NAMES_KEEPING_NAN = "View UnsafeView Reshape T Transpose Permute Alias Unsqueeze Squeeze Clone Tanh Sigmoid Relu Exp"
_KEEPING_NAN = frozenset(_NAMES_KEEPING_NAN.split())


class Recorder(Protocol):
    """The part of the recorder that is read here."""

    noted: Errors
    leaves: Leaves
    influence: Influence
    backwards: int
    line_losses: Losses | None
    is_on: bool

    def tally_of(self, node: GraphNode) -> Tally | None: ...


class _BrokenInput(NamedTuple):
    """A broken saved input of a node. All fields are "" if the node has none."""

    source: str = ""  # the op that made it
    name: str = ""
    clause: str = ""  # about its values


@dataclass
class _Reader:
    """An op that reads a value of which nobody knows yet whether it is broken."""

    node: GraphNode
    result: Tensor | None  # its broken result; None if nobody has it
    repeat: Callable[[Tensor], Tensor] | None  # makes the result again from the value; None if nobody can
    unknown: int  # the number of such values that it reads


class _Search:
    """The search of one backward for the op that made the first broken value."""

    def __init__(self, all_nodes: list[GraphNode], is_loss_broken: bool) -> None:
        self.all_nodes = all_nodes  # of the backward
        self.is_loss_broken = is_loss_broken  # if so, the birth was in the forward
        # Keys of earlier births whose leaves were hidden by a detach: this backward reaches these leaves.
        self.hidden_births: list[object] = []
        # The nodes whose result may be broken, each with this result; None if nobody has it.
        self.frontier: dict[GraphNode, Tensor | None] = {}
        self.readers: dict[GraphNode, _Reader] = {}  # of the results of these nodes
        self.is_computed_again = False  # did code of the program call torch in this backward, as a checkpoint does?
        self.had_birth = False  # did an op make a broken gradient of finite ones in this backward?
        self.inner_had_birth = False  # has a backward inside this one just ended, which had a birth?
        # The births that this backward may have, the most certain first:
        # the first call with a broken result inside the backward, in which a checkpoint runs its forward again
        self.recomputed: Birth | None = None
        self.candidate: Birth | None = None  # the last op of the forward with a broken result and an unknown input
        # The first op of the backward with a broken gradient, if the loss is broken too.
        self.fallback: Birth | None = None
        self.last: Birth | None = None  # the op that made the broken loss


class Nonfinite:
    """All that is known of broken gradients and losses."""

    def __init__(self, recorder: Recorder, has_optimiser: Callable[[], bool]) -> None:
        self.has_optimiser = has_optimiser
        self._recorder, self._leaves, self.noted = recorder, recorder.leaves, recorder.noted
        self.births: dict[object, Birth] = {}
        self.reached: dict[Leaf, None] = {}  # the leaves that got a broken gradient, in the order of the first one
        self.hit_backwards: list[int] = []  # the backwards in which a leaf got one
        self.used_backwards: list[int] = []  # the backwards whose broken gradients a step used
        self.first_hit = 0  # the parameters with a broken gradient in the first such step
        self.skipped = 0  # steps that the program skipped because of a broken gradient
        self.mended = 0  # steps before which the program replaced a broken gradient
        self.are_weights_broken = False
        self._are_weights_known = False
        self._is_loss_nan = False  # in the last backward
        self._pending: dict[Leaf, None] = {}  # leaves with a broken gradient that no step has seen yet
        self._search = _Search([], False)  # of the backward that runs

    @property
    def is_on(self) -> bool:
        return self._recorder.is_on

    # --- a backward ---------------------------------------------------------------------------------------------------

    def begin(self, roots: Sequence[Tensor | GradientEdge], all_nodes: list[GraphNode], is_loss_finite: bool) -> None:
        """A backward begins: attach hooks to its nodes, if there is something to search for."""
        self._count_skipped_step()
        if not self._are_weights_known and not self.are_weights_broken:
            self._look_at_weights()
        tensors = [root for root in roots if isinstance(root, Tensor)]
        self._is_loss_nan = not is_loss_finite and any(bool(root.detach().isnan().any()) for root in tensors)
        if self.has_birth_without_line:
            self._find_lines(all_nodes)
        self._search = search = _Search(all_nodes, not is_loss_finite)
        starts = nodes.starts(roots)
        reach = reduce(or_, map(self._leaves.upstream, starts), 0)
        if search.is_loss_broken:
            search.hidden_births = [key for key, birth in self.births.items() if birth.hidden_leaves & reach]
        last_was_broken = self._recorder.backwards - 1 in self.hit_backwards
        may_have_birth = search.is_loss_broken or (last_was_broken and not self.births)
        if not search.hidden_births and (self.are_weights_broken or not may_have_birth):
            return
        for node, root in zip(starts, roots, strict=True):
            if node is not None and search.is_loss_broken:
                search.frontier[node] = result = root.detach() if isinstance(root, Tensor) and is_broken(root) else None
                if result is not None and search.last is None:
                    search.last = self._new_birth(node, "unseen", ~result.isfinite(), result.dtype, "", "")
                    search.last.is_forward = True
        for node in all_nodes:
            if nodes.name_of(node) != nodes.LEAF:
                node.register_hook(self._look_at_node)

    def _look_at_weights(self) -> None:
        """Note whether weights are broken. If no gradient was broken before, they are a birth."""
        self._are_weights_known = True
        leaves = [leaf for _, leaf in self._leaves if leaf.is_parameter or self.reached]
        weights = [leaf for leaf in leaves if is_broken(leaf.tensor())]
        self.are_weights_broken = bool(weights)
        if weights and not self.reached:
            backward, tensor = self._recorder.backwards, weights[0].tensor()
            dtype = torch.float32 if tensor is None else tensor.dtype
            birth = Birth(None, "", "weights", backward, entries=0, elements=0, values="", dtype=dtype, upstream=0)
            birth.is_forward, birth.parameter = True, weights[0].name
            self._add(birth)

    @property
    def has_birth_without_line(self) -> bool:
        """Is there a birth without a line? Its node only hands gradients on, and the recorder usually attaches no hook to such nodes."""
        oldest = self._recorder.backwards - _BACKWARDS_TO_FIND_A_LINE
        births = self.births.values()
        return any(birth.tally is None and birth.op and birth.backward > oldest for birth in births)

    def _find_lines(self, all_nodes: Sequence[GraphNode]) -> None:
        """Find the lines of births in the graph of a later backward of the same loss, where their nodes have the same positions."""
        for birth in self.births.values():
            if birth.tally is None and birth.line_losses is self._recorder.line_losses:
                alike = [node for node in all_nodes if op_of(node) == birth.op]
                if alike and len(alike) == birth.position.total:
                    birth.tally = self._recorder.tally_of(alike[birth.position.ordinal])

    def _position_of(self, node: GraphNode) -> Position:
        alike = [other for other in self._search.all_nodes if op_of(other) == op_of(node)]
        return Position(alike.index(node), len(alike)) if node in alike else NO_POSITION

    @quiet("what is not finite")
    def _look_at_node(self, leaving: Gradients, arriving: Gradients) -> None:
        node = current_node()
        if node is None:
            return
        if node in self._search.frontier:
            self._search_behind(node, self._search.frontier.pop(node))
        if self._search.fallback is None:
            self.look(self._recorder.tally_of(node), node, leaving, arriving)

    def look(self, tally: Tally | None, node: GraphNode, leaving: Gradients, arriving: Gradients) -> None:
        """Note a node from which a broken gradient leaves, although all that arrive are finite."""
        if self.are_weights_broken or not are_readable((*arriving, *leaving)) or any(map(is_broken, arriving)):
            return
        broken = next((grad for grad in leaving if is_broken(grad)), None)
        if broken is None:
            return
        search = self._search
        is_of_inner, search.inner_had_birth = search.inner_had_birth, False
        if is_of_inner and tally is not None and tally.function is not None:
            return
        search.had_birth = True
        if tally in self.births:
            return
        birth = self._judge(node, broken, arriving, leaving)
        if search.is_loss_broken:
            search.fallback = search.fallback or birth
        else:
            self._add(birth)

    def _add(self, birth: Birth | None) -> None:
        if birth is None:
            return
        # An earlier step has used a broken gradient.
        is_consequence = bool(self.used_backwards) and self._recorder.backwards > self.used_backwards[0]
        search = self._search
        if search.hidden_births:  # the graph of this backward goes on behind the detach
            has_broken_leaf = any(is_broken(leaf.tensor()) for leaf in self._leaves.unpack(birth.upstream))
            is_consequence = has_broken_leaf or birth.kind in ("data", "weights")
            if not is_consequence:
                for key in search.hidden_births:
                    known = self.births.pop(key)
                    birth.upstream, birth.earlier_backward = birth.upstream | known.upstream, known.backward
                search.hidden_births = []
        if len(self.births) < _MOST_BIRTHS and not is_consequence and not self._is_known(birth):
            birth.line_losses = self._recorder.line_losses
            self.births.setdefault(birth.tally or birth.parameter or birth.kind, birth)

    def _is_known(self, birth: Birth) -> bool:
        """Is it a birth of an earlier backward again? One of the two may have no line."""
        same = [known for known in self.births.values() if known.tally in (None, birth.tally) or birth.tally is None]
        facts = (birth.op, birth.kind, birth.position, birth.parameter)
        return any((known.op, known.kind, known.position, known.parameter) == facts for known in same)

    def note_gradient(self, leaf: Leaf, grad: Tensor | None) -> None:
        """A gradient arrived at a leaf whose norms nobody measures."""
        if leaf.sizes is None and is_broken(grad):
            self._leaves.broken[leaf] = None

    def end_inner(self) -> None:
        """A backward inside an autograd.Function, as of a checkpoint, has ended. If it had a birth, the Function is not the birth."""
        self._search.inner_had_birth = self._search.had_birth or bool(self._leaves.broken)

    def end(self) -> None:
        """A backward has ended."""
        hit = dict(self._leaves.broken)
        self._leaves.broken.clear()
        search, backward = self._search, self._recorder.backwards
        if not self.births or search.hidden_births:
            last = search.last if hit else None  # an infinite loss alone may be meant
            uncertain = None if search.hidden_births else search.fallback or last
            self._add(search.recomputed or search.candidate or uncertain)
        self._search = _Search([], False)
        if not hit:
            return
        if not self.are_weights_broken or not self.reached:
            self.reached |= hit
        self._pending |= hit
        self._are_weights_known = False
        self.hit_backwards.append(backward)

    # --- steps --------------------------------------------------------------------------------------------------------

    def look_at_step(self, optimizer: Optimizer) -> None:
        """An optimiser steps."""
        tensors = [tensor for group in optimizer.param_groups for tensor in group["params"]]
        pending = {*self._pending, *self._leaves.broken}
        if not any(self._leaves.leaf_of(tensor) in pending for tensor in tensors):
            return
        broken = sum(is_broken(tensor.grad) for tensor in tensors)
        if broken:
            self.used_backwards.append(self._recorder.backwards)
            self.first_hit = self.first_hit or broken
        else:
            self.mended += 1
        for leaf in map(self._leaves.leaf_of, tensors):
            if leaf is not None:
                self._pending.pop(leaf, None)

    def _count_skipped_step(self) -> None:
        """Count a skipped step, if the broken gradients are gone and no step has seen them."""
        if self._pending and not any(is_broken(getattr(leaf.tensor(), "grad", None)) for leaf in self._pending):
            self._pending = {}
            self.skipped += 1

    @property
    def is_finding(self) -> bool:
        """Is it a finding? Broken gradients did harm, or the last loss was nan although a mask kept all gradients finite."""
        return not self.is_calm if self.reached else self._is_loss_nan and bool(self.births)

    @property
    def is_calm(self) -> bool:
        """Did the program skip or replace all broken gradients before a step, as a GradScaler does in its warm-up?"""
        if self.used_backwards:
            return False
        if self.mended and not self.lost_steps:
            return True
        if not self.has_optimiser():
            return False
        backwards, last = self._recorder.backwards, self.hit_backwards[-1]
        if last < backwards and self.lost_steps <= backwards / _BACKWARDS_FOR_A_LOST_STEP:
            return True
        may_be_warm_up = last < backwards or len(self.hit_backwards) < MOST_IN_WARM_UP
        return may_be_warm_up and all(birth.kind in ("half", "half result") for birth in self.births.values())

    def calm(self) -> list[str]:
        """A sentence for the report, if the broken gradients did no harm."""
        if not self.reached or not self.is_calm:
            return []
        parts = []
        if self.lost_steps:
            why = "as a GradScaler, or a check of the program, skips such steps"
            parts.append(f"no step followed {self.lost_steps:,} of them, {why}")
        if self.mended:
            parts.append(f"the program replaced them before {counted(self.mended, 'step')}")
        births = [birth.tally.location for birth in self.births.values() if birth.tally is not None]
        where = f", born at {file_and_line(births[0].call)}" if births else ""
        count = counted(len(self.hit_backwards), "backward")
        return [f"gradients were not finite in {count}{where}: {', and '.join(parts)}"]

    @property
    def lost_steps(self) -> int:
        """The number of steps that were skipped because of a broken gradient, with one that is still pending."""
        return self.skipped + bool(self._pending)

    # --- a birth ------------------------------------------------------------------------------------------------------

    def _judge(self, node: GraphNode, value: Tensor, arriving: Gradients = (), leaving: Gradients = ()) -> Birth:
        """The birth at a node, with its kind. value: the broken result of the node, or a broken gradient that leaves it."""
        op, mask, grad = op_of(node), ~value.isfinite(), arriving[0] if arriving else None
        is_masked = grad is not None and grad.shape == mask.shape and not bool(torch.count_nonzero(grad[mask]))
        values, is_ordinary = describe_input(op, node, mask)
        broken = self._broken_input(node)
        tally, kind = self._recorder.tally_of(node), kind_of(op, node, is_ordinary)
        if is_masked and kind == "factor" and not saved_inputs(node):
            # A checkpoint hides the factors. 0 * inf made the nan in the gradient of one factor, so the other factor is infinite.
            broken = _BrokenInput(name="self" if leaving and leaving[0] is not value else "other")
        may_exceed_half = value.dtype is torch.float16 and not (is_masked or broken.source)
        if tally is not None and tally.function is not None:
            kind = "function"
        elif broken.name and (is_ordinary or kind == "product") and kind not in ("factor", "softmax", "minus infinity"):
            kind = "broken input"
        elif may_exceed_half and kind in ("overflow", "product", "factor", "other"):
            kind = "half"
        elif kind == "factor":
            kind, values = ("factor", broken.clause) if broken.name else ("product", "")
        birth = self._new_birth(node, kind, mask, value.dtype, values, broken.name)
        birth.is_masked = is_masked
        if kind != "softmax":
            birth.origin, birth.is_forward = broken.source, bool(broken.source)
        if kind == "half":
            birth.excess = excess_over_float16(op, node, grad)
        return birth

    def _new_birth(
        self, node: GraphNode, kind: Kind, mask: Tensor, dtype: torch.dtype, values: str, broken: str
    ) -> Birth:
        """mask: where the value is not finite."""
        tally, upstream = self._recorder.tally_of(node), self._leaves.upstream(node)
        counts = int(torch.count_nonzero(mask)), mask.numel()
        birth = Birth(tally, op_of(node), kind, self._recorder.backwards, *counts, values, dtype, upstream)
        birth.broken, birth.parameter, birth.position = broken, self._parameter_beside(node), self._position_of(node)
        birth.divides_by_number = divides_by_number(birth.op, node)
        return birth

    def _broken_input(self, node: GraphNode) -> _BrokenInput:
        for name, value in saved_inputs(node).items():
            if is_broken(value):
                maker = maker_of(node, name)
                source = "a value that needs no gradient" if maker is None else self._source(maker) or "an op before it"
                return _BrokenInput(source, name, f"a factor is {broken_numbers(value)}")
        return _BrokenInput()

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
            inputs = [other for other, _ in node.next_functions]
            node = inputs[0] if len(inputs) == 1 else None
        return ""

    # --- a broken loss -----------------------------------------------------------------------------------------------------

    def after_call(self, args: Iterable[object], result: object) -> None:
        """The program called torch in a backward, as a checkpoint does, which runs its forward again."""
        search = self._search
        if not search.is_loss_broken or search.recomputed or not isinstance(result, Tensor) or not result.requires_grad:
            return
        search.is_computed_again = True
        # Detached, because a checkpoint would count our own calls on the result.
        node, result = nodes.node_of(result), result.detach()
        if node is None or not is_broken(result):
            return
        # a mask puts -inf into a row
        is_softmax = KIND_OF.get(op_of(node)) == "softmax" and bool(result.isnan().any())
        if any(bool(x.isnan().any()) if is_softmax else is_broken(x) for x in map(Tensor.detach, tensors_in(args))):
            return
        # Other ops make infinity only where the program asks for it.
        if op_of(node) in KIND_OF or bool(result.isnan().any()):
            search.recomputed = self._birth_in_forward(node, result)

    def _search_behind(self, node: GraphNode, result: Tensor | None) -> None:
        """Note the node as the birth if its result is broken and its inputs are finite; else search behind its broken inputs.

        result: its broken result; None if the result may be broken, and nobody has it.
        """
        results, inputs = saved_results(node), saved_inputs(node)
        if results and not any(map(is_broken, results)):
            self._note_finite(node, results[-1])
            return
        broken = {name: value for name, value in inputs.items() if is_broken(value)}
        for name, value in broken.items():
            self._search_behind_input(node, name, value)
        if broken:
            return
        # What the node has saved is finite. Inputs that it does not save are unknown: they may be broken.
        known = {position_of(node, name) for name in inputs}
        others = [other for position, (other, _) in enumerate(node.next_functions) if position not in known]
        unknown = [other for other in others if other is not None]
        makers = [other for other in unknown if nodes.name_of(other) != nodes.LEAF]
        op = op_of(node)
        y = recompute(op, node)
        if y is None:
            result = results[0] if results else result
            if result is not None and _has_finite_inputs(node, result, bool(results), inputs, bool(makers)):
                y = result
            elif result is not None:
                self._note_candidate(node, result, bool(results), bool(inputs))
        if y is not None:
            birth = self._birth_in_forward(node, y)
            self._add(birth)
            if birth is None:
                self._note_finite(node, y)
            return
        frontier = self._search.frontier
        for other in unknown:
            frontier[other] = result if op in _KEEPING_NAN else frontier.get(other)
        repeat = replay_of(op, node)
        if repeat is not None or None not in others:  # else it reads a value of no node, which may be broken
            reader = _Reader(node, result, repeat, len(makers))
            self._search.readers |= dict.fromkeys(makers, reader)

    def _note_candidate(self, node: GraphNode, result: Tensor, is_saved: bool, has_inputs: bool) -> None:
        """A node with a broken result may be the birth, if its unknown inputs were finite."""
        search, op = self._search, op_of(node)
        if not is_saved and search.is_computed_again and not has_inputs and op in KIND_OF:
            search.candidate = self._birth_in_forward(node, result)  # all calls up to this op were finite
        # Without a saved result: this op came before the candidate, and its result was nan already.
        elif is_saved or (search.candidate and op not in _KEEPING_NAN and bool(result.isnan().any())):
            search.candidate = self._birth_of_unknown_inputs(node, result)

    def _note_finite(self, node: GraphNode, y: Tensor) -> None:
        """The result y of a node is finite: note the first op on its way to the loss that makes a broken result of finite values."""
        reader = self._search.readers.pop(node, None)
        if reader is None:
            return
        reader.unknown -= 1
        result = reader.result
        if result is None and reader.repeat is not None:
            result = reader.repeat(y)
        if result is None or reader.unknown:
            return
        birth = self._birth_in_forward(reader.node, result)
        self._add(birth)
        if birth is None:
            self._note_finite(reader.node, result)

    def _birth_in_forward(self, node: GraphNode, y: Tensor) -> Birth | None:
        """The birth at a node whose result is y; None if y is finite."""
        if not is_broken(y):
            return None
        birth = self._judge(node, y)
        birth.is_forward = True
        birth.kind = "half result" if birth.kind == "half" else birth.kind
        if birth.kind == "other" and birth.op in TOO_FEW and bool(y.isnan().any()):
            birth.kind, birth.values = "too few", ""
        return birth

    def _birth_of_unknown_inputs(self, node: GraphNode, y: Tensor) -> Birth | None:
        """The birth at a node whose result is y, and whose inputs are not known."""
        birth = self._birth_in_forward(node, y)
        if birth is not None and birth.kind in ("other", "product"):
            birth.kind = "unseen"
        return birth

    def _search_behind_input(self, node: GraphNode, name: str, value: Tensor) -> None:
        """The input `name` of this node is broken: go on at the node that made it. If no node did, the birth is in data or weights."""
        other = maker_of(node, name)
        if other is not None and nodes.name_of(other) != nodes.LEAF:
            self._search.frontier[other] = value
            return
        values = "nan" if bool(value.isnan().any()) else "inf"
        kind: Kind = "data" if other is None else "weights"
        birth = self._new_birth(node, kind, ~value.isfinite(), value.dtype, values, name)
        birth.is_forward = True
        if other is None:
            birth.hidden_leaves = self._recorder.influence.leaves_behind_cuts(saved(node, name))
        self._add(birth)

    def _parameter_beside(self, node: GraphNode) -> str:
        """The parameter that is another input of this node; "" without one."""
        sets = [self._leaves.upstream(other) for other, _ in node.next_functions if other is not None]
        leaves = [leaf for upstream in sets if upstream.bit_count() == 1 for leaf in self._leaves.unpack(upstream)]
        return max(leaves, key=lambda leaf: len(leaf.shape)).name if leaves else ""


def _has_finite_inputs(
    node: GraphNode, result: Tensor, is_saved: bool, inputs: Mapping[str, Tensor], has_makers: bool
) -> bool:
    """Were all inputs of a node with a broken result finite, as far as that is certain?

    is_saved: does the node save the result?
    inputs: the inputs that the node saves.
    has_makers: did other nodes make the inputs that it does not save?
    """
    op = op_of(node)
    if is_saved:
        # Exp and its like make inf of finite numbers, a root does not.
        return bool(inputs) or (op in KIND_OF and op != "Sqrt" and not bool(result.isnan().any()))
    # A finite number divided by 0 is infinite, whatever the unknown dividend is.
    has_divisor = op == "Div" and "other" in inputs
    divides_by_0 = has_divisor and not describe_input(op, node, ~result.isfinite()).is_ordinary
    return divides_by_0 or (bool(inputs) and not has_makers)
