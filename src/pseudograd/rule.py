"""The records every other part reads: an op, its backward rules, and a call that fixes one of them.

Nothing here knows autograd. A rule is data and pure functions: `pull` is the formula, `reference` the same rule written apart for one
number. Everything that can be derived (jvp, vjp, tables, error texts, plots, tests) is derived from these records.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MethodType
from typing import Any, NamedTuple

from torch import Tensor
from torch.compiler import is_compiling

from .checks import as_number, is_finite, surely
from .errors import UnknownNameError, must, unknown_name

Gradients = tuple[Tensor | None, ...]


class Function:
    """A user's function as the parameter of a rule. A compiled graph can hold constants but no functions, so `key` names it.

    It holds the calls that were made with it, so that they go when it goes; they hold the user's function alone. One that a compiler
    makes has no key, until a graph needs it.
    """

    __slots__ = ("__weakref__", "call", "calls", "key")

    def __init__(self, call: Callable[..., Tensor], key: str = "") -> None:
        self.call = call
        self.key = key
        self.calls: dict[tuple[Any, ...], Call] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Function) and _identity(self.call) == _identity(other.call)

    def __hash__(self) -> int:
        return hash(_identity(self.call))

    def __repr__(self) -> str:
        return self.key.removeprefix("function:")

    def __reduce__(self) -> tuple[Any, ...]:
        return function_of, (self.call,)


# Remembered for as long as a rule holds them: by identity, and by key.
_known: weakref.WeakValueDictionary[Any, Function] = weakref.WeakValueDictionary()
_functions: weakref.WeakValueDictionary[str, Function] = weakref.WeakValueDictionary()
_in_graphs: dict[str, Function] = {}  # those that a compiled graph names: it runs as long as the program
_numbers = itertools.count(2)


def _identity(call: Callable[..., Tensor]) -> Any:
    """What tells a function from all others that live. A bound method is made anew by each access, and is one function."""
    return (id(call.__self__), call.__func__) if isinstance(call, MethodType) else id(call)


def function_of(call: Callable[..., Tensor]) -> Function:
    """The parameter that holds this function; one for each function."""
    found = _known.get(_identity(call))
    if found is None:
        module = getattr(call, "__module__", None) or type(call).__module__  # torch's own methods have none
        key = f"function:{module}.{getattr(call, '__qualname__', type(call).__qualname__)}"
        if key in _functions:  # another one of that name: a second lambda
            key = f"{key}#{next(_numbers)}"
        found = _known[_identity(call)] = _functions[key] = Function(call, key)
    return found


def _key_of(call: Callable[..., Tensor]) -> str:
    """The key of a function that a graph is to name. Dynamo runs this while it traces, instead of tracing it."""
    found = function_of(call)
    _in_graphs[found.key] = found
    return found.key


_key_of._dynamo_marked_constant = True  # type: ignore[attr-defined]  # as torch.compiler.assume_constant_result, without its import


def _function_named(key: str) -> Function:
    """The function that a graph names, which keeps it from here on."""
    found = _in_graphs.get(key)
    if found is None:
        found = _in_graphs[key] = _functions[key]
    return found


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
    and the inputs as they were. Where a rule `is_users`, a user's function stands behind it: the names of its parameters are free, so
    they come to pull, reference, is_linear and keeps as one mapping, `given`; `author` is that function, if it was registered. `ulps`:
    how many units in the last place its arithmetic may differ, 0 for what every device rounds alike, more for exp or tanh. `copies`: the
    rule stands in for an op of torch that keeps nothing of its input, which may therefore change afterwards.
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
    copies: bool = False
    is_users: bool = False
    author: str = ""
    texts: tuple[tuple[str, str], ...] = field(init=False, repr=False, default=())  # the parameters as they are written
    jumps: Callable[..., tuple[float, ...]] = lambda **_: ()  # the x where the slope jumps, for the given parameters

    def __post_init__(self) -> None:
        object.__setattr__(self, "texts", tuple((key, repr(value)) for key, value in self.parameters.items()))

    def keywords(self, edge: Edge | None, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """What pull, reference, is_linear, keeps and jumps are called with: the parameters, and the edge where the op has one."""
        parameters = {**self.parameters, **(given or {})}
        keywords = {"given": parameters} if self.is_users else parameters
        return keywords if edge is None else {**keywords, "edge": edge}


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
    stands_for: str = ""  # the public op whose rules it takes, each through `derive`
    derive: Callable[[Rule], Rule] | None = None
    picture: Picture = field(default_factory=Picture)


class Call:
    """An op with its rule, edge and direction fixed: what the engine runs. `spec` names it in constants that a graph can hold.

    `parameters` are the keywords of the rule's functions.
    """

    __slots__ = (
        "_values",
        "admitted",
        "edge",
        "is_linear",
        "kernels",
        "maximize",
        "op",
        "parameters",
        "rule",
    )

    def __init__(self, op: Op, rule: Rule, given: dict[str, Any], edge: Edge | None, maximize: bool) -> None:
        self.op = op
        self.rule = rule
        self.edge = edge
        self.parameters = rule.keywords(edge, {k: v.call if isinstance(v, Function) else v for k, v in given.items()})
        self.is_linear = rule.is_linear(**self.parameters)
        self.maximize = maximize and not self.is_linear
        self.kernels: list[Any] | None = None  # those that serve this call, found when first run
        self.admitted: set[tuple[Any, ...]] = set()  # arguments that passed the op's checks before
        ordered = [given[key] for key in rule.parameters]
        self._values = [(value.key or value.call) if isinstance(value, Function) else value for value in ordered]

    @property
    def spec(self) -> tuple[Any, ...]:
        """Flat: op, rule, edge, maximize, and the rule's parameters in the order of its row."""
        values = [_key_of(value) if callable(value) else value for value in self._values]
        return self.op.name, self.rule.name, self.edge, self.maximize, *values

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
_REMEMBERED = (
    1000  # calls in each of the two: then they are forgotten all at once, and made again as they are asked for
)


def register(op: Op, table: dict[str, Op] = OPS) -> Op:
    """Put an op into the table. A name is given once: a rule's values never change under its name."""
    if op.name in OPS or op.name in STAND_INS:
        raise ValueError(must(op.name, "name", "be new", op.name, "Choose another name"))
    table[op.name] = op
    for row in list(OPS[op.stands_for].rules.values()) if op.stands_for else ():
        add_rule(op, row)
    return op


def add_rule(op: Op, row: Rule) -> None:
    """Give an op one more rule, or another one of that name; and the ops that stand in for it."""
    op.rules[row.name] = op.derive(row) if op.derive else row  # type: ignore[index]
    for other in STAND_INS.values():
        if other.stands_for == op.name:
            add_rule(other, row)
    _by_request.clear()
    _by_spec.clear()


def _remember(calls: dict[tuple[Any, ...], Call], key: tuple[Any, ...], call: Call) -> Call:
    if len(calls) >= _REMEMBERED:
        calls.clear()
    calls[key] = call
    return call


def call_of(spec: tuple[Any, ...]) -> Call:
    """The call that `spec` names; remembered, except under a compiler, which must not see the memory change."""
    if is_compiling():
        return split(spec)[0]
    return _by_spec.get(spec) or _remember(_by_spec, spec, split(spec)[0])


def split(leaves: tuple[Any, ...]) -> tuple[Call, tuple[Any, ...]]:
    """The call that the first of `leaves` name, and the rest."""
    op_name, rule_name, edge, maximize = leaves[:4]
    op = OPS[op_name] if op_name in OPS else STAND_INS[op_name]
    row = op.rules[rule_name]
    given: dict[str, Any] = {}
    for key, value in zip(row.parameters, leaves[4:]):  # noqa: B905  there are more leaves
        given[key] = _function_named(value) if isinstance(value, str) else value
    return Call(op, row, given, edge, maximize), leaves[4 + len(given) :]


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
    if op.edges and edge not in op.edges:
        raise unknown_name(op.name, "edge", op.edges, edge)
    return Call(op, row, parameters, edge if op.edges else None, maximize)


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
    return found or _chosen_first(key, op, rule, edge, maximize)


def _chosen_first(key: tuple[Any, ...], op: Op, rule: RuleLike, edge: Edge | None, maximize: bool) -> Call:
    """A call with a function is remembered by the function: what it holds, tensors perhaps, must go when the caller lets go of it."""
    given = rule.parameters if isinstance(rule, RuleChoice) else ()
    for _, value in given:
        if isinstance(value, Function):
            others = tuple(pair for pair in given if pair[1] is not value)
            key = (op.name, rule[0], edge, maximize, *others)
            return value.calls.get(key) or _remember(value.calls, key, choose(op, rule, edge, maximize))
    return _remember(_by_request, key, choose(op, rule, edge, maximize))


def rule_named(name: str, /, **given: Any) -> RuleChoice:
    """A rule object by name, its parameters checked: finite numbers above 0."""
    row = None
    for op in OPS.values():  # not next() over a generator, which Dynamo on torch 2.8 cannot trace
        row = op.rules.get(name, row)
    if row is None:
        raise unknown_name("rules", "rule", sorted({n for op in OPS.values() for n in op.rules}), name)
    for key, value in given.items():
        if key not in row.parameters:
            raise TypeError(must(name, "parameters", f"be {_listed(row.parameters) or 'absent'}", key))
        given[key] = value if isinstance(value, Function) else as_number(value)
        check_parameter(name, key, given[key], row.parameters[key])
    return RuleChoice(name, tuple((key, v if isinstance(v, Function) else float(v)) for key, v in given.items()))


def check_parameter(rule: str, key: str, value: object, default: object) -> None:
    if default is None and isinstance(value, Function):
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(must(rule, key, "be a number", value))
    if surely(value <= 0) or not is_finite(value):
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
