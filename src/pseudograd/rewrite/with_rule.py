"""Modules with a backward rule that replace torch's own modules. Each class is made when it is first needed."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, fx, nn

from .. import engine
from ..rule import OPS, PRIMITIVES, Primitive, RuleLike, RuleObject, call_named, make_call
from ..torch_table.forms import MODULES
from ..torch_table.private import is_tracing
from ..torch_table.records import Form, Inputs
from .stand_ins import run_stand_in, why_not


class WithRule(nn.Module):
    """Mixed into the class of a module: the engine runs its forward. All else is shared with the module that it replaces."""

    kind: type[nn.Module]  # the class that it replaces
    form: Form
    rewritten: Inputs  # `Call.spec` of the call that the engine runs

    def forward(self, input: Tensor) -> Tensor:
        return self._run(super().forward, input)

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Make one node of torch.fx that calls this module, as for torch's own modules. A trace of the forward would lose the rule."""
        x = args[0] if args else kwargs.get("input")
        if isinstance(x, fx.Proxy) and isinstance(x.tracer, fx.Tracer):
            return x.tracer.call_module(self, partial(_make_node, x.tracer, self), args, kwargs)
        return super().__call__(*args, **kwargs)

    def _run(self, own: Callable[..., Tensor], x: Tensor) -> Tensor:
        if isinstance(x, fx.Proxy):
            _warn(f"{self._get_name()} is traced outside a model that holds it, so the graph has torch's own rule")
            return own(x)
        if not torch.compiler.is_compiling() and is_tracing():
            if torch.is_grad_enabled():  # the traced program may be trained
                _warn("torch.jit.trace keeps the values and drops the rule. Trace under torch.no_grad() for inference")
            return own(x)
        if not engine.is_recording(x):
            return own(x)
        _, *names = self.form.defaults
        arranged = self.form.arrange(x, *[getattr(self, name) for name in names])
        if arranged is None:
            return own(x)
        call, (name, inputs) = call_named(self.rewritten), arranged
        if call.primitive.name != name:
            inputs = call.primitive.inputs_of(PRIMITIVES[name], inputs)
        in_place = getattr(self, "inplace", False)
        why = why_not(call, inputs, in_place)
        if why is not None:
            if not torch.compiler.is_compiling():
                _warn(f"{self._get_name()} has torch's own gradient here: {why}")
            return own(x)
        return run_stand_in(call, inputs, in_place)

    def _get_name(self) -> str:
        return kind_of(self).__name__

    def extra_repr(self) -> str:
        own, call = super().extra_repr(), call_named(self.rewritten)
        parameters = tuple(call.arguments.items())
        rule = repr(RuleObject(call.rule.name, parameters)) if parameters else call.rule.name
        return ", ".join([*([own] if own else []), f"rule={rule if call.edge is None else f'{rule}/{call.edge}'}"])

    def __prepare_scriptable__(self) -> None:
        raise engine.no_script(f"{self._get_name()} with a rule")


_classes: dict[type[nn.Module], type[nn.Module]] = {}  # by the class that they replace


def class_with_rule(kind: type[nn.Module]) -> type[nn.Module]:
    """The class with a rule for this class of torch; always the same one, because pickle finds it by its name in this module."""
    if kind not in _classes:
        members = {"__module__": __name__, "kind": kind, "form": MODULES[kind]}
        _classes[kind] = type(f"{kind.__name__}WithRule", (WithRule, kind), members)
    return _classes[kind]


def __getattr__(name: str) -> object:
    for kind in MODULES:
        if name == f"{kind.__name__}WithRule":
            return class_with_rule(kind)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def primitive_for(kind: type[nn.Module], rule: RuleLike) -> Primitive | None:
    """The primitive that runs for modules of this class under the rule; None if they take no such rule."""
    return MODULES[kind].primitive_with(_default_primitive(kind).name, rule)


def _default_primitive(kind: type[nn.Module]) -> Primitive:
    read = MODULES[kind].default_read
    assert read is not None, "a module needs no more than its defaults"
    return PRIMITIVES[read.primitive]


def module_with_rule(old: nn.Module, rule: RuleLike) -> nn.Module:
    """A module that replaces `old` and has the rule, the same hooks and the same training flag. Raises the errors of its op."""
    kind = kind_of(old)
    default, form = _default_primitive(kind), MODULES[kind]
    primitive = primitive_for(kind, rule)
    if primitive is None or primitive.name not in OPS:
        op = OPS.get(form.op or form.names[0], default)
        make_call(op, rule, op.default_edge)  # raises what is wrong with the rule, in the name of the op
    assert primitive is not None, "no op has a rule that its function lacks"
    new_kind = class_with_rule(kind)
    new = new_kind.__new__(new_kind)
    new.__dict__.update({**old.__dict__, "rewritten": make_call(primitive, rule, primitive.default_edge).spec})
    return new


def names_of() -> str:
    return ", ".join(f"nn.{kind.__name__}" for kind in MODULES)


def kind_of(module: nn.Module) -> type[nn.Module]:
    """The class by which a user knows the module: torch's own for one with a rule."""
    return module.kind if isinstance(module, WithRule) else type(module)


def _make_node(tracer: fx.Tracer, module: nn.Module, *args: object, **kwargs: object) -> object:
    return tracer.create_proxy("call_module", tracer.path_of_module(module), args, kwargs)


def _warn(text: str) -> None:
    warnings.warn(f"convert: {text}.", stacklevel=2)
