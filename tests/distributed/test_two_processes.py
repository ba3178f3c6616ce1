"""Sharded and replicated tensors and training steps: two processes give what one gives."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from . import jobs, two_processes

pytestmark = [
    pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without distributed"),
    pytest.mark.xdist_group("two processes"),
]


# Shown without pseudograd: a plain two-layer net differs from one process, too.
fsdp_averages = pytest.mark.skipif(
    torch.__version__ < "2.10", reason="FSDP2 over gloo averages wrongly before torch 2.10"
)


@pytest.mark.parametrize(
    "job",
    [
        jobs.sharded_tensors,
        jobs.no_gather,
        jobs.ddp,
        pytest.param(jobs.fsdp, marks=fsdp_averages),
        jobs.other_rules_on_shared_parameters,
    ],
    ids=lambda job: job.__name__,
)
def test_two_processes_equal_one(job: Callable[[int], None]) -> None:
    two_processes.run(job)
