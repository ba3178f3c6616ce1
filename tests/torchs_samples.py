"""The samples of torch's own operator tests: what its functions and modules are called with there, on the CPU, learning.

Torch ships them with its wheels. They import `expecttest`, of which nothing is needed here but a base class.
"""

import contextlib
import sys
import types
import unittest
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

DTYPES = (torch.float64, torch.bfloat16, torch.complex128)
_OTHERS = (torch.float32, torch.float16, torch.complex64)  # for what takes none of those


class Sample(NamedTuple):
    """A call of torch as its tests make it. of: what it is a sample of; function: called with x, args and kwargs."""

    of: str
    function: Callable[..., Any]
    x: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def run(self) -> Any:
        return self.function(_not_a_leaf(self.x), *self.args, **self.kwargs)


def _not_a_leaf(x: Any) -> Any:
    """Torch refuses to change a leaf that learns."""
    learns = isinstance(x, Tensor) and x.requires_grad and x.layout is torch.strided and not x.is_nested
    return x.clone() if learns else x


def import_without_expecttest() -> None:
    with contextlib.suppress(ImportError):
        import expecttest  # noqa: F401
    if "expecttest" not in sys.modules:
        stands_in = types.ModuleType("expecttest")
        stands_in.TestCase = unittest.TestCase  # type: ignore[attr-defined]
        sys.modules["expecttest"] = stands_in


def of_functions(dtypes: tuple[torch.dtype, ...] = DTYPES, only: Callable[[str], bool] = bool) -> Iterator[Sample]:
    """Every function under each name that it has: as function, as method, in place. only: of these names."""
    import_without_expecttest()
    from torch.testing._internal.common_methods_invocations import op_db

    for info in op_db:
        if info.supports_autograd and only(info.name):
            known = info.supported_backward_dtypes("cpu")
            for dtype in [dtype for dtype in dtypes if dtype in known] or [d for d in _OTHERS if d in known][:1]:
                yield from _of_function(info, dtype)


def _of_function(info: Any, dtype: torch.dtype) -> Iterator[Sample]:
    kinds = ("op", "method_variant", "inplace_variant")
    functions = [getattr(name, kind, None) for name in (info, *info.aliases) for kind in kinds]
    for sample in info.sample_inputs("cpu", dtype, requires_grad=True):
        for function in functions:
            if function is not None:
                yield Sample(info.full_name, function, sample.input, sample.args, sample.kwargs)


def of_modules(only: Callable[[str], bool] = bool) -> Iterator[Sample]:
    """Every module of torch.nn in float64, in training and not."""
    import_without_expecttest()
    from torch.testing._internal.common_modules import module_db

    how: dict[str, Any] = {"device": "cpu", "dtype": torch.float64, "requires_grad": True}
    for info in module_db:
        for training in (True, False) if only(info.name) else ():
            for sample in info.module_inputs_func(info, training=training, **how):
                if sample.forward_input is not None and sample.forward_input.args:
                    arguments = sample.constructor_input
                    module: nn.Module = info.module_cls(*arguments.args, **arguments.kwargs).double().train(training)
                    first, *others = sample.forward_input.args
                    yield Sample(info.name, module, first, tuple(others), sample.forward_input.kwargs)
