"""convert: the activation modules of a model, exchanged for ones with another backward rule; and back."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from .. import engine
from ..errors import must, shown
from ..rule import OPS, STAND_INS, RuleChoice, RuleLike, call_of, choose
from . import mode

Key = type[nn.Module] | str
Value = RuleLike | nn.Module | Callable[[nn.Module], nn.Module]


class WithRule:
    """Mixed into the class of a module: its forward, through the engine. All else is shared with the module that it replaces."""

    rewritten: tuple[Any, ...]  # the spec of the call

    def _through(self: Any, own: Callable[..., Tensor], x: Tensor, *bounds: Any) -> Tensor:
        call = call_of(self.rewritten)
        if not engine.is_recording(x) or mode.why_not(call, (x, *bounds), self.inplace):
            return own(x)
        return mode.run_in_place(call, (x, *bounds)) if self.inplace else engine.run(call, x, *bounds)


class ReLUWithRule(WithRule, nn.ReLU):
    def forward(self, input: Tensor) -> Tensor:
        return self._through(super().forward, input, 0.0, None)


class ReLU6WithRule(WithRule, nn.ReLU6):
    def forward(self, input: Tensor) -> Tensor:
        return self._through(super().forward, input, 0.0, 6.0)


class HardtanhWithRule(WithRule, nn.Hardtanh):
    def forward(self, input: Tensor) -> Tensor:
        return self._through(super().forward, input, self.min_val, self.max_val)


class HardsigmoidWithRule(WithRule, nn.Hardsigmoid):
    def forward(self, input: Tensor) -> Tensor:
        return self._through(super().forward, input, -3.0, 3.0)


# ReLU6 is a Hardtanh: the exact class decides.
_WITH_RULE: dict[type[nn.Module], tuple[type[nn.Module], str]] = {
    nn.ReLU: (ReLUWithRule, "torch.relu"),
    nn.ReLU6: (ReLU6WithRule, "torch.relu6"),
    nn.Hardtanh: (HardtanhWithRule, "torch.hardtanh"),
    nn.Hardsigmoid: (HardsigmoidWithRule, "torch.hardsigmoid"),
}


class Conversion:
    """What `convert` did: `paths` names the modules. `undo()` puts the old ones back; as a context, leaving it does."""

    def __init__(self, exchanged: list[tuple[nn.Module, str, nn.Module, str]]) -> None:
        self._exchanged = exchanged
        self.paths = tuple(path for _, _, _, path in exchanged)

    def undo(self) -> None:
        """Put the modules back that were there. Once: later calls do nothing."""
        while self._exchanged:
            parent, name, old, _ = self._exchanged.pop()
            setattr(parent, name, old)

    def __enter__(self) -> Conversion:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.undo()

    def __repr__(self) -> str:
        return f"Conversion({', '.join(self.paths)})"


def convert(model: nn.Module, mapping: Mapping[Key, Value]) -> Conversion:
    """Exchange modules of `model` for ones with another backward rule.

    Forward:  each exchanged nn.ReLU, nn.ReLU6, nn.Hardtanh or nn.Hardsigmoid computes what it did, bit for bit.
    Backward: that of the public op with the rule and its default edge. Saves its input.

    Args:
        model: changed in place. Names, state_dict, hooks and training mode stay; a module that is used twice is exchanged once.
        mapping: from a class, or the path of a module (patterns such as "encoder.*" too), to a rule's name, a rule object, another
            module, or a function from the old module to the new one. Where several match, the last one counts.
    Returns: a Conversion: `paths` of what was exchanged, `undo()`; usable as a context.
    Raises: ValueError if a key matches nothing or a rule is unknown; TypeError if a module takes no rule or a value is none of these.
    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
        >>> convert(model, {torch.nn.ReLU: "inward"}).paths
        ('1',)
    Source: new in pseudograd; module surgery is how captum and lucent override ReLU.
    """
    chosen: dict[str, tuple[Any, Any]] = {}
    for key, value in mapping.items():
        found = [path for path, _, _, module in _places(model) if _matches(key, path, module)]
        if not found:
            raise ValueError(must("convert", "each key", "match a module of the model", _shown(key)))
        chosen.update(dict.fromkeys(found, (key, value)))
    places = [(path, parent, name, old) for path, parent, name, old in _places(model) if path in chosen]
    made: dict[int, nn.Module] = {}
    for path, _, _, old in places:  # all of them before the first exchange: an error changes nothing
        if id(old) not in made:
            made[id(old)] = _made(old, path, chosen[path][1])
    for _, parent, name, old in places:
        setattr(parent, name, made[id(old)])
    return Conversion([(parent, name, old, path) for path, parent, name, old in places])


def _places(model: nn.Module) -> Iterator[tuple[str, nn.Module, str, nn.Module]]:
    """(path, parent, name there, module), for every place; a shared module has several."""
    for path, parent in model.named_modules():
        for name, child in parent.named_children():
            yield (f"{path}.{name}" if path else name), parent, name, child


def _matches(key: Key, path: str, module: nn.Module) -> bool:
    if isinstance(key, str):
        return fnmatch.fnmatchcase(path, key)
    return isinstance(key, type) and type(module) is key


def _made(old: nn.Module, path: str, value: Value) -> nn.Module:
    if isinstance(value, nn.Module):
        return value
    if isinstance(value, (str, RuleChoice)):
        return _with_rule(old, path, value)
    if callable(value):
        new = value(old)
        if not isinstance(new, nn.Module):
            raise TypeError(must("convert", f"the function for {path!r}", "return a module", new))
        return new
    raise TypeError(must("convert", f"the value for {path!r}", "be a rule, a module or a function", value))


def _with_rule(old: nn.Module, path: str, rule: RuleLike) -> nn.Module:
    kind = type(old).__mro__[2] if isinstance(old, WithRule) else type(old)
    if kind not in _WITH_RULE:
        names = ", ".join(f"nn.{cls.__name__}" for cls in _WITH_RULE)
        remedy = "Give a module or a function instead, or use override around the calls"
        raise TypeError(must("convert", f"{path!r}", f"be one of {names} to take a rule", type(old).__name__, remedy))
    cls, stand_in = _WITH_RULE[kind]
    choose(OPS["relu"], rule, OPS["relu"].default_edge)  # the error of an unknown rule, under a public name
    op = STAND_INS[stand_in]
    new = cls.__new__(cls)
    new.__dict__.update(old.__dict__)  # the same hooks, and the same training flag
    new.rewritten = choose(op, rule, op.default_edge).spec  # type: ignore[assignment]
    return new


def _shown(key: object) -> str:
    return key if isinstance(key, str) else getattr(key, "__name__", shown(key))
