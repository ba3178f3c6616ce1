"""What is heard of a compiled block, and what its segments compute, called in this process: nothing is compiled here."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

from pseudograd.listen import frames
from pseudograd_upgrade.routes.hearing import BlockHeard
from pseudograd_upgrade.routes.regions import Regions
from pseudograd_upgrade.routes.segments import Line, Segment, Segments
from pseudograd_upgrade.schedule import Schedule


class Passed:
    """In place of what hears: the segments that were called."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def passed(self, *call: Any) -> None:
        self.calls.append(call)


def doubled(x: Tensor) -> Tensor:
    return x * 2


def test_a_block_is_heard_at_the_line_that_calls_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nn.Module, "__call__", nn.Module.__call__)
    heard = BlockHeard(Schedule())
    regions = Regions(heard, None, Segments(heard, None, is_cut=False, out=(), moved=()))
    block = regions.block(doubled, "doubled")
    x = torch.ones(3, requires_grad=True)
    line, y = frames.named(frames.place(0).call), block(x)
    y.sum().backward()
    assert [(site[0], site[1], site[2], site[4]) for site in heard.sites] == [
        (kind, "doubled, all of it", line, "block(x)") for kind in ("forward", "backward")
    ]
    (came_forward, came_backward) = heard.content()["steps"][1]
    assert came_forward[2][0][2][0] == 6  # the sums of y, and of its gradient
    assert came_backward[2][0][2][0] == 3


@pytest.mark.parametrize("is_moved", [True, False])
def test_the_inputs_of_a_line_that_is_moved_stand_a_little_apart(is_moved: bool) -> None:
    heard = Passed()
    segments = Segments(heard, None, is_cut=True, out=(), moved=("train.py:2",))
    line = Line("train.py:2" if is_moved else "train.py:3", "?", "x * 2")
    x = torch.linspace(-1, 1, 64, requires_grad=True)
    y = Segment(segments, fx.symbolic_trace(doubled), line, "mul")(x)
    apart = ((y.detach() - 2 * x.detach()) / 2 / (x.detach().abs() + 1)).abs()
    assert 0.002 < apart.mean() < 0.05 if is_moved else apart.max() == 0
    ((site, taken, result),) = heard.calls
    assert site == ("mul", *line)
    assert result is y
    y.sum().backward()
    assert torch.equal(x.grad, torch.full((64,), 2.0))
    assert torch.equal(taken[0], x)
    assert taken[0] is not x  # another name for it, so that the gradient from this segment alone is seen
