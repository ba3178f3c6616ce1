"""`pseudograd diagnose` of a program on two ranks, with the launcher inside and outside of the command."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from ..distributed import two_processes

HEAD = """\
import torch, torch.distributed as dist
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.fc = nn.Linear(8, 8)

    def forward(self, x):
        return self.fc(x).clamp(-1, 1).sum()

def batch(rank):
    torch.manual_seed(rank)
    return torch.randn(64, 8) * (20 if rank == 1 else 0.1)
"""
TRAINING = """
optimizer = torch.optim.SGD(net.parameters(), 1e-3)
for step in range(2):
    net(batch(dist.get_rank())).backward()
    optimizer.step()
dist.destroy_process_group()
"""
DDP = 'dist.init_process_group("gloo")\nnet = nn.parallel.DistributedDataParallel(Net())' + TRAINING
FSDP2 = (
    'from torch.distributed.fsdp import fully_shard\ndist.init_process_group("gloo")\n'
    'net = fully_shard(Net(), mesh=dist.device_mesh.init_device_mesh("cpu", (2,)))' + TRAINING
)
ACCELERATE = """
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
net = Net()
net, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), 1e-3))
for step in range(2):
    accelerator.backward(net(batch(accelerator.process_index)))
    optimizer.step()
accelerator.end_training()
if dist.is_initialized():  # else torch may abort
    dist.destroy_process_group()
"""
TORCHRUN = ["torch.distributed.run", "--nproc-per-node", "2"]
OPTIONS = "--multi_gpu --num_processes 2 --num_machines 1 --mixed_precision no --dynamo_backend no"
BY_ACCELERATE = ["accelerate.commands.launch", *OPTIONS.split()]  # and cpu=True


@pytest.mark.slow
@pytest.mark.xdist_group("two processes")
@pytest.mark.parametrize("is_outside", [False, True], ids=["launcher inside", "launcher outside"])
@pytest.mark.parametrize(
    ("program", "launcher"),
    [(DDP, TORCHRUN), (FSDP2, TORCHRUN), (ACCELERATE, BY_ACCELERATE)],
    ids=["ddp", "fsdp2", "accelerate"],
)
def test_a_launcher_inside_makes_one_report_and_outside_one_for_each_rank(
    tmp_path: Path, program: str, launcher: list[str], is_outside: bool
) -> None:
    if "accelerate" in launcher[0] and find_spec("accelerate") is None:
        pytest.skip("accelerate is not installed")
    (tmp_path / "train.py").write_text(HEAD + program)
    ours = ["pseudograd", "diagnose", "--json", "found.json"]
    option = "--main_process_port" if "accelerate" in launcher[0] else "--master-port"
    launcher = [*launcher, option, str(two_processes.free_port())]
    words = [*launcher, "-m", *ours] if is_outside else [*ours, "-m", *launcher]
    done = subprocess.run(
        [sys.executable, "-m", *words, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    names = ["found.json", *["found.rank1.json"] * is_outside]
    assert sorted(file.name for file in tmp_path.glob("*found*")) == names
    reports: list[dict[str, Any]] = [json.loads((tmp_path / name).read_text()) for name in names]
    processes = [[(process["name"], process["backwards"]) for process in report["processes"]] for report in reports]
    assert processes == ([[("rank 0", 2)], [("rank 1", 2)]] if is_outside else [[("rank 0", 2), ("rank 1", 2)]])
    assert all(report["unseen"] == report["errors"] == [] for report in reports)
    (cut,) = [finding for finding in reports[-1]["findings"] if finding["code"] == "cut"]
    assert cut["where"] == "train.py:11"
    assert ("in rank 1 alone" in cut["also"]) != is_outside
