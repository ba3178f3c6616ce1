"""What another rule, or another torch, would have given to each parameter: further backward passes, before the user's own."""

from __future__ import annotations

import dis
import inspect
import math
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node

from ... import formula
from ...errors import must
from ...listen.frames import Place, named
from ...rewrite.mode import Replacement, pinned, why_not
from ...rewrite.override import override
from ...rewrite.pin_edge import pin_edge
from ...rule import PRIMITIVES, Call
from ...torch_table import forms as torch_forms
from ...torch_table.private import hooks_of, is_batched, is_fake, is_wrapped, number_of, wrapped_node
from ..count import further_backward, slices
from ..count.leaves import Leaf, Leaves
from ..count.numbers import numbers

_HOOKED = "pseudograd: hooked"  # in the metadata of a node: a hook of the tensor that it made, by its place
Row = tuple[float, float, float]


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
        # By leaf: how often, the sums of zero, norm and cosine, how often that is a number.
        self.sums: dict[Leaf, list[float]] = {}

    def replacement(self, form: torch_forms.Form) -> Replacement | None:
        for switch in reversed(form.switches):
            if switch in self.replacements:
                return self.replacements[switch]
        return None


AS_IT_IS = "as it is"
_SECOND = "the loss reads a gradient that create_graph made under torch's own rules"


def questions(asked: Mapping[str, Any] | None) -> list[WhatIf]:
    """From {"name": {"clamp": "inward"}} or {"name": "torch>=2.14"}: the arguments of override, or that of pin_edge.

    Raises ValueError for what neither would take.
    """
    found = []
    for name, change in (asked or {}).items():
        if not isinstance(name, str) or not name or name == AS_IT_IS:
            raise ValueError(must("diagnose", "whatif", "be a dictionary from a name to a change", name))
        try:
            context = pin_edge(change) if isinstance(change, str) else override(**change)
        except (TypeError, ValueError) as error:
            remedy = f"{error} Write {{'inward': dict(clamp='inward')}} or {{'newer': 'torch>=2.14'}}"
            raise ValueError(
                must("diagnose", f"whatif {name!r}", "be what override or pin_edge takes", change, remedy)
            ) from error
        if context.kinks and not context.replacements:
            remedy = "What a framework does is not asked along a run: run the program under pin_edge and compare"
            raise ValueError(
                must("diagnose", f"whatif {name!r}", "be about clamps or an op of override", change, remedy)
            )
        if any(one.by_site is not None for one in context.replacements.values()):
            remedy = "Name one rule for all calls; a rule chosen by site needs the program to run under override"
            raise ValueError(must("diagnose", f"whatif {name!r}", "name rules", change, remedy))
        found.append(WhatIf(name, context.replacements))
    return found


class Asking:
    """Answers the questions at each backward: before it by further passes, and while it runs by what really arrives.

    Only a leaf that the program itself gave a gradient counts, and only where a further pass under torch's own rules gives the same.
    """

    def __init__(self, asked: Sequence[WhatIf], leaves: Leaves, sensing: Any = None) -> None:
        self.asked = list(asked)
        self.sensing = sensing  # a `sensitivity.Sensing`, which asks along
        self._leaves = leaves
        self._as_it_is = WhatIf(AS_IT_IS, {})
        self.made_in_backward: deque[range] = deque(maxlen=16)  # the numbers of nodes, with create_graph
        self._running: dict[
            int, _Pass
        ] = {}  # by the thread that began it; a device runs the hooks of its leaves in another

    def begins(self, roots: object, grads: Any, behind: Sequence[object], backwards: int = 1) -> None:
        """behind: all nodes that a backward from these roots can reach. backwards: how many there were, with this one."""
        senses = self.sensing is not None and self.sensing.is_asked(backwards)
        if not (self.asked or senses):
            return
        self._running[threading.get_ident()] = one = _Pass()
        if any(isinstance(grad, Tensor) and is_batched(grad) for grad in grads):
            return
        one.step = backwards if senses else 0
        try:
            self._run(one, roots, grads, behind)
        except further_backward.RefusalError as why:
            one.reasons.add(str(why))
        except Exception as error:  # the program's own backward will raise it too; if not, it is a reason
            one.reasons.add(f"a further backward pass failed: {type(error).__name__}: {str(error).strip()[:200]}")

    def _run(self, one: _Pass, roots: Any, grads: Any, behind: Sequence[object]) -> None:
        standing = self.sensing.standing(behind) if one.step else []
        if not (self.asked or standing):
            one.is_plain = True
            return
        why = further_backward.refusal(behind) or _hooks_of(behind)
        if why is not None:
            raise further_backward.RefusalError(why)
        graph, is_second = further_backward.Graph(roots, grads, behind), self._is_second(behind)
        gradients = self._by_leaf(graph.run(lambda node, leaving, arriving: leaving))
        for question in self.asked:
            reasons: set[str] = set()
            found = graph.run(partial(_left, question, reasons, one))
            if is_second and question in one.touched:
                reasons.add(_SECOND)
            one.inexact[question] = reasons
            numbers = self._by_leaf(found)
            one.rows[question] = {leaf: _compared(numbers.get(leaf), old) for leaf, old in gradients.items()}
        if standing:
            one.answers = self.sensing.answers(graph, standing, gradients, self._by_leaf)
            if is_second:
                one.reasons.add(_SECOND)
        one.gradients = gradients

    def _is_second(self, behind: Sequence[object]) -> bool:
        return any(number_of(node) in made for made in self.made_in_backward for node in behind)

    def _by_leaf(self, found: dict[object, Tensor]) -> dict[Leaf, Tensor]:
        leaves = {self._leaves.one(self._leaves.upstream(node)): grad for node, grad in found.items()}
        return {leaf: grad for leaf, grad in leaves.items() if leaf is not None}

    def arrived(self, leaf: Leaf, grad: Tensor | None) -> None:
        """The program's own gradient of a leaf."""
        one = self._of_this_thread()
        if (
            one is None
            or one.is_plain
            or grad is None
            or is_batched(grad)
            or is_wrapped(grad)
            or is_fake(grad)
            or grad.is_meta
        ):
            return
        if leaf in one.came:
            one.reasons.add(f"{leaf.name} gets its gradient in several parts")
        one.came[leaf] = _compared(grad, grad)
        mine = one.gradients.pop(leaf, None)
        if not one.reasons and not (mine is not None and _is_same(mine, grad)):
            one.reasons.add(
                f"the gradient of {leaf.name} is not the one that a further pass gives: a hook changes it, or it is another each time"
            )

    def _of_this_thread(self) -> _Pass | None:
        mine = self._running.get(threading.get_ident())
        if mine is not None:
            return mine
        others = list(self._running.values())
        if len(others) > 1:
            for one in others:
                one.reasons.add("several backward passes ran at once")
        return others[0] if len(others) == 1 else None

    def ended(self, is_whole: bool) -> None:
        """is_whole: it did not raise."""
        one = self._running.pop(threading.get_ident(), None)
        if one is None or not is_whole:
            return
        if one.is_plain:
            self.sensing.add(one.step, [], ())
            return
        if one.step and (one.came or one.reasons):
            if one.reasons:
                self.sensing.refuse(one.reasons)
            else:
                self.sensing.add(one.step, one.answers, one.came)
        _add(self._as_it_is, one.came)
        if not one.came:
            return
        for question in self.asked:
            question.is_touched |= question in one.touched
            question.inexact |= one.reasons | one.inexact.get(question, set())
            _add(question, {leaf: row for leaf, row in one.rows.get(question, {}).items() if leaf in one.came})

    @property
    def untouched(self) -> list[str]:
        """The questions that changed nothing, because no gradient arrived at an op that they are about."""
        return [question.name for question in self.asked if not (question.is_touched or question.inexact)]

    def answers(self) -> dict[str, list[Changed]]:
        """By the name of the question; first of all what the program itself computed. A question without an exact answer has none."""
        found = {}
        for question in (self._as_it_is, *self.asked):
            sums = {} if question.inexact else question.sums
            found[question.name] = [_changed(leaf.name, sums[leaf]) for leaf in self._leaves.all if leaf in sums]
        return found


def _changed(name: str, sums: Sequence[float]) -> Changed:
    count, zero, norm, cosine, cosines = sums
    return Changed(name, zero / count, norm / count, cosine / cosines if cosines else math.nan)


class _Pass:
    """One backward of the program, while it runs."""

    def __init__(self) -> None:
        self.gradients: dict[
            Leaf, Tensor
        ] = {}  # of a further pass under torch's own rules, until the program's own arrive
        self.rows: dict[WhatIf, dict[Leaf, Row]] = {}
        self.inexact: dict[WhatIf, set[str]] = {}
        self.touched: set[WhatIf] = set()
        self.reasons: set[str] = set()  # why no question has an answer
        self.came: dict[Leaf, Row] = {}
        self.step = 0  # the number of this backward, where the sensitivity is asked for
        self.answers: list[Any] = []
        self.is_plain = False  # nothing was asked, and nothing stands at a kink


def _add(question: WhatIf, rows: dict[Leaf, Row]) -> None:
    for leaf, (zero, norm, cosine) in rows.items():
        sums = question.sums.setdefault(leaf, [0.0] * 5)
        has_cosine = not math.isnan(cosine)
        for at, value in enumerate((1.0, zero, norm, cosine if has_cosine else 0.0, float(has_cosine))):
            sums[at] += value


def note_hook(tensor: Tensor, hook: object, place: Place) -> None:
    """A node does not tell that its tensor has a hook."""
    if tensor.grad_fn is not None and may_change(hook):
        module = getattr(hook, "__module__", None) or ""
        owner = f"of {module}" if module.startswith("torch.") else f"at {named(place.call)}"
        tensor.grad_fn.metadata[_HOOKED] = owner  # type: ignore[index]


def _hooks_of(behind: Sequence[Any]) -> str | None:
    """Hooks of tensors that change a gradient would change that of another rule too; nobody can tell from outside how."""
    for node in behind:
        where = node.metadata.get(_HOOKED)
        if (
            where is None
            and node.name() == further_backward.LEAF
            and any(map(may_change, hooks_of(node.variable).values()))
        ):
            where = "of a parameter"
        if where is not None:
            return f"the hook {where} may change gradients; ask without it, or let it return nothing at its end"
    return None


def may_change(hook: object) -> bool:
    """Not a function that always returns None."""
    code = getattr(getattr(hook, "__func__", hook), "__code__", None)
    if code is None or code.co_flags & inspect.CO_GENERATOR:
        return True
    before = None
    for step in dis.get_instructions(code):
        is_none = step.opname == "RETURN_CONST" and step.argval is None
        is_none |= step.opname == "RETURN_VALUE" and before is not None and before == ("LOAD_CONST", None)
        if step.opname.startswith("RETURN") and step.opname != "RETURN_GENERATOR" and not is_none:
            return True
        before = step.opname, step.argval
    return False


def _compared(grad: Tensor | None, other: Tensor) -> Row:
    """The share of zeros, the norm, and the cosine with another gradient."""
    if grad is None:
        grad = torch.zeros_like(other)
    one, two = numbers(grad), numbers(other)
    norms = float(one.norm()), float(two.norm())
    cosine = float(one @ two) / (norms[0] * norms[1]) if all(norms) else math.nan
    return float((one == 0).double().mean()) if one.numel() else 0.0, norms[0], cosine


def _is_same(mine: Tensor, grad: Tensor) -> bool:
    """Bit for bit; or as near as sums in another order are, on a device."""
    if mine.shape != grad.shape or mine.dtype != grad.dtype:
        return False
    if mine.layout is torch.strided and grad.layout is torch.strided and torch.equal(mine, grad):
        return True
    one, two = numbers(mine), numbers(grad)
    if not torch.equal(one.isnan(), two.isnan()):
        return False
    one, two = one.nan_to_num(), two.nan_to_num()
    return float((one - two).norm()) <= 32 * torch.finfo(mine.dtype).eps * float(two.norm())


def _left(
    question: WhatIf,
    reasons: set[str],
    one: _Pass,
    node: Node,
    leaving: tuple[object, ...],
    arriving: tuple[object, ...],
) -> tuple[object, ...]:
    """What leaves a node under the question's rule, as `further_backward.Graph` asks."""
    name = node.name()
    if name == slices.NODE:
        hidden = wrapped_node(node)
        form = slices.form_of(node) if hidden is None else _form_of(hidden.name())
        if form is not None and question.replacement(form) is not None:
            reasons.add(f"{form.names[0]} in place on a part of a tensor hides its node; write it out of place to ask")
        return leaving
    form = _form_of(name)
    replacement = None if form is None else question.replacement(form)
    if form is None or replacement is None:
        return leaving
    one.touched.add(question)
    if not form.saved and not _reads_grad_alone(form, replacement):
        reasons.add(f"{form.names[0]} does not keep its input; run the program under override instead")
        return leaving
    instead = _instead(reasons, form, replacement, node, leaving, arriving)
    return leaving if instead is None else instead


def _form_of(name: str) -> torch_forms.Form | None:
    """Of these two the table names no node: no site is counted for them, for mostly both inputs learn."""
    for start, other in (("MinimumBackward", "minimum"), ("MaximumBackward", "maximum")):
        if name.startswith(start):
            return torch_forms.SPELLINGS[getattr(torch, other)].form
    return torch_forms.form_of_node(name)


def _instead(
    reasons: set[str], form: torch_forms.Form, replacement: Replacement, node: object, leaving: Any, arriving: Any
) -> Any:
    """What leaves the node under the other rule; None where override, too, would leave torch's own."""
    grad = arriving[0]
    if grad is None:
        return None
    if not form.saved:
        call = None if form.usual is None else replacement.call(form, form.usual.primitive)
        if call is None:
            return None
        inputs = [grad if name == "x" else None for name in call.primitive.inputs]
        return formula.pull(grad, inputs, (True,), call)[:1]
    kept = torch_forms.kept_by(form, node)
    if kept is None:
        return None
    name = pinned(kept.primitive, kept.inputs) if replacement.is_pin else kept.primitive
    call = None if name is None else replacement.call(form, name)
    if call is None or name is None:
        return None
    given = kept.inputs if call.primitive.name == name else call.primitive.inputs_of(PRIMITIVES[name], kept.inputs)
    if why_not(call, given, False) is not None:
        return None
    return under(call, kept, given, leaving, grad)


def under(
    call: Call, kept: torch_forms.SavedValues, given: Sequence[object], leaving: Sequence[Any], grad: Tensor
) -> Any:
    """What leaves a node that keeps its inputs, where `call` with these stands in for it."""
    slots = [_slot(one, kept.values) for one in given]  # of each input among the gradients that leave
    wants = tuple(at is not None and at < len(leaving) and leaving[at] is not None for at in slots)
    inputs = [one.detach() if isinstance(one, Tensor) else one for one in given]
    instead = list(leaving)
    for at, new, is_wanted in zip(slots, formula.pull(grad, inputs, wants, call), wants, strict=True):
        if is_wanted and new is not None:
            instead[at] = new.sum_to_size(instead[at].shape).to(instead[at].dtype)  # type: ignore[index]
    return tuple(instead)


def _reads_grad_alone(form: torch_forms.Form, replacement: Replacement) -> bool:
    """Does what stands in, or torch's own in its place?"""
    usual = form.usual
    if usual is None or replacement.is_pin:
        return False
    call = replacement.call(form, usual.primitive)
    return call is None or not call.rule.kept((True,) * len(usual.inputs))


def _slot(one: object, values: list[object]) -> int | None:
    return next((at for at, value in enumerate(values) if value is one and isinstance(one, Tensor)), None)
