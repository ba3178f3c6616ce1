"""Every row of the table under every rule of its switches, as a user's program calls it: it never raises where torch does not.

Values are torch's, gradients those of the primitive that stands in, or torch's own where the row lacks the rule.
"""

import contextlib
import itertools
import pickle
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import pseudograd as pg
from pseudograd import formula, rules
from pseudograd.errors import UnknownNameError
from pseudograd.rewrite.context import Rewriting
from pseudograd.rewrite.edges import pinned_edge
from pseudograd.rewrite.mode import Replacement
from pseudograd.rewrite.stand_ins import why_not
from pseudograd.rule import OPS, PRIMITIVES, RuleLike
from pseudograd.torch_table import forms as torch_forms
from pseudograd.torch_table.eras import ERAS
from pseudograd.torch_table.forms import FORMS, SPELLINGS, SWITCHES
from pseudograd.torch_table.records import EDGE, MISSING, Form, Spelling

from ..choices import folded

# Outside, at, between and halfway the bounds and steps below.
NUMBERS = [-7.0, -3.0, -2.5, -1.0, -0.75, -0.3, 0.0, 0.3, 0.5, 1.0, 1.5, 6.0]
# A few values for each argument, by its name. A new name needs a line here.
ARGUMENTS: dict[str, Sequence[Callable[[], Any]]] = {
    "input": [lambda: torch.tensor(NUMBERS)],
    "min": [lambda: -1.0, lambda: torch.full((12,), -1.0).requires_grad_()],
    "max": [lambda: 1.0, lambda: torch.full((12,), 1.0).requires_grad_()],
    "other": [lambda: torch.full((12,), 0.5), lambda: torch.full((12,), 0.5).requires_grad_()],
    "scalar": [lambda: 0.5, lambda: [0.5]],
    "min_val": [lambda: -1.0],
    "max_val": [lambda: 1.0],
    "approximate": [lambda: "none", lambda: "tanh"],
    "negative_slope": [lambda: 0.01],
    "decimals": [lambda: 0, lambda: 1],
    "scale": [lambda: 0.5, lambda: torch.tensor(0.5), lambda: torch.full((12,), 0.5)],
    "zero_point": [lambda: 0, lambda: torch.tensor(0, dtype=torch.int32), lambda: torch.zeros(12, dtype=torch.int32)],
    "axis": [lambda: 0],
    "quant_min": [lambda: -4],
    "quant_max": [lambda: 3],
    "input1": [lambda: torch.tensor(NUMBERS)],
    "input2": [lambda: torch.zeros(12).requires_grad_()],
    "target": [lambda: torch.ones(12)],
    "margin": [lambda: 0.0, lambda: 1.0],
    "size_average": [lambda: None],
    "reduce": [lambda: None],
    "reduction": [lambda: "sum", lambda: 0],
}


StandsIn = Callable[[Spelling, Any, list[Any]], Any]


class Result(NamedTuple):
    values: list[Tensor]
    gradients: list[Tensor | None]


class Way(NamedTuple):
    """A function of torch with its arguments; those behind the first by position or by name."""

    name: str
    spelling: Spelling
    function: Callable[..., Any]
    build: Callable[[], list[Any]]
    is_by_name: bool

    def call(self, x: Any, others: list[Any]) -> Any:
        if self.is_by_name:
            return self.function(x, **dict(zip([*self.spelling.form.defaults][1:], others, strict=False)))
        return self.function(x, *others)

    def run(self, stands_in: StandsIn | None = None) -> Result:
        """The values, and the gradients of every tensor that learns; x learns, as in a program, and is not a leaf.

        stands_in(spelling, function, arguments) runs in the place of each function that a row is about.
        """
        arguments, form = self.build(), self.spelling.form
        leaves = [argument for argument in arguments if isinstance(argument, Tensor) and argument.requires_grad]
        leaf = arguments[0].clone().requires_grad_()
        x, others = leaf * 1, arguments[1:]
        if stands_in is None:
            result = self.call([x] if form.each else x, others)
            results = [x] if form.each and result is None else list(result) if form.each else [result]
        elif form.write is not None:
            values = self.spelling.values((x, *others), {})
            assert values is not None
            run = lambda function, *inner: stands_in(SPELLINGS[function], function, list(inner))  # noqa: E731
            results = [form.write(run, *values)]
        elif form.each:
            method = getattr(torch.Tensor, form.each)
            ((_, *bounds),) = self.spelling.read_each(([x], *others), {}) or [()]
            results = [stands_in(SPELLINGS[method], method, [x, *bounds])]
        else:
            results = [stands_in(self.spelling, lambda x, *others: self.call(x, list(others)), [x, *others])]
        weights = [(torch.arange(result.numel()) % 3 - 1.25).reshape(result.shape) for result in results]
        gradients = torch.autograd.grad(results, [leaf, *leaves], weights, allow_unused=True)
        return Result([result.detach() for result in results], list(gradients))


def ways_of(form: Form) -> list[tuple[Way, Result]]:
    """Every spelling with all choices of arguments that torch takes, at least one of each, and what torch gives."""
    every_way: list[tuple[Way, Result]] = []
    for function, spelling in SPELLINGS.items():
        if spelling.form is not form:
            continue
        ways = [
            Way(f"{function} {number}", spelling, function, partial(_built, choice), is_by_name)
            for is_by_name in (False, True)
            for count in range([*form.defaults.values()].count(MISSING), len(form.defaults) + 1)
            for number, choice in enumerate(itertools.product(*(ARGUMENTS[name] for name in [*form.defaults][:count])))
            if count > 1 or not is_by_name
        ]
        outcomes = [(way, _outcome(way)) for way in ways]
        taken = [(way, outcome) for way, outcome in outcomes if isinstance(outcome, Result)]
        has_derivative = not any(isinstance(outcome, str) and "derivative" in outcome for _, outcome in outcomes)
        assert taken or not has_derivative, f"torch takes none of the arguments for {function}: {form.defaults}"
        every_way += taken
    return every_way


def _built(choice: tuple[Callable[[], Any], ...]) -> list[Any]:
    return [build() for build in choice]


def _outcome(way: Way) -> Result | str:
    """Torch's own results, or the text of its error."""
    try:
        return way.run()
    except (RuntimeError, TypeError, ValueError) as error:
        return str(error)


def rules_of(switch: str) -> Iterator[RuleLike]:
    """Each rule, and one rule with parameters other than its defaults."""
    for name, row in OPS[SWITCHES[switch]].rules.items():
        if name == "custom":
            yield rules.custom(_bell)
            continue
        yield name
        if row.parameters and not row.choices:
            yield getattr(rules, name)(**{key: value / 2 for key, value in row.parameters.items()})


def _bell(x: Tensor) -> Tensor:
    return torch.exp(-x * x)


def contexts_of(switch: str) -> Iterator[tuple[Rewriting, Replacement]]:
    """A context that a user enters, and the rule that it asks for."""
    if switch == EDGE:
        entered = [pg.pin_edge(edge) for edge in ("closed", "open", "half", *ERAS)]
    else:
        entered = [pg.override(**{switch: rule}) for rule in rules_of(switch)]
    for context in entered:
        yield context, context.replacements[switch]


def run_primitives(replacement: Replacement) -> StandsIn:
    """Torch's values, with the gradients by the formula of the primitive that stands in; torch's own if none does."""

    def stands_in(spelling: Spelling, function: Any, arguments: list[Any]) -> Any:
        read = spelling.read(tuple(arguments), {})
        plain = function if not spelling.in_place else lambda x, *others: function(x * 1, *others)
        name = None if read is None else pinned_edge(*read[:2]) if replacement.is_pin else read.primitive
        call = None if name is None else replacement.call(spelling.form, name)
        if read is None or call is None:
            return plain(*arguments)
        given = PRIMITIVES[name or ""].name_inputs(read.inputs)
        inputs = tuple(given[one] for one in call.primitive.inputs)
        if why_not(call, inputs, read.in_place) is not None:
            return plain(*arguments)
        return ByFormula.apply(call, lambda: plain(*arguments), *inputs)

    return stands_in


class ByFormula(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: Any, value: Callable[[], Tensor], *inputs: Any) -> Tensor:
        ctx.call, ctx.inputs = call, [value.detach() if isinstance(value, Tensor) else value for value in inputs]
        return value().detach()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return None, None, *formula.pull(grad, ctx.inputs, ctx.needs_input_grad[2:], ctx.call)


def check(form: Form, switch: str, has_all: bool = False) -> int:
    """One function of the row under every rule of the switch, some or all other calls under one of them; returns how many calls."""
    calls, ways = 0, ways_of(form)
    step = 1 if has_all else len(ways) // 16 | 1  # an odd step meets every choice of each argument
    for at, (way, plain) in enumerate(ways[::step]):
        contexts = list(contexts_of(switch))
        for context, replacement in contexts if at == 0 else [contexts[at % len(contexts)]]:
            with context:
                result = way.run()
            _assert_same(f"{way.name} under {context}", result, plain, way.run(run_primitives(replacement)))
            calls += 1
    return calls


def _assert_same(label: str, result: Result, plain: Result, wanted: Result) -> None:
    """Check that the values are torch's and the gradients are the wanted ones."""
    assert all(map(torch.equal, result.values, plain.values)), label
    for mine, theirs in zip(result.gradients, wanted.gradients, strict=True):
        assert (mine is None) == (theirs is None), label
        if mine is not None:
            near = {"rtol": 2e-6, "atol": 1e-7, "equal_nan": True}
            torch.testing.assert_close(mine, theirs, msg=lambda text: f"{label}: {text}", **near)


# The other functions that hide one of the table take more than lists of numbers: test_written_out.py calls them with torch's own samples.
_WRITTEN_OUT = ("margin_ranking_loss", "hinge_embedding_loss")
ROWS = [(form, switch) for form in FORMS if not form.hides or form.names[0] in _WRITTEN_OUT for switch in form.switches]


@folded
@pytest.mark.parametrize(
    ("form", "switch"), ROWS, ids=[f"{form.names[0]}-{at}-{switch}" for at, (form, switch) in enumerate(ROWS)]
)
def test_every_spelling_under_every_rule(form: Form, switch: str, pytestconfig: pytest.Config) -> None:
    assert check(form, switch, pytestconfig.getoption("--slow")) > 0


@pytest.mark.parametrize("kind", torch_forms.MODULES, ids=lambda kind: kind.__name__)
def test_every_module_under_every_rule(kind: type[torch.nn.Module]) -> None:
    """A module is rewritten under override as its function is. convert gives it the same gradient, if it takes the rule."""
    form = torch_forms.MODULES[kind]
    x = torch.tensor(NUMBERS, requires_grad=True)
    grad = torch.arange(12) % 3 - 1.25
    for switch in form.switches:
        for rule in rules_of(switch):
            with pg.override(**{switch: rule}):
                y = kind()(x)
                (wanted,) = torch.autograd.grad(y, x, grad)
            assert torch.equal(y, kind()(x))
            model = torch.nn.Sequential(kind())
            with contextlib.suppress(UnknownNameError):
                pg.convert(model, {kind: rule})
            if type(model[0]) is kind:
                continue
            assert torch.equal(model(x), y)
            (converted,) = torch.autograd.grad(model(x), x, grad)
            assert torch.equal(converted, wanted), (switch, rule)


# --- rows that come later ---------------------------------------------------------------------------------------------


@pytest.fixture
def added() -> Iterator[Callable[[Form], Form]]:
    forms: list[Form] = []

    def add(form: Form) -> Form:
        forms.append(torch_forms.add(form))
        return form

    yield add
    for form in forms:
        torch_forms.take_out(form)


def test_a_row_whose_edge_nobody_measured_is_torchs_own_under_a_pin(added: Callable[[Form], Form]) -> None:
    form = added(Form("frac", switches=(EDGE,), arrange=lambda x: ("floor", (x,)), nodes=("Frac",)))
    assert check(form, EDGE) > 0
    with pg.pin_edge("half") as pin:
        torch.frac(torch.tensor([0.3], requires_grad=True))
    assert [site.why for site in pin.report().missed] == ["floor has no pinned edge"]


def test_a_row_with_a_module_is_all_that_convert_needs(added: Callable[[Form], Form]) -> None:
    added(Form("floor", switches=("round",), owners=(), arrange=lambda x: ("floor", (x,)), modules=(Floor,)))
    model = torch.nn.Sequential(Floor())
    x = torch.tensor([0.3, 1.7], requires_grad=True)
    with pg.convert(model, "identity") as done:
        assert repr(done) == "Conversion(1 module: 0 (Floor))"
        assert repr(model[0]) == "Floor(rule=identity)"
        y = pickle.loads(pickle.dumps(model))(x)
        assert y.tolist() == [0.0, 1.0]
        assert torch.autograd.grad(y.sum(), x)[0].tolist() == [1.0, 1.0]
    assert torch.autograd.grad(model(x).sum(), x)[0].tolist() == [0.0, 0.0]
    with pytest.raises(ValueError, match=r"^floor: rule must be one of identity, zero, got 'trust'"):
        pg.convert(model, {Floor: "trust"})


class Floor(torch.nn.Module):
    def forward(self, input: Tensor) -> Tensor:
        return torch.floor(input)
