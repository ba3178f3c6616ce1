"""The gradient that torch, JAX and TensorFlow give at a kink, and the rules by which a pin gives torch the convention of another.

A convention is a number (the slope at the kink; of two tied inputs the share of the first), or a name if one number cannot express it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from ..record import Record
from ..rule import BOUNDED, PRIMITIVES, Gradients, Primitive, RangePieces, Rule, register
from .eras import OPEN_ERA, installed_era, installed_version

FRAMEWORKS = {"jax": "0.10", "tensorflow": "2.21"}  # with the version that was measured
OWN, SHARED = "torch's own", "shared"
SLOPE, FIRST = "the slope there", "the share of x; the other one gets the rest"
Convention = float | str


class Pinned(NamedTuple):
    """pull(convention, grad, *inputs, wants): the gradients under a convention. compares: does `pull` also get y?"""

    pull: Callable[..., Gradients]
    compares: bool


class Family(Record):
    """Functions that one keyword of pin_edge pins.

    torch, since_2_14: the convention of torch, and its convention since torch 2.14 if that is another.
    jax, tensorflow: the conventions of these frameworks; None if the framework lacks the function, or has an infinite or NaN gradient.
    alike: the conventions of other functions with the same values, as clamp(min=0) for relu.
    notes: for the docs, what torch, JAX and TensorFlow do, if their conventions do not say it.
    """

    name: str
    kink: str  # in words
    number: str = ""  # what a number for the family means; empty if the family takes only names
    torch: Convention = OWN
    jax: Convention | None = None
    tensorflow: Convention | None = None
    since_2_14: Convention | None = None
    alike: Mapping[str, Convention] = {}
    notes: tuple[str, str, str] | None = None

    def __post_init__(self) -> None:
        """pinned: by the name of the primitive that stands in under a pin. others: the conventions of the frameworks."""
        self.pinned: dict[str, Pinned]
        self.others: dict[str, Convention]
        others = {name: getattr(self, name) for name in FRAMEWORKS}
        others = {name: convention for name, convention in others.items() if convention is not None}
        vars(self).update(pinned={}, others=others)

    def torch_convention(self, era: str) -> Convention:
        return self.since_2_14 if era == OPEN_ERA and self.since_2_14 is not None else self.torch


class Kink(Record):
    """The kink of a function of torch, and how the function runs under a pin of its family.

    arrange: as in Form; None if a pin runs the same primitive as override.
    write(convention, own, *values): the result by other functions of torch, or None if torch has to run the call. own(*tensors) is torch's
        function, with these tensors as its first arguments.
    nodes: as in Form; empty if the form has them.
    is_noted: does `diagnose` note the calls, because the nodes keep too little?
    pick(node, inputs): for a function with several families, the family of this call and the primitive that stands in; None for a call
        without a known kink. node: None before the call has run.
    """

    family: Family
    arrange: Callable[..., Any] | None = None
    write: Callable[..., Any] | None = None
    example: tuple[Any, ...] = (0.0,)  # arguments at the kink
    nodes: tuple[str, ...] = ()
    is_noted: bool = False
    pick: Callable[[Any, tuple[Any, ...]], tuple[str, str] | None] | None = None


def pin(
    family: Family,
    name: str,
    pull: Callable[..., Gradients],
    forward: Callable[..., Tensor] | None = None,
    inputs: tuple[str, ...] = BOUNDED,
    compares: bool = True,
) -> str:
    """Make the primitive that runs in place of `name` under a pin of the family. Returns `name`.

    forward: None if a primitive `name` exists; the new one has its forward, and saves the same.
    """
    saves: Literal["as torch", "a copy"] = "as torch"
    if forward is None:
        forward, saves = PRIMITIVES[name].forward, "a copy" if PRIMITIVES[name].saves == "a copy" else "as torch"
    pinned = register(Primitive(name=f"{name}, pinned", inputs=inputs, forward=forward, rules={}, saves=saves))
    family.pinned[pinned.name] = Pinned(pull, compares)
    return name


def make_rules(family: Family, convention: str) -> None:
    """Make the rules of a convention. Compiled code cannot do so.

    The name of the rule is the convention. A number is read from the name, because a compiler makes a symbol of a float from a table.
    """
    for name, pinned in family.pinned.items():
        primitive = PRIMITIVES[name]
        if convention not in primitive.rules:
            pull = partial(pinned.pull, convention)
            primitive.rules[convention] = measured_rule(convention, pull, primitive.inputs, pinned.compares)  # type: ignore[index]


def measured_rule(
    name: str,
    pull: Callable[..., Gradients],
    keeps: tuple[str, ...],
    compares: bool = True,
    find_range: Callable[..., RangePieces] | None = None,
) -> Rule:
    """A rule that no user names: what a version of torch or another framework was measured to do."""
    return Rule(
        name=name,
        formula="torch's own, with another slope at the kink",
        source="torch's derivatives.yaml; JAX and TensorFlow as `pseudograd_kinks` has measured them",
        pull=pull,
        reference=lambda *arguments, **parameters: (),
        is_linear=True,
        keeps=keeps,
        compares=compares,
        find_range=find_range,
    )


IN_PLACE = " in place"


def pinned_primitive(name: str, in_place: bool = False) -> Primitive:
    """The primitive that stands in for `name` under a pin, with a rule for each convention that was made."""
    primitive = PRIMITIVES.get(f"{name}{IN_PLACE}, pinned") if in_place else None
    return PRIMITIVES[f"{name}, pinned"] if primitive is None else primitive


def share(grad: Tensor, part: float) -> Tensor | float:
    """part * grad; a part of 0 gives 0 for an infinite grad, too."""
    if part == 0.0:
        return 0.0
    return grad if part == 1.0 else grad * part


def pull_with_kink(is_at: Callable[..., Tensor], elsewhere: Callable[..., Tensor]) -> Callable[..., Gradients]:
    """The pull of a function of x and numbers: another slope at the kink, where is_at(x, *others), and torch's own gradient elsewhere."""

    def pull(convention: str, grad: Tensor, x: Tensor, *others: object, wants: object, y: object = None) -> Gradients:
        own = elsewhere(grad, x, *others)
        none = (None,) * len(others)
        if convention == OWN:
            return own, *none
        return torch.where(is_at(x, *others), share(grad, float(convention)), own), *none

    return pull


def is_zero(x: Tensor, *others: object) -> Tensor:
    return x == 0


# On torch 2.14 these functions give a NaN the whole gradient, and the number beside it too (pytorch#193035 mended it).
WITH_NAN = ("fmax", "fmin")


def gives_grad_to_nan() -> bool:
    """Is the installed torch 2.14?"""
    return installed_version() == (2, 14)


def is_torchs_own(family: Family, text: str) -> bool:
    """Does the installed torch have this convention by itself?"""
    if family.name in WITH_NAN and gives_grad_to_nan():
        return False
    return text == text_of(family.torch_convention(installed_era()))


def text_of(convention: Convention) -> str:
    """A convention as the name of its rule."""
    return convention if isinstance(convention, str) else repr(float(convention))
