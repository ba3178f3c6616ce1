"""The colours of the steps' rules differ for readers with and without the two common kinds of colour blindness."""

import math
from itertools import combinations

import pytest
from torch import Tensor

import pseudograd as pg
from pseudograd.look.palette import colour, colours, darker
from pseudograd.rule import OPS

# Machado, Oliveira & Fernandes (2009), severity 1, on linear RGB.
SEEN = {
    "all colours": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.01182, 0.04294, 0.968881)),
}
TO_XYZ = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
WHITE = (0.9505, 1.0, 1.089)


def times(matrix: tuple[tuple[float, ...], ...], vector: list[float]) -> list[float]:
    return [sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix]


def lab(code: str, reader: str) -> tuple[float, float, float]:
    """CIELAB of what the reader sees."""
    shares = [int(code[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in shares]
    seen = [min(1.0, max(0.0, c)) for c in times(SEEN[reader], linear)]
    x, y, z = (
        t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116
        for t in (c / w for c, w in zip(times(TO_XYZ, seen), WHITE, strict=True))
    )
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def test_every_rule_has_a_colour_of_its_own() -> None:
    names = {name for op in OPS.values() for name in op.rules}
    assert len({colour(name) for name in names}) == len(names)


@pytest.mark.parametrize("reader", SEEN)
def test_rules_of_steps_are_told_apart(reader: str) -> None:
    for rule, other in combinations(OPS["sign"].rules, 2):
        assert math.dist(lab(colour(rule), reader), lab(colour(other), reader)) > 10, (rule, other)


@pytest.mark.usefixtures("table_as_it_was")
def test_a_registered_rule_has_a_colour_that_no_other_has() -> None:
    taken = {colour(name) for op in OPS.values() for name in op.rules}
    pg.register_rule("clamp", formula="grad / 2", source="this test", is_linear=True)(halved)
    assert colour("halved") == colour("halved/open") == colour("halved(width=2)", position=3)
    assert colour("halved") not in taken


def halved(grad: Tensor, x: Tensor, y: Tensor, min: object, max: object) -> Tensor:
    return grad / 2


def test_names_that_are_no_rules_have_colours_by_their_position() -> None:
    assert colour("my own") == colour("another", position=6) != colour("my own", position=1)
    assert darker("#0072B2") == "#003959"
    assert (colour("zero/open"), colour("torch.clamp"), colour("clamp_with_grad")) == (
        "#8C2D04",
        "#000000",
        colour("inward"),
    )
    assert colour("ste") == colour("my own"), "a rule is not called so here"
    shades = colours(["mine", "inward", "yours", "theirs", "sign", "torch.clamp"])
    assert len(set(shades.values())) == 6
    assert (shades["inward"], shades["torch.clamp"]) == (colour("inward"), colour("torch.clamp"))
    assert len(colours(map(str, range(40)))) == 40
