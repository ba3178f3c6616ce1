"""The table of torch's functions: every row of `rows`, found by function, by module and by autograd node.

`override` and `pin_edge` rewrite the functions that they find here. Reports find by autograd nodes what no context reached. `doctor` shows
what each function does exactly at a bound. A function that the library shall know is one more row.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from ..record import Record
from .conventions import Family, Kink
from .eras import CLOSED_ERA, ERAS
from .private import saved
from .records import EDGE, Arrange, EdgeCase, Form, Inputs, Spelling, spellings_of
from .rows import activations, clamps, composed, losses, ordered, rounding, singular

# The switches of override, each with the op whose rules it takes. The switch relu takes those of hardtanh, because relu6 has two bounds.
SWITCHES = {
    "clamp": "clamp",
    "relu": "hardtanh",
    "round": "round",
    "sign": "sign",
    "fake_quantize": "fake_quantize",
    "gelu": "gelu",
    "silu": "silu",
    "leaky_relu": "leaky_relu",
    "hardsigmoid": "hardsigmoid",
}


class Kinked(Record):  # not a NamedTuple: compiled code of torch 2.8 reads no property of a tuple
    """How a pin reads a call of a function of torch: the kink, and the spelling whose `arrange` names the primitive that stands in."""

    kink: Kink
    spelling: Spelling

    @property
    def family(self) -> str:
        return self.kink.family.name


FORMS: list[Form] = []
# By the function that torch hands to a TorchFunctionMode. `override` and pinned edges use SPELLINGS, pins of a family use KINKED.
SPELLINGS: dict[object, Spelling] = {}
KINKED: dict[object, tuple[Kinked, ...]] = {}
FAMILIES: dict[str, Family] = {}
MODULES: dict[type[torch.nn.Module], Form] = {}  # ReLU6 is a Hardtanh: the exact class decides


def add(form: Form) -> Form:
    FORMS.append(form)
    MODULES.update(dict.fromkeys(form.modules, form))
    if form.switches:
        SPELLINGS.update(spellings_of(form))
    if form.kink is not None:
        FAMILIES[form.kink.family.name] = form.kink.family
        for function, spelling in spellings_of(form, form.kink.arrange):
            KINKED[function] = (*KINKED.get(function, ()), Kinked(form.kink, spelling))
    form_of_node.cache_clear()
    kink_of_node.cache_clear()
    return form


def take_out(form: Form) -> None:
    """Remove a form from every table, for tests."""
    FORMS.remove(form)
    for table in (SPELLINGS, KINKED, MODULES, FAMILIES):
        table.clear()
    forms, FORMS[:] = FORMS[:], []
    for other in forms:
        add(other)


@lru_cache(maxsize=4096)
def form_of_node(name: str) -> Form | None:
    """The form that makes autograd nodes of this name, if `override` or an edge acts on it."""
    for form in FORMS:
        if form.switches and any(name.startswith(node) for node in form.nodes):
            return form
    return None


@lru_cache(maxsize=1024)
def kink_of_node(name: str) -> Kinked | None:
    """The first spelling of the function with a kink that makes autograd nodes of this name."""
    for functions in KINKED.values():
        for kinked in functions:
            if any(name.startswith(node) for node in kinked.kink.nodes or kinked.spelling.form.nodes):
                return kinked
    return None


def overlap(switches: Iterable[str], others: Iterable[str]) -> bool:
    """Do some of these switches act on a form on which some of the others act, too?"""
    switches, others = set(switches), set(others)
    return any(switches.intersection(form.switches) and others.intersection(form.switches) for form in FORMS)


def is_reached_by(function: object, form: Form) -> bool:
    """Does a switch of the form act on calls of this function of torch? Not if the function hides others and is not written out."""
    spelling = SPELLINGS.get(function)
    if spelling is None or (spelling.form.hides and spelling.form.write is None):
        return False
    return not set(spelling.form.switches).isdisjoint(form.switches)


def edge_family(form: Form) -> str:
    """The family of the form that an edge pins."""
    return form.kink.family.name if form.kink is not None and EDGE in form.switches else "clamp"


def is_pinned_inside(form: Form, families: Iterable[str]) -> bool:
    """Does the form run a function of these families inside, or for each item of a list?"""
    for switch in form.switches:  # noqa: SIM110  Dynamo on torch 2.8
        if switch in families or (switch == "relu" and ("relu6" in families or "hardtanh" in families)):
            return True
    return False


class SavedValues(NamedTuple):
    """The arguments that a node of autograd keeps, one for each gradient that leaves it, and how its form reads them."""

    values: list[Any]
    primitive: str
    inputs: Inputs


def saved_values(form: Form, node: object, arrange: Arrange | None = None) -> SavedValues | None:
    """The saved values of a node. None if nodes of the form keep too little, or if torch refuses: a checkpoint unpacks once."""
    return read_saved(node, form.saved, arrange or form.arrange)


def read_saved(node: object, names: tuple[str, ...], arrange: Arrange) -> SavedValues | None:
    if not names:
        return None
    try:
        values = [saved(node, name) for name in names]
        read = arrange(*values)
    except (RuntimeError, AttributeError, TypeError):  # CheckpointError is a RuntimeError
        return None
    return None if read is None else SavedValues(values, *read)


def shares_at_the_edge(form: Form, has_tensor_bound: bool) -> dict[str, float]:
    """The share of grad that x gets exactly at a bound, in each era. For a form without such an edge case, that of torch.clamp."""
    for known in (form, _CLAMP) if EDGE in form.switches else (form,):
        for case in known.edge_cases:
            if (case.slopes_in(CLOSED_ERA).bound is not None) == has_tensor_bound:
                return {era: case.slopes_in(era).x for era in ERAS}
    return {}


def edge_cases() -> list[EdgeCase]:
    """Every expression of the table whose slopes at a bound are known."""
    return [case for form in FORMS for case in form.edge_cases]


for _file in (clamps, activations, rounding, ordered, singular, losses, composed):
    for _form in _file.FORMS:
        add(_form)
_CLAMP = SPELLINGS[torch.clamp].form  # a program may put a function of its own in the place of torch.clamp
# The families that an edge pins, and those that differ between versions of torch.
EDGE_FAMILIES = frozenset(form.kink.family.name for form in FORMS if form.kink is not None and EDGE in form.switches)
ERA_FAMILIES = frozenset(name for name, family in FAMILIES.items() if family.since_2_14 is not None)
