"""What a parameter is called: as the model given says, else as the outermost module of the program does."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel

from pseudograd.diagnosis import diagnose
from pseudograd.diagnosis.count.names import unwrapped


class Quantised(nn.Linear):
    """Its scale leaves torch before any module has returned."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.scale = nn.Parameter(torch.tensor(0.05))

    def forward(self, x: Tensor) -> Tensor:
        weight = torch.fake_quantize_per_tensor_affine(self.weight, self.scale.item(), 0, -8, 7)
        return nn.functional.linear(x, weight, self.bias)


def test_a_leaf_that_is_met_before_its_module_has_returned() -> None:
    net = nn.Sequential(Quantised(8, 16), nn.ReLU(), Quantised(16, 1))
    with diagnose() as d:
        net(torch.randn(4, 8)).sum().backward()
    assert sorted(d.parameters) == sorted(name for name, _ in net.named_parameters())
    assert [record.parameter for record in d.starved] == ["0.scale", "2.scale"]


class Trainer(nn.Module):
    """As a LightningModule: its own call is never made, so no frame shows it."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = nn.Linear(4, 3), nn.Linear(3, 2)
        self.scale = nn.Parameter(torch.ones(3))

    def training_step(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x) * self.scale).square().mean()


def test_the_outermost_module_names_even_if_it_never_runs() -> None:
    trainer = Trainer()
    with diagnose() as d:
        trainer.training_step(torch.randn(5, 4)).backward()
    assert set(d.parameters) == {name for name, _ in trainer.named_parameters()}


def test_a_wrapper_of_torch_is_no_part_of_a_name() -> None:
    net = DataParallel(Trainer())
    assert unwrapped(net) is net.module
    with diagnose() as d:
        net.module.training_step(torch.randn(5, 4)).backward()
    assert set(d.parameters) == {name for name, _ in net.module.named_parameters()}
    with diagnose(net) as d:  # it was given, and says module.
        net.module.training_step(torch.randn(5, 4)).backward()
    assert d.parameters == [name for name, _ in net.named_parameters()]


def test_a_model_that_is_gone_keeps_its_names() -> None:
    with diagnose() as d:
        trainer = Trainer()
        trainer.training_step(torch.randn(5, 4)).backward()
        names = {name for name, _ in trainer.named_parameters()}
        del trainer
    assert set(d.parameters) == names


def test_two_nets_of_one_class_are_told_apart() -> None:
    first, second = nn.Sequential(nn.Linear(2, 2)), nn.Sequential(nn.Linear(2, 2))
    with diagnose() as d:
        second(first(torch.randn(3, 2))).sum().backward()
    assert sorted(d.parameters) == ["0.bias", "0.weight", "Sequential(2).0.bias", "Sequential(2).0.weight"]
    with diagnose(second) as d:
        second(first(torch.randn(3, 2))).sum().backward()
    assert d.parameters == ["0.weight", "0.bias", "Sequential(2).0.weight", "Sequential(2).0.bias"]


def test_a_finding_says_which_module_calls() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.Hardtanh(-9, 9), nn.Linear(3, 3), nn.Hardtanh(5, 6))
    with diagnose(net) as d:
        net(torch.randn(2, 3)).sum().backward()
    assert [finding.module for finding in d.findings] == ["3"]
    assert d.to_json()["findings"][0]["module"] == "3"
    assert "module: 3" in str(d)
