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


@pytest.mark.parametrize(
    "job",
    [jobs.sharded_tensors, jobs.no_gather, jobs.ddp, jobs.fsdp, jobs.other_rules_on_shared_parameters],
    ids=lambda job: job.__name__,
)
def test_two_processes_equal_one(job: Callable[[int], None]) -> None:
    two_processes.run(job)
