"""The ops that stand in for torch's own functions: forward torch's, bit for bit; backward a rule of the clamp family, or an edge alone.

They are rows like those of `ops/`, found by name and listed nowhere. They save what torch's own op saves, in its order, because a
checkpoint compares what was saved in the forward pass with what its recomputation saves, which may run outside the context.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..ops.bound_rules import EDGES, RULES
from ..rule import STAND_INS, Gradients, Op, Rule, register
from . import edges

_ONE_SIXTH = 1.0 / 6.0  # torch multiplies by it


def _keeps_all(wants: tuple[bool, ...], **parameters: Any) -> tuple[str, ...]:
    return ("x", "min", "max")


def _keeps_both(wants: tuple[bool, ...], **parameters: Any) -> tuple[str, ...]:
    return ("bound", "x")


def _hardsigmoid_pull(pull: Callable[..., Gradients]) -> Callable[..., Gradients]:
    """hardsigmoid(x) is clamp(x, -3, 3) / 6 + 1/2."""

    def pulled(grad: Tensor, x: Tensor, min: Any, max: Any, *, y: Tensor, **how: Any) -> Gradients:
        return pull(grad * _ONE_SIXTH, x, min, max, y=torch.where(x < min, min, torch.where(x > max, max, x)), **how)

    return pulled


def _constant_first(pull: Callable[..., Gradients], is_min: bool) -> Callable[..., Gradients]:
    """minimum(bound, x): torch saves the second argument first, so the inputs keep their places."""

    def pulled(grad: Tensor, bound: Tensor, x: Tensor, *, y: Tensor, wants: tuple[bool, ...], **how: Any) -> Gradients:
        bounds = (bound, None) if is_min else (None, bound)
        grad_x, *_ = pull(grad, x, *bounds, y=y, wants=(wants[1], False, False), **how)
        return None, grad_x

    return pulled


def _never_called(*arguments: Any, **options: Any) -> Any:
    raise AssertionError("a stand-in has no public function and no reference of its own")


def _op(name: str, forward: Callable[..., Tensor], rules: Mapping[str, Rule], family: str, **rest: Any) -> Op:
    op = Op(name=name, forward=forward, rules=rules, family=family, public=_never_called, samples=tuple, **rest)
    return register(op, STAND_INS)


_RULES = {name: replace(rule, keeps=_keeps_all) for name, rule in RULES.items()}
_HARDSIGMOID_RULES = {name: replace(rule, pull=_hardsigmoid_pull(rule.pull)) for name, rule in _RULES.items()}
_CLAMPS: dict[str, Callable[..., Tensor]] = {
    "torch.clamp": torch.clamp,
    "torch.clamp_min": lambda x, min, max: torch.clamp_min(x, min),
    "torch.clamp_max": lambda x, min, max: torch.clamp_max(x, max),
}
_RELUS: dict[str, Callable[..., Tensor]] = {
    "torch.relu": lambda x, min, max: torch.relu(x),
    "torch.relu6": lambda x, min, max: functional.relu6(x),
    "torch.hardtanh": torch._C._nn.hardtanh,
}


def _register_all() -> None:
    bounded: dict[str, Any] = {"inputs": ("x", "min", "max"), "default_rule": "zero"}
    extremes: dict[str, Callable[..., Tensor]] = {
        "torch.minimum": lambda x, min, max: torch.minimum(x, max),
        "torch.maximum": lambda x, min, max: torch.maximum(x, min),
    }
    for name, forward in (_CLAMPS | extremes).items():
        _op(name, forward, _RULES, "clamp", edges=EDGES, default_edge="closed", **bounded)
    for name in ("minimum", "maximum"):
        rules = {
            row.name: replace(row, pull=_constant_first(row.pull, name == "maximum"), keeps=_keeps_both)
            for row in _RULES.values()
        }
        swapped = {"edges": EDGES, "default_edge": "closed", "inputs": ("bound", "x"), "default_rule": "zero"}
        _op(f"torch.{name}, constant first", getattr(torch, name), rules, "constant first", **swapped)
    for name, forward in _RELUS.items():
        _op(name, forward, _RULES, "clamp", edges=EDGES, default_edge="open", **bounded)
    hardsigmoid = {"edges": EDGES, "default_edge": "open", **bounded}
    _op(
        "torch.hardsigmoid", lambda x, min, max: functional.hardsigmoid(x), _HARDSIGMOID_RULES, "scaled", **hardsigmoid
    )

    pinned = {"edges": tuple(edges.WAYS), "default_rule": "zero", "default_edge": "closed"}
    for name, forward in _CLAMPS.items():
        for kind, pull in (("numbers", edges.pull_of_numbers), ("tensors", edges.pull_of_tensors)):
            rules = {"zero": edges.rule(pull, _keeps_all)}
            _op(f"{name}, {kind}", forward, rules, f"edge of {kind}", inputs=("x", "min", "max"), **pinned)
    for name in ("fmin", "fmax"):
        rules = {"zero": edges.rule(edges.PULLS[name], lambda wants, **parameters: ("x", "other"))}
        _op(f"torch.{name}, tensors", getattr(torch, name), rules, f"edge of {name}", inputs=("x", "other"), **pinned)


_register_all()
