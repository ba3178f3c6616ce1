"""Causes that no op names by what it cuts: zeros of a product, hooks, memory that is written to; and what is idle or asked for nothing."""

import contextlib
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Normal
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from pseudograd.diagnosis import diagnose
from pseudograd.diagnosis.context import Diagnosis

from .checks import diagnosed, line_of, make_function, number_of, site_of, starved
from .trainers import Parts, steps

X = torch.rand(5, 3)


def cause_of(d: Diagnosis, parameter: str) -> tuple[int, str]:
    """The line and the sentence."""
    (record,) = [record for record in d.starved if record.parameter == parameter]
    return (0 if record.cause is None else number_of(record.cause.where)), record.why


def test_a_factor_of_zeros_is_followed_to_what_made_it() -> None:
    net = nn.ModuleDict({"first": nn.Linear(3, 4), "head": nn.Linear(4, 2)})
    nn.init.constant_(net["first"].bias, -50.0)
    with diagnose(net) as d:
        for _ in range(2):
            dead = net["first"](torch.rand(5, 3)).relu()
            net["head"](dead.mean(0)).sum().backward()  # past a node that hands on
    why = "it is multiplied with what relu gives, which is 0 everywhere"
    assert cause_of(d, "head.weight") == (line_of("dead = net"), why)
    (finding,) = [finding for finding in d.findings if finding.code == "starved" and "first.weight" in finding.evidence]
    assert why not in finding.cause
    assert finding.also[0] == f"1 parameter got zeros in every backward: head.weight ({why})"


NEVER: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "where": lambda a, b: torch.where(a > -100, a, b),
    "maximum": lambda a, b: torch.maximum(a, b - 1000),
    "select": lambda a, b: torch.stack([a, b])[0],
    "slice": lambda a, b: torch.cat([a, b])[: len(a)],
    "amax": lambda a, b: torch.stack([a, b - 1000]).amax(0),
    "lerp": lambda a, b: torch.lerp(a, b, 0.0),
}


def test_zeros_are_told_of_the_backwards_that_reached_the_parameter() -> None:
    net = nn.ModuleList([nn.Linear(3, 4), nn.Linear(3, 4)])
    with diagnose(net) as d:
        for step in range(4):
            loss = net[0](torch.rand(5, 3)).sum()
            (loss if step % 2 else loss + 0.0 * net[1](torch.rand(5, 3)).sum()).backward()
    assert d.findings[0].evidence.startswith("2 parameters got zeros in every backward that reached them: 1.weight")


@pytest.mark.parametrize("op", NEVER)
def test_a_branch_that_is_never_chosen_has_the_line_that_chooses(op: str) -> None:
    a, b = nn.Linear(3, 4), nn.Linear(3, 4)
    with diagnose(nn.ModuleList([a, b])) as d:
        for _ in range(2):
            x = torch.rand(5, 3)
            NEVER[op](a(x), b(x)).square().sum().backward()
    assert starved(d) == ["1.weight", "1.bias"]
    (finding,) = [finding for finding in d.findings if finding.code == "starved"]
    assert number_of(finding.where) == line_of(f'"{op}": lambda a, b')
    assert finding.cause.startswith(f"{op} hands ")
    assert "zeros alone" in finding.cause


def test_a_backward_that_forgets_an_input_has_the_line_of_its_call() -> None:
    scales = make_function("Scales", lambda ctx, x, scale: x * scale, lambda ctx, grad: (grad, None))
    net = nn.ParameterDict({"x": torch.ones(3), "scale": torch.ones(1)})
    with diagnose(net) as d:
        scales.apply(net["x"], net["scale"].exp()).sum().backward()
    why = "the backward of ScalesBackward returns None for an input that depends on the parameter"
    assert cause_of(d, "scale") == (line_of("scales.apply"), why)
    assert d.findings[0].next_step.startswith("Return the gradient of that input")


@pytest.mark.parametrize("layers", [1, 2])
def test_a_second_derivative_of_relus_asks_for_a_curvature(layers: int) -> None:
    """As a physics-informed network has it. Followed, the advice works."""
    for activation in (nn.ReLU(), nn.Tanh()):
        hidden = [layer for _ in range(layers - 1) for layer in (nn.Linear(8, 8), activation)]
        net = nn.Sequential(nn.Linear(2, 8), activation, *hidden, nn.Linear(8, 1, bias=False))
        x = torch.rand(32, 2, requires_grad=True)
        with diagnose(net) as d:
            (slope,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
            (curve,) = torch.autograd.grad(slope[:, 0].sum(), x, create_graph=True)
            (slope[:, 1] - curve[:, 0]).square().sum().backward()
        biases = [f"{2 * layer}.bias" for layer in range(layers)]
        assert starved(d) == (biases if isinstance(activation, nn.ReLU) else [])
        assert ["curvature" in finding.next_step for finding in d.findings] == [True] * bool(d.starved)


class Gated(nn.Module):
    """A branch behind a gate that starts at 0."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.a, self.b = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=kind == "modulation")
        self.gain, self.norm = nn.Parameter(torch.zeros(1)), nn.LayerNorm(4)
        for parameter in (*self.b.parameters(), *self.norm.parameters()):
            nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        if self.kind == "LoRA":
            h = 2 * self.b(functional.dropout(h, 0.1))
        elif self.kind == "gain of a norm":
            h = self.norm(h)
        elif self.kind == "gate":
            h = self.gain.tanh() * h
        else:
            h = self.b(x).chunk(2, -1)[0].sum(-1, keepdim=True) * h
        return x + h


@pytest.mark.parametrize("kind", ["LoRA", "gain of a norm", "gate", "modulation"])
@pytest.mark.parametrize("rates", [(0.1,), (0.1, 0.1), (0.0, 0.1), (None, None), ("others",)])
def test_a_factor_that_starts_at_0_and_learns_is_calm(kind: str, rates: tuple[Any, ...]) -> None:
    """rates: of each step; None for a backward without a step. "others": the factor is in no optimiser."""
    net = Gated(kind)
    optimizer = torch.optim.SGD(net.a.parameters() if rates == ("others",) else net.parameters(), 0.1)
    with diagnose(net) as d:
        for rate in rates:
            net(torch.randn(8, 4)).square().mean().backward()
            optimizer.param_groups[0]["lr"] = rate if isinstance(rate, float) else 0.1
            if rate is not None:
                optimizer.step()
    assert ("a.weight" in starved(d)) == (rates == ("others",))
    starts = "1 parameter of a gets only zeros as long as a parameter that multiplies it is 0, as in the first step of a LoRA"
    assert (starts in d.calm) == (rates not in (("others",), (0.1, 0.1)))


@pytest.mark.parametrize("rate", [0.1, 0.0], ids=["set back", "a rate of 0"])
def test_a_factor_that_stays_at_0_is_a_finding(rate: float) -> None:
    net = Gated("LoRA")
    optimizer = torch.optim.SGD([{"params": net.b.parameters(), "lr": rate}, {"params": net.a.parameters()}], 0.1)
    loss = lambda: net(torch.randn(8, 4)).square().mean()  # noqa: E731
    assert "a.weight" in starved(steps(net, loss, 6, optimizer, lambda: nn.init.zeros_(net.b.weight)))


@pytest.mark.parametrize("is_leaf", [False, True])
def test_a_hook_of_the_program_is_a_site(is_leaf: bool) -> None:
    """Half of its gradient passes, so nothing starves. It may raise before."""
    weight, half, failures = nn.Parameter(torch.ones(4)), torch.tensor([1.0, 1.0, 0.0, 0.0]), [ZeroDivisionError()]

    def hook(grad: Tensor) -> Tensor:
        if failures:
            raise failures.pop()
        return grad * half

    with diagnose() as d:
        for step in range(4):
            x = weight if is_leaf else weight * 2
            if not is_leaf or not step:
                handle = x.register_hook(hook)
            with contextlib.suppress(ZeroDivisionError):
                (x * 3).sum().backward()
    site = next(site for site in d.sites if site.op == "hook")
    assert (site.calls, site.arrived, site.cut) == (3, 12, 6)
    assert number_of(site.where) == line_of("handle = x.register_hook(hook)")
    assert starved(d) == []
    assert weight.grad.tolist() == ([9.0, 9.0, 0.0, 0.0] if is_leaf else [18.0, 18.0, 0.0, 0.0])
    if is_leaf:  # our hooks are gone, the program's is not
        assert len(weight._backward_hooks or ()) == 1
        handle.remove()


def _zero(*args: Any) -> Any:
    return tuple(torch.zeros_like(grad) for grad in args[1])


def _look(*args: Any) -> None:
    pass


MODULE_HOOKS: dict[str, Callable[[nn.Module], object]] = {
    "of the output": lambda module: module.register_full_backward_pre_hook(_zero),
    "of the input": lambda module: module.register_full_backward_hook(_zero),
    "partial": lambda module: module.register_full_backward_hook(functools.partial(_zero)),
    "two": lambda module: [module.register_full_backward_hook(hook) for hook in (_look, _zero)],
}


@pytest.mark.parametrize("is_early", [True, False])
@pytest.mark.parametrize("which", MODULE_HOOKS)
def test_a_backward_hook_of_a_module_has_its_line(which: str, is_early: bool) -> None:
    """Of several hooks nobody knows which: then it is the line that calls the module."""
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    if is_early:
        MODULE_HOOKS[which](net[1])
    with diagnose(net) as d:
        if not is_early:
            MODULE_HOOKS[which](net[1])
        net(torch.rand(5, 3)).sum().backward()
    assert starved(d) == ["0.weight", "0.bias"]
    line = line_of("net(torch.rand(5, 3)).sum()" if which == "two" else "def _zero")
    assert cause_of(d, "0.weight") == (line, "all of the gradient is cut by hook")
    assert "remove()" in d.findings[0].next_step


def test_a_backward_hook_that_looks_is_silent_and_counted_once_in_each_backward_of_a_graph() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh())
    net[1].register_full_backward_hook(_look)
    before = net(torch.rand(5, 3)).sum()  # nobody saw the hook at this call
    with diagnose(net) as d:
        loss = net(torch.rand(5, 3)).sum()
        for _ in range(2):
            loss.backward(retain_graph=True)
        before.backward()
    assert (d.findings, d.calm) == ([], [])
    assert site_of(d, "hook").calls == 2


@pytest.mark.parametrize("is_detached", [True, False])
def test_the_cut_to_blame_is_the_one_whose_edit_brings_the_gradient(is_detached: bool) -> None:
    """A codebook whose loss is taken of the straight-through output."""
    net = Parts(encoder=nn.Linear(8, 4), code=nn.Embedding(16, 4))

    def loss() -> Tensor:
        z = net.encoder(torch.randn(32, 8))
        if is_detached:
            at = torch.cdist(z.detach(), net.code.weight.detach()).argmin(-1)
        else:
            with torch.no_grad():
                at = torch.cdist(z, net.code.weight).argmin(-1)
        straight = z + (net.code(at) - z).detach()
        return functional.mse_loss(straight, z.detach())

    d = diagnosed(loss, net)
    assert cause_of(d, "code.weight") == (line_of("straight = z"), "its way to the loss is cut by .detach()")
    assert "as well" not in d.findings[0].evidence


def _overwritten(a: nn.Module, b: nn.Module) -> Tensor:
    h = a(X)
    h[:] = b(X)  # cut: overwritten
    return h.square()


def _computed(a: nn.Module, b: nn.Module, view: bool) -> Tensor:
    h = a(X) if view else X
    with torch.no_grad():
        h = h.view(-1) if view else a(h)  # cut: a view under no_grad
    return b(h.view(5, 3))


def _averaged(a: nn.Module, b: nn.Module) -> Tensor:
    with torch.no_grad():
        for mean, weight in zip(b.parameters(), a.parameters(), strict=True):
            mean.lerp_(weight, 0.1)  # cut: averaged
    return b(X)


def _chosen(a: nn.Module, b: nn.Module) -> Tensor:
    h = a(X).detach()  # cut: in front of a choice
    return b(functional.one_hot(h.argmax(-1), 3).float())


def _one_hot(index: Tensor) -> Tensor:
    return functional.one_hot(index, 3).float()


# The loss of two layers, of which the first starves; what the cause and the next step say. The line has the name.
CUT: dict[str, tuple[Callable[[nn.Module, nn.Module], Tensor], str, str]] = {
    "overwritten": (_overwritten, "its values are overwritten", ""),
    "under no_grad": (lambda a, b: _computed(a, b, False), "", "Compute it outside of"),
    "a view under no_grad": (lambda a, b: _computed(a, b, True), "", "Compute it outside of"),
    "drawn": (lambda a, b: b(_one_hot(Categorical(logits=a(X)).sample())), "", "the log-probability"),
    "free bits": (lambda a, b: b(X) + a(X).mean().clamp(min=9), "is cut by clamp", "None, if the clip is meant"),
    "times 0": (lambda a, b: b(X) + 0 * a(X), "is cut by mul", "Print the other factor"),
    "abs of 0": (lambda a, b: b(X) + (0 * a(X)).abs(), "is cut by abs", "Start what enters here elsewhere"),
    "a term times 0": (lambda a, b: b(X) + 0.0 * a(X).clamp(-9, 9), "is cut by mul", "that the product is; nothing"),
    "a sample": (lambda a, b: b(Normal(a(X), 1.0).sample()), "", "rsample() of a distribution that has it"),
    "in front of a choice": (
        _chosen,
        "its only way to the loss is cut by .detach(), and by another cut after it",
        "two edits",
    ),
    "averaged": (_averaged, "", "Let the loss use the parameter itself"),
    "an exit": (lambda a, b: b(X) * a(X).sum().item(), "nobody can see", "Use the tensor itself"),
    "float()": (lambda a, b: b(X) * float(a(X).sum().detach()), "float()", ""),
    "a list": (lambda a, b: b(torch.tensor(a(X).detach().tolist())), ".tolist()", ""),
    "a copy": (lambda a, b: b(torch.from_numpy(a(X).detach().numpy() * 2)), ".numpy()", ""),
    "a new tensor": (lambda a, b: b(X.new_tensor(a(X).detach())), "is cut by .detach()", "two edits"),
    "over one entry": (lambda a, b: b(X) * a(X)[:, :1].softmax(-1), "is cut by softmax", "the shape and the range"),
    "reentrant": (lambda a, b: b(checkpoint(a, X, use_reentrant=True)), "", "use_reentrant=False"),
}


@pytest.mark.filterwarnings("ignore:None of the inputs", "ignore:To copy construct from a tensor")
@pytest.mark.parametrize("name", CUT)
def test_a_cut_has_its_line_and_an_advice_that_fits(name: str) -> None:
    a, b = nn.Linear(3, 3), nn.Linear(3, 3)
    loss, cause, advice = CUT[name]
    d = diagnosed(lambda: loss(a, b).sum(), nn.ModuleList([a, b]), times=2)
    assert starved(d) == ["0.weight", "0.bias"]
    line, why = cause_of(d, "0.weight")
    source = Path(__file__).read_text(encoding="utf-8").splitlines()[line - 1]
    assert name in source.partition("# cut: ")[2] or f'"{name}": (lambda' in source
    assert cause in why
    assert advice in d.findings[0].next_step
    assert ("two edits" in d.findings[0].next_step) == (advice == "two edits")


def test_what_leaves_torch_after_the_last_backward_is_no_cause() -> None:
    a, b = nn.Linear(3, 3), nn.Linear(3, 3)
    with diagnose(nn.ModuleDict({"a": a, "b": b})) as d:
        b(X).sum().backward()
        a(X).sum().item()
    assert d.structural == []
    assert d.findings[0].next_step.startswith("Use it in the loss.")


def test_an_input_of_a_batch_is_no_parameter() -> None:
    net = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with diagnose(net) as d:
        net(X.clone().requires_grad_()).mean().backward()
        optimizer.step()
    assert d.parameters == ["weight", "bias"]


WRITES: dict[str, Callable[[Tensor, Tensor, nn.Module], object]] = {
    "data of a parameter": lambda target, buffer, source: target.data.copy_(source(torch.ones(2))),
    "data of a buffer": lambda target, buffer, source: buffer.data.copy_(source(torch.ones(2))),
    "a detached parameter": lambda target, buffer, source: target.detach().copy_(source(torch.ones(2))),
    "a parameter under no_grad": torch.no_grad()(lambda target, buffer, source: target.copy_(source(torch.ones(2)))),
}


@pytest.mark.parametrize("how", WRITES)
def test_a_value_that_is_written_into_a_tensor_of_the_loss_is_the_cut(how: str) -> None:
    source, target, buffer = nn.Linear(2, 3), nn.Parameter(torch.zeros(3)), torch.zeros(3)
    with diagnose(source) as d:
        WRITES[how](target, buffer, source)
        (target * 2 + buffer).square().sum().backward()
    assert cause_of(d, "weight")[0] == line_of(f'"{how}"')


@pytest.mark.parametrize(
    "project",
    [lambda w: w.data.clamp_(-1, 1), torch.no_grad()(lambda w: w.copy_(w.clamp(-1, 1)))],
    ids=["in place", "copied"],
)
def test_a_parameter_that_is_projected_does_not_cut_itself(project: Callable[[Tensor], object]) -> None:
    weight = nn.Parameter(torch.ones(2))
    with diagnose() as d:
        project(weight)
        (weight.argmax().float() + nn.Parameter(torch.ones(()))).backward()
    assert cause_of(d, *starved(d))[1] == "its only way to the loss is cut by argmax"


def test_an_idle_expert_is_calm_and_a_lonely_layer_is_not() -> None:
    net = nn.ModuleDict({"experts": nn.ModuleList(nn.Linear(2, 2) for _ in range(3)), "lonely": nn.Linear(2, 2)})
    optimizer, x = torch.optim.SGD(net.parameters(), 0.1), torch.ones(1, 2)
    with diagnose(net) as d:
        (net["experts"][0](x) + net["experts"][2](x)).sum().backward()
        optimizer.step()
    assert starved(d) == ["lonely.weight", "lonely.bias"]
    assert any("2 parameters" in line and "experts that no router chose" in line for line in d.calm)


def test_a_parameter_starves_only_if_some_backward_computes_its_gradient() -> None:
    net, x = nn.Linear(2, 2), torch.ones(1, 2, requires_grad=True)
    unused = nn.Parameter(torch.ones(2))
    with diagnose() as d:
        torch.autograd.grad(net(x).sum(), x)
    assert d.findings == []
    with diagnose() as d:  # but what is asked for does
        torch.autograd.grad(net(x).sum() + 0 * unused.detach().sum(), [x, unused], allow_unused=True)
    assert [record.shape for record in d.starved] == [(2,)]


@pytest.mark.parametrize("name", ["T", "mT", "H", "mH", "real", "imag", "data"])
def test_a_value_that_was_cut_is_followed_through_a_property(name: str) -> None:
    """It is a view, or the tensor itself, under another name."""
    dtype = torch.complex64 if name == "imag" else torch.float32
    weight, other = nn.Parameter(torch.ones(2, 2, dtype=dtype)), nn.Parameter(torch.ones(2, 2))
    with diagnose() as d:
        cut = weight.detach()
        (getattr(cut, name) * other).sum().backward()
    (record,) = [record for record in d.structural if record.kind == ".detach()"]
    assert (number_of(record.where), record.reaches_loss) == (line_of("cut = weight.detach()"), True)


def test_a_detach_is_blamed_before_the_no_grad_of_a_rollout() -> None:
    """An old probability that had a gradient would train the policy backwards."""
    policy, x = nn.Linear(2, 3), torch.randn(8, 2)
    with diagnose(policy) as d:
        with torch.no_grad():
            old = policy(x)[:, 0]
        value = torch.zeros(1, requires_grad=True)
        ratio = (policy(x)[:, 0].detach() - old).exp()  # the fault
        (ratio.mean() + value).sum().backward()
    (finding,) = [finding for finding in d.findings if finding.code == "starved"]
    assert (finding.expression, finding.next_step[:14]) == ("policy(x)[:, 0].detach()", "Use the tensor")
