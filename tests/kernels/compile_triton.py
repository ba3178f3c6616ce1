"""Compile every kernel in Triton for real processors, which needs none of them; test_triton.py runs this in a process of its own."""

from __future__ import annotations

import re
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from pseudograd.geometry import Share
from pseudograd.kernels import range_bits
from pseudograd.kernels.triton import loops, of_shares

HALF = range_bits.Plan(range_bits.FROM_SHARES, 1 | 12, 2 | 12, (Share(0.0, 1.0), Share(1.0, 0.0), Share(0.5, 0.5)))
LEAKY = range_bits.Plan(range_bits.FROM_SHARES, 3, 12, (Share(0.3, 0.3), Share(0.5, 0.5)))
LEAKY_INWARD = range_bits.Plan(range_bits.FROM_SHARES, 1, 2, (Share(0.3, 1.0), Share(1.0, 0.3)))
SIGN = range_bits.Plan(range_bits.FROM_SHARES, 1, 2, (-1.0, 1.0))


def compile_one(name: str, element: str, capability: int, constants: dict[str, Any]) -> str:
    """Its assembly, for memory as torch allocates it and a number of elements that 16 divides."""
    kernel = getattr(loops, name)
    kinds = {
        "x": f"*{element}",
        "y": f"*{element}",
        "grad": f"*{element}",
        "out": f"*{element}",
        "code": "*u8",
        "n": "i32",
    }
    signature = {key: "constexpr" if key in constants else kinds.get(key, "i64") for key in kernel.arg_names}
    at = {key: (position,) for position, key in enumerate(signature)}
    aligned = {at[key]: [["tt.divisibility", 16]] for key in signature if key in kinds}
    source = ASTSource(kernel, signature, {at[key]: value for key, value in constants.items()}, aligned)
    made = triton.compile(
        source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 4, "enable_fp_fusion": False}
    )
    assert made.asm["cubin"]
    return made.asm["ptx"]


def main() -> None:
    for element, capability in (("fp16", 75), ("bf16", 80), ("fp32", 80), ("bf16", 90), ("fp64", 90)):
        for plan in (HALF, LEAKY, LEAKY_INWARD, SIGN):
            pulls = {**of_shares(plan)[1], "block": 1024}
            planes = {"first": plan.first, "second": plan.second}
            for name, constants in (
                ("encode", {**planes, "takes_min": True, "takes_max": False, "block": 1024}),
                ("pull_code", {"has_first": True, "has_second": True, "has_both": plan is HALF, **pulls}),
                ("pull_x", {**planes, **pulls}),
            ):
                assembly = compile_one(name, element, capability, constants)
                # No subnormal number is flushed, nothing is fused; 16 bytes at a time, at 64-bit places.
                assert ".ftz" not in assembly
                assert not re.search(r"\bfma", assembly)
                assert re.search(r"ld\.global\.v(4\.b32|2\.b64)", assembly)
                assert re.search(r"mul\.wide|mul\.lo\.s64|shl\.b64|add\.s64", assembly)
                assert not re.search(r"atom\.|red\.global", assembly)
    print(triton.__version__, "compiled")


if __name__ == "__main__":
    main()
