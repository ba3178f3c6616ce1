"""The name of a parameter: its path in the given model, else in the outermost module of the program."""

import gc
import inspect  # noqa: F401
import sys  # noqa: F401
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel

from pseudograd.diagnosis import diagnose
from pseudograd.diagnosis.count.names import unwrapped
from pseudograd.listen import variables

from .checks import define, diagnosed


class Trainer(nn.Module):
    """As a LightningModule: its own call is never made, so no frame shows it."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = nn.Linear(4, 3), nn.Linear(3, 2)
        self.scale = nn.Parameter(torch.ones(3))

    def training_step(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x) * self.scale).square().mean()


def test_a_wrapper_of_torch_is_no_part_of_a_name() -> None:
    net = DataParallel(Trainer())
    assert unwrapped(net) is net.module
    for given, named in ((None, net.module), (net, net)):  # the names of a given wrapper begin with "module."
        d = diagnosed(lambda: net.module.training_step(torch.randn(5, 4)), given)
        assert set(d.parameters) == {name for name, _ in named.named_parameters()}


def test_the_outermost_module_names_even_if_it_never_runs_and_when_it_is_gone() -> None:
    with diagnose() as d:
        trainer = Trainer()
        trainer.training_step(torch.randn(5, 4)).backward()
        names = {name for name, _ in trainer.named_parameters()}
        del trainer
    assert set(d.parameters) == names


def test_two_nets_of_one_class_are_told_apart() -> None:
    first, second = nn.Sequential(nn.Linear(2, 2)), nn.Sequential(nn.Linear(2, 2))
    for given in (None, second):
        d = diagnosed(lambda: second(first(torch.randn(3, 2))).sum(), given)
        names = ["0.weight", "0.bias", "Sequential(2).0.weight", "Sequential(2).0.bias"]
        assert (sorted(d.parameters), given and d.parameters) == (sorted(names), given and names)


def test_a_finding_says_which_module_calls() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.Hardtanh(-9, 9), nn.Linear(3, 3), nn.Hardtanh(5, 6))
    d = diagnosed(lambda: net(torch.randn(2, 3)).sum(), net)
    assert [finding.module for finding in d.findings] == ["3"]
    assert d.to_json()["findings"][0]["module"] == "3"
    assert "module: 3" in str(d)


class Sketch:
    def __init__(self) -> None:
        self.latent = torch.ones(2, requires_grad=True)
        self.params = {"scale": torch.ones(2, requires_grad=True), 3: torch.ones(2, requires_grad=True)}

    def step(self) -> None:
        (self.latent * self.params["scale"] * self.params[3]).sum().backward()


class Pair(NamedTuple):
    mean: Tensor
    spread: Tensor


@dataclass(slots=True)
class Light:
    power: Tensor


class Settings:
    noise = torch.ones(2, requires_grad=True)


def test_a_leaf_has_the_name_that_the_program_gives_it() -> None:
    image, frozen = torch.ones(2, requires_grad=True), torch.ones(2)
    points = [torch.ones(2, requires_grad=True) for _ in range(2)]
    pair = Pair(torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True))
    lights = {"key": Light(torch.ones(2, requires_grad=True))}
    with diagnose() as d:
        for point in points:
            (point * frozen * image * pair.mean * pair.spread * lights["key"].power * Settings.noise).sum().backward()
    assert sorted(d.parameters) == [
        "Settings.noise",
        "image",
        'lights["key"].power',
        "pair.mean",
        "pair.spread",
        "points[0]",
        "points[1]",
    ]
    with diagnose() as d:
        Sketch().step()
    assert sorted(d.parameters) == ["self.latent", 'self.params["scale"]', "self.params[3]"]


def test_leaves_of_one_name_are_told_apart() -> None:
    def step() -> None:
        mixed = torch.ones(2, requires_grad=True)
        mixed.sum().backward()

    with diagnose() as d:
        step()
        step()
    assert d.parameters == ["mixed", "mixed(2)"]


def test_to_read_a_name_keeps_no_object_alive_and_changes_no_dictionary(tmp_path: Path) -> None:
    """Before Python 3.13, the variables of a frame are a dictionary that keeps them, and that `locals()` has returned."""

    def step() -> bool:
        image, large = torch.ones(2, requires_grad=True), torch.ones(3)
        gone = weakref.ref(large)
        image.sum().backward()
        del large
        return gone() is None

    body = "image = torch.ones(2, requires_grad=True)\nconfig = {}\ntotal = image.sum()\ntotal.backward()\nreturn list(config)"
    with diagnose() as d:
        assert step()
        for read in ("locals()", "sys._getframe().f_locals", "inspect.getargvalues(sys._getframe()).locals"):
            assert define(body.format(read), tmp_path / "program.py", "", **globals())() == ["image"]
    assert d.errors == []


def test_no_module_is_searched_for_leaves_that_are_new_in_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    net, searches = nn.Linear(2, 1), []
    monkeypatch.setattr(gc, "get_objects", lambda: searches.append(1) or [])
    with diagnose():
        for _ in range(20):
            mixed = torch.randn(3, 2, requires_grad=True)
            (slope,) = torch.autograd.grad(net(mixed).sum(), mixed, create_graph=True)
            slope.square().sum().backward()
        assert searches == []


def test_an_object_with_two_names_is_looked_into_once() -> None:
    parts, search = [1, 2, 3], variables._Search([0])
    search.look_into([("first", parts), ("second", parts)])
    assert search._objects == 5
