"""Every bad call gets our error: op, argument, requirement, what was given, and what to do."""

import pickle
from collections.abc import Callable

import pytest
import torch

import pseudograd as pg
from pseudograd.ops import bounds
from pseudograd.rule import OPS, call_for

from ..kernels.ways import needs_native

RULES = ", ".join(sorted(OPS["clamp"].rules))

X = torch.tensor([0.5, 2.0])
NAN = float("nan")

CASES: dict[str, tuple[Callable[[], object], type[Exception], tuple[str, ...]]] = {
    "no bound": (
        lambda: pg.clamp(X),
        ValueError,
        ("clamp: one of min and max must be given", "got None for both", "Give at least one"),
    ),
    "no bound of clamp_": (lambda: pg.clamp_(X.clone()), ValueError, ("clamp_: one of min and max",)),
    "no bound of hardtanh": (
        lambda: pg.hardtanh(X, None, None),
        TypeError,
        ("hardtanh: min_val must be a number, got None", "Use clamp"),
    ),
    "tensor bound of hardtanh": (
        lambda: pg.hardtanh(X, -1, X),
        TypeError,
        ("hardtanh: max_val must be a number, got a Tensor",),
    ),
    "no lower bound": (
        lambda: pg.lower_bound(X, None),
        ValueError,
        ("lower_bound: bound must be a number or a tensor, got None",),
    ),
    "no upper bound": (
        lambda: pg.upper_bound(X, None),
        ValueError,
        ("upper_bound: bound must be a number or a tensor, got None",),
    ),
    "min > max": (
        lambda: pg.clamp(X, 1.0, -1.0),
        ValueError,
        ("clamp: min must not exceed max", "got min=1.0 and max=-1.0", "Swap them or drop one."),
    ),
    "min > max of hardtanh": (
        lambda: pg.hardtanh(X, 1, -1),
        ValueError,
        ("hardtanh: min_val must not exceed max_val", "min_val=1", "max_val=-1"),
    ),
    "NaN min": (lambda: pg.clamp(X, NAN, 1), ValueError, ("clamp: min must not be NaN, got nan", "Use None")),
    "NaN max": (lambda: pg.clamp(X, 0, NAN), ValueError, ("clamp: max must not be NaN",)),
    "NaN bound": (lambda: pg.lower_bound(X, NAN), ValueError, ("lower_bound: bound must not be NaN",)),
    "NaN upper": (lambda: pg.upper_bound(X, NAN), ValueError, ("upper_bound: bound must not be NaN",)),
    "too large for the dtype": (
        lambda: pg.clamp(X.half(), -1e6, 1),
        ValueError,
        ("clamp: min must fit torch.float16, got -1000000.0", "wider dtype"),
    ),
    "no number": (lambda: pg.clamp(X, "0", 1), TypeError, ("clamp: min must be a number, a tensor or None, got '0'",)),
    "complex number": (
        lambda: pg.clamp(X, 0, 1j),
        TypeError,
        ("clamp: max must be a number, a tensor or None, got 1j",),
    ),
    "complex x": (
        lambda: pg.clamp(X + 0j, 0, 1),
        TypeError,
        ("clamp: x must be real, got torch.complex64", "call x.real first"),
    ),
    "complex bound": (lambda: pg.clamp(X, X + 0j), TypeError, ("clamp: min must be real",)),
    "no tensor": (lambda: pg.clamp([1.0], 0, 1), TypeError, ("clamp: x must be a tensor, got [1.0]", "torch.tensor")),
    "no tensor of relu": (lambda: pg.relu(1.0), TypeError, ("relu: x must be a tensor, got 1.0",)),
    "shape": (
        lambda: pg.clamp(X, torch.zeros(3)),
        ValueError,
        ("clamp: min must broadcast with x of shape (2,), got (3,)", "Reshape or expand"),
    ),
    "shape of max": (lambda: pg.clamp(X, 0, torch.zeros(2, 3)), ValueError, ("clamp: max must broadcast with x",)),
    "larger bound in place": (
        lambda: pg.clamp_(X.clone(), torch.zeros(3, 2)),
        ValueError,
        ("clamp_: min must broadcast to x of shape (2,), got (3, 2)",),
    ),
    "longer bound in place": (
        lambda: pg.clamp_(X[:1].clone(), 0, torch.ones(2)),
        ValueError,
        ("clamp_: max must broadcast to x of shape (1,)",),
    ),
    "device": (
        lambda: pg.clamp(X, torch.zeros(2, device="meta")),
        ValueError,
        ("clamp: min must be on cpu, the device of x, got 'meta'", "Call .to('cpu') first"),
    ),
    "device of a scalar that is elsewhere": (
        lambda: pg.clamp(X, torch.zeros((), device="meta")),
        ValueError,
        ("clamp: min must be on cpu, the device of x, got 'meta'",),
    ),
    "device of a vector from the cpu": (
        lambda: pg.clamp(X.to("meta"), max=torch.zeros(2)),
        ValueError,
        ("clamp: max must be on meta, the device of x, got 'cpu'", "Call .to('meta') first"),
    ),
    "unknown rule": (
        lambda: pg.clamp(X, 0, 1, rule="inwards"),
        ValueError,
        (
            f"clamp: rule must be one of {RULES}",
            "got 'inwards'",
            "Did you mean 'inward'?",
        ),
    ),
    "unknown rule is a KeyError too": (lambda: pg.clamp(X, 0, 1, rule="inwards"), KeyError, ("rule must be one of",)),
    "no name": (lambda: pg.clamp(X, 0, 1, rule=None), ValueError, ("clamp: rule must be one of", "got None")),
    "unhashable rule": (
        lambda: pg.clamp(X, 0, 1, rule=["zero"]),
        ValueError,
        ("clamp: rule must be one of", "got ['zero']"),
    ),
    "unknown edge": (
        lambda: pg.clamp(X, 0, 1, edge="close"),
        ValueError,
        ("clamp: edge must be one of closed, half, inward, open, got 'close'", "Did you mean 'closed'?"),
    ),
    "no edge": (lambda: pg.clamp(X, 0, 1, edge=None), ValueError, ("clamp: edge must be one of", "got None")),
    "maximize": (
        lambda: pg.clamp(X, 0, 1, rule="sign", maximize="yes"),
        TypeError,
        ("clamp: maximize must be True or False, got 'yes'",),
    ),
    "elastic with one bound": (
        lambda: pg.clamp(X, min=0, rule="elastic"),
        ValueError,
        ("clamp: rule must be one that works with a single bound, got 'elastic'", "max - min", "rule='inward'"),
    ),
    "inverting with one bound": (
        lambda: pg.clamp(X, max=0, rule="inverting"),
        ValueError,
        ("single bound, got 'inverting'",),
    ),
    **{
        f"{rule} {op}": (
            lambda call=call, rule=rule: call(rule),
            ValueError,
            (
                f"{op}: rule must be one of identity, inward, leaky, leaky_inward, sign, zero, got '{rule}'.",
                f"'{rule}' needs both bounds: use clamp, relu6, hardtanh.",
            ),
        )
        for op, call in {
            "relu": lambda rule: pg.relu(X, rule=rule),
            "lower_bound": lambda rule: pg.lower_bound(X, 0, rule=getattr(pg.rules, rule)()),
            "upper_bound": lambda rule: pg.upper_bound(X, torch.zeros(()), rule=rule),
        }.items()
        for rule in ("elastic", "inverting")
    },
    "unhashable edge": (
        lambda: pg.clamp(X, 0, 1, edge=["closed"]),
        ValueError,
        ("clamp: edge must be one of closed, half, inward, open, got ['closed']",),
    ),
    "unhashable rule and edge": (lambda: pg.round(X, rule=["zero"]), ValueError, ("round: rule must be one of",)),
    "unhashable slope": (lambda: pg.abs(X, edge=[1]), ValueError, ("abs: edge must be one of -1, 0, 1, got [1]",)),
    "parameter 0": (
        lambda: pg.rules.leaky(0.0),
        ValueError,
        ("leaky: slope must be finite and above 0, got 0.0", "The default is 0.1"),
    ),
    "negative parameter": (
        lambda: pg.rules.elastic(-1),
        ValueError,
        ("elastic: width must be finite and above 0, got -1",),
    ),
    "infinite parameter": (lambda: pg.rules.elastic(width=torch.inf), ValueError, ("finite and above 0, got inf",)),
    "NaN parameter": (lambda: pg.rules.leaky(NAN), ValueError, ("finite and above 0, got nan",)),
    "parameter of the wrong kind": (
        lambda: pg.rules.leaky("0.1"),
        TypeError,
        ("leaky: slope must be a number, got '0.1'",),
    ),
    "boolean parameter": (lambda: pg.rules.leaky(True), TypeError, ("leaky: slope must be a number, got True",)),
    "parameter of another rule": (
        lambda: pg.rules.inward(slope=0.1),
        TypeError,
        ("inward: parameters must be absent, got 'slope'",),
    ),
    "x_forward no tensor": (
        lambda: pg.replace_grad(1.0, X),
        TypeError,
        ("replace_grad: x_forward must be a tensor, got 1.0",),
    ),
    "x_backward no tensor": (
        lambda: pg.replace_grad(X, None),
        TypeError,
        ("replace_grad: x_backward must be a tensor, got None",),
    ),
    "integer x_forward": (
        lambda: pg.replace_grad(X.long(), X),
        TypeError,
        ("replace_grad: x_forward must be floating point, got torch.int64", "Integers carry no gradient"),
    ),
    "integer x_backward": (
        lambda: pg.replace_grad(X, X.long()),
        TypeError,
        ("replace_grad: x_backward must be floating point, got torch.int64",),
    ),
    "real and complex": (
        lambda: pg.replace_grad(X, X + 0j),
        TypeError,
        ("replace_grad: x_backward must be as torch.float32, real or complex, got torch.complex64",),
    ),
    "shape of x_backward": (
        lambda: pg.replace_grad(torch.zeros(5, 4), torch.zeros(5, 3)),
        ValueError,
        ("replace_grad: x_backward must broadcast to x_forward of shape (5, 4), got (5, 3)",),
    ),
    "larger x_backward": (
        lambda: pg.replace_grad(X, torch.zeros(1, 2)),
        ValueError,
        ("replace_grad: x_backward must broadcast to",),
    ),
    "x_backward elsewhere": (
        lambda: pg.replace_grad(X, torch.zeros(2, device="meta")),
        ValueError,
        ("replace_grad: x_backward must be on cpu, the device of x_forward",),
    ),
    "hard is no function": (
        lambda: pg.straight_through(1),
        TypeError,
        ("straight_through: hard must be a function, got 1",),
    ),
    "soft is no function": (
        lambda: pg.straight_through(torch.sign, 1),
        TypeError,
        ("straight_through: soft must be a function, got 1",),
    ),
    "backward is no function": (
        lambda: pg.surrogate(backward=None),
        TypeError,
        ("surrogate: backward must be a function, got None",),
    ),
    "gradient of integers": (
        lambda: pg.gradient(torch.sin, torch.arange(3)),
        TypeError,
        ("gradient: x must be a floating-point tensor", "call x.float() first"),
    ),
    "gradient of a number": (
        lambda: pg.gradient(torch.sin, 1.0),
        TypeError,
        ("gradient: x must be a floating-point tensor, got 1.0",),
    ),
    "no gradient in integers": (
        lambda: pg.gradient(lambda x: x.long(), X),
        TypeError,
        ("gradient: f must return a floating-point tensor",),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_bad_call(name: str) -> None:
    call, kind, parts = CASES[name]
    for _ in range(2):  # what passed the checks is remembered; what did not must fail again
        with pytest.raises(kind) as caught:
            call()
        text = str(caught.value)
        for part in parts:
            assert part in text, text
        assert text.endswith((".", "?"))


@pytest.mark.parametrize(
    ("field_name", "ours"),
    [
        ("ste", "identity"),
        ("straight_through", "identity"),
        ("true", "zero"),
        ("disconnected", "zero"),
        ("identity_if_towards", "inward"),
        ("clipped_ste", "zero"),
        ("clamp_with_grad", "inward"),
    ],
)
def test_names_of_the_field_are_translated(field_name: str, ours: str) -> None:
    with pytest.raises(ValueError, match=f"'{field_name}' is '{ours}' here"):
        pg.clamp(X, 0, 1, rule=field_name)


def test_a_bad_bound_fails_after_a_good_one_was_remembered() -> None:
    """The checks remember number bounds by value and dtype."""
    pg.clamp(X, -1e6, 1)
    with pytest.raises(ValueError, match="must fit"):
        pg.clamp(X.half(), -1e6, 1)
    for position in range(1100):  # more than are remembered
        pg.clamp(X, position - 1100, 1)
    with pytest.raises(ValueError, match="must not exceed"):
        pg.clamp(X, 3, 1)
    assert len(call_for(OPS["clamp"], "inward", "closed").admitted) <= 1001


def test_an_error_survives_a_process_boundary() -> None:
    """Workers send their errors pickled."""
    with pytest.raises(ValueError, match="rule must be one of") as caught:
        pg.clamp(X, 0, 1, rule="inwards")
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is type(caught.value)
    assert str(again) == str(caught.value)


def test_number_bounds_that_passed_are_not_checked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checking costs as much as a small clamp; another dtype, a tensor or a parameter is another question."""
    checked: list[object] = []
    right = bounds._check_all

    def counted(*arguments: object) -> None:
        checked.append(arguments)
        right(*arguments)

    monkeypatch.setattr(bounds, "_check_all", counted)
    for _ in range(3):
        pg.clamp(X, -0.123, 0.456)
    assert len(checked) == 1
    pg.clamp(X.double(), -0.123, 0.456)
    assert len(checked) == 2
    for _ in range(2):
        pg.clamp(X, torch.tensor(-0.123), 0.456)
    assert len(checked) == 4
    for _ in range(2):
        pg.clamp(X, 0.123, 0.123)
    assert len(checked) == 5


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

    def refused(*arguments: object) -> None:
        raise AssertionError("the long way")

    monkeypatch.setattr(bounds, "_unprepared", refused)
    assert torch.equal(f(x), first)
    with pytest.raises(AssertionError, match="the long way"):
        f(x.double())


def test_maximize_must_be_a_bool_whatever_was_called_before() -> None:
    """1 == True, so a remembered call must not answer for it."""
    pg.clamp(X, 0, 1, maximize=True)
    with pytest.raises(TypeError, match="maximize must be True or False, got 1"):
        pg.clamp(X, 0, 1, maximize=1)


def test_infinite_and_equal_bounds_are_fine() -> None:
    assert torch.equal(pg.clamp(X, -torch.inf, torch.inf), X)
    assert pg.clamp(X, 1, 1).tolist() == [1, 1]
    assert pg.clamp(X.half(), -65504, torch.inf).tolist() == X.tolist()
    assert pg.clamp(X, True, 2).tolist() == [1, 2]


def test_a_crossed_tensor_is_no_error() -> None:
    """Comparing tensors would force a device sync; y = max, as in torch."""
    assert pg.clamp(X, torch.tensor(1.0), torch.tensor(-1.0)).tolist() == [-1, -1]
