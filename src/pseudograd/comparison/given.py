"""Variants of the user's own: anything that a run can be handed, by name."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import must, unknown_name
from ..ops.bounds import CLAMP
from ..parse_rule import parsed
from ..rule import Edge, RuleLike, RuleObject, make_call
from .variants import HandedClamp, Inside, with_rule


@dataclass(frozen=True)
class Given:
    """What `Ways` is for rules of a clamp, for these: functions are handed out as they are, rules as the clamp that they give."""

    handed: tuple[tuple[str, Any], ...]
    baseline: str
    families: tuple[str, ...] = ()
    eras: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.handed)

    @property
    def candidates(self) -> tuple[str, ...]:
        return tuple(name for name in self.names if name != self.baseline)

    @property
    def rules(self) -> tuple[tuple[str, RuleLike, Edge | None], ...]:
        """Those that are rules of a clamp."""
        return tuple((name, *one) for name, one in self.handed if isinstance(one, tuple))

    @contextlib.contextmanager
    def inside(self, name: str) -> Iterator[Inside]:
        one = dict(self.handed)[name]
        yield Inside(HandedClamp(with_rule(name, *one)) if isinstance(one, tuple) else one)

    def check_travels(self, where: str) -> None:
        for name, one in self.handed:
            try:
                pickle.dumps(one)
            except Exception as error:
                what = f"be functions at the top of a module for jobs above 1, {name!r} too"
                remedy = "Or give an executor that takes functions apart, as loky and dask do, or leave jobs at 1"
                raise ValueError(must(where, "variants", what, one, remedy)) from error


def given(where: str, variants: object, baseline: str | None, others: Mapping[str, object]) -> Given:
    """The variants asked for, checked. others: arguments that choose variants in another way, by name."""
    if not isinstance(variants, Mapping):
        remedy = 'Such as {"arctan": partial(pg.sign, rule="arctan"), "as it is": torch.sign}'
        raise TypeError(must(where, "variants", "be functions or rules by name", variants, remedy))
    for name, value in others.items():
        if value is not None:
            raise ValueError(must(where, name, "be left out with variants", value, "They name all that is compared"))
    if len(variants) < 2:
        raise ValueError(must(where, "variants", "be at least two, one of them the baseline", list(variants)))
    for name in variants:
        if not isinstance(name, str) or not name.strip():
            raise TypeError(must(where, "variants", "have names that are texts", name))
    if baseline is not None and baseline not in variants:
        raise unknown_name(where, "baseline", variants, baseline)
    handed = tuple((name, _handed(where, name, one)) for name, one in variants.items())
    return Given(handed, next(iter(variants)) if baseline is None else baseline)


def _handed(where: str, name: str, one: object) -> object:
    if isinstance(one, str):
        return parsed(CLAMP, one, f"{where}: variants")
    if isinstance(one, RuleObject):
        make_call(CLAMP, one, CLAMP.default_edge)
        return one, None
    if callable(one):
        return one
    raise TypeError(must(where, "variants", "be functions, or rules of clamp", f"{name}={one!r}"))
