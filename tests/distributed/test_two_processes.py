"""Sharded and replicated tensors and training steps: two processes give what one gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from . import jobs, two_processes

pytestmark = [
    pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without distributed"),
    pytest.mark.xdist_group("two processes"),
]


def _before_2_10(job: Callable[[int], None], issue: str) -> Any:
    """A fault of older torch: these jobs ask plain torch first, and fail there."""
    is_old = torch.__version__ < "2.10"
    error = torch.multiprocessing.ProcessRaisedException
    return pytest.param(job, marks=pytest.mark.xfail(is_old, reason=issue, raises=error, strict=True))


@pytest.mark.parametrize(
    "job",
    [
        jobs.sharded_tensors,
        _before_2_10(jobs.sharded_bounds, "pytorch#158619: DTensor has no clamp with tensor bounds"),
        jobs.no_gather,
        jobs.ddp,
        _before_2_10(jobs.fsdp, "pytorch#162338: over gloo, FSDP2 sums gradients that it should average"),
        _before_2_10(jobs.projected_shards, "pytorch#158619: DTensor has no clamp with tensor bounds"),
        jobs.other_rules_on_shared_parameters,
    ],
    ids=lambda job: job.__name__,
)
def test_two_processes_equal_one(job: Callable[[int], None]) -> None:
    two_processes.run(job)
