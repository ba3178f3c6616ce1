"""What is known of the cuts of a loss, whether each call is marked by the short way or the long one."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pseudograd.diagnosis.context import Diagnosis
from pseudograd.diagnosis.count.influence import Influence

from ..written import assert_written
from .checks import diagnosed, make_function

halved: Any = make_function("Halved", lambda ctx, x: x.detach() / 2, lambda ctx, grad: grad / 2)
cut: Any = make_function("Cut", lambda ctx, x: ctx.mark_non_differentiable(y := x * 2) or y, lambda ctx, grad: grad)


def no_grad(function: Callable[[], Tensor]) -> Tensor:
    with torch.no_grad():
        return function()


def cuts_of(loss: Callable[..., Tensor]) -> str:
    """The cuts of the loss, each with the number of leaves whose gradient it cuts; and the terms with a constant."""
    described = []
    with pytest.MonkeyPatch.context() as patch:
        for _ in range(2):
            leaves = [nn.Parameter(torch.tensor([first, first + 1])) for first in (1.0, 3.0, 5.0)]
            described.append(_describe(diagnosed(functools.partial(loss, *leaves))))
            patch.setattr(Influence, "mark_plainly", lambda *arguments: False)
    assert described[0] == described[1]
    return described[0] or "none"


def _describe(d: Diagnosis) -> str:
    parts = []
    for known in d._recorder.influence.cuts.values():
        reaches = {None: " exits", True: " reaches", False: ""}[known.reaches_loss]
        words = (
            " last" * known.is_final_cut,
            " compared" * bool(known.compared_at),
            " again" * bool(known.cut_again_at),
        )
        parts.append(f"{known.kind} of {known.upstream.bit_count()}{reaches}{''.join(words)}")
    terms = d._recorder.influence.constant_terms.values()
    return ", ".join([*parts, *(f"term {term.passes} {len(term.cuts)}" for term in terms)])


@pytest.mark.filterwarnings("ignore")
def test_the_cuts_of_the_written_losses_are_known() -> None:
    assert_written(Path(__file__).with_name("cuts.txt"), globals())
