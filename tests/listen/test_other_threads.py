"""A context that another thread ends, as a generator that is closed elsewhere: the thread that entered it goes on as without a context."""

import asyncio
import gc
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import pseudograd as pg
from pseudograd.listen import patches
from pseudograd.rewrite.entered_contexts import families_left_to_torch
from pseudograd.torch_table.eras import installed_era
from pseudograd.torch_table.private import mode_stack

from .test_asked_by_torch import attention_that_evaluates, small_step

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
CONTEXTS: dict[str, Callable[[], Any]] = {
    "override": lambda: pg.override(clamp="identity"),
    "pin": lambda: pg.pin_edge("half", abs=1),
    "a pin of what torch does": lambda: pg.pin_edge(installed_era()),
    "diagnose": pg.diagnose,
}
End = Callable[[Callable[..., object]], object]  # calls the function in another thread


def _in_a_pool(end: Callable[..., object]) -> object:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(end).result()


def _in_asyncio(end: Callable[..., object]) -> object:
    async def wait() -> object:
        return await asyncio.to_thread(end)

    return asyncio.run(wait())


ENDS: dict[str, End] = {"pool": _in_a_pool, "asyncio": _in_asyncio}


def _enter(context: Any, is_generator: bool) -> Callable[..., object]:
    """Enter the context; returns what ends it."""

    def steps() -> Generator[None, None, None]:
        with context:
            yield

    if is_generator:
        generator = steps()
        next(generator)
        return generator.close
    context.__enter__()
    return lambda: context.__exit__(None, None, None)


def _values() -> str:
    x = torch.tensor([-2.0, 0.0, 1.0, 2.0], requires_grad=True)
    (x.clamp(0, 1).sum() + x.abs().sum()).backward()
    torch.manual_seed(0)
    results = [x.grad, *small_step(), attention_that_evaluates()]
    return repr(results)


@pytest.mark.parametrize("is_generator", [False, True], ids=["exit", "generator"])
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("make", CONTEXTS.values(), ids=CONTEXTS)
def test_a_context_that_another_thread_ends(make: Callable[[], Any], end: End, is_generator: bool) -> None:
    """The first thread computes what it computes without the context, and its next zero_grad takes the mode off."""
    wanted, context = _values(), make()
    applied = patches.status()
    end(_enter(context, is_generator))
    assert _values() == wanted
    assert mode_stack() == []
    assert not families_left_to_torch()
    gc.collect()
    assert patches.status() == applied
    assert getattr(context, "errors", []) == []


@pytest.mark.parametrize("make", CONTEXTS.values(), ids=CONTEXTS)
def test_the_other_thread_keeps_its_own_context(make: Callable[[], Any]) -> None:
    """Of the same kind, entered before it ends the first one. Each thread has its own stacks of modes and of hooks."""
    context = make()
    end_first = _enter(context, is_generator=False)

    def other() -> None:
        with make() as mine:
            before, families = mode_stack(), families_left_to_torch()
            end_first()
            assert (mode_stack(), families_left_to_torch()) == (before, families)
            torch.ones(3, requires_grad=True).clamp(2, 3).sum().backward()
        if isinstance(mine, type(pg.diagnose())):
            assert ([site.cut for site in mine.sites], mine.errors) == ([3], [])

    _in_a_pool(other)
    with make():
        pass
    assert mode_stack() == []


def test_a_context_whose_thread_is_gone() -> None:
    """It is entered in a thread that ends before the context does."""
    applied = patches.status()
    end: Any = _in_a_pool(lambda: _enter(pg.override(clamp="identity"), is_generator=True))
    end()
    assert mode_stack() == []
    del end
    for _ in range(1000):  # torch frees the stack of a thread somewhat later than Python says that it has ended
        gc.collect()
        if patches.status() == applied:
            return
        time.sleep(0.01)
    raise AssertionError(patches.status())


def test_a_checkpoint_recomputes_as_it_was_made() -> None:
    x = torch.tensor([-2.0, 0.5], requires_grad=True)
    end = _enter(pg.override(clamp="identity"), is_generator=False)
    y = checkpoint(lambda x: x.clamp(0, 1).exp(), x, use_reentrant=False)
    _in_a_pool(end)
    y.sum().backward()
    torch.testing.assert_close(x.grad, y.detach())
    torch.optim.SGD([nn.Parameter(x)]).zero_grad()
    assert mode_stack() == []


def test_a_diagnosis_that_ends_inside_a_step() -> None:
    """In a step of an optimiser the mode is off the stack. Nobody puts it back."""
    parameter, diagnosis, applied = nn.Parameter(torch.ones(2)), pg.diagnose(), patches.status()
    end = _enter(diagnosis, is_generator=False)
    optimizer = torch.optim.SGD([parameter])
    optimizer.register_step_post_hook(lambda *_: _in_a_pool(end))
    parameter.clamp(0, 1).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    assert (mode_stack(), patches.status(), diagnosis.errors) == ([], applied, [])
