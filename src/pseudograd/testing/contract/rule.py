"""check_rule: all checks of the contract on the cases of one rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch

from ...errors import must, unknown_name
from ...rule import OPS, Op, RuleObject
from ..measure.inputs import DTYPES
from . import all_inputs, derivatives, sides, transforms, values
from .cases import Case, cases_of


def check_rule(rule: str | RuleObject, *, op: str = "clamp") -> None:
    """Run the contract tests of this library on one rule: a rule that passes behaves as the built-in ones do.

    Forward:  y equals torch's bit for bit, recording or not, in every dtype.
    Backward: grad_x equals the rule's reference, for special and random x with special and random grads of both signs, in float16 to
        float64, by each kernel of the rule, by the formula and by functorch. The row of the rule says the same of the sides of the
        range as the formula. An input that was broadcast gets the sum. Every layout gives the same. No element depends on another.
        func.grad, vjp, jacrev, vmap, batched grads, both checkpoints and saved-tensor hooks give each tensor input the gradient of
        backward, in the shape and dtype of this input. A linear rule adds up in grad and has forward mode; any other rule does not
        add up, and forward mode raises an error. Double backward is the derivative of the branch taken, and finite. A call saves
        nothing but what the rule says.

    Args:
        rule: a name or a rule object; with a name every edge, both directions and a second set of parameters are run.
        op: an op that has the rule, such as "clamp", "round" or "sign".
    Returns: None.
    Raises: AssertionError with the case, the check and the first difference; ValueError if the op or the rule is unknown.
    Example:
        >>> check_rule("identity", op="round")
    Source: tests/contract of this library runs the same checks on every case.
    """
    if not __debug__:
        raise RuntimeError("check_rule: Python must run without -O, which removes the assertions it is made of.")
    if op not in OPS:
        raise unknown_name("check_rule", "op", OPS, op)
    for case in _cases(OPS[op], rule):
        for name, check in checks_of(case):
            try:
                check()
            except AssertionError as error:
                raise AssertionError(f"{case}: {name}: {error}") from error


def _cases(op: Op, rule: str | RuleObject) -> list[Case]:
    name = rule.name if isinstance(rule, RuleObject) else rule
    if name not in op.rules:
        raise unknown_name("check_rule", f"rule of {op.name}", op.rules, name)
    if isinstance(rule, RuleObject) and rule.parameters:
        cases = [Case(op, op.rules[name], rule.parameters, edge) for edge in op.edges or (None,)]
    else:
        cases = [case for case in cases_of(op) if case.rule.name == name]
    if not cases:
        raise ValueError(must("check_rule", "rule", "have samples it can work with", name))
    return cases


def checks_of(case: Case) -> Iterator[tuple[str, Callable[[], None]]]:
    """Every check of a case, by name."""
    for dtype in DTYPES:
        label = str(dtype).removeprefix("torch.")
        yield f"forward, {label}", partial(values.check_forward, case, dtype)
        yield f"gradient, {label}", partial(values.check_gradient, case, dtype)
        yield f"sides, {label}", partial(sides.check_sides, case, dtype)
        yield f"broadcast, {label}", partial(values.check_reduced, case, dtype)
        yield f"layouts, {label}", partial(transforms.check_layouts, case, dtype)
    yield "random values", partial(values.check_random, case, torch.float32)
    yield "saved tensors", partial(values.check_saved, case)
    sample = case.samples()[0]
    yield "reverse mode", partial(transforms.check_reverse, case, sample)
    yield "element-wise", partial(transforms.check_element_wise, case, sample)
    yield "all inputs", partial(all_inputs.check_all_inputs, case)
    if case.is_linear:
        yield "linear in grad", partial(values.check_additive, case, sample)
        yield "forward mode", partial(transforms.check_forward_mode, case, sample)
    else:
        yield "not linear in grad", partial(values.check_not_additive, case)
        yield "no forward mode", partial(transforms.check_forward_mode_raises, case, sample)
    yield "double backward", partial(derivatives.check_double_backward, case)
    yield "finite second derivative", partial(derivatives.check_second_derivative_is_finite_everywhere, case)
