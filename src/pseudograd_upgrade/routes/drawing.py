"""Draws random numbers on the CPU for a program on an accelerator, so that both devices train on the same numbers.

Each operator that draws on the device draws on the CPU and moves the result. Attention and recurrent layers with dropout are computed in
parts, because their fused kernels draw inside.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.library import Library
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import multi_head_attention_forward, scaled_dot_product_attention

from pseudograd.listen.harmless import quietly

from .. import recorder
from ..recorder import CallListener, Session, Settings

# The operators with their own kernel on CPU and on CUDA. torch makes all other drawing operators from these.
OPERATORS = (
    *("uniform_", "normal_", "exponential_", "geometric_", "cauchy_", "log_normal_"),
    *("random_", "random_.from", "random_.to", "randperm.generator_out"),
    *("bernoulli_.float", "bernoulli_.Tensor", "bernoulli.out", "native_dropout"),
    *("normal.Tensor_Tensor", "normal.Tensor_float", "normal.float_Tensor"),
    *("normal.Tensor_Tensor_out", "normal.Tensor_float_out", "normal.float_Tensor_out"),
    *("multinomial", "multinomial.out", "poisson", "binomial", "_standard_gamma", "_sample_dirichlet"),
    *("rrelu_with_noise", "rrelu_with_noise_"),
)
_DROPOUT_POSITIONS: dict[object, int] = {scaled_dot_product_attention: 4, multi_head_attention_forward: 10}
_RECURRENT = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)


class _Listener(CallListener):
    def run(self, func: Callable[..., object], args: Any, kwargs: Any) -> object:
        with unfuse(func, args, kwargs or {}):
            return super().run(func, args, kwargs)


class _Session(Session):
    listener = _Listener

    def prepare(self, settings: Settings) -> None:
        super().prepare(settings)
        self.library = Library("aten", "IMPL")
        for name in OPERATORS:
            self.library.impl(name, draw_on_cpu(find_operator(name)), "CUDA", allow_override=True)

    def content(self) -> dict[str, object]:
        return {**super().content(), "uses_device": torch.cuda.is_initialized()}


begin = functools.partial(recorder.begin, session=_Session)


def unfuse(func: object, args: Sequence[object], kwargs: Mapping[str, object]) -> AbstractContextManager[object]:
    """A context in which a call with dropout uses no fused kernel."""
    if func in _DROPOUT_POSITIONS:
        at = _DROPOUT_POSITIONS[func]
        dropout = kwargs.get("dropout_p", args[at] if len(args) > at else 0.0)
        return sdpa_kernel(SDPBackend.MATH) if dropout else nullcontext()
    if func in _RECURRENT and any(isinstance(value, float) and value for value in args):
        return torch.backends.cudnn.flags(enabled=False)
    return nullcontext()


def find_operator(name: str) -> Any:
    name, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, name), overload or "default")


def draw_on_cpu(operator: Any) -> Callable[..., object]:
    """The operator for arguments on a device, computed on the CPU. Its results and the arguments that it changes go back to the device."""
    arguments = operator._schema.arguments

    def draw(*args: object, **kwargs: object) -> object:
        with quietly():
            values: dict[str, Any] = {arg.name: value for arg, value in zip(arguments, args, strict=False)} | kwargs
            device = next(value.device for value in values.values() if isinstance(value, Tensor))
            copies = {name: _move_to_cpu(value) for name, value in values.items()}
            positional = [copies[argument.name] for argument in arguments[: len(args)]]
            result = operator(*positional, **{name: copies[name] for name in kwargs})
            written: dict[int, Tensor] = {}
            for argument in arguments:
                if argument.is_write:
                    value, copy = values[argument.name], copies[argument.name]
                    written[id(copy)] = value.resize_(copy.shape).copy_(copy)
            if isinstance(result, Tensor):
                return written.get(id(result), result.to(device))
            return tuple(written.get(id(tensor), tensor.to(device)) for tensor in result)

    return draw


def _move_to_cpu(value: object) -> Any:
    if isinstance(value, Tensor):
        return value.cpu()
    return find_twin(value) if isinstance(value, torch.Generator) and value.device.type != "cpu" else value


# By the id of a device's generator: this generator, its seed, its twin.
_twins: dict[int, tuple[object, int, torch.Generator]] = {}


def find_twin(generator: torch.Generator) -> torch.Generator:
    """The generator on the CPU with the same seed."""
    seed = generator.initial_seed()
    _, known_seed, twin = _twins.get(id(generator), (None, None, None))
    if twin is None or known_seed != seed:
        twin = torch.Generator().manual_seed(seed)
        _twins[id(generator)] = generator, seed, twin
    return twin
