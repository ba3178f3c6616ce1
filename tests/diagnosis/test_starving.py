"""Who starves: what the model given or an optimiser that stepped should train. What gets nothing on purpose is a calm line."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import optimizer as torch_optimizer

from pseudograd.diagnosis import diagnose
from pseudograd.diagnosis.context import Diagnosis
from pseudograd.diagnosis.count import leaves as leaves_module
from pseudograd.diagnosis.count.optimisers import Optimisers
from pseudograd.torch_table.eras import CLOSED_ERA, installed_era

STEPPED_BY_NONE = (
    "4 parameters of {} are stepped by no optimiser: they learn nothing here, as a target or teacher net should"
)


def net(inputs: int = 4, outputs: int = 3) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 32), nn.ReLU(), nn.Linear(32, outputs))


def starved(d: Diagnosis) -> list[str]:
    assert d.to_json()["errors"] == []
    return [one.parameter for one in d.starved]


def step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


@pytest.fixture(autouse=True)
def _no_hook_is_left() -> Any:
    torch.manual_seed(0)
    yield
    assert not torch_optimizer._global_optimizer_pre_hooks
    assert not torch_optimizer._global_optimizer_post_hooks


# --- on purpose -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_given", [True, False])
@pytest.mark.parametrize("how", ["no_grad", "detach", "argmax"])
def test_a_target_net_is_a_calm_line(how: str, is_given: bool) -> None:
    online = net()
    target = copy.deepcopy(online)
    optimizer = torch.optim.Adam(online.parameters())
    with diagnose(online if is_given else None) as d:
        for _ in range(3):
            x = torch.randn(16, 4)
            out = online(x + 1)
            if how == "no_grad":
                with torch.no_grad():
                    y = target(x)
            else:
                y = target(x).detach() if how == "detach" else functional.one_hot(target(x).argmax(1), 3).float()
            step(optimizer, functional.mse_loss(out, y))
    assert starved(d) == []
    assert [one for one in d.findings if one.code == "starved"] == []
    assert d.calm == [STEPPED_BY_NONE.format("Sequential(2)")]
    assert d.calm[0][:40] in str(d)
    assert not set(d.parameters[:4]) & set(d.parameters[4:])  # never another root's names
    assert d.parameters[:4] == ["0.weight", "0.bias", "2.weight", "2.bias"]


class Byol(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.online, self.predictor = net(8, 8), nn.Linear(8, 8)
        self.target = copy.deepcopy(self.online)

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = self.target(other)
        return -functional.cosine_similarity(self.predictor(self.online(one)), wanted).mean()


def test_a_target_inside_the_model_given() -> None:
    model = Byol()
    optimizer = torch.optim.SGD([*model.online.parameters(), *model.predictor.parameters()], 0.1)
    with diagnose(model) as d:
        for _ in range(3):
            x = torch.randn(16, 8)
            step(optimizer, model(x + 0.1, x - 0.1))
    assert (starved(d), d.calm) == ([], [STEPPED_BY_NONE.format("target")])


@pytest.mark.parametrize("is_given", [True, False])
def test_without_a_step_a_net_under_no_grad_is_calm(is_given: bool) -> None:
    online, target = net(), net()
    with diagnose(online if is_given else None) as d:
        with torch.no_grad():
            y = target(torch.randn(16, 4))
        functional.mse_loss(online(torch.randn(16, 4)), y).backward()
    assert starved(d) == []
    (line,) = d.calm
    assert ("not of the model given" in line) == is_given
    assert ("under no_grad" in line) == (not is_given)


def test_gan_alternation() -> None:
    """The last bias of a critic whose loss is a difference of means gets zeros in its own steps: a constant cancels there."""
    generator, critic = net(4, 8), net(8, 1)
    one, other = torch.optim.Adam(generator.parameters()), torch.optim.Adam(critic.parameters())
    with diagnose() as d:
        for _ in range(3):
            fake = generator(torch.randn(16, 4)).detach()
            step(other, critic(fake).mean() - critic(torch.randn(16, 8)).mean())
            step(one, -critic(generator(torch.randn(16, 4))).mean())
    assert (starved(d), d.calm) == ([], [])
    with diagnose() as d:
        for _ in range(3):
            fake = generator(torch.randn(16, 4)).detach()
            step(other, critic(fake).mean() - critic(torch.randn(16, 8)).mean())
    assert starved(d) == []
    assert d.calm[0] == STEPPED_BY_NONE.format("Sequential")
    assert d.calm[1].startswith("1 parameter of Sequential(2) gets zeros alone while the weight beside it learns")


def test_frozen_or_without_a_rate() -> None:
    model = net()
    model[0].requires_grad_(False)
    with diagnose(model) as d:
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            step(optimizer, model(torch.randn(16, 4)).square().mean())
    assert (starved(d), d.calm) == ([], [])
    model = net()
    groups: list[dict[str, Any]] = [{"params": model[0].parameters(), "lr": 0.0}, {"params": model[2].parameters()}]
    optimizer = torch.optim.SGD(groups, 0.1)
    with diagnose(model) as d:
        for _ in range(3):
            step(optimizer, model[2](model[0](torch.randn(16, 4)).detach()).square().mean())
    assert starved(d) == []
    assert d.calm == ["2 parameters of Sequential stand in a group of an optimiser whose rate is 0"]
    warmed = torch.optim.SGD(model.parameters(), 0.0)  # a rate of 0 everywhere freezes nothing: a warm-up starts so
    with diagnose(model) as d:
        step(warmed, model[2](model[0](torch.randn(16, 4)).detach()).square().mean())
    assert starved(d) == ["0.weight", "0.bias"]


def _as_grads(model: nn.Module, x: Tensor) -> None:
    values = {name: one.detach() for name, one in model.named_parameters()}
    found = torch.func.grad(lambda p: torch.func.functional_call(model, p, x).square().mean())(values)
    for name, one in model.named_parameters():
        one.grad = found[name]


def _by_autograd(model: nn.Module, x: Tensor) -> None:
    for one, grad in zip(
        model.parameters(), torch.autograd.grad(model(x).square().mean(), list(model.parameters())), strict=True
    ):
        one.grad = grad


@pytest.mark.parametrize("compute", [_as_grads, _by_autograd])
def test_a_gradient_that_the_program_puts_there_itself(compute: Callable[[nn.Module, Tensor], None]) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with diagnose(model) as d:
        for _ in range(3):
            compute(model, torch.randn(16, 4))
            optimizer.step()
    assert starved(d) == []


def test_a_closure_computes_within_the_step() -> None:
    model, x = net(), torch.randn(16, 4)
    optimizer = torch.optim.LBFGS(model.parameters(), 0.1)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    with diagnose(model) as d:
        for _ in range(3):
            optimizer.zero_grad()
            optimizer.step(closure)
    assert starved(d) == []


@pytest.mark.parametrize("is_before", [True, False])
def test_an_optimiser_that_steps_in_the_backward(is_before: bool) -> None:
    model = net()
    each = {one: torch.optim.SGD([one], 0.1) for one in model.parameters()}

    def at_once(parameter: Tensor) -> None:
        each[parameter].step()  # type: ignore[index]
        each[parameter].zero_grad()  # type: ignore[index]

    if is_before:
        _ = [one.register_post_accumulate_grad_hook(at_once) for one in model.parameters()]
    with diagnose(model) as d:
        if not is_before:
            _ = [one.register_post_accumulate_grad_hook(at_once) for one in model.parameters()]
        for _ in range(3):
            model(torch.randn(16, 4)).square().mean().backward()
    assert starved(d) == []


def test_parameters_that_a_program_replaces() -> None:
    """As Gaussian splatting does when it adds points: the new ones have had no backward yet when the context ends."""
    points = nn.Parameter(torch.randn(10, 3))
    optimizer = torch.optim.SGD([points], 0.1)
    with diagnose() as d:
        for at in range(6):
            points.square().mean().backward()
            if at % 3 == 2:
                points = nn.Parameter(torch.cat([points.detach(), torch.randn(4, 3)]))
                optimizer.param_groups[0]["params"] = [points]
            optimizer.step()
            optimizer.zero_grad()
    assert starved(d) == []
    assert len(d.parameters) == 3


# --- not on purpose ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_given", [True, False])
def test_an_unused_head_in_an_optimiser(is_given: bool) -> None:
    model = nn.ModuleDict({"used": net(), "unused": nn.Linear(3, 3)})
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with diagnose(model if is_given else None) as d:
        for _ in range(2):
            step(optimizer, model["used"](torch.randn(16, 4)).square().mean())
    assert starved(d) == ["unused.weight", "unused.bias"]
    (finding,) = d.findings
    assert finding.cause == "it is on no path to the loss"
    assert finding.next_step == "Remove it from the optimiser, or use it in the loss."


def test_an_encoder_that_an_optimiser_steps_behind_a_detach() -> None:
    encoder, head = net(), nn.Linear(3, 2)
    optimizer = torch.optim.SGD([*encoder.parameters(), *head.parameters()], 0.1)
    with diagnose() as d:
        for _ in range(2):
            step(optimizer, head(encoder(torch.randn(16, 4)).detach()).square().mean())
    assert [one.why for one in d.starved] == ["its only way to the loss is cut by .detach()"] * 4


def test_a_model_given_that_no_optimiser_holds() -> None:
    """Another is stepped: the advice is to add it, never to take the detach away."""
    model, other = net(), nn.Linear(3, 2)
    optimizer = torch.optim.SGD(other.parameters(), 0.1)
    with diagnose(model) as d:
        for _ in range(2):
            step(optimizer, other(model(torch.randn(16, 4)).detach()).square().mean())
    assert len(starved(d)) == 4
    assert d.findings[0].next_step == "No optimiser that stepped here holds it: if it should learn, add it to one."


def _hook(model: nn.Sequential) -> None:
    model[0].weight.register_hook(lambda grad: grad * 0)


def _later_hook(model: nn.Sequential) -> None:
    def zero(parameter: Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad.zero_()

    model[0].weight.register_post_accumulate_grad_hook(zero)


def _none(model: nn.Sequential) -> None:
    model[0].weight.grad = None


def _zero(model: nn.Sequential) -> None:
    assert model[0].weight.grad is not None
    model[0].weight.grad.zero_()


@pytest.mark.parametrize("is_stepped", [True, False])
@pytest.mark.parametrize(("inside", "between"), [(_hook, None), (_later_hook, None), (None, _none), (None, _zero)])
def test_a_gradient_that_is_taken_away(inside: Any, between: Any, is_stepped: bool) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with diagnose(model) as d:
        if inside is not None:
            inside(model)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(16, 4)).square().mean().backward()
            if between is not None:
                between(model)
            if is_stepped:
                optimizer.step()
    if between is not None and not is_stepped:
        assert starved(d) == []  # nobody was to use it
        return
    assert starved(d) == ["0.weight"]
    (finding,) = [one for one in d.findings if one.code == "starved"]
    if inside is _hook:
        assert finding.cause == "all of the gradient is cut by hook"
    else:
        assert finding.evidence == "1 parameter got a gradient that was taken away in every backward: 0.weight"
        assert "requires_grad_(False)" in finding.next_step


def test_frozen_for_a_while_by_its_gradient() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with diagnose(model) as d:
        for at in range(4):
            optimizer.zero_grad()
            model(torch.randn(16, 4)).square().mean().backward()
            if at < 2:
                model[2].weight.grad = None
            optimizer.step()
    assert starved(d) == []


# --- many -------------------------------------------------------------------------------------------------------------


def test_two_hundred_parameters_of_no_module_are_counted_one_by_one() -> None:
    some = [nn.Parameter(torch.ones(3)) for _ in range(200)]
    optimizer = torch.optim.SGD(some, 0.1)
    with diagnose() as d:
        for _ in range(2):
            step(optimizer, torch.stack([one.square().sum() for one in some[:50]]).sum())
    assert len(starved(d)) == 150
    assert len(d.parameters) == 200


def test_beyond_the_last_bit_they_are_counted_in_crowds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaves_module, "_OWN", 10)
    some = [nn.Parameter(torch.ones(3)) for _ in range(50)]
    optimizer = torch.optim.SGD(some, 0.1)
    with diagnose() as d:
        for _ in range(2):
            step(optimizer, torch.stack([one.square().sum() for one in some[5:20]]).sum())
        del optimizer, some[30:]  # what is gone stays counted
    last = d.starved[-1]
    found = len(d.starved) - 1 + int(last.parameter.split(" of ")[0])
    assert found == 35
    assert last.parameter.endswith("of 40 parameters of shape (3,)")


def test_a_new_leaf_in_each_step_keeps_memory_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaves_module, "_OWN", 10)
    model = net()
    with diagnose(model) as d:
        for _ in range(40):
            x = torch.randn(2, 4, requires_grad=True)
            model(x).square().sum().backward()
    leaves = d._recorder.leaves
    assert starved(d) == []
    assert len(leaves.all) == 4 + 10 + 1
    ((_, crowd),) = leaves.crowds.values()
    assert (crowd.count, len(crowd.members) <= 1) == (30, True)


def test_a_new_model_in_each_step_keeps_memory_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """With code of its own, and an optimiser: once enough of them are gone, those that come are counted and forgotten."""
    monkeypatch.setattr(leaves_module, "_OWN", 16)
    alive = weakref.WeakSet[Any]()

    def train(number: int) -> None:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        made: dict[str, Any] = {}
        exec(compile("def f(x):\n    return x.clamp(-1, 1)\n", f"<made {number}>", "exec"), made)
        alive.update([model, optimizer, made["f"], *model.parameters()])
        step(optimizer, made["f"](model(torch.randn(2, 4))).sum())

    def kept() -> dict[str, int]:
        gc.collect()
        recorder = d._recorder
        leaves = recorder.leaves
        return {
            "leaves": len(leaves.all),
            "references": len(leaves._bits),
            "owners": len(leaves.names._owners),
            "members": sum(len(crowd.members) for _, crowd in leaves.crowds.values()),
            "tallies": len(recorder.tallies),
            "values": len(recorder.clamps.all),
            "places": len(recorder.places._known),
            "modules": len(recorder.places.roots) + len(leaves._named_roots),
            "marks": len(recorder.influence._marks),
        }

    given = net()
    with diagnose() as d:
        step(torch.optim.SGD(given.parameters(), 0.1), given(torch.randn(2, 4)).sum())
        for number in range(20):
            train(number)
        before = kept()
        for number in range(60):
            train(number)
        assert kept() == before
        assert len(alive) == 0
    every = sum(crowd.count for _, crowd in d._recorder.leaves.crowds.values())
    assert every + sum(leaf is not None for leaf in d._recorder.leaves.all) == 81 * len(list(given.parameters()))
    assert not any("Sequential(30)" in name for name in d.parameters)


# --- the hooks --------------------------------------------------------------------------------------------------------


def test_an_error_in_the_hook_of_a_step_is_noted_and_goes_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Any, *arguments: Any) -> None:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(Optimisers, "_look", fail)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    before = model[0].weight.detach().clone()
    with diagnose(model) as d:
        step(optimizer, model(torch.randn(16, 4)).square().mean())
    assert not torch.equal(before, model[0].weight)
    assert any("a step of an optimiser: ZeroDivisionError: ours" in one for one in d.to_json()["errors"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_a_complex_parameter_is_told_what_a_real_one_is(dtype: torch.dtype) -> None:
    w, v = nn.Parameter(torch.ones(3, dtype=dtype)), nn.Parameter(torch.ones(3))
    with diagnose() as d:
        (w.detach().abs() * v).sum().backward()
    (one,) = d.starved
    assert one.why == "its only way to the loss is cut by .detach()"


@pytest.mark.skipif(installed_era() == CLOSED_ERA, reason="this torch passes the gradient at the bound")
def test_what_an_era_cuts_at_the_bound_alone_is_mended_by_a_pin() -> None:
    """A scorer that starts at 0 stands at every kink of its loss: no rule is wrong there, the edge is."""
    scorer = nn.Linear(4, 1)
    for parameter in scorer.parameters():
        nn.init.zeros_(parameter)
    with diagnose(scorer) as d:
        for _ in range(3):
            better, worse = scorer(torch.randn(8, 4)), scorer(torch.randn(8, 4))
            nn.functional.margin_ranking_loss(better, worse, torch.ones(8, 1)).backward()
    found = next(one for one in d.findings if one.code == "starved")
    assert found.next_step.startswith("with pseudograd.pin_edge('torch<=2.13')")
