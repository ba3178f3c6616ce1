"""A gradient that falls with one layer after another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...count.norms import fading
from ...records import Finding, Site
from .kind import Evidence, Kind

_SLOPES = {
    "sigmoid": "1/4",
    "tanh": "1",
    "softplus": "1",
    "hardsigmoid": "1/6",
    "softmax": "1/2",
}  # the largest of each


def _find(evidence: Evidence) -> Iterator[Finding]:
    """The weights alone: a bias or a gain may get next to nothing for good reasons, as before a normalisation."""
    leaves = [
        leaf for _, leaf in evidence.leaves if leaf.sizes is not None and leaf.sizes.count and len(leaf.shape) > 1
    ]
    some = sorted(
        (leaf for leaf in leaves if not evidence.deliberate.parameter(leaf.name)), key=lambda leaf: leaf.sizes.order
    )
    found = fading([(leaf.name, leaf.sizes.mean) for leaf in some])
    if found is None:
        return
    first = next(leaf for leaf in some if leaf.name == found.first)
    bit = sum(1 << at for at, leaf in evidence.leaves if leaf is first)
    sites = [site for site in evidence.sites if site.upstream & bit]
    place = sites[-1] if sites else None
    each = (found.norm_last / found.norm_first) ** (1 / (found.layers - 1))
    yield KIND.finding(
        "?" if place is None else place.where,
        "" if place is None else place.expression,
        f"the norm of the gradient falls from {found.norm_last:.3g} ({found.last}) to {found.norm_first:.3g} ({found.first}) along "
        f"{found.layers} weights, {each:.3g} times with each of them",
        _why_it_fades(sites),
        "Put a residual connection around each layer; or take relu, with torch.nn.LayerNorm before it or torch.nn.init.kaiming_normal_ "
        "for its weights. d.norms lists every parameter.",
        share=1 - found.norm_first / found.norm_last,
        is_muted=place is not None and place.is_deliberate,
    )


def _why_it_fades(sites: Sequence[Site]) -> str:
    counts = {op: sum(site.calls for site in sites if site.op == op) for op in _SLOPES}
    op = max(counts, key=lambda name: counts[name])
    if counts[op]:
        return f"each {op} multiplies it by at most {_SLOPES[op]}, and no skip connection leads past"
    return "each layer hands on less than it gets: small weights, or activations that are nearly flat, and no skip connection leads past"


KIND = Kind(
    code="vanish",
    number="PG209",
    order=90,
    find=_find,
    meaning="the norm of the gradient falls a million times or more along the weights, with four of them or more and not at one alone",
    next_step="residual connections around the layers, or relu with a normalisation or fitting initial weights",
    is_alone=True,
    bad="""\
import torch
from torch import nn
from pseudograd import diagnose

torch.manual_seed(0)
net = nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.Sigmoid()) for _ in range(12)])
with diagnose(net) as d:
    net(torch.randn(16, 8)).sum().backward()  # PG209
""",
    good="""\
import torch
from torch import nn
from pseudograd import diagnose


class Residual(nn.Sequential):
    def forward(self, x):
        return x + super().forward(x)


torch.manual_seed(0)
net = nn.Sequential(*[Residual(nn.Linear(8, 8), nn.Sigmoid()) for _ in range(12)])
with diagnose(net) as d:
    net(torch.randn(16, 8)).sum().backward()
""",
)
