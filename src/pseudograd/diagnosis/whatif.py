"""What another rule, or another torch, would have given to each parameter: further backward passes, before the user's own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .. import formula, torch_forms
from ..errors import must
from ..rewrite import override, pin_edge
from ..rewrite.mode import Replacement, pinned, why_not
from ..rule import Call
from ..torch_private import current_node, is_batched
from .leaves import Leaf, Leaves

_REENTRANT = "CheckpointFunctionBackward"


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
        self.sums: dict[
            Leaf, list[float]
        ] = {}  # by leaf: how often, the sums of zero, norm and cosine, how often that is a number

    def replacement(self, form: torch_forms.Form) -> Replacement | None:
        for switch in reversed(form.switches):
            if switch in self.replacements:
                return self.replacements[switch]
        return None


AS_IT_IS = "as it is"


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
        if any(one.by_site is not None for one in context.replacements.values()):
            remedy = "Name one rule for all calls; a rule chosen by site needs the program to run under override"
            raise ValueError(must("diagnose", f"whatif {name!r}", "name rules", change, remedy))
        found.append(WhatIf(name, context.replacements))
    return found


class Asking:
    """Answers the questions at each backward."""

    def __init__(self, asked: Sequence[WhatIf], leaves: Leaves) -> None:
        self.asked = list(asked)
        self._leaves = leaves
        self._as_it_is = WhatIf(AS_IT_IS, {})

    def __call__(self, roots: Any, grads: Any, behind: Sequence[Any]) -> None:
        """behind: all nodes that a backward from these roots can reach."""
        some = 0
        for root in roots:
            if isinstance(root, Tensor):
                if is_batched(root) or any(grad is not None and is_batched(grad) for grad in grads):
                    return
                some |= self._leaves.upstream(root.grad_fn)
        found = [(leaf, leaf.tensor()) for leaf in self._leaves.named(some)]
        learning = [(leaf, tensor) for leaf, tensor in found if tensor is not None and tensor.requires_grad]
        if not learning:
            return
        if any(node.name() == _REENTRANT for node in behind):
            for question in self.asked:
                question.inexact.add("a checkpoint with reentry makes its nodes in the backward; use_reentrant=False")
            return
        tensors = [tensor for _, tensor in learning]
        before = _gradients(roots, tensors, grads)
        self._note(self._as_it_is, learning, before, before)
        for question in self.asked:
            handles = self._replace(question, behind)
            try:
                after = _gradients(roots, tensors, grads)
            finally:
                for handle in handles:
                    handle.remove()
            self._note(question, learning, after, before)

    def _replace(self, question: WhatIf, behind: Sequence[Any]) -> list[Any]:
        handles = []
        for node in behind:
            form = torch_forms.form_of_node(node.name())
            replacement = None if form is None else question.replacement(form)
            if form is None or replacement is None:
                continue
            if not form.saved and _without_inputs(form, replacement) is None:
                question.inexact.add(f"{form.names[0]} does not keep its input; run the program under override instead")
                continue
            handles.append(node.register_hook(partial(_instead, question, form, replacement)))
        return handles

    def _note(self, question: WhatIf, learning: Any, found: Any, before: Any) -> None:
        for (leaf, _), gradient, other in zip(learning, found, before, strict=True):
            if gradient is None:
                continue
            sums = question.sums.setdefault(leaf, [0.0] * 5)
            one, two = gradient.detach().double().flatten(), other.detach().double().flatten()
            norms = float(one.norm()), float(two.norm())
            has_cosine = all(norms)
            cosine = float(one @ two) / (norms[0] * norms[1]) if has_cosine else 0.0
            zero = float((one == 0).double().mean()) if one.numel() else 0.0
            for at, value in enumerate((1.0, zero, norms[0], cosine, float(has_cosine))):
                sums[at] += value

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


def _gradients(roots: Any, tensors: Sequence[Tensor], grads: Any) -> tuple[Any, ...]:
    return torch.autograd.grad(roots, tensors, grads, retain_graph=True, allow_unused=True)


@torch.no_grad()
def _instead(question: WhatIf, form: torch_forms.Form, replacement: Replacement, leaving: Any, arriving: Any) -> Any:
    """What leaves the node under the other rule."""
    grad = arriving[0]
    if grad is None:
        return None
    if not form.saved:
        call = _without_inputs(form, replacement)
        assert call is not None, "asked before"
        return formula.pull(grad, [grad] + [None] * (len(call.primitive.inputs) - 1), (True,), call)[:1]
    kept = torch_forms.kept_by(form, current_node())
    if kept is None:
        question.inexact.add(f"{form.names[0]} in a checkpoint hands out what it keeps only once")
        return None
    name = pinned(kept.primitive, kept.inputs) if replacement.is_pin else kept.primitive
    call = replacement.call(name, None)
    given = kept.inputs[: len(call.primitive.inputs)]
    if why_not(call, given, False) is not None:
        return None
    slots = [_slot(one, kept.values) for one in given]  # of each input among the gradients that leave
    wants = tuple(at is not None and at < len(leaving) and leaving[at] is not None for at in slots)
    inputs = [one.detach() if isinstance(one, Tensor) else one for one in given]
    instead = list(leaving)
    for at, new, is_wanted in zip(slots, formula.pull(grad, inputs, wants, call), wants, strict=True):
        if is_wanted and new is not None:
            instead[at] = new.sum_to_size(instead[at].shape).to(instead[at].dtype)  # type: ignore[index]
    return tuple(instead)


def _without_inputs(form: torch_forms.Form, replacement: Replacement) -> Call | None:
    """The call, where its rule reads nothing but the gradient."""
    read = form.arrange(torch.empty(0), *form.defaults[1:])
    if read is None or replacement.is_pin:
        return None
    call = replacement.call(read[0], None)
    return None if call.rule.kept((True,) * len(read[1])) else call


def _slot(one: Any, values: list[Any]) -> int | None:
    return next((at for at, value in enumerate(values) if value is one and isinstance(one, Tensor)), None)
