"""Tests of the contract checks: every broken rule fails a check, and the right rules from which they were made fail none."""

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from pseudograd import engine, kernels
from pseudograd.geometry import NOTHING, Constant, Reversal, Slope
from pseudograd.kernels import bits
from pseudograd.kernels.residuals import INPUTS
from pseudograd.rule import OPS, Call, Op
from pseudograd.testing.contract import all_inputs, cases, derivatives, equality, sides, transforms, values
from pseudograd.testing.contract.cases import Case, cases_of
from pseudograd.testing.contract.rule import checks_of
from pseudograd.testing.measure.inputs import DTYPES

from ..choices import folded
from ..written import assert_written, shown
from . import broken_rules

# Parts of the names of checks that take longer, or for which there are tests of their own.
SLOW = (
    "bfloat16",
    "float64",
    "sides",
    "broadcast",
    "layouts",
    "reverse",
    "element-wise",
    "all inputs",
    "finite second",
)


def _failures(op: Op, rule: str) -> Iterator[str]:
    """The name of every check that some case of this rule of `op` fails."""
    for case in cases_of(op):
        if case.parameters or case.rule.name != rule:
            continue
        checks = [(name, check) for name, check in checks_of(case) if not any(word in name for word in SLOW)]
        for name, check in sorted(checks, key=lambda check: "linear" not in check[0] and "saved" not in check[0]):
            try:
                check()
            except (AssertionError, RuntimeError, TypeError, AttributeError, pytest.fail.Exception):
                yield name


def _add_to_table(monkeypatch: pytest.MonkeyPatch, op: Op) -> Op:
    monkeypatch.setitem(OPS, op.name, op)
    return op


@folded
@pytest.mark.parametrize("name", broken_rules.BROKEN)
def test_a_broken_rule_fails(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    op = _add_to_table(monkeypatch, broken_rules.broken_op(name, broken_rules.BROKEN[name]))
    assert next(_failures(op, broken_rules.BROKEN[name].name), None) is not None, f"no check finds: {name}"


@pytest.mark.parametrize(
    "name",
    [
        "inward",
        pytest.param("sign", marks=pytest.mark.program),
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("zero", "identity", "leaky")),
    ],
)
def test_a_right_rule_fails_no_check(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two edges are enough here: test_values runs the same checks on all edges of clamp."""
    right = broken_rules.broken_op(f"right {name}", broken_rules.CLAMP.rules[name], edges=("closed", "inward"))
    assert list(_failures(_add_to_table(monkeypatch, right), name)) == []


def test_an_inexact_forward_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = broken_rules.CLAMP.rules["zero"]
    op = _add_to_table(monkeypatch, broken_rules.broken_op("detach trick", rule, forward=broken_rules.inexact_forward))
    assert "forward, float32" in _failures(op, rule.name)


@contextlib.contextmanager
def _registered(kernel: kernels.Kernel) -> Iterator[None]:
    kernels.register(kernel)
    try:
        yield
    finally:
        kernels.remove(kernel)


INWARD = next(case for case in cases_of(OPS["clamp"]) if case.rule.name == "inward" and case.edge == "closed")


def error_of(check: Callable[..., None], *arguments: object, **shown: object) -> str:
    """The text of the error with which a check fails, "" if it passes."""
    try:
        check(*arguments, **shown)
    except AssertionError as error:
        return str(error).partition("\n")[0]
    return ""


def written_names() -> dict[str, Any]:
    names: dict[str, Any] = {"torch": torch, "nan": math.nan, "inf": math.inf, "shown": shown, "error_of": error_of}
    for module in (cases, equality, values, transforms, sides, all_inputs):
        names |= vars(module)
    names |= {"derivatives": derivatives, "all_inputs": all_inputs, "INWARD": INWARD, "checks_of": checks_of}
    return names | {
        "OPS": OPS,
        "DTYPES": DTYPES,
        "tensor": lambda *numbers, **how: torch.tensor(numbers, **how).add(0.0),
    }


def test_parts_of_the_checks_are_written_out() -> None:
    assert_written(Path(__file__).with_name("checks.txt"), written_names())


@pytest.mark.parametrize("priority", [-100, 100])
@pytest.mark.parametrize("others", ["on", "off"])
def test_a_wrong_kernel_fails_whichever_others_are_on(others: str, priority: int) -> None:
    wrong = broken_rules.wrong_kernel(priority)
    alone = kernels.switch_off(*(["native", "portable"] if others == "off" else []))
    with _registered(wrong), alone, pytest.raises(AssertionError, match="kernel clamp for inputs, gradient 0"):
        values.check_gradient(INWARD, torch.float16)
    values.check_gradient(INWARD, torch.float16)


def test_a_wrong_kernel_for_a_device_that_is_absent_fails_or_is_named() -> None:
    absent = next(name for name in ("mps", "xpu", "cuda") if not getattr(torch, name).is_available())

    def seven(grad: torch.Tensor, *how: object) -> tuple[object, ...]:
        return grad * 7, None, None

    def cannot(*how: object) -> tuple[object, ...]:
        raise RuntimeError("no device")

    def declines(*how: object) -> None:
        return None

    def serves(call: Call) -> bool:
        return call.primitive.name == "clamp"

    kinds = [kernels.Kernel("away", INPUTS, serves, backward, device=absent) for backward in (seven, cannot, declines)]
    with _registered(kinds[0]), pytest.raises(AssertionError, match=f"kernel away for inputs on {absent}, gradient 0"):
        values.check_gradient(INWARD, torch.float32)
    with _registered(kinds[1]), pytest.warns(UserWarning, match="kernel away was not compared, .* raises no device"):
        values.check_gradient(INWARD, torch.float32)
    with _registered(kinds[2]):
        values.check_gradient(INWARD, torch.float32)


@pytest.mark.skipif("cpu" not in bits.devices, reason="without a kernel for codes on CPU none is kept")
@pytest.mark.parametrize("priority", [-100, 100])
def test_a_wrong_kernel_for_a_code_fails_too(priority: int) -> None:
    """Although the tensors of the contract have too few elements for a code."""

    def pass_all(grad: torch.Tensor, *how: object) -> tuple[object, ...]:
        return grad.clone(), None, None

    wrong = kernels.Kernel("clamp", bits.BITS, bits.suits, pass_all, priority=priority)
    with _registered(wrong), pytest.raises(AssertionError, match="kernel clamp for bits, gradient 0"):
        values.check_gradient(INWARD, torch.float32)


def _way_of(x: torch.Tensor) -> str:
    """How a check of the forward calls the op, in the words of its error."""
    if torch._C._functorch.is_functorch_wrapped_tensor(x):
        return "functorch"
    return "not recording" if not x.requires_grad else "recording" if torch.is_grad_enabled() else "no_grad"


@pytest.mark.parametrize("wrong", ["not recording", "recording", "no_grad", "functorch", "an input after the call"])
def test_a_value_that_is_wrong_in_one_way_of_calling_fails(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    values.check_forward(INWARD, torch.float32)
    own = values.forward_by_vjp

    def call(self: Case, x: torch.Tensor, *bounds: object) -> torch.Tensor:
        y = self.function()(x, *bounds)
        return y + 1 if _way_of(x) == wrong else y

    def last_call(case: Case, inputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
        y = own(case, inputs)
        if wrong == "an input after the call":
            inputs[0].add_(1)
        return y

    monkeypatch.setattr(Case, "__call__", call)
    monkeypatch.setattr(values, "forward_by_vjp", last_call)
    with pytest.raises(AssertionError, match=f", {wrong}: "):
        values.check_forward(INWARD, torch.float32)


@pytest.mark.parametrize(
    ("path", "how", "check", "text"),
    [
        ("gradient_by_backward_of_first", {}, values.check_gradient, "kernel, gradient 0"),
        ("gradient_by_backward", {}, values.check_gradient, "backward, gradient 0"),
        ("gradient_by_backward", {"create_graph": True}, values.check_gradient, "formula, gradient 0"),
        ("gradient_by_vjp", {}, values.check_gradient, "functorch, gradient 0"),
        ("gradient_by_vjp", {}, values.check_random, "functorch, gradient 0"),
        ("gradient_by_vjp", {}, values.check_reduced, "gradient_by_vjp, gradient 0"),
        ("gradient_by_backward", {"create_graph": True}, values.check_reduced, "formula_gradients, gradient 0"),
        ("gradient_by_backward_of_first", {}, values.check_reduced, "kernel"),
    ],
)
def test_a_gradient_that_is_wrong_by_one_path_fails(
    path: str, how: dict[str, bool], check: Callable[..., None], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = getattr(values, path)

    @functools.wraps(right)
    def wrong(f: object, inputs: object, grad: torch.Tensor, **given: bool) -> list[torch.Tensor | None]:
        gradients = right(f, inputs, grad, **given)
        is_other_call = given != how or (text.startswith("kernel,") and kernels.table._switched_off)
        return gradients if is_other_call else [None if g is None else 2 * g for g in gradients]

    monkeypatch.setattr(values, path, wrong)
    with pytest.raises(AssertionError, match=f", {text}"):
        check(INWARD, torch.float32)


def test_sides_that_do_not_fit_the_formula_fail() -> None:
    for name, sides_of in (
        ("inward", lambda: (Slope(1.0, 0.0), Slope(0.0, 1.0))),
        ("zero", lambda: (Slope(0.0, 1.0), NOTHING)),
        ("leaky", lambda slope: (Slope(slope, slope), Slope(slope, 2 * slope))),
        ("sign", lambda: (Constant(1.0), Constant(-1.0))),
        ("leaky_inward", lambda low, high: (Slope(high, 1.0), Slope(1.0, low))),
        ("elastic", lambda width: (Slope(Reversal(2 * width), 1.0), Slope(1.0, Reversal(width)))),
    ):
        case = next(
            case
            for case in cases_of(OPS["clamp"])
            if case.rule.name == name and (case.parameters or name != "leaky_inward")
        )
        if name == "leaky_inward":
            case = case._replace(parameters=(("low", 0.25), ("high", 0.5)))
        sides.check_sides(case, torch.float32)
        rule = case.rule.replaced(sides=sides_of)
        op = case.op.replaced(name=f"wrong sides: {name}", rules={**case.op.rules, name: rule})
        with pytest.raises(AssertionError, match="sides"):
            sides.check_sides(case._replace(op=op, rule=rule), torch.float32)


@pytest.mark.parametrize("lowering", [engine.Pseudograd, engine.PseudogradFunctional], ids=lambda kind: kind.__name__)
def test_a_lowering_that_forgets_a_bound_fails(lowering: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """One lowering gives a lower bound half of its gradient."""
    case = next(case for case in cases_of(OPS["clamp"]) if case.rule.name == "zero")
    all_inputs.check_all_inputs(case)
    right = lowering.backward  # type: ignore[attr-defined]

    def halved(ctx: object, grad: torch.Tensor) -> tuple[object, ...]:
        call, x, low, *others = right(ctx, grad)
        return call, x, None if low is None else low / 2, *others

    monkeypatch.setattr(lowering, "backward", staticmethod(halved))
    with pytest.raises(AssertionError, match="by backward"):
        all_inputs.check_all_inputs(case)
