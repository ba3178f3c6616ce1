"""The table of what torch does at a bound, held against the torch the suite runs on."""

from __future__ import annotations

import pytest
import torch

from pseudograd.torch_facts import CLOSED_ERA, FORMS, OPEN_ERA, era_of, installed_era, measure


@pytest.mark.parametrize("name", FORMS)
def test_the_table_is_what_this_torch_does(name: str) -> None:
    assert measure(FORMS[name]) == FORMS[name].slopes[era_of(torch.__version__)]


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
    assert [FORMS["clamp(x, min=0)"].slopes[era].x for era in (CLOSED_ERA, OPEN_ERA)] == [1, 0]
    assert [tuple(FORMS["clamp(x, min=tensor)"].slopes[era]) for era in (CLOSED_ERA, OPEN_ERA)] == [(1, 0), (0.5, 0.5)]


def test_measuring_works_where_nothing_is_recorded() -> None:
    with torch.no_grad(), torch.inference_mode():
        assert measure(FORMS["where(x >= tensor, x, tensor)"]) == (1.0, 0.0)
