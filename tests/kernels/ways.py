"""The ways in which one call of the clamp family can be computed, as contexts. Each must give the same numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from pseudograd import kernels
from pseudograd.kernels import bits, native
from pseudograd.rule import OPS, call_for

NO_NATIVE = f"native kernels: {native.status()['why']}"
needs_native = pytest.mark.skipif(native.operators is None, reason=NO_NATIVE)
LEVELS = {"plain C": 0, "AVX2": 1, "AVX-512": 2}  # of a processor
FOR_EVERYTHING, FOR_NOTHING = 0, 1 << 62
WITH_A_CODE = [name for name in OPS["clamp"].rules if bits.suits(call_for(OPS["clamp"], name, "closed"))]


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
            stack.enter_context(kernels.off("native"))
        if name == "formula":
            stack.enter_context(kernels.off("portable"))
        yield


WAYS = ("native code", "native", "code", "portable", "formula")
