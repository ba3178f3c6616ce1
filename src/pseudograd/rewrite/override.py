"""override: torch's own functions with another backward rule, by family."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import must, unknown_name
from ..rule import OPS, RuleChoice, RuleLike, choose
from . import stand_ins
from .mode import Choice, Rewriting
from .sites import Chooser, Site

SiteRule = RuleLike | Callable[[Site], RuleLike | None]
# family -> (the public op that holds its rules, the families of `forms` that it covers)
FAMILIES: dict[str, tuple[str, tuple[str, ...]]] = {
    "clamp": ("clamp", ("clamp", "extreme")),
    "relu": ("relu", ("relu",)),
    "round": ("round", ("round",)),
    "sign": ("sign", ("sign",)),
    "fake_quantize": ("fake_quantize", ("fake_quantize",)),
}


class override(Rewriting):  # noqa: N801  used as a function is
    """Use other backward rules in code that is not edited, by family of op.
    """

    def __init__(self, **families: SiteRule | None) -> None:
        stand_ins.refresh()
        choices: dict[str, Choice] = {}
        for family, rule in families.items():
            if family not in FAMILIES:
                raise unknown_name("override", "family", FAMILIES, family)
            if rule is None:
                continue
            choice = Choice(_checked(family, rule))
            for covered in FAMILIES[family][1]:
                choices[covered] = choice
        if not choices:
            names = ", ".join(FAMILIES)
            raise ValueError(f"override: one of {names} must be given a rule, got none. Name at least one.")
        named = ", ".join(f"{key}={value!r}" for key, value in families.items() if value is not None)
        super().__init__(f"override({named})", choices)


def _checked(family: str, rule: Any) -> Any:
    """A rule of the family's op, with its error; a function becomes a Chooser."""
    if isinstance(rule, (str, RuleChoice)):
        op = OPS[FAMILIES[family][0]]
        choose(op, rule, op.default_edge)
        return rule
    if callable(rule):
        return Chooser(rule)
    raise TypeError(must("override", family, "be a rule, or a function from a site to a rule", rule))
