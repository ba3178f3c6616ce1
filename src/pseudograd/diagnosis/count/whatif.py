"""What another rule, or another torch, would have given to each parameter: further backward passes, before the program's own."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...errors import must
from ...listen import frames
from ...listen.quietly import quietly
from ...ops.bound_rules import DEFAULT_RULE
from ...rewrite.mode import Replacement
from ...rewrite.override import override
from ...rewrite.pin_edge import pin_edge
from ...torch_table.private import is_batched, is_fake, is_wrapped, number_of, tells_unpack_hooks
from ...torch_table.records import Form
from . import further_backward
from .comparison import Comparison, compare_gradients
from .course import dense
from .further_backward import Graph, RefusalError
from .hooks import note_hook, why_hooks_forbid
from .leaf import Leaf
from .leaves import Leaves
from .noted_kinks import NOTED_CALLS, note_after, note_before
from .replaced_nodes import leave_node
from .sensitivity import Answers, Sensing

AS_IT_IS = "as it is"
_SECOND = "the loss reads a gradient that create_graph made under torch's own rules"


@dataclass(frozen=True)
class Changed:
    """One parameter under one what-if, averaged over the backward passes: the share of its gradient that is 0, the norm of the gradient,
    and its cosine with what the program computed (over the passes where neither is 0; NaN where there is none).
    """

    parameter: str
    zero: float
    norm: float
    cosine: float


class WhatIf:
    """One question, and the answers so far."""

    def __init__(self, name: str, replacements: dict[str, Replacement]) -> None:
        self.name = name
        self.replacements = replacements
        self.inexact: set[str] = set()
        self.is_touched = False  # did a gradient arrive at an op that it changes?
        self._rows: dict[Leaf, list[float]] = {}  # passes, sums of zero, norm and cosine, passes that have a cosine

    def replacement(self, form: Form) -> Replacement | None:
        switches = [switch for switch in reversed(form.switches) if switch in self.replacements]
        return self.replacements[switches[0]] if switches else None

    def add(self, comparisons: Mapping[Leaf, Comparison]) -> None:
        for leaf, comparison in comparisons.items():
            cosine = comparison.cosine
            values = 1.0, comparison.zero, comparison.norm, cosine, 1.0
            if math.isnan(cosine):
                values = (*values[:3], 0.0, 0.0)
            sums = self._rows.setdefault(leaf, [0.0] * 5)
            sums[:] = [total + value for total, value in zip(sums, values, strict=True)]

    def answers(self, leaves: Iterable[Leaf | None]) -> list[Changed]:
        """A question without an exact answer has none."""
        changed = []
        for leaf in leaves:
            if leaf in self._rows and not self.inexact:
                count, zero, norm, cosine, cosines = self._rows[leaf]
                mean = cosine / cosines if cosines else math.nan
                changed.append(Changed(leaf.name, zero / count, norm / count, mean))
        return changed


def questions(whatif: Mapping[str, Any] | None) -> list[WhatIf]:
    """From {"name": {"clamp": RULE}} or {"name": "torch>=2.14"}: the arguments of override, or that of pin_edge.

    Raises ValueError for what neither would take.
    """
    result = []
    for name, change in (whatif or {}).items():
        if not isinstance(name, str) or not name or name == AS_IT_IS:
            raise ValueError(must("diagnose", "whatif", "be a dictionary from a name to a change", name))
        argument = f"whatif {name!r}"
        try:
            context = pin_edge(change) if isinstance(change, str) else override(**change)
        except (TypeError, ValueError) as error:
            remedy = f"{error} Write {{{DEFAULT_RULE!r}: dict(clamp={DEFAULT_RULE!r})}} or {{'newer': 'torch>=2.14'}}"
            raise ValueError(
                must("diagnose", argument, "be what override or pin_edge takes", change, remedy)
            ) from error
        if context.kinks and not context.replacements:
            remedy = "What a framework does is not asked along a run: run the program under pin_edge and compare"
            raise ValueError(must("diagnose", argument, "be about clamps or an op of override", change, remedy))
        if any(replacement.by_site is not None for replacement in context.replacements.values()):
            remedy = "Name one rule for all calls; a rule chosen by site needs the program to run under override"
            raise ValueError(must("diagnose", argument, "name rules", change, remedy))
        result.append(WhatIf(name, context.replacements))
    return result


class Pass:
    """One backward of the program, while it runs."""

    def __init__(self) -> None:
        self.gradients: dict[
            Leaf, Tensor
        ] = {}  # of a further pass under torch's own rules, until the program's own arrive
        self.rows: dict[WhatIf, dict[Leaf, Comparison]] = {}
        self.inexact: dict[WhatIf, set[str]] = {}
        self.touched: set[WhatIf] = set()
        self.reasons: set[str] = set()  # why no question has an answer
        self.arrived: dict[Leaf, Comparison] = {}
        self.step = 0  # the number of this backward, where the sensitivity is measured
        self.answers: Answers = {}
        self.is_plain = False  # no question, and nothing stands at a kink


class Asking:
    """Answers the questions at each backward: before it by further passes, and while it runs by what really arrives.

    Only a leaf that the program itself gave a gradient counts, and only where a further pass under torch's own rules gives the same.
    """

    def __init__(self, questions: Sequence[WhatIf], leaves: Leaves, sensing: Sensing | None = None) -> None:
        self.questions = list(questions)
        self.sensing = sensing  # measures the sensitivity in the same passes
        self._leaves = leaves
        self._as_it_is = WhatIf(AS_IT_IS, {})
        self.made_in_backward: deque[range] = deque(maxlen=16)  # the numbers of nodes, with create_graph
        self._running: dict[int, Pass] = {}  # by thread; a device runs the hooks of its leaves in another thread

    def before_call(self, function: Any, args: Any, kwargs: Any, backwards: int) -> object:
        """What stands at a kink where the node of the call will not keep it."""
        if self.sensing is None or function not in NOTED_CALLS or not self.sensing.is_asked(backwards + 1):
            return None
        with quietly():
            return note_before(function, args, kwargs or {})

    def after_call(self, at_kink: Any, function: object, args: Any, result: object) -> None:
        if at_kink is not None:
            with quietly():
                note_after(at_kink, args, result)
        if not tells_unpack_hooks:
            further_backward.note_unpack_hook(result)
        if function is Tensor.register_hook:
            note_hook(args[0], args[1], frames.place(3))

    def begins(self, roots: object, grads: Any, behind: Sequence[object], backwards: int = 1) -> None:
        """behind: all nodes that a backward from these roots can reach. backwards: how many there were, with this one."""
        senses = self.sensing is not None and self.sensing.is_asked(backwards)
        if not (self.questions or senses):
            return
        self._running[threading.get_ident()] = current = Pass()
        if any(isinstance(grad, Tensor) and is_batched(grad) for grad in grads):
            return
        current.step = backwards if senses else 0
        try:
            self._run(current, roots, grads, behind)
        except RefusalError as why:
            current.reasons.add(str(why))
        except Exception as error:  # the program's own backward will raise it too; if not, it is a reason
            text = f"a further backward pass failed: {type(error).__name__}: {str(error).strip()[:200]}"
            current.reasons.add(text)

    def _run(self, current: Pass, roots: Any, grads: Any, behind: Sequence[object]) -> None:
        standing = self.sensing.standing(behind) if self.sensing is not None and current.step else []
        if not (self.questions or standing):
            current.is_plain = True
            return
        why = further_backward.refusal(behind) or why_hooks_forbid(behind)
        if why is not None:
            raise RefusalError(why)
        graph = Graph(roots, grads, behind)
        is_second = any(number_of(node) in numbers for numbers in self.made_in_backward for node in behind)
        gradients = self._group_by_leaf(graph.run(lambda node, leaving, arriving: leaving))
        for question in self.questions:
            reasons = current.inexact[question] = set()
            touch = partial(current.touched.add, question)
            other = self._group_by_leaf(graph.run(partial(leave_node, question.replacement, touch, reasons.add)))
            if is_second and question in current.touched:
                reasons.add(_SECOND)
            current.rows[question] = {leaf: compare_gradients(other.get(leaf), own) for leaf, own in gradients.items()}
        if standing and self.sensing is not None:
            current.answers = self.sensing.answers(graph, standing, gradients, self._group_by_leaf)
            current.reasons |= {_SECOND} if is_second else set()
        current.gradients = gradients

    def _group_by_leaf(self, gradients: dict[object, Tensor]) -> dict[Leaf, Tensor]:
        leaves = {self._leaves.single(self._leaves.upstream(node)): grad for node, grad in gradients.items()}
        return {leaf: grad for leaf, grad in leaves.items() if leaf is not None}

    def arrived(self, leaf: Leaf, grad: Tensor | None) -> None:
        """The program's own gradient of a leaf."""
        current = self._pass_of_thread()
        if current is None or current.is_plain or grad is None or grad.is_meta:
            return
        if is_batched(grad) or is_wrapped(grad) or is_fake(grad):
            return
        if leaf in current.arrived:
            current.reasons.add(f"{leaf.name} gets its gradient in several parts")
        current.arrived[leaf] = compare_gradients(grad, grad)
        expected = current.gradients.pop(leaf, None)
        if not current.reasons and not (expected is not None and _is_same(expected, grad)):
            current.reasons.add(
                f"the gradient of {leaf.name} is not the one that a further pass gives: a hook changes it, or it is another each time"
            )

    def _pass_of_thread(self) -> Pass | None:
        current = self._running.get(threading.get_ident())
        if current is not None:
            return current
        others = list(self._running.values())
        for other in others if len(others) > 1 else ():
            other.reasons.add("several backward passes ran at once")
        return others[0] if len(others) == 1 else None

    def ended(self, is_whole: bool) -> None:
        """is_whole: it did not raise."""
        current = self._running.pop(threading.get_ident(), None)
        if current is None or not is_whole:
            return
        if self.sensing is not None and current.step and (current.is_plain or current.arrived or current.reasons):
            self.sensing.end(current.step, current.reasons, current.answers, current.arrived)
        if current.is_plain:
            return
        self._as_it_is.add(current.arrived)
        for question in self.questions if current.arrived else ():
            question.is_touched |= question in current.touched
            question.inexact |= current.reasons | current.inexact.get(question, set())
            rows = current.rows.get(question, {})
            question.add({leaf: row for leaf, row in rows.items() if leaf in current.arrived})

    @property
    def inexact(self) -> dict[str, list[str]]:
        """Why a question has no answer."""
        return {question.name: sorted(question.inexact) for question in self.questions if question.inexact}

    @property
    def untouched(self) -> list[str]:
        """The questions that changed nothing, because no gradient arrived at an op that they are about."""
        return [question.name for question in self.questions if not (question.is_touched or question.inexact)]

    def answers(self) -> dict[str, list[Changed]]:
        """By the name of the question; first what the program itself computed."""
        leaves = self._leaves.all
        return {question.name: question.answers(leaves) for question in (self._as_it_is, *self.questions)}


def _is_same(expected: Tensor, grad: Tensor) -> bool:
    """Bit for bit; or as near as sums in another order are, on a device."""
    if expected.shape != grad.shape or expected.dtype != grad.dtype:
        return False
    if expected.layout is torch.strided and grad.layout is torch.strided and torch.equal(expected, grad):
        return True
    first, second = dense(expected), dense(grad)
    if not torch.equal(first.isnan(), second.isnan()):
        return False
    first, second = first.nan_to_num(), second.nan_to_num()
    return float((first - second).norm()) <= 32 * torch.finfo(expected.dtype).eps * float(second.norm())
