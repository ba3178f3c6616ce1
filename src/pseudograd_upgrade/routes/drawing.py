"""In a process of a program on an accelerator: random numbers are the CPU's, so that both devices train on the same ones.

Each operator that draws on the device draws on the CPU and moves the result. Attention and recurrent layers that drop are computed in
parts, as their fused kernels draw inside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.library import Library
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import multi_head_attention_forward, scaled_dot_product_attention

from pseudograd.listen.quietly import quietly

from ..following import Following, Listening

# The operators that draw by a kernel of their own on CPU and on CUDA; torch makes the others of them.
OPERATORS = (
    *("uniform_", "normal_", "exponential_", "geometric_", "cauchy_", "log_normal_"),
    *("random_", "random_.from", "random_.to", "randperm.generator_out"),
    *("bernoulli_.float", "bernoulli_.Tensor", "bernoulli.out", "native_dropout"),
    *("normal.Tensor_Tensor", "normal.Tensor_float", "normal.float_Tensor"),
    *("normal.Tensor_Tensor_out", "normal.Tensor_float_out", "normal.float_Tensor_out"),
    *("multinomial", "multinomial.out", "poisson", "binomial", "_standard_gamma", "_sample_dirichlet"),
    *("rrelu_with_noise", "rrelu_with_noise_"),
)
_ATTENTION = {scaled_dot_product_attention: 4, multi_head_attention_forward: 10}  # and where dropout_p stands
_RECURRENT = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)


class InParts(Listening):
    def run(self, func: object, args: Any, kwargs: Any) -> object:
        with unfuse(func, args, kwargs or {}):
            return super().run(func, args, kwargs)


class OnTheDevice(Following):
    listens = InParts

    def _arrange(self, settings: Mapping[str, object]) -> None:
        super()._arrange(settings)
        self.library = Library("aten", "IMPL")
        for name in OPERATORS:
            self.library.impl(name, draw_on_the_cpu(find_operator(name)), "CUDA", allow_override=True)

    def content(self) -> object:
        """With whether the program put anything on a device; to ask whether there is a device does not count."""
        return {**super().content(), "uses_device": torch.cuda.is_initialized()}


def unfuse(func: object, args: Sequence[object], kwargs: Mapping[str, object]) -> AbstractContextManager[object]:
    """A context that keeps a call that drops from a fused kernel."""
    if func in _ATTENTION:
        at = _ATTENTION[func]
        drops = kwargs["dropout_p"] if "dropout_p" in kwargs else args[at] if len(args) > at else 0.0
        return sdpa_kernel(SDPBackend.MATH) if drops else nullcontext()
    if func in _RECURRENT and any(isinstance(value, float) and value for value in args):
        return torch.backends.cudnn.flags(enabled=False)  # type: ignore[no-untyped-call, no-any-return]
    return nullcontext()


def find_operator(name: str) -> object:
    name, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, name), overload or "default")


def draw_on_the_cpu(operator: Any) -> Callable[..., object]:
    """The operator for arguments on a device. It writes to what it is given there, and moves new tensors there."""
    arguments = operator._schema.arguments

    def draw(*args: object, **kwargs: Any) -> object:
        with quietly():
            values = {**{argument.name: value for argument, value in zip(arguments, args, strict=False)}, **kwargs}
            device = next(value.device for value in values.values() if isinstance(value, Tensor))
            copies = {name: _move_to_cpu(value) for name, value in values.items()}
            positional = [copies[argument.name] for argument in arguments[: len(args)]]
            result = operator(*positional, **{name: copies[name] for name in kwargs})
            written = {}
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


_twins: dict[int, tuple[object, int, torch.Generator]] = {}  # of the generators on a device, and the seed that each had


def find_twin(generator: Any) -> torch.Generator:
    """The generator that the program would have on the CPU, from the same seed."""
    seed, known = generator.initial_seed(), _twins.get(id(generator))
    if known is None or known[1] != seed:
        known = _twins[id(generator)] = generator, seed, torch.Generator().manual_seed(seed)
    return known[2]


begin = OnTheDevice.begin
