"""Two gloo processes on this machine, each running functions of a test and reporting what failed."""

import faulthandler
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def run(*jobs: Callable[[int], None], done: Path | None = None) -> None:
    """Run every job(rank), in turn, in two processes of one group; an assertion in either fails the caller.

    `done`: a file that gets the name of each job that both have finished. A process that dies of a signal writes where it was to
    stderr; with `done`, to a file beside it, see `crashes`.
    """
    mp.spawn(_start, (free_port(), jobs, done), nprocs=2)


def crashes(done: Path) -> str:
    """Where the processes that died of a signal were, line by line, and nothing where none did."""
    return "".join(file.read_text() for file in sorted(done.parent.glob("crash of rank *")))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _start(rank: int, port: int, jobs: tuple[Callable[[int], None], ...], done: Path | None) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE="2")
    faulthandler.enable(sys.stderr if done is None else done.with_name(f"crash of rank {rank}").open("w"))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for job in jobs:
        job(rank)
        dist.barrier()
        if done is not None and rank == 0:
            with done.open("a") as file:
                print(job.__name__, file=file)
    os._exit(0)  # or gloo's threads abort, now and then, a process that has done its work (seen on torch 2.14)
