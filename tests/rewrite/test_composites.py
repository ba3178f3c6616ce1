"""Functions that torch runs as one call with a clamp inside: contexts reach it, and change nothing but what they are asked for."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import pseudograd as pg
from pseudograd.rewrite.context import Rewriting
from pseudograd.rewrite.edges import rule_named
from pseudograd.rewrite.mode import Replacement
from pseudograd.rewrite.override import override
from pseudograd.rewrite.pin_edge import pin_edge
from pseudograd.torch_table.eras import ERAS, installed_era
from pseudograd.torch_table.records import EDGE

from ..choices import folded
from .eras import composites, gradients

MEASURED = json.loads((Path(__file__).parent / "eras.json").read_text())
CASES = {name: (function, bounds) for name, function, bounds in composites()}
OTHER_ERA = next(name for name in ERAS if name != installed_era())
CONTEXTS: dict[str, Callable[[], Rewriting]] = {
    "the other era": lambda: pin_edge(OTHER_ERA),
    "half": lambda: pin_edge("half"),
    "a rule": lambda: override(clamp="zero"),
}
Loss = Callable[..., Tensor]
_ranking: Loss = functional.margin_ranking_loss
WAYS: dict[str, Loss] = {
    "functional": functional.margin_ranking_loss,
    "torch": torch.margin_ranking_loss,
    "aten": torch.ops.aten.margin_ranking_loss,
    "aten's overload": torch.ops.aten.margin_ranking_loss.default,
}
ENUMS = {"none": 0, "mean": 1, "sum": 2}


@folded
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("name", CASES)
def test_an_era_is_that_torchs_own_gradient(name: str, era: str) -> None:
    """At ties too; also where the pin names the installed era, and rewrites all the same."""
    with Rewriting("forced", {EDGE: Replacement(rule_named(era, ""))}) as context:
        assert gradients(*CASES[name]) == MEASURED[era][name]
    assert [(site.op, site.calls) for site in context.report().rewritten] == [("clamp_min", 1)]
    with pin_edge(era):
        assert gradients(*CASES[name]) == MEASURED[era][name]


def _tensors(
    dtype: torch.dtype, shapes: tuple[tuple[int, ...], ...] = ((5, 4),) * 3, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Two inputs and a target that all learn; no tie among them."""
    make = torch.Generator().manual_seed(seed)
    return tuple(  # type: ignore[return-value]
        torch.randn(shape, generator=make).to(dtype).requires_grad_() for shape in shapes
    )


def _derivatives(loss: Callable[..., Tensor], tensors: tuple[Tensor, ...]) -> list[Tensor]:
    """The value, the gradients, and those of their squares."""
    value = loss(*tensors)
    weight = torch.linspace(-1.0, 2.0, value.numel()).reshape(value.shape).to(value.dtype)
    first = torch.autograd.grad(value, tensors, weight, create_graph=True)
    second = torch.autograd.grad(sum(((one.float() ** 2).sum() for one in first), torch.zeros(())), tensors)
    return [value, *first, *second]


def _assert_same(found: list[Tensor], wanted: list[Tensor]) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    "given", [{"size_average": False}, {"size_average": True}, {"reduce": False}, {"reduce": True, "reduction": "none"}]
)
def test_the_deprecated_arguments_with_their_warning(given: dict[str, Any]) -> None:
    def heard(tensors: tuple[Tensor, ...]) -> tuple[list[Tensor], list[str]]:
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            values = _derivatives(lambda *t: _ranking(*t, **given), tensors)
        return values, [str(one.message) for one in found]

    tensors = _tensors(torch.float32)
    wanted, said = heard(tensors)
    with CONTEXTS["a rule"]() as context:
        found, said_inside = heard(tensors)
    _assert_same(found, wanted)
    assert said_inside == said
    assert context.report().rewritten[0].calls == 1


REFUSED: dict[str, Callable[[Tensor], Any]] = {
    "dimensions": lambda x: functional.margin_ranking_loss(x, x, torch.ones(3, 4)),
    "a reduction": lambda x: functional.margin_ranking_loss(x, x, x, reduction="most"),
    "a margin": lambda x: functional.margin_ranking_loss(x, x, x, margin="1"),  # type: ignore[arg-type]
    "a margin of three": lambda x: functional.margin_ranking_loss(x, x, x, margin=x),  # type: ignore[arg-type]
    "no tensor": lambda x: functional.margin_ranking_loss(1.0, x, x),  # type: ignore[arg-type]
    "too few": lambda x: torch.ops.aten.margin_ranking_loss(x, x),
    "a word": lambda x: torch.ops.aten.margin_ranking_loss(x, x, x, least=1),
    "complex": lambda x: functional.margin_ranking_loss(x * 1j, x * 1j, x),
    "shapes": lambda x: functional.margin_ranking_loss(x, x[:2], x),
    "a mask": lambda x: functional.margin_ranking_loss(x, x, x > 0),
}


@folded
@pytest.mark.parametrize("name", REFUSED)
def test_what_torch_refuses_it_refuses_in_its_own_words(name: str) -> None:
    x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    with pytest.raises(Exception) as plain:  # noqa: PT011  whatever torch raises
        REFUSED[name](x)
    with CONTEXTS["a rule"](), pytest.raises(type(plain.value)) as inside:
        REFUSED[name](x)
    assert str(inside.value) == str(plain.value)


# --- rules ------------------------------------------------------------------------------------------------------------


def _scores() -> tuple[Tensor, Tensor, Tensor]:
    x = torch.tensor([-2.0, 0.0, 2.0], requires_grad=True)
    return x, torch.zeros(3), torch.ones(3)


def test_a_rule_is_that_of_the_clamp_inside() -> None:
    """Written out by hand with our own clamp: the same."""
    x, other, target = _scores()
    for rule in ("identity", "inward"):
        wanted = pg.clamp(-target * (x - other) + 1.0, min=0.0, rule=rule).mean()
        with override(clamp=rule) as context:
            found = functional.margin_ranking_loss(x, other, target, margin=1.0)
        assert torch.equal(found, wanted)
        assert torch.equal(torch.autograd.grad(found, x)[0], torch.autograd.grad(wanted, x)[0])
        assert context.report().rewritten[0].rule.startswith(rule)


def test_a_rule_by_site_sees_the_clamp() -> None:
    seen = []

    def chosen(site: Any) -> str | None:
        seen.append((site.op, site.family, site.min, site.max, site.is_at(f"{Path(__file__).name}:{line}")))
        return None

    x, other, target = _scores()
    with override(clamp=chosen):
        line = test_a_rule_by_site_sees_the_clamp.__code__.co_firstlineno + 10
        functional.margin_ranking_loss(x, other, target)
    assert seen == [("clamp_min", "clamp", 0, None, True)]


# --- every way to differentiate ---------------------------------------------------------------------------------------
