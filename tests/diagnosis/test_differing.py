"""What differs between ranks is said, with numbers; where they agree, nothing is."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pseudograd.diagnosis import Diagnosis
from pseudograd.diagnosis.processes import fields_of, merge
from pseudograd.diagnosis.ranks import differences, lines
from pseudograd.listen.program.follow import Part

from ..distributed import two_processes

NOTHING = Diagnosis(None, None, "full")


class Net(nn.Module):
    def __init__(self, gain: float = 0.5) -> None:
        super().__init__()
        self.gain, self.scale = nn.Parameter(torch.tensor([gain])), nn.Parameter(torch.tensor([2.0]))

    def forward(self, x: Tensor) -> Tensor:
        return ((x * self.scale).clamp(-1, 1) * self.gain.clamp(0, 1)).sum()


def _part(number: int | None, far: int, gain: float = 0.5, steps: int = 1, aux: bool = False, of: int = 200) -> Part:
    """Of a rank of whose `of` elements `far` are outside the clamp."""
    net = Net(gain)
    x = torch.cat([torch.full((far,), 3.0), torch.full((of - far,), 0.25)])
    with Diagnosis(net, None, "full") as d:
        for _ in range(steps):
            loss = net(x)
            if aux:
                loss = loss + torch.relu(net.scale).sum()
            loss.backward()
    return Part(10 + (number or 0), number, True, fields_of(d))


def _lines(*parts: Part) -> list[tuple[str, str]]:
    """Without the file's name and the call."""
    place = re.compile(r"\S*test_differing\.py:\d+ `.*`")
    return [(label, place.sub("HERE", text)) for label, text in lines(differences(parts))]


@pytest.mark.parametrize(
    ("far", "of", "differ"),
    [
        ((500, 690), 1000, False),  # 19 % apart
        ((500, 750), 1000, True),  # 25 %, eleven deviations
        ((50, 75), 100, False),  # 25 %, and no four deviations
        ((0, 100), 200, True),
    ],
)
def test_shares_differ_if_they_are_further_apart_than_batches(far: tuple[int, int], of: int, differ: bool) -> None:
    few, many = (_part(rank, count, of=of) for rank, count in enumerate(far))
    texts = [text for label, text in _lines(few, many) if label == "share that is cut"]
    low, high = (f"{100 * count / of:.1f} %" if count else "0 %" for count in far)
    assert texts == ([f"clamp HERE: {low} in rank 0, {high} in rank 1"] if differ else [])


def test_findings_parameters_lines_and_passes_of_one_rank_alone_differ() -> None:
    assert _lines(_part(0, 0), _part(1, 100, gain=5.0, aux=True, steps=2)) == [
        ("finding", "starved HERE: in rank 1 alone"),
        ("finding", "cut HERE: in rank 1 alone"),
        ("starves", "gain: in rank 1 alone"),
        ("share that is cut", "clamp HERE: 0 % in rank 0, 50.0 % in rank 1"),
        ("gradient arrives", "relu HERE: in rank 1 alone"),
        ("backward passes", "1 in rank 0, 2 in rank 1"),
    ]
    idle = Part(3, 2, True, fields_of(NOTHING))
    assert _lines(_part(0, 0), _part(1, 0), idle) == [("backward passes", "1 in rank 0, 1 in rank 1, 0 in rank 2")]


def test_the_few_of_many_ranks_are_named() -> None:
    healthy, starving = _part(0, 0), _part(0, 0, gain=5.0)
    parts = [Part(number, number, True, healthy.content) for number in range(63)]
    by_label = dict(_lines(*parts, _part(63, 0, gain=5.0)))
    assert by_label["starves"] == "gain: in rank 63 alone"
    assert "share that is cut" not in by_label, "it is a share of one element"
    by_label = dict(_lines(*parts, _part(63, 100)))
    assert by_label["share that is cut"] == "clamp HERE: 0 % in rank 0, 50.0 % in rank 63, 62 more between"
    parts = [Part(number, number, True, starving.content) for number in range(3)]
    assert dict(_lines(*parts, _part(3, 0)))["starves"] == "gain: in all but rank 3"


def test_only_ranks_are_compared_and_a_child_counts_with_its_rank() -> None:
    assert differences([_part(None, 0), _part(None, 200)]) == differences([_part(0, 0), _part(None, 200)]) == []
    own, child = _part(0, 0), _part(0, 120, steps=2)
    assert _lines(own, child, _part(1, 60, steps=3)) == []  # 40 % and 30 %
    assert dict(_lines(own, child, _part(1, 0, steps=2))) == {
        "finding": "cut HERE: in rank 0 alone",
        "share that is cut": "clamp HERE: 40.0 % in rank 0, 0 % in rank 1",
        "backward passes": "3 in rank 0, 2 in rank 1",
    }


def test_the_ranks_of_a_pipeline_have_other_parameters() -> None:
    def stage(rank: int) -> Part:
        net = nn.ModuleDict({f"stage{rank}": Net()})
        with Diagnosis(net, None, "full") as d:
            net[f"stage{rank}"](torch.ones(3)).backward()
        return Part(rank, rank, True, fields_of(d))

    assert _lines(stage(0), stage(1)) == [("parameters", "2 in rank 0, 2 in rank 1")]


def test_text_json_and_page_have_the_same_differences_or_none(tmp_path: Path) -> None:
    report = merge([_part(0, 100), _part(1, 100)], [], NOTHING)
    assert report.to_json()["differences"] == []
    assert "between ranks" not in str(report)
    assert '"between_ranks": []' in report.write_html(tmp_path / "page.html").read_text()
    report = merge([_part(0, 0), _part(1, 200)], [], NOTHING)
    share = next(row for row in report.to_json()["differences"] if row["kind"] == "share")
    assert (share["name"], share["ranks"]) == ("clamp", {"rank 0": 0.0, "rank 1": 1.0})
    assert re.search(
        r"between ranks: finding: .* share that is cut: clamp \S+ `\(x \* self.scale\).clamp\(-1, 1\)`: "
        r"0 % in rank 0, 100 % in rank 1 parameters:",
        " ".join(str(report).split()),
    )
    page = report.write_html(tmp_path / "page.html").read_text()
    assert '["share that is cut", "clamp ' in page
    for name in ("ranks-section", "ranks"):
        assert page.count(f'id="{name}"') == 1
        assert f'get("{name}")' in page


# --- as it is launched ------------------------------------------------------------------------------------------------

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
    return torch.randn(64, 8) * (20 if rank == 1 else 1)
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
@pytest.mark.parametrize("is_inside", [False, True], ids=["outside", "inside"])
@pytest.mark.parametrize(
    ("program", "launcher"),
    [(DDP, TORCHRUN), (FSDP2, TORCHRUN), (ACCELERATE, BY_ACCELERATE)],
    ids=["ddp", "fsdp2", "accelerate"],
)
def test_a_launcher_inside_or_outside_makes_one_report(
    tmp_path: Path, program: str, launcher: list[str], is_inside: bool
) -> None:
    if "accelerate" in launcher[0] and find_spec("accelerate") is None:
        pytest.skip("accelerate is not installed")
    (tmp_path / "train.py").write_text(HEAD + program)
    ours = ["pseudograd", "diagnose", "--json", "found.json"]
    option = "--main_process_port" if "accelerate" in launcher[0] else "--master-port"
    launcher = [*launcher, option, str(two_processes.free_port())]
    words = [*launcher, "-m", *ours] if is_inside else [*ours, "-m", *launcher]
    done = subprocess.run(
        [sys.executable, "-m", *words, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads((tmp_path / "found.json").read_text())
    assert [(process["name"], process["backwards"]) for process in report["processes"]] == [
        ("rank 0", 2),
        ("rank 1", 2),
    ]
    assert report["unseen"] == report["errors"] == []
    (share,) = report["differences"]
    assert (share["kind"], share["name"], share["where"]) == ("share", "clamp", "train.py:11")
    assert 0 < share["ranks"]["rank 0"] < 0.3 < 0.8 < share["ranks"]["rank 1"] < 1
    assert done.stderr.count("between ranks:") == 1
