"""The ways in which one call of the clamp family can be computed, as contexts, and the problems on which they are compared."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from pseudograd import kernels
from pseudograd.kernels import bits, native
from pseudograd.rule import OPS, call_for

NO_NATIVE = f"native kernels: {native.status()['why']}"
needs_native = pytest.mark.skipif(native.operators is None, reason=NO_NATIVE)
LEVELS = {"SSE2 or NEON": 0, "AVX2": 1, "AVX-512": 2}  # of a processor
FOR_EVERYTHING, FOR_NOTHING = 0, 1 << 62
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
SIZES = [1, 63, 64, 65, 1000]  # a plane has 64 bits in a word
RULES_WITH_A_CODE = [name for name in OPS["clamp"].rules if bits.suits(call_for(OPS["clamp"], name, "closed"))]
Function = Callable[..., Tensor]


@contextmanager
def codes_from(elements: int) -> Iterator[None]:
    """With codes for tensors of at least so many elements, on CPU even where no kernel makes them pay."""
    before = set(bits.devices)
    bits.devices.add("cpu")
    try:
        with bits.save_bits_from(elements):
            yield
    finally:
        bits.devices.clear()
        bits.devices.update(before)


@contextmanager
def way(name: str) -> Iterator[None]:
    """Skips the test of a way that is missing here."""
    if "native" in name and native.operators is None:
        pytest.skip(NO_NATIVE)
    with ExitStack() as stack:
        stack.enter_context(codes_from(FOR_EVERYTHING if "code" in name else FOR_NOTHING))
        if "native" not in name:
            stack.enter_context(kernels.switch_off("native"))
        if name == "formula":
            stack.enter_context(kernels.switch_off("portable"))
        yield


WAYS = ("native code", "native", "code", "portable", "formula")


def numbers(dtype: torch.dtype, count: int) -> tuple[Tensor, Tensor]:
    """x and grad: every pair of special values, then random ones."""
    tiny = torch.finfo(dtype).tiny
    sizes = [0.0, tiny / 4, tiny, 0.5, 1.0, 3.0, torch.inf]
    special = torch.tensor([*sizes, *(-size for size in sizes), 0.1, torch.nan], dtype=torch.float64)
    pairs = torch.cartesian_prod(special, special)
    random = torch.randn(count, 2, generator=torch.Generator().manual_seed(count), dtype=torch.float64) * 1.5
    both = torch.cat([pairs[torch.randperm(len(pairs), generator=torch.Generator().manual_seed(0))], random])[:count]
    return both[:, 0].to(dtype).contiguous(), both[:, 1].to(dtype).contiguous()


def every_combination(dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Every x with every min, max and grad, of each 8: bounds that cross, that are equal, that are NaN."""
    values = torch.tensor([-torch.inf, -1.0, -0.0, 0.0, 0.3, 1.0, torch.inf, torch.nan], dtype=torch.float64)
    grads = torch.tensor([1.0, -2.0, 0.0, torch.inf, -torch.inf, torch.nan, 1e-7, -1e-7], dtype=torch.float64)
    return tuple(
        column.to(dtype).contiguous() for column in torch.cartesian_prod(values, values, values, grads).unbind(1)
    )


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x,
    "channels_last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "transposed": lambda x: x.transpose(1, 3).contiguous().transpose(1, 3),
    "every second column": lambda x: torch.stack([x, x], -1)[..., 0],
    "flipped sizes of one": lambda x: x.reshape(1, 2, 1, -1).permute(2, 1, 0, 3),
    "a slice": lambda x: torch.cat([x, x])[1:3],
}


def same(ours: Tensor, theirs: Tensor) -> bool:
    """Equal, NaN where NaN, of one shape. The sign of a blocked zero is free."""
    return ours.shape == theirs.shape and bool(((ours == theirs) | (ours.isnan() & theirs.isnan())).all())


def same_bits(ours: Tensor, theirs: Tensor) -> bool:
    known = ~theirs.isnan()
    return same(ours, theirs) and torch.equal(ours.signbit()[known], theirs.signbit()[known])


def strides(x: Tensor) -> list[int]:
    """Of the dimensions in which something lies."""
    return [stride for size, stride in zip(x.shape, x.stride(), strict=True) if size > 1]


def gradient(f: Function, x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """y and grad_x."""
    leaf = x.detach().requires_grad_()
    y = f(leaf)
    return y.detach(), torch.autograd.grad(y, leaf, grad)[0]


class Problem(NamedTuple):
    """A function, the values that it gets, and which of its tensors ask for a gradient."""

    label: object
    f: Function
    inputs: Sequence[object]
    grad: Tensor
    wants: tuple[bool, ...] = (True, False, False)
    is_exact: bool = False  # also in the sign of a zero gradient

    def solve(self, calls: int = 2) -> tuple[Tensor, list[Tensor]]:
        """y and the gradients, of the second call: the first one may prepare it."""
        for _ in range(calls):
            values = [value.detach() if isinstance(value, Tensor) else value for value in self.inputs]
            leaves = [value.requires_grad_() for value, want in zip(values, self.wants) if want]  # noqa: B905
            y = self.f(*values)
            gradients = list(torch.autograd.grad(y, leaves, self.grad))
        return y.detach(), gradients


def assert_ways_agree(
    problems: Iterable[Problem], ways: Iterable[str] = ("native", "native code", "code"), reference: str = "formula"
) -> None:
    """Each of these ways gives the values and gradients of the formula."""
    problems = list(problems)
    with way(reference):
        expected = [problem.solve(calls=1) for problem in problems]
    for name in ways:
        with way(name):
            for problem, (y, gradients) in zip(problems, expected, strict=True):
                our_y, ours = problem.solve()
                assert same_bits(our_y, y), (name, problem.label, our_y, y)
                assert strides(our_y) == strides(y), (name, problem.label)
                agree = same_bits if problem.is_exact else same
                for number, (our_gradient, theirs) in enumerate(zip(ours, gradients, strict=True)):
                    assert agree(our_gradient, theirs), (name, problem.label, number, our_gradient, theirs)
