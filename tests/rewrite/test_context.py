"""The context itself: nesting, exceptions, generators, threads, decorators, backward afterwards, in-place semantics."""

import contextlib
import functools
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint as torchs_checkpoint
from torch.utils.checkpoint import checkpoint

from pseudograd.diagnosis import diagnose
from pseudograd.listen import patches
from pseudograd.rewrite.override import override
from pseudograd.rewrite.pin_edge import pin_edge
from pseudograd.testing.measure.gradients import saved_by
from pseudograd.torch_table import private as torch_private
from pseudograd.torch_table.eras import ERAS, installed_era

from ..choices import folded

OUT = torch.tensor([-2.0, 0.0, 2.0])


def slope(f=lambda x: torch.clamp(x, -1.0, 1.0)) -> list[float]:
    x = OUT.clone().requires_grad_()
    return torch.autograd.grad(f(x).sum(), x)[0].tolist()


STOCK, INWARD, IDENTITY, SIGN = [0.0, 1.0, 0.0], [0.0, 1.0, 1.0], [1.0, 1.0, 1.0], [-1.0, 1.0, 1.0]


@pytest.fixture(autouse=True)
def _nothing_is_left_behind() -> Iterator[None]:
    run = torch.autograd.graph._engine_run_backward
    yield

    assert torch.overrides._get_current_function_mode_stack() == []
    assert torch.autograd.graph._engine_run_backward is run
    assert torch.autograd._engine_run_backward is run
    assert slope() == STOCK


def in_threads(*targets: Callable[[], object]) -> None:
    """Run the targets at the same time, to their end. An error of a target is raised here."""
    with ThreadPoolExecutor(len(targets)) as pool:
        for future in [pool.submit(target) for target in targets]:
            future.result()


def test_nested_contexts_the_inner_one_decides_for_what_it_names() -> None:
    with override(clamp="inward", relu="identity"):
        with override(clamp="identity"):
            assert slope() == IDENTITY
            assert slope(torch.relu) == IDENTITY
            with override(relu="sign"):
                assert slope() == IDENTITY
                assert slope(torch.relu) == [-1.0, 0.0, 1.0]
        assert slope() == INWARD


def test_an_exception_ends_it_and_backward_may_run_after_it() -> None:
    x = OUT.clone().requires_grad_()
    with contextlib.suppress(ZeroDivisionError), override(clamp="inward"), override(clamp="identity"):
        y = torch.clamp(x, -1.0, 1.0)
        _ = slope()[0] / 0
    assert slope() == STOCK
    assert torch.autograd.grad(y.sum(), x)[0].tolist() == IDENTITY


def test_generators_that_end_out_of_order_end_their_own_context() -> None:
    def steps(rule: str) -> Iterator[list[float]]:
        with override(clamp=rule):
            while True:
                yield slope()

    first, second = steps("inward"), steps("identity")
    assert next(first) == INWARD
    assert next(second) == IDENTITY
    assert next(first) == IDENTITY  # the one entered last decides, as with torch's own contexts
    first.close()
    assert next(second) == IDENTITY
    second.close()
    assert slope() == STOCK
    first, second = steps("inward"), steps("identity")
    next(first), next(second)
    second.close()
    assert next(first) == INWARD
    first.close()


def test_a_decorated_generator_runs_inside_and_waits_outside() -> None:
    noted = []

    @override(clamp="inward")
    def steps() -> Iterator[list[float]]:
        try:
            noted.append((yield slope()))
            yield slope()
        except KeyError:
            yield slope()
        finally:
            noted.append(slope())

    generator = steps()
    assert next(generator) == INWARD
    assert slope() == STOCK
    assert generator.send("sent") == INWARD
    assert generator.throw(KeyError()) == INWARD
    generator.close()
    assert noted == ["sent", INWARD]


def test_async_functions_are_refused() -> None:
    with pytest.raises(TypeError, match=r"override.clamp='inward'.: function must not be async, got .*wait"):

        @override(clamp="inward")
        async def wait() -> None: ...


def test_one_context_in_two_threads_ends_in_the_one_that_leaves_it() -> None:
    """It does not end in the thread that entered it last."""
    context = override(clamp="inward")
    is_first, entered, may_leave = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        is_first.wait(10)
        with context:
            entered.set()
            may_leave.wait(10)
            assert slope() == INWARD
        assert slope() == STOCK

    def leave_first() -> None:
        with context:
            is_first.set()
            entered.wait(10)
        assert slope() == STOCK
        may_leave.set()

    in_threads(work, leave_first)


def test_where_torch_hides_its_stack_of_modes_contexts_end_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_private, "has_mode_stack", False)
    with override(clamp="inward"):
        with override(clamp="identity"):
            assert slope() == IDENTITY
        assert slope() == INWARD
    assert slope() == STOCK


@pytest.mark.skipif(not torch_private.has_mode_stack, reason="this torch hides its modes")
@pytest.mark.parametrize("make", [lambda: override(clamp="inward"), lambda: pin_edge("jax"), diagnose])
def test_a_mode_of_another_ends_before_or_after_ours(make: Any) -> None:
    """Torch's own contexts take off the mode on top. One that begins and ends before ours takes off our mode."""

    class Other(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    context, other = make(), Other()
    context.__enter__()
    other.__enter__()
    (OUT.clone().requires_grad_() * 1).sum().backward()
    assert torch_private.mode_stack()[1:] == [other]
    context.__exit__()
    assert torch_private.mode_stack() == [other]
    other.__exit__(None, None, None)
    context = make()
    with torch.device("cpu"):
        below = torch_private.mode_stack()
        other.__enter__()
        context.__enter__()
        other.__exit__(None, None, None)
        context.__exit__()
        assert torch_private.mode_stack() == below


# --- in place --------------------------------------------------------------------------------------------------------


IN_PLACE = {
    "x.clamp_": lambda x: x.clamp_(-1.0, 1.0),
    "x.clamp_min_": lambda x: x.clamp_min_(-1.0),
    "x.clamp_, tensor": lambda x: x.clamp_(torch.tensor(-1.0)),
    "F.relu": lambda x: functional.relu(x, inplace=True),
    "x.relu_": lambda x: x.relu_(),
    "F.hardtanh_": functional.hardtanh_,
    "nn.ReLU6": nn.ReLU6(inplace=True),
    "nn.Hardsigmoid": nn.Hardsigmoid(inplace=True),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place_is_as_torchs_own_for_whoever_holds_the_tensor(name: str) -> None:
    """Version counters, the identity, and the error for a saved tensor that is changed."""

    def outcome() -> tuple[object, ...]:
        base = OUT.clone().requires_grad_() * 1
        view = base[1:]
        before = base._version
        y = IN_PLACE[name](view)
        return y is view, base._version - before, base.detach().tolist(), y.requires_grad, base.requires_grad

    plain = outcome()
    for context in (override(relu="sign"), override(clamp="inward", relu="inward")):
        with context:
            assert outcome() == plain
            x = OUT.clone().requires_grad_() * 1
            y = x * x  # saves x
            IN_PLACE[name](x)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                y.sum().backward()


# --- what is saved, and checkpoints ----------------------------------------------------------------------------------


def saved(f, *inputs: Tensor) -> list[tuple[object, ...]]:
    """What a call saves, in order: the shape, the dtype, and whether it is an input itself or a copy."""
    inputs_at = {value.data_ptr() for value in inputs}
    return [(tuple(kept.shape), kept.dtype, kept.data_ptr() in inputs_at) for kept in saved_by(f, inputs)]


SAVED = {
    "numbers": lambda x, b, c: torch.clamp(x, -1.0, 1.0),
    "tensors": lambda x, b, c: torch.clamp(x, b, c),
    "least": lambda x, b, c: torch.clamp(x, min=b),
    "most": lambda x, b, c: torch.clamp(x, max=c),
    "clamp_min": lambda x, b, c: torch.clamp_min(x, b),
    "clamp_": lambda x, b, c: (x * 1).clamp_(-1, 1),
    "maximum": lambda x, b, c: torch.maximum(x, b.detach()),
    "minimum": lambda x, b, c: torch.minimum(c.detach(), x),
    "fmax": lambda x, b, c: torch.fmax(x, b),
    "relu": lambda x, b, c: torch.relu(x),
    "relu_": lambda x, b, c: (x * 1).relu_(),
    "relu6": lambda x, b, c: functional.relu6(x),
    "hardtanh": lambda x, b, c: functional.hardtanh(x),
    "hardsigmoid": lambda x, b, c: functional.hardsigmoid(x),
}


@folded
@pytest.mark.parametrize("rule", ["zero", "identity", "inward", "leaky", "pin"])
@pytest.mark.parametrize("name", SAVED)
def test_as_many_tensors_are_saved_as_torch_saves(name: str, rule: str) -> None:
    x = torch.randn(4, 3, requires_grad=True)
    b, c = torch.randn(3, requires_grad=True), torch.randn(4, 1, requires_grad=True)
    plain = saved(SAVED[name], x, b, c)
    if rule == "identity" and name.startswith("relu") and name != "relu6":
        plain = []  # torch saves the result, which this rule does not need
    with pin_edge("half") if rule == "pin" else override(clamp=rule, relu=rule):
        assert saved(SAVED[name], x, b, c) == plain


def clamp_to_one(x: Tensor) -> Tensor:
    return torch.clamp(x, -1.0, 1.0)


REENTRANT = [True, False]


@pytest.mark.parametrize("reentrant", REENTRANT)
def test_a_checkpoint_keeps_its_contexts_wherever_its_backward_runs(reentrant: bool) -> None:
    """Outside, inside another context, and in a thread that entered none."""

    def later(run: Callable[[Tensor], None]) -> list[float]:
        x = OUT.clone().requires_grad_()
        with override(clamp="inward"):
            y = checkpoint(clamp_to_one, x * 1, use_reentrant=reentrant).sum()
        run(y)
        return x.grad.tolist()

    def elsewhere(y: Tensor) -> None:
        with override(clamp="sign"):
            y.backward()
            assert slope() == SIGN

    assert [later(run) for run in (lambda y: y.backward(), elsewhere, lambda y: in_threads(y.backward))] == [INWARD] * 3


@pytest.mark.parametrize("reentrant", REENTRANT)
def test_a_checkpoint_keeps_a_context_that_another_thread_has_ended(reentrant: bool) -> None:
    x, context = OUT.clone().requires_grad_(), override(clamp="inward")
    context.__enter__()
    y = checkpoint(clamp_to_one, x * 1, use_reentrant=reentrant).sum()
    in_threads(context.__exit__)
    assert slope() == STOCK
    y.backward()
    assert x.grad.tolist() == INWARD
    with override(clamp="identity"):  # here this thread forgets the mode
        assert slope() == IDENTITY


@pytest.mark.parametrize("reentrant", REENTRANT)
def test_a_checkpoint_from_outside_keeps_torchs_rule_inside(reentrant: bool) -> None:
    x = OUT.clone().requires_grad_()
    y = checkpoint(clamp_to_one, x * 1, use_reentrant=reentrant).sum()
    with override(clamp="identity") as context:
        y.backward()
        assert slope() == IDENTITY
    assert x.grad.tolist() == STOCK
    assert [site.calls for site in context.report().rewritten] == [1]


REENTRY_IN_REENTRY = pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")  # torch's


@REENTRY_IN_REENTRY
@pytest.mark.parametrize("inner_enters_again", REENTRANT)
@pytest.mark.parametrize("outer_enters_again", REENTRANT)
def test_a_checkpoint_inside_a_checkpoint(outer_enters_again: bool, inner_enters_again: bool) -> None:
    x = OUT.clone().requires_grad_()

    def outer(x: Tensor) -> Tensor:
        with override(clamp="inward"):
            inner = checkpoint(clamp_to_one, x * 1, use_reentrant=inner_enters_again)
        return inner + torch.clamp(x, -1.0, 1.0)

    with override(clamp="identity"):
        y = checkpoint(outer, x, use_reentrant=outer_enters_again).sum()
    y.backward()
    assert x.grad.tolist() == [1.0, 2.0, 2.0]
    assert slope() == STOCK
    assert not [patch for patch in patches.CHECKPOINTS if patch.is_applied]


class _Subclass(torchs_checkpoint.CheckpointFunction):
    pass


class _OwnContext(torch.autograd.Function):
    """A checkpoint as libraries that move activations to the CPU write it, with names of their own."""

    @staticmethod
    def forward(ctx: Any, function: Any, preserve_rng_state: bool, *inputs: Tensor) -> Tensor:
        ctx.forward_function = function
        ctx.save_for_backward(*inputs)
        with torch.no_grad():
            return function(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.forward_function(x)
        torch.autograd.backward(y, grad)
        return None, None, x.grad


@REENTRY_IN_REENTRY
@pytest.mark.parametrize(
    ("owner", "name", "new"),
    [
        (torchs_checkpoint.CheckpointFunction, "forward", torchs_checkpoint.CheckpointFunction.forward),
        (torchs_checkpoint, "CheckpointFunction", _Subclass),
        (torchs_checkpoint, "CheckpointFunction", _OwnContext),
    ],
    ids=["a method", "the class by a subclass", "the class by another one"],
)
def test_contexts_work_where_another_library_replaced_the_checkpoint(
    owner: Any, name: str, new: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, new)
    for context in (override(clamp="identity"), pin_edge("open"), diagnose()):
        x = OUT.clone().requires_grad_()
        with context:
            checkpoint(clamp_to_one, x, use_reentrant=True).sum().backward()
        assert x.grad is not None
    monkeypatch.undo()
    test_a_checkpoint_inside_a_checkpoint(True, True)


@functools.cache
def _scripted() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(clamp_to_one)


class Refining(torch.autograd.Function):
    """Its backward runs a forward of its own, which also has a call that no rewriting reaches, and returns the gradient of that forward."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> Tensor:
        with torch.enable_grad():
            x = OUT.clone().requires_grad_()
            _scripted()(x).sum()
            return torch.autograd.grad(torch.clamp(x, -1.0, 1.0).sum(), x)[0]


@pytest.mark.parametrize("inside_another", [True, False])
@pytest.mark.parametrize("is_of_an_edge", [True, False])
def test_a_forward_inside_a_backward_is_rewritten_once(is_of_an_edge: bool, inside_another: bool) -> None:
    x = OUT.clone().requires_grad_()
    y = Refining.apply(x).sum()  # type: ignore[no-untyped-call]
    around, context = override(relu="identity"), override(clamp="inward")
    with around if inside_another else contextlib.nullcontext(), context:
        if is_of_an_edge:
            torch.autograd.backward(torch.autograd.graph.get_gradient_edge(y), torch.ones(()))
        else:
            y.backward()
        assert slope() == INWARD
    assert x.grad.tolist() == INWARD
    assert sum(site.calls for site in context.report().rewritten) == 2
    assert [site.calls for site in context.report().missed] == [1]
    assert (around.report().rewritten, around.report().missed) == ((), ())


class _Starting(TorchFunctionMode):
    """Another's mode, which starts a backward when torch.neg is called."""

    def __init__(self, start: Callable[[], object]) -> None:
        super().__init__()
        self.start = start

    def __torch_function__(self, func: object, types: object, args: Any = (), kwargs: Any = None) -> object:
        if func is torch.neg:
            self.start()
        return func(*args, **(kwargs or {}))  # type: ignore[operator]


def test_a_backward_that_a_mode_between_two_contexts_starts_runs_under_both() -> None:
    """In the mode between them, torch's stack has the outer context, but not the inner one."""
    x = OUT.clone().requires_grad_()
    edge = torch.autograd.graph.get_gradient_edge(Refining.apply(x).sum())  # type: ignore[no-untyped-call]
    starting = _Starting(lambda: torch.autograd.backward(edge, torch.ones(())))
    with override(relu="identity") as around, starting, override(clamp="inward"):
        torch.neg(OUT)
        assert slope() == INWARD
    assert x.grad.tolist() == INWARD
    assert around.report().rewritten == ()


# --- what others do ---------------------------------------------------------------------------------------------------

CHANGED_AFTERWARDS = {
    "relu": (torch.relu, {"relu": "inward"}),
    "F.relu": (functional.relu, {"relu": "sign"}),
    "sign": (torch.sign, {"sign": "triangle"}),
    "fake_quantize": (lambda h: torch.fake_quantize_per_tensor_affine(h, 0.5, 0, -2, 2), {"fake_quantize": "elastic"}),
    "fake_quantize, channels": (
        lambda h: torch.fake_quantize_per_channel_affine(h, torch.full((3,), 0.5), torch.zeros(3), 0, -2, 2),
        {"fake_quantize": "inward"},
    ),
    "round": (torch.round, {"round": "identity"}),
}


@pytest.mark.parametrize("name", CHANGED_AFTERWARDS)
def test_the_input_may_change_afterwards_where_torch_keeps_nothing_of_it(name: str) -> None:
    f, families = CHANGED_AFTERWARDS[name]

    def gradient(change: bool) -> list[float]:
        w = torch.tensor([-2.0, 0.25, 2.0], requires_grad=True)
        h = w * 1
        with override(**families) as context:  # type: ignore[arg-type]
            y = f(h)
            if change:
                h.mul_(-100.0)
            (grad,) = torch.autograd.grad((y * torch.tensor([1.0, -2.0, 3.0])).sum(), w)
        assert len(context.report().rewritten) == 1
        return grad.tolist()

    assert gradient(change=True) == gradient(change=False)


def test_functionalize_keeps_torchs_rule_and_is_reported() -> None:
    with override(clamp="zero", relu="identity") as context:
        assert torch.func.functionalize(lambda x: torch.clamp(x, -1, 1))(OUT).tolist() == [-1.0, 0.0, 1.0]
        f = torch.func.functionalize(torch.func.grad(lambda x: torch.relu(x).sum()))
        assert f(OUT).tolist() == [0.0, 0.0, 1.0]
    assert context.report().rewritten == ()
    assert {site.why for site in context.report().missed} == {
        "torch.func.functionalize has no rule for a custom backward"
    }


# --- the innermost context decides ------------------------------------------------------------------------------------

AT_EDGE = torch.tensor([-2.0, -1.0, 0.0, 1.0, 2.0])
OF_ERA = {"torch<=2.13": [0.0, 1.0, 1.0, 1.0, 0.0], "torch>=2.14": [0.0, 0.0, 1.0, 0.0, 0.0]}
FMAX_OF_ERA = {"torch<=2.13": 1.0, "torch>=2.14": 0.5}  # at a tie


def edge_slopes(f: Callable[[Tensor], Tensor] = clamp_to_one) -> list[float]:
    x = AT_EDGE.clone().requires_grad_()
    return torch.autograd.grad(f(x).sum(), x)[0].tolist()


def _compiled(pin: Any) -> list[float]:
    torch._dynamo.reset()
    f = torch.compile(lambda x: clamp_to_one(x * 1), backend="aot_eager", fullgraph=True)
    with pin:
        return edge_slopes(f)


def _around(pin: Any) -> list[float]:
    with pin:
        return edge_slopes()


OUTER: dict[str, Any] = {
    **{rule: override(clamp=rule) for rule in ("sign", "inward")},
    **{edge: pin_edge(edge) for edge in (*ERAS, "jax", "tensorflow", "half")},
    "numbers": pin_edge(clamp=0.25, fmax=0.25),
}
HOW: dict[str, Callable[[Any], list[float]]] = {
    "a block": _around,
    "a decorator": lambda pin: pin(edge_slopes)(),
    "a checkpoint": lambda pin: edge_slopes(lambda x: pin(checkpoint)(clamp_to_one, x, use_reentrant=False)),
    "compiled": _compiled,
}


@folded
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(
    "how", [how if how != "compiled" else pytest.param(how, marks=pytest.mark.program) for how in HOW]
)
@pytest.mark.parametrize("outer", OUTER)
def test_a_pin_to_any_era_decides_inside_another_context(outer: str, how: str, era: str) -> None:
    if how == "compiled" and outer not in (*ERAS, "inward"):
        return
    made_before = pin_edge(era)
    with OUTER[outer]:
        for pin in (made_before, pin_edge(era)):
            assert HOW[how](pin) == OF_ERA[era]
        with pin_edge(era):
            assert edge_slopes(lambda x: torch.fmax(x, torch.zeros(5)))[2] == FMAX_OF_ERA[era]
        with pin_edge("half"):
            assert edge_slopes() == [0.0, 0.5, 1.0, 0.5, 0.0]
    assert edge_slopes() == OF_ERA[installed_era()]
