"""Where does my gradient die? A context around real training code that says which line cuts what, and which parameters starve."""

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
    """Record what real training code does to its gradients: which line cuts what, and which parameters get nothing.

    Forward:  the program's own, unchanged. Compiled regions run eagerly inside the context.
    Backward: the program's own, unchanged; hooks compare what arrives at every node of autograd with what leaves it.

    Args:
        model: whose parameters are meant, by their names; None: those of every module that runs, and other leaves.
        whatif: questions, by a name of yours: {"mine": dict(clamp=RULE)} takes what override takes, {"newer": "torch>=2.14"} what
            pin_edge takes. Each costs one more backward pass, before the program's own.
        detail: "full", or "counts" for the share of elements alone, at less cost.
        ignore: what is deliberate: patterns for parameters ("teacher.*") and for lines ("losses.py:12", "losses.py:*"), and codes
            ("PG204"). A comment `# pseudograd: deliberate` at a line says the same.
        sensitivity: how much of each gradient is what torch happens to do at kinks and ties, where another torch, JAX or TensorFlow
            does otherwise? True, or n for every n-th backward. Costs one more backward pass, and one for each family of functions of
            which something stands at a kink.
    Returns: a context, to be entered once around some training steps. Then `findings`, `sites`, `starved`, `structural`, `norms`,
        `sensitivity` and `whatif` hold records, `print(d)` is a report, `d.write_html(file)` a page, `d.to_json()` all of it. Only
        backward passes that start inside the context are seen.
    Raises: TypeError if model is no module; ValueError for a whatif that names no family or era, an unknown detail, or patterns
            that are none.
    Example:
        >>> scale = torch.nn.Parameter(torch.tensor([5.0, 0.5]))
        >>> with diagnose() as d:
        ...     (scale.clamp(0, 1) * 3).sum().backward()
        >>> d.sites[-1].op, d.sites[-1].cut, d.sites[-1].recoverable
        ('clamp', 1, 1)
    Source: new in pseudograd; pytorch#83537 has the method.
    """
    return Diagnosis(model, whatif, detail, ignore, sensitivity)
