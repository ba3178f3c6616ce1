"""Rewritten calls that keep bits, and calls like an earlier one: they have the gradients, reports and checkpoints of the first call."""

import importlib
import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from pseudograd import kernels
from pseudograd.kernels import native
from pseudograd.rewrite import entered_contexts
from pseudograd.rewrite.mode import Rewrite
from pseudograd.rewrite.override import override
from pseudograd.rewrite.pin_edge import pin_edge
from pseudograd.rule import prepared
from pseudograd.testing.measure.gradients import saved_by
from pseudograd.torch_table.eras import ERAS, installed_era, installed_version
from pseudograd.torch_table.forms import SPELLINGS

from ..choices import every_pair, folded
from ..watching import Watching

OTHER = next(era for era in ERAS if era != installed_era())
CONTEXTS: dict[str, Callable[[], Any]] = {
    "other era": lambda: pin_edge(OTHER),
    "half": lambda: pin_edge("half"),
    "inward": lambda: override(clamp="inward"),
}
SMALL, LARGE = 100, 5000
needs_native = pytest.mark.skipif(native.operators is None, reason="native kernels")

WAYS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "numbers": lambda x, low, high: torch.clamp(x, -1.0, 1.0),
    "by name": lambda x, low, high: x.clamp(min=-1, max=1),
    "one by name": lambda x, low, high: torch.clamp(x, max=1.0),
    "clamp_min": lambda x, low, high: torch.clamp_min(x, -1),
    "tensors": lambda x, low, high: torch.clamp(x, low, high),
    "tensors by name": lambda x, low, high: x.clamp(max=high, min=low),
    "a min": lambda x, low, high: torch.clamp(x, low),
    "a max": lambda x, low, high: torch.clamp(x, None, high),
    "clamp_max": lambda x, low, high: x.clamp_max(high),
    "fmin": lambda x, low, high: torch.fmin(x, high),
    "fmax": lambda x, low, high: torch.fmax(x, low),
    "in place": lambda x, low, high: (x * 1).clamp_(-1.0, 1.0),
}


def inputs(size: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """x of halves, so that many are at a bound, and a NaN; one learned min for all x, and a learned max for each x."""
    x = (torch.randint(-4, 5, (size,), generator=torch.Generator().manual_seed(0)) / 2).to(dtype)
    x[3] = torch.nan
    return [x.requires_grad_(), torch.full((1,), -1.0, dtype=dtype).requires_grad_(), torch.ones(size, dtype=dtype)]


def outcome(f: Callable[..., Tensor], tensors: list[Tensor]) -> list[Tensor | None]:
    y = f(*tensors)
    grad = torch.linspace(-2, 2, y.numel(), dtype=y.dtype)
    learned = [tensor for tensor in tensors if tensor.requires_grad]
    return [y.detach(), *torch.autograd.grad(y, learned, grad, allow_unused=True)]


def same(tensors: list[Tensor | None], others: list[Tensor | None]) -> bool:
    pairs = zip(tensors, others, strict=True)
    return all(a is b is None or torch.equal(a.nan_to_num(7), b.nan_to_num(7)) for a, b in pairs)  # type: ignore[union-attr,arg-type]


@folded
@pytest.mark.parametrize(("way", "context", "size"), every_pair(WAYS, CONTEXTS, [SMALL, LARGE]))
def test_every_call_is_as_the_formula(way: str, context: str, size: int) -> None:
    with CONTEXTS[context](), kernels.switch_off("native", "portable"):
        expected = outcome(WAYS[way], inputs(size))
    with CONTEXTS[context]() as entry:
        for _ in range(3):
            assert same(outcome(WAYS[way], inputs(size)), expected)
    if not (context == "inward" and way in ("fmin", "fmax")):
        assert [site.calls for site in entry.report().rewritten] == [3]


@folded
@needs_native
@pytest.mark.parametrize("size", [SMALL, LARGE])
@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("way", sorted({*WAYS} - {"tensors by name"}))
def test_a_call_that_was_made_before_is_not_read_anew(
    way: str, context: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever tensors ask for a gradient. Attributes are read each time, and so are tensors that come in another order."""
    tensors = inputs(size)
    own = Rewrite._run_unknown

    def refuse(self: Rewrite, func: Any, args: Any, kwargs: Any) -> object:
        assert SPELLINGS.get(func) is None, "it is read anew"
        return own(self, func, args, kwargs)

    is_alike = context == "inward" and way in ("fmin", "fmax")  # they do not have this rule
    is_alike = is_alike or (way == "in place" and size == SMALL)  # such a call saves a copy of x
    asking = [tensor for tensor in tensors[: 1 if "tensors" not in way else None] if tensor.requires_grad]
    with CONTEXTS[context]():
        for _ in range(3):
            WAYS[way](*tensors)
        monkeypatch.setattr(Rewrite, "_run_unknown", refuse)
        for leaf in asking if not is_alike else ():
            y = WAYS[way](*[tensor.detach().requires_grad_(tensor is leaf) for tensor in tensors])
            assert y.requires_grad


@needs_native
def test_the_line_of_a_call_is_looked_up_once() -> None:
    x = torch.zeros(SMALL, requires_grad=True)
    with override(clamp="inward"):
        for _ in range(9):
            torch.clamp(x, -1.0, 1.0)
        (mode,) = entered_contexts.modes()
        (known,) = prepared[mode][torch.clamp].values()
    assert [tallied.calls for tallied in known.tallied.values()] == [9]


LOWER = (0.0, -0.0, 0, torch.zeros(1), torch.nn.Parameter(torch.zeros(1)), torch.zeros(1).double())


@needs_native
@pytest.mark.parametrize("context", CONTEXTS)
def test_another_call_is_not_taken_for_one_that_was_made(context: str) -> None:
    """Other dtypes, signs of zero, kinds of a bound, grad modes and transforms."""
    with CONTEXTS[context]():
        for dtype, low in itertools.product((torch.float32, torch.float64, torch.bfloat16), LOWER):
            x = torch.tensor([-1.0, -0.0, 0.0, 0.5], dtype=dtype, requires_grad=True)
            clamp = (lambda: torch.clamp_min(x, low)) if isinstance(low, Tensor) else (lambda: torch.clamp(x, low, 1.0))  # noqa: B023
            first, _, third = clamp(), clamp(), clamp()
            plain = torch.clamp(x.detach(), min=low)
            assert third.dtype is plain.dtype
            assert torch.equal(third.detach(), plain)
            assert torch.equal(third.signbit(), plain.signbit())
            assert torch.equal(*(torch.autograd.grad(y.sum(), x)[0] for y in (first, third)))
        x = torch.zeros(4, requires_grad=True)
        with torch.no_grad():
            assert torch.clamp(x, 0.0, 1.0).grad_fn is None
        assert torch.clamp(x.detach(), 0.0, 1.0).grad_fn is None
        slope = torch.autograd.grad(torch.clamp(x, 0.0, 1.0).sum(), x)[0]
        assert torch.equal(torch.func.vmap(torch.func.grad(lambda x: torch.clamp(x, 0.0, 1.0)))(x.detach()), slope)
        with pytest.raises(TypeError):
            torch.clamp(x, "0", 1.0)  # type: ignore[call-overload]


@needs_native
def test_the_table_of_kernels_may_change_between_two_calls() -> None:
    x = torch.tensor([-1.0, 0.0], requires_grad=True)
    with pin_edge("half") as entry:
        for _ in range(2):
            torch.clamp(x, -1.0, 1.0)
        assert any(isinstance(key, entered_contexts.Entered) for key in prepared)
        with kernels.switch_off("native"):
            assert not any(isinstance(key, entered_contexts.Entered) for key in prepared)
            assert torch.autograd.grad(torch.clamp(x, -1.0, 1.0).sum(), x)[0].tolist() == [0.5, 1.0]
    assert not any(isinstance(key, entered_contexts.Entered) for key in prepared)
    assert entry.report().rewritten[0].calls + entry.report().rewritten[1].calls == 3


def test_a_call_through_torchs_python_or_a_package_is_counted_by_the_programs_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site-packages" / "clamps_of_a_package.py"
    package.parent.mkdir()
    package.write_text("import torch\ndef clamped(x):\n    return torch.relu(x)\n")
    monkeypatch.syspath_prepend(package.parent)
    x = torch.zeros(3, requires_grad=True)
    for function in (torch.nn.functional.relu6, importlib.import_module("clamps_of_a_package").clamped):
        with override(relu="inward") as entry:
            for _ in range(3):
                function(x)
            for _ in range(4):
                function(x)
        assert [site.calls for site in entry.report().rewritten] == [4, 3]


# --- bits and checkpoints ---------------------------------------------------------------------------------------------


def saved(way: str, size: int) -> list[tuple[torch.dtype, int]]:
    """Dtype and bytes of each tensor that a call saves."""
    return [(tensor.dtype, tensor.nbytes) for tensor in saved_by(WAYS[way], inputs(size))]


PLANES = {
    ("numbers", "other era"): 1,
    ("numbers", "inward"): 2,
    ("in place", "other era"): 1,
    ("tensors", "half"): 3,
    ("a min", "half"): 2,
    ("fmax", "half"): 2,
}


@needs_native
@pytest.mark.parametrize(("way", "context"), PLANES)
def test_bits_are_saved_from_4096_elements_on(way: str, context: str) -> None:
    with CONTEXTS[context]():
        for _ in range(3):
            assert saved(way, LARGE) == [(torch.uint8, PLANES[way, context] * -(-LARGE // 64) * 8)]
            assert {dtype for dtype, _ in saved(way, SMALL)} == {torch.float32}


@folded
@pytest.mark.parametrize(("way", "context", "size"), every_pair(WAYS, CONTEXTS, [SMALL, LARGE]))
def test_a_checkpoint_that_ends_in_a_call_that_was_made_before(context: str, way: str, size: int) -> None:
    """The forward runs again when the backward of the call needs its saved tensors, and is rewritten there as before."""
    x, low, high = inputs(LARGE)

    def block(x: Tensor) -> Tensor:
        y = WAYS[way](x * 1, low, high)[:size] * 3
        return WAYS[way](y, low, high[:size])

    with CONTEXTS[context]():
        for _ in range(2):
            (expected,) = torch.autograd.grad(block(x).sum(), x)
        (grad,) = torch.autograd.grad(checkpoint(block, x, use_reentrant=False).sum(), x)
    assert same([grad], [expected])


def test_a_mode_of_the_program_sees_no_call_that_is_made_for_later_ones() -> None:
    """A checkpoint with a policy is such a mode: it refuses a recomputation that calls more than its forward did."""
    with override(clamp="inward"):
        for _ in range(3):
            prepared.clear()
            native._settings.cache_clear()
            x = torch.randn(5, requires_grad=True)
            policy = partial(create_selective_checkpoint_contexts, [torch.ops.aten.mul.Tensor])
            y = checkpoint(lambda x: (x * 2).clamp(-1, 1).sin(), x, use_reentrant=False, context_fn=policy)
            y.sum().backward()


@needs_native
@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_a_mode_of_the_program_sees_torchs_operators_alone(size: int) -> None:
    for bounds in ((-1.0, 1.0), (-torch.ones(1), torch.ones(1))):
        x = torch.randn(size, requires_grad=True)
        with override(clamp="inward"):
            for _ in range(3):
                x.clamp(*bounds)
            with Watching() as seen:
                torch.autograd.grad(x.clamp(*bounds).sum(), x)
        assert not {name for name in seen.names if not hasattr(torch.ops.aten, name)}


@needs_native
def test_where_torch_hides_its_checkpoints_no_bits_are_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    """On this torch a recomputation runs under the contexts of the backward, so it must save what torch saves."""
    monkeypatch.setattr(kernels.table, "checkpoint_frame", None)
    kernels.table._note_change()
    try:
        for context in CONTEXTS.values():
            with context():
                for way, count in (("numbers", 1), ("tensors", 3)) * 2:
                    assert [dtype for dtype, _ in saved(way, LARGE)] == [torch.float32] * count
    finally:
        monkeypatch.undo()
        kernels.table._note_change()


def test_a_pin_leaves_what_torch_does_itself_to_torch() -> None:
    with pin_edge("tensorflow"):
        assert {"relu", "abs"} <= entered_contexts.families_left_to_torch()


def test_a_pin_to_the_installed_era_alone_is_not_there() -> None:
    if (2, 14) <= installed_version() < (2, 15):
        pytest.skip("the pin means fmax and fmin of 2.15, which have another NaN")
    with pin_edge(installed_era()) as entry:
        assert entered_contexts.modes() == ()
        assert entered_contexts.families_left_to_torch() == {"clamp", "fmax", "fmin", "quantile"}
        assert torch.overrides._get_current_function_mode_stack() == []
        with override(clamp="identity"), pin_edge(installed_era()):
            assert len(entered_contexts.modes()) == 2
        with override(sign="window", round="identity"), pin_edge(installed_era()):
            assert len(entered_contexts.modes()) == 1
        with pin_edge("half"):
            assert len(entered_contexts.modes()) == 1
    assert entry.report().rewritten == entry.report().missed == ()
    assert "nothing is rewritten" in str(entry.report())
