"""What a test suite asks of gradients: `with diagnosed(model):` fails with the finding and its line."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from torch import nn

from ..diagnosis import diagnose
from ..diagnosis.context import Diagnosis
from ..diagnosis.run import gate


@contextlib.contextmanager
def diagnosed(
    model: nn.Module | None = None,
    *,
    fail_on: str | Sequence[str] = "any",
    ignore: Sequence[str] = (),
    detail: str = "full",
) -> Iterator[Diagnosis]:
    """Diagnose the training steps inside, and fail where a finding is there.

    Args:
        model, ignore, detail: as `pseudograd.diagnose` takes them.
        fail_on: "any", a code such as "starved", a code with a share such as "cut>0.5"; or several.
    Returns: a context that gives the `Diagnosis`. It works in every test runner; in pytest the fixture `diagnosed` is this function.
    Raises: AssertionError with the report where one of `fail_on` holds, and where no backward pass was seen, as nothing seen is no pass;
        ValueError for an unknown code. What the steps raise themselves is raised as it is.
    Example:
        >>> net = torch.nn.Linear(2, 1)
        >>> with diagnosed(net, fail_on="starved"):
        ...     net(torch.ones(1, 2)).sum().backward()
    Source: new in pseudograd.
    """
    failures = gate(fail_on)
    with diagnose(model, ignore=ignore, detail=detail) as d:
        yield d
    if not d.backwards:
        raise AssertionError(
            "diagnosed: no backward pass was seen, so nothing is known to pass. Train inside the context."
        )
    if says := failures(d):
        raise AssertionError(f"diagnosed: {says}\n{d}")
