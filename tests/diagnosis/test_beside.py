"""A diagnosis beside the rest of torch: the program computes what it computes without one, and nothing of ours fails."""

import contextlib
import copy
import pickle
import re
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map_only
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from pseudograd.diagnosis import diagnose
from pseudograd.diagnosis.count.tally import Tally
from pseudograd.diagnosis.count.whatif import WhatIfMeter

from ..choices import folded, one_in
from .checks import codes, make_function
from .test_harmless import assert_nothing_is_left, elsewhere, trained, twice
from .trainers import steps

QUESTIONS: dict[str, dict[str, Any]] = {
    "alone": {},
    "whatif": {"whatif": {"inward": {"clamp": "inward"}, "closed": "closed"}},
    "sensitivity": {"sensitivity": True},
}
Results = list[Any]
PROGRAMS: dict[str, Callable[[], Results]] = {"trained": trained, "elsewhere": elsewhere, "twice": twice}


def program(f: Callable[[], Results]) -> Callable[[], Results]:
    PROGRAMS[f.__name__] = f
    return f


def step(net: nn.Module, x: Tensor) -> list[Tensor]:
    net(x).clamp(-0.5, 0.5).sum().backward()
    return [p.grad.clone() for p in net.parameters() if p.grad is not None]


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    assert_nothing_is_left()


@program
def copied_and_pickled() -> Results:
    net = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    grads = step(net, torch.randn(4, 3))
    pickled = re.sub(rb"\d{9,}", b"", pickle.dumps(list(net.parameters())))  # without addresses, of 14 digits or 15
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        grads += step(other, torch.randn(4, 3))
    return [*grads, len(pickled)]


@program
def initialised_by_data_and_averaged() -> Results:
    net = nn.Linear(3, 3)
    nn.init.normal_(net.weight.data, 0.0, 0.02)
    torch.clamp_(input=net.bias.data, min=0)
    ema = torch.optim.swa_utils.AveragedModel(net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.Adam(net.parameters(), foreach=True)
    for _ in range(3):
        step(net, torch.randn(2, 3))
        optimizer.step()
        ema.update_parameters(net)
    return [*ema.parameters(), *net.parameters()]


@program
def transforms_and_forward_mode() -> Results:
    net, x = nn.Linear(3, 3), torch.randn(2, 3)
    parameters = {name: parameter.detach() for name, parameter in net.named_parameters()}

    def loss(parameters: Any, x: Tensor) -> Tensor:
        return torch.func.functional_call(net, parameters, (x,)).clamp(-0.5, 0.5).pow(2).sum()

    def cubes(x: Tensor) -> Tensor:
        return x.clamp(-1, 1).pow(3)

    per_sample = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, x)
    jvp = torch.func.jvp(lambda x: x.clamp(-1, 1) * x, (x,), (x,))
    functional, w = torch.autograd.functional, x[0].clone().requires_grad_()
    return [
        *per_sample.values(),
        *jvp,
        torch.func.hessian(lambda x: cubes(x).sum())(x[0]),
        torch.func.vmap(torch.func.jacrev(cubes))(x),
        torch.func.vmap(torch.func.hessian(lambda x: cubes(x).sum()))(x),
        functional.jacobian(cubes, x[0], vectorize=True),
        functional.jacobian(cubes, x[0], create_graph=True).detach(),
        functional.vhp(lambda x: cubes(x).sum(), x[0], x[0])[1],
        torch.autograd.grad(cubes(w), w, torch.eye(3), is_grads_batched=True)[0],
        torch.autograd.gradcheck(torch.sin, x.double().requires_grad_(), check_batched_grad=True),
        *step(net, x),
    ]


@program
def tensors_without_numbers_and_of_other_layouts() -> Results:
    net = nn.Linear(3, 3, device="meta")
    net(torch.empty(2, 3, device="meta")).clamp(-1, 1).sum().backward()
    with FakeTensorMode():
        fake = nn.Linear(3, 3)
        fake(torch.randn(2, 3)).clamp(-1, 1).sum().backward()
    table = nn.Embedding(10, 3, sparse=True)
    (table(torch.tensor([1, 2, 1])).clamp(-0.5, 0.5) * 2).sum().backward()
    layer = nn.Linear(3, 3)
    nested = torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(4, 3)], layout=torch.jagged)
    layer(nested).clamp(-0.5, 0.5).values().sum().backward()
    padded = torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(4, 3)], requires_grad=True)
    torch.nested.to_padded_tensor(layer(padded).relu(), 0.0).sum().backward()
    with torch.inference_mode():
        inferred = layer(torch.randn(2, 3)).clamp(-1, 1)
    shapes = [tuple(layer.weight.grad.shape) for layer in (net, fake) if layer.weight.grad is not None]
    shapes += padded.grad.unbind()
    return [*shapes, table.weight.grad.to_dense(), *(p.grad for p in layer.parameters()), inferred.clone()]


@program
def selective_checkpoints() -> Results:
    net, x = nn.Linear(3, 3), torch.randn(2, 3)

    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        is_saved = op in (torch.ops.aten.relu.default, torch.ops.aten.mean.dim, torch.ops.aten.count_nonzero.default)
        return CheckpointPolicy.MUST_SAVE if is_saved else CheckpointPolicy.PREFER_RECOMPUTE

    y = checkpoint(
        lambda x: torch.relu(net(x).clamp(-0.5, 0.5)),
        x,
        use_reentrant=False,
        context_fn=lambda: create_selective_checkpoint_contexts(policy),
    )
    y.sum().backward()
    return [p.grad for p in net.parameters()]


@program
def hooks() -> Results:
    net, x, log = nn.Linear(3, 3), torch.randn(2, 3), list[Any]()
    net.weight.register_hook(lambda grad: log.append(grad.clone()))
    net.bias.register_post_accumulate_grad_hook(lambda bias: log.append(bias.grad.clone()))
    net.register_full_backward_hook(lambda module, grad_input, grad_output: log.append(grad_output[0].clone()))
    for _ in range(2):
        y: Any = net(x)
        y.retain_grad()
        y.grad_fn.register_hook(lambda *grads: log.append(len(log)))
        y.grad_fn.register_prehook(lambda grads: log.append(len(log)))
        torch.autograd.graph.register_multi_grad_hook((y, net.weight), lambda grads: log.append(len(grads)))
        z = y.clamp(-0.5, 0.5)
        z.register_hook(lambda grad: grad * len(log))
        z.sum().backward()
        log.append(y.grad)
    net.weight.register_hook(lambda grad: grad.clamp(-0.1, 0.1))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.utils.hooks.warn_if_has_hooks(y)  # as where a tensor goes to another process
    return [*log, *step(net, x), len(caught)]


# Its backward draws random numbers, and changes what arrives.
Meddling = make_function("Meddling", lambda ctx, x: x.clone(), lambda ctx, grad: grad.mul_(2) + torch.rand_like(grad))


@program
def a_backward_that_draws_and_changes() -> Results:
    w, root = nn.Parameter(torch.ones(4)), torch.ones(4)
    for _ in range(2):
        Meddling.apply(w.clamp(-1, 2)).backward(root)
    with pytest.raises(TypeError):
        torch.clamp("x", 0, 1)
    return [w.grad, root]


def outcome(f: Callable[[], Results]) -> Results:
    torch.manual_seed(0)
    results = [*f(), torch.get_rng_state()]
    return [result.detach().clone() if isinstance(result, Tensor) else result for result in results]


@folded
@pytest.mark.parametrize(("name", "question"), one_in(2, PROGRAMS, QUESTIONS))
def test_a_program_computes_what_it_computes_without_a_diagnosis(name: str, question: str) -> None:
    f = PROGRAMS[name]
    usual = "The PyTorch API of nested tensors|Full backward hook|Using backward\\(\\) with create_graph"
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", usual)
        right = outcome(f)
        with diagnose(**QUESTIONS[question]) as d:
            results = outcome(f)
    for result, expected in zip(results, right, strict=True):
        assert torch.equal(result, expected) if isinstance(result, Tensor) else result == expected
    assert d.errors == []
    str(d)
    d.to_json()
    if question == "whatif":
        assert d.whatif["inward"] or d.inexact or d.untouched or not d.whatif["as it is"]


@pytest.mark.parametrize("error", [ZeroDivisionError("planted"), KeyboardInterrupt()])
def test_the_report_has_an_error_of_ours_and_ctrl_c_reaches_the_program(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    w = torch.randn(3, requires_grad=True)

    def fail(*arguments: Any) -> None:
        raise error

    monkeypatch.setattr(Tally, "count", fail)
    with diagnose() as d:
        for _ in range(2):
            with contextlib.suppress(KeyboardInterrupt):
                (w * 2).clamp(-1, 1).sum().backward()
    if isinstance(error, KeyboardInterrupt):
        assert (d.errors, w.grad) == ([], None)
        return
    assert w.grad is not None
    (line,) = d.errors
    assert re.fullmatch(r"the gradients at a node: ZeroDivisionError: planted \(diagnosis/.*\), \d times", line)
    assert f"incomplete: {line[:40]}" in str(d)
    assert "These are faults of pseudograd; the program went on as without it." in str(d)
    assert d.to_json()["errors"] == [line]


def test_a_device_runs_the_hooks_of_its_leaves_in_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def answers() -> list[Any]:
        torch.manual_seed(0)
        net = nn.Linear(3, 3)
        with diagnose(net, **QUESTIONS["whatif"]) as d:
            step(net, torch.randn(4, 3))
        assert (d.errors, d.inexact) == ([], {})
        assert d.whatif["inward"]
        return list(d.whatif.values())

    arrived = WhatIfMeter.arrived

    def arrive_elsewhere(*arguments: Any) -> None:
        thread = threading.Thread(target=arrived, args=arguments)
        thread.start()
        thread.join()

    right = answers()
    monkeypatch.setattr(WhatIfMeter, "arrived", arrive_elsewhere)
    assert answers() == right


def test_a_view_whose_node_torch_hides_is_left_alone() -> None:
    """Adam steps complex weights through such views: torch raises where somebody asks for the node of one."""
    weight = torch.nn.Parameter(torch.randn(4, dtype=torch.cfloat))
    d = steps(None, lambda: (weight * 2).abs().square().mean(), 2, torch.optim.Adam([weight], 1e-2))
    assert codes(d) == []


@pytest.mark.parametrize("in_dim", [0, 1])
def test_a_jacobian_under_vmap_is_counted(in_dim: int) -> None:
    """Every row of each Jacobian has one gradient; those of x outside the bounds are cut."""
    x = torch.linspace(-1, 1, 18).reshape(3, 6)
    with diagnose() as d:
        torch.func.vmap(torch.func.jacrev(lambda row: row.clamp(-0.5, 0.5) * 2), in_dims=in_dim)(x)
    (clamp,) = [site for site in d.sites if site.op == "clamp"]
    assert not d.errors
    assert (clamp.arrived, clamp.cut) == (x.numel(), int((x.abs() > 0.5).sum()))


@pytest.mark.parametrize("convert", [Tensor.to_mkldnn, Tensor.to_sparse])
def test_values_in_another_layout_are_not_read(convert: Any) -> None:
    with diagnose() as d:
        torch.relu(convert(torch.eye(3)))
    assert not d.errors


def test_a_parameter_whose_memory_is_freed_is_not_read() -> None:
    """As FSDP2 frees a whole parameter between two uses. To read it would end the process."""
    scale, weight = nn.Parameter(torch.full((4,), 5.0)), nn.Parameter(torch.ones(4))
    memory = weight.untyped_storage()

    def free(*_: Tensor) -> None:
        memory.resize_(0)

    def gather(*_: Tensor) -> None:
        memory.resize_(16)
        weight.data.fill_(1)

    weight.register_post_accumulate_grad_hook(free)
    with diagnose(sensitivity=True) as d:
        for _ in range(2):
            gather()
            loss = (scale.clamp(0, 1) * weight * weight.clamp(0, 2)).sum()
            loss.register_hook(gather)
            free()
            loss.backward()
    assert not d.errors
    assert [record.parameter for record in d.starved] == ["scale"]


class _Counting(Tensor):
    """A class of the program around a tensor, which counts the calls that it sees."""

    calls = 0

    @staticmethod
    def __new__(cls, data: Tensor) -> Tensor:
        return Tensor._make_wrapper_subclass(cls, data.shape, dtype=data.dtype)

    def __init__(self, data: Tensor) -> None:
        self.data_ = data

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        cls.calls += 1
        args, kwargs = tree_map_only(_Counting, lambda value: value.data_, (args, kwargs or {}))
        return tree_map_only(Tensor, _Counting, func(*args, **kwargs))


@pytest.mark.parametrize("settings", [{}, {"whatif": {"inward": {"clamp": "inward"}}}, {"sensitivity": True}], ids=str)
def test_a_tensor_that_sees_its_calls_sees_none_of_a_diagnosis(settings: dict[str, Any]) -> None:
    def calls() -> int:
        _Counting.calls = 0
        parameter = nn.Parameter(_Counting(torch.linspace(-1, 1, 5)))
        bias = nn.Parameter(torch.ones(5))  # a plain tensor, whose gradient is of the class
        optimizer = torch.optim.SGD([parameter, bias], 0.1, foreach=False)
        for _ in range(3):
            optimizer.zero_grad()
            (parameter.clamp(-0.6, 0.6).relu() * 2 + bias).sum().backward()
            optimizer.step()
        return _Counting.calls

    alone = calls()
    with diagnose(**settings) as d:
        inside = calls()
    assert inside == alone
    assert not d.errors
    assert not [finding.code for finding in d.findings]
