"""Rules that are wrong in the ways rules go wrong. Each must fail a check, or the checks are worth nothing."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pseudograd import engine, kernels
from pseudograd.kernels.residuals import INPUTS
from pseudograd.ops.bounds import unify_bounds
from pseudograd.rule import OPS, Call, Op, Rule, call_for

CLAMP = OPS["clamp"]


def replaced(rule: str, **changes: Any) -> Rule:
    return CLAMP.rules[rule].replaced(**changes)


def with_x(rule: str, change: Callable[..., Tensor]) -> Rule:
    """The rule, with its gradient to x passed through change(grad_x, grad, x, min, max, y)."""
    right = CLAMP.rules[rule].pull

    def pull(grad: Tensor, x: Tensor, min: Any, max: Any, *, y: Tensor, wants: tuple[bool, ...], **p: Any) -> Any:
        grad_x, *others = right(grad, x, min, max, y=y, wants=wants, **p)
        return (None if grad_x is None else change(grad_x, grad, x, min, max, y), *others)

    return replaced(rule, pull=pull)


def with_bounds(rule: str, change: Callable[..., Any]) -> Rule:
    """The rule, with its gradients to the bounds passed through change(grad_min, grad_max, x, y)."""
    right = CLAMP.rules[rule].pull

    def pull(grad: Tensor, x: Tensor, min: Any, max: Any, *, y: Tensor, wants: tuple[bool, ...], **p: Any) -> Any:
        grad_x, grad_min, grad_max = right(grad, x, min, max, y=y, wants=wants, **p)
        if y is None:
            return grad_x, grad_min, grad_max
        return (grad_x, *change(grad_min, grad_max, x, y))

    return replaced(rule, pull=pull)


def _zeroed(where: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda grad_x, grad, x, min, max, y: torch.where(where(grad, x, y), 0.0, grad_x)


def _no_nan_bug(grad_x: Tensor, grad: Tensor, x: Tensor, min: Any, max: Any, y: Tensor) -> Tensor:
    return torch.where(x.isnan(), 0.0, grad_x)


BROKEN: dict[str, Rule] = {
    "slope twice": with_x("leaky", lambda g, *_: 2 * g),
    "everything twice": with_x("identity", lambda g, *_: 2 * g),
    "all zeros": with_x("zero", lambda g, *_: torch.zeros_like(g)),
    "nothing blocked": with_x("zero", lambda g, grad, *_: grad),
    "sign branch dropped": with_x("inward", _zeroed(lambda grad, x, y: x != y)),
    "the other sign blocked": with_x(
        "inward", lambda g, grad, x, lo, hi, y: torch.where((x - y) * grad > 0, 0.0, grad)
    ),
    "only one side blocked": with_x(
        "inward", lambda g, grad, x, lo, hi, y: torch.where((x > y) & (grad < 0), 0.0, grad)
    ),
    "product instead of comparison": with_x("inward", lambda g, grad, x, *r: grad * (grad * (x - r[-1]) >= 0)),
    "product with an underflow only": with_x(
        "inward", lambda g, grad, x, *r: torch.where(grad * (x - r[-1]) < 0, 0.0, grad)
    ),
    "closed where open is meant": with_x("zero", lambda g, grad, x, lo, hi, y: torch.where(x == y, grad, g)),
    "open where closed is meant": with_x(
        "zero",
        lambda g, grad, x, lo, hi, y: (
            torch.where((x == lo) | (x == hi), 0.0, g) if lo is not None and hi is not None else g
        ),
    ),
    "NaN blocked": with_x("zero", _no_nan_bug),
    "NaN grad blocked": with_x(
        "inward", lambda g, *_: torch.nan_to_num(g, nan=0.0, posinf=torch.inf, neginf=-torch.inf)
    ),
    "infinite grad cut down": with_x("identity", lambda g, *_: g.clamp(-1e4, 1e4)),
    "0 gets a direction": with_x("sign", lambda g, grad, x, lo, hi, y: torch.where(grad == 0, 1.0, g)),
    "size of grad kept": with_x("sign", lambda g, grad, x, lo, hi, y: torch.where(x != y, grad.abs() * g, g)),
    "bounds get nothing": with_bounds("zero", lambda lo, hi, x, y: (None, None)),
    "bounds swapped": with_bounds(
        "inward", lambda lo, hi, x, y: (hi, lo) if lo is not None and hi is not None else (lo, hi)
    ),
    "edge of min lost": with_bounds(
        "zero", lambda lo, hi, x, y: (None if lo is None else torch.where(x < y, lo, 0.0), hi)
    ),
    "edge of max counted twice": with_bounds(
        "zero", lambda lo, hi, x, y: (lo, None if hi is None else torch.where(x == y, 2 * hi, hi))
    ),
    "saves nothing": replaced("inward", keeps=()),
    "saves too much": replaced("identity", keeps=("x", "min", "max")),
    "claims to be linear": replaced("inward", is_linear=True),
    "claims not to be linear": replaced("leaky", is_linear=False),
    "cut from the graph": with_x("elastic", lambda g, *_: g.detach()),
    "not differentiable again": with_x("leaky", lambda g, grad, x, lo, hi, y: torch.where(x != y, g.detach(), g)),
}


def broken_op(name: str, rule: Rule, **changes: Any) -> Op:
    """clamp with one rule exchanged, under a name and a family of its own, so that no kernel and no remembered call is shared."""

    def public(x: Tensor, min: Any, max: Any, *, rule: str, edge: str = "closed", maximize: bool = False) -> Tensor:
        return engine.run(call_for(op, rule, edge, maximize), x, *unify_bounds(x, min, max))

    op = CLAMP.replaced(
        name=f"broken: {name}",
        rule_set=f"broken: {name}",
        rules={**CLAMP.rules, rule.name: rule.replaced(sides=None, is_long=False)},
        public=public,
        **changes,
    )
    return op


def inexact_forward(x: Tensor, min: Any, max: Any) -> Tensor:
    """The detach trick, as arithmetic."""
    return x + (torch.clamp(x, min, max) - x)


def kernel_of(backward: Callable[..., Any], name: str) -> kernels.Kernel:
    """A fused kernel for "inward" of the op of this name, or of that broken op."""

    def serves(call: Call) -> bool:
        is_meant = call.primitive.name in (name, f"broken: {name}") and call.rule.name == "inward"
        return is_meant and call.edge == "closed" and not call.maximize

    return kernels.Kernel(name, INPUTS, serves, backward)


def product_kernel(grad: Tensor, kept: Any, wants: Any, call: Any) -> Any:
    x, low, high = kept
    if isinstance(low, Tensor) or isinstance(high, Tensor):
        return None
    return grad * (grad * (x - torch.clamp(x, low, high)) >= 0), None, None


def shifted_kernel(grad: Tensor, kept: Any, wants: Any, call: Any) -> Any:
    """One position late."""
    x, low, high = kept
    if isinstance(low, Tensor) or isinstance(high, Tensor):
        return None
    outward = (x - torch.clamp(x, low, high)).sign() * grad < 0
    return torch.where(outward.roll(1), 0.0, grad), None, None
