"""The context itself: nesting, exceptions, generators, threads, decorators, backward afterwards, in-place semantics."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from pseudograd.rewrite import override, pin_edge

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


def test_it_ends_with_the_block() -> None:
    with override(clamp="inward"):
        assert slope() == INWARD
    assert slope() == STOCK


def test_nested_contexts_the_inner_one_decides_for_what_it_names() -> None:
    with override(clamp="inward", relu="identity"):
        with override(clamp="identity"):
            assert slope() == IDENTITY
            assert slope(torch.relu) == IDENTITY
            with override(relu="sign"):
                assert slope() == IDENTITY
                assert slope(torch.relu) == [-1.0, 0.0, 1.0]
        assert slope() == INWARD


def test_one_context_may_be_entered_again_inside_itself() -> None:
    context = override(clamp="inward")
    with context:
        with context:
            assert slope() == INWARD
        assert slope() == INWARD
    assert slope() == STOCK
    with context:
        assert slope() == INWARD
    assert context.report().rewritten[0].calls == 3


def test_an_exception_ends_it() -> None:
    with pytest.raises(ZeroDivisionError), override(clamp="inward"), override(clamp="identity"):
        _ = slope()[0] / 0
    assert slope() == STOCK


def test_an_error_inside_a_rewritten_call_ends_it() -> None:
    with pytest.raises(RuntimeError, match="leaf Variable"), override(clamp="inward"):
        OUT.clone().requires_grad_().clamp_(-1, 1)
    assert slope() == STOCK


def test_as_a_decorator() -> None:
    @override(clamp="inward")
    def f(x: Tensor, factor: float = 1.0) -> Tensor:
        """Its own text."""
        return factor * torch.clamp(x, -1.0, 1.0)

    assert slope(f) == INWARD
    assert slope(lambda x: f(x, factor=2.0)) == [0.0, 2.0, 2.0]
    assert (f.__name__, f.__doc__) == ("f", "Its own text.")


def test_a_suspended_generator_does_not_hand_it_to_its_caller() -> None:
    def steps() -> Iterator[list[float]]:
        with override(clamp="inward"):
            yield slope()
            yield slope()
        yield slope()

    generator = steps()
    assert next(generator) == INWARD
    assert slope() == STOCK
    with override(relu="identity"):
        assert next(generator) == INWARD
        assert slope() == STOCK
        assert slope(torch.relu) == IDENTITY
    assert slope() == STOCK
    assert next(generator) == STOCK


def test_generators_that_end_out_of_order_end_their_own_context() -> None:
    def steps(rule: str) -> Iterator[list[float]]:
        with override(clamp=rule):
            while True:
                yield slope()

    first, second = steps("inward"), steps("identity")
    for _ in range(3):
        assert next(first) == INWARD
        assert next(second) == IDENTITY
        assert slope() == STOCK
    first.close()
    assert next(second) == IDENTITY
    assert slope() == STOCK
    second.close()
    assert slope() == STOCK


def test_a_decorated_generator_runs_inside_and_waits_outside() -> None:
    seen = []

    @override(clamp="inward")
    def steps() -> Iterator[list[float]]:
        try:
            given = yield slope()
            seen.append(given)
            yield slope()
        except KeyError:
            yield slope()
        finally:
            seen.append(slope())

    generator = steps()
    assert next(generator) == INWARD
    assert slope() == STOCK
    assert generator.send("given") == INWARD
    assert generator.throw(KeyError()) == INWARD
    generator.close()
    assert seen == ["given", INWARD]


def test_async_functions_are_refused() -> None:
    with pytest.raises(TypeError, match=r"override.clamp='inward'.: function must not be async, got .*wait"):

        @override(clamp="inward")
        async def wait() -> None: ...


def test_two_threads_keep_their_own_rules() -> None:
    """200 calls in turn: no call may get the other thread's rule."""
    turn = threading.Barrier(2)
    wrong: list[object] = []

    def work(rule: str, expected: list[float]) -> None:
        try:
            for _ in range(100):
                with override(clamp=rule):
                    turn.wait(10)
                    found = slope()
                    turn.wait(10)
                if found != expected or slope() != STOCK:
                    wrong.append((rule, found))
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=a) for a in (("inward", INWARD), ("identity", IDENTITY))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_one_context_in_two_threads() -> None:
    context = override(clamp="inward")
    found: list[list[float]] = []

    def work() -> None:
        with context:
            found.append(slope())

    with context:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert slope() == INWARD
    assert found == [INWARD]
    assert sum(site.calls for site in context.report().rewritten) == 2


def test_a_thread_that_did_not_enter_it_is_not_rewritten() -> None:
    found: list[list[float]] = []
    with override(clamp="inward"):
        thread = threading.Thread(target=lambda: found.append(slope()))
        thread.start()
        thread.join()
    assert found == [STOCK]


def test_backward_may_run_after_the_context() -> None:
    x = OUT.clone().requires_grad_()
    with override(clamp="inward"):
        y = torch.clamp(x, -1.0, 1.0)
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == INWARD


def test_nothing_is_rewritten_without_grad() -> None:
    with override(clamp="inward") as context:
        with torch.no_grad():
            y = torch.clamp(OUT.clone().requires_grad_(), -1.0, 1.0)
        assert not y.requires_grad
        assert torch.clamp(OUT, -1.0, 1.0).grad_fn is None
        with torch.inference_mode():
            assert torch.clamp(OUT, -1.0, 1.0).is_inference()
    assert context.report().rewritten == ()


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
def test_in_place_keeps_torchs_version_counters_and_identity(name: str) -> None:
    def outcome() -> tuple[object, ...]:
        base = OUT.clone().requires_grad_() * 1
        view = base[1:]
        before = base._version
        y = IN_PLACE[name](view)
        return y is view, base._version - before, base.detach().tolist(), y.requires_grad, base.requires_grad

    plain = outcome()
    with override(clamp="inward", relu="inward"):
        assert outcome() == plain


@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place_change_of_a_saved_tensor_is_still_found(name: str) -> None:
    def use() -> None:
        x = OUT.clone().requires_grad_() * 1
        y = x * x  # saves x
        IN_PLACE[name](x)
        y.sum().backward()

    for context in (override(relu="sign"), override(clamp="inward", relu="inward")):
        with context, pytest.raises(RuntimeError, match="modified by an inplace operation"):
            use()


def test_a_tensor_bound_makes_x_require_grad_as_in_torch() -> None:
    low = torch.tensor(-1.0, requires_grad=True)
    x = OUT.clone()
    with override(clamp="inward"):
        x.clamp_(low)
        assert x.requires_grad
        x.sum().backward()
    assert low.grad is not None
    assert low.grad.item() == 1.0


# --- what is saved, and checkpoints ----------------------------------------------------------------------------------


def saved(f, *inputs: Tensor) -> list[tuple[object, ...]]:
    """What a call hands to autograd to keep, in order."""
    kept: list[tuple[object, ...]] = []

    def pack(tensor: Tensor) -> Tensor:
        kept.append((tuple(tensor.shape), tensor.dtype))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        f(*inputs)
    return kept


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


@pytest.mark.parametrize("rule", ["zero", "identity", "inward", "leaky", "pin"])
@pytest.mark.parametrize("name", SAVED)
def test_as_many_tensors_are_saved_as_torch_saves(name: str, rule: str) -> None:
    x = torch.randn(4, 3, requires_grad=True)
    b, c = torch.randn(3, requires_grad=True), torch.randn(4, 1, requires_grad=True)
    plain = saved(SAVED[name], x, b, c)
    with pin_edge("half") if rule == "pin" else override(clamp=rule, relu=rule):
        assert saved(SAVED[name], x, b, c) == plain


def block(x: Tensor) -> Tensor:
    low, high = torch.tensor([-1.0, -1.0, -1.0]), torch.ones(1, requires_grad=True)
    return functional.relu(torch.clamp(torch.clamp(x * 1, -1.0, 1.0) * 3, low, high).clamp_(-0.5, 0.5) * 3)


@pytest.mark.parametrize("rule", ["zero", "identity", "inward", "sign"])
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints_recompute_with_the_same_rules(reentrant: bool, rule: str) -> None:
    x = torch.tensor([[-2.0, -1.0, 0.3], [0.1, 1.0, 2.0]], requires_grad=True)
    with override(clamp=rule, relu=rule) as context:
        (wanted,) = torch.autograd.grad(block(x).sum(), x)
        checkpoint(block, x, use_reentrant=reentrant).sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, wanted)
    assert context.report().missed == ()


@pytest.mark.parametrize("rule", ["zero", "identity", "inward", "pin"])
def test_backward_of_a_non_reentrant_checkpoint_may_run_outside(rule: str) -> None:
    x = torch.tensor([[-2.0, -1.0, 0.3], [0.1, 1.0, 2.0]], requires_grad=True)
    with pin_edge("half") if rule == "pin" else override(clamp=rule, relu=rule):
        (wanted,) = torch.autograd.grad(block(x).sum(), x)
        y = checkpoint(block, x, use_reentrant=False).sum()
    y.backward()
    assert x.grad is not None
    assert torch.equal(x.grad, wanted)


def test_backward_of_a_reentrant_checkpoint_outside_warns() -> None:
    x = OUT.clone().requires_grad_()
    with override(clamp="inward"):
        y = checkpoint(lambda x: torch.clamp(x, -1.0, 1.0), x * 1, use_reentrant=True).sum()
    with pytest.warns(UserWarning, match="reentrant checkpoint is recomputed with torch's own rules"):
        y.backward()
    assert x.grad is not None
    assert x.grad.tolist() == STOCK


def test_backward_of_a_reentrant_checkpoint_in_the_context_again_is_right_and_silent() -> None:
    x, context = OUT.clone().requires_grad_(), override(clamp="inward")
    with context:
        y = checkpoint(lambda x: torch.clamp(x, -1.0, 1.0), x * 1, use_reentrant=True).sum()
    with context:
        y.backward()
    assert x.grad is not None
    assert x.grad.tolist() == INWARD


def test_a_checkpoint_without_matching_calls_never_warns() -> None:
    x = OUT.clone().requires_grad_()
    with override(clamp="inward"):
        y = checkpoint(lambda x: torch.exp(x), x * 1, use_reentrant=True).sum()
    y.backward()


def test_nested_contexts_hold_in_backward() -> None:
    x = OUT.clone().requires_grad_()
    with override(clamp="identity", relu="identity"), override(clamp="inward"):
        checkpoint(lambda x: torch.relu(torch.clamp(x, -1.0, 1.0)), x, use_reentrant=True).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == INWARD


# --- dtypes and subclasses -------------------------------------------------------------------------------------------


def test_autocast_keeps_its_dtypes() -> None:
    layer = nn.Linear(3, 3)

    def outcome() -> tuple[torch.dtype, ...]:
        with torch.autocast("cpu", torch.bfloat16):
            y = layer(OUT)
            return torch.relu(y).dtype, torch.clamp(y, -1, 1).dtype, torch.maximum(y, torch.zeros(3)).dtype

    plain = outcome()
    with override(clamp="inward", relu="inward"):
        assert outcome() == plain


class Tagged(Tensor):
    pass


def test_subclasses_keep_their_type() -> None:
    x = torch.Tensor._make_subclass(Tagged, OUT.clone(), True)
    with override(clamp="inward", relu="inward"):
        for y in (torch.clamp(x, -1, 1), x.relu(), functional.hardtanh(x)):
            assert type(y) is Tagged
        y = torch.clamp(x, -1, 1)
        assert torch.autograd.grad(y.sum(), x)[0].tolist() == INWARD
    parameter = nn.Parameter(OUT.clone())
    plain = type(torch.clamp(parameter, -1, 1))
    with override(clamp="inward"):
        assert type(torch.clamp(parameter, -1, 1)) is plain
