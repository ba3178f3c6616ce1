"""torch.compile gives the values of eager: what test_matrix.py does not show."""

import pytest
import torch
from torch import Tensor

import pseudograd as pg

from ..choices import slow_but


@pytest.mark.parametrize("rule", slow_but(["inward"], ["zero", "inward", "identity"], pytest.mark.program))
def test_a_compiled_call_on_cpu_saves_x_and_no_bools(rule: str) -> None:
    """A compiler may choose what it saves: bools are fewer bytes, and take ten times as long to read."""
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
    x = torch.linspace(-2, 2, 5, requires_grad=True)
    torch.compile(lambda x: pg.clamp(x * 2, -1, 1, rule=rule), backend=backend, fullgraph=True)(x).sum().backward()
    assert x.grad is not None
    assert saved
    assert torch.bool not in saved
