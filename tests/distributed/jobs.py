"""What each of two processes does; module-level, so that a spawned process finds it."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn.parallel import DistributedDataParallel

import pseudograd as pg

LINEAR = ("zero", "identity", "leaky")
RULES = (*LINEAR, "inward", "sign", "elastic", "inverting")
EDGES = ("closed", "inward")
PLACEMENTS = (Shard(0), Shard(1), Replicate())


def _problem() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 6, generator=generator) * 2
    x[0, :2] = torch.tensor([-1.0, 1.0])
    return x, torch.randn(4, 6, generator=generator)


def sharded_tensors(rank: int) -> None:
    """Values, gradients and placements of DTensors with numbers as bounds."""
    mesh = init_device_mesh("cpu", (2,))
    for placement in PLACEMENTS:
        _compare_sharded(mesh, placement, "numbers", (-1.0, 1.0), (-1.0, 1.0))


def sharded_bounds(rank: int) -> None:
    """The same with tensors as bounds: 0-d, one for each column, and a number beside one of these."""
    mesh = init_device_mesh("cpu", (2,))
    columns = torch.full((6,), 1.0)
    for placement in PLACEMENTS:
        high = distribute_tensor(columns, mesh, [Shard(0) if placement == Shard(1) else Replicate()])
        # Where torch cannot, it says so here.
        torch.clamp(distribute_tensor(_problem()[0], mesh, [placement]), -high, high)
        single = torch.tensor(-1.0), torch.tensor(1.0)
        _compare_sharded(mesh, placement, "0-d", single, single)
        _compare_sharded(mesh, placement, "per column", (-columns, columns), (-high, high))
        _compare_sharded(mesh, placement, "mixed", (-1.0, columns), (-1.0, high))


def _compare_sharded(mesh: Any, placement: Any, what: str, plain: tuple[Any, Any], sharded: tuple[Any, Any]) -> None:
    x, weight = _problem()
    for rule in RULES:
        for edge in EDGES:
            leaf = x.clone().requires_grad_()
            (expected,) = torch.autograd.grad(pg.clamp(leaf, *plain, rule=rule, edge=edge), leaf, weight)
            spread = distribute_tensor(x, mesh, [placement]).requires_grad_()
            y = pg.clamp(spread, *sharded, rule=rule, edge=edge)
            (ours,) = torch.autograd.grad(y, spread, distribute_tensor(weight, mesh, [placement]))
            case = f"{rule}, {edge}, {what}, {placement}"
            assert isinstance(ours, DTensor), case
            assert ours.placements == y.placements == (placement,), case
            assert torch.equal(ours.full_tensor(), expected), case


def no_gather(rank: int) -> None:
    """A clamp of a sharded tensor talks to nobody, forward or backward."""
    mesh = init_device_mesh("cpu", (2,))
    x, weight = _problem()
    for rule in RULES:
        spread = distribute_tensor(x, mesh, [Shard(0)]).requires_grad_()
        grad = distribute_tensor(weight, mesh, [Shard(0)])
        with CommDebugMode() as log:
            y = pg.clamp(spread, -1.0, 1.0, rule=rule)
            torch.autograd.grad(y, spread, grad)
        assert log.get_total_counts() == 0, f"{rule}: {log.get_comm_counts()}"
    with CommDebugMode() as log:
        spread.full_tensor()
    assert log.get_total_counts() > 0, "the log must show a gather where there is one"


class _Net(nn.Module):
    """Activations and, where wanted, a weight go through the clamp."""

    def __init__(self, rule: str, clamps_weight: bool) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 2, bias=not clamps_weight)
        self.rule, self.clamps_weight = rule, clamps_weight

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        if self.rule != "no clamp":
            hidden = pg.clamp(hidden, -0.5, 0.5, rule=self.rule)
        if self.clamps_weight:
            return nn.functional.linear(hidden, pg.clamp(self.second.weight, -0.1, 0.1, rule=self.rule))
        return self.second(hidden)


def _steps(net: nn.Module, batch: Tensor, target: Tensor, ranks: int = 1) -> None:
    """Three steps. The loss is divided by the size of the whole batch, so that the gradient which arrives at an activation is the
    same on any number of ranks: rule "sign" ignores its magnitude. The mean over ranks is made up for by the rate.
    """
    optimizer = torch.optim.SGD(net.parameters(), 0.5 * ranks)
    for _ in range(3):
        optimizer.zero_grad()
        ((net(batch) - target).pow(2).sum() / (target.numel() * ranks)).backward()
        optimizer.step()


def _data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(8, 6, generator=generator), torch.randn(8, 2, generator=generator)


def _compare_training(rank: int, rules: tuple[str, ...], wrap: Callable[[nn.Module], nn.Module]) -> None:
    """Activations under these rules, weights under linear rules: three steps on two ranks equal one process."""
    whole = _data()
    for clamps_weight, tried in ((False, rules), (True, LINEAR)):
        for rule in tried:
            alone, net = _Net(rule, clamps_weight), _Net(rule, clamps_weight)
            _steps(alone, *whole)
            _steps(wrap(net), *(part[rank::2] for part in whole), ranks=2)
            for ours, theirs in zip(net.parameters(), alone.parameters(), strict=True):
                gathered = ours.full_tensor() if isinstance(ours, DTensor) else ours
                assert (gathered - theirs).abs().max() < 1e-6, rule


def ddp(rank: int) -> None:
    _compare_training(rank, RULES, DistributedDataParallel)


def fsdp(rank: int) -> None:
    """With sharded parameters. First without any clamp: where that differs from one process, the fault is torch's."""
    mesh = init_device_mesh("cpu", (2,))

    def shard(net: Any) -> nn.Module:
        fully_shard(net.first, mesh=mesh)
        fully_shard(net, mesh=mesh)
        return net

    _compare_training(rank, ("no clamp", *RULES), shard)


def projected_shards(rank: int) -> None:
    """Bounds on a sharded parameter: numbers, whole tensors that broadcast, and sharded ones; two steps, one bound moved between."""
    mesh = init_device_mesh("cpu", (2,))
    weight = _problem()[0]
    row, column = torch.linspace(-0.5, 0.0, 6), torch.linspace(0.2, 1.0, 4).unsqueeze(1)
    gathered: list[tuple[Any, Any]] = [
        (-0.5, 1.0),
        (torch.tensor(-0.5), None),
        (row, column),
        (-0.5, column),
        (weight - 1, 0.5),
    ]
    for low, high in gathered:
        expected = nn.Parameter(weight.clone())
        _projected_steps(expected, low, high)
        for placement in (None, Shard(0), Replicate()):
            if placement is not None and getattr(low, "shape", ()) != weight.shape:
                continue
            net = nn.Linear(6, 4, bias=False)
            net.weight = nn.Parameter(weight.clone())
            fully_shard(net, mesh=mesh)
            _projected_steps(net.weight, low if placement is None else distribute_tensor(low, mesh, [placement]), high)
            assert isinstance(net.weight, DTensor)
            assert torch.equal(net.weight.full_tensor(), expected.detach()), (low, high, placement)


def _projected_steps(parameter: nn.Parameter, low: Any, high: Any) -> None:
    """Two steps; a tensor bound moves between them."""
    low = low.clone() if isinstance(low, Tensor) else low
    optimizer = torch.optim.SGD([parameter], 1.0)
    pg.optim.project(optimizer, {parameter: (low, high)})
    for step in (0.5, 0.75):
        parameter.grad = torch.full_like(parameter, step)
        optimizer.step()
        if isinstance(low, Tensor):
            low.sub_(0.25)


class _Watched(_Net):
    """With a head that no loss depends on, and units that are dead on every rank."""

    def __init__(self) -> None:
        super().__init__("no clamp", clamps_weight=False)
        self.first, self.unused = nn.Linear(6, 32), nn.Linear(2, 2)
        self.second = nn.Linear(32, 2)
        with torch.no_grad():
            self.first.bias[:28] = -50.0

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x)))


UNUSED = ["unused.weight", "unused.bias"]
NAMES = sorted(["first.weight", "first.bias", "second.weight", "second.bias", *UNUSED])


def _diagnosed(net: nn.Module, module: nn.Module | None, is_stepped: bool) -> Any:
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    torch.manual_seed(3 + torch.distributed.get_rank())
    with pg.diagnose(module) as d:
        for _ in range(4):
            optimizer.zero_grad()
            net(torch.randn(64, 6)).square().mean().backward()
            if is_stepped:
                optimizer.step()
    assert d.to_json()["errors"] == []
    return d


def fsdp_diagnosed(rank: int) -> None:
    """Sharded parameters have their names, and are counted by what arrives at this rank's shard."""
    mesh = init_device_mesh("cpu", (2,))
    for is_given in (True, False):
        for is_stepped in (True, False):
            net = _Watched()
            fully_shard(net.first, mesh=mesh)
            fully_shard(net, mesh=mesh)
            d = _diagnosed(net, net if is_given else None, is_stepped)
            assert sorted(d.parameters) == NAMES, d.parameters
            assert [entry.parameter for entry in d.starved] == UNUSED, d.starved
            partly = {entry.parameter: (entry.dead_units, entry.units) for entry in d.partly}
            # The first 16 of 32 units are rank 0's, and 12 of the others are dead as well.
            assert partly.get("first.weight") == ((16, 16) if rank == 0 else (12, 16)), partly


def fsdp_diagnosed_to_nan(rank: int) -> None:
    """The op is named, although the parameters that it reaches are not those that the optimiser has."""
    net = _Watched()
    fully_shard(net, mesh=init_device_mesh("cpu", (2,)))
    with pg.diagnose() as d:
        for _ in range(2):
            torch.sqrt(net(torch.randn(64, 6)) * 0).mean().backward()
    finding = d.findings[0]
    assert (finding.code, finding.expression) == ("nonfinite", "torch.sqrt(net(torch.randn(64, 6)) * 0)"), d
    assert d.to_json()["errors"] == [], d


def a_gradient_placed_elsewhere_is_not_compared(rank: int) -> None:
    """The gradient of a sum is whole in each process, and that of the sharded clamp is not."""
    sharded = distribute_tensor(_problem()[0], init_device_mesh("cpu", (2,)), [Shard(0)]).requires_grad_()
    with pg.diagnose() as diagnosis:
        sharded.clamp(-1, 1).sum().backward()
    assert diagnosis.errors == []


def ddp_diagnosed(rank: int) -> None:
    """Names are those of the program's own module, unless the wrapper was given."""
    for is_given in (True, False):
        net = DistributedDataParallel(_Watched(), find_unused_parameters=True)
        d = _diagnosed(net, net if is_given else None, True)
        prefix = "module." if is_given else ""
        assert sorted(d.parameters) == [f"{prefix}{name}" for name in NAMES], d.parameters
        assert [entry.parameter for entry in d.starved] == [f"{prefix}{name}" for name in UNUSED], d.starved
