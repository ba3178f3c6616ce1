"""A gradient that falls with one layer after another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...records import Finding, Site
from ..norms import find_fall
from .kind import Evidence, Kind

# the largest of each
_SLOPES = {"sigmoid": "1/4", "tanh": "1", "softplus": "1", "hardsigmoid": "1/6", "softmax": "1/2"}


def _find(evidence: Evidence) -> Iterator[Finding]:
    """Judges the weights alone: a bias or a gain may get next to nothing for good reasons, as before a normalisation."""
    weights = [
        (sizes, bit, leaf.name)
        for bit, leaf in evidence.leaves
        if (sizes := leaf.sizes) is not None and sizes.count and len(leaf.shape) > 1
    ]
    weights = [row for row in weights if not evidence.deliberate.parameter(row[2])]
    weights.sort(key=lambda row: row[0].order)
    fall = find_fall([(name, sizes.mean) for sizes, _, name in weights])
    if fall is None:
        return
    bit = next(bit for _, bit, name in weights if name == fall.first)
    sites = [site for site in evidence.sites if site.upstream >> bit & 1]
    last = sites[-1] if sites else None
    each = (fall.norm_last / fall.norm_first) ** (1 / (fall.layers - 1))
    yield KIND.finding(
        "?" if last is None else last.where,
        "" if last is None else last.expression,
        f"the norm of the gradient falls from {fall.norm_last:.3g} ({fall.last}) to {fall.norm_first:.3g} ({fall.first}) along "
        f"{fall.layers} weights, {each:.3g} times with each of them",
        _explain(sites),
        "Put a residual connection around each layer; or take relu, with torch.nn.LayerNorm before it or torch.nn.init.kaiming_normal_ "
        "for its weights. d.norms lists every parameter.",
        share=1 - fall.norm_first / fall.norm_last,
        is_muted=last is not None and last.is_deliberate,
    )


def _explain(sites: Sequence[Site]) -> str:
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
torch.manual_seed(0)
net = nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.Sigmoid()) for _ in range(12)])
with diagnose(net) as d:
    net(torch.randn(16, 8)).sum().backward()  # PG209
""",
    mend=(
        ("[nn.Sequential(", "[Residual("),
        (
            "torch.manual_seed",
            "\nclass Residual(nn.Sequential):\n    def forward(self, x):\n        return x + super().forward(x)\n\n\ntorch.manual_seed",
        ),
    ),
)
