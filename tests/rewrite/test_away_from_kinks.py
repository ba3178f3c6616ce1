"""A pin changes nothing away from kinks: values and gradients of torch's own samples of all its functions, bit for bit."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from pseudograd import pin_edge
from pseudograd.rewrite.context import Rewriting
from pseudograd.torch_table.forms import FAMILIES, KINKED

from ..torchs_samples import Sample, of_functions, of_modules

pytestmark = pytest.mark.filterwarnings("ignore")  # of samples that torch itself warns about
CONTEXTS: dict[str, Callable[[], Rewriting]] = {
    "jax": lambda: pin_edge("jax", nan=True),
    "tensorflow": lambda: pin_edge("tensorflow", nan=True),
    "numbers": lambda: pin_edge(**{name: 0.3 for name, family in FAMILIES.items() if family.takes}),
}
PINNED = {kinked.spelling.form.names[0] for found in KINKED.values() for kinked in found}
_ALWAYS_AT_ONE = {"corrcoef"}  # its diagonal is a ratio of equal numbers, which is clamped at 1


def _is_pinned(name: str) -> bool:
    return any(part in PINNED for part in name.split("."))


def _samples(most: int | None) -> Iterator[Sample]:
    """most: of each function; the pinned ones alone. None: every sample of every function, and of every module."""
    if most is None:
        yield from itertools.chain(of_functions((torch.float64,)), of_modules())
        return
    count: Counter[str] = Counter()
    for sample in of_functions((torch.float64,), _is_pinned):
        count[sample.of] += 1
        if count[sample.of] <= most:
            yield sample


def _learning(sample: Sample) -> list[Tensor]:
    leaves = [one for one in tree_leaves((sample.x, sample.args, sample.kwargs)) if isinstance(one, Tensor)]
    if isinstance(sample.function, nn.Module):
        leaves += sample.function.parameters()
    return [one for one in leaves if one.requires_grad]


def _derivatives(sample: Sample) -> list[Tensor | None] | None:
    """Every result and every gradient; None where torch refuses the sample, or keeps no strided numbers of it."""
    torch.manual_seed(0)
    learning = _learning(sample)
    try:
        values = [one for one in tree_leaves(sample.run()) if isinstance(one, Tensor)]
        results = [one for one in values if one.requires_grad]
        weights = [torch.linspace(-1.0, 2.0, one.numel()).reshape(one.shape).to(one.dtype) for one in results]
        grads = torch.autograd.grad(results, learning, weights, allow_unused=True) if results and learning else []
    except (RuntimeError, ValueError, TypeError, NotImplementedError):
        return None
    found = [*values, *grads]
    return found if all(one is None or (one.layout is torch.strided and not one.is_nested) for one in found) else None


def _are_equal(some: list[Tensor | None], others: list[Tensor | None]) -> bool:
    return len(some) == len(others) and all(map(_is_equal, some, others))


def _is_equal(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    one, other = one.detach().resolve_conj(), other.detach().resolve_conj()
    return bool(((one == other) | ((one != one) & (other != other))).all())


def _moved(sample: Sample) -> Sample:
    """Each number by its own hair, so that nothing is at a kink, and nothing tied."""

    def moved(value: object) -> object:
        if not isinstance(value, Tensor) or not value.requires_grad or value.layout is not torch.strided:
            return value
        hair = 1e-5 * (1.0 + torch.arange(value.numel(), dtype=torch.float64).sin()).reshape(value.shape)
        return (value.detach() + hair.to(value.dtype)).requires_grad_()

    return sample._replace(x=moved(sample.x), args=tree_map(moved, sample.args), kwargs=tree_map(moved, sample.kwargs))


@pytest.mark.program
@pytest.mark.xdist_group("samples of torch")  # a process needs seconds to import them
@pytest.mark.parametrize("most", [pytest.param(3, id="some"), pytest.param(None, id="all", marks=pytest.mark.slow)])
def test_a_pin_changes_nothing_away_from_kinks(most: int | None) -> None:
    compared = 0
    at_kinks: Counter[str] = Counter()
    wrong: list[tuple[str, str]] = []
    for sample in _samples(most):
        plain = _derivatives(sample)
        again = _derivatives(sample)
        if plain is None or again is None or not _are_equal(plain, again):  # some are random, whatever the seed
            continue
        compared += 1
        for name, context in CONTEXTS.items():
            with context():
                found = _derivatives(sample)
            if found is not None and _are_equal(found, plain):
                continue
            if found is not None and (sample.of in _ALWAYS_AT_ONE or _is_at_a_kink(sample, context)):
                at_kinks[sample.of] += 1
            else:
                wrong.append((sample.of, name))
    assert not wrong
    assert compared > (120 if most else 10_000)
    assert sum(at_kinks.values()) < compared / 20, at_kinks


def _is_at_a_kink(sample: Sample, context: Callable[[], Rewriting]) -> bool:
    """Is there no difference a hair beside it?"""
    beside = _moved(sample)
    plain = _derivatives(beside)
    with context():
        found = _derivatives(beside)
    return plain is not None and found is not None and _are_equal(found, plain)
