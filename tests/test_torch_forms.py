"""The table of what torch does at a bound, held against the torch the suite runs on."""

from __future__ import annotations

import pytest
import torch

from pseudograd.torch_eras import CLOSED_ERA, OPEN_ERA, era_of, installed_era, measure
from pseudograd.torch_forms import AtTheBound, at_the_bound

WAYS = {way.text: way for way in at_the_bound()}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_the_table_is_what_this_torch_does(way: AtTheBound) -> None:
    assert measure(way.f) == way.slopes_in(era_of(torch.__version__))


def test_the_measured_era_is_that_of_the_version() -> None:
    assert installed_era() == era_of(torch.__version__)


@pytest.mark.parametrize(
    ("version", "era"),
    [
        ("2.8.0", CLOSED_ERA),
        ("2.13.0+cpu", CLOSED_ERA),
        ("2.14.1+cu130", OPEN_ERA),
        ("2.15.0", OPEN_ERA),
        ("3.0.0", OPEN_ERA),
    ],
)
def test_the_era_of_a_version(version: str, era: str) -> None:
    assert era_of(version) == era


def test_numbers_changed_from_one_to_zero_and_tensors_to_a_half() -> None:
    assert [WAYS["clamp(x, min=0)"].slopes_in(era).x for era in (CLOSED_ERA, OPEN_ERA)] == [1, 0]
    assert [tuple(WAYS["clamp(x, min=tensor)"].slopes_in(era)) for era in (CLOSED_ERA, OPEN_ERA)] == [
        (1, 0),
        (0.5, 0.5),
    ]


def test_measuring_works_where_nothing_is_recorded() -> None:
    with torch.no_grad(), torch.inference_mode():
        assert measure(WAYS["where(x >= tensor, x, tensor)"].f) == (1.0, 0.0)
