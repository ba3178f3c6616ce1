"""A call that differs is made small, and written as a program: in this process, with torch and with a changed function of torch."""

import contextlib
import io
import json
import math
import sys
from collections import namedtuple
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
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
from pseudograd_upgrade.cutting.recorder import RecordedCall
from pseudograd_upgrade.cutting.shrink import measure_distances, shrink, spans_within
from pseudograd_upgrade.differences import Difference
from pseudograd_upgrade.recording import BACKWARD, Event, Recording, Schedule
from pseudograd_upgrade.runs import Interpreter

from ..choices import folded
from .made_runs import GELU, GELU_GRAD, SGD, SILU, SILU_GRAD, run

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


X = numbers(8, 4)
X[5, 3] = 0.0
SOFTPLUS = "torch.nn.functional.softplus"
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
    "an argument that matters": (
        F, "softplus", change_beta, forward(SOFTPLUS, "x", kwargs={"beta": "2.123456", "threshold": "20.0"}, x=numbers(4)),
        ["...", f"y = {SOFTPLUS}(x, beta=2.123456)", "print(y)"],
    ),
    "many entries": (
        torch, "sigmoid", scaled_if(lambda x: x.numel() > 30), forward("torch.sigmoid", "x", x=numbers(8, 8)),
        ["x = torch.full((6, 6), 1.0)", "y = torch.sigmoid(x)", "print(y)"],
    ),
    "strides that the difference needs": (
        torch, "sigmoid", scaled_if(lambda x: not x.is_contiguous()), forward("torch.sigmoid", "x", x=numbers(4, 4).t()),
        ["x = torch.tensor([1.0, 0.0, 0.0, 0.0, 1.0]).as_strided((2,), (4,))", "y = torch.sigmoid(x)", "print(y)"],
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


def _moves(move: Callable[[Any], Any], call: Call, name: str = "y0") -> list[Call]:
    return list(move(shrinking.Mismatch(call, Outcome(None, {}), name, 1.0)))


def test_each_argument_is_left_out_alone() -> None:
    call = forward("torch.f", "x", "a", "3", kwargs={"p": "0.5", "inplace": "True"}, x=X, a=X)
    call = replace(call, requires=frozenset({"x", "a"}))
    assert [(move.args, move.kwargs, move.requires) for move in _moves(shrinking._drop_arguments, call)] == [
        (("x", "a", "3"), {"inplace": "True"}, {"x", "a"}),
        (("x", "a"), call.kwargs, {"x", "a"}),
        (("x", "None", "3"), call.kwargs, {"x"}),
    ]
    assert _moves(shrinking._drop_arguments, forward("torch.f", "x", x=X)) == []
    (move,) = _moves(shrinking._drop_arguments, forward("torch.f", "x", kwargs={"inplace": "False"}, x=X))
    assert move.kwargs == {}


def test_outputs_and_inputs_are_differentiated_one_by_one() -> None:
    tensors = dict.fromkeys(("x", "a", "grad0", "grad1"), X)
    call = Call(
        BACKWARD, FUNCTION, "torch.f", ("x", "a"), {}, tensors, frozenset({"x", "a"}), ((0, "grad0"), (1, "grad1"))
    )
    assert [(move.grads, move.requires) for move in _moves(shrinking._simplify_gradients, call, "grad of a")] == [
        *((grads, {"x", "a"}) for grads in (((0, None),), ((1, None),), ((0, None), (1, None)), ((0, "grad0"),), ((1, "grad1"),))),
        (call.grads, {"a"}),
    ]  # fmt: skip
    simple = replace(call, requires=frozenset({"x"}), grads=((0, None),))
    assert _moves(shrinking._simplify_gradients, simple) == []


def test_equal_sizes_are_cut_together_and_then_each_dimension() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    call = forward("torch.f", "x", "(3,)", kwargs={"size": "3.3, 3"}, x=x, a=x[0])
    call = replace(call, args=("x", "a", "(3,)"))
    moves = [
        (*move.args[2:], move.kwargs["size"], *move.tensors.values()) for move in _moves(shrinking._drop_entries, call)
    ]
    cuts = [(s, s) for s in (slice(0, 1), slice(1, 3), slice(0, 2))]
    together = [(f"({s.stop - s.start},)", f"3.3, {s.stop - s.start}", x[:, s], x[0, t]) for s, t in cuts]
    expected = [row for cut in together for row in (cut, ("(3,)", "3.3, 3", *cut[2:]))]
    rows = [("(3,)", "3.3, 3", x[s], x[0]) for s in (slice(0, 1), slice(1, 2))]
    columns = [row for cut in together for row in ((*cut[:3], x[0]), ("(3,)", "3.3, 3", cut[2], x[0]))]
    others = [row for cut in together for row in ((*cut[:2], x, cut[3]), ("(3,)", "3.3, 3", x, cut[3]))]
    for move, wanted in zip(moves, [*expected, *rows, *rows, *columns, *others], strict=True):
        assert move[:2] == wanted[:2]
        assert all(map(torch.equal, move[2:], wanted[2:]))


@pytest.mark.parametrize(
    ("shapes", "moves"),
    [
        ([(1, 3), (1,)], [[(3,), (1,)]]),
        ([(1, 1), (1,)], [[(), ()], [(1,), (1,)]]),
        ([(1,)], [[()]]),
        ([()], []),
        ([(2, 3)], []),
        ([(1, 0)], [[(0,)]]),
    ],
)
def test_dimensions_of_size_1_are_removed(shapes: list[tuple[int, ...]], moves: list[list[tuple[int, ...]]]) -> None:
    call = forward("torch.f", **{name: torch.zeros(shape) for name, shape in zip("xa", shapes, strict=False)})
    made = _moves(shrinking._drop_dimensions, replace(call, args=tuple(call.tensors)))
    assert [[tuple(tensor.shape) for tensor in move.tensors.values()] for move in made] == moves


def test_entries_get_fewer_digits_and_then_become_1_or_0() -> None:
    def simpler(x: torch.Tensor) -> list[Any]:
        return [tensor.tolist() for tensor in shrinking._simpler_tensors(x)]

    assert simpler(torch.tensor([-0.12345, 2.5], dtype=torch.float64)) == [
        [0.0, 2.0], [-0.1, 2.5], [-0.12, 2.5], [-0.123, 2.5], [1.0, 1.0], [0.0, 0.0]
    ]  # fmt: skip
    assert str(next(shrinking._simpler_tensors(torch.tensor([-0.1])))) == "tensor([0.])"
    assert simpler(torch.tensor([1234.5]))[-5:] == [[1000.0], [1200.0], [1230.0], [1.0], [0.0]]
    assert len(simpler(torch.tensor([math.inf]))) == 6
    assert simpler(torch.tensor([7])) == [[1], [0]]
    row = torch.tensor([0.123456])
    # Entries of an expanded tensor share memory.
    for x, count in ((row, 9), (row.as_strided((1,), (0,)), 9), (row.expand(3), 0)):
        assert len(_moves(shrinking._shorten_entries, forward("torch.f", "x", x=x))) == count
    same = _moves(shrinking._shorten_entries, forward("torch.f", "x", x=numbers(3, 2).t()))
    assert {move.tensors["x"].stride() for move in same} == {(1, 2)}


@pytest.mark.parametrize(
    ("whole", "part", "size"),
    [(0.5, 0.0049, 4), (0.5, 0.0051, 1), (math.inf, 0.0099, 4), (math.inf, 0.0101, 1), (7.7e-6, 7.7e-6, 1), (7.5e-6, 0, None)],
)  # fmt: skip
def test_a_smaller_call_shows_a_hundredth_of_the_difference(whole: float, part: float, size: int | None) -> None:
    """And more than 64 roundings. Whole numbers differ if they are not equal."""
    y, call = torch.ones(2), forward("torch.f", "x", x=torch.zeros(2, 2))

    def run_pair(call: Call) -> tuple[Outcome, Outcome]:
        distance = whole if call.tensors["x"].numel() == 4 else part
        return Outcome(None, {"y0": y}), Outcome(None, {"y0": y[:1] if distance == math.inf else y * (1 - distance)})

    if size is not None:
        assert shrink(SimpleNamespace(run=run_pair), call).call.tensors["x"].numel() == size
    for pair in (run_pair,) * (size is None) + (lambda call: (Outcome(None, {"y0": torch.arange(3)}),) * 2,):
        with pytest.raises(NoProgramError, match=f"^{SAME}$"):
            shrink(SimpleNamespace(run=pair), call)


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
    with pytest.raises(NoProgramError, match=r"^torch\._weight_norm is not public$"):
        name_function(torch._weight_norm)
    with pytest.raises(NoProgramError, match=r"^an argument is a Pair, which has no short way"):
        argument_text(namedtuple("Pair", "a b")(1, 2), str)


@folded
@pytest.mark.parametrize(
    ("old", "new", "distance"),
    [
        (torch.tensor([1.0, 4.0]), torch.tensor([1.0, 3.0]), 0.25),
        (torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[1.0, 2.0], [1.0, 4.0]]), 0.5),
        (torch.tensor([math.nan, 1.0]), torch.tensor([math.nan, 2.0]), 0.5),
        (torch.tensor([math.nan, 1.0]), torch.tensor([0.0, 1.0]), math.inf),
        (torch.tensor([math.inf, 1.0]), torch.tensor([-math.inf, 1.0]), math.inf),
        (torch.tensor([math.nan, math.inf, 0.5]), torch.tensor([math.nan, math.inf, 0.25]), 0.5),
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
    long = len("0.123456") - 4
    assert cost(torch.tensor([0.123456, 1.0, 0.123456])) == 2 * long + 2
    assert [cost(x) for x in (torch.zeros(256), torch.ones(257), torch.arange(257.0))] == [1, 256, 257]


@pytest.mark.parametrize(
    ("grads", "line"),
    [
        ([(None, None)], "y.sum().backward()"),
        ([(0, None), (1, None)], "(y[0].sum() + y[1].sum()).backward()"),
        ([(None, "grad")], "y.backward(grad)"),
        ([(0, "grad0"), (2, None)], "torch.autograd.backward([y[0], y[2]], [grad0, None])"),
    ],
)
def test_a_backward_has_all_outputs(grads: list[tuple[int | None, str | None]], line: str) -> None:
    call = Call(BACKWARD, FUNCTION, "torch.f", ("x",), {}, grads=tuple(grads))
    assert call.lines() == ["y = torch.f(x)", line]


def test_a_program_shows_few_digits_and_then_all() -> None:
    call = Call(BACKWARD, FUNCTION, "torch.f", ("x",), {}, {"x": torch.ones(1)}, frozenset({"x"}), ((None, None),))
    lines = [
        "import torch",
        "",
        "torch.manual_seed(0)",
        "x = torch.tensor([1.0], requires_grad=True)",
        "y = torch.f(x)",
    ]
    for y, is_tensor, differentiated in (
        (torch.ones(()), True, "y"),
        (torch.ones(()), False, "y.sum()"),
        (None, True, "y.sum()"),
    ):
        outcome = Outcome(None, {} if y is None else {"y0": y}, is_random=True, is_tensor=is_tensor)
        first, second = call.programs("grad of x", outcome)
        assert first.splitlines() == [*lines, f"{differentiated}.backward()", "print(x.grad)"]
        assert second == first.replace("x.grad)", "x.grad.tolist())")
    printed = [text.splitlines()[-1] for text in replace(call, kind="forward").programs("y1", outcome)]
    assert printed == ["print(y.detach())", "print(y.tolist())"]
    outcome = replace(outcome, is_tensor=False)
    assert [text.splitlines()[-1] for text in call.programs("y1", outcome)] == [
        "print(y[1].detach())",
        "print(y[1].tolist())",
    ]


@pytest.mark.parametrize(("count", "length", "fits"), [(7, 120, True), (8, 120, False), (7, 121, False)])
def test_a_program_has_ten_lines_of_120_characters(count: int, length: int, fits: bool) -> None:
    names = "xabcdefg"[:count]
    call = forward("torch.f", *names, **{name: torch.ones(1) for name in names})
    call = replace(call, args=(*names, "'" + "." * (length - 3 - len(call.lines()[0]) - 1) + "'"))
    assert len(call.lines()[0]) == length
    why = f"^what is left of it has {count} numbers, more than ten lines hold$"
    with contextlib.nullcontext() if fits else pytest.raises(NoProgramError, match=why):
        assert len(next(call.programs("y0", Outcome(None, {}))).splitlines()) == count + 4


@pytest.mark.parametrize(
    ("name", "args", "is_in_place"),
    [
        ("clamp_", ["x"], True), ("__iadd__", ["x", "x"], True), ("__rsub__", ["x", "1"], False), ("clamp", ["x"], False),
        ("relu", ["x", "inplace=True"], True), ("relu", ["x", "inplace=False"], False), ("aten.clamp_", ["[x]", "x"], True),
    ],
)  # fmt: skip
def test_a_leaf_is_copied_before_it_is_changed(name: str, args: list[str], is_in_place: bool) -> None:
    kwargs = dict(argument.split("=") for argument in args if "=" in argument)
    call = Call("forward", FUNCTION, name, tuple(args[: len(args) - len(kwargs)]), kwargs, {"x": torch.ones(2)})
    line = ", ".join(args)
    before, _, after = line.rpartition("x") if name.startswith("aten") else ("", "", line[1:])
    assert call.lines() == [f"y = {name}({f'{before}x.clone(){after}' if is_in_place else line})"]
    assert call.is_in_place is is_in_place


def test_a_copy_keeps_strides_unless_most_of_its_memory_would_be_gaps() -> None:
    strides = [copy_strided(numbers(40)[::step][:size]).stride() for step, size in ((4, 9), (5, 4), (5, 5))]
    assert strides == [(4,), (5,), (1,)]


# --- from the first difference to its program --------------------------------------------------------------------------


def differ(*events: tuple[int, float], options: tuple[str, str] = ("", ""), **named: Any) -> Difference:
    """The last event differs. only_old, only_new: those that only one run has."""
    old, new = (run((*events[-1], text)).steps[1][0] for text in options)
    return Difference(3, old, new, 1.0, **named)


def events(*numbers: int) -> tuple[Event, ...]:
    return tuple(run(*((number, 1.0) for number in numbers)).steps[1])


class CutRunner:
    def __init__(self, calls: dict[int, object], errors: tuple[str, ...] = ()) -> None:
        self.calls, self.errors = calls, errors
        self.asked: list[Any] = []

    def run(self, python: Interpreter, schedule: Schedule) -> Recording:
        self.asked.append((python.recorder, python.settings["targets"], schedule))
        return replace(run(calls=self.calls), errors=self.errors)


def cut_out(runner: CutRunner, difference: Difference) -> cut.Cut:
    python: Any = Interpreter("true", "2.13.0")
    return cut.cut(runner, python, python, difference)  # type: ignore[arg-type]


MANY, OTHER = (
    "the two are not asked for the same functions there",
    "the two are asked for the same function with different arguments",
)


@pytest.mark.parametrize(
    ("difference", "why"),
    [
        (differ((SGD, 1.0)), "the step of an optimiser is not taken apart"),
        (differ((GELU, 1.0), only_new=events(SILU)), MANY),
        (differ((GELU, 1.0), is_reordered=True), "what differs is the order of several calls"),
        (differ((GELU, 1.0), options=("0.5", "0.6")), OTHER),
        (differ((GELU_GRAD, 1.0), only_old=events(SILU_GRAD), is_reordered=True), ""),
        (differ((GELU, 1.0), options=("0.5", "0.6, 1")), ""),
        (differ((GELU, 1.0), options=("0.5", "dim=1")), ""),
        (differ((GELU, 1.0), options=("0.5", "0.5")), ""),
    ],
)
def test_a_call_that_the_two_are_not_both_asked_for_is_not_cut_out(difference: Difference, why: str) -> None:
    runner = CutRunner({})
    assert cut_out(runner, difference) == cut.Cut(why=why or "the call was not met again in another run")
    assert len(runner.asked) == (not why)


def test_the_first_events_and_the_one_that_differs_are_recorded_again() -> None:
    earlier = events(*[GELU_GRAD] * 6)
    runner = CutRunner({}, ("a fault",))
    assert cut_out(runner, differ((SILU_GRAD, 1.0), only_old=earlier)).why == "an error of ours; a fault"
    keys = [[*event.origin[:3], ["float32 [4]"], event.occurrence] for event in (*earlier[:4], *events(SILU_GRAD))]
    assert runner.asked == [("pseudograd_upgrade.cutting.recorder", keys, Schedule(0, 0, (3, 3)))]


def recorded(**changes: Any) -> tuple[Call, bytes]:
    file = io.BytesIO()
    torch.save({"x": torch.ones(3), "grad": torch.ones(3)}, file)
    call = Call("", FUNCTION, "torch.sigmoid", ("x",), {}, {}, frozenset({"x"}), ((None, "grad"),))
    return replace(call, **changes), file.getvalue()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "no call of torch made GeluBackward0: code of a custom Function or in C++"),
        ("a reason", "a reason"),
        (recorded(grads=()), "nothing that the call returns requires a gradient"),
        (recorded(requires=frozenset()), "none of its arguments requires a gradient"),
    ],
)
def test_what_was_not_recorded_is_the_reason(content: Any, why: str) -> None:
    (event,) = events(GELU_GRAD)
    with pytest.raises(NoProgramError, match=why):
        cut.read_call(content, event)


def test_a_forward_needs_no_gradients() -> None:
    forward, backward = (cut.read_call(recorded(), *events(number)) for number in (GELU, GELU_GRAD))
    assert (forward.kind, forward.requires, forward.grads, [*forward.tensors]) == ("forward", set(), (), ["x"])
    assert (backward.kind, backward.requires, [*backward.tensors]) == (BACKWARD, {"x"}, ["x", "grad"])


@pytest.mark.parametrize(("prints", "program"), [("ab", 0), ("aabc", 1), ("aaaa", None)])
def test_a_program_prints_more_digits_until_the_two_differ(
    monkeypatch: pytest.MonkeyPatch, prints: str, program: int | None
) -> None:
    mismatch = shrinking.Mismatch(forward("torch.f", "x", x=torch.ones(1)), Outcome(None, {}), "y0", 1.0)
    texts, outputs = [*mismatch.call.programs("y0", mismatch.outcome)], iter(prints)
    monkeypatch.setattr(cut, "_find_smallest", lambda *_: mismatch)
    monkeypatch.setattr(cut, "run_program", lambda *_: next(outputs))
    found = cut_out(CutRunner({}), differ((GELU, 1.0)))
    if program is None:
        assert found == cut.Cut(why="written as a program, it prints the same under both")
        assert found.lines(("1", "2")) == [f"not cut out: {found.why}"]
        return
    assert found == cut.Cut(texts[program], tuple(prints[-2:]))
    printed = [f"torch {version} prints {text}" for version, text in zip("12", prints[-2:], strict=True)]
    lines = [f"  {line}" for line in texts[program].splitlines()]
    assert found.lines(("1", "2")) == ["cut out, this alone shows it:", *lines, *printed]
    assert found.file(("1", "2")) == "".join([texts[program], *(f"# {line}\n" for line in printed)])


def test_a_call_draws_the_same_numbers_as_its_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.random.fork_rng():
        outcome = Pair(torch, "rand_like", scaled, tmp_path).outcome(forward("torch.rand_like", "x", x=torch.ones(3)))
        torch.manual_seed(0)
        assert torch.equal(outcome.tensors["y0"], torch.rand(3))
    assert outcome.is_random
    jobs = json.dumps({"tensors": str(tmp_path / "tensors"), "requires": [], "lines": ["y = 1 / 0"], "outcome": ""})
    printed = io.StringIO()
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{jobs}\n"))
    monkeypatch.setattr(sys, "stdout", printed)
    worker.main()
    assert json.loads(printed.getvalue()) == {"error": "ZeroDivisionError: ['division by zero']"}


def test_workers_that_end_are_late_or_were_ended_by_the_call(tmp_path: Path) -> None:
    call = forward("torch.f", "x", x=torch.ones(1))
    script = tmp_path / "python"
    script.write_text('#!/bin/sh\nwhile read line; do echo \'{"error": "no such op"}\'; done\n', encoding="utf-8")
    script.chmod(0o755)
    with cut.Workers([str(script)] * 2) as workers:
        assert workers._timer.interval == 60
        assert workers.run(call) == (Outcome("no such op", {}),) * 2
        workers._stop()
        with pytest.raises(shrinking.LateError):
            workers.run(call)
    with (
        cut.Workers(["true"] * 2) as workers,
        pytest.raises(NoProgramError, match=r"^the call alone ends its process$"),
    ):
        workers.run(call)
    assert all(process.poll() is not None for process in workers._processes)
    assert not Path(workers._folder.name).exists()


def test_a_call_with_many_tensors_or_entries_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pseudograd_upgrade.cutting.recorder._MOST_BYTES", 16)
    few, many = torch.ones(4), torch.ones(5)

    def reason(*args: object) -> object:
        content = RecordedCall(torch.sigmoid, args, {}).content()
        return content if isinstance(content, str) else ""

    assert reason(few, few) == ""
    assert reason(many) == "one of its tensors has 5 entries"
    assert reason(few, few.clone()) == "its tensors have 8 entries together"
    assert reason(*(torch.ones(0) for _ in range(25))) == ""
    assert reason(*(torch.ones(0) for _ in range(26))) == "it has more than 25 tensors"
    assert reason(torch.ones(1).to_sparse()).startswith("an argument is inside a transform of torch.func, or is sparse")  # type: ignore[attr-defined]
    assert (
        reason(torch.ones(1).as_subclass(type("Own", (torch.Tensor,), {}))) == "an argument is a Own, no plain tensor"
    )
