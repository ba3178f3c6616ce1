"""The gradients that leave a node of autograd if another rule replaces torch's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from ... import formula
from ...listen.nodes import GraphNode
from ...rewrite.edges import pinned_edge
from ...rewrite.mode import Replacement
from ...rewrite.stand_ins import why_not
from ...rule import PRIMITIVES, Call
from ...torch_table import forms
from ...torch_table.private import wrapped_node
from ...torch_table.records import Form
from .grads import Gradients
from .tally import SLICE_NODE, form_of_slice


def leaving_gradients(
    replacement_of: Callable[[Form], Replacement | None],
    touch: Callable[[], None],
    refuse: Callable[[str], None],
    node: GraphNode,
    leaving: Gradients,
    arriving: Gradients,
) -> Gradients:
    """The gradients that leave a node under a replacement: a `further_backward.Leave`.

    touch() is called if the node has a replacement, refuse(reason) if the result would not be exact.
    """
    is_slice = node.name() == SLICE_NODE  # an op in place on a part of a tensor: this node wraps the node of the op
    if is_slice:
        wrapped = wrapped_node(node)
        form = form_of_slice(node) if wrapped is None else _form_of(wrapped.name())
    else:
        form = _form_of(node.name())
    replacement = None if form is None else replacement_of(form)
    if form is None or replacement is None:
        return leaving
    if is_slice:
        refuse(f"{form.names[0]} in place on a part of a tensor hides its node; write it out of place to ask")
        return leaving
    touch()
    grad = arriving[0]
    if form.saved:
        return leaving if grad is None else _replace(form, replacement, node, leaving, grad)
    default = form.default_read
    call = None if default is None else replacement.call(form, default.primitive)
    # The node keeps no input, so only a rule that reads grad alone can be computed here. A pin reads x.
    if default is None or replacement.is_pin or (call and call.rule.inputs_read((True,) * len(default.inputs))):
        refuse(f"{form.names[0]} does not keep its input; run the program under override instead")
        return leaving
    if call is None or grad is None:
        return leaving
    inputs: list[object] = [grad if name == "x" else None for name in call.primitive.inputs]
    return tuple(formula.pull(grad, inputs, (True,), call)[:1])


def _form_of(name: str) -> Form | None:
    """The form of a node with this name.

    The table has no nodes for minimum and maximum, because they are no sites: usually both inputs learn. So they are added here.
    """
    for operator in ("minimum", "maximum"):
        if name.startswith(f"{operator.capitalize()}Backward"):
            return next(form for form in forms.FORMS if form.names[:1] == (operator,))
    return forms.form_of_node(name)


def _replace(form: Form, replacement: Replacement, node: GraphNode, leaving: Gradients, grad: Tensor) -> Gradients:
    """The gradients that leave under the replacement; torch's own if `override` would keep torch's rule, too."""
    saved = forms.saved_values(form, node)
    if saved is None:
        return leaving
    name = pinned_edge(saved.primitive, saved.inputs) if replacement.is_pin else saved.primitive
    call = None if name is None else replacement.call(form, name)
    if call is None or name is None:
        return leaving
    inputs = saved.inputs if call.primitive.name == name else call.primitive.inputs_of(PRIMITIVES[name], saved.inputs)
    if why_not(call, inputs, in_place=False) is not None:
        return leaving
    return pull_under(call, saved, inputs, leaving, grad)


def pull_under(
    call: Call, saved: forms.SavedValues, inputs: Sequence[object], leaving: Gradients, grad: Tensor
) -> Gradients:
    """The gradients that leave a node if `call` with these inputs replaces its rule. `saved` is what the node keeps."""
    slots = [_slot(value, saved.values[: len(leaving)]) for value in inputs]
    wants = tuple(at is not None and leaving[at] is not None for at in slots)
    values = [value.detach() if isinstance(value, Tensor) else value for value in inputs]
    result = list(leaving)
    for at, new, is_wanted in zip(slots, formula.pull(grad, values, wants, call), wants, strict=True):
        if is_wanted and new is not None and at is not None and isinstance(old := result[at], Tensor):
            result[at] = new.sum_to_size(old.shape).to(old.dtype)
    return tuple(result)


def _slot(value: object, values: Sequence[object]) -> int | None:
    """The index of a tensor among the saved values, which its gradient has in `leaving`, too; None for anything else."""
    return next((at for at, other in enumerate(values) if other is value and isinstance(value, Tensor)), None)
