"""A call that differs is made small, and written as a program: in this process, with torch and with a changed function of torch."""

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pseudograd_upgrade.cutting import cut, worker
from pseudograd_upgrade.cutting import shrink as shrinking
from pseudograd_upgrade.cutting.call import (
    FUNCTION,
    METHOD,
    Call,
    NoProgramError,
    Outcome,
    argument_text,
    copy_strided,
    name_function,
    tensor_text,
)
from pseudograd_upgrade.cutting.shrink import measure_distances, shrink, spans_within
from pseudograd_upgrade.recording import BACKWARD

from ..choices import folded

F = torch.nn.functional
Change = Callable[..., Any]


class Pair:
    """In place of two processes. changed: the function of the newer torch, which gets the known function first."""

    def __init__(self, owner: object, name: str, changed: Change, folder: Path) -> None:
        self.owner, self.name, self.changed, self.folder = owner, name, changed, folder

    def run(self, call: Call) -> tuple[Outcome, Outcome]:
        known = getattr(self.owner, self.name)
        with pytest.MonkeyPatch.context() as patch:
            old = self.outcome(call)
            patch.setattr(self.owner, self.name, lambda *args, **kwargs: self.changed(known, *args, **kwargs))
            return old, self.outcome(call)

    def outcome(self, call: Call) -> Outcome:
        files = {name: str(self.folder / name) for name in ("tensors", "outcome")}
        torch.save(dict(call.tensors), files["tensors"])
        try:
            answer: Any = worker.run({**files, "requires": sorted(call.requires), "lines": call.lines()})
        except Exception as error:
            return Outcome(str(error), {})
        return Outcome(None, torch.load(files["outcome"], weights_only=True), answer["is_random"], answer["is_tensor"])


def program(owner: object, name: str, changed: Change, call: Call, folder: Path) -> str:
    """The program without its first two lines."""
    with torch.random.fork_rng():
        mismatch = shrink(Pair(owner, name, changed, folder), call)
    return next(mismatch.call.programs(mismatch.name, mismatch.outcome)).removeprefix("import torch\n\n")


def forward(name: str, *args: str, form: str = FUNCTION, kwargs: Any = None, **tensors: torch.Tensor) -> Call:
    return Call("forward", form, name, args, kwargs or {}, tensors)


def backward(name: str, grad: torch.Tensor, form: str = FUNCTION, **tensors: torch.Tensor) -> Call:
    tensors["grad"] = grad
    return Call("backward", form, name, ("x",), {}, tensors, frozenset({"x"}), ((None, "grad"),))


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


# --- changes of a function --------------------------------------------------------------------------------------------


def scaled(known: Change, *args: object, **kwargs: object) -> Any:
    return known(*args, **kwargs) * 1.5


def scaled_if(condition: Callable[[torch.Tensor], bool]) -> Change:
    return lambda known, x: known(x) * (1.5 if condition(x) else 1.0)


def change_gradient(change: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Change:
    """The same values. change(x, grad): the gradient that arrives instead of grad."""

    def changed(known: Change, x: torch.Tensor, *args: object, **kwargs: object) -> Any:
        y = known(x, *args, **kwargs)
        if y.requires_grad:
            y.register_hook(lambda grad: change(x.detach(), grad))
        return y

    return changed


def change_beta(known: Change, *args: object, beta: float = 1.0, **kwargs: object) -> Any:
    return known(*args, beta=beta, **kwargs) * (1.5 if beta != 1.0 else 1.0)


def change_second(known: Change, *args: object) -> tuple[torch.Tensor, torch.Tensor]:
    values, at = known(*args)
    return values, at + 1


X = numbers(8, 4)
X[5, 3] = 0.0
SOFTPLUS = "torch.nn.functional.softplus"
NORM = "torch.nn.functional.layer_norm"
ENTROPY = "torch.nn.functional.cross_entropy"
ATTENTION = "torch.nn.functional.scaled_dot_product_attention"
LOSS = {"weight": "None", "ignore_index": "-100", "reduction": "'mean'", "label_smoothing": "0.1"}
PROGRAMS: dict[str, tuple[Any, str, Change, Call, list[str]]] = {
    "one entry": (
        F, "softplus", scaled, forward(SOFTPLUS, "x", x=numbers(32, 16)),
        ["x = torch.tensor(-1.0)", f"y = {SOFTPLUS}(x)", "print(y)"],
    ),
    "the entry at which the gradient differs": (
        torch, "sigmoid", change_gradient(lambda x, grad: torch.where(x == 0, 0.0, grad)),
        backward("torch.sigmoid", numbers(8, 4), x=X),
        ["x = torch.tensor(0.0, requires_grad=True)", "y = torch.sigmoid(x)", "y.backward()", "print(x.grad)"],
    ),
    "a gradient that the difference needs": (
        torch, "sigmoid", change_gradient(lambda x, grad: torch.where(grad > 2, 2.0, grad)),
        backward("torch.sigmoid", torch.arange(8.0), x=numbers(8)),
        ["x = torch.tensor(1.0, requires_grad=True)", "grad = torch.tensor(3.0)", "y = torch.sigmoid(x)", "y.backward(grad)",
         "print(x.grad)"],
    ),
    "a size that an argument names": (
        F, "layer_norm", scaled,
        forward(NORM, "x", "(16,)", "a", "b", "1e-05", x=numbers(8, 16), a=torch.ones(16), b=torch.zeros(16)),
        ["...", f"y = {NORM}(x, (2,))", "print(y)"],
    ),
    "arguments that do not matter": (
        F, "cross_entropy", scaled, forward(ENTROPY, "x", "a", kwargs=LOSS, x=numbers(9, 8), a=torch.arange(9) % 8),
        ["...", "a = torch.tensor([0])", f"y = {ENTROPY}(x, a)", "print(y)"],
    ),
    "an argument that matters": (
        F, "softplus", change_beta, forward(SOFTPLUS, "x", kwargs={"beta": "2.123456", "threshold": "20.0"}, x=numbers(4)),
        ["...", f"y = {SOFTPLUS}(x, beta=2.123456)", "print(y)"],
    ),
    "in place": (
        torch.Tensor, "mul_", lambda known, *args: known(*args).add_(0.5),
        forward("mul_", "x", "2.0", form=METHOD, x=numbers(4, 4)),
        ["...", "y = x.clone().mul_(2.0)", "print(y)"],
    ),
    "a tensor that is given twice": (
        F, "scaled_dot_product_attention", scaled, forward(ATTENTION, "x", "x", "x", x=numbers(2, 2, 4, 4)),
        ["...", f"y = {ATTENTION}(x, x, x)", "print(y)"],
    ),
    "a random op": (
        F, "dropout", scaled, forward("torch.nn.functional.dropout", "x", "0.5", x=numbers(16)),
        ["torch.manual_seed(0)", "...", "y = torch.nn.functional.dropout(x)", "print(y)"],
    ),
    "many entries": (
        torch, "sigmoid", scaled_if(lambda x: x.numel() > 30), forward("torch.sigmoid", "x", x=numbers(8, 8)),
        ["x = torch.full((6, 6), 1.0)", "y = torch.sigmoid(x)", "print(y)"],
    ),
    "another output than the first": (
        torch, "max", change_second, forward("torch.max", "x", "1", x=numbers(4, 4)),
        ["...", "y = torch.max(x, 1)", "print(y[1])"],
    ),
}  # fmt: skip


@folded
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_call_is_shrunk_to_a_part_that_still_differs(name: str, tmp_path: Path) -> None:
    *arguments, expected = PROGRAMS[name]
    lines = program(*arguments, tmp_path).splitlines()
    assert [line if wanted != "..." else "..." for line, wanted in zip(lines, expected, strict=True)] == expected


def test_complex_numbers_keep_their_gradient(tmp_path: Path) -> None:
    x = torch.complex(numbers(8), numbers(8))
    call = backward("tanh", x.clone(), form=METHOD, x=x)
    shrunk = program(torch.Tensor, "tanh", change_gradient(lambda x, grad: grad * 2), call, tmp_path)
    assert "y.backward(grad)" in shrunk
    assert "x = torch.tensor(complex(" in shrunk


DOUBLES = torch.linspace(0, 1, 64, dtype=torch.float64).square()
SAME = "with the same arguments, the call alone gives the same under both, but for rounding"


@folded
@pytest.mark.parametrize(
    ("changed", "x", "why"),
    [
        (lambda known, x: known(x), numbers(4), SAME),
        (lambda known, x: known(x) * (1 + 1e-7), numbers(4), SAME),
        (lambda known, x: 1 / 0, numbers(4), "the call alone fails: division by zero"),
        (scaled_if(lambda x: torch.equal(x, DOUBLES)), DOUBLES, "what is left of it has 64 numbers, more than ten lines hold"),
    ],
    ids=["equal", "rounding", "an error", "too many numbers"],
)  # fmt: skip
def test_a_call_that_no_program_shows_is_not_cut_out(
    changed: Change, x: torch.Tensor, why: str, tmp_path: Path
) -> None:
    with pytest.raises(NoProgramError, match=why):
        program(torch, "sigmoid", changed, forward("torch.sigmoid", "x", x=x), tmp_path)


def test_a_dimension_is_cut_to_its_parts() -> None:
    assert spans_within(1) == []
    assert spans_within(2) == [(0, 1), (1, 2)]
    assert spans_within(5) == [(0, 1), (0, 2), (2, 5), (0, 4), (1, 5)]


def _moves(move: Callable[[Any], Any], call: Call) -> list[Call]:
    return list(move(shrinking.Mismatch(call, Outcome(None, {}), "y0", 1.0)))


def test_each_argument_is_left_out_alone() -> None:
    call = forward("torch.f", "x", "a", "3", kwargs={"p": "0.5", "inplace": "True"}, x=X, a=X)
    assert [(move.args, dict(move.kwargs)) for move in _moves(shrinking._drop_arguments, call)] == [
        (("x", "a", "3"), {"inplace": "True"}),
        (("x", "a"), call.kwargs),
        (("x", "None", "3"), call.kwargs),
    ]
    assert _moves(shrinking._drop_arguments, forward("torch.f", "x", x=X)) == []


def test_a_program_that_fails_alone_is_refused() -> None:
    assert cut.run_program(sys.executable, "print(1.5)") == "1.5"
    with pytest.raises(NoProgramError, match=r"written as a program, it fails: no such thing$"):
        cut.run_program(sys.executable, "import sys; sys.exit('tried\\nno such thing')")


@folded
@pytest.mark.parametrize(
    "x",
    [
        torch.tensor(0.1),
        torch.tensor([[1.0, math.nan, math.inf, -math.inf]]),
        torch.tensor([0.1, 1 / 3], dtype=torch.float64),
        torch.tensor([0.1, 1e-3], dtype=torch.bfloat16),
        torch.tensor([1, -2]),
        torch.tensor([True, False]),
        torch.tensor([3], dtype=torch.uint8),
        torch.tensor([complex(0.1, -2), complex(math.inf, 0)]),
        torch.zeros(3, 0, 2),
        torch.zeros(0, dtype=torch.int64),
        torch.zeros(5, 5),
        torch.full((30,), -0.0),
        torch.full((30,), 7, dtype=torch.int16),
        numbers(3, 4).t(),
        numbers(4, 6)[:, ::2],
        numbers(3, 1).expand(3, 4),
        numbers(40, 10)[:, 0],
    ],
    ids=lambda x: f"{x.dtype} {tuple(x.shape)} {x.stride()}",
)
def test_a_tensor_is_written_to_the_last_bit(x: torch.Tensor) -> None:
    own = copy_strided(x)
    assert own.untyped_storage().nbytes() <= 4 * own.nbytes, "most of it would be gaps"
    copy = eval(tensor_text(own), {"torch": torch, "complex": complex})
    assert (copy.dtype, copy.shape, copy.stride()) == (x.dtype, x.shape, own.stride())
    assert torch.equal(torch.nan_to_num(copy, 123.0), torch.nan_to_num(x, 123.0))
    if x.is_floating_point():
        assert torch.equal(torch.signbit(copy), torch.signbit(x))
        leaf = eval(tensor_text(own, requires=True), {"torch": torch})
        assert (leaf.requires_grad, leaf.is_leaf) == (True, True)


def test_a_tensor_is_written_as_people_write_it() -> None:
    assert (
        tensor_text(torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]))
        == "torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])"
    )
    assert tensor_text(torch.full((5, 5), 0.1), True) == "torch.full((5, 5), 0.1, requires_grad=True)"
    assert tensor_text(torch.full((4, 6), 1)).startswith("torch.tensor([[1, 1, 1, 1, 1, 1], [1,")
    assert tensor_text(torch.full((25,), 2.0, dtype=torch.float64)) == "torch.full((25,), 2.0, dtype=torch.float64)"
    assert tensor_text(torch.zeros(0, 3)) == "torch.zeros((0, 3), dtype=torch.float32)"
    assert tensor_text(torch.tensor(0.1)) == "torch.tensor(0.1)"


@folded
@pytest.mark.parametrize(
    ("value", "written"),
    [
        (None, "None"), (1.5, "1.5"), (math.inf, "torch.inf"), (-math.inf, "-torch.inf"), (math.nan, "torch.nan"), ("mean", "'mean'"),
        ((1,), "(1,)"), ([1, (2, 3)], "[1, (2, 3)]"), (torch.Size([4]), "(4,)"), (torch.float16, "torch.float16"), (..., "..."),
        (torch.channels_last, "torch.channels_last"), (torch.device("cpu"), "'cpu'"), (numbers(1), "x"), (slice(1), "slice(None, 1, None)"),
    ],
)  # fmt: skip
def test_an_argument_is_written_as_python_writes_it(value: object, written: str) -> None:
    assert argument_text(value, lambda tensor: "x") == written


@folded
@pytest.mark.parametrize(
    ("function", "form", "name"),
    [
        (torch.clamp, FUNCTION, "torch.clamp"),
        (F.softplus, FUNCTION, "torch.nn.functional.softplus"),
        (torch.special.expit, FUNCTION, "torch.special.expit"),
        (torch.einsum, FUNCTION, "torch.einsum"),
        (torch.Tensor.clamp, METHOD, "clamp"),
        (torch.Tensor.mT.__get__, FUNCTION, "torch.Tensor.mT.__get__"),
        (torch.Tensor.__rsub__, METHOD, "__rsub__"),
        (torch.ops.aten.clamp.default, FUNCTION, "torch.ops.aten.clamp.default"),
    ],
    ids=str,
)
def test_a_function_has_the_name_that_its_users_write(function: object, form: str, name: str) -> None:
    assert name_function(function) == (form, name)


@folded
@pytest.mark.parametrize(
    ("form", "name", "args", "line"),
    [
        (METHOD, "__rsub__", ("x", "1"), "y = x.__rsub__(1)"),
        (METHOD, "clamp", ("x", "0", "1"), "y = x.clamp(0, 1)"),
        (FUNCTION, "torch.Tensor.mT.__get__", ("x",), "y = x.mT"),
        (FUNCTION, "torch.clamp", ("x", "0"), "y = torch.clamp(x, 0)"),
    ],
    ids=str,
)
def test_a_line_is_what_its_users_write(form: str, name: str, args: tuple[str, ...], line: str) -> None:
    assert Call("forward", form, name, args, {}, {"x": torch.ones(2, 2)}).lines() == [line]


def test_an_unwritable_value_or_function_is_refused() -> None:
    with pytest.raises(NoProgramError, match="an argument is a function, which has no short way to be written"):
        argument_text(lambda: 0, str)
    with pytest.raises(NoProgramError, match=r"prims\.abs is an op of another package"):
        name_function(torch.ops.prims.abs)
    with pytest.raises(NoProgramError, match="no function of torch that has a public name"):
        name_function(numbers)


@folded
@pytest.mark.parametrize(
    ("old", "new", "distance"),
    [
        (torch.tensor([1.0, 4.0]), torch.tensor([1.0, 3.0]), 0.25),
        (torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[1.0, 2.0], [1.0, 4.0]]), 0.5),
        (torch.tensor([math.nan, 1.0]), torch.tensor([math.nan, 2.0]), 0.5),
        (torch.tensor([math.nan, 1.0]), torch.tensor([0.0, 1.0]), math.inf),
        (torch.tensor([math.inf, 1.0]), torch.tensor([-math.inf, 1.0]), math.inf),
        (torch.tensor([2, 3]), torch.tensor([2, 4]), 0.25),
        (torch.tensor(1.0), torch.tensor([1.0]), math.inf),
        (torch.tensor(1.0), torch.tensor(1.0, dtype=torch.float64), math.inf),
    ],
    ids=str,
)
def test_distances_are_relative_to_the_largest_entry(old: torch.Tensor, new: torch.Tensor, distance: float) -> None:
    assert measure_distances(Outcome(None, {"y0": old}), Outcome(None, {"y0": new})) == {"y0": pytest.approx(distance)}
    assert measure_distances(Outcome(None, {"y0": old}), Outcome(None, {"y0": old.clone()})) == {"y0": 0.0}


def test_few_different_short_numbers_are_easy_to_read() -> None:
    cost = shrinking._reading_cost
    assert cost(torch.ones(4)) == 1
    assert cost(torch.tensor([1.0, 2.0, 1.0])) == 2
    long = len("0.123456") - shrinking._SHORT_ENTRY
    assert cost(torch.tensor([0.123456, 1.0, 0.123456])) == 2 * long + 2
    most = shrinking._MOST_TEXTS
    assert [cost(x) for x in (torch.ones(most + 1), torch.arange(most + 1.0))] == [most, most + 1]


def test_a_backward_of_several_outputs_has_them_all() -> None:
    call = Call(BACKWARD, FUNCTION, "torch.var_mean", ("x",), {}, grads=((0, None), (1, None)))
    assert call.lines()[-1] == "(y[0].sum() + y[1].sum()).backward()"
