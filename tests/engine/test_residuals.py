"""What a call keeps is a property of the call: a residual of two bits gives the gradients of the inputs, whoever computes in which pass."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)
from torch.utils.flop_counter import FlopCounterMode

import pseudograd as pg
from pseudograd import engine, kernels
from pseudograd.kernels import bits
from pseudograd.kernels.residuals import INPUTS
from pseudograd.ops.bounds import unify_bounds
from pseudograd.rule import OPS, call_for
from pseudograd.testing.contract import values
from pseudograd.testing.contract.cases import Case, cases_of

from ..choices import folded, one_in
from ..contract.cases import every_case
from .two_bits import RULES, TWO_BITS, counting_kernel

X = torch.tensor([-torch.inf, -2.0, -1.0, -0.0, 0.0, 0.5, 1.0, 2.0, torch.inf, torch.nan, -1.5])
GRAD = torch.tensor([1.0, -2.0, 3.0, -4.0, 5.0, -6.0, 7.0, -8.0, -9.0, 10.0, 0.0])
CALLS = [(name, edge) for _, name in RULES for edge in ("closed", "open", "half")]
Function = Callable[[Tensor], Tensor]


@pytest.fixture(autouse=True)
def _without_native() -> Iterator[None]:
    """Which has a residual of its own: tests/kernels."""
    with kernels.off("native"):
        yield


@pytest.fixture
def two_bits() -> Iterator[list[str]]:
    """With the residual and its kernel in the table; what the kernel did."""
    ran: list[str] = []
    kernel = counting_kernel(ran)
    kernels.register(TWO_BITS, kernel)
    yield ran
    kernels.remove(kernel)
    kernels.remove(TWO_BITS)


def clamp_of(rule: str, edge: str = "closed") -> Function:
    return lambda x: pg.clamp(x * 1, -1.0, 1.0, rule=rule, edge=edge)


def plainly(f: Function, x: Tensor = X, grad: Tensor = GRAD) -> Tensor:
    leaf = x.clone().requires_grad_()
    return torch.autograd.grad(f(leaf), leaf, grad)[0]


def by_double_backward(f: Function) -> Tensor:
    leaf, grad = X.clone().requires_grad_(), GRAD.clone().requires_grad_()
    (first,) = torch.autograd.grad(f(leaf), leaf, grad, create_graph=True)
    (slope,) = torch.autograd.grad(first.sum(), grad, allow_unused=True)
    return first.detach() if slope is None else torch.stack([first.detach(), slope])


def gradient_by_batched_grads(f: Function) -> Tensor:
    leaf = X.clone().requires_grad_()
    return torch.autograd.grad(f(leaf), leaf, torch.stack([GRAD, -GRAD]), is_grads_batched=True)[0]


def by_compiled_autograd(f: Function) -> Tensor:
    leaf = X.clone().requires_grad_()
    torch._dynamo.reset()
    with torch._dynamo.compiled_autograd._enable(lambda graph: torch.compile(graph, backend="eager")):
        f(leaf).backward(GRAD)
    assert leaf.grad is not None
    return leaf.grad


def _selective() -> Any:
    return create_selective_checkpoint_contexts(
        lambda ctx, op, *args, **kwargs: (
            CheckpointPolicy.MUST_SAVE if op is torch.ops.aten.mul.Tensor else CheckpointPolicy.PREFER_RECOMPUTE
        )
    )


WAYS: dict[str, Callable[[Function], Tensor]] = {
    "plain": plainly,
    "double backward": by_double_backward,
    "is_grads_batched": gradient_by_batched_grads,
    "compiled autograd": by_compiled_autograd,
    "checkpoint": lambda f: plainly(lambda x: checkpoint(f, x, use_reentrant=False)),
    "selective checkpoint": lambda f: plainly(lambda x: checkpoint(f, x, use_reentrant=False, context_fn=_selective)),
    "func.vjp": lambda f: torch.func.vjp(f, X)[1](GRAD)[0],
    "vmap": lambda f: torch.vmap(lambda x, grad: torch.func.vjp(f, x)[1](grad)[0])(X, GRAD),
}


def gradient_by_reentrant_checkpoint(f: Function) -> Tensor:
    leaf = X.clone().requires_grad_()
    checkpoint(f, leaf, use_reentrant=True).backward(GRAD)
    assert leaf.grad is not None
    return leaf.grad


WAYS["reentrant checkpoint"] = gradient_by_reentrant_checkpoint


@folded
@every_case
def test_a_gradient_for_each_input_and_no_more(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Autograd takes more without a word."""
    monkeypatch.setattr(bits, "least", 1)
    call = case.call()
    for sample in case.samples():
        inputs = sample.build(torch.float32)
        if case.op.rule_set == "clamp":
            inputs = (inputs[0], *unify_bounds(*inputs))
        wants = tuple(isinstance(value, Tensor) and value.is_floating_point() for value in inputs)
        for asked in {wants, (True, *[False] * (len(wants) - 1))}:
            residual = kernels.residual_of(call, inputs, asked)
            y, kept = residual.encode(call, inputs, asked)
            grad = torch.ones_like(y)
            assert len(residual.pull(grad, kept, asked, call)) == len(inputs)
            found = kernels.backward(residual, grad, kept, asked, call)
            assert found is None or len(found) == len(inputs)


@folded
@pytest.mark.parametrize(("rule", "edge"), CALLS)
@pytest.mark.parametrize("way", [name for name in WAYS if name != "compiled autograd"])
def test_two_bits_give_what_the_inputs_give(way: str, rule: str, edge: str, request: Any) -> None:
    expected = WAYS[way](clamp_of(rule, edge))
    request.getfixturevalue("two_bits")
    torch.testing.assert_close(WAYS[way](clamp_of(rule, edge)), expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("rule", ["zero", "inward"])
def test_under_compiled_autograd(rule: str, two_bits: list[str]) -> None:
    assert WAYS["compiled autograd"](clamp_of(rule))[1:9].tolist() == plainly(clamp_of(rule))[1:9].tolist()
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("rule", "dtype"),
    one_in(4, [name for _, name in RULES], [torch.float16, torch.bfloat16, torch.float32, torch.float64]),
)
def test_the_contract_of_saved_tensors_and_values(rule: str, dtype: torch.dtype, two_bits: list[str]) -> None:
    for case in cases_of(pg.rule.OPS["clamp"]):
        if case.rule.name == rule and not case.parameters:
            values.check_saved(case)
            values.check_random(case, dtype)


def test_it_keeps_two_bits(two_bits: list[str]) -> None:
    x = torch.zeros(1000, requires_grad=True)
    saved = values.saved_by(lambda x: pg.clamp(x, -1.0, 1.0), (x,))
    assert [(tensor.dtype, tensor.nbytes) for tensor in saved] == [(torch.uint8, 250)]


@pytest.mark.parametrize("counted", ["forward", "backward", "both"])
def test_modes_come_and_go_around_a_checkpoint(counted: str, two_bits: list[str]) -> None:
    """A checkpoint compares what its two passes keep. A mode around one of them changes who computes, and nothing else."""
    leaf = X.clone().requires_grad_()
    around = {
        name: FlopCounterMode(display=False) if counted in (name, "both") else contextlib.nullcontext()
        for name in ("forward", "backward")
    }
    with around["forward"]:
        y = checkpoint(clamp_of("inward"), leaf, use_reentrant=False)
    with around["backward"]:
        y.backward(GRAD)
    assert leaf.grad is not None
    torch.testing.assert_close(leaf.grad, plainly(clamp_of("inward")), rtol=0, atol=0, equal_nan=True)


def test_override_around_a_checkpoint_with_its_backward_outside(two_bits: list[str]) -> None:
    """Rewritten calls keep what torch's op keeps."""
    leaf = X.clone().requires_grad_()
    with pg.override(clamp="inward"):
        y = checkpoint(lambda x: torch.clamp(x * 1, -1.0, 1.0), leaf, use_reentrant=False)
    y.backward(GRAD)
    assert leaf.grad is not None
    torch.testing.assert_close(leaf.grad, plainly(clamp_of("inward")), rtol=0, atol=0, equal_nan=True)
    with pg.override(clamp="inward"):
        saved = values.saved_by(lambda x: torch.clamp(x, -1.0, 1.0), (leaf,))
    assert [tensor.dtype for tensor in saved] == [torch.float32]


def test_kernels_are_switched_off_and_on_between_the_passes(two_bits: list[str]) -> None:
    f = clamp_of("inward")
    expected = plainly(f)
    two_bits.clear()
    leaf = X.clone().requires_grad_()
    y = f(leaf)
    with kernels.off("counting"):
        torch.testing.assert_close(
            torch.autograd.grad(y, leaf, GRAD, retain_graph=True)[0], expected, rtol=0, atol=0, equal_nan=True
        )
    assert two_bits == ["forward"]
    torch.autograd.grad(y, leaf, GRAD)
    assert two_bits == ["forward", "backward"]


def test_a_kernel_that_is_registered_after_the_first_call_is_asked() -> None:
    f = clamp_of("inward")
    plainly(f)
    ran: list[str] = []
    kernel = counting_kernel(ran)
    kernels.register(TWO_BITS, kernel)
    try:
        plainly(f)
        assert ran == ["forward", "backward"]
        leaf = X.clone().requires_grad_()
        y = f(leaf)
    finally:
        kernels.remove(kernel)
        kernels.remove(TWO_BITS)
    torch.testing.assert_close(torch.autograd.grad(y, leaf, GRAD)[0], plainly(f), rtol=0, atol=0, equal_nan=True)
    assert ran == ["forward", "backward", "forward"]  # and no more once it was removed


def test_a_residual_is_asked_with_one_want_for_each_input() -> None:
    asked: list[tuple[bool, ...]] = []

    def serves(call: Any, inputs: tuple[Any, ...], wants: tuple[bool, ...]) -> bool:
        asked.append(wants)
        return TWO_BITS.serves(call, inputs, wants)

    watched = TWO_BITS.replaced(serves=serves)
    kernels.register(watched)
    try:
        for f in (pg.clamp, pg.clamp_):
            x = X.clone().requires_grad_()
            (found,) = torch.autograd.grad(f(x * 1, -1.0, 1.0), x, GRAD)
            assert set(asked) == {(True, False, False)}
            asked.clear()
            torch.testing.assert_close(found, plainly(clamp_of("inward")), rtol=0, atol=0, equal_nan=True)
            asked.clear()
    finally:
        kernels.remove(watched)


def test_what_a_node_keeps_is_told_where_it_keeps_the_inputs_of_that_primitive(two_bits: list[str]) -> None:
    x, threshold = torch.tensor([0.25, 2.0], requires_grad=True), torch.tensor([0.5, 0.5], requires_grad=True)
    y = pg.jumprelu(x, threshold, bandwidth=0.5)
    node = y.grad_fn
    found = engine.saved_inputs_of(node, OPS["jumprelu"])
    assert found is not None
    call, (kept_x, kept_threshold, bandwidth, _) = found
    assert call.label == "jumprelu/window"
    assert (kept_x.tolist(), kept_threshold.tolist(), bandwidth) == ([0.25, 2], [0.5, 0.5], 0.5)
    assert engine.saved_inputs_of(node, OPS["clamp"]) is None
    assert engine.saved_inputs_of(torch.sin(x).grad_fn, OPS["jumprelu"]) is None
    bits = pg.clamp(x * 1, -1.0, 1.0)
    assert engine.saved_inputs_of(bits.grad_fn, OPS["clamp"]) is None


ENDS = [
    *((0.0, 1.0), (-1.0, 0.0), (-3.0, 0.1), (-0.3, 2.0), (0.5, 0.5), (0.0, 0.0), (0.0, None), (1.0, None), (None, 0.0)),
    *((None, -4.0), (-torch.inf, 1.0), (-1.0, torch.inf), (-torch.inf, None), (None, torch.inf)),
]


IN_FUSED_CALLS = {("zero", "closed"), ("zero", "open"), ("inward", "closed"), ("inward", "open"), ("sign", "closed")}


@folded
@pytest.mark.parametrize("edge", OPS["clamp"].edges)
@pytest.mark.parametrize("rule", ["zero", "inward", "sign", "leaky"])
def test_what_runs_in_fused_calls_of_torch(rule: str, edge: str) -> None:
    """Between numbers that are finite and not crossed; "inward" between tensors too. All else is the formula's."""
    x, grad = torch.linspace(-2, 2, 9), torch.ones(9)

    def runs(low: Any, high: Any, maximize: bool = False, wants: tuple[bool, ...] = (True, False, False)) -> bool:
        call = call_for(OPS["clamp"], rule, edge, maximize)
        return kernels.backward(INPUTS, grad, [x, low, high], wants, call) is not None

    fused = (rule, edge) in IN_FUSED_CALLS
    for low, high in ((-1.0, 1.0), (0.0, None), (None, 0.5), (1.0, 1.0), (-1, 1)):
        assert runs(low, high) == fused
        assert runs(low, high, maximize=True) == (fused and rule == "zero")  # whose gradient is linear
    tensors = fused and (rule, edge) == ("inward", "closed")
    for low, high in ((1.0, -1.0), (-torch.inf, 1.0), (-1.0, torch.inf), (torch.nan, 1.0), (-torch.inf, None)):
        assert runs(low, high) == tensors
    ends = torch.tensor(-1.0), torch.tensor(1.0)
    assert runs(*ends) == runs(None, ends[1]) == tensors
    assert not any(runs(*ends, wants=wants) for wants in ((True, True, False), (True, False, True)))
    assert not runs(ends[0].double(), ends[1])
    assert not runs(ends[0], ends[1].half())


GRADS: dict[str, Callable[[], Tensor]] = {
    "with the negative bit": lambda: torch.complex(torch.zeros(11), -GRAD).conj().imag,
    "a zero tensor": lambda: torch._efficientzerotensor((11,)),
    "sparse": lambda: GRAD.to_sparse(),
}


@folded
@pytest.mark.parametrize("kind", GRADS)
@pytest.mark.parametrize("rule", ["zero", "inward"])
@pytest.mark.parametrize("registered", [False, True], ids=["portable", "two bits"])
def test_grads_without_memory_of_their_own_reach_no_kernel(
    kind: str, rule: str, registered: bool, request: Any
) -> None:
    ran = request.getfixturevalue("two_bits") if registered else []
    f = clamp_of(rule)
    dense = GRADS[kind]().to_dense() if kind == "sparse" else GRADS[kind]().clone()
    expected = plainly(f, grad=dense)
    del ran[:]
    backward, reached = kernels.backward, []
    request.getfixturevalue("monkeypatch").setattr(
        kernels, "backward", lambda *args: (lambda found: (reached.append(found), found)[1])(backward(*args))
    )
    leaf = X.clone().requires_grad_()
    y = f(leaf)
    y.backward(GRADS[kind]())
    assert leaf.grad is not None
    torch.testing.assert_close(leaf.grad.to_dense(), expected, rtol=0, atol=0, equal_nan=True)
    assert reached == [None]
    assert "backward" not in ran
