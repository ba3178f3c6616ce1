"""pin_edge to a framework, to what torch's versions differ in, and of one family: against what each was measured to give."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from pseudograd import pin_edge
from pseudograd.errors import UnknownNameError
from pseudograd.rewrite.context import Rewriting
from pseudograd.torch_table.conventions import FRAMEWORKS
from pseudograd.torch_table.eras import installed_era, installed_version
from pseudograd.torch_table.forms import FAMILIES, KINKED, SPELLINGS
from pseudograd_kinks import table
from pseudograd_kinks.measure import EAGER, measure
from pseudograd_kinks.outcome import Outcome
from pseudograd_kinks.table import Point

from ..choices import folded, one_in, slow_but
from .test_points_under_pins import own_outcomes

TABLE = table.load()
DOUBLE = torch.float64

# Points where a pin leaves what torch does, each with its reason.
_NAN_IN = "no pin is about NaN in an input of one number"
_SINGULAR = "infinite slopes of single entries, which no pin is about"
_NAN_NORMS = dict.fromkeys(
    ("norm@0", "norm(dim)@one row 0", *(f"vector_norm({p})@0" for p in ("0.5", "1.5", "2", "3"))), "NaN in place of 0"
)
_NAN_POINTS = dict.fromkeys(("relu@nan", "abs@nan", "max@nan", "max(dim)@nan"), _NAN_IN)
LEFT = {
    "jax": {
        **_NAN_POINTS,
        **dict.fromkeys(("median@nan", "quantile(0.5)@nan", "nanquantile(0.5)@all nan"), _NAN_IN),
        **_NAN_NORMS,
        "vector_norm(0.5)@one zero": _SINGULAR,
    },
    "tensorflow": {
        **_NAN_POINTS,
        **dict.fromkeys(("sort@nan", "hardtanh@nan"), _NAN_IN),
        **_NAN_NORMS,
        "vector_norm(0.5)@one zero": _SINGULAR,
        "clamp(tensors)@crossed": "its values differ, too",
        "clamp(tensors)@crossed, x=max": "its values differ, too",
        "sqrt(relu)@0": "an infinite grad meets relu, which TensorFlow multiplies by 0",
    },
}
PINNED = {kinked.spelling.form.names[0] for kinks in KINKED.values() for kinked in kinks}  # the names of the functions


def gradients(point: Point, away: float = 0.0) -> list[list[float]]:
    """Torch's gradients at the point. away: each entry is moved at random by at most this, in the same way at each call."""
    chance = torch.Generator().manual_seed(len(point.id))
    inputs = [torch.tensor(value) for value in point.inputs]
    for at in point.differentiated if away else ():
        inputs[at] = inputs[at] + away * (2 * torch.rand(inputs[at].shape, generator=chance) - 1)
    leaves = [inputs[at].requires_grad_() for at in point.differentiated]
    y = point.function("torch", {"torch": torch, "F": functional})(*inputs)
    weights = torch.tensor(point.weights).reshape(y.shape) if point.weights else torch.ones_like(y)
    grads = torch.autograd.grad((y * weights).sum(), leaves, allow_unused=True, materialize_grads=True)
    return [(grad + 0).flatten().tolist() for grad in grads]  # one of no storage, too


def are_near(ours: list[list[float]], wanted: list[list[float]]) -> bool:
    """Near to what the table keeps; NaN and infinity where it has them."""
    pairs = [pair for grad, other in zip(ours, wanted, strict=True) for pair in zip(grad, other, strict=True)]
    return all(a == b or (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=2e-4) for a, b in pairs)


def _points(framework: str) -> Iterator[tuple[Point, list[list[float]]]]:
    """The points that the framework has, with its measured gradients, if the installed torch has a derivative that can be pinned."""
    here = ".".join(map(str, installed_version()))
    for point in TABLE.points.values():
        wanted = point.gradient(framework, None)
        if point.op in PINNED and wanted is not None and point.gradient("torch", here) is not None:
            yield point, wanted


@pytest.mark.filterwarnings("ignore")  # torch's own, of some losses
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_point_of_the_table_under_a_framework(framework: str) -> None:
    points = list(_points(framework))
    with pin_edge(framework):
        left = {point.id for point, wanted in points if not are_near(gradients(point), wanted)}
    assert left == set(LEFT[framework])
    assert len(points) > 70


# torch.clamp is pinned as jnp.clip. The table also compares it with lax.clamp, which has another convention.
OTHER_FUNCTION = {"lax.clamp(0,1)@0", "lax.clamp(0,1)@1"}
NAMED = {kinked.spelling.name for kinks in KINKED.values() for kinked in kinks}
NAMED |= {name for spelling in SPELLINGS.values() for name in (spelling.name, f"{spelling.name}_")}


def _agree(one: Outcome | None, other: Outcome | None) -> bool:
    return one is other if one is None or other is None else one.has_same_effect_as(other)


def _changed(pin: Rewriting, own: dict[str, Outcome | None]) -> dict[str, Outcome | None]:
    """The outcomes of these points under a pin, if they differ from torch's own."""
    with pin:
        pinned = {id: measure(TABLE.points[id], EAGER) for id in own}
    return {id: outcome for id, outcome in pinned.items() if not _agree(outcome, own[id])}


@pytest.mark.parametrize("framework", slow_but(["jax"], FRAMEWORKS))
def test_every_point_is_as_there_or_torchs_own(framework: str) -> None:
    """Also for functions that no pin names. If the framework lacks a point, a pin may change it only for functions of the table."""
    own = {id: outcome for id, outcome in own_outcomes().items() if id not in OTHER_FUNCTION}
    changed = _changed(pin_edge(framework), own)
    assert len(changed) > 20
    for id, outcome in changed.items():
        there = TABLE.points[id].outcome(framework)
        assert TABLE.points[id].op in NAMED if there is None else _agree(outcome, there), id


@pytest.mark.filterwarnings("ignore")  # torch's own, of some losses
@pytest.mark.parametrize(("pin", "away"), one_in(2, [*FRAMEWORKS, "a number for each family"], [0.4, -0.4]))
def test_beside_a_kink_a_pin_changes_nothing(pin: str, away: float) -> None:
    families: Any = {name: 0.25 for name, family in FAMILIES.items() if family.number}
    framework = pin if pin in FRAMEWORKS else "jax"  # whose points are gone through
    points = [point for point, _ in _points(framework) if "round" not in point.id]  # which brings it back
    finite = [point for point in points if all(torch.tensor(x).isfinite().all() for x in point.inputs)]
    plain = [gradients(point, away) for point in finite]
    with pin_edge(pin) if pin in FRAMEWORKS else pin_edge(**families):
        pinned = [gradients(point, away) for point in finite]
    several = zip(finite, pinned, plain, strict=True)
    assert [(point.id, ours, of_torch) for point, ours, of_torch in several if not are_near(ours, of_torch)] == []
    assert len(finite) > 60


# --- the contract -----------------------------------------------------------------------------------------------------


def _x(*values: float) -> Tensor:
    return torch.tensor(values, dtype=DOUBLE)


AROUND, INF = _x(-2.0, -1.0, 0.0, 1.0, 2.0), math.inf
CALLS: dict[str, tuple[Callable[[Tensor], Tensor], Tensor, list[float]]] = {  # with the gradient of the sum under JAX
    "abs": (torch.abs, AROUND, [-1, -1, 1, 1, 1]),
    "abs_": (lambda x: (x * 1).abs_(), AROUND, [-1, -1, 1, 1, 1]),
    "leaky_relu in place": (lambda x: functional.leaky_relu(x * 1, 0.5, inplace=True), AROUND, [0.5, 0.5, 1, 1, 1]),
    "nn.LeakyReLU": (torch.nn.LeakyReLU(0.5), AROUND, [0.5, 0.5, 1, 1, 1]),
    "hardtanh": (functional.hardtanh, AROUND, [0, 1, 1, 1, 0]),
    "clamp": (lambda x: torch.clamp(x, -1, 1), AROUND, [0, 0.5, 1, 0.5, 0]),
    "clamp_": (lambda x: (x * 1).clamp_(-1, 1), AROUND, [0, 0.5, 1, 0.5, 0]),
    "clamp of tensors": (
        lambda x: torch.clamp(x, torch.full_like(x, -1), torch.ones((), dtype=DOUBLE)),
        AROUND,
        [0, 0.5, 1, 0.5, 0],
    ),
    "fmax": (lambda x: torch.fmax(x, torch.zeros_like(x)), AROUND, [0, 0, 0, 1, 1]),
    "max over a dimension": (lambda x: x.reshape(2, 2).max(1).values, _x(1, 1, 2, 0), [0.5, 0.5, 1, 0]),
    "min, kept": (lambda x: x.reshape(2, 2).min(dim=-1, keepdim=True)[0], _x(1, 1, 2, 0), [0.5, 0.5, 0, 1]),
    "sort": (lambda x: torch.sort(x, descending=True).values * _x(0, 1, 2, 3), _x(1, 1, 2, 1), [3, 2, 0, 1]),
    "topk": (lambda x: torch.topk(x, 2).values * _x(1, 2), _x(1, 1, 1, 0), [1, 2, 0, 0]),
    "median": (torch.median, _x(1, 1, 1, 0), [0.5, 0.5, 0, 0]),
    "quantile": (lambda x: torch.quantile(x, 0.5), _x(1, 1, 1, 1), [0, 0.5, 0.5, 0]),
    "norm of one": (lambda x: torch.linalg.vector_norm(x, 1), _x(0, 1, -1), [1, 1, -1]),
    "norm of infinity": (lambda x: torch.norm(x, INF), _x(0, 0), [0.25, 0.25]),
    "norm of a vector": (lambda x: torch.linalg.norm(x, 1), _x(0, -2), [1, -1]),
    "least norm": (lambda x: torch.linalg.norm(x.reshape(2, 1), -INF, dim=0), _x(0, 0), [0.5, 0.5]),
    "norm of all, kept": (lambda x: torch.norm(x.reshape(1, 2), INF, keepdim=True), _x(0, 0), [0.25, 0.25]),
    "norm of rows, kept": (lambda x: torch.norm(x.reshape(2, 1), INF, 1, keepdim=True), _x(0, 0), [0.5, 0.5]),
    "hypot of the second": (lambda x: torch.hypot(torch.full_like(x, 3), x), _x(4), [0.8]),
    "hypot": (lambda x: torch.hypot(x, torch.zeros_like(x)), _x(0, 2), [0.5, 1]),
}


def _gradient(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    leaf = x.clone().requires_grad_()
    return torch.autograd.grad(f(leaf).sum(), leaf)[0]


TRANSFORMS: dict[str, Callable[[Callable[[Tensor], Tensor], Tensor], Tensor]] = {
    "backward": _gradient,
    "jacrev": lambda f, x: torch.func.jacrev(f)(x).reshape(-1, x.numel()).sum(0),
    "jacfwd": lambda f, x: torch.func.jacfwd(f)(x).reshape(-1, x.numel()).sum(0),
    "vmap": lambda f, x: torch.func.vmap(torch.func.grad(lambda x: f(x).sum()))(torch.stack([x + 1, x]))[1],
    "checkpoint": lambda f, x: _gradient(lambda x: checkpoint(f, x, use_reentrant=False), x),
}


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch's own, of quantile
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_every_transform_has_the_convention(transform: str) -> None:
    for name, (f, x, wanted) in CALLS.items():
        with pin_edge("jax") as pinned:
            y = f(x.clone().requires_grad_())
            assert torch.equal(y.detach(), f(x)), name
            assert TRANSFORMS[transform](f, x).tolist() == wanted, name
        assert pinned.report().rewritten, name


LEFT_TO_TORCH: list[Callable[[Tensor], Tensor]] = [
    lambda x: torch.linalg.norm(x.reshape(1, 2), 1),  # of a matrix
    lambda x: torch.linalg.norm(x.reshape(1, 1, 2), 1, (1, 2)),
    lambda x: torch.norm(x, 3),
    lambda x: torch.norm(x, torch.tensor(1.0)),
    lambda x: torch.norm(x, 1, dtype=DOUBLE),
]


def test_other_norms_are_left_to_torch() -> None:
    for number, f in enumerate(LEFT_TO_TORCH):
        with pin_edge("jax") as pinned:
            assert _gradient(f, _x(0, 0)).tolist() == [0, 0], number
        assert not pinned.report().rewritten, number


# --- one family at a time ---------------------------------------------------------------------------------------------

AT_ITS_KINK: dict[str, tuple[Callable[[Tensor], Tensor], float]] = {
    "abs": (torch.abs, 0.0),
    "relu": (torch.relu, 0.0),
    "relu6": (functional.relu6, 6.0),
    "hardtanh": (functional.hardtanh, -1.0),
    "hardsigmoid": (functional.hardsigmoid, 3.0),
    "leaky_relu": (functional.leaky_relu, 0.0),
    "elu": (lambda x: functional.elu(x, 2.0), 0.0),
    "celu": (lambda x: functional.celu(x * 1, inplace=True), 0.0),
    "selu": (torch.selu, 0.0),
    "clamp": (lambda x: torch.clamp(x, max=1.0), 1.0),
    "maximum": (lambda x: torch.maximum(x, torch.ones_like(x)), 1.0),
    "minimum": (lambda x: torch.min(x, torch.ones_like(x)), 1.0),
    "fmax": (lambda x: torch.fmax(x, torch.ones_like(x)), 1.0),
    "fmin": (lambda x: torch.fmin(x, torch.ones_like(x)), 1.0),
    "hypot": (lambda x: torch.hypot(x, torch.zeros_like(x)), 0.0),
}


@folded
@pytest.mark.parametrize("name", AT_ITS_KINK)
def test_a_number_is_the_slope_at_the_kink_and_nowhere_else(name: str) -> None:
    """A slope of 0 makes 0 of an infinite gradient, too."""
    f, at = AT_ITS_KINK[name]
    x = _x(at - 3.5, at - 0.5, at, at + 0.5, at + 7.5)
    for slope in (0, 0.25, 1.0, -2):
        with pin_edge(**{name: slope}):
            pinned, by_transform = _gradient(f, x), torch.func.grad(lambda x: f(x).sum())(x)
        wanted = _gradient(f, x)
        wanted[2] = slope
        assert torch.equal(pinned, wanted), slope
        assert torch.allclose(by_transform, wanted, 1e-6), slope
    leaf = _x(at).requires_grad_()
    with pin_edge("jax"), pin_edge(**{name: 0.0}):  # inside another, so that it acts where torch has 0, too
        assert torch.autograd.grad(f(leaf), leaf, _x(INF))[0].item() == 0.0


def test_a_square_root_in_tensorflow_gives_nothing_for_nothing() -> None:
    x = _x(0, 0, 4).requires_grad_()
    with pin_edge("tensorflow"):
        assert torch.autograd.grad(torch.sqrt(x), x, _x(0, 1, 1))[0].tolist() == [0, INF, 0.25]


def test_a_family_counts_before_what_the_pin_is_to() -> None:
    x = _x(0.0)
    for edge in ("jax", "torch<=2.13", "torch>=2.14", "closed"):
        with pin_edge(edge, clamp=0.25, abs=0.5):
            assert _gradient(lambda x: torch.clamp(x, min=0.0), x).item() == 0.25
            assert _gradient(torch.abs, x).item() == 0.5
    with pin_edge("jax", relu=1):
        assert _gradient(functional.relu, x).item() == 1.0
    with pin_edge(clamp="torch<=2.13", fmax="jax"):
        assert _gradient(lambda x: torch.clamp(x, min=0.0), x).item() == 1.0
        assert _gradient(lambda x: torch.fmax(x, torch.zeros_like(x)), x).item() == 0.0


OF_A_NUMBER: dict[str, Callable[[Tensor], Any]] = {
    "sort": lambda x: torch.sort(x),
    "sort, descending": lambda x: torch.sort(x, descending=True),
    "msort": lambda x: (torch.msort(x),),
    "topk": lambda x: torch.topk(x, 1),
    "kthvalue": lambda x: torch.kthvalue(x, 1),
    "median": lambda x: (torch.median(x),),
    "median of a dimension": lambda x: torch.median(x, 0),
    "max": lambda x: torch.max(x, 0),
    "quantile of a dimension": lambda x: (torch.quantile(x, 0.5, 0),),
    "quantile": lambda x: (torch.quantile(x, torch.tensor([0.5, 1.0], dtype=DOUBLE), keepdim=True),),
}


@pytest.mark.parametrize("name", OF_A_NUMBER)
def test_of_a_single_number_a_pin_leaves_torchs_own(name: str) -> None:
    x = torch.tensor(3.0, dtype=DOUBLE, requires_grad=True)
    own = OF_A_NUMBER[name](x)
    with pin_edge("jax"):
        pinned = OF_A_NUMBER[name](x)
    assert [(part.shape, part.tolist()) for part in pinned] == [(part.shape, part.tolist()) for part in own]
    assert torch.equal(torch.autograd.grad(pinned[0].sum(), x)[0], torch.autograd.grad(own[0].sum(), x)[0])


@pytest.mark.skipif(installed_era() == "torch>=2.14", reason="it is what this torch does")
@pytest.mark.parametrize("pin", [("torch>=2.14", {}), (None, {"quantile": "torch>=2.14"})])
def test_what_a_pin_leaves_it_reports(pin: tuple[str | None, dict[str, str]]) -> None:
    with pin_edge(pin[0], **pin[1]) as pinned:  # type: ignore[arg-type]
        _gradient(lambda x: torch.quantile(x, 0.5), _x(1, 1, 1, 1))
    (left,) = pinned.report().missed
    why = "torch>=2.14 takes them from a partial selection, whose order is that of the C++ library it was built with"
    assert (left.op, left.why) == ("quantile", why)


@folded
@pytest.mark.parametrize(
    ("arguments", "named", "error", "text"),
    [
        (("jaxx",), {}, UnknownNameError, r"edge must be one of .*, got 'jaxx'. Did you mean 'jax'\?"),
        ((["jax"],), {}, UnknownNameError, r"edge must be one of .*, got \['jax'\]"),
        (("torch==2.99",), {}, ValueError, "edge must name a version from 2.8"),
        ((), {}, ValueError, r"edge must be one of .*, got None. Or name a family, as in abs=1"),
        ((), {"abss": 1}, UnknownNameError, r"family must be one of .*, got 'abss'. Did you mean 'abs'\?"),
        ((), {"abs": "jaxx"}, UnknownNameError, r"abs must be one of .* Did you mean 'jax'\?"),
        ((), {"abs": None}, TypeError, "abs must be a number or the name of a framework or torch version, got None"),
        ((), {"abs": True}, TypeError, "abs must be a number"),
        ((), {"abs": math.nan}, ValueError, "abs must be finite, got nan"),
        ((), {"sort": 1}, ValueError, "sort must be one of "),
        ((), {"fmax": "tensorflow"}, ValueError, "fmax must be one of .*jax, got 'tensorflow'"),
        ((), {"norm": "tensorflow"}, ValueError, "norm must be one of .*jax, got 'tensorflow'"),
    ],
)
def test_wrong_calls(arguments: tuple[Any, ...], named: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=f"pin_edge: {text}"):
        pin_edge(*arguments, **named)
