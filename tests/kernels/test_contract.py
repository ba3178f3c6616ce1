"""The contract of the clamp family and of steps, whoever computes it and whatever it keeps."""

from __future__ import annotations

import os

import pytest
import torch

from pseudograd import formula, kernels
from pseudograd.kernels import blockwise, native
from pseudograd.rule import OPS, call_for
from pseudograd.testing.contract import values
from pseudograd.testing.contract.cases import Case, cases_of

from ..choices import every_pair, folded
from ..contract.cases import with_every
from .ways import WAYS, way

CASES = [
    case
    for op in ("clamp", "lower_bound", "upper_bound", "relu", "relu6", "hardtanh", "sign", "heaviside")
    for case in cases_of(OPS[op])
    if case.rule.sides is not None or case.rule.curve is not None
]
LONG = sorted({(op.rule_set, name) for op in OPS.values() for name, rule in op.rules.items() if rule.is_long})
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@folded
@pytest.mark.parametrize(("case", "dtype", "how"), with_every(CASES, DTYPES, WAYS))
def test_values_and_gradients(case: Case, dtype: torch.dtype, how: str) -> None:
    with way(how):
        values.check_forward(case, dtype)
        values.check_gradient(case, dtype)
        values.check_random(case, dtype)
        values.check_reduced(case, dtype)


@folded
@pytest.mark.parametrize(("key", "of_grad", "threads"), every_pair(LONG, ["of x", "transposed", "expanded"], [1, 2]))
def test_parts_are_the_whole(key: tuple[str, str], of_grad: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The formula on a part of x at a time; the last is shorter."""
    monkeypatch.setattr(blockwise, "LEAST", 100)
    monkeypatch.setattr(blockwise, "PART", 64)
    asked: list[int] = []
    monkeypatch.setattr(
        formula, "pull", lambda grad, *rest, own=formula.pull: (asked.append(grad.numel()), own(grad, *rest))[1]
    )
    op = next(op for op in OPS.values() if (op.rule_set, key[1]) == key and key[1] in op.rules)
    x = torch.linspace(-3, 3, 600).reshape(20, 30).t()
    grad = {
        "of x": torch.randn(20, 30).t(),
        "transposed": torch.randn(30, 20),
        "expanded": torch.ones(1, 20).expand(30, 20),
    }[of_grad]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for dtype in DTYPES:
            leaf = x.to(dtype).requires_grad_()
            y = op.public(leaf, *op.picture.others, rule=key[1])
            with kernels.off("portable", "native"):
                (expected,) = torch.autograd.grad(y, leaf, grad.to(dtype), retain_graph=True)
            asked.clear()
            with kernels.only(blockwise.BLOCKWISE):
                (found,) = torch.autograd.grad(y, leaf, grad.to(dtype))
            assert torch.equal(found, expected)
            assert found.stride() == expected.stride() or of_grad != "of x"
            assert asked == [64 * threads] * (600 // (64 * threads)) + [600 % (64 * threads)]
    finally:
        torch.set_num_threads(before)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of how many elements the formula was asked."""
    sizes: list[int] = []
    monkeypatch.setattr(
        formula, "pull", lambda grad, *rest, own=formula.pull: (sizes.append(grad.numel()), own(grad, *rest))[1]
    )
    return sizes


def test_parts_are_of_32768_elements_and_begin_at_four_million(asked: list[int]) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for elements, parts in ((2**22, [2**15] * 2**7), (2**22 - 1, [])):
            asked.clear()
            x = torch.zeros(elements)
            call = call_for(OPS["sign"], "arctan", OPS["sign"].default_edge)
            found = blockwise._backward(x, [x, 0.0], (True, False), call)
            assert asked == parts
            assert (found is None) == (not parts)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("kind", ["x with holes", "a tensor", "another dtype", "another shape"])
def test_what_is_computed_in_no_parts(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blockwise, "LEAST", 100)
    x, low = torch.linspace(-2, 2, 400), torch.full((400,), -1.0) if kind == "a tensor" else -1.0
    x = x[::2] if kind == "x with holes" else x
    grad = torch.ones(400 if kind != "another shape" else 1, dtype=torch.float64 if "dtype" in kind else None)
    call = call_for(OPS["clamp"], "leaky", "closed")
    assert blockwise._backward(grad[: x.numel()], [x, low, 1.0], (True, False, False), call) is None


@folded
@pytest.mark.parametrize(("case", "how"), with_every(CASES, WAYS[:3]))
def test_what_is_saved(case: Case, how: str) -> None:
    with way(how):
        values.check_saved(case)


def test_a_native_library_for_this_torch_is_used() -> None:
    """Else every test of it would be left out, and nobody would know."""
    if native.LIBRARY.exists() and os.environ.get("PSEUDOGRAD_NATIVE", "") != "0" and torch.__version__ >= (2, 10):
        assert native.status()["state"] == "active", native.status()["why"]
