"""Every bad call gets our error: op, argument, requirement, what was given, and what to do. bad_calls.txt has the calls."""

import pickle
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import pseudograd as pg
from pseudograd.ops import bounds
from pseudograd.rule import OPS, call_for

from ..choices import folded
from ..kernels.ways import needs_native

X = torch.tensor([0.5, 2.0])
NAMES = {
    "torch": torch,
    "pg": pg,
    "nn": pg.nn,
    "X": X,
    "M": torch.zeros(2, 3),
    "A": torch.ones(2, 3),
    "BOUND": torch.tensor([-0.5, 0.25, 1.0]),
    "NAN": float("nan"),
    "INF": float("inf"),
}
LINES = [
    line
    for line in Path(__file__).with_name("bad_calls.txt").read_text(encoding="utf-8").splitlines()
    if not line.startswith("#")
]


@folded
@pytest.mark.parametrize("line", LINES, ids=lambda line: line.partition("  ->  ")[0])
def test_bad_call(line: str) -> None:
    call, _, expected = line.partition("  ->  ")
    expected = re.sub(r"{rules of (\w+)}", lambda match: ", ".join(sorted(OPS[match[1]].rules)), expected)
    for _ in range(2):  # arguments that passed the checks are remembered; these must fail again
        with pytest.raises((ValueError, TypeError)) as caught:
            eval(call, dict(NAMES))
        assert f"{caught.type.__name__}: {caught.value}" == expected
        assert expected.endswith((".", "?"))


@folded
@pytest.mark.parametrize("name", sorted(set(OPS) - {"policy_loss", "replace_grad"}))  # these have no x
def test_x_is_a_real_tensor(name: str) -> None:
    _, *others = OPS[name].samples[0].build(torch.float32)
    for x, expected in (
        ([1.0], "a tensor, got [1.0]. Wrap it in torch.tensor(...)."),
        (None, "a tensor, got None. Wrap it in torch.tensor(...)."),
        (X + 0j, "real, got torch.complex64. Complex numbers have no order; call x.real first."),
    ):
        with pytest.raises(TypeError) as caught:
            OPS[name].public(x, *others)
        assert str(caught.value) == f"{name}: x must be {expected}"


@folded
@pytest.mark.parametrize("name", OPS)
def test_names_of_the_field_are_translated(name: str) -> None:
    op = OPS[name]
    for rule in op.rules.values():
        for other in rule.translates.split():
            with pytest.raises(
                ValueError, match=f"^{name}: rule must be one of .*, got '{other}'. '{other}' is '"
            ) as caught:
                call_for(op, other, op.default_edge)
            first = next(row.name for row in op.rules.values() if other in row.translates.split())
            assert str(caught.value).endswith(f"'{other}' is '{first}' here.")


def test_remembered_arguments_answer_for_no_others() -> None:
    """The checks remember number bounds by value and dtype, and calls by their options, where 1 == True."""
    pg.clamp(X, -1e6, 1)
    with pytest.raises(ValueError, match="must fit"):
        pg.clamp(X.half(), -1e6, 1)
    for position in range(1100):  # more than are remembered
        pg.clamp(X, position - 1100, 1)
    with pytest.raises(ValueError, match="must not exceed"):
        pg.clamp(X, 3, 1)
    assert len(call_for(OPS["clamp"], "inward", "closed").admitted) <= 1001
    pg.clamp(X, 0, 1, maximize=True)
    with pytest.raises(TypeError, match="maximize must be True or False, got 1"):
        pg.clamp(X, 0, 1, maximize=1)


def test_an_unknown_name_is_a_key_error_too_and_survives_a_process_boundary() -> None:
    """An error can be pickled, as worker processes send it."""
    with pytest.raises(KeyError, match="rule must be one of") as caught:
        pg.clamp(X, 0, 1, rule="inwards")
    assert isinstance(caught.value, ValueError)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), str(again)) == (type(caught.value), str(caught.value))


def test_number_bounds_that_passed_are_not_checked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks of numbers are not repeated, but those of another dtype, a tensor or a parameter are."""
    checks: list[object] = []
    right = bounds._check_all
    monkeypatch.setattr(bounds, "_check_all", lambda *arguments: (checks.append(arguments), right(*arguments))[1])
    for x, low, high, calls, expected in (
        (X, -0.123, 0.456, 3, 1),
        (X.double(), -0.123, 0.456, 1, 2),
        (X, torch.tensor(-0.123), 0.456, 2, 4),
        (X, 0.123, 0.123, 2, 5),
    ):
        for _ in range(calls):
            pg.clamp(x, low, high)
        assert len(checks) == expected


@needs_native
@pytest.mark.parametrize(
    "f",
    [lambda x: pg.clamp(x, -0.375, 0.5625), lambda x: pg.lower_bound(x, -0.4375), lambda x: pg.upper_bound(x, 0.3125)],
    ids=["clamp", "lower_bound", "upper_bound"],
)
def test_a_second_call_takes_the_short_way(
    f: Callable[[torch.Tensor], torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the kernels in C, a call of numbers that was made before is one look-up: neither checked nor prepared again."""
    x = X.clone().requires_grad_()
    first = f(x)

    def refuse(*arguments: object) -> None:
        raise AssertionError("the long way")

    monkeypatch.setattr(bounds, "_run_unprepared", refuse)
    assert torch.equal(f(x), first)
    with pytest.raises(AssertionError, match="the long way"):
        f(x.double())


def test_infinite_equal_and_crossed_tensor_bounds_are_fine() -> None:
    """Comparing tensors would force a device sync; y = max, as in torch."""
    assert torch.equal(pg.clamp(X, -torch.inf, torch.inf), X)
    assert pg.clamp(X, 1, 1).tolist() == [1, 1]
    assert pg.clamp(X.half(), -65504, torch.inf).tolist() == X.tolist()
    assert pg.clamp(X, True, 2).tolist() == [1, 2]
    assert pg.clamp(X, torch.tensor(1.0), torch.tensor(-1.0)).tolist() == [-1, -1]


WITHOUT_A_VALUE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "scale_grad": lambda x: pg.scale_grad(x, 0.5),
    "reverse_grad": pg.reverse_grad,
    "clip_grad": lambda x: pg.clip_grad(x, 0.5),
}


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_integers_get_torch_s_forward(dtype: torch.dtype) -> None:
    x = torch.tensor([3, 0, 7]).to(dtype)
    expected = {name: getattr(torch, name) for name in ("round", "floor", "ceil", "trunc", "sign", "abs")}
    expected |= {
        "heaviside": lambda x: torch.heaviside(x, torch.ones_like(x)),
        **dict.fromkeys(WITHOUT_A_VALUE, torch.clone),
    }
    for name, function in expected.items():
        y = (WITHOUT_A_VALUE.get(name) or getattr(pg, name))(x)
        assert torch.equal(y, function(x)), name
        assert (y.dtype, y.requires_grad) == (dtype, False), name


def test_a_zero_point_that_is_no_whole_number_is_rounded() -> None:
    """A float zero_point is rounded, as a tensor is; otherwise the grid would have no 0."""
    x = torch.linspace(-3, 3, 25)
    for value in (0.5, 1.5, -0.75, 2.0):
        number = pg.fake_quantize(x, 0.25, value, -4, 3)
        assert torch.equal(number, pg.fake_quantize(x, 0.25, torch.tensor(value), -4, 3))
        assert torch.equal(number, pg.fake_quantize(x, 0.25, round(value), -4, 3))
