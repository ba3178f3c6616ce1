"""The records every other part reads: a primitive, an op, its backward rules, and a call that fixes one of them.

Nothing here knows autograd. A rule is data and pure functions: `pull` is the formula, `reference` the same rule written apart for one
number. Everything that can be derived (jvp, vjp, tables, error texts, plots, tests) is derived from these records.
The file has more than 300 lines because the records and the tables that find them name each other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

from torch import Tensor
from torch.compiler import is_compiling

from .arguments import as_number, is_finite, is_true
from .errors import UnknownNameError, must, unknown_name
from .geometry import Curve, Formula, Pieces, Sides, Steps, edge_reads_grad, pieces_of_sides
from .public_names import public_path
from .record import Record
from .user_function import UserFunction, function_named, key_of

Gradients = tuple[Tensor | None, ...]
Pull = Callable[..., Gradients]
Wants = tuple[bool, ...]  # for each input: does anybody ask for its gradient?
RangePieces = tuple[Any, Any, Pieces]  # min, max (each may be None), and the split of grad in each region


class RuleObject(NamedTuple):
    """A rule with chosen parameters, as `pseudograd.rules` makes it. It is accepted wherever a rule's name is."""

    name: str
    parameters: tuple[tuple[str, Any], ...] = ()

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(f'{key}={value!r}' for key, value in self.parameters)})"


RuleLike = str | RuleObject
Edge = str | int  # a name; for abs the slope itself
EdgeAtBound = Literal["closed", "open", "half", "inward"]  # so that a type checker finds a typo
_NO_PARAMETERS: Mapping[str, Any] = {}
_NO_TEXTS: tuple[tuple[str, str], ...] = ()


class Rule(Record):
    """One backward rule.

    pull(grad, *inputs, wants, **parameters) returns one gradient per input, not yet summed to the input's shape; None for an input
    that `wants` leaves out. It may use comparisons, `where` and arithmetic, so that torch can differentiate it again.
    A rule that `compares` also gets y, and its inputs as torch compared them for y: cast, and rounded to the dtype of y.

    is_linear: is the formula linear in grad? With an edge that reads grad, the rule is linear only if it also `ignores_edge`.
    keeps: the names of the inputs that pull reads; or a function of `wants` that returns these names.
    translates: names of other libraries for this rule, separated by spaces.
    choices: the allowed integers of a parameter.
    The next fields are the geometry of the rule, for kernels, texts and audit. Each is a function of the parameters:
        steps(*inputs behind x): the few slopes of the rule; None for some parameters.
        curve: how the slope falls with |x|.
        sides: what x gets below a range and above it; the edge says what x gets at a bound.
        find_range(*inputs behind x): the bounds of x and the pieces, if the row says what x and both bounds get.
        find_formula(*inputs behind x, **parameters): the formula of the C code, if the other fields do not say enough; or None.
        regions: for an op that is no clamp: two numbers, perhaps equal, and the pieces that say what x gets below, between and above.
    is_long: is the formula element-wise, with several steps, each of the size of x?
    colour: in figures; rules of the same name share it.
    ulps: the largest difference of two computations, in units in the last place: 0 if every device rounds alike, more for exp or tanh.
    cancels: are `ulps` counted in units of grad? True for a slope that crosses 0 as a sum of larger numbers.
    is_from_user: does the rule call a user's function? The user chose the names of the parameters, so pull, reference and jumps get all
        parameters as one mapping, `settings`.
    """

    name: str
    formula: str
    source: str
    pull: Pull
    reference: Callable[..., tuple[float, ...]]
    is_linear: bool
    keeps: tuple[str, ...] | Callable[[Wants], tuple[str, ...]]
    also_called: str = ""
    colour: str = ""
    translates: str = ""
    parameters: Mapping[str, Any] = _NO_PARAMETERS
    choices: Mapping[str, tuple[int, ...]] = _NO_PARAMETERS
    requires: tuple[str, ...] = ()  # the names of the inputs that must not be None
    compares: bool = True
    ignores_edge: bool = False
    ulps: int = 0
    cancels: bool = False
    steps: Callable[..., Steps | None] | None = None
    curve: Callable[..., Curve] | None = None
    sides: Callable[..., Sides] | None = None
    find_range: Callable[..., RangePieces] | None = None
    regions: Callable[..., RangePieces] | None = None
    find_formula: Callable[..., Formula | None] | None = None
    is_long: bool = False
    is_from_user: bool = False
    author: str = ""  # the name of the user's function, if `register_rule` registered it
    jumps: Callable[..., tuple[float, ...]] = lambda **_: ()  # the x where the slope jumps, for these parameters

    texts = _NO_TEXTS  # no field: the names and defaults of the parameters, the defaults as text

    def __post_init__(self) -> None:
        vars(self)["texts"] = tuple((key, repr(value)) for key, value in self.parameters.items())

    @property
    def called(self) -> str:
        """The name, with the parameters and their defaults."""
        parameters = ", ".join(key if value is None else f"{key}={value}" for key, value in self.parameters.items())
        return f"{self.name}({parameters})" if parameters else self.name

    def keywords(self, edge: Edge | None, chosen: Mapping[str, object] | None = None) -> dict[str, Any]:
        """The keywords of pull, reference and jumps: the parameters, and the edge if the op has one."""
        parameters = {**self.parameters, **(chosen or {})}
        keywords = {"settings": parameters} if self.is_from_user else parameters
        return keywords if edge is None else {**keywords, "edge": edge}

    def is_linear_at(self, edge: Edge | None) -> bool:
        return self.is_linear and (self.ignores_edge or not edge_reads_grad(edge))

    def inputs_read(self, wants: Wants) -> tuple[str, ...]:
        """The names of the inputs that pull reads, when these gradients are asked for."""
        return self.keeps if isinstance(self.keeps, tuple) else self.keeps(wants)


class Sample(Record):
    """Inputs for the contract tests and for `pseudograd rules`: `build(dtype)` makes new tensors on every call."""

    name: str
    build: Callable[..., tuple[Any, ...]]


class Picture(Record):
    """How an op is drawn, for x from low to high."""

    others: tuple[Any, ...] = ()  # the inputs behind x
    bounds: tuple[float, ...] = ()  # the x at a bound
    jumps: tuple[float, ...] = ()  # the x where values jump
    low: float = -2.0
    high: float = 2.0
    inputs_of: Callable[[Tensor], tuple[object, ...]] | None = None  # all inputs, if they are not x and `others`


BOUNDED = ("x", "min", "max")  # the inputs of a clamp


class Primitive(Record, kw_only=True):
    """What the engine runs: a forward with torch's values, and the rules for its backward. Several primitives share the same rules.

    rule_set: a name for these rules, for kernels and error texts.
    through(pull): a rule's pull for the inputs of this primitive, if the rule is written for other inputs.
    saves: "rule": what the rule reads. "as torch": what torch's op of these inputs saves, because a rewritten call may not save more.
        "a copy": the same, with a copy of the input, because torch's op keeps nothing of it and a program may change it afterwards.
    either_is: for an op whose two inputs bound each other: "min" for their maximum, "max" for their minimum. In backward, x is the input
        that gets a gradient.
    find_grid(*inputs behind x): of an op that clamps x on a grid of whole numbers: 1 / step, the place of 0, min, max and the step in
        float32; None where float32 cannot hold them all.
    """

    name: str
    inputs: tuple[str, ...]
    forward: Callable[..., Tensor]
    rules: Mapping[str, Rule]
    rule_set: str = ""
    edges: tuple[Edge, ...] = ()
    default_edge: Edge | None = None
    through: Callable[[Pull], Pull] | None = None
    saves: Literal["rule", "as torch", "a copy"] = "rule"
    either_is: Literal["min", "max"] | None = None
    find_grid: Callable[..., tuple[float, ...] | None] | None = None

    def name_inputs(self, inputs: tuple[object, ...]) -> dict[str, Any]:
        return dict(zip(self.inputs, inputs))  # noqa: B905  Dynamo on torch 2.8

    def inputs_of(self, other: Primitive, inputs: tuple[object, ...]) -> tuple[object, ...]:
        """The inputs of another primitive that this one takes, too."""
        values = other.name_inputs(inputs)
        return tuple([values[name] for name in self.inputs])


class Adapter(NamedTuple):
    """How a user's formula becomes a rule of an op. trial: makes arguments for one call that checks the formula."""

    make_rule: Callable[..., Rule]
    arguments: tuple[str, ...]  # the names of those of the formula
    trial: Callable[[], tuple[Any, ...]]


class Op(Primitive, kw_only=True):
    """A primitive with a public function.

    public: takes the inputs by position, and rule, edge and maximize by name.
    has_outside: do the formulas of the rules take y and the bounds, and give the gradient of x outside the range?
    """

    public: Callable[..., Tensor]
    default_rule: str
    samples: tuple[Sample, ...]
    plain_torch: Callable[..., Tensor] | None = None  # the same values by torch alone, if `forward` does more
    takes_maximize: bool = False
    adapter: Adapter | None = None
    has_outside: bool = False
    gradient_to: str = "x"  # the input that the gradient of the rule goes to
    formula_of: str = "x"  # the input whose gradient the formulas of the rules give
    picture: Picture = Picture()


class Call:
    """A primitive with its rule, edge and direction, as the engine runs it. parameters: the keywords of the rule's functions."""

    __slots__ = (
        "_kept_names",
        "_pieces",
        "_pull",
        "_values_in_order",
        "admitted",
        "edge",
        "is_about_range",
        "is_linear",
        "maximize",
        "parameters",
        "primitive",
        "rule",
        "served",
    )

    def __init__(
        self, primitive: Primitive, rule: Rule, parameters: dict[str, object], edge: Edge | None, maximize: bool
    ) -> None:
        self.primitive = primitive
        self.rule = rule
        self.edge = edge
        self.parameters = rule.keywords(
            edge, {k: v.call if isinstance(v, UserFunction) else v for k, v in parameters.items()}
        )
        self.is_linear = rule.is_linear_at(edge)
        self.maximize = maximize and not self.is_linear
        self._pieces: Pieces | None = None
        # Are the inputs x, min and max, and does the row say what passes on both sides?
        self.is_about_range = rule.sides is not None and primitive.inputs == BOUNDED
        self.served: Any = None  # the residuals and kernels that serve the call, as `kernels` remembers them
        self.admitted: set[tuple[object, ...]] = set()  # arguments that have passed the op's checks
        values = [parameters[key] for key in rule.parameters]
        self._values_in_order = [(v.key or v.call) if isinstance(v, UserFunction) else v for v in values]
        self._pull = primitive.through(rule.pull) if primitive.through else rule.pull
        self._kept_names: tuple[str, ...] | None = None  # what `keeps` returns, unless it depends on `wants`
        if primitive.saves == "as torch":
            self._kept_names = primitive.inputs
        elif primitive.saves == "rule" and isinstance(rule.keeps, tuple):
            self._kept_names = rule.keeps

    @property
    def arguments(self) -> dict[str, object]:
        """The rule's parameters in the order of its row; a function by its key."""
        values = [key_of(value) if callable(value) else value for value in self._values_in_order]
        return dict(zip(self.rule.parameters, values))  # noqa: B905  Dynamo on torch 2.8

    @property
    def spec(self) -> tuple[object, ...]:
        """The primitive, rule, edge, maximize and each parameter of the rule, as one flat tuple of constants, which a graph can hold."""
        return self.primitive.name, self.rule.name, self.edge, self.maximize, *self.arguments.values()

    @property
    def label(self) -> str:
        return f"{self.primitive.name}/{self.rule.name}"

    @property
    def pieces(self) -> Pieces | None:
        """The split of grad in every region, if the row says what passes on both sides of a range; else None."""
        if self._pieces is None and self.rule.sides is not None:
            parameters = self.parameters["settings"] if self.rule.is_from_user else self.parameters
            sides = self.rule.sides(**{key: parameters[key] for key in self.rule.parameters})
            self._pieces = pieces_of_sides(sides, "closed" if self.rule.ignores_edge else self.edge, self.maximize)
        return self._pieces

    def find_range(self, inputs: Sequence[Any]) -> RangePieces | None:
        """The bounds of x and the split of grad in each region; None for a rule whose row does not say them."""
        if self.rule.find_range is not None:
            return self.rule.find_range(*inputs[1:])
        if not self.is_about_range:
            return None
        return inputs[1], inputs[2], self._pieces or self.pieces  # type: ignore[return-value]  # such a row has pieces

    @property
    def numbers(self) -> dict[str, float]:
        """The parameters that are numbers: Dynamo may make symbols of them."""
        return {key: value for key, value in self.parameters.items() if isinstance(value, float)}

    def pull(
        self,
        grad: Tensor,
        inputs: tuple[object, ...],
        y: Tensor | None,
        wants: Wants,
        numbers: dict[str, float] | None = None,
    ) -> Gradients:
        """The rule's gradients; with maximize -rule(-grad). numbers: values that replace parameters of the same names."""
        parameters = {**self.parameters, **numbers} if numbers else self.parameters
        if self.rule.compares:
            parameters = {**parameters, "y": y}
        if not self.maximize:
            return self._pull(grad, *inputs, wants=wants, **parameters)
        gradients = self._pull(-grad, *inputs, wants=wants, **parameters)
        return tuple(None if gradient is None else -gradient for gradient in gradients)

    def keeps(self, wants: Wants) -> tuple[str, ...]:
        """The names of the inputs that backward needs."""
        if self._kept_names is not None:
            return self._kept_names
        names = self.rule.inputs_read(wants)
        return self.primitive.inputs if names and self.primitive.saves == "a copy" else names


OPS: dict[str, Op] = {}
PRIMITIVES: dict[str, Primitive] = {}  # the ops, and what `rewrite` runs in place of torch's own functions
_by_spec: dict[tuple[object, ...], Call] = {}
_by_request: dict[tuple[object, ...], Call] = {}
# Two kinds of entries. By the arguments of a public call: how to run it, or False if no kernel serves it. By an entered context: its calls.
prepared: dict[Any, Any] = {}
_MOST_CALLS = 1000  # in each of the three memories; a full memory is emptied, and its calls are made again on demand


Registered = TypeVar("Registered", bound=Primitive)


def register(primitive: Registered) -> Registered:
    """Put an op, or a primitive that no user calls, into the table. Each name is given once."""
    if primitive.name in PRIMITIVES:
        raise ValueError(must(primitive.name, "name", "be new", primitive.name, "Choose another name"))
    PRIMITIVES[primitive.name] = primitive
    if isinstance(primitive, Op):
        OPS[primitive.name] = primitive
    return primitive


def add_rule(op: Op, row: Rule) -> None:
    """Give an op a rule, in the place of any other of that name. Every primitive that shares the op's rules gets it, too."""
    op.rules[row.name] = row  # type: ignore[index]
    forget_calls()


def forget_calls() -> None:
    """Empty the three memories, because the table has changed."""
    _by_request.clear()
    _by_spec.clear()
    prepared.clear()


def remember(calls: dict[Any, Any], key: object, call: object) -> Any:
    if len(calls) >= _MOST_CALLS:
        calls.clear()
    calls[key] = call
    return call


def call_named(spec: tuple[object, ...]) -> Call:
    """The call that `spec` names. It is remembered, but not under a compiler, which must not see the memory change."""
    if is_compiling():
        return split_spec(spec)[0]
    return _by_spec.get(spec) or remember(_by_spec, spec, split_spec(spec)[0])


def split_spec(leaves: tuple[Any, ...]) -> tuple[Call, tuple[Any, ...]]:
    """The call that the first of `leaves` name, and the rest of `leaves`."""
    name, rule_name, edge, maximize, *rest = leaves
    primitive = PRIMITIVES[name]
    row = primitive.rules[rule_name]
    parameters: dict[str, object] = {}
    for key, value in zip(row.parameters, rest):  # noqa: B905  `rest` is longer
        parameters[key] = function_named(value) if isinstance(value, str) else value
    return Call(primitive, row, parameters, edge, maximize), tuple(rest[len(parameters) :])


def make_call(op: Primitive, rule: RuleLike, edge: Edge | None = None, maximize: bool = False) -> Call:
    """The call for what the user asked; raises the errors of an unknown rule, edge or parameter."""
    name, chosen = (rule.name, rule.parameters) if isinstance(rule, RuleObject) else (rule, ())
    row = op.rules.get(name) if isinstance(name, str) else None
    if row is None:
        raise _unknown_rule(op, rule)
    parameters = _defaults(row)
    for key, value in chosen:
        if key not in parameters:
            raise TypeError(must(op.name, f"rule {name!r}", f"take {', '.join(row.parameters) or 'no parameter'}", key))
        check_parameter(name, key, value, row.parameters[key])
        parameters[key] = value
    for key, value in parameters.items():
        if key in row.choices:
            parameters[key] = _find_choice(name, key, value, row.choices[key])
        if value is None:
            remedy = f"Use rules.{name}({key}=...)"
            raise ValueError(must(op.name, "rule", f"come with its {key}", rule, remedy))
    if op.edges and edge not in op.edges:
        raise unknown_name(op.name, "edge", op.edges, edge)
    return Call(op, row, parameters, edge if op.edges else None, maximize)


def _defaults(row: Rule) -> dict[str, object]:
    """The parameters of a rule with their defaults. Under a compiler, numbers are parsed from text, because a number that the compiler
    finds in a table may become an input of the graph.
    """
    if is_compiling():
        return {key: None if text == "None" else float(text) for key, text in row.texts}
    return dict(row.parameters)


def call_for(op: Primitive, rule: RuleLike, edge: Edge | None = None, maximize: bool = False) -> Call:
    """`make_call` with a memory, which is not used under a compiler, because that must not see the memory change."""
    if maximize is not True and maximize is not False:  # the memory would take 1 for True
        raise TypeError(must(op.name, "maximize", "be True or False", maximize))
    if is_compiling():
        return make_call(op, rule, edge, maximize)
    key = (op.name, rule, edge, maximize)
    try:
        call = _by_request.get(key)
    except TypeError:  # the rule or edge cannot be hashed, so it is wrong: `make_call` raises the error
        return make_call(op, rule, edge, maximize)
    return call or _make_and_remember(key, op, rule, edge, maximize)


def _make_and_remember(
    key: tuple[object, ...], op: Primitive, rule: RuleLike, edge: Edge | None, maximize: bool
) -> Call:
    """Make and remember a call. The UserFunction of a rule remembers its own calls, so that they are freed with the user's function."""
    parameters = rule.parameters if isinstance(rule, RuleObject) else ()
    for _, value in parameters:
        if isinstance(value, UserFunction):
            others = tuple(pair for pair in parameters if pair[1] is not value)
            key = (op.name, rule[0], edge, maximize, *others)
            return value.calls.get(key) or remember(value.calls, key, make_call(op, rule, edge, maximize))
    return remember(_by_request, key, make_call(op, rule, edge, maximize))


def rule_named(name: str, /, *values: object, **named: Any) -> RuleObject:
    """A rule object by name, with checked parameters: finite numbers above 0, or one of the rule's choices.

    values: parameters in the order in which the rule lists them. named: parameters by name.
    """
    row = None
    for op in OPS.values():  # not next() over a generator, which Dynamo on torch 2.8 cannot trace
        other = op.rules.get(name)
        if other is not None and (row is None or len(other.parameters) >= len(row.parameters)):
            row = other  # the windows have parameters for sign, and none for jumprelu
    if row is None:
        raise unknown_name("rules", "rule", sorted({n for op in OPS.values() for n in op.rules}), name)
    if len(values) > len(row.parameters):
        raise TypeError(must(name, "parameters", f"be {', '.join(row.parameters) or 'absent'}", values))
    for key, value in zip(row.parameters, values):  # noqa: B905  Dynamo on torch 2.8
        if key in named:
            raise TypeError(must(name, key, "be given once", named[key]))
        named[key] = value
    for key, value in named.items():
        if key not in row.parameters:
            raise TypeError(must(name, "parameters", f"be {', '.join(row.parameters) or 'absent'}", key))
        named[key] = value if isinstance(value, UserFunction) else as_number(value)
        check_parameter(name, key, named[key], row.parameters[key])
        if key in row.choices:
            named[key] = _find_choice(name, key, named[key], row.choices[key])
        elif not isinstance(named[key], UserFunction):
            named[key] = float(named[key])
    return RuleObject(name, tuple(named.items()))


def check_parameter(rule: str, key: str, value: object, default: object) -> None:
    if default is None and isinstance(value, UserFunction):
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(must(rule, key, "be a number", value))
    if is_true(value <= 0) or not is_finite(value):
        raise ValueError(must(rule, key, "be finite and above 0", value, f"The default is {default}"))


def _find_choice(rule: str, key: str, value: object, choices: tuple[int, ...]) -> int:
    """The choice that equals `value`. So a compiler gets a constant and no symbol."""
    for choice in choices:
        if value == choice:
            return choice
    raise ValueError(must(rule, key, f"be {' or '.join(str(choice) for choice in choices)}", value))


def _unknown_rule(op: Primitive, rule: object) -> UnknownNameError:
    name = rule.name if isinstance(rule, RuleObject) else rule
    translation = next((row.name for row in op.rules.values() if name in row.translates.split()), None)
    hint = f"{name!r} is {translation!r} here" if translation else None
    takers = [other for other in OPS.values() if other.rule_set == op.rule_set and name in tuple(other.rules)]
    if takers:
        why = "needs both bounds" if takers[0].rules[name].requires else "is a rule of others"  # type: ignore[index]
        hint = f"{name!r} {why}: use {', '.join(other.name for other in takers)}"
    return unknown_name(op.name, "rule", tuple(op.rules), name, hint or _python_hint(op, name))


def _python_hint(op: Primitive, text: object) -> str | None:
    """For a rule that is written as commands take it, "name(0.2)" or "name/edge": how Python writes it."""
    match = re.fullmatch(r"\s*(\w+)\s*(?:\((.*)\))?\s*(?:/\s*(\w+))?\s*", text) if isinstance(text, str) else None
    if match is None or (row := op.rules.get(match[1])) is None:
        return None
    _, arguments, edge_text = match.groups()
    rule = f"pg.rules.{row.name}({arguments})" if arguments and row.parameters else repr(row.name)
    call = f" in a call of pg.{public_path(op.name)}" if op.name in OPS else ""  # `override` and `convert` take no edge
    edge = next((f"{call} with edge={edge!r}" for edge in op.edges if str(edge) == edge_text), "")
    return f"In Python that is {rule}{edge}"
