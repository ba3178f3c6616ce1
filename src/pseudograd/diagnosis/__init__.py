"""A context around training code. It says which lines cut gradients, and which parameters starve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from torch import nn

from .context import Diagnosis

__all__ = ["diagnose"]


def diagnose(
    model: nn.Module | None = None,
    *,
    whatif: Mapping[str, object] | None = None,
    detail: Literal["full", "counts"] = "full",
    ignore: Sequence[str] = (),
    sensitivity: int | bool = False,
) -> Diagnosis:
    """Record what training code does to its gradients: which lines cut them, and which parameters get none.

    Forward:  the program's own, unchanged. Compiled regions run eagerly inside the context.
    Backward: the program's own, unchanged; hooks compare what arrives at every node of autograd with what leaves it.

    Args:
        model: the module whose parameters are judged, under their names in it. None: every module that runs, and other leaves.
        whatif: questions, each under a name that you choose. {"mine": dict(clamp=RULE)} asks for the gradients under override(clamp=RULE),
            {"newer": "torch>=2.14"} for those under pin_edge("torch>=2.14"). Each question adds a backward pass before each of yours.
        detail: "full", or "counts", which costs less and records only the shares of elements.
        ignore: patterns for deliberate parameters ("teacher.*") and deliberate lines ("losses.py:12", "losses.py:*"), and codes to leave
            out ("PG204"). A comment `# pseudograd: deliberate` declares its line deliberate.
        sensitivity: measure which share of each gradient is convention: at kinks and ties another torch, JAX or TensorFlow chooses another
            gradient. True: in each backward; n: in every n-th. Costs one more backward pass, and one for each family at a kink.
    Returns: a context, to be entered once around some training steps. Then `findings`, `sites`, `starved`, `structural`, `norms`,
        `sensitivity` and `whatif` hold records, `print(d)` is a report, `d.write_html(file)` a page, `d.to_json()` all of it. Only
        backward passes that start inside the context are seen.
    Raises: TypeError if model is no module; ValueError for an unknown family, era or detail, or an ignore that is no list of patterns.
    Example:
        >>> scale = torch.nn.Parameter(torch.tensor([5.0, 0.5]))
        >>> with diagnose() as d:
        ...     (scale.clamp(0, 1) * 3).sum().backward()
        >>> d.sites[-1].op, d.sites[-1].cut, d.sites[-1].recoverable
        ('clamp', 1, 1)
    Source: new in pseudograd; pytorch#83537 has the method.
    """
    return Diagnosis(model, whatif, detail, ignore, sensitivity)
