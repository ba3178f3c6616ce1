"""A residual of two bits gives the same gradients as the inputs, whichever kernel or formula computes the forward and the backward."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from torch.utils.flop_counter import FlopCounterMode

import pseudograd as pg
from pseudograd import engine, kernels
from pseudograd.kernels import bits
from pseudograd.ops.bounds import unify_bounds
from pseudograd.rule import OPS, Call
from pseudograd.testing.contract.cases import Case
from pseudograd.testing.measure.transforms import REVERSE

from ..choices import folded, one_in, slow_but
from ..contract.cases import every_case
from ..kernels.ways import FOR_EVERYTHING, codes_from

X = torch.tensor([-torch.inf, -2.0, -1.0, -0.0, 0.0, 0.5, 1.0, 2.0, torch.inf, torch.nan, -1.5])
GRAD = torch.tensor([1.0, -2.0, 3.0, -4.0, 5.0, -6.0, 7.0, -8.0, -9.0, 10.0, 0.0])
RULES = ("zero", "inward", "sign", "leaky")
CALLS = [(name, edge) for name in RULES for edge in ("closed", "open", "half")]
Function = Callable[[Tensor], Tensor]


@pytest.fixture(autouse=True)
def _turn_native_off() -> Iterator[None]:
    """tests/kernels has the tests of the kernels in C."""
    with kernels.switch_off("native"):
        yield


def counting_kernel(ran: list[str]) -> kernels.Kernel:
    """The formulas of the residual of bits, as a kernel that notes that it ran."""

    def forward(*arguments: Any) -> Any:
        ran.append("forward")
        return bits.BITS.encode(*arguments)

    def backward(*arguments: Any) -> Any:
        ran.append("backward")
        return bits.BITS.pull(*arguments)

    return kernels.Kernel("counting", bits.BITS, lambda call: True, backward, forward, priority=50)


@contextlib.contextmanager
def keep_two_bits() -> Iterator[list[str]]:
    """Calls keep bits of few elements, too, and the counting kernel computes. Gives the names of its functions that ran."""
    ran: list[str] = []
    kernel = counting_kernel(ran)
    kernels.register(kernel)
    with codes_from(FOR_EVERYTHING):
        yield ran
    kernels.remove(kernel)


@pytest.fixture
def two_bits() -> Iterator[list[str]]:
    with keep_two_bits() as ran:
        yield ran


def clamp_of(rule: str, edge: str = "closed") -> Function:
    return lambda x: pg.clamp(x * 1, -1.0, 1.0, rule=rule, edge=edge)


def grad_of(f: Function, grad: Tensor = GRAD) -> Tensor:
    leaf = X.clone().requires_grad_()
    f(leaf).backward(grad)
    return leaf.grad


def assert_equal(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)


def differentiate_twice(f: Function) -> Tensor:
    leaf, grad = X.clone().requires_grad_(), GRAD.clone().requires_grad_()
    (first,) = torch.autograd.grad(f(leaf), leaf, grad, create_graph=True)
    (slope,) = torch.autograd.grad(first.sum(), grad, allow_unused=True)
    return first.detach() if slope is None else torch.stack([first.detach(), slope])


def differentiate_compiled(f: Function) -> Tensor:
    torch._dynamo.reset()
    with torch._dynamo.compiled_autograd._enable(lambda graph: torch.compile(graph, backend="eager")):
        return grad_of(f)


def _selective() -> Any:
    return create_selective_checkpoint_contexts(
        lambda ctx, op, *args, **kwargs: (
            CheckpointPolicy.MUST_SAVE if op is torch.ops.aten.mul.Tensor else CheckpointPolicy.PREFER_RECOMPUTE
        )
    )


WAYS: dict[str, Callable[[Function], Tensor]] = {
    "plain": grad_of,
    "double backward": differentiate_twice,
    "compiled autograd": differentiate_compiled,
    "selective checkpoint": lambda f: grad_of(lambda x: checkpoint(f, x, use_reentrant=False, context_fn=_selective)),
    **{way.__name__: lambda f, way=way: way(f, X, GRAD) for way in REVERSE},
}


@folded
@every_case
def test_a_gradient_for_each_input_and_no_more(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Autograd raises no error for too many gradients."""
    monkeypatch.setattr(bits, "least_elements", 1)
    call = case.call()
    for sample in case.samples():
        inputs = sample.build(torch.float32)
        if case.op.rule_set == "clamp":
            inputs = (inputs[0], *unify_bounds(*inputs))
        wants = tuple(isinstance(value, Tensor) and value.is_floating_point() for value in inputs)
        for wanted in {wants, (True, *[False] * (len(wants) - 1))}:
            residual = kernels.residual_of(call, inputs, wanted)
            y, saved = residual.encode(call, inputs, wanted)
            grad = torch.ones_like(y)
            assert len(residual.pull(grad, saved, wanted, call)) == len(inputs)
            gradients = kernels.backward(residual, grad, saved, wanted, call)
            assert gradients is None or len(gradients) == len(inputs)


@folded
@pytest.mark.parametrize(("call", "way"), one_in(3, CALLS, [name for name in WAYS if name != "compiled autograd"]))
def test_two_bits_give_what_the_inputs_give(call: tuple[str, str], way: str) -> None:
    expected = WAYS[way](clamp_of(*call))
    with keep_two_bits():
        assert_equal(WAYS[way](clamp_of(*call)), expected)


@pytest.mark.parametrize("rule", slow_but(["inward"], ["zero", "inward"], pytest.mark.program))
def test_under_compiled_autograd(rule: str, two_bits: list[str]) -> None:
    assert WAYS["compiled autograd"](clamp_of(rule))[1:9].tolist() == grad_of(clamp_of(rule))[1:9].tolist()


def test_a_kernel_computes_a_forward_only_where_nobody_must_see_it(two_bits: list[str]) -> None:
    """A mode sees torch's own ops. The call saves the same with a mode and without."""
    expected = grad_of(clamp_of("inward"))
    for context in (contextlib.nullcontext(), FlopCounterMode(display=False)):
        two_bits.clear()
        leaf = X.clone().requires_grad_()
        with context:
            y = clamp_of("inward")(leaf)
        y.backward(GRAD)
        assert_equal(leaf.grad, expected)
        assert two_bits == ["forward", "backward"][isinstance(context, FlopCounterMode) :]


@pytest.mark.parametrize("counted", ["forward", "backward", "both"])
def test_modes_come_and_go_around_a_checkpoint(counted: str, two_bits: list[str]) -> None:
    """A checkpoint compares what its two passes save. A mode around one pass changes only whether the kernel or the formula computes."""
    leaf = X.clone().requires_grad_()
    around = {
        name: FlopCounterMode(display=False) if counted in (name, "both") else contextlib.nullcontext()
        for name in ("forward", "backward")
    }
    with around["forward"]:
        y = checkpoint(clamp_of("inward"), leaf, use_reentrant=False)
    with around["backward"]:
        y.backward(GRAD)
    assert_equal(leaf.grad, grad_of(clamp_of("inward")))


def test_override_around_a_checkpoint_with_its_backward_outside(two_bits: list[str]) -> None:
    leaf = X.clone().requires_grad_()
    with pg.override(clamp="inward"):
        y = checkpoint(lambda x: torch.clamp(x * 1, -1.0, 1.0), leaf, use_reentrant=False)
    y.backward(GRAD)
    assert_equal(leaf.grad, grad_of(clamp_of("inward")))


def test_kernels_are_switched_off_and_on_between_the_passes(two_bits: list[str]) -> None:
    f = clamp_of("inward")
    expected = grad_of(f)
    two_bits.clear()
    leaf = X.clone().requires_grad_()
    y = f(leaf)
    with kernels.switch_off("counting"):
        assert_equal(torch.autograd.grad(y, leaf, GRAD, retain_graph=True)[0], expected)
    assert two_bits == ["forward"]
    torch.autograd.grad(y, leaf, GRAD)
    assert two_bits == ["forward", "backward"]


def test_a_kernel_that_is_registered_after_the_first_call_runs_until_it_is_removed() -> None:
    f, ran = clamp_of("inward"), []
    with codes_from(FOR_EVERYTHING):
        expected = grad_of(f)
        kernel = counting_kernel(ran)
        kernels.register(kernel)
        try:
            grad_of(f)
            assert ran == ["forward", "backward"]
            leaf = X.clone().requires_grad_()
            y = f(leaf)
        finally:
            kernels.remove(kernel)
    assert_equal(torch.autograd.grad(y, leaf, GRAD)[0], expected)
    assert ran == ["forward", "backward", "forward"]


def test_a_residual_gets_a_want_for_each_input() -> None:
    wanted: list[tuple[bool, ...]] = []

    def serves(call: Call, inputs: tuple[object, ...], wants: tuple[bool, ...]) -> bool:
        wanted.append(wants)
        return bits.BITS.serves(call, inputs, wants)

    watched = bits.BITS.replaced(serves=serves, priority=100)
    kernels.register(watched)
    try:
        for f in (pg.clamp, pg.clamp_):
            wanted.clear()
            x = X.clone().requires_grad_()
            (grad_x,) = torch.autograd.grad(f(x * 1, -1.0, 1.0), x, GRAD)
            assert set(wanted) == {(True, False, False)}
            assert_equal(grad_x, grad_of(clamp_of("inward")))
    finally:
        kernels.remove(watched)


def test_saved_inputs_are_those_of_a_node_of_that_primitive(two_bits: list[str]) -> None:
    x, threshold = torch.tensor([0.25, 2.0], requires_grad=True), torch.tensor([0.5, 0.5], requires_grad=True)
    y = pg.jumprelu(x, threshold, bandwidth=0.5)
    node = y.grad_fn
    call, (saved_x, saved_threshold, bandwidth, _) = engine.saved_inputs_of(node, OPS["jumprelu"]) or (None, [None] * 4)
    assert call.label == "jumprelu/window"
    assert (saved_x.tolist(), saved_threshold.tolist(), bandwidth) == ([0.25, 2], [0.5, 0.5], 0.5)
    assert engine.saved_inputs_of(node, OPS["clamp"]) is None
    assert engine.saved_inputs_of(torch.sin(x).grad_fn, OPS["jumprelu"]) is None
    assert engine.saved_inputs_of(pg.clamp(x * 1, -1.0, 1.0).grad_fn, OPS["clamp"]) is None, "it saves bits"
