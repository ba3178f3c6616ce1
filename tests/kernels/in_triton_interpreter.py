"""The kernels in Triton on CPU: tests that test_triton.py runs in a process of their own, with TRITON_INTERPRET=1 from its start.

What the kernels give is compared with the plain code bit for bit, and with the formula but for the sign of a blocked zero.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import pseudograd as pg
from pseudograd import formula, kernels
from pseudograd.kernels import range_bits, table, triton
from pseudograd.rule import OPS, Call, make_call
from pseudograd.testing.contract import values
from pseudograd.testing.contract.cases import cases_of

from .test_native import LAYOUTS, gradient, numbers, same, same_bits
from .ways import FOR_EVERYTHING, WITH_A_CODE, codes_from, way

X_ALONE = (True, False, False)
BOUNDS = [(-1.0, 1.0), (0.1, None), (None, -0.0)]
RULES = {
    **{"zero": "zero", "leaky": pg.rules.leaky(slope=0.3), "inward": "inward", "sign": "sign"},
    "leaky_inward": pg.rules.leaky_inward(low=0.3, high=1.7),
}


# NumPy's, in which the interpreter computes
pytestmark = pytest.mark.filterwarnings("ignore:(invalid value|overflow|underflow) encountered:RuntimeWarning")


@pytest.fixture(autouse=True)
def every_size() -> Iterator[None]:
    with codes_from(FOR_EVERYTHING):
        yield
    failure, triton._failure = triton._failure, ""
    assert failure == ""


def check(call: Call, x: Tensor, grad: Tensor, bounds: tuple[Any, Any]) -> None:
    inputs = (x, *bounds)
    y, kept = range_bits.CODE.encode(call, inputs, X_ALONE)
    made = triton._encode(call, inputs, X_ALONE)
    assert made is not None
    assert same_bits(made[0], y)
    assert made[0].stride() == y.stride()
    assert torch.equal(made[1][0], kept[0])
    assert made[1][1:] == kept[1:]
    expected = range_bits.CODE.pull(grad, kept, X_ALONE, call)[0]
    by_formula = formula.pull(grad, list(inputs), X_ALONE, call)[0]
    for found in (
        triton._pull_code(grad, made[1], X_ALONE, call),
        triton._pull_inputs(grad, list(inputs), X_ALONE, call),
    ):
        assert found is not None
        assert found[1:] == (None, None)
        assert same_bits(found[0], expected)
        assert same(found[0], by_formula)
    in_place = x.clone()
    again = triton._encode_in_place(call, (in_place, *bounds), X_ALONE)
    assert again is not None
    assert same_bits(in_place, y)
    assert torch.equal(again[0], kept[0])


@pytest.mark.parametrize("dtype", range_bits.DTYPES, ids=str)
@pytest.mark.parametrize("edge", OPS["clamp"].edges)
@pytest.mark.parametrize("rule", RULES)
def test_special_values(rule: str, edge: str, dtype: torch.dtype) -> None:
    x, grad = numbers(dtype, 320)
    for bounds, maximize in itertools.product(BOUNDS, (False, True)):
        call = make_call(OPS["clamp"], RULES[rule], edge, maximize)
        if range_bits.plan_for(call, *bounds, dtype, False) is not None and call.maximize is maximize:
            check(call, x, grad, bounds)


@pytest.mark.parametrize(
    "bounds", [(0.5, 0.5), (-torch.inf, 1.0), (0.1, torch.inf), (0.0, None), (1, 2), (-0.0, 0.0)], ids=str
)
def test_other_bounds(bounds: tuple[Any, Any]) -> None:
    for rule, dtype in (("inward", torch.float32), ("leaky", torch.bfloat16)):
        check(make_call(OPS["clamp"], RULES[rule], "half"), *numbers(dtype, 256), bounds)


@pytest.mark.parametrize("size", [1, 63, 64, 65, 4096 + 1])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_sizes(size: int, dtype: torch.dtype) -> None:
    """Between bounds that would say something of the zeros that are read behind the last element."""
    for rule, edge, bounds in (
        ("inward", "closed", (0.5, 1.0)),
        ("leaky", "half", (0.0, 1.0)),
        ("sign", "open", (-1.0, -0.5)),
    ):
        check(make_call(OPS["clamp"], RULES[rule], edge), *numbers(dtype, size), bounds)


@pytest.mark.parametrize("factor", [0.3, 1 / 3, 3.0, 1e-3, 1e30, 0.7])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_is_rounded_once_and_to_even(dtype: torch.dtype, factor: float) -> None:
    """Over every number that there is."""
    grad = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    call = make_call(OPS["clamp"], pg.rules.leaky(slope=factor), "closed")
    made = triton._pull_inputs(grad, [torch.full_like(grad, 2.0), -1.0, 1.0], X_ALONE, call)
    assert made is not None
    assert same_bits(made[0], grad * range_bits.plan_for(call, -1.0, 1.0, dtype, False).shares[0].positive)


@pytest.mark.parametrize(("low", "high"), list(itertools.product([0.0, -0.0, -1.0], [0.0, -0.0, 1.0])))
def test_zeros_on_cuda(low: float, high: float) -> None:
    """There torch.clamp takes the larger, then the smaller of two numbers, and -0.0 is less than 0.0."""
    x = torch.tensor([-0.0, 0.0, -2.0, 2.0, torch.nan])
    y, code = torch.empty_like(x), torch.empty(8, dtype=torch.uint8)

    def order(value: float) -> tuple[float, float]:
        return value, math.copysign(1.0, value)

    constants = {"first": range_bits.BELOW, "second": 0, **triton._ties(low, high, True)}
    assert triton._run("encode", (x, y, code), (low, high), constants)
    expected = [v if v != v else min(max(v, low, key=order), high, key=order) for v in x.tolist()]
    assert same_bits(y, torch.tensor(expected))


# --- in the table -----------------------------------------------------------------------------------------------------


@pytest.fixture
def alone() -> Iterator[None]:
    """In the table for CPU, and no other kernel beside."""
    added = triton.kernels_for("cpu")
    kernels.register(*added)
    with kernels.off("native", "portable"):
        yield
    kernels.remove(*added)


def inward(x: Tensor) -> Tensor:
    return pg.clamp(x, -1, 1)


@pytest.mark.parametrize("of_grad", [*LAYOUTS, "expanded"])
@pytest.mark.parametrize("of_x", LAYOUTS)
def test_layouts(of_x: str, of_grad: str, alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    flat_x, flat_grad = numbers(torch.float32, 840)
    x = LAYOUTS[of_x](flat_x.reshape(2, 3, 4, -1))
    if of_grad == "expanded":
        grad = torch.tensor(0.5).expand(x.shape)
    else:
        grad = flat_grad.reshape(x.shape)
        grad = grad if "one" in of_grad or "slice" in of_grad else LAYOUTS[of_grad](grad)
    with way("formula"):
        y, expected = gradient(inward, x, grad)
    for residual in (range_bits.CODE, None):
        monkeypatch.setattr(range_bits, "_is_kept_anyway", lambda x, keeps=residual is None: keeps)
        triton._ran.clear()
        found_y, found = gradient(inward, x, grad)
        is_code = residual is not None and range_bits.order_of(x) is not None
        assert {key[0] for key in triton._ran} == ({"encode", "pull_code"} if is_code else {"pull_x"})
        assert found_y.stride() == y.stride()
        assert same_bits(found_y, y)
        assert same(found, expected)


CASES = [case for case in cases_of(OPS["clamp"]) if case.rule.name in WITH_A_CODE]


@pytest.mark.parametrize(("case", "dtype"), list(zip(CASES[5::12], itertools.cycle(range_bits.DTYPES))))
def test_the_contract(case: Any, dtype: torch.dtype, alone: None) -> None:
    values.check_gradient(case, dtype)
    values.check_saved(case)


def test_in_place_and_in_a_checkpoint(alone: None) -> None:
    x, grad = numbers(torch.float32, 300)
    with way("formula"):
        y, expected = gradient(inward, x, grad)
    for f in (
        lambda x: pg.clamp_(x * 1, -1, 1),
        lambda x: checkpoint(lambda x: inward(x * 1), x, use_reentrant=False),
    ):
        triton._ran.clear()
        found_y, found = gradient(f, x, grad)
        assert {key[0] for key in triton._ran} == {"encode", "pull_code"}
        assert same_bits(found_y, y)
        assert same(found, expected)


def test_what_the_kernels_decline(alone: None) -> None:
    x, call = torch.zeros(5), make_call(OPS["clamp"], "inward", "closed")
    for bounds in ((1.0, 0.0), (torch.tensor(0.0), None), (torch.nan, None)):
        assert triton._pull_inputs(x, [x, *bounds], X_ALONE, call) is None
    assert triton._pull_inputs(x, [x.int(), 0.0, 1.0], X_ALONE, call) is None
    assert triton._pull_inputs(x.double(), [x, 0.0, 1.0], X_ALONE, call) is None
    assert triton._pull_inputs(x, [x, 0.0, 1.0], X_ALONE, make_call(OPS["clamp"], "elastic", "closed")) is None
    with codes_from(6):
        assert triton._pull_inputs(x, [x, 0.0, 1.0], X_ALONE, call) is None


# --- where a kernel cannot run ----------------------------------------------------------------------------------------


class _Raises:
    def __getitem__(self, grid: Any) -> Any:
        raise RuntimeError("Failed to find C compiler. Please specify via CC.")


@pytest.fixture
def may_fail(alone: None, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(triton, "_failure", "")
    monkeypatch.setattr(triton, "_lacks", "")
    return monkeypatch


@pytest.mark.parametrize("name", ["encode", "pull_code", "pull_x", "the import"])
def test_what_triton_raises_turns_the_kernels_off_for_good(name: str, may_fail: pytest.MonkeyPatch) -> None:
    x, grad = numbers(torch.float32, 300)
    with way("formula"):
        y, expected = gradient(inward, x, grad)
    if name == "the import":
        may_fail.delattr(triton, "loops", raising=False)
        may_fail.setitem(sys.modules, "pseudograd.kernels.triton.loops", None)
    else:
        from pseudograd.kernels.triton import loops

        may_fail.setattr(loops, name, _Raises())
    if name == "pull_x":
        may_fail.setattr(range_bits, "_is_kept_anyway", lambda x: True)
    with pytest.warns(RuntimeWarning) as warned:
        results = [gradient(inward, x, grad) for _ in range(2)]
    assert len(warned) == 1
    text = str(warned[0].message)
    assert text.startswith("pseudograd: the Triton kernels are turned off, triton raised ")
    assert ("ModuleNotFoundError" if name == "the import" else "RuntimeError: Failed to find C compiler") in text
    assert "PSEUDOGRAD_TRITON=0" in text
    for found_y, found in results:
        assert same_bits(found_y, y)
        assert same(found, expected)
    assert triton.status()["state"] == "not active"
    assert triton.status()["why"] in text
    triton._failure = ""


def test_a_cuda_graph_records_only_what_has_run_before(alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    x, grad = numbers(torch.float32, 300)
    expected = gradient(inward, x, grad)[1]
    triton._ran.clear()
    monkeypatch.setattr(triton, "_is_recording", lambda device: True)
    assert same(gradient(inward, x, grad)[1], expected)
    assert triton._ran == set()
    monkeypatch.setattr(triton, "_is_recording", lambda device: False)
    gradient(inward, x, grad)
    assert {key[0] for key in triton._ran} == {"encode", "pull_code"}
    launched: list[str] = []
    run = triton._run
    monkeypatch.setattr(triton, "_is_recording", lambda device: True)
    monkeypatch.setattr(triton, "_run", lambda *how: (run(*how), launched.append(how[0]))[0])
    call = make_call(OPS["clamp"], "inward", "closed")
    assert triton._encode(call, (x, -1.0, 1.0), X_ALONE) is not None
    assert triton._encode(call, (x.double(), -1.0, 1.0), X_ALONE) is None
    assert triton._encode(call, (x[:299], -1.0, 1.0), X_ALONE) is not None  # neither is a multiple of 16
    assert triton._encode(call, (x[:256], -1.0, 1.0), X_ALONE) is None
    assert triton._encode(call, (x[1:], -1.0, 1.0), X_ALONE) is None  # another alignment
    assert launched == ["encode"] * 5


def test_the_interpreter_serves_no_user() -> None:
    assert triton._missing().startswith("TRITON_INTERPRET is set" if torch.version.cuda else "this torch is built")
    assert not any(kernel.name == "triton" for kernel in table._kernels)
