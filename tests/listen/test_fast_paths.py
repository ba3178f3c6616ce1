"""A context of ours computes what the program alone computes where torch asks whether a mode is active: fast paths, traces, autocast."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import pseudograd as pg
from pseudograd.listen import patches

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")

CONTEXTS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "diagnose": pg.diagnose,
    "override": lambda: pg.override(relu="leaky"),
    "pin": lambda: pg.pin_edge("jax"),
}
PADDING = torch.tensor([[0, 0, 0, 1, 1], [0, 0, 0, 0, 0]]).bool()
ALL_PADDING = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 0, 0, 0]]).bool()


def _encoder() -> nn.Module:
    torch.manual_seed(0)
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 2)


def _results(x: Tensor) -> Iterator[Tensor]:
    encoder, attention = _encoder().eval(), nn.MultiheadAttention(16, 2, batch_first=True).eval()
    with torch.no_grad():
        yield encoder(x, src_key_padding_mask=PADDING)
        yield attention(x, x, x, key_padding_mask=ALL_PADDING, need_weights=False)[0]
    yield encoder.requires_grad_(False)(x, src_key_padding_mask=PADDING)


@pytest.mark.parametrize("context", CONTEXTS.values(), ids=CONTEXTS)
def test_attention_in_evaluation_takes_the_fast_path(context: Callable[[], AbstractContextManager[object]]) -> None:
    x = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(2)
    alone = list(_results(x))
    assert (alone[0][0, 3:] == 0).all(), "torch has no fast path here, so that this test shows nothing"
    torch.manual_seed(2)
    with context():
        inside = list(_results(x))
    for expected, value in zip(alone, inside, strict=True):
        assert torch.equal(expected.isnan(), value.isnan())
        assert torch.equal(expected.nan_to_num(), value.nan_to_num())


def test_attention_that_records_derivatives_is_rewritten_and_seen() -> None:
    encoder = _encoder().eval()
    with pg.override(relu="identity") as context, pg.diagnose() as d:
        encoder(torch.randn(2, 5, 16)).sum().backward()
    assert [(row.op, row.calls) for row in context.report().rewritten] == [("relu", 2)]
    assert d.backwards == 1


def test_a_mode_of_the_program_still_sees_what_is_inside() -> None:
    class Names(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            names.append(func.__name__)
            return func(*args, **(kwargs or {}))

    def calls() -> list[str]:
        names.clear()
        with torch.no_grad(), Names():
            encoder(x)
        return list(names)

    names: list[str] = []
    encoder, x = _encoder().eval(), torch.randn(2, 5, 16)
    alone = calls()
    with pg.override(relu="leaky"):
        inside = calls()
    assert "multi_head_attention_forward" in alone
    assert inside == alone


def test_torch_has_its_own_forward_after_the_last_context() -> None:
    forward = nn.MultiheadAttention.forward
    first, second = pg.override(relu="leaky"), pg.diagnose()
    with first, second:
        assert nn.MultiheadAttention.forward is not forward
    assert nn.MultiheadAttention.forward is forward
    assert not [patch for patch in patches.FAST_PATHS if patch.is_applied]


@pytest.mark.parametrize("context", CONTEXTS.values(), ids=CONTEXTS)
def test_a_module_is_traced_with_its_own_values(context: Callable[[], AbstractContextManager[object]]) -> None:
    model, x = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)), torch.randn(4, 8)
    for _ in range(2):  # the second time an override has the call at hand
        with context(), warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            model(x)
            traced = torch.jit.trace(model, x)
        assert torch.equal(traced(x), model(x))
        assert "aten::relu" in str(traced.inlined_graph)


def test_a_report_says_that_a_trace_has_no_rule() -> None:
    with pg.override(relu="leaky") as context, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.trace(nn.Sequential(nn.Linear(8, 16), nn.ReLU()), torch.randn(4, 8))
    assert "torch.jit.trace keeps the values and drops the rule" in str(context.report())
