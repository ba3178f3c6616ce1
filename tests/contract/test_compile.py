"""torch.compile gives the values of eager: what test_matrix.py does not show."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

import pseudograd as pg
from pseudograd.ops.bound_rules import in_one_byte

from ..choices import slow_but


def saved_by_compiled(op: Callable[[Tensor], Tensor], device: str) -> list[torch.dtype]:
    """The dtypes that the backward of compiled code gets. The last one is that of grad."""
    from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
    from torch._dynamo.backends.common import aot_autograd

    saved: list[torch.dtype] = []

    def backward(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> object:
        saved.extend(value.dtype for value in inputs)
        return make_boxed_func(graph)

    backend = aot_autograd(
        fw_compiler=lambda graph, inputs: make_boxed_func(graph),
        bw_compiler=backward,
        partition_fn=min_cut_rematerialization_partition,
    )
    x = torch.linspace(-2, 2, 5, device=device, requires_grad=True)
    torch.compile(lambda x: op(x * 2), backend=backend, fullgraph=True)(x).sum().backward()
    assert device == "meta" or torch.equal(x.grad, torch.autograd.grad(op(x * 2).sum(), x)[0])  # type: ignore[arg-type]
    return saved


@pytest.mark.parametrize("rule", slow_but(["inward"], ["zero", "inward", "identity"], pytest.mark.program))
def test_a_compiled_call_on_cpu_saves_x_and_no_bools(rule: str) -> None:
    """A compiler may choose what it saves: bools are fewer bytes, and take ten times as long to read."""
    for maximize in (False, True):
        saved = saved_by_compiled(partial(pg.clamp, min=-1, max=1, rule=rule, maximize=maximize), "cpu")
        assert saved
        assert torch.bool not in saved


@pytest.mark.parametrize(
    "op",
    [
        partial(pg.clamp, min=-1, max=1),
        partial(pg.clamp, min=-1, max=1, rule="leaky_inward", edge="half"),
        partial(pg.relu, rule="inward"),
    ],
    ids=["inward", "half", "relu"],
)
def test_a_compiled_call_on_another_device_saves_one_byte_for_each_element(op: Callable[[Tensor], Tensor]) -> None:
    """As torch.clamp does. Two masks would be two bytes to write and to read, in code that waits for nothing but memory."""
    assert saved_by_compiled(op, "meta") == [torch.uint8, torch.float32]


def test_masks_come_out_of_one_byte_as_they_went_in() -> None:
    masks = list(torch.tensor([[bool(code >> place & 1) for code in range(16)] for place in range(4)]))
    assert torch.equal(torch.stack(in_one_byte(masks)), torch.stack(masks))
    assert torch.equal(torch.stack(in_one_byte(masks[:2])), torch.stack(masks[:2]))
