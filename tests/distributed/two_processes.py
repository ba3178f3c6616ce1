"""Two gloo processes on this machine, each running a function of a test and reporting what failed."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def run(job: Callable[[int], None]) -> None:
    """Run job(rank) in two processes of one group; an assertion in either fails the caller."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(_start, (port, job), nprocs=2)


def _start(rank: int, port: int, job: Callable[[int], None]) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE="2")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    job(rank)
    dist.barrier()
    os._exit(0)  # or gloo's threads abort, now and then, a process that has done its work (seen on torch 2.14)
