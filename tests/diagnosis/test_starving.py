"""Who starves: what the model given or an optimiser that stepped should train. What gets nothing on purpose is a calm line."""

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch.optim import optimizer as torch_optimizer
from torch.utils.checkpoint import checkpoint

import pseudograd
from pseudograd.diagnosis import diagnose
from pseudograd.diagnosis.context import Diagnosis
from pseudograd.diagnosis.count import leaves as leaves_module
from pseudograd.torch_table.eras import CLOSED_ERA, installed_era

from .checks import diagnosed, line_of, only, starved
from .trainers import sgd, steps

STEPPED_BY_NONE = (
    "4 parameters of {} are stepped by no optimiser: they learn nothing here, as is right for a target or teacher net"
)


def net(inputs: int = 4, outputs: int = 3) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 32), nn.ReLU(), nn.Linear(32, outputs))


def x(width: int = 4) -> Tensor:
    return torch.randn(16, width)


def step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def verdicts(d: Diagnosis) -> tuple[list[str], list[str]]:
    return starved(d), d.calm


@pytest.fixture(autouse=True)
def _no_hook_is_left() -> Any:
    yield
    assert not torch_optimizer._global_optimizer_pre_hooks
    assert not torch_optimizer._global_optimizer_post_hooks


# --- on purpose -------------------------------------------------------------------------------------------------------


TARGETS: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {
    "no_grad": torch.no_grad()(lambda target, batch: target(batch)),
    "detach": lambda target, batch: target(batch).detach(),
    "argmax": lambda target, batch: functional.one_hot(target(batch).argmax(1), 3).float(),
}


def test_a_head_that_was_left_out_of_the_optimiser_is_no_target_net() -> None:
    """Its weight gets zeros, because the features are 0; its bias gets a gradient, so the finding `unused` names the head."""
    net = nn.ModuleDict({"body": nn.Linear(4, 8), "head": nn.Linear(8, 1), "aux": nn.Linear(8, 1)})
    nn.init.constant_(net["body"].bias, -20.0)
    optimizer = sgd(net["body"], net["head"])
    with diagnose(net) as d:
        for _ in range(3):
            features = net["body"](x()).relu()
            step(optimizer, (net["head"](features) + net["aux"](features.detach()) - 1).square().mean())
    assert [finding.parameters for finding in d.findings if finding.code == "unused"] == [("aux.bias",)]
    assert not [line for line in d.calm if "stepped by no optimiser" in line]


@pytest.mark.parametrize("is_given", [True, False])
@pytest.mark.parametrize("how", TARGETS)
def test_a_target_net_is_a_calm_line(how: str, is_given: bool) -> None:
    online = net()
    target = copy.deepcopy(online)

    def loss() -> Tensor:
        batch = x()
        return functional.mse_loss(online(batch + 1), TARGETS[how](target, batch))

    d = steps(online if is_given else None, loss, 3, torch.optim.Adam(online.parameters()))
    assert verdicts(d) == ([], [STEPPED_BY_NONE.format("Sequential(2)")])
    assert "starved" not in [finding.code for finding in d.findings]
    assert d.calm[0][:40] in str(d)
    assert f"{len(d.idle)} others got nothing and do not count as starving" in str(d)
    assert int(d.calm[0].split()[0]) == len(d.idle)
    assert not set(d.parameters[:4]) & set(d.parameters[4:])  # never another root's names
    assert d.parameters[:4] == ["0.weight", "0.bias", "2.weight", "2.bias"]


@pytest.mark.parametrize("is_given", [True, False])
def test_without_a_step_a_net_under_no_grad_is_calm(is_given: bool) -> None:
    online, target = net(), net()
    with diagnose(online if is_given else None) as d:
        with torch.no_grad():
            y = target(x())
        functional.mse_loss(online(x()), y).backward()
    assert starved(d) == []
    (line,) = d.calm
    assert ("not part of the given model" in line, "under no_grad" in line) == (is_given, not is_given)


def test_the_halves_of_a_gan_that_train_in_turns_do_not_starve() -> None:
    """The last bias of a critic whose loss is a difference of means gets zeros in its own steps: a constant cancels there."""
    generator, critic = net(4, 8), net(8, 1)
    generator_optimizer, critic_optimizer = sgd(generator), sgd(critic)

    def critic_loss() -> Tensor:
        return critic(generator(x()).detach()).mean() - critic(x(8)).mean()

    with diagnose() as d:
        for _ in range(3):
            step(critic_optimizer, critic_loss())
            step(generator_optimizer, -critic(generator(x())).mean())
    assert verdicts(d) == ([], [])
    d = steps(None, critic_loss, 3, critic_optimizer)
    assert starved(d) == []
    assert d.calm[0] == STEPPED_BY_NONE.format("Sequential")
    assert d.calm[1].startswith("1 parameter of Sequential(2) gets only zeros, although the weight of the layer")


@pytest.mark.parametrize(
    "normalise",
    [nn.Identity(), parametrizations.spectral_norm, nn.utils.spectral_norm],
    ids=["plain", "parametrised", "hooked"],
)
@pytest.mark.parametrize("count", [3, 1])
def test_a_bias_that_cancels_within_one_batch_is_calm(count: int, normalise: Callable[[nn.Module], nn.Module]) -> None:
    critic = net(8, 1)
    critic[2] = normalise(critic[2])

    def loss() -> Tensor:
        y = critic(x(8))
        return y[:8].mean() - y[8:].mean()

    d = steps(critic, loss, count, sgd(critic))
    assert starved(d) == []
    (line,) = d.calm
    assert line.endswith("output add up to 0")


def test_frozen_parameters_and_a_group_with_the_rate_0_do_not_starve() -> None:
    model = net()
    model[0].requires_grad_(False)
    assert verdicts(steps(model, lambda: model(x()).square().mean(), 3, sgd(model))) == ([], [])
    model = net()

    def loss() -> Tensor:
        return model[2](model[0](x()).detach()).square().mean()

    groups: list[dict[str, Any]] = [{"params": model[0].parameters(), "lr": 0.0}, {"params": model[2].parameters()}]
    calm = ["2 parameters of Sequential belong to a group of an optimiser with the rate 0"]
    assert verdicts(steps(model, loss, 3, torch.optim.SGD(groups, 0.1))) == ([], calm)
    # A rate of 0 everywhere freezes nothing: a warm-up starts so.
    assert starved(steps(model, loss, 1, sgd(model, rate=0.0))) == ["0.weight", "0.bias"]


def test_a_gradient_that_the_program_puts_there_itself_counts() -> None:
    model = net()
    optimizer = sgd(model)
    with diagnose(model) as d:
        for _ in range(3):
            grads = torch.autograd.grad(model(x()).square().mean(), list(model.parameters()))
            for parameter, grad in zip(model.parameters(), grads, strict=True):
                parameter.grad = grad
            optimizer.step()
    assert starved(d) == []


@pytest.mark.parametrize("is_before", [True, False])
def test_parameters_that_are_stepped_in_the_backward_do_not_starve(is_before: bool) -> None:
    model = net()
    each: dict[Tensor, torch.optim.Optimizer] = {p: torch.optim.SGD([p], 0.1) for p in model.parameters()}

    def step_at_once(parameter: Tensor) -> None:
        each[parameter].step()
        each[parameter].zero_grad()

    def register() -> None:
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(step_at_once)

    if is_before:
        register()
    with diagnose(model) as d:
        if not is_before:
            register()
        for _ in range(3):
            model(x()).square().mean().backward()
    assert starved(d) == []


# --- not on purpose ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_given", [True, False])
def test_an_unused_head_in_an_optimiser_starves(is_given: bool) -> None:
    model = nn.ModuleDict({"used": net(), "unused": nn.Linear(3, 3)})
    d = steps(model if is_given else None, lambda: model["used"](x()).square().mean(), 2, sgd(model))
    assert starved(d) == ["unused.weight", "unused.bias"]
    (finding,) = d.findings
    assert finding.cause == "it is on no path to the loss"
    assert finding.next_step.startswith("Use it in the loss.")


def _replace_head(model: nn.Module) -> None:
    setattr(model, "2", nn.Linear(32, 5))


def _assign_state(model: nn.Module) -> None:
    model.load_state_dict({name: torch.randn_like(value) for name, value in model.state_dict().items()}, assign=True)


@pytest.mark.parametrize("is_given", [True, False])
@pytest.mark.parametrize("replace", [_replace_head, _assign_state])
def test_a_replaced_parameter_names_the_new_ones(replace: Callable[[nn.Module], None], is_given: bool) -> None:
    model = net()
    optimizer = sgd(model)
    replace(model)
    d = steps(model if is_given else None, lambda: model(x()).square().mean(), 2, optimizer)
    finding, new = only(d, "unused"), [name for name in d.parameters if name.startswith("2.")]
    assert (set(new) <= set(finding.parameters), [one.code for one in d.findings]) == (True, ["unused"])
    assert "It holds others, which no backward reached" in finding.evidence
    assert finding.next_step.startswith("optimizer")


def test_weights_that_were_tied_after_the_optimiser_was_made() -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    optimizer = sgd(model)
    model[1].weight = model[0].weight
    finding = only(steps(model, lambda: model(x()).square().mean(), 2, optimizer), "starved")
    assert finding.next_step.startswith("Use it in the loss. If another parameter has replaced it")


def test_a_bias_beside_a_weight_that_does_not_learn_is_not_calm() -> None:
    """The bias of a difference of means gets zeros, and the gradient of the weight is taken away."""
    critic = net(8, 1)
    optimizer = sgd(critic)
    with diagnose(critic) as d:
        for _ in range(3):
            optimizer.zero_grad()
            (critic(x(8)).mean() - critic(x(8)).mean()).backward()
            nn.utils.clip_grad_norm_(critic.parameters(), 0.0)
            optimizer.step()
    assert "although the weight" not in str(d)


def test_an_idle_layer_of_a_sequential_is_no_expert() -> None:
    def run() -> Diagnosis:
        """The model is gone when the report is read."""
        model = net()
        return steps(model, lambda: model[2](torch.rand(4, 32)).square().mean(), 2, sgd(model))

    d = run()
    assert (starved(d), d.calm) == (["0.weight", "0.bias"], [])


@pytest.mark.parametrize("is_held", [True, False])
def test_a_model_behind_a_detach_starves_by_it(is_held: bool) -> None:
    """If another alone is stepped, the advice is to add it, never to take the detach away."""
    encoder, head = net(), nn.Linear(3, 2)
    optimizer = sgd(encoder, head) if is_held else sgd(head)
    d = steps(None if is_held else encoder, lambda: head(encoder(x()).detach()).square().mean(), 2, optimizer)
    assert [record.why for record in d.starved] == ["its only way to the loss is cut by .detach()"] * 4
    add = "No optimiser that stepped here holds it: if it should learn, add it to one."
    assert (d.findings[0].next_step == add) == (not is_held)


class _Spare(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(4, 3)
        self.spare = nn.Sequential(nn.Linear(4, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x)


def test_a_layer_that_nothing_uses_is_named_at_the_line_that_makes_it() -> None:
    model = nn.Sequential(_Spare())
    finding = only(steps(model, lambda: model(x()).square().mean(), 2, sgd(model)), "starved")
    assert (finding.expression, len(finding.parameters)) == ("self.spare = nn.Sequential(nn.Linear(4, 3))", 2)


def test_what_a_checkpoint_that_is_computed_once_more_cuts_is_named_there() -> None:
    model, head = net(), nn.Linear(3, 1)

    def forward(x: Tensor) -> Tensor:
        with torch.no_grad():
            h = model(x)
        return head(h)

    optimizer = sgd(model, head)
    d = steps(None, lambda: checkpoint(forward, x().requires_grad_(), use_reentrant=True).square().mean(), 2, optimizer)
    finding = only(d, "starved")
    assert "cuts it in code that a backward runs, as the forward of a checkpoint" in finding.cause
    assert finding.next_step.startswith("Compute it outside of torch.no_grad")


def test_the_inputs_of_a_gradient_are_not_cut_by_it() -> None:
    """A step by hand: what the gradient is asked for decides nothing but which gradients come."""
    used, spare = (nn.Parameter(torch.ones(4)) for _ in range(2))
    with diagnose() as d:
        for _ in range(3):
            grads = torch.autograd.grad((used * x()).square().mean(), [used, spare], allow_unused=True)
            with torch.no_grad():
                used -= 0.1 * grads[0]
    assert not any(name.startswith("spare") for name in starved(d))


def _zero(parameter: Any) -> None:
    parameter.grad.zero_()


def _times_0(grad: Tensor) -> Tensor:
    return grad * 0


def _forget(parameter: Any) -> None:
    parameter.grad = None


def _clip(parameter: Any) -> None:
    nn.utils.clip_grad_norm_([parameter], 0)


# what takes the gradient away between the backward and the step; the expression of the finding
BETWEEN: dict[str, tuple[Callable[[Any], None], str]] = {
    "none": (_forget, ""),
    "zero": (_zero, "parameter.grad.zero_()"),
    "clip": (_clip, "nn.utils.clip_grad_norm_([parameter], 0)"),
}


@pytest.mark.parametrize("is_stepped", [True, False])
@pytest.mark.parametrize("how", ["hook", "early hook", "later hook", *BETWEEN])
def test_a_gradient_that_is_taken_away_before_the_step_starves_its_parameter(how: str, is_stepped: bool) -> None:
    model = net()
    weight, optimizer = model[0].weight, sgd(model)
    between, expression = BETWEEN.get(how, (None, ""))
    if how == "early hook":
        weight.register_hook(_times_0)
    with diagnose(model) as d:
        if how == "hook":
            weight.register_hook(lambda grad: grad * 0)
        elif how == "later hook":
            weight.register_post_accumulate_grad_hook(_zero)
        for _ in range(3):
            optimizer.zero_grad()
            model(x()).square().mean().backward()
            if between is not None:
                between(weight)
            if is_stepped:
                optimizer.step()
    if between is not None and not is_stepped:
        assert starved(d) == []  # nobody was to use it
        return
    assert starved(d) == ["0.weight"]
    finding = only(d, "starved")
    if how == "hook":
        assert finding.cause == "all of the gradient is cut by hook"
    elif how == "early hook":
        assert "Let the hook return what should pass" in finding.next_step
        assert finding.where.endswith(f":{line_of('def _times_0(')}")
    else:
        assert ("?" in finding.where) == (how == "none")
        assert finding.evidence == "1 parameter got a gradient that was taken away in every backward: 0.weight"
        assert "requires_grad_(False)" in finding.next_step
        assert finding.expression == expression
        assert (finding.cause == "this call sets it to 0 or None between the backward and the step") == bool(expression)


def test_an_early_zero_grad_is_named() -> None:
    model = net()
    optimizer = sgd(model)
    with diagnose(model) as d:
        for _ in range(3):
            model(x()).square().mean().backward()
            optimizer.zero_grad()
            optimizer.step()
    assert only(d, "starved").expression == "optimizer.zero_grad()"


@pytest.mark.skipif(installed_era() == CLOSED_ERA, reason="this torch passes the gradient at the bound")
def test_what_an_era_cuts_at_the_bound_alone_is_mended_by_a_pin() -> None:
    """A scorer that starts at 0 stands at every kink of its loss: no rule is wrong there, the edge is."""
    scorer = nn.Linear(4, 1)
    for parameter in scorer.parameters():
        nn.init.zeros_(parameter)
    d = diagnosed(lambda: functional.margin_ranking_loss(scorer(x()), scorer(x()), torch.ones(16, 1)), scorer, times=3)
    assert only(d, "starved").next_step.startswith("with pseudograd.pin_edge('torch<=2.13')")


def test_so_many_leaves_are_looked_at_and_a_line_says_that_there_are_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaves_module, "_MOST_NAMELESS", 10)
    parameters = [nn.Parameter(torch.ones(3)) for _ in range(50)]
    optimizer = torch.optim.SGD(parameters[:10], 0.1)
    for last, calm in ((10, []), (11, ["further parameters and leaves are not looked at: there are too many"])):
        with diagnose() as d:
            for _ in range(2):
                step(optimizer, torch.stack([p.square().sum() for p in parameters[5:last]]).sum())
        assert (len(d.parameters), len(d.starved), d.calm) == (10, 15 - last, calm)


def test_a_new_model_in_each_step_keeps_memory_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """With code of its own, and an optimiser: once enough of them are gone, those that come are not looked at."""
    monkeypatch.setattr(leaves_module, "_MOST_NAMELESS", 16)
    alive = weakref.WeakSet[Any]()

    def train(number: int) -> None:
        model = net()
        optimizer = sgd(model)
        space: dict[str, Any] = {}
        exec(compile("def f(x):\n    return x.clamp(-1, 1)\n", f"<made {number}>", "exec"), space)
        alive.update([model, optimizer, space["f"], *model.parameters()])
        step(optimizer, space["f"](model(torch.randn(2, 4))).sum())

    def sizes() -> list[int]:
        gc.collect()
        recorder = d._recorder
        leaves = recorder.leaves
        bounded = [leaves.all, leaves._bits, leaves.names._owners, recorder.tallies, recorder.clamps.all]
        bounded += [
            recorder.locations._known,
            recorder.locations.roots,
            leaves._named_roots,
            recorder.influence._marks.all,
        ]
        return list(map(len, bounded))

    first = net()
    with diagnose() as d:
        step(sgd(first), first(torch.randn(2, 4)).sum())
        for number in range(20):
            train(number)
        before = sizes()
        for number in range(30):
            train(number)
        assert sizes() == before
        assert len(alive) == 0
    assert d._recorder.leaves.has_more
    assert not any("Sequential(30)" in name for name in d.parameters)


def test_a_backward_that_ends_with_an_error_is_the_cause() -> None:
    model = net()
    with diagnose(model) as d:
        for _ in range(3):
            hidden = model[0](x()).exp()
            loss = model[2](hidden).sum()
            hidden.mul_(2)
            with pytest.raises(RuntimeError, match="inplace operation"):
                loss.backward()
    finding = only(d, "starved")
    assert finding.cause == "3 backwards ended with an error before its gradient arrived"
    assert {"0.weight", "0.bias"} <= set(finding.parameters)


def test_no_only_way_is_cut_where_another_one_ends_with_an_error() -> None:
    p = torch.nn.Parameter(torch.zeros(3))
    with diagnose() as d, torch.autograd.set_detect_anomaly(True), pytest.raises(RuntimeError, match="nan values"):
        torch.where(p > 0, p.log(), p).sum().backward()
    assert only(d, "starved").cause == "1 backward ended with an error before its gradient arrived"


def test_a_cut_in_a_checkpoint_that_ends_with_an_error_has_its_line() -> None:
    layer = nn.Linear(4, 4)
    with diagnose(layer) as d, pytest.raises(RuntimeError, match="requires_grad=True"):
        checkpoint(lambda x: layer(x).argmax(1) * 1.0, x().requires_grad_(), use_reentrant=True).sum().backward()
    finding = only(d, "starved")
    assert finding.expression == "layer(x).argmax(1)"
    assert finding.next_step.startswith("pseudograd.replace_grad(")


@pytest.mark.parametrize(
    "choice",
    [Tensor.argmax, torch.isfinite, lambda h: h > 0, torch.histc],
    ids=["argmax", "isfinite", "comparison", "histc"],
)
def test_the_advice_at_a_choice_works_with_two_tensors(choice: Callable[[Tensor], Tensor]) -> None:
    layer, head = nn.Linear(4, 4), nn.Parameter(torch.ones(()))
    d = diagnosed(lambda: (choice(layer(x())).float() * head).sum(), layer)
    line, spike = only(d, "starved").next_step.split("  # ")
    assert "(a > b).float() becomes pseudograd.heaviside(a - b, at_zero=0.0); compare a training with it" in spike
    soft = torch.zeros(3, requires_grad=True)
    y = eval(line, {"pseudograd": pseudograd, "hard": torch.ones(3), "soft": soft})
    y.sum().backward()
    assert y.tolist() == soft.grad.tolist() == [1, 1, 1]


def test_a_table_gets_its_first_sparse_gradient_late() -> None:
    table = nn.Embedding(4, 2, sparse=True)
    with diagnose(table) as d:
        for high in (6.0, 9.0, 99.0):
            (table(torch.arange(4)) + 9).clamp(0, high).sum().backward()
    assert (d.errors, d.starved) == ([], [])
