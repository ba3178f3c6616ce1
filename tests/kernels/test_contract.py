"""The contract of the clamp family and of steps, whoever computes it and whatever it keeps."""

import os
from typing import Any

import pytest
import torch

from pseudograd import formula, kernels
from pseudograd.kernels import native, portable
from pseudograd.rule import OPS, call_for
from pseudograd.testing.contract import values
from pseudograd.testing.contract.cases import Case, cases_of
from pseudograd.testing.measure.gradients import gradient_by_backward, gradient_by_backward_of_first
from pseudograd.testing.measure.inputs import special_pairs

from ..choices import every_pair, folded
from ..contract.cases import cells_of, with_a_third_of_the_samples
from .ways import DTYPES, WAYS, way

CASES = [
    case
    for op in ("clamp", "lower_bound", "upper_bound", "relu", "relu6", "hardtanh", "sign", "heaviside")
    for case in cases_of(OPS[op])
    if case.rule.sides is not None or case.rule.curve is not None
]
LONG = sorted({(op.rule_set, name) for op in OPS.values() for name, rule in op.rules.items() if rule.is_long})


@folded
@pytest.mark.parametrize(("case", "dtype", "how"), [*with_a_third_of_the_samples(cells_of(CASES, DTYPES, WAYS))])
def test_values_and_gradients(case: Case, dtype: torch.dtype, how: str) -> None:
    """Of what this way prefers; tests/contract compares each kernel alone."""
    units = values.Units(case.ulps, 0.0)
    with way(how):
        values.check_forward(case, dtype)
        values.check_reduced(case, dtype)
        for sample in case.samples()[:1]:
            inputs, grad = special_pairs(sample.build(dtype), dtype)
            expected = values.reference_gradients(case, inputs, grad)
            for gradient in (gradient_by_backward_of_first, gradient_by_backward):
                ours = gradient(case.function(), inputs, grad)
                what = f"{sample.name}, {gradient.__name__}"
                values.assert_equals_reference(ours, expected[: len(ours)], inputs, grad, what, units)


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of elements in each part that the formula gets."""
    sizes: list[int] = []

    def pull(grad: torch.Tensor, *rest: object, own: Any = formula.pull) -> Any:
        sizes.append(grad.numel())
        return own(grad, *rest)

    monkeypatch.setattr(formula, "pull", pull)
    return sizes


@folded
@pytest.mark.parametrize(
    ("key", "layout_of_grad", "threads"), every_pair(LONG, ["of x", "transposed", "expanded"], [1, 2])
)
def test_parts_are_the_whole(
    key: tuple[str, str], layout_of_grad: str, threads: int, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The formula on a part of x at a time; the last is shorter."""
    monkeypatch.setattr(portable, "LEAST_BLOCKWISE", 100)
    monkeypatch.setattr(portable, "PART_OF_A_THREAD", 64)
    op = next(op for op in OPS.values() if (op.rule_set, key[1]) == key and key[1] in op.rules)
    x = torch.linspace(-3, 3, 600).reshape(20, 30).t()
    grad = {
        "of x": torch.randn(20, 30).t(),
        "transposed": torch.randn(30, 20),
        "expanded": torch.ones(1, 20).expand(30, 20),
    }[layout_of_grad]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for dtype in DTYPES[threads % 2 :: 2]:
            leaf = x.to(dtype).requires_grad_()
            y = op.public(leaf, *op.picture.others, rule=key[1])
            with kernels.switch_off("portable", "native"):
                (expected,) = torch.autograd.grad(y, leaf, grad.to(dtype), retain_graph=True)
            sizes.clear()
            with kernels.use_only(portable.BLOCKWISE):
                (grad_x,) = torch.autograd.grad(y, leaf, grad.to(dtype))
            assert torch.equal(grad_x, expected)
            assert grad_x.stride() == expected.stride() or layout_of_grad != "of x"
            assert sizes == [64 * threads] * (600 // (64 * threads)) + [600 % (64 * threads)]
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("x", "low", "grad", "parts"),
    [
        (torch.zeros(2**22), -1.0, torch.zeros(2**22), 2**7),
        (torch.zeros(2**22 - 1), -1.0, torch.zeros(2**22 - 1), 0),
        (torch.zeros(2**23)[::2], -1.0, torch.zeros(2**22), 0),
        (torch.zeros(2**22), torch.zeros(2**22), torch.zeros(2**22), 0),
        (torch.zeros(2**22), -1.0, torch.zeros(2**22, dtype=torch.float64), 0),
        (torch.zeros(2**22), -1.0, torch.zeros(1), 0),
    ],
    ids=["four million", "one less", "x with holes", "a tensor", "another dtype", "another shape"],
)
def test_parts_are_of_32768_elements_and_begin_at_four_million(
    x: torch.Tensor, low: Any, grad: torch.Tensor, parts: int, sizes: list[int]
) -> None:
    call = call_for(OPS["clamp"], "leaky", "closed")
    gradients = portable._pull_by_parts(grad, [x, low, 1.0], (True, False, False), call)
    assert sizes == [2**15] * parts
    assert (gradients is None) == (not parts)


@folded
@pytest.mark.parametrize(("case", "how"), cells_of(CASES, WAYS[:3]))
def test_what_is_saved(case: Case, how: str) -> None:
    with way(how):
        values.check_saved(case)


def test_a_native_library_for_this_torch_is_used() -> None:
    """Else every test of it would be left out, and nobody would know."""
    if native.LIBRARY.exists() and os.environ.get("PSEUDOGRAD_NATIVE", "") != "0" and torch.__version__ >= (2, 10):
        assert native.status()["state"] == "active", native.status()["why"]
