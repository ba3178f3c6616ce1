"""Ways to train a network whose forward takes a batch and returns its loss: by hand, by a package, in low precision, sharded."""

import functools
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pseudograd.diagnosis import diagnose
from pseudograd.diagnosis.context import Diagnosis

STEPS = 5
Trainer = Callable[..., Diagnosis]


class Parts(nn.Module):
    """A network with these parts. `trains` gives it its loss."""

    def __init__(self, **parts: object) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)


def mlp(*widths: int, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    layers = [layer for a, b in itertools.pairwise(widths) for layer in (nn.Linear(a, b), activation())]
    return nn.Sequential(*layers[:-1])


def trains(
    make: Callable[[], nn.Module],
    batch: Callable[[], Iterable[Tensor]],
    trainer: Trainer | None = None,
    method: str = "forward",
    **options: Any,
) -> Callable[[Callable[..., Tensor]], Callable[[], Diagnosis]]:
    """The decorated function is a method of the network that `make` makes, in most programs its loss; the program trains the network."""

    def program(function: Callable[..., Tensor]) -> Callable[[], Diagnosis]:
        @functools.wraps(function)
        def run() -> Diagnosis:
            net = make()
            setattr(net, method, functools.partial(function, net))
            return (trainer or train_by_hand)(net, *batch(), **options)

        return run

    return program


def sgd(*modules: nn.Module, rate: float = 0.1) -> torch.optim.SGD:
    return torch.optim.SGD([parameter for module in modules for parameter in module.parameters()], rate)


def steps(
    net: nn.Module | None,
    loss: Callable[[], Tensor],
    count: int = STEPS,
    optimizer: torch.optim.Optimizer | None = None,
    after: Callable[[], object] = lambda: None,
    **options: Any,
) -> Diagnosis:
    """The loop that everybody writes. after: is called after each step. options: of `diagnose`."""
    optimizer = optimizer or torch.optim.Adam(net.parameters(), 1e-3)
    with diagnose(net, **options) as d:
        for _ in range(count):
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()
            after()
    return d


def train_by_hand(net: nn.Module, *batch: Tensor, count: int = STEPS, rate: float | None = None) -> Diagnosis:
    """rate: of SGD; without it, Adam trains the network."""
    return steps(net, lambda: net(*batch), count, rate and torch.optim.SGD(net.parameters(), rate))


def compiled(net: nn.Module, *batch: Tensor) -> Diagnosis:
    torch._dynamo.reset()
    fast = torch.compile(net, backend="eager")
    return steps(net, lambda: fast(*batch))


def checkpointed(net: nn.Module, *batch: Tensor, use_reentrant: bool = False) -> Diagnosis:
    batch = tuple(x.requires_grad_() if x.is_floating_point() else x for x in batch)
    return steps(net, lambda: checkpoint(net, *batch, use_reentrant=use_reentrant))


def bfloat16(net: nn.Module, *batch: Tensor) -> Diagnosis:
    def loss() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return net(*batch)

    return steps(net, loss)


def scaled_half_precision(net: nn.Module, *batch: Tensor) -> Diagnosis:
    """Half precision as it should be: the loss is scaled up, the gradients down again."""
    optimizer, scaler = torch.optim.Adam(net.parameters(), 1e-3), torch.amp.GradScaler("cpu", init_scale=2.0**10)
    with diagnose(net) as d:
        for _ in range(STEPS):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = net(*batch)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    return d


def accelerated(net: nn.Module, *batch: Tensor) -> Diagnosis:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    net, optimizer = accelerator.prepare(net, torch.optim.AdamW(net.parameters(), 1e-3))
    with diagnose(net) as d:
        for _ in range(STEPS):
            with accelerator.accumulate(net):
                accelerator.backward(net(*batch))
                accelerator.clip_grad_norm_(net.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
    return d


def distributed(net: nn.Module, *batch: Tensor, **arguments: Any) -> Diagnosis:
    """DistributedDataParallel, in a process of a group."""
    ranked = nn.parallel.DistributedDataParallel(net, **arguments)
    rank = torch.distributed.get_rank()
    return steps(net, lambda: ranked(*(x[rank::2] for x in batch)))


def sharded(net: nn.Module, *batch: Tensor) -> Diagnosis:
    """FSDP2, in a process of a group."""
    from torch.distributed.fsdp import fully_shard

    for child in net.children():
        if any(True for _ in child.parameters()):
            fully_shard(child)
    fully_shard(net)
    rank = torch.distributed.get_rank()
    return steps(net, lambda: net(*(x[rank::2] for x in batch)))


# The names of programs: how the network is trained, the package that this needs, the ranks.
WAYS: dict[str, tuple[Trainer, str | None, int]] = {
    "accelerated": (accelerated, "accelerate", 1),
    "in_bfloat16": (bfloat16, None, 1),
    "half_precision_with_a_scaler": (scaled_half_precision, None, 1),
    "compiled": (compiled, None, 1),
    "checkpointed": (checkpointed, None, 1),
    "checkpointed_the_old_way": (functools.partial(checkpointed, use_reentrant=True), None, 1),
    "on_two_ranks": (distributed, None, 2),
    "sharded": (sharded, None, 2),
}
