"""Does a finding name the right line? In four published packages, edit the line that `diagnose` names, and see if the gradient is back.
docs/repairs.json has the gradients of one training step before and after the edit, for each torch; docs/diagnose.md links it.

pip install kornia==0.9.0; pip install --no-deps snntorch==1.0.0 nflows==0.14 stable-baselines3==2.9.2   (and what they import)
python scripts/measure_repairs.py
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from figures_by_version import measure_installed
from torch import Tensor, nn

from pseudograd import diagnose
from pseudograd.diagnosis.context import Diagnosis

ROOT = Path(__file__).resolve().parent.parent
FOUND = ROOT / "docs" / "repairs.json"
Named = dict[str, Tensor]


def snntorch() -> tuple[Tensor, Named]:
    """A decay that learns and starts at 1, the upper end of its clamp."""
    leaky = importlib.import_module("snntorch._neurons.leaky")
    neuron = leaky.Leaky(beta=1.0, learn_beta=True, threshold=2.0)
    layer, memory = nn.Linear(4, 6), neuron.init_leaky()
    total = torch.zeros(())
    for _ in range(5):
        spikes, memory = neuron(layer(torch.rand(3, 4)), memory)
        total = total + (memory - 0.5).pow(2).mean() + spikes.mean()
    return total, {"beta": neuron.beta}


def nflows() -> tuple[Tensor, Named]:
    """The logit transform of an image that has exact black and white."""
    module = importlib.import_module("nflows.transforms.nonlinearities")
    image = torch.rand(4, 16)
    image[:, :4], image[:, 4:8] = 0.0, 1.0
    image.requires_grad_()
    y, logabsdet = module.Sigmoid().inverse(image)
    return (y.pow(2).sum() * 1e-3 - logabsdet.sum()) * 1e-3, {"image": image}


def stable_baselines3() -> tuple[Tensor, Named]:
    """An actor whose log_std left (-20, 2)."""
    module = importlib.import_module("stable_baselines3.sac.policies")
    spaces = importlib.import_module("gymnasium.spaces")
    box = spaces.Box(-1.0, 1.0, (3,))
    layers = importlib.import_module("stable_baselines3.common.torch_layers")
    actor = module.Actor(box, box, [16], layers.FlattenExtractor(box), 3)
    with torch.no_grad():
        actor.log_std.bias.fill_(5.0)
    _, log_probability = actor.action_log_prob(torch.randn(8, 3))
    return log_probability.mean(), {"log_std.weight": actor.log_std.weight, "log_std.bias": actor.log_std.bias}


def kornia() -> tuple[Tensor, Named]:
    """A colour shift that is learned. The image that it makes leaves (0, 1)."""
    module = importlib.import_module("kornia.enhance.shift_rgb")
    shift = torch.full((1,), 1.5, requires_grad=True)
    image = module.shift_rgb(torch.rand(1, 3, 8, 8), shift, shift, shift)
    return (image - 0.5).pow(2).mean(), {"shift": shift}


@dataclass(frozen=True)
class Case:
    """A training step; the module and the line that a finding must name; and the edit of that line."""

    run: Callable[[], tuple[Tensor, Named]]
    module: str
    old: str
    new: str


CASES = (
    Case(snntorch, "snntorch._neurons.leaky", "self.beta.clamp(0, 1)", "self.beta"),
    Case(
        nflows,
        "nflows.transforms.nonlinearities",
        "torch.clamp(inputs, self.eps, 1 - self.eps)",
        "inputs * (1 - 2 * self.eps) + self.eps",
    ),
    Case(stable_baselines3, "stable_baselines3.sac.policies", "th.clamp(log_std, LOG_STD_MIN, LOG_STD_MAX)", "log_std"),
    Case(kornia, "kornia.enhance.shift_rgb", ".clamp_(min=0, max=1)", ""),
)


def zeros(case: Case) -> tuple[dict[str, float], Diagnosis]:
    """The share of zeros in the gradient of each tensor, and the diagnosis."""
    torch.manual_seed(0)
    with diagnose() as d:
        loss, tensors = case.run()
        loss.backward()
    shares = {
        name: 1.0 if tensor.grad is None else round((tensor.grad == 0).double().mean().item(), 4)
        for name, tensor in tensors.items()
    }
    return shares, d


def measured(case: Case) -> dict[str, object]:
    module = importlib.import_module(case.module)
    before, d = zeros(case)
    source = inspect.getsource(module)
    lines = source.splitlines(keepends=True)
    at = next(at for at, text in enumerate(lines) if case.old in text)
    location = f"{case.module.replace('.', '/')}.py:{at + 1}"
    codes = [finding.code for finding in d.findings if finding.where.endswith(location)]
    lines[at] = lines[at].replace(case.old, case.new)
    exec(compile("".join(lines), module.__file__ or "", "exec"), vars(module))
    try:
        after, _ = zeros(case)
    finally:
        exec(compile(source, module.__file__ or "", "exec"), vars(module))
    change = {"line": location, "findings": codes, "old": case.old, "new": case.new}
    return {**change, "zeros before": before, "zeros after": after}


if __name__ == "__main__":
    measure_installed(FOUND, {case.run.__name__: partial(measured, case) for case in CASES})
