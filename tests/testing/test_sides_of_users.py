"""A user's rule with its sides in the row keeps bits and runs in the kernels: values against its own formula, and bytes."""

from typing import Any

import pytest
import torch
from torch import Tensor

import pseudograd as pg
from pseudograd.kernels import bits, native
from pseudograd.look.rule_table import what_is_saved
from pseudograd.rule import OPS
from pseudograd.testing.contract import values
from pseudograd.testing.contract.cases import Case, cases_of
from pseudograd.testing.contract.rule import checks_of
from pseudograd.testing.measure.gradients import saved_by
from pseudograd.testing.measure.inputs import DTYPES

from ..choices import folded, slow_but


def tilted(grad: Tensor, x: Tensor, y: Tensor, min: Any, max: Any, *, out: float = 0.3) -> Tensor:
    """A share of what leads outward, and a quarter more of what leads back; above only the sign of x - y."""
    leads_out = out * grad
    below = torch.where(grad > 0, leads_out, torch.where(grad < 0, 1.25 * grad, grad))
    return torch.where(x > y, 1.0, below)


@pytest.fixture(autouse=True)
def _registered(table_as_it_was: None) -> None:
    pg.register_rule("clamp", formula="tilted", source="a test", is_linear=False, sides=lambda out: ((out, 1.25), 1.0))(
        tilted
    )


RULE = "tilted"


@folded
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("edge", "planes"), [("closed", 2), ("open", 2), ("half", 2), ("inward", None)])
def test_it_keeps_two_bits(edge: str, planes: int | None, dtype: torch.dtype) -> None:
    """At a projected edge there are four cases beside the one inside: x is kept."""
    if "cpu" not in bits.devices:
        pytest.skip("without a kernel for codes on CPU none is kept")
    x = torch.zeros(8192, dtype=dtype)
    saved = saved_by(lambda x: pg.clamp(x, -1, 1, rule=RULE, edge=edge), (x.requires_grad_(),))
    assert sum(t.nbytes for t in saved) == (x.nbytes if planes is None else 8192 * planes // 8)
    beside_one_bound = saved_by(lambda x: pg.lower_bound(x, -1, rule=RULE), (x,))
    assert sum(t.nbytes for t in beside_one_bound) == 1024
    assert what_is_saved(OPS["clamp"], OPS["clamp"].rules[RULE]) == "2 bits or x"
    assert what_is_saved(OPS["lower_bound"], OPS["lower_bound"].rules[RULE]) == "1 bit or x"


@pytest.mark.skipif(native.operators is None, reason="needs the kernels in C")
def test_it_runs_in_c(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    for name in ("encode", "pull_code", "pull_x"):
        own = getattr(native.operators, name)
        monkeypatch.setattr(
            native.operators, name, lambda *arguments, own=own, name=name: (ran.append(name), own(*arguments))[1]
        )
    for count in (5000, 10):
        x = torch.linspace(-2, 2, count).requires_grad_()
        pg.clamp(x, -1.25, 1.25, rule=RULE).sum().backward()
    assert ran == ["encode", "pull_code", "pull_x"]


@pytest.mark.parametrize("edge", slow_but(["half"], OPS["lower_bound"].edges))
def test_the_contract(edge: str) -> None:
    values.check_saved(next(case for case in cases_of(OPS["clamp"]) if case.rule.name == RULE))
    op = OPS["lower_bound"]
    for _, check in checks_of(Case(op, op.rules[RULE], (("out", 0.7),), edge)):
        check()


@pytest.mark.parametrize(
    ("sides", "text"),
    [
        (lambda out: ((out, 1.0), 1.0), "sides below must be what the function gives, got (0.3, 1.0). other gives"),
        (lambda out: ((out, 1.25), -1.0), "sides above must be what the function gives, got -1.0. other gives"),
        (
            lambda out: (out, 1.25, 1.0),
            "sides must return two sides, got 'two sides, below and above, not (0.3, 1.25, 1.0)'.",
        ),
        (lambda out: ((out,), 1.0), "sides must return two sides, got 'a pair of factors"),
        (lambda: ((1.0, 1.0), 1.0), "sides must return two sides, got"),
        (lambda out: ((out, float("inf")), 1.0), "sides must return two sides, got 'finite numbers, not (0.3, inf)'."),
    ],
)
def test_sides_that_say_something_else_are_an_error(sides: Any, text: str) -> None:
    def other(grad: Tensor, x: Tensor, y: Tensor, min: Any, max: Any, *, out: float = 0.3) -> Tensor:
        return tilted(grad, x, y, min, max, out=out)

    with pytest.raises(ValueError, match="register_rule: sides") as raised:
        pg.register_rule("clamp", formula="f", source="s", is_linear=False, sides=sides)(other)
    assert text in str(raised.value)
    assert "other" not in OPS["clamp"].rules


def test_sides_are_those_of_a_range() -> None:
    def whole(grad: Tensor, x: Tensor) -> Tensor:
        return grad

    with pytest.raises(ValueError, match="register_rule: sides must be left out for round, got"):
        pg.register_rule("round", formula="f", source="s", is_linear=True, sides=lambda: (1.0, 1.0))(whole)
