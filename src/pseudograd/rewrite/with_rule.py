"""The modules that stand in for torch's own: the activations of `TABLE` with a chosen backward rule."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn

from .. import engine, ops
from ..arguments import APPROXIMATE
from ..ops.activations import GELU, LEAKY_RELU, SILU
from ..rule import PRIMITIVES, Primitive, RuleObject, call_named
from ..torch_forms import OTHER_PRIMITIVE
from . import mode


class WithRule:
    """Mixed into the class of a module: its forward, through the engine. All else is shared with the module that it replaces."""

    rewritten: tuple[Any, ...]  # the spec of the call

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        """torch.fx gets one node that calls this module, as for torch's own: into the forward of others it looks, and sees no rule."""
        x = args[0] if args else kwargs.get("input")
        if isinstance(x, fx.Proxy) and isinstance(x.tracer, fx.Tracer):
            return x.tracer.call_module(self, partial(_node, x.tracer, self), args, kwargs)
        return super().__call__(*args, **kwargs)  # type: ignore[misc]

    def _through(self: Any, own: Callable[..., Tensor], x: Tensor, *bounds: Any) -> Tensor:
        if isinstance(x, fx.Proxy):
            if _is_held(self, x.tracer):
                return _node(x.tracer, self, x)
            _warn(f"{self._get_name()} is traced outside a model that holds it, so the graph has torch's own rule")
            return own(x)
        if torch.jit.is_tracing():  # type: ignore[attr-defined]
            if torch.is_grad_enabled():
                _warn("torch.jit.trace keeps the values and drops the rule. Trace under torch.no_grad() for inference")
            return own(x)
        if not engine.is_recording(x):
            return own(x)
        call = call_named(self.rewritten)
        inputs, in_place = (x, *bounds)[: len(call.primitive.inputs)], getattr(self, "inplace", False)
        why = mode.why_not(call, inputs, in_place)
        if why is not None:
            if not torch.compiler.is_compiling():
                _warn(f"{self._get_name()} has torch's own gradient here: {why}")
            return own(x)
        return mode.run(call, inputs, in_place)

    def _get_name(self) -> str:
        return kind_of(self).__name__

    def extra_repr(self: Any) -> str:
        call = call_named(self.rewritten)
        parameters = tuple(zip(call.rule.parameters, call.spec[4:], strict=True))
        rule = repr(RuleObject(call.rule.name, parameters)) if parameters else call.rule.name
        own = super().extra_repr()  # type: ignore[misc]
        return ", ".join([*([own] if own else []), f"rule={rule}" + ("" if call.edge is None else f"/{call.edge}")])

    def __prepare_scriptable__(self) -> None:
        raise engine.no_script(f"{self._get_name()} with a rule")


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


class GELUWithRule(WithRule, nn.GELU):
    def forward(self, input: Tensor) -> Tensor:
        return self._through(super().forward, input, APPROXIMATE.index(self.approximate))


class SiLUWithRule(WithRule, nn.SiLU):
    def forward(self, input: Tensor) -> Tensor:
        return self._through(super().forward, input)


class LeakyReLUWithRule(WithRule, nn.LeakyReLU):
    def forward(self, input: Tensor) -> Tensor:
        return self._through(super().forward, input, self.negative_slope)


class Twin(NamedTuple):
    with_rule: type[nn.Module]
    primitive: str
    public: Callable[..., Tensor]  # which has the error texts

    def primitive_of(self, rule: str) -> Primitive:
        """The one that has the rule."""
        other = OTHER_PRIMITIVE.get(self.primitive)
        found = PRIMITIVES[self.primitive]
        return (
            PRIMITIVES[other]
            if other is not None and rule not in found.rules and rule in PRIMITIVES[other].rules
            else found
        )


# ReLU6 is a Hardtanh: the exact class decides.
TABLE: dict[type[nn.Module], Twin] = {
    nn.ReLU: Twin(ReLUWithRule, "torch.relu", ops.relu),
    nn.ReLU6: Twin(ReLU6WithRule, "torch.relu6", ops.relu6),
    nn.Hardtanh: Twin(HardtanhWithRule, "torch.hardtanh", ops.hardtanh),
    nn.Hardsigmoid: Twin(HardsigmoidWithRule, "torch.hardsigmoid", partial(ops.clamp, min=-3, max=3)),
    nn.GELU: Twin(GELUWithRule, GELU.name, ops.gelu),
    nn.SiLU: Twin(SiLUWithRule, SILU.name, ops.silu),
    nn.LeakyReLU: Twin(LeakyReLUWithRule, LEAKY_RELU.name, ops.leaky_relu),
}
_KIND: dict[type[Any], type[nn.Module]] = {twin.with_rule: kind for kind, twin in TABLE.items()}
NAMES = ", ".join(f"nn.{kind.__name__}" for kind in TABLE)


def kind_of(module: Any) -> type[nn.Module]:
    """The class that a user knows the module by."""
    return _KIND.get(type(module), type(module))


def _is_held(module: nn.Module, tracer: Any) -> bool:
    """Has the traced model a path to the module?"""
    held = tracer.root.modules() if isinstance(tracer, fx.Tracer) else ()
    return any(other is module for other in held) and tracer.root is not module


def _node(tracer: fx.Tracer, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    return tracer.create_proxy("call_module", tracer.path_of_module(module), args, kwargs)


def _warn(text: str) -> None:
    warnings.warn(f"convert: {text}.", stacklevel=2)
