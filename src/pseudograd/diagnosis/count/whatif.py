"""The gradients that another rule or another torch would have given. Further backward passes compute them, before the program's own."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from ...errors import must
from ...listen import frames
from ...listen.harmless import Errors, harmless, quietly, raise_for_the_program
from ...listen.nodes import GraphNode
from ...ops.bound_rules import DEFAULT_RULE
from ...rewrite.mode import Replacement
from ...rewrite.override import override
from ...rewrite.pin_edge import pin_edge
from ...torch_table.private import is_batched, is_opaque, number_of, tells_unpack_hooks
from ...torch_table.records import Arguments, Form, Function, Keywords
from . import further_backward
from .further_backward import Comparison, Graph, RefusalError, are_same, compare_gradients
from .kinks import NOTED_CALLS, note_after, note_before
from .leaf import Leaf, has_numbers
from .leaves import Leaves
from .replaced_nodes import leaving_gradients
from .sensitivity import Answers, SensitivityMeter

AS_IT_IS = "as it is"
_SECOND_ORDER = "the loss reads a gradient that create_graph made under torch's own rules"


@dataclass(frozen=True)
class Change:
    """The gradient of one parameter under one what-if. Each number is a mean over the backward passes."""

    parameter: str
    zero: float  # the share of its entries that are 0
    norm: float
    cosine: float  # with the gradient of the program, over the passes in which neither is 0; NaN without such a pass


class WhatIf:
    """One question of the user, with the sums for its answer."""

    def __init__(self, name: str, replacements: dict[str, Replacement]) -> None:
        self.name, self.replacements = name, replacements
        self.inexact: set[str] = set()  # the reasons why the question has no answer
        self.is_touched = False  # did a gradient arrive at an op that the question changes?
        self._sums: dict[Leaf, list[float]] = {}  # passes; sums of zero, norm and cosine; passes that have a cosine

    def replacement(self, form: Form) -> Replacement | None:
        switches = [switch for switch in reversed(form.switches) if switch in self.replacements]
        return self.replacements[switches[0]] if switches else None

    def add(self, comparisons: Mapping[Leaf, Comparison]) -> None:
        for leaf, comparison in comparisons.items():
            cosine = (0.0, 0.0) if math.isnan(comparison.cosine) else (comparison.cosine, 1.0)
            values = (1.0, comparison.zero, comparison.norm, *cosine)
            sums = self._sums.get(leaf, [0.0] * len(values))
            self._sums[leaf] = [total + value for total, value in zip(sums, values, strict=True)]

    def answers(self, leaves: Iterable[tuple[int, Leaf]]) -> list[Change]:
        """The changes of these leaves; an empty list if the answer would not be exact."""
        changes = []
        for _, leaf in leaves:
            if leaf in self._sums and not self.inexact:
                count, zero, norm, cosine, cosines = self._sums[leaf]
                changes.append(Change(leaf.name, zero / count, norm / count, cosine / cosines if cosines else math.nan))
        return changes


def questions(whatif: Mapping[str, object] | None) -> list[WhatIf]:
    """The questions of {"name": {"clamp": RULE}} or {"name": "torch>=2.14"}: the arguments of override, or that of pin_edge.

    Raises ValueError for a change that both refuse.
    """
    result = []
    for name, change in (whatif or {}).items():
        if not isinstance(name, str) or not name or name == AS_IT_IS:
            raise ValueError(must("diagnose", "whatif", "be a dictionary from a name to a change", name))
        argument = f"whatif {name!r}"
        try:
            context = pin_edge(change) if isinstance(change, str) else override(**change)  # type: ignore[arg-type]
        except (TypeError, ValueError) as error:
            remedy = f"{error} Write {{{DEFAULT_RULE!r}: dict(clamp={DEFAULT_RULE!r})}} or {{'newer': 'torch>=2.14'}}"
            text = must("diagnose", argument, "be what override or pin_edge takes", change, remedy)
            raise ValueError(text) from error
        if context.conventions and not context.replacements:
            remedy = "A what-if cannot pin a framework: run the program under pin_edge and compare"
            raise ValueError(must("diagnose", argument, "be about clamps or an op of override", change, remedy))
        if any(replacement.by_site is not None for replacement in context.replacements.values()):
            remedy = "Name one rule for all calls; a rule chosen by site needs the program to run under override"
            raise ValueError(must("diagnose", argument, "name rules", change, remedy))
        result.append(WhatIf(name, context.replacements))
    return result


class _Pass:
    """One backward of the program while it runs, and the answers of the further passes before it."""

    def __init__(self) -> None:
        # The gradients of a further pass under torch's own rules; removed when the gradient of the program arrives.
        self.gradients: dict[Leaf, Tensor] = {}
        self.comparisons: dict[WhatIf, dict[Leaf, Comparison]] = {}  # the gradients under each question
        self.inexact: dict[WhatIf, set[str]] = {}  # why a question has no answer in this pass
        self.touched: set[WhatIf] = set()  # the questions that change an op at which a gradient arrived
        self.reasons: set[str] = set()  # why none of the questions has an answer
        self.arrived: dict[Leaf, Comparison] = {}  # the gradients of the program
        self.meter: SensitivityMeter | None = None  # if the sensitivity is measured
        self.step = 0  # the number of this backward
        self.answers: Answers = {}
        self.has_nothing_to_ask = False  # there is no question, and no node is at a kink


class WhatIfMeter:
    """Answers the questions at each backward, by further passes that run before it.

    An answer counts only for a leaf that then gets a gradient in the program's own pass, and only if a further pass under torch's own
    rules gave the same gradient. meter: measures the sensitivity in the same passes.
    """

    def __init__(
        self, questions: Sequence[WhatIf], leaves: Leaves, noted: Errors, meter: SensitivityMeter | None = None
    ) -> None:
        self.questions, self.noted, self.sensitivity, self._leaves = list(questions), noted, meter, leaves
        self._as_it_is = WhatIf(AS_IT_IS, {})
        self.made_in_backward: deque[range] = deque(maxlen=16)  # the numbers of nodes made under create_graph
        self._running: dict[int, _Pass] = {}  # by thread; a device runs the hooks of its leaves in another thread

    @harmless("a kink")
    def before_call(self, function: Function, args: Arguments, kwargs: Keywords, backwards: int) -> Tensor | None:
        """The elements at a kink, for a call whose node does not save them."""
        if self.sensitivity is None or function not in NOTED_CALLS or not self.sensitivity.is_due(backwards + 1):
            return None
        with quietly():
            return note_before(function, args, kwargs or {})

    def after_call(self, at_kink: Tensor | None, function: Function, args: Arguments, result: object) -> None:
        if at_kink is not None:
            with quietly():
                note_after(at_kink, result)
        if not tells_unpack_hooks:
            further_backward.note_unpack_hook(result)
        if function is Tensor.register_hook:
            further_backward.note_hook(args[0], args[1], frames.location())

    @harmless("a what-if")
    def begin(
        self, roots: Sequence[object], grads: Sequence[Tensor | None], behind: Sequence[GraphNode], number: int
    ) -> None:
        """Run the further passes. behind: all nodes that a backward from these roots can reach. number: that of this backward, from 1."""
        meter = self.sensitivity if self.sensitivity is not None and self.sensitivity.is_due(number) else None
        if not (self.questions or meter is not None):
            return
        self._running[threading.get_ident()] = current = _Pass()
        if any(isinstance(grad, Tensor) and is_batched(grad) for grad in grads):
            return
        current.meter, current.step = meter, number
        if any(isinstance(value, Tensor) and is_opaque(value) for value in (*roots, *grads)):
            current.reasons.add("a tensor class of the program would see the calls of a further pass")
            return
        try:
            with quietly():
                self._run(current, roots, grads, behind)
        except RefusalError as why:
            current.reasons.add(str(why))
        except Exception as error:  # a reason for no answer, unless the program's own backward raises it, too
            raise_for_the_program(error)
            text = f"a further backward pass failed: {type(error).__name__}: {str(error).strip()[:200]}"
            current.reasons.add(text)

    def _run(
        self, current: _Pass, roots: Sequence[object], grads: Sequence[Tensor | None], behind: Sequence[GraphNode]
    ) -> None:
        kinks = [] if current.meter is None else current.meter.find_kinks(behind)
        if not (self.questions or kinks):
            current.has_nothing_to_ask = True
            return
        why = further_backward.refusal(behind) or further_backward.why_hooks_forbid(behind)
        if why is not None:
            raise RefusalError(why)
        graph = Graph(roots, grads, behind)
        is_second_order = any(number_of(node) in numbers for numbers in self.made_in_backward for node in behind)
        gradients = self._group_by_leaf(graph.run(lambda node, leaving, arriving: leaving))
        for question in self.questions:
            reasons = current.inexact[question] = set()
            touch = partial(current.touched.add, question)
            other = self._group_by_leaf(graph.run(partial(leaving_gradients, question.replacement, touch, reasons.add)))
            if is_second_order and question in current.touched:
                reasons.add(_SECOND_ORDER)
            comparisons = {leaf: compare_gradients(other.get(leaf), own) for leaf, own in gradients.items()}
            current.comparisons[question] = comparisons
        if kinks and current.meter is not None:
            current.answers = current.meter.answers(graph, kinks, gradients, self._group_by_leaf)
            current.reasons |= {_SECOND_ORDER} if is_second_order else set()
        current.gradients = gradients

    def _group_by_leaf(self, gradients: Mapping[GraphNode, Tensor]) -> dict[Leaf, Tensor]:
        leaves = {self._leaves.single(self._leaves.upstream(node)): grad for node, grad in gradients.items()}
        return {leaf: grad for leaf, grad in leaves.items() if leaf is not None}

    def arrived(self, leaf: Leaf, grad: Tensor | None) -> None:
        """The program's own gradient of a leaf arrived."""
        current = self._pass_of_thread()
        if current is None or current.has_nothing_to_ask or grad is None or not has_numbers(grad):
            return
        if leaf in current.arrived:
            current.reasons.add(f"{leaf.name_or_shape} gets its gradient in several parts")
        current.arrived[leaf] = compare_gradients(grad, grad)
        expected = current.gradients.pop(leaf, None)
        if not current.reasons and not (expected is not None and are_same(expected, grad)):
            why = "differs from the gradient of a further pass: a hook changes it, or it differs from pass to pass"
            current.reasons.add(f"the gradient of {leaf.name_or_shape} {why}")

    def _pass_of_thread(self) -> _Pass | None:
        current = self._running.get(threading.get_ident())
        if current is not None:
            return current
        others = list(self._running.values())
        for other in others if len(others) > 1 else ():
            other.reasons.add("several backward passes ran at once")
        return others[0] if len(others) == 1 else None

    @harmless("a what-if")
    def end(self, is_complete: bool) -> None:
        """Add the answers of this backward. is_complete: the backward did not raise."""
        current = self._running.pop(threading.get_ident(), None)
        if current is None or not is_complete:
            return
        if current.meter is not None and (current.has_nothing_to_ask or current.arrived or current.reasons):
            with quietly():
                current.meter.end(current.step, current.reasons, current.answers, current.arrived)
        if current.has_nothing_to_ask:
            return
        self._as_it_is.add(current.arrived)
        for question in self.questions if current.arrived else ():
            question.is_touched |= question in current.touched
            question.inexact |= current.reasons | current.inexact.get(question, set())
            comparisons = current.comparisons.get(question, {})
            question.add({leaf: comparisons[leaf] for leaf in comparisons if leaf in current.arrived})

    @property
    def inexact(self) -> dict[str, list[str]]:
        """By the name of a question: the reasons why it has no answer."""
        return {question.name: sorted(question.inexact) for question in self.questions if question.inexact}

    @property
    def untouched(self) -> list[str]:
        """The questions that changed nothing, because no gradient arrived at an op that they change."""
        return [question.name for question in self.questions if not (question.is_touched or question.inexact)]

    def answers(self) -> dict[str, list[Change]]:
        """The answers by the name of the question; first, as AS_IT_IS, the gradients of the program itself."""
        return {question.name: question.answers(self._leaves) for question in (self._as_it_is, *self.questions)}
