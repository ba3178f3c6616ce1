"""Rules with typical faults. Each must fail a check."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pseudograd import engine, kernels
from pseudograd.kernels.residuals import INPUTS
from pseudograd.ops.bounds import unify_bounds
from pseudograd.rule import OPS, Call, Op, Rule, Wants, call_for

CLAMP = OPS["clamp"]
Bound = float | Tensor | None


def _change(rule: str, change: Callable[..., Sequence[Tensor | None]]) -> Rule:
    """The rule, with its gradients replaced by change(gradients, grad, x, min, max, y)."""
    right = CLAMP.rules[rule].pull

    def pull(grad: Tensor, x: Tensor, min: Bound, max: Bound, *, y: Tensor, wants: Wants, **parameters: object) -> Any:
        gradients = right(grad, x, min, max, y=y, wants=wants, **parameters)
        return tuple(change(gradients, grad, x, min, max, y))

    return CLAMP.rules[rule].replaced(pull=pull)


def change_x(rule: str, change: Callable[..., Tensor]) -> Rule:
    """Its gradient to x becomes change(grad_x, grad, x, y)."""
    return _change(rule, lambda gs, grad, x, lo, hi, y: (None if gs[0] is None else change(gs[0], grad, x, y), *gs[1:]))


def change_bounds(rule: str, change: Callable[..., Sequence[Tensor | None]]) -> Rule:
    """Its gradients to the bounds become change(grad_min, grad_max, x, y)."""
    return _change(rule, lambda gs, grad, x, lo, hi, y: gs if y is None else (gs[0], *change(gs[1], gs[2], x, y)))


def _open(gradients: Sequence[Tensor], grad: Tensor, x: Tensor, low: Bound, high: Bound, y: Tensor) -> Any:
    if low is None or high is None:
        return gradients
    return torch.where((x == low) | (x == high), 0.0, gradients[0]), *gradients[1:]


def _is_both(low: object, high: object) -> bool:
    return low is not None and high is not None


BROKEN: dict[str, Rule] = {
    "slope twice": change_x("leaky", lambda g, *_: 2 * g),
    "everything twice": change_x("identity", lambda g, *_: 2 * g),
    "all zeros": change_x("zero", lambda g, *_: torch.zeros_like(g)),
    "nothing blocked": change_x("zero", lambda g, grad, *_: grad),
    "sign branch dropped": change_x("inward", lambda g, grad, x, y: torch.where(x != y, 0.0, g)),
    "the other sign blocked": change_x("inward", lambda g, grad, x, y: torch.where((x - y) * grad > 0, 0.0, grad)),
    "only one side blocked": change_x("inward", lambda g, grad, x, y: torch.where((x > y) & (grad < 0), 0.0, grad)),
    "product instead of comparison": change_x("inward", lambda g, grad, x, y: grad * (grad * (x - y) >= 0)),
    "product with an underflow": change_x("inward", lambda g, grad, x, y: torch.where(grad * (x - y) < 0, 0.0, grad)),
    "closed where open is meant": change_x("zero", lambda g, grad, x, y: torch.where(x == y, grad, g)),
    "open where closed is meant": _change("zero", _open),
    "NaN blocked": change_x("zero", lambda g, grad, x, y: torch.where(x.isnan(), 0.0, g)),
    "NaN grad blocked": change_x("inward", lambda g, *_: torch.nan_to_num(g, 0.0, torch.inf, -torch.inf)),
    "infinite grad cut down": change_x("identity", lambda g, *_: g.clamp(-1e4, 1e4)),
    "0 gets a direction": change_x("sign", lambda g, grad, x, y: torch.where(grad == 0, 1.0, g)),
    "size of grad stays": change_x("sign", lambda g, grad, x, y: torch.where(x != y, grad.abs() * g, g)),
    "bounds get nothing": change_bounds("zero", lambda lo, hi, x, y: (None, None)),
    "bounds swapped": change_bounds("inward", lambda lo, hi, x, y: (hi, lo) if _is_both(lo, hi) else (lo, hi)),
    "edge of min lost": change_bounds(
        "zero", lambda lo, hi, x, y: (None if lo is None else torch.where(x < y, lo, 0.0), hi)
    ),
    "edge of max counted twice": change_bounds(
        "zero", lambda lo, hi, x, y: (lo, None if hi is None else torch.where(x == y, 2 * hi, hi))
    ),
    "saves nothing": CLAMP.rules["inward"].replaced(keeps=()),
    "saves too much": CLAMP.rules["identity"].replaced(keeps=("x", "min", "max")),
    "claims to be linear": CLAMP.rules["inward"].replaced(is_linear=True),
    "claims not to be linear": CLAMP.rules["leaky"].replaced(is_linear=False),
    "cut from the graph": change_x("elastic", lambda g, *_: g.detach()),
    "not differentiable again": change_x("leaky", lambda g, grad, x, y: torch.where(x != y, g.detach(), g)),
}


def broken_op(name: str, rule: Rule, **changes: object) -> Op:
    """clamp with one rule exchanged, under a name and a family of its own, so that no kernel and no remembered call is shared."""

    def public(x: Tensor, min: Bound, max: Bound, *, rule: str, edge: str = "closed", maximize: bool = False) -> Tensor:
        return engine.run(call_for(op, rule, edge, maximize), x, *unify_bounds(x, min, max))

    name, rules = f"broken: {name}", {**CLAMP.rules, rule.name: rule.replaced(sides=None, is_long=False)}
    op = CLAMP.replaced(name=name, rule_set=name, rules=rules, public=public, **changes)
    return op


def inexact_forward(x: Tensor, min: Bound, max: Bound) -> Tensor:
    """The detach trick, as arithmetic."""
    return x + (torch.clamp(x, min, max) - x)


def product_kernel(grad: Tensor, saved: Sequence[Any], wants: Wants, call: Call) -> object:
    x, low, high = saved
    if isinstance(low, Tensor) or isinstance(high, Tensor):
        return None
    return grad * (grad * (x - torch.clamp(x, low, high)) >= 0), None, None


def wrong_kernel(priority: int) -> kernels.Kernel:
    """For "inward" of clamp, by the product with an underflow."""

    def serves(call: Call) -> bool:
        return call.label == "clamp/inward" and call.edge == "closed" and not call.maximize

    return kernels.Kernel("clamp", INPUTS, serves, product_kernel, priority=priority)
