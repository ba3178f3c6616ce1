"""Which gradient torch, JAX and TensorFlow give where a function has no slope: one row for each family of functions that `pin_edge` pins.

A convention is a number (the slope at the kink; of two tied inputs what the first one gets), or a name where one number does not say it.
The functions themselves are rows as in `torch_forms`; here stand those that only a pin is about. Plain classes and loops: Dynamo reads
this too.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from ..record import Record
from .eras import CLOSED_ERA, OPEN_ERA, installed_era, installed_version
from .forms import MISSING, SPELLINGS, Form, Spelling, StandIn, each_spelling
from .private import fused_nn

FRAMEWORKS = {"jax": "0.10", "tensorflow": "2.21"}  # with the version that was measured
OWN, SHARED, NAN = "torch's own", "shared", "nan"
Convention = float | str


class Family(Record):
    """What one keyword of pin_edge pins.

    at: the points in words. takes: what a number for it means; empty where it takes none. torch: what torch does, by the era that began
    with it. others: what each framework does, as far as it has the function. singular: what each does where it gives infinity or NaN,
    which is pinned only when it is asked for. alike: what the same function gives where it is spelled otherwise.
    """

    name: str
    at: str
    takes: str
    torch: dict[str, Convention]
    others: dict[str, Convention]
    singular: dict[str, Convention]
    alike: dict[str, Convention]

    def of_torch(self, era: str) -> Convention:
        return self.torch.get(era, self.torch[CLOSED_ERA])


def _family(
    name: str,
    at: str,
    takes: str,
    torch: Convention,
    jax: Convention | None = None,
    tensorflow: Convention | None = None,
    *,
    later: Convention | None = None,
    singular: dict[str, Convention] | None = None,
    alike: dict[str, Convention] | None = None,
) -> Family:
    """later: what torch does since 2.14, where that is another thing."""
    others = {"jax": jax, "tensorflow": tensorflow}
    return Family(
        name,
        at,
        takes,
        {CLOSED_ERA: torch, **({} if later is None else {OPEN_ERA: later})},
        {framework: convention for framework, convention in others.items() if convention is not None},
        singular or {},
        alike or {},
    )


_SLOPE, _FIRST = "the slope there", "the share of x; the other one gets the rest"
_SELU_SCALE = 1.0507009873554804934193349852946
FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        _family("abs", "0", _SLOPE, 0.0, 1.0, 0.0),
        _family("relu", "0", _SLOPE, 0.0, 0.0, 0.0, alike={"clamp(min=0) of torch<=2.13": 1.0}),
        _family("relu6", "0 and 6", _SLOPE, 0.0, 0.0, 0.0, alike={"clamp(0, 6) of torch<=2.13": 1.0}),
        _family("hardtanh", "both bounds", _SLOPE, 0.0, 1.0, 1.0),
        _family("hardsigmoid", "-3 and 3", _SLOPE, 0.0, 0.0, 0.0),
        _family("leaky_relu", "0", _SLOPE, OWN, 1.0, OWN),
        _family("elu", "0", _SLOPE, OWN, OWN, OWN),
        _family("celu", "0", _SLOPE, OWN, OWN),
        _family("selu", "0", _SLOPE, OWN, OWN, _SELU_SCALE),
        _family("clamp", "both bounds", _FIRST, CLOSED_ERA, "jax", "tensorflow", later=OPEN_ERA),
        _family("maximum", "a tie", _FIRST, 0.5, "jax", "tensorflow"),
        _family("minimum", "a tie", _FIRST, 0.5, "jax", "tensorflow"),
        _family("fmax", "a tie", _FIRST, 1.0, 0.0, later=0.5),
        _family("fmin", "a tie", _FIRST, 1.0, 0.0, later=0.5),
        _family("max", "ties over a dimension, max and min", "", OWN, SHARED, SHARED),
        _family("sort", "ties, also of msort, topk and kthvalue", "", OWN, "jax", "tensorflow"),
        _family("median", "ties", "", OWN, "jax"),
        _family("quantile", "ties, also of nanquantile", "", CLOSED_ERA, "jax", later=OPEN_ERA),
        _family("norm", "zeros", "", OWN, "jax", singular={"jax": "jax, nan", "tensorflow": NAN}),
        _family("hypot", "0, 0", _SLOPE, OWN, 0.5),
        _family("sqrt", "0, where grad is 0", "", OWN, OWN, "tensorflow"),
        _family("std", "a constant", "", OWN, singular={"jax": NAN, "tensorflow": NAN}),
        _family("atan2", "0, 0", "", OWN, singular={"jax": NAN, "tensorflow": NAN}),
        _family("pow", "0 to the power 0", "", OWN, singular={"jax": NAN, "tensorflow": NAN}),
        _family("xlogy", "0, 0", "", OWN, None, "tensorflow", singular={"jax": "jax"}),
    )
}


OF_AN_EDGE = {"clamp", "fmin", "fmax"}  # the families that an edge, or an era, pins too
OF_AN_ERA = {*OF_AN_EDGE, "quantile"}


def family_of_an_edge(form: Form) -> str:
    """Of what an edge pins: fmin and fmax are families of their own, the rest goes with clamp."""
    return form.names[0] if form.names[0] in OF_AN_EDGE else "clamp"


class Kinked(NamedTuple):
    """How a pin reads a call of a function of torch: its family, and the spelling whose `arrange` names what stands in."""

    family: str
    spelling: Spelling


KINKED: dict[Any, tuple[Kinked, ...]] = {}  # by the function that torch hands to a TorchFunctionMode


def _add(family: str, form: Form) -> None:
    for function, spelling in each_spelling(form):
        KINKED[function] = (*KINKED.get(function, ()), Kinked(family, spelling))


# --- functions that override knows, too -------------------------------------------------------------------------------

_KNOWN = {
    "clamp": "clamp",
    "clamp_min": "clamp",
    "clamp_max": "clamp",
    "fmax": "fmax",
    "fmin": "fmin",
    "relu": "relu",
    "relu6": "relu6",
    "hardtanh": "hardtanh",
    "hardsigmoid": "hardsigmoid",
    "leaky_relu": "leaky_relu",
}
for _function, _spelling in SPELLINGS.items():
    _known = _KNOWN.get(_spelling.form.names[0]) if _spelling.form.names else None
    if _known is not None:
        KINKED[_function] = (Kinked(_known, _spelling),)


def pins(form: Form, families: Any) -> bool:
    """Has a function that runs others inside one that these families are about?"""
    for switch in form.switches:  # noqa: SIM110  Dynamo on torch 2.8
        if switch in families or (switch == "relu" and ("relu6" in families or "hardtanh" in families)):
            return True
    return False


# --- functions that only a pin is about -------------------------------------------------------------------------------


def _of_x(primitive: str) -> Any:
    return lambda x: (primitive, (x,))


def _of_two(primitive: str) -> Any:
    def arrange(x: object, other: object) -> StandIn | None:
        return (primitive, (x, other)) if isinstance(x, Tensor) and isinstance(other, Tensor) else None

    return arrange


def _with_alpha(primitive: str) -> Any:
    return lambda x, alpha: (primitive, (x, alpha))


_NN = (fused_nn, functional, torch.ops.aten)
_add(
    "abs",
    Form(
        "abs",
        "absolute",
        switches=("abs",),
        arrange=_of_x("torch.abs"),
        nodes=("AbsBackward",),
        saved=("self",),
    ),
)
_add(
    "selu",
    Form(
        "selu",
        switches=("selu",),
        owners=(torch, functional, torch.ops.aten),
        with_inplace=(functional,),
        arrange=_of_x("torch.selu"),
        nodes=("EluBackward",),  # of elu too, with another scale
        saved=("self",),
    ),
)
for _name, _owners in (("elu", _NN), ("celu", (torch, functional, torch.ops.aten))):
    _add(
        _name,
        Form(
            _name,
            switches=(_name,),
            takes=("input", "alpha"),
            defaults=(MISSING, 1.0),
            owners=_owners,
            with_inplace=(functional,),
            arrange=_with_alpha(f"torch.{_name}"),
        ),
    )
for _name, _of in (("maximum", "max"), ("minimum", "min")):
    for _spelled, _overload in ((_name, "default"), (_of, "other")):
        _add(
            _name,
            Form(
                _spelled,
                switches=(_name,),
                takes=("input", "other"),
                defaults=(MISSING, MISSING),
                overloads=(_overload,),
                arrange=_of_two(f"torch.{_name} of two"),
                nodes=(f"{_name.capitalize()}Backward",),
                saved=("self", "other"),
            ),
        )
for _name in ("hypot",):
    _add(
        _name,
        Form(
            _name,
            switches=(_name,),
            takes=("input", "other"),
            defaults=(MISSING, MISSING),
            arrange=_of_two(f"torch.{_name}"),
            nodes=("HypotBackward",),
            saved=("self", "other"),
        ),
    )
_add("sqrt", Form("sqrt", switches=("sqrt",), arrange=_of_x("torch.sqrt")))


# Those that are written out: their arguments with the defaults.


def _written(
    family: str,
    name: str,
    takes: tuple[str, ...],
    defaults: tuple[object, ...],
    owners: tuple[object, ...],
    overload: str = "",
    op: str = "",
) -> None:
    """op: what writes it out, by its name in `rewrite.ties.WRITE`."""
    form = Form(
        name,
        switches=(family,),
        takes=("input", *takes),
        defaults=(MISSING, *defaults),
        owners=owners,
        overloads=(overload,),
        op=f"written {op or name}",
    )
    _add(family, form)


_TENSORS = (torch, Tensor, torch.ops.aten)
for _row in (
    ("max", "max", ("dim", "keepdim"), (MISSING, False), _TENSORS, "dim"),
    ("max", "min", ("dim", "keepdim"), (MISSING, False), _TENSORS, "dim"),
    ("sort", "sort", ("dim", "descending", "stable"), (-1, False, False), (torch, Tensor), ""),
    ("sort", "msort", (), (), (torch, Tensor), ""),
    ("sort", "topk", ("k", "dim", "largest", "sorted"), (MISSING, -1, True, True), _TENSORS, "default"),
    ("sort", "kthvalue", ("k", "dim", "keepdim"), (MISSING, -1, False), _TENSORS, "default"),
    ("median", "median", ("dim", "keepdim"), (None, False), (torch, Tensor), ""),
    *(
        (
            "quantile",
            name,
            ("q", "dim", "keepdim", "interpolation"),
            (MISSING, None, False, "linear"),
            (torch, Tensor),
            "",
        )
        for name in ("quantile", "nanquantile")
    ),
    (
        "norm",
        "vector_norm",
        ("ord", "dim", "keepdim", "dtype", "out"),
        (2, None, False, None, None),
        (torch.linalg,),
        "",
    ),
    ("norm", "norm", ("p", "dim", "keepdim", "dtype", "out"), ("fro", None, False, None, None), (torch,), ""),
    (
        "norm",
        "norm",
        ("ord", "dim", "keepdim", "dtype", "out"),
        (None, None, False, None, None),
        (torch.linalg,),
        "",
        "norm of linalg",
    ),
    ("std", "std", ("dim", "unbiased", "keepdim", "correction"), (None,) * 4, (torch, Tensor)),
    ("atan2", "atan2", ("other",), (MISSING,), _TENSORS, "default"),
    ("atan2", "arctan2", ("other",), (MISSING,), _TENSORS, "default"),
    ("pow", "pow", ("exponent",), (MISSING,), _TENSORS, "Tensor_Tensor"),
    ("xlogy", "xlogy", ("other",), (MISSING,), _TENSORS, "Tensor"),
    ("xlogy", "xlogy", ("other",), (MISSING,), (torch.special,), ""),
):
    _written(*_row)  # type: ignore[arg-type]


OF_NAN = (
    "fmax",
    "fmin",
)  # families that give a NaN and a number both the whole gradient on torch 2.14 (pytorch#193035 mended it)


def gives_grad_to_nan() -> bool:
    """Is the installed torch 2.14?"""
    return installed_version() == (2, 14)


def is_torchs_own(family: str, text: str) -> bool:
    """Does the installed torch do this by itself?"""
    if family in OF_NAN and gives_grad_to_nan():
        return False
    return text == text_of(FAMILIES[family].of_torch(installed_era()))


def text_of(convention: Convention) -> str:
    """As a rule is named: a graph holds no number of ours."""
    return convention if isinstance(convention, str) else repr(float(convention))


def is_number(text: str) -> bool:
    """Is this convention a number?"""
    try:
        return not math.isnan(float(text))
    except ValueError:
        return False


@lru_cache(maxsize=1024)
def of_node(name: str) -> Kinked | None:
    """The function with a convention that makes autograd nodes of this name, by its first spelling."""
    for some in KINKED.values():
        for one in some:
            if any(name.startswith(node) for node in one.spelling.form.nodes):
                return one
    return None
