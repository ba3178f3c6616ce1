"""optim.project: bounds on parameters after each step."""

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import pseudograd as pg
from pseudograd.optim import project

from .choices import folded

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    f"{kind.__name__}/{how}": lambda p, kind=kind, options=options: kind(p, lr=0.1, **options)
    for kind in (torch.optim.SGD, torch.optim.Adam)
    for how, options in (("plain", {"foreach": False}), ("foreach", {"foreach": True}), ("fused", {"fused": True}))
}


def parameter(*values: float, dtype: torch.dtype = torch.float32) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.tensor(values, dtype=dtype))


def step(optimizer: torch.optim.Optimizer, p: Tensor, *grad: float) -> None:
    p.grad = torch.tensor(grad, dtype=p.dtype)
    optimizer.step()


@folded
@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_each_step_is_that_of_the_optimizer_and_then_a_clamp(kind: str, dtype: torch.dtype) -> None:
    """A copy without a projection, whose values are clamped by hand, has the same values and the same state."""
    low = torch.tensor([-0.2, 0.0, -1.0], dtype=dtype)
    ours, theirs = ([parameter(0.1, 0.1, 0.1, dtype=dtype), parameter(1.0, -1.0, dtype=dtype)] for _ in range(2))
    projected, plain = OPTIMIZERS[kind](ours), OPTIMIZERS[kind](theirs)
    project(projected, {ours[0]: (low, 0.15), ours[1]: (-0.9, None)})
    theirs[1].data.clamp_(min=-0.9)
    assert torch.equal(ours[1], theirs[1])
    for _ in range(6):
        for p, q in zip(ours, theirs, strict=True):
            p.grad = torch.randn_like(p)
            q.grad = p.grad.clone()
        projected.step()
        plain.step()
        theirs[0].data.copy_(torch.minimum(torch.maximum(theirs[0].data, low), torch.tensor(0.15, dtype=dtype)))
        theirs[1].data.clamp_(min=-0.9)
        for p, q in zip(ours, theirs, strict=True):
            assert torch.equal(p, q)
            assert torch.equal(p.grad, q.grad)
    for p, q in zip(ours, theirs, strict=True):
        for name, value in plain.state[q].items():
            assert not isinstance(value, Tensor) or torch.equal(projected.state[p][name], value)
    assert projected.state_dict().keys() == plain.state_dict().keys()


def test_a_step_that_grad_scaler_skips_moves_nothing() -> None:
    p = parameter(0.5, -0.5)
    optimizer = torch.optim.Adam([p], lr=0.1, fused=True)
    project(optimizer, {p: (-0.6, 0.6)})
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for factor, moves in ((torch.inf, False), (1.0, True)):
        optimizer.zero_grad()
        before = p.detach().clone()
        scaler.scale((p * torch.tensor([-9.0, 9.0]) * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        assert torch.equal(p, before) is not moves
    assert p.tolist() == pytest.approx([0.6, -0.6], abs=1e-6)


def test_lbfgs_with_a_closure() -> None:
    p = parameter(0.0, 0.0, dtype=torch.float64)
    optimizer = torch.optim.LBFGS([p], max_iter=5)
    project(optimizer, {p: (None, torch.tensor([1.0, 9.0], dtype=torch.float64))})

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (p - 3.0).square().sum()
        loss.backward()
        return loss.detach()

    for _ in range(5):
        assert optimizer.step(closure) is not None
    assert p[0] == 1
    assert p[1].item() == pytest.approx(3, abs=1e-6)


def test_remove_ends_it_and_leaves_nothing() -> None:
    p = parameter(0.0)
    optimizer = torch.optim.SGD([p], lr=1.0)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)  # which wraps the step
    handle = project(optimizer, {p: (-1, 1)})
    step(optimizer, p, -5.0)
    assert p.tolist() == [1]
    handle.remove()
    handle.remove()
    step(optimizer, p, -5.0)
    assert p.tolist() == [6]
    assert not optimizer._optimizer_step_post_hooks


def test_as_a_context_it_ends_with_the_block_also_by_an_error() -> None:
    p = parameter(0.0)
    optimizer = torch.optim.SGD([p], lr=1.0)

    def stopped() -> None:
        with project(optimizer, {p: (-1, 1)}):
            step(optimizer, p, -5.0)
            assert p.tolist() == [1]
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        stopped()
    step(optimizer, p, -5.0)
    assert p.tolist() == [6]


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))], ids=["deepcopy", "pickle"]
)
def test_copies_of_the_optimizer_do_not_project(duplicate: Callable[[Any], Any]) -> None:
    p = parameter(0.0)
    optimizer = torch.optim.SGD([p], lr=1.0)
    project(optimizer, {p: (-1, 1)})
    twin = duplicate(optimizer)
    (q,) = twin.param_groups[0]["params"]
    step(twin, q, -5.0)
    assert q.tolist() == [5]
    project(twin, {q: (-1, 1)})
    assert q.tolist() == [1]
    assert p.tolist() == [0]


@folded
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("bounds", [(-0.3, 0.7), (None, 0.1), (0.1, None), (0, 1), (-torch.inf, 0.7), (0.3, 0.3)])
@pytest.mark.parametrize("as_tensors", [False, True], ids=["numbers", "tensors"])
def test_values_are_those_of_torch_clamp(dtype: torch.dtype, bounds: Any, as_tensors: bool) -> None:
    values = torch.tensor([-torch.inf, -0.3, -0.0, 0.0, 0.1, 0.3, 0.7, 5.0, torch.inf, torch.nan]).to(dtype)
    if as_tensors:
        bounds = tuple(None if b is None else torch.tensor(b, dtype=dtype) for b in bounds)
    p = torch.nn.Parameter(values.clone())
    project(torch.optim.SGD([p]), {p: bounds})
    expected = torch.clamp(values, *bounds)
    assert torch.equal(p.nan_to_num(99), expected.nan_to_num(99))
    assert p.isnan().tolist() == values.isnan().tolist()
    assert p.dtype is dtype


def test_where_a_tensor_min_exceeds_max_it_is_max() -> None:
    for bounds in ((torch.ones(3), -1.0), (1.0, torch.tensor(-1))):
        p = parameter(-9.0, 0.0, 9.0)
        project(torch.optim.SGD([p]), {p: bounds})
        assert p.tolist() == [-1, -1, -1]


def test_tensor_bounds_broadcast_and_are_read_at_every_step() -> None:
    p = torch.nn.Parameter(torch.zeros(2, 3))
    low, high = torch.tensor([[-1.0], [-2.0]]), torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    optimizer = torch.optim.SGD([p], lr=1.0)
    project(optimizer, {p: (low, high)})
    p.grad = torch.full((2, 3), -9.0)
    optimizer.step()
    assert p.tolist() == [[1, 2, 3]] * 2
    with torch.no_grad():
        high.fill_(0.5)
    p.grad.fill_(0)
    optimizer.step()
    assert p.tolist() == [[0.5] * 3] * 2
    p.grad.fill_(9)
    optimizer.step()
    assert p.tolist() == [[-1] * 3, [-2] * 3]
    assert high.grad is None


@pytest.mark.parametrize("kind", [torch.clone, torch.nn.Parameter])
@pytest.mark.parametrize("change", ["data", "set_", "the parameter's data", "a step"])  # in place: above
def test_a_bound_may_be_changed_in_any_way(change: str, kind: Callable[[Tensor], Tensor]) -> None:
    p = torch.nn.Parameter(torch.tensor([3.0, -3.0]))
    low = kind(torch.tensor([-1.0, -1.0])).requires_grad_(change == "a step")
    optimizer = torch.optim.SGD([p, low] if low.is_leaf else [p], lr=1.0)
    project(optimizer, {p: (low, 2.0)})
    assert p.tolist() == [2.0, -1.0]
    with torch.no_grad():
        if change == "data":
            low.data = torch.tensor([-0.5, -0.5])
        elif change == "set_":
            low.set_(torch.tensor([-0.5, -0.5]))
        elif change == "the parameter's data":
            low.data, p.data = torch.tensor([-0.5, -0.5]), p.detach().clone()
        else:
            low.grad = torch.tensor([-0.5, -0.5])
    p.grad = torch.tensor([9.0, 9.0])
    optimizer.step()
    assert p.tolist() == [-0.5, -0.5]
    assert not p.grad_fn


def test_integer_bounds_and_numpy_numbers() -> None:
    p = parameter(-9.0, 9.0)
    project(torch.optim.SGD([p]), {p: (torch.tensor(-1), np.float32(0.5))})
    assert p.tolist() == [-1, 0.5]


def test_a_torch_without_the_private_loops_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pg.optim, "foreach_clamp_min_", None)
    monkeypatch.setattr(pg.optim, "foreach_clamp_max_", None)
    p, q = parameter(-9.0, 0.0, 9.0), parameter(-9.0, 0.0, 9.0)
    optimizer = torch.optim.SGD([p, q], lr=1.0)
    project(optimizer, {p: (-1, 2), q: (torch.tensor([-3.0, 1.0, -3.0]), None)})
    assert (p.tolist(), q.tolist()) == ([-1, 0, 2], [-3, 1, 9])
    q.grad = torch.tensor([1.0, 1.0, 1.0])
    step(optimizer, p, 5.0, 0.5, -5.0)
    assert (p.tolist(), q.tolist()) == ([-1, -0.5, 2], [-3, 1, 8])


@pytest.fixture
def mesh() -> Iterator[Any]:
    """One process that takes part in no job: enough to shard over it, along two dimensions."""
    distributed = pytest.importorskip("torch.distributed")
    if not distributed.is_available() or distributed.is_initialized():
        pytest.skip("no process group can be made here")
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        yield distributed.device_mesh.init_device_mesh("cpu", (1, 1), mesh_dim_names=("replicated", "sharded"))
    finally:
        distributed.destroy_process_group()


def _clamp_min_unsharded(tensors: list[Tensor], numbers: list[float]) -> None:
    """As the private loops of torch 2.10, which refuse a DTensor."""
    assert not any(hasattr(tensor, "device_mesh") for tensor in tensors)
    for tensor, number in zip(tensors, numbers, strict=True):
        tensor.clamp_(min=number)


@pytest.mark.parametrize("low", ["a number", "the whole tensor", "sharded as p", "one for all rows"])
def test_the_bound_of_a_sharded_parameter_has_the_whole_shape(low: str, mesh: Any, monkeypatch: Any) -> None:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    monkeypatch.setattr(pg.optim, "foreach_clamp_min_", _clamp_min_unsharded)
    placements = (Replicate(), Shard(0))
    sharded = torch.nn.Parameter(distribute_tensor(torch.tensor([[-9.0, -9.0], [0.0, 9.0]]), mesh, placements))
    plain = torch.nn.Parameter(torch.tensor([[-9.0, -9.0], [0.0, 9.0]]))
    each = torch.tensor([[-1.0, -2.0], [-1.0, -2.0]])
    bound = {
        "a number": -1.0,
        "the whole tensor": each,
        "sharded as p": distribute_tensor(each, mesh, placements),
        "one for all rows": each[0],
    }[low]
    optimizer = torch.optim.SGD([sharded, plain], lr=1.0)
    project(optimizer, {sharded: (bound, 3.0), plain: (-1.0, None)})
    start = [[-1.0, -1.0 if low == "a number" else -2.0], [0.0, 3.0]]
    assert (sharded.full_tensor().tolist(), plain.tolist()) == (start, [[-1, -1], [0, 9]])
    sharded.grad = distribute_tensor(torch.tensor([[-1.0, 9.0], [9.0, -9.0]]), mesh, placements)
    optimizer.step()
    assert sharded.full_tensor().tolist() == [[0, start[0][1]], [-1, 3]]
    assert sharded.placements == placements


def test_bad_calls() -> None:
    p, other = parameter(0.0, 1.0), parameter(0.0)
    optimizer = torch.optim.SGD([p])
    complex_parameter = torch.nn.Parameter(torch.zeros(2, dtype=torch.complex64))
    for arguments, kind, text in (
        ((p, {p: (0, 1)}), TypeError, r"optimizer must be a torch.optim.Optimizer, got a Parameter"),
        ((optimizer, (0, 1)), TypeError, r"bounds must be a dictionary {parameter: \(min, max\)}, got \(0, 1\)"),
        ((optimizer, {}), ValueError, "bounds must name a parameter, got {}"),
        (
            (optimizer, {other: (0, 1)}),
            ValueError,
            "parameter must be in a group of the optimizer, got a Parameter of .* N",
        ),
        ((optimizer, {"weight": (0, 1)}), TypeError, "parameter must be a tensor, got 'weight'"),
        (
            (torch.optim.SGD([complex_parameter]), {complex_parameter: (0, 1)}),
            TypeError,
            "parameter must be real, got torch.complex64",
        ),
        ((optimizer, {p: 1.0}), ValueError, r"bounds must be pairs \(min, max\), got 1.0"),
        ((optimizer, {p: (0, 1, 2)}), ValueError, r"bounds must be pairs \(min, max\), got \(0, 1, 2\)"),
        ((optimizer, {p: "01"}), ValueError, r"bounds must be pairs \(min, max\), got '01'"),
        ((optimizer, {p: torch.zeros(2)}), ValueError, r"bounds must be pairs \(min, max\), got a Tensor"),
        ((optimizer, {p: (None, None)}), ValueError, "one of min and max must be given, got None for both"),
        ((optimizer, {p: (1, -1)}), ValueError, r"min must not exceed max, got min=1.0 and max=-1.0. Swap them"),
        ((optimizer, {p: (0, float("nan"))}), ValueError, "max must not be NaN, got nan. Use None for no bound"),
        ((optimizer, {p: ("0", 1)}), TypeError, "min must be a number, a tensor or None, got '0'"),
        ((optimizer, {p: (torch.zeros(3), 1)}), ValueError, r"min must broadcast to the parameter of shape \(2,\)"),
        ((optimizer, {p: (0, torch.ones(1, 2))}), ValueError, r"max must broadcast to the parameter of shape \(2,\)"),
        ((optimizer, {p: (torch.zeros(2) * 1j, 1)}), TypeError, "min must be real, got torch.complex64"),
        ((optimizer, {p: (0j, 1)}), TypeError, "min must be a number, a tensor or None, got 0j"),
    ):
        with pytest.raises(kind, match=f"^project: {text}"):
            project(*arguments)
    assert p.tolist() == [0, 1]
    assert not optimizer._optimizer_step_post_hooks
