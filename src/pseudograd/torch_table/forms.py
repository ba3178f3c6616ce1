"""Torch's own functions that saturate or round: the one table of them. To teach the library a function is one row.

`override` and `pin_edge` rewrite what is found here by function, reports know what they missed by its autograd nodes, and `doctor` shows
what each does exactly at a bound. Plain classes and loops: Dynamo reads this too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..arguments import APPROXIMATE
from ..rule import PRIMITIVES, Primitive, RuleLike, RuleObject
from .eras import CLOSED_ERA, ERAS, OPEN_ERA, Slopes
from .private import fused_nn, in_forward_mode, is_wrapped, saved, transforms_are_active

MISSING = object()
EDGE = "edge"  # the switch of pin_edge
# The switches of override, each with the op whose rules it takes; not relu's own, which are those of one bound.
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

# What torch's own functions take for their first two arguments, as aten names them and as numpy does. Those of torch.nn.functional do not.
_ALIASES = {"self": "input", "x": "input", "a": "input", "x1": "input", "x2": "other"}
_ALIASES_OF_LISTS = {"self": "input", "scalars": "scalar", "other": "scalar"}

Inputs = tuple[Any, ...]
StandIn = tuple[str, Inputs]  # the name of the primitive that stands in, and its inputs
Arrange = Callable[..., StandIn | None]
Write = Callable[..., Any]


class Read(NamedTuple):
    """How a call is read: the primitive that stands in, its inputs, and is the result to be in the first of them?"""

    primitive: str
    inputs: Inputs
    in_place: bool = False


class AtTheBound(NamedTuple):
    """A way to write it, called with x == bound == 0, and the slopes that it has there: by the name of the era that began with them."""

    text: str
    f: Callable[[Tensor, Tensor], Tensor]
    slopes: dict[str, Slopes]

    def slopes_in(self, era: str) -> Slopes:
        """Those of the last era, up to this one, that changed them."""
        names = list(ERAS)
        known = [name for name in names[: names.index(era) + 1] if name in self.slopes]
        return self.slopes[known[-1]]


class Form:
    """One function of torch, under all names and owners that it has.

    switches: the contexts that act on it, those of override by their name, EDGE for pin_edge. The first is its family; of two that are
        asked for at once the last one counts.
    takes, defaults: its arguments, the tensor first. arrange(*values): the primitive that stands in, and its inputs; or None, where
        torch is left alone. of_aten: the same for the functions of aten, where they differ.
    names: what it is called; each one in place too, with "_" behind it. owners: what has functions of these names; overloads: those of
        aten that are meant. with_inplace: those that take the argument `inplace`.
    otherwise: the primitive that stands in for a rule which that of `arrange` lacks; its inputs are among those. What both lack torch
        has to do.
    each: it does to every tensor of a list what the method of that name does to one.
    hides: the functions that it runs inside, where no mode sees them, by the first of their names. Its switches are theirs.
    write: for one that hides others: write(call, *values) is what torch computes, with `call(function, *arguments)` for those others; or
        None, where torch is left alone; or why torch has to run it. Without it nobody has written the function out.
    composite_modules: those of torch.nn that call one that hides others.
    modules: those of torch.nn that call it with their attributes, which are called as what it takes. op: the op of ours that has the
        errors of a module's rule, where it is not called as the first of `names`.
    nodes: how the names of its autograd nodes start. saved: what these keep of the arguments, in the order of `takes`, None for what they
        do not keep; empty where they keep no argument. at_the_bound: what it does there.
    """

    __slots__ = (
        "arrange",
        "at_the_bound",
        "composite_modules",
        "defaults",
        "each",
        "hides",
        "modules",
        "names",
        "nodes",
        "of_aten",
        "op",
        "otherwise",
        "overloads",
        "owners",
        "saved",
        "switches",
        "takes",
        "with_inplace",
        "write",
    )

    def __init__(
        self,
        *names: str,
        switches: tuple[str, ...],
        takes: tuple[str, ...] = ("input",),
        defaults: tuple[object, ...] = (MISSING,),
        arrange: Arrange = lambda *values: None,
        of_aten: Arrange | None = None,
        owners: tuple[object, ...] = (torch, Tensor, torch.ops.aten),
        overloads: tuple[str, ...] = ("default",),
        with_inplace: tuple[object, ...] = (),
        otherwise: str = "",
        each: str = "",
        hides: tuple[str, ...] = (),
        write: Write | None = None,
        composite_modules: tuple[type[object], ...] = (),
        modules: tuple[type[object], ...] = (),
        op: str = "",
        nodes: tuple[str, ...] = (),
        saved: tuple[str, ...] = (),
        at_the_bound: tuple[AtTheBound, ...] = (),
    ) -> None:
        self.names = names
        self.switches = switches
        self.takes = takes
        self.defaults = defaults
        self.arrange = arrange
        self.of_aten = of_aten
        self.owners = owners
        self.overloads = overloads
        self.with_inplace = with_inplace
        self.otherwise = otherwise
        self.each = each
        self.hides = hides
        self.write = write
        self.composite_modules = composite_modules
        self.modules = modules
        self.op = op or (names[0] if names else "")
        self.nodes = nodes
        self.saved = saved
        self.at_the_bound = at_the_bound

    def primitive_with(self, primitive: str, rule: RuleLike) -> Primitive | None:
        """Of the primitive of a call and the one that stands in otherwise the first that has the rule; None if this function lacks it."""
        for name in (primitive, self.otherwise):
            if name and has_rule(PRIMITIVES[name], rule):
                return PRIMITIVES[name]
        return None

    def shares_a_switch_with(self, other: Form) -> bool:
        return any(switch in other.switches for switch in self.switches)

    @property
    def usual(self) -> Read | None:
        """How a call without more arguments than it needs is read, for x of no element."""
        arranged = self.arrange(torch.empty(0, device="cpu"), *self.defaults[1:])
        return None if arranged is None else Read(*arranged)


def has_rule(primitive: Primitive, rule: RuleLike) -> bool:
    """By this name, with these parameters?"""
    if not isinstance(rule, RuleObject):
        return rule in primitive.rules
    row = primitive.rules.get(rule.name)
    if row is None:
        return False
    for key, _ in rule.parameters:  # noqa: SIM110  Dynamo on torch 2.8
        if key not in row.parameters:
            return False
    return True


class Spelling:
    """One way to call a form. `read(args, kwargs)` says how a call is to be run, or None where torch is left alone."""

    __slots__ = ("aliases", "arrange", "defaults", "form", "in_place", "name", "takes", "takes_inplace")

    def __init__(self, form: Form, name: str, arrange: Arrange, in_place: bool, takes_inplace: bool) -> None:
        self.form = form
        self.name = name
        self.arrange = arrange
        self.in_place = in_place
        self.takes_inplace = takes_inplace
        self.takes = (*form.takes, "inplace") if takes_inplace else form.takes
        self.defaults = (*form.defaults, False) if takes_inplace else form.defaults
        self.aliases: dict[str, str] = {} if takes_inplace else _ALIASES_OF_LISTS if form.each else _ALIASES

    def values(self, args: tuple[object, ...], kwargs: dict[str, object]) -> list[Any] | None:
        """The arguments in the order of `takes`; None for what torch will refuse, and for out=."""
        if len(args) > len(self.takes):
            return None
        values = list(args) + list(self.defaults[len(args) :])
        for key in kwargs:
            name = self.aliases.get(key, key)
            if name not in self.takes:
                return None
            values[self.takes.index(name)] = kwargs[key]
        for value in values:
            if value is MISSING:
                return None
        return values

    def read(self, args: tuple[object, ...], kwargs: dict[str, object]) -> Read | None:
        values = self.values(args, kwargs)
        if values is None or not isinstance(values[0], Tensor):
            return None
        in_place = bool(values.pop()) if self.takes_inplace else self.in_place
        arranged = self.arrange(*values)
        if arranged is None:
            return None
        return Read(arranged[0], arranged[1], in_place)

    def read_each(self, args: tuple[object, ...], kwargs: dict[str, object]) -> list[tuple[object, ...]] | None:
        """For a form of lists: the arguments for every tensor. What is no list is the same for all."""
        values = self.values(args, kwargs)
        if values is None:
            return None
        lists = [value if isinstance(value, (tuple, list)) else [value] * len(values[0]) for value in values]
        return list(zip(*lists)) if len({len(items) for items in lists}) == 1 else None  # noqa: B905  Dynamo on torch 2.8


# --- arrangements -----------------------------------------------------------------------------------------------------


def _clamp(x: Tensor, min: object, max: object) -> StandIn | None:
    return None if min is None and max is None else ("torch.clamp", (x, min, max))


def _clamp_of_aten(x: Tensor, min: object, max: object) -> StandIn | None:
    """aten takes two numbers or two tensors; torch.clamp makes a number of a tensor without dimensions."""
    kinds = {isinstance(bound, Tensor) for bound in (min, max) if bound is not None}
    return None if len(kinds) == 2 else _clamp(x, min, max)


def _clamp_min(x: Tensor, min: object) -> StandIn | None:
    return None if min is None else ("torch.clamp_min", (x, min, None))


def _clamp_max(x: Tensor, max: object) -> StandIn | None:
    return None if max is None else ("torch.clamp_max", (x, None, max))


def _relu(x: Tensor) -> StandIn:
    return "torch.relu", (x, 0.0, None)


def _relu6(x: Tensor) -> StandIn:
    return "torch.relu6", (x, 0.0, 6.0)


def _hardtanh(x: Tensor, min_val: Any, max_val: object) -> StandIn | None:
    if min_val > max_val:  # an error in torch.nn.functional
        return None
    return "torch.hardtanh", (x, min_val, max_val)


def _hardsigmoid(x: Tensor) -> StandIn:
    return "torch.hardsigmoid", (x, -3.0, 3.0)


def _gelu(x: Tensor, approximate: object) -> StandIn | None:
    return ("gelu", (x, APPROXIMATE.index(approximate))) if approximate in APPROXIMATE else None


def _silu(x: Tensor) -> StandIn:
    return "silu", (x,)


def _leaky_relu(x: Tensor, negative_slope: object) -> StandIn:
    return "leaky_relu", (x, negative_slope)


def is_constant(value: object) -> bool:
    """A tensor that no derivative can be asked of: no grad, no transform's wrapper, no tangent."""
    if not isinstance(value, Tensor) or value.requires_grad:
        return False
    if torch.compiler.is_compiling():
        return True
    if is_wrapped(value):
        return False
    return not in_forward_mode() or torch.autograd.forward_ad.unpack_dual(value).tangent is None


def only_backward_tells() -> bool:
    """Which of two tensors asks for a gradient? Under a transform neither says so; compiled code cannot even tell whether it is wrapped."""
    if not transforms_are_active():
        return False
    return not in_forward_mode() or torch.compiler.is_compiling()


class Extreme(NamedTuple):
    """minimum or maximum: a clamp, where one of its two tensors is a constant.

    bounded: the primitive of x and its bound. either: that of the two as they come, where only backward tells which is which, or the
    constant comes first. bound: which one the constant is.
    """

    bounded: str
    either: str
    bound: Literal["min", "max"]


MINIMUM = Extreme("torch.minimum", "torch.minimum of either order", "max")
MAXIMUM = Extreme("torch.maximum", "torch.maximum of either order", "min")


def _minimum(x: object, other: object) -> StandIn | None:
    return _extreme(MINIMUM, x, other)


def _maximum(x: object, other: object) -> StandIn | None:
    return _extreme(MAXIMUM, x, other)


def _extreme(which: Extreme, x: object, other: object) -> StandIn | None:
    if not isinstance(x, Tensor) or not isinstance(other, Tensor):
        return None
    if only_backward_tells():
        return which.either, (x, other)
    if not is_constant(x) and is_constant(other):
        return which.bounded, ((x, other, None) if which.bound == "min" else (x, None, other))
    if is_constant(x) and not is_constant(other):
        return which.either, (x, other)
    return None


def _fmin(x: Tensor, other: object) -> StandIn | None:
    return ("torch.fmin", (x, other)) if isinstance(other, Tensor) else None


def _fmax(x: Tensor, other: object) -> StandIn | None:
    return ("torch.fmax", (x, other)) if isinstance(other, Tensor) else None


def _round(x: Tensor, decimals: int) -> StandIn:
    return "torch.round", (x, decimals)


def _floor(x: Tensor) -> StandIn:
    return "floor", (x,)


def _ceil(x: Tensor) -> StandIn:
    return "ceil", (x,)


def _trunc(x: Tensor) -> StandIn:
    return "trunc", (x,)


def _sign(x: Tensor) -> StandIn:
    return "torch.sign", (x, 0.0)


def _learns(*values: object) -> bool:
    """torch refuses a scale that requires grad."""
    for value in values:  # noqa: SIM110  Dynamo on torch 2.8
        if isinstance(value, Tensor) and value.requires_grad:
            return True
    return False


def _fake_quantize(x: Tensor, scale: object, zero_point: object, low: int, high: int) -> StandIn | None:
    if _learns(scale, zero_point):
        return None
    return "torch.fake_quantize_per_tensor_affine", (x, scale, zero_point, low, high)


def _fake_quantize_channels(
    x: Tensor, scale: object, zero_point: object, axis: int, low: int, high: int
) -> StandIn | None:
    if _learns(scale, zero_point):
        return None
    return "torch.fake_quantize_per_channel_affine", (x, scale, zero_point, axis, low, high)


# --- the table --------------------------------------------------------------------------------------------------------


def _at(
    text: str, f: Callable[[Tensor, Tensor], Tensor], slopes: Slopes, later: Mapping[str, Slopes] | None = None
) -> AtTheBound:
    """slopes: those of the first era. later: those of the eras that changed them."""
    return AtTheBound(text, f, {CLOSED_ERA: slopes, **(later or {})})


def _fake_quantized(x: Tensor, bound: Tensor) -> Tensor:
    """Scale 1 and grid 0..15: the least grid value is the bound."""
    return torch.fake_quantize_per_tensor_affine(x, 1.0, 0, 0, 15)


def _of_two(
    name: str,
    switch: str,
    arrange: Arrange,
    *at_the_bound: AtTheBound,
    overload: str = "default",
    nodes: tuple[str, ...] = (),
) -> Form:
    """A function of two tensors. Without the second it is another function of that name, which is left alone."""
    return Form(
        name,
        switches=(switch,),
        takes=("input", "other"),
        defaults=(MISSING, None),
        arrange=arrange,
        overloads=(overload,),
        nodes=nodes,
        saved=("self", "other"),
        at_the_bound=at_the_bound,
    )


def _saturating(name: str, arrange: Arrange, module: type[nn.Module], **rest: Any) -> Form:
    """A function of x alone and two numbers, and its module."""
    return Form(
        name,
        arrange=arrange,
        modules=(module,),
        owners=(torch, Tensor, *_NN, torch.ops.aten),
        with_inplace=(functional,),
        nodes=(name.capitalize(),),
        **rest,
    )


# At a bound that is a number, and at one that is a tensor, which gets what x does not get.
_PASSES, _CUTS = Slopes(1.0), Slopes(0.0)
_PASSES_ALL, _SHARES = Slopes(1.0, 0.0), Slopes(0.5, 0.5)
_NN = (fused_nn, functional)
_GRID = ("quant_min", "quant_max")
FORMS: list[Form] = []
SPELLINGS: dict[Any, Spelling] = {}  # by the function that torch hands to a TorchFunctionMode
MODULES: dict[type[Any], Form] = {}  # ReLU6 is a Hardtanh: the exact class decides
COMPOSITE_MODULES: dict[type[Any], Form] = {}


@lru_cache(maxsize=4096)
def form_of_node(name: str) -> Form | None:
    """The form that makes autograd nodes of this name."""
    for form in FORMS:
        if any(name.startswith(node) for node in form.nodes):
            return form
    return None


def add(form: Form) -> Form:
    """Put a function of torch into the table, under every owner that has one of its names; aten's packet and its overloads too."""
    FORMS.append(form)
    form_of_node.cache_clear()
    MODULES.update(dict.fromkeys(form.modules, form))
    COMPOSITE_MODULES.update(dict.fromkeys(form.composite_modules, form))
    SPELLINGS.update(each_spelling(form))
    return form


def each_spelling(form: Form) -> list[tuple[object, Spelling]]:
    """Every function of torch that is called so, and how it is read."""
    found: list[tuple[object, Spelling]] = []
    for name in form.names:
        for owner in form.owners:
            of_aten = owner is torch.ops.aten
            arrange = form.of_aten if of_aten and form.of_aten else form.arrange
            for suffix in ("", "_"):
                function = getattr(owner, name + suffix, None)
                if function is None:
                    continue
                takes_inplace = owner in form.with_inplace and not suffix
                spelling = Spelling(form, name + suffix, arrange, bool(suffix), takes_inplace)
                found.append((function, spelling))
                for overload in form.overloads if hasattr(function, "overloads") else ():
                    if overload in function.overloads():
                        found.append((getattr(function, overload), spelling))
    return found


def take_out(form: Form) -> None:
    """For tests."""
    FORMS.remove(form)
    form_of_node.cache_clear()
    for module in form.modules:
        del MODULES[module]
    for module in form.composite_modules:
        del COMPOSITE_MODULES[module]
    for function in [function for function, spelling in SPELLINGS.items() if spelling.form is form]:
        del SPELLINGS[function]


def overlap(some: Iterable[str], others: Iterable[str]) -> bool:
    """Is there a form that a switch of each acts on?"""
    some, others = set(some), set(others)
    return any(some.intersection(form.switches) and others.intersection(form.switches) for form in FORMS)


def is_spelling_of(function: object, form: Form) -> bool:
    """Does this function of torch do what the form does, and nothing else?"""
    spelling = SPELLINGS.get(function)
    return spelling is not None and not spelling.form.hides and spelling.form.shares_a_switch_with(form)


class SavedValues(NamedTuple):
    """What a node of autograd keeps: its arguments, one for each gradient that leaves it, and how its form reads them."""

    values: list[Any]
    primitive: str
    inputs: tuple[Any, ...]


def kept_by(form: Form, node: object) -> SavedValues | None:
    """None where the form's nodes keep too little, and where torch will not hand it out: a checkpoint unpacks once."""
    if not form.saved:
        return None
    try:
        values = [saved(node, name) for name in form.saved]
        read = form.arrange(*values)
    except (RuntimeError, AttributeError, TypeError):  # CheckpointError is a RuntimeError
        return None
    return None if read is None else SavedValues(values, *read)


def shares_at_the_edge(form: Form, has_tensor_bound: bool) -> dict[str, float]:
    """What of grad x gets exactly at a bound, in each era; of torch.clamp where the form has no answer of its own for such a bound."""
    for known in (form, SPELLINGS[torch.clamp].form) if EDGE in form.switches else (form,):
        for row in known.at_the_bound:
            if (row.slopes_in(CLOSED_ERA).bound is not None) == has_tensor_bound:
                return {era: row.slopes_in(era).x for era in ERAS}
    return {}


def at_the_bound() -> list[AtTheBound]:
    """Every way to write a clamp that torch has an answer for, in the order of the table."""
    return [row for form in FORMS for row in form.at_the_bound]


for _form in (
    Form(
        "clamp",
        "clip",
        switches=("clamp", EDGE),
        takes=("input", "min", "max"),
        defaults=(MISSING, None, None),
        arrange=_clamp,
        of_aten=_clamp_of_aten,
        overloads=("default", "Tensor"),
        nodes=("ClampBackward",),
        saved=("self", "min", "max"),
        at_the_bound=(
            _at("clamp(x, min=0)", lambda x, b: torch.clamp(x, min=0.0), _PASSES, {OPEN_ERA: _CUTS}),
            _at("clamp(x, max=0)", lambda x, b: torch.clamp(x, max=0.0), _PASSES, {OPEN_ERA: _CUTS}),
            _at("clip(x, 0, 1)", lambda x, b: torch.clip(x, 0.0, 1.0), _PASSES, {OPEN_ERA: _CUTS}),
            _at("x.clamp_(0, 1)", lambda x, b: (x * 1).clamp_(0.0, 1.0), _PASSES, {OPEN_ERA: _CUTS}),
            _at("clamp(x, 0, 0)", lambda x, b: torch.clamp(x, 0.0, 0.0), _PASSES, {OPEN_ERA: _CUTS}),
            _at("clamp(x, min=tensor)", lambda x, b: torch.clamp(x, min=b), _PASSES_ALL, {OPEN_ERA: _SHARES}),
            _at("clamp(x, max=tensor)", lambda x, b: torch.clamp(x, max=b), _PASSES_ALL, {OPEN_ERA: _SHARES}),
        ),
    ),
    Form(
        "clamp_min",
        switches=("clamp", EDGE),
        takes=("input", "min"),
        defaults=(MISSING, None),
        arrange=_clamp_min,
        overloads=("default", "Tensor"),
        nodes=("ClampMin",),
        saved=("self", "min"),
        at_the_bound=(_at("clamp_min(x, 0)", lambda x, b: torch.clamp_min(x, 0.0), _PASSES, {OPEN_ERA: _CUTS}),),
    ),
    Form(
        "clamp_max",
        switches=("clamp", EDGE),
        takes=("input", "max"),
        defaults=(MISSING, None),
        arrange=_clamp_max,
        overloads=("default", "Tensor"),
        nodes=("ClampMax",),
        saved=("self", "max"),
    ),
    *(
        Form(
            name,
            switches=switches,
            takes=("input", "scalar"),
            defaults=(MISSING, MISSING),
            owners=(torch,),
            each=each,
            nodes=(node,),
        )
        # maximum and minimum share a tie in every era, so no pin of an edge is about them
        for name, each, node, switches in (
            ("_foreach_clamp_min", "clamp_min", "ForeachClampMin", ("clamp", EDGE)),
            ("_foreach_clamp_max", "clamp_max", "ForeachClampMax", ("clamp", EDGE)),
            ("_foreach_maximum", "clamp_min", "ForeachMaximum", ("clamp",)),
            ("_foreach_minimum", "clamp_max", "ForeachMinimum", ("clamp",)),
        )
    ),
    *(
        Form(f"_foreach_{name}", switches=(switch,), owners=(torch,), each=name, nodes=(f"Foreach{name.capitalize()}",))
        for name, switch in (
            ("round", "round"),
            ("floor", "round"),
            ("ceil", "round"),
            ("trunc", "round"),
            ("sign", "sign"),
        )
    ),
    _of_two("maximum", "clamp", _maximum, _at("maximum(x, tensor)", lambda x, b: torch.maximum(x, b), _SHARES)),
    _of_two("minimum", "clamp", _minimum, _at("minimum(x, tensor)", lambda x, b: torch.minimum(x, b), _SHARES)),
    _of_two("min", "clamp", _minimum, overload="other"),
    _of_two("max", "clamp", _maximum, overload="other"),
    _of_two(
        "fmax",
        EDGE,
        _fmax,
        _at("fmax(x, tensor)", lambda x, b: torch.fmax(x, b), _PASSES_ALL, {OPEN_ERA: _SHARES}),
        nodes=("Fmax",),
    ),
    _of_two(
        "fmin",
        EDGE,
        _fmin,
        _at("fmin(x, tensor)", lambda x, b: torch.fmin(x, b), _PASSES_ALL, {OPEN_ERA: _SHARES}),
        nodes=("Fmin",),
    ),
    Form(
        switches=(),
        at_the_bound=(_at("where(x >= tensor, x, tensor)", lambda x, b: torch.where(x >= b, x, b), _PASSES_ALL),),
    ),
    _saturating(
        "relu",
        _relu,
        nn.ReLU,
        switches=("relu",),
        at_the_bound=(_at("relu(x)", lambda x, b: torch.relu(x), _CUTS),),
    ),
    _saturating(
        "relu6",
        _relu6,
        nn.ReLU6,
        switches=("relu",),
        at_the_bound=(_at("relu6(x)", lambda x, b: functional.relu6(x), _CUTS),),
    ),
    _saturating(
        "hardtanh",
        _hardtanh,
        nn.Hardtanh,
        switches=("relu",),
        takes=("input", "min_val", "max_val"),
        defaults=(MISSING, -1.0, 1.0),
        saved=("self", "min_val", "max_val"),
        at_the_bound=(_at("hardtanh(x, 0, 1)", lambda x, b: functional.hardtanh(x, 0.0, 1.0), _CUTS),),
    ),
    _saturating(
        "hardsigmoid",
        _hardsigmoid,
        nn.Hardsigmoid,
        switches=("relu", "hardsigmoid"),  # with the rules of a clamp, and with its own
        otherwise="hardsigmoid",
        op="clamp",
        saved=("self",),
    ),
    *(
        Form(
            name,
            switches=(name,),
            takes=("input", *others),
            defaults=(MISSING, *values),
            arrange=arrange,
            owners=(*_NN, torch.ops.aten),
            with_inplace=() if name == "gelu" else (functional,),
            modules=(module,),
            nodes=(node,),
            saved=("self", *others),
        )
        for name, others, values, arrange, module, node in (
            ("gelu", ("approximate",), ("none",), _gelu, nn.GELU, "Gelu"),
            ("silu", (), (), _silu, nn.SiLU, "Silu"),
            ("leaky_relu", ("negative_slope",), (0.01,), _leaky_relu, nn.LeakyReLU, "LeakyRelu"),
        )
    ),
    Form(
        "round",
        switches=("round",),
        takes=("input", "decimals"),
        defaults=(MISSING, 0),
        arrange=_round,
        owners=(torch, Tensor, torch.special, torch.ops.aten),
        overloads=("default", "decimals"),
        nodes=("Round",),
    ),
    *(
        Form(*names, switches=("round",), arrange=arrange, nodes=(names[0].capitalize(),))
        for names, arrange in ((("floor",), _floor), (("ceil",), _ceil), (("trunc", "fix"), _trunc))
    ),
    Form("sign", switches=("sign",), arrange=_sign, nodes=("Sign",)),
    Form(
        "fake_quantize_per_tensor_affine",
        switches=("fake_quantize",),
        takes=("input", "scale", "zero_point", *_GRID),
        defaults=(MISSING,) * 5,
        arrange=_fake_quantize,
        overloads=("default", "tensor_qparams"),
        nodes=("FakeQuantize", "FusedMovingAvgObsFq"),
        at_the_bound=(_at("fake_quantize(x), least grid value", _fake_quantized, _PASSES),),
    ),
    Form(
        "fake_quantize_per_channel_affine",
        switches=("fake_quantize",),
        takes=("input", "scale", "zero_point", "axis", *_GRID),
        defaults=(MISSING,) * 6,
        arrange=_fake_quantize_channels,
    ),
):
    add(_form)
