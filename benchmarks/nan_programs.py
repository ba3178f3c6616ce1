"""Fifteen small programs in which nan or infinity is born at a line, for benchmarks/nan_tools.py."""

from __future__ import annotations

PROGRAM = """\
import torch
from torch import nn
from torch.nn import functional as F

class Wild(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.relu()
    @staticmethod
    def backward(ctx, grad):
        return grad / ctx.saved_tensors[0].relu()

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
    def forward(self, x):
        h = self.layer(x)
        y = {fault}
        return y.float().mean()

torch.manual_seed(0)
x, net = torch.randn(16, 8), Net()
{setup}
optimizer = torch.optim.{optimizer}
def train():
    for _ in range(3):
        optimizer.zero_grad()
        net(x).backward()
        optimizer.step()
"""
# By the name of the fault: the expression, and a pattern of the words that name its op or its reason.
FAULTS = {
    "root at 0": ("torch.sqrt((h - h.detach()).abs())", "sqrtbackward|aten.sqrt|of a root"),
    "norm at 0": ("(h - h.detach()).square().sum(1).sqrt()", "sqrtbackward|aten.sqrt|of a root"),
    "root behind `where`": ("torch.where(h > 0, torch.sqrt(h), 0 * h)", "sqrtbackward|aten.sqrt|of a root"),
    "logarithm behind `where`": ("torch.where(h > 0, torch.log(h * (h > 0)), 0 * h)", "logarithm|logbackward|aten.log"),
    "logarithm of 0": ("torch.log(torch.softmax(1e4 * h, 1))", "logarithm|logbackward|aten.log"),
    "division by 0": ("torch.where(h > 0, h / h.relu(), 0 * h)", "division|divbackward|aten.div"),
    "acos at 1": ("torch.acos(h / h.abs())", "range of this function|acosbackward|aten.acos"),
    "exp": ("torch.exp(900 * h)", "larger than float32|expbackward|aten.exp"),
    "power": ("(h * (h > 0)) ** 0.3", "of a root|powbackward|aten.pow"),
    "half precision": ("h.half() * (600 * h.half()) ** 2", "float16|powbackward|aten.pow"),
    "softmax of -inf": (
        "torch.softmax(h - torch.full((8,), torch.inf), 1)",
        "no softmax|softmaxbackward|aten._softmax",
    ),
    "custom Function": ("Wild.apply(h)", "autograd.Function|wildbackward"),
    "product": ("F.linear(1e30 * h, 1e30 * self.layer.weight)", "grows from layer|mmbackward|aten.(add)?mm"),
    "data": ("1 * h", "data held it|input.* has nan"),
    "Adam in half precision": ("1 * h", r"\beps="),
}
SETUP = {"data": "x[0, 0] = torch.nan", "Adam in half precision": "x, net = x.half() * (x > 9), net.half()"}


def source_of(fault: str) -> str:
    optimizer = "Adam(net.parameters(), 0.01, eps=1e-8)" if "Adam" in fault else "SGD(net.parameters(), 1e-9)"
    return PROGRAM.format(fault=FAULTS[fault][0], setup=SETUP.get(fault, ""), optimizer=optimizer)


def lines_of(fault: str) -> list[int]:
    """The lines of which each is right: of the data the layer that they enter, of the optimiser also its step."""
    texts = {"data": ["self.layer(x)"], "Adam in half precision": ["optimizer = ", "optimizer.step"]}.get(
        fault, ["{fault}"]
    )
    return [number for number, line in enumerate(PROGRAM.splitlines(), 1) if any(text in line for text in texts)]
