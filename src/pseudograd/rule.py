"""The records every other part reads: an op, its backward rules, and a call that fixes one of them.

Nothing here knows autograd. A rule is data and pure functions: `pull` is the formula, `reference` the same rule written apart for one
number. Everything that can be derived (jvp, vjp, tables, error texts, plots, tests) is derived from these records.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor
from torch.compiler import is_compiling

from .errors import UnknownNameError, must, unknown_name

Gradients = tuple[Tensor | None, ...]


class Function:
    """A user's function as the parameter of a rule. A compiled graph can hold constants but no functions, so `key` names it."""

    __slots__ = ("call", "key")

    def __init__(self, call: Callable[..., Tensor]) -> None:
        self.call = call
        self.key = f"function:{call.__module__}.{getattr(call, '__qualname__', type(call).__qualname__)}"
        while _functions.setdefault(self.key, self).call is not call:  # another one of that name: a second lambda
            self.key += "'"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Function) and self.call == other.call

    def __hash__(self) -> int:
        return hash(self.call)

    def __repr__(self) -> str:
        return self.key.removeprefix("function:")

    def __reduce__(self) -> tuple[Any, ...]:
        return Function, (self.call,)


_functions: dict[str, Function] = {}


def function_known(call: Callable[..., Tensor]) -> Function | None:
    """The parameter that holds this function, if one was made; for compilers, which cannot read a function's name."""
    for known in _functions.values():
        if known.call is call:
            return known
    return None


class RuleChoice(NamedTuple):
    """A rule with its parameters chosen; made by `pseudograd.rules`, accepted wherever a rule's name is."""

    name: str
    parameters: tuple[tuple[str, Any], ...] = ()

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(f'{key}={value!r}' for key, value in self.parameters)})"


RuleLike = str | RuleChoice
Edge = str | int  # a name; for abs the slope itself


@dataclass(frozen=True)
class Rule:
    """One backward rule.

    pull(grad, *inputs, y, wants, **parameters) returns one gradient per input, not yet summed to the input's shape; None where
    `wants` says that nobody asks. It may use comparisons, `where` and arithmetic, so that torch can differentiate it again.
    A rule that `compares` gets y, and its inputs as torch compared them for y: cast, and rounded to the dtype of y. Others get y=None
    and the inputs as they were. `ulps`: how many units in the last place its arithmetic may differ, 0 for what every device rounds
    alike, more for exp or tanh. `registers`: False where the eager call keeps its tensors out of sight of saved-tensor hooks, because
    torch's own op, which it stands in for, saves none and a checkpoint counts them. `copies`: the rule stands in for an op of torch
    that keeps nothing of its input, which may therefore change afterwards.
    """

    name: str
    formula: str
    source: str
    pull: Callable[..., Gradients]
    reference: Callable[..., tuple[float, ...]]
    is_linear: Callable[..., bool]
    keeps: Callable[..., tuple[str, ...]]
    also_called: str = ""
    translates: tuple[str, ...] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)
    requires: tuple[str, ...] = ()
    compares: bool = True
    ulps: int = 0
    registers: bool = True
    copies: bool = False
    texts: tuple[tuple[str, str], ...] = field(init=False, repr=False, default=())  # the parameters as they are written
    jumps: Callable[..., tuple[float, ...]] = lambda **_: ()  # the x where the slope jumps, for the given parameters

    def __post_init__(self) -> None:
        object.__setattr__(self, "texts", tuple((key, repr(value)) for key, value in self.parameters.items()))


@dataclass(frozen=True)
class Sample:
    """Inputs for the contract tests and for `pseudograd rules`: `build()` makes fresh tensors on every call."""

    name: str
    build: Callable[..., tuple[Any, ...]]


class Picture(NamedTuple):
    """How an op is drawn: its inputs behind x, the x of its edge, the x where its values jump, and the range of x."""

    others: tuple[Any, ...] = ()
    edges: tuple[float, ...] = ()
    jumps: tuple[float, ...] = ()
    low: float = -2.0
    high: float = 2.0
    of: Callable[[Tensor], tuple[Any, ...]] | None = None  # all inputs from x, where x alone is not the first of them


@dataclass(frozen=True)
class Op:
    """One public op: what it computes forward, and the rules that may stand behind it."""

    name: str
    forward: Callable[..., Tensor]
    inputs: tuple[str, ...]
    rules: Mapping[str, Rule]
    default_rule: str
    public: Callable[..., Tensor]
    samples: Callable[[], Iterable[Sample]]
    edges: tuple[Edge, ...] = ()
    default_edge: Edge | None = None
    takes_maximize: bool = False
    adapt: Callable[..., Rule] | None = None  # a row of this family from a user's formula
    family: str = ""
    picture: Picture = field(default_factory=Picture)


class Call:
    """An op with its rule, edge and direction fixed: what the engine runs. `spec` names it in constants that a compiler can hold."""

    __slots__ = ("admitted", "is_linear", "kernels", "maximize", "op", "parameters", "registers", "rule")

    def __init__(self, op: Op, rule: Rule, parameters: dict[str, Any], maximize: bool) -> None:
        self.op = op
        self.rule = rule
        self.parameters = parameters
        self.is_linear = rule.is_linear(**parameters)
        self.registers = rule.registers
        self.maximize = maximize and not self.is_linear
        self.kernels: list[Any] | None = None  # those that serve this call, found when first run
        self.admitted: set[tuple[Any, ...]] = set()  # arguments that passed the op's checks before

    @property
    def spec(self) -> tuple[Any, ...]:
        given = tuple((key, v.key if isinstance(v, Function) else v) for key, v in self.parameters.items())
        return self.op.name, self.rule.name, given, self.maximize

    @property
    def label(self) -> str:
        return f"{self.op.name}/{self.rule.name}"

    def pull(self, grad: Tensor, inputs: tuple[Any, ...], y: Tensor | None, wants: tuple[bool, ...]) -> Gradients:
        """The rule's gradients. Under ascent the rule sees the descent problem: -rule(-grad)."""
        if not self.maximize:
            return self.rule.pull(grad, *inputs, y=y, wants=wants, **self.parameters)
        return tuple(
            None if g is None else -g for g in self.rule.pull(-grad, *inputs, y=y, wants=wants, **self.parameters)
        )

    def keeps(self, wants: tuple[bool, ...]) -> tuple[str, ...]:
        return self.rule.keeps(wants, **self.parameters)


OPS: dict[str, Op] = {}
STAND_INS: dict[str, Op] = {}  # what `rewrite` runs in place of torch's own functions: found by name, listed nowhere
_by_spec: dict[tuple[Any, ...], Call] = {}
_by_request: dict[tuple[Any, ...], Call] = {}


def register(op: Op, table: dict[str, Op] = OPS) -> Op:
    """Put an op into the table. A name is given once: a rule's values never change under its name."""
    if op.name in OPS or op.name in STAND_INS:
        raise ValueError(must(op.name, "name", "be new", op.name, "Choose another name"))
    table[op.name] = op
    return op


def call_of(spec: tuple[Any, ...]) -> Call:
    """The call that `spec` names; remembered, except under a compiler, which must not see the memory change."""
    if is_compiling():
        return _call_named(*spec)
    found = _by_spec.get(spec)
    if found is None:
        found = _by_spec[spec] = _call_named(*spec)
    return found


def _call_named(op_name: str, rule_name: str, parameters: tuple[tuple[str, Any], ...], maximize: bool) -> Call:
    op = OPS[op_name] if op_name in OPS else STAND_INS[op_name]
    given = {key: _functions[v] if isinstance(v, str) and v.startswith("function:") else v for key, v in parameters}
    return Call(op, op.rules[rule_name], given, maximize)


def choose(op: Op, rule: RuleLike, edge: Edge | None = None, maximize: bool = False) -> Call:
    """The call for what the user asked; raises the errors of an unknown rule, edge or parameter."""
    name, given = (rule.name, rule.parameters) if isinstance(rule, RuleChoice) else (rule, ())
    row = op.rules.get(name) if isinstance(name, str) else None
    if row is None:
        raise _unknown_rule(op, rule)
    parameters = _defaults(row)
    for key, value in given:
        if key not in parameters:
            raise TypeError(must(op.name, f"rule {name!r}", f"take {_listed(row.parameters) or 'no parameter'}", key))
        check_parameter(name, key, value, row.parameters[key])
        parameters[key] = value
    for key, value in parameters.items():
        if value is None:
            remedy = f"Use rules.{name}({key}=...)"
            raise ValueError(must(op.name, "rule", f"come with its {key}", rule, remedy))
    if op.edges:
        if edge not in op.edges:
            raise unknown_name(op.name, "edge", op.edges, edge)
        parameters["edge"] = edge
    return Call(op, row, parameters, maximize)


def _defaults(row: Rule) -> dict[str, Any]:
    """The parameters of a rule. Under a compiler from text: a number that it finds in a table may become an input of the graph."""
    if is_compiling():
        return {key: None if text == "None" else float(text) for key, text in row.texts}
    return dict(row.parameters)


def chosen(op: Op, rule: RuleLike, edge: Edge | None = None, maximize: bool = False) -> Call:
    """`choose`, looked up: one dictionary read on every call but the first; not under a compiler, as in `call_of`."""
    if maximize is not True and maximize is not False:  # before the memory, where 1 would be found as True
        raise TypeError(must(op.name, "maximize", "be True or False", maximize))
    if is_compiling():
        return choose(op, rule, edge, maximize)
    key = (op.name, rule, edge, maximize)
    try:
        found = _by_request.get(key)
    except TypeError:  # an unhashable rule or edge is none: `choose` says which
        return choose(op, rule, edge, maximize)
    if found is None:
        found = _by_request[key] = choose(op, rule, edge, maximize)
    return found


def rule_named(name: str, **given: Any) -> RuleChoice:
    """A rule object by name, its parameters checked: finite numbers above 0."""
    row = None
    for op in OPS.values():  # not next() over a generator, which Dynamo on torch 2.8 cannot trace
        row = op.rules.get(name, row)
    if row is None:
        raise unknown_name("rules", "rule", sorted({n for op in OPS.values() for n in op.rules}), name)
    for key, value in given.items():
        if key not in row.parameters:
            raise TypeError(must(name, "parameters", f"be {_listed(row.parameters) or 'absent'}", key))
        check_parameter(name, key, value, row.parameters[key])
    return RuleChoice(name, tuple((key, v if isinstance(v, Function) else float(v)) for key, v in given.items()))


def check_parameter(rule: str, key: str, value: object, default: object) -> None:
    if default is None and isinstance(value, Function):
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(must(rule, key, "be a number", value))
    if not (math.isfinite(value) and value > 0):
        raise ValueError(must(rule, key, "be finite and above 0", value, f"The default is {default}"))


def _unknown_rule(op: Op, rule: object) -> UnknownNameError:
    asked = rule.name if isinstance(rule, RuleChoice) else rule
    translation = next((row.name for row in op.rules.values() if asked in row.translates), None)
    hint = f"{asked!r} is {translation!r} here" if translation else None
    takers = [other for other in OPS.values() if other.family == op.family and asked in tuple(other.rules)]
    if takers:
        hint = f"{asked!r} needs both bounds: use {_listed(other.name for other in takers)}"
    return unknown_name(op.name, "rule", tuple(op.rules), asked, hint)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
