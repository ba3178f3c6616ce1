"""The records of the table of torch's functions. Dynamo traces functions of this file, too, so their loops are plain."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from .. import ops  # noqa: F401  (for the rules of its rows)
from ..record import Record
from ..rule import BOUNDED, OPS, PRIMITIVES, Primitive, Pull, RuleLike, RuleObject, register
from .conventions import Kink
from .eras import CLOSED_ERA, ERAS, OPEN_ERA, Slopes
from .private import fused_nn, in_forward_mode, is_wrapped, transforms_are_active

MISSING = object()
EDGE = "edge"  # the switch of pin_edge
_aten = torch.ops.aten

Function = Callable[..., Any]  # of torch, as a TorchFunctionMode gets it, with the arguments of its call
Arguments = tuple[Any, ...]
Keywords = dict[str, Any]
Inputs = tuple[Any, ...]
Defaults = Mapping[str, object]  # the arguments of a function with their defaults
Arranged = tuple[str, Inputs]  # the name of the primitive that stands in, and its inputs
Arrange = Callable[..., Arranged | None]
Run = Callable[..., Tensor]  # run(function, *arguments) calls a function of torch under the contexts
Write = Callable[..., object]

# Further names of the first two arguments: aten's ("self") and numpy's ("x", "a", "x1", "x2"). Functions of torch take them;
# functions of torch.nn.functional do not.
_ALIASES = {"self": "input", "x": "input", "a": "input", "x1": "input", "x2": "other"}
_ALIASES_OF_LISTS = {"self": "input", "scalars": "scalar", "other": "scalar"}


class Read(NamedTuple):
    """How a call is read: the primitive that stands in, its inputs, and whether the result is written into the first input."""

    primitive: str
    inputs: Inputs
    in_place: bool = False


class EdgeCase(NamedTuple):
    """An expression, as text and as f(x, tensor). slopes: by era, where x == tensor == 0; an era that changed nothing is left out."""

    text: str
    f: Callable[[Tensor, Tensor], Tensor]
    slopes: dict[str, Slopes]

    def slopes_in(self, era: str) -> Slopes:
        """The slopes in this era, or in the last era before it that has some."""
        names = list(ERAS)
        known = [name for name in names[: names.index(era) + 1] if name in self.slopes]
        return self.slopes[known[-1]]


def edge_case(
    text: str, slopes: Slopes, since_2_14: Slopes | None = None, f: Callable[[Tensor, Tensor], Tensor] | None = None
) -> EdgeCase:
    """slopes: in the first era. since_2_14: the slopes since torch 2.14, if it changed them. f: if the text is no Python."""
    names = {**vars(functional), **vars(torch)}
    code: Callable[..., Tensor] = eval(f"lambda x, tensor: {text}", names) if f is None else f
    later = {} if since_2_14 is None else {OPEN_ERA: since_2_14}
    # x * 1 is a new tensor, so the expression may change it in place.
    return EdgeCase(text, lambda x, tensor: code(x * 1, tensor), {CLOSED_ERA: slopes, **later})


X: Defaults = {"input": MISSING}


class Form(Record):
    """One function of torch, under all names and owners that it has.

    switches: the families of override that change it, and EDGE if pin_edge does. The first one is its own family. If two switches are on,
        the later one counts. A function that hides others has the switches of these functions.

    owners: the modules and classes that have the function under its names; the variant in place has "_" behind the name.
    overloads: the overloads of aten's function that belong to it.
    each: for a function of a list of tensors, the name of the method that does the same to one tensor.

    arrange(*values): our primitive that runs in its place, with its inputs; None if torch has to run the call.
    aten_arrange: the same for the functions of aten, if it differs.
    second_primitive: for the rules that the primitive of `arrange` lacks; it reads some of the same inputs. If both lack a
        rule, torch's own function runs.
    op: our op in whose name an error about a rule is raised; empty if it has the name of the function.

    hides: the names of other functions of the table that it runs inside, where no mode sees them.
    write(run, *values): computes what torch computes, but calls each hidden function as `run(function, *arguments)`. It returns the result,
        or None if torch has to run the call. write=None: the function is not written out.
    modules: the classes of torch.nn that call the function. Their attributes have the names of its arguments.

    nodes: how the names of its autograd nodes start.
    saved: the arguments that the nodes save, in the order of `defaults`; empty for none.
    saved_in_place: what the nodes of a call in place save, its result among them; empty unless the result shows where x was at the kink.
    """

    name: str
    other_name: str = ""
    switches: tuple[str, ...] = ()
    defaults: Defaults = X  # its arguments in their order, the tensor first; MISSING without a default
    owners: tuple[object, ...] = (torch, Tensor, _aten)
    overloads: tuple[str, ...] = ("default",)
    with_inplace: tuple[object, ...] = ()  # the owners whose function takes the argument `inplace`
    each: str = ""
    arrange: Arrange = lambda *values: None
    aten_arrange: Arrange | None = None
    second_primitive: str = ""
    op: str = ""
    hides: tuple[str, ...] = ()
    write: Write | None = None
    modules: tuple[type[torch.nn.Module], ...] = ()
    nodes: tuple[str, ...] = ()
    saved: tuple[str, ...] = ()
    saved_in_place: tuple[str, ...] = ()
    kink: Kink | None = None  # where it has no slope
    edge_cases: tuple[EdgeCase, ...] = ()  # its slopes exactly at a bound

    @property
    def names(self) -> tuple[str, ...]:
        return tuple([name for name in (self.name, self.other_name) if name])

    def primitive_with(self, primitive: str, rule: RuleLike) -> Primitive | None:
        """This primitive if it has the rule, else that of `second_primitive` if it has the rule, else None."""
        for name in (primitive, self.second_primitive):
            if name and has_rule(PRIMITIVES[name], rule):
                return PRIMITIVES[name]
        return None

    @property
    def default_read(self) -> Read | None:
        """How a call with x alone is read, for example with an empty x."""
        arranged = self.arrange(torch.empty(0, device="cpu"), *[*self.defaults.values()][1:])
        return None if arranged is None else Read(*arranged)


def has_rule(primitive: Primitive, rule: RuleLike) -> bool:
    """Does the primitive have a rule of this name, with these parameters?"""
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
    """One way to call a form. `read(args, kwargs)` says how to run a call; None if torch has to run it."""

    def __init__(self, form: Form, name: str, arrange: Arrange, in_place: bool, takes_inplace: bool) -> None:
        self.form = form
        self.name = name
        self.arrange = arrange
        self.in_place = in_place
        self.takes_inplace = takes_inplace
        defaults = {**form.defaults, "inplace": False} if takes_inplace else form.defaults
        self.names, self.defaults = tuple(defaults), tuple(defaults.values())
        aliases = _ALIASES_OF_LISTS if form.each else _ALIASES
        self.aliases: dict[str, str] = {} if takes_inplace else aliases

    def values(self, args: Arguments, kwargs: Keywords) -> list[Any] | None:
        """The arguments in the order of `names`; None for a call that torch will refuse, and for one with out=."""
        if len(args) > len(self.names):
            return None
        values = list(args) + list(self.defaults[len(args) :])
        for key in kwargs:
            name = self.aliases.get(key, key)
            if name == "out" and kwargs[key] is None:
                continue
            if name not in self.names:
                return None
            values[self.names.index(name)] = kwargs[key]
        for value in values:
            if value is MISSING:
                return None
        return values

    def read(self, args: Arguments, kwargs: Keywords) -> Read | None:
        values = self.values(args, kwargs)
        if values is None or not isinstance(values[0], Tensor):
            return None
        in_place = bool(values.pop()) if self.takes_inplace else self.in_place
        arranged = self.arrange(*values)
        if arranged is None:
            return None
        return Read(arranged[0], arranged[1], in_place)

    def read_each(self, args: Arguments, kwargs: Keywords) -> list[tuple[object, ...]] | None:
        """For a form of lists: the arguments for each tensor. An argument that is no list is the same for all."""
        values = self.values(args, kwargs)
        if values is None:
            return None
        lists = [value if isinstance(value, (tuple, list)) else [value] * len(values[0]) for value in values]
        return list(zip(*lists)) if len({len(items) for items in lists}) == 1 else None  # noqa: B905  Dynamo on torch 2.8


def spellings_of(form: Form, arrange: Arrange | None = None) -> list[tuple[object, Spelling]]:
    """Every function of torch with a name and an owner of the form; in torch.ops.aten, each overload is a function of its own."""
    spellings: list[tuple[object, Spelling]] = []
    for name, owner, suffix in itertools.product(form.names, form.owners, ("", "_")):
        function = getattr(owner, name + suffix, None) if name else None
        if function is None:
            continue
        own = form.aten_arrange if owner is _aten and form.aten_arrange else form.arrange
        takes_inplace = owner in form.with_inplace and not suffix
        spelling = Spelling(form, name + suffix, arrange or own, bool(suffix), takes_inplace)
        known: Sequence[str] = function.overloads() if hasattr(function, "overloads") else ()
        functions = [function, *(getattr(function, overload) for overload in form.overloads if overload in known)]
        spellings += [(function, spelling) for function in functions]
    return spellings


# --- what rows are written with ---------------------------------------------------------------------------------------

NN = (fused_nn, functional)
TENSORS = (torch, Tensor)
# Slopes at a bound: the first two if the bound is a number, the others if it is a tensor, which gets what x does not get.
PASSES, CUTS = Slopes(1.0), Slopes(0.0)
PASSES_ALL, HALVES = Slopes(1.0, 0.0), Slopes(0.5, 0.5)


def pass_on(primitive: str, *others: object) -> Arrange:
    """Run `primitive` on the arguments as they are, followed by these others."""
    return lambda *values: (primitive, (*values, *others))


def pass_pair(primitive: str) -> Arrange:
    """Run `primitive` on two tensors; leave a call with a number to torch."""

    def arrange(x: object, other: object) -> Arranged | None:
        return (primitive, (x, other)) if isinstance(x, Tensor) and isinstance(other, Tensor) else None

    return arrange


def stand_in(
    name: str,
    forward: Callable[..., Tensor],
    op: str,
    inputs: tuple[str, ...] = BOUNDED,
    through: Callable[[Pull], Pull] | None = None,
    saves: Literal["as torch", "a copy"] = "as torch",
    either_is: Literal["min", "max"] | None = None,
) -> str:
    """Make the primitive `name`, whose forward is torch's, bit for bit, and whose backward is a rule of `op`. Returns `name`.

    through, saves, either_is: as in `Primitive`. Use saves="a copy" if torch's own op saves nothing of the input. Kernels compute a
    primitive of the clamp family if it has the same inputs as the op.
    """
    row = OPS[op]
    primitive = Primitive(
        name=name,
        inputs=inputs,
        forward=forward,
        rules=row.rules,
        rule_set=row.rule_set if through is None else "",
        edges=row.edges,
        default_edge=row.default_edge,
        through=through,
        saves=saves,
        either_is=either_is,
    )
    return register(primitive).name


def is_constant(value: object) -> bool:
    """Is it a tensor of which no derivative can be asked? It requires no grad, and has neither a wrapper of a transform nor a tangent."""
    if not isinstance(value, Tensor) or value.requires_grad:
        return False
    if torch.compiler.is_compiling():
        return True
    if is_wrapped(value):
        return False
    return not in_forward_mode() or torch.autograd.forward_ad.unpack_dual(value).tangent is None


def in_float32(write: Write) -> Write:
    """Decorator for a function that autocast runs in float32: `write` gets its tensors in float32, and runs without autocast."""

    @functools.wraps(write)
    def cast(*values: Any) -> object:
        device, wide = "", []
        for value in values:
            if isinstance(value, Tensor):
                device = value.device.type
                value = value.float() if value.dtype in (torch.float16, torch.bfloat16) else value
            wide.append(value)
        if not (torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)):
            return write(*values)
        with torch.autocast(device, enabled=False):
            return write(*wide)

    return cast


def only_backward_tells() -> bool:
    """Is it unknown before backward which of two tensors asks for a gradient? Yes under a transform, except in eager forward mode."""
    return transforms_are_active() and (not in_forward_mode() or torch.compiler.is_compiling())
