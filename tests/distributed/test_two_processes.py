"""Sharded and replicated tensors and training steps: two processes give what one gives."""

import contextlib
import warnings
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


JOBS = [
    pytest.param(jobs.sharded_tensors),
    _before_2_10(jobs.sharded_bounds, "pytorch#158619: DTensor has no clamp with tensor bounds"),
    pytest.param(jobs.no_gather),
    pytest.param(jobs.ddp),
    _before_2_10(jobs.fsdp, "pytorch#162338: over gloo, FSDP2 sums gradients that it should average"),
    pytest.param(jobs.projected_shards),
    pytest.param(jobs.fsdp_diagnosed),
    pytest.param(jobs.fsdp_diagnosed_to_nan),
    pytest.param(jobs.a_gradient_placed_elsewhere_is_not_compared),
    pytest.param(jobs.ddp_diagnosed),
]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The jobs that one pair of processes finishes in turn: to start a pair takes longer than to do all of them."""
    done = tmp_path_factory.mktemp("two") / "done"
    done.touch()
    with contextlib.suppress(torch.multiprocessing.ProcessRaisedException):
        try:
            two_processes.run(*(job.values[0] for job in JOBS if not job.marks or not job.marks[0].args[0]), done=done)
        # A signal ended a process: the summary of the tests shows where.
        except torch.multiprocessing.ProcessExitedException as error:
            with warnings.catch_warnings():
                warnings.simplefilter("default")
                warnings.warn(f"{error}\n{two_processes.crashes(done)}", stacklevel=1)
    return set(done.read_text().split())


@pytest.mark.program
@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.__name__)
def test_two_processes_equal_one(job: Callable[[int], None], finished: set[str]) -> None:
    """What did not finish among the others is run alone, and shows what is wrong with it."""
    if job.__name__ not in finished:
        two_processes.run(job)
