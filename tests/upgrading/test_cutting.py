"""A call that differs is made small, and written: in this process, with torch and with a torch of which one function was changed."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pseudograd_upgrade.cutting import cut, names, smaller, text, trees, worker
from pseudograd_upgrade.cutting.call import Call
from pseudograd_upgrade.cutting.literals import tensor_text
from pseudograd_upgrade.cutting.memory import own_memory
from pseudograd_upgrade.cutting.shrinking import Shrinking
from pseudograd_upgrade.cutting.trees import UnwritableError
from pseudograd_upgrade.cutting.workers import Outcome, apart
from pseudograd_upgrade.cutting.written_call import WrittenCall, write_update

F = torch.nn.functional
Change = Callable[..., Any]


class Pair:
    """In place of two processes. changed: the function of the newer torch, which gets the known one first."""

    def __init__(self, owner: Any, name: str, changed: Change, folder: Path) -> None:
        self.owner, self.name, self.changed, self.folder = owner, name, changed, folder
        self.asked = 0

    def outcomes(self, call: Call) -> list[Outcome]:
        self.asked += 1
        known = getattr(self.owner, self.name)
        with pytest.MonkeyPatch.context() as patch:
            old = self._one(call)
            patch.setattr(self.owner, self.name, lambda *args, **kwargs: self.changed(known, *args, **kwargs))
            return [old, self._one(call)]

    def _one(self, call: Call) -> Outcome:
        torch.save(dict(call.tensors), self.folder / "tensors")
        files = {"tensors": str(self.folder / "tensors"), "outcome": str(self.folder / "outcome")}
        try:
            said = worker._outcome({**files, "requires": sorted(call.requires), "lines": call.lines()})
        except Exception as error:
            return Outcome(str(error), {})
        tensors = torch.load(self.folder / "outcome", weights_only=True)
        return Outcome(None, tensors, said["is_random"], said["is_tensor"])


def program(owner: Any, name: str, changed: Change, call: Call, folder: Path) -> str:
    """Without its first two lines."""
    with torch.random.fork_rng():
        found = Shrinking(Pair(owner, name, changed, folder)).shrunk(call)  # type: ignore[arg-type]
    return next(text.programs(found)).removeprefix("import torch\n\n")


def tensor(name: str) -> trees.Tree:
    return {"tensor": name}


def forward(name: str, *args: Any, form: str = names.FUNCTION, kwargs: Any = None, **tensors: Any) -> Call:
    return Call("forward", form, name, args, kwargs or {}, tensors)


def backward(name: str, *args: Any, grad: Any, form: str = names.FUNCTION, kwargs: Any = None, **tensors: Any) -> Call:
    requires = frozenset(one for one, value in tensors.items() if value.is_floating_point() or value.is_complex())
    grads = ((None, "grad"),)
    return Call("backward", form, name, args, kwargs or {}, {**tensors, "grad": grad}, requires, grads)


def some(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def scaled(known: Change, *args: Any, **kwargs: Any) -> Any:
    return known(*args, **kwargs) * 1.5


def with_gradient(change: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Change:
    """The same values; change: of what it got and the gradient that arrives, the gradient that is taken for it."""

    def changed(known: Change, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        y = known(x, *args, **kwargs)
        if y.requires_grad:
            y.register_hook(lambda grad: change(x.detach(), grad))
        return y

    return changed


# --- the program of a call --------------------------------------------------------------------------------------------


def test_one_entry_of_an_elementwise_op(tmp_path: Path) -> None:
    found = program(
        F, "softplus", scaled, forward("torch.nn.functional.softplus", tensor("x"), x=some(32, 16)), tmp_path
    )
    assert found == "x = torch.tensor(4.0)\ny = torch.nn.functional.softplus(x)\nprint(y)\n"


def test_the_entry_at_which_the_gradient_differs(tmp_path: Path) -> None:
    x = some(32, 16)
    x[17, 5] = 0.0
    at_zero = with_gradient(lambda x, grad: torch.where(x == 0, 0.0, grad))
    call = backward("torch.sigmoid", tensor("x"), x=x, grad=some(32, 16))
    found = program(torch, "sigmoid", at_zero, call, tmp_path)
    assert found == "x = torch.tensor(0.0, requires_grad=True)\ny = torch.sigmoid(x)\ny.backward()\nprint(x.grad)\n"


def test_a_gradient_stays_where_the_difference_needs_it(tmp_path: Path) -> None:
    large = with_gradient(lambda x, grad: torch.where(grad > 2, 2.0, grad))
    call = backward("torch.sigmoid", tensor("x"), x=some(8), grad=torch.arange(8.0))
    found = program(torch, "sigmoid", large, call, tmp_path)
    assert found.splitlines() == [
        "x = torch.tensor(1.0, requires_grad=True)",
        "grad = torch.tensor(7.0)",
        "y = torch.sigmoid(x)",
        "y.backward(grad)",
        "print(x.grad)",
    ]


def test_dimensions_of_one_size_shrink_together_and_so_do_the_numbers_that_name_them(tmp_path: Path) -> None:
    args = (tensor("x"), {"tuple": [16]}, tensor("weight"), tensor("bias"), 1e-5)
    call = forward("torch.nn.functional.layer_norm", *args, x=some(32, 16), weight=torch.ones(16), bias=torch.zeros(16))
    found = program(F, "layer_norm", scaled, call, tmp_path)
    assert found.splitlines()[1:] == ["y = torch.nn.functional.layer_norm(x, (2,))", "print(y)"]
    assert found.startswith("x = torch.tensor([")


def test_arguments_that_do_not_matter_are_left_out(tmp_path: Path) -> None:
    kwargs = {"weight": None, "ignore_index": -100, "reduction": "mean", "label_smoothing": 0.1}
    call = forward(
        "torch.nn.functional.cross_entropy",
        tensor("x"),
        tensor("target"),
        kwargs=kwargs,
        x=some(32, 8),
        target=torch.arange(32) % 8,
    )
    found = program(F, "cross_entropy", scaled, call, tmp_path)
    assert found.splitlines()[1:] == [
        "target = torch.tensor([0])",
        "y = torch.nn.functional.cross_entropy(x, target)",
        "print(y)",
    ]


def test_one_that_matters_stays(tmp_path: Path) -> None:
    def changed(known: Change, *args: Any, beta: float = 1.0, **kwargs: Any) -> Any:
        return known(*args, beta=beta, **kwargs) * (1.5 if beta != 1.0 else 1.0)

    kwargs = {"beta": 2.123456, "threshold": 20.0}
    call = forward("torch.nn.functional.softplus", tensor("x"), kwargs=kwargs, x=some(4))
    found = program(F, "softplus", changed, call, tmp_path)
    assert "torch.nn.functional.softplus(x, beta=2.0)" in found


def test_what_differs_in_place(tmp_path: Path) -> None:
    def changed(known: Change, *args: Any) -> Any:
        return known(*args).add_(0.5)

    call = forward("mul_", tensor("x"), 2.0, form=names.METHOD, x=some(4, 4))
    assert "y = x.clone().mul_(2.0)" in program(torch.Tensor, "mul_", changed, call, tmp_path)


def test_a_tensor_that_is_given_twice_is_one(tmp_path: Path) -> None:
    q = some(2, 2, 4, 4)
    call = forward("torch.nn.functional.scaled_dot_product_attention", tensor("x"), tensor("x"), tensor("x"), x=q)
    found = program(F, "scaled_dot_product_attention", scaled, call, tmp_path)
    assert "scaled_dot_product_attention(x, x, x)" in found
    assert "x = torch.tensor([[[[" in found


def test_strides_that_matter_stay(tmp_path: Path) -> None:
    def changed(known: Change, x: torch.Tensor) -> Any:
        return known(x) if x.is_contiguous() else known(x) * 1.5

    call = forward("torch.sigmoid", tensor("x"), x=some(4, 6).t())
    found = program(torch, "sigmoid", changed, call, tmp_path)
    assert ".as_strided((2, 2), (1, " in found or ".as_strided((2,), (" in found, found


def test_autocast_that_matters_stays(tmp_path: Path) -> None:
    def changed(known: Change, x: torch.Tensor) -> Any:
        return known(x) * (1.5 if torch.is_autocast_enabled("cpu") else 1.0)

    call = forward("torch.sigmoid", tensor("x"), x=some(4))
    call = Call(**{**vars(call), "autocast": ("cpu", "torch.bfloat16")})
    found = program(torch, "sigmoid", changed, call, tmp_path)
    assert "with torch.autocast('cpu', torch.bfloat16):\n    y = torch.sigmoid(x)\nprint(y)" in found


def test_each_call_is_run_from_the_same_seed(tmp_path: Path) -> None:
    with torch.random.fork_rng():
        pair, call = Pair(torch, "sigmoid", scaled, tmp_path), forward("torch.rand", 4)
        first, again = pair._one(call), pair._one(call)
    assert first.is_random
    assert torch.equal(first.tensors["y0"], again.tensors["y0"])


def test_a_program_that_fails_alone_is_not_handed_out() -> None:
    assert cut._printed(sys.executable, "print(1.5)") == "1.5"
    with pytest.raises(UnwritableError, match="written as a program, it fails: ZeroDivisionError: division by zero"):
        cut._printed(sys.executable, "1 / 0")


def test_a_random_op_has_its_seed(tmp_path: Path) -> None:
    call = forward("torch.nn.functional.dropout", tensor("x"), 0.5, x=some(16))
    assert program(F, "dropout", scaled, call, tmp_path).startswith("torch.manual_seed(0)\nx = ")


def test_complex_numbers_keep_their_gradient(tmp_path: Path) -> None:
    x = torch.complex(some(8), some(8))
    call = backward("tanh", tensor("x"), form=names.METHOD, x=x, grad=x.clone())
    found = program(torch.Tensor, "tanh", with_gradient(lambda x, grad: grad * 2), call, tmp_path)
    assert "y.backward(grad)" in found
    assert "x = torch.tensor(complex(" in found


def test_many_entries_that_are_needed_are_made_by_one_call(tmp_path: Path) -> None:
    def changed(known: Change, x: torch.Tensor) -> Any:
        return known(x) * (1.5 if x.numel() > 300 else 1.0)

    found = program(torch, "sigmoid", changed, forward("torch.sigmoid", tensor("x"), x=some(32, 16)), tmp_path)
    assert found.startswith("x = torch.zeros((19, 16))") or found.startswith("x = torch.linspace(-1, 1, 304)"), found


def test_another_output_than_the_first(tmp_path: Path) -> None:
    def changed(known: Change, *args: Any) -> Any:
        values, at = known(*args)
        return values, at + 1

    found = program(torch, "max", changed, forward("torch.max", tensor("x"), 1, x=some(4, 4)), tmp_path)
    assert found.endswith("print(y[1])\n")


def test_one_parameter_of_an_optimiser(tmp_path: Path) -> None:
    def changed(known: Change, optimiser: Any) -> None:
        known(optimiser)
        optimiser.param_groups[0]["params"][-1].data.mul_(0.5)

    tensors = {"p0": some(3), "grad0": some(3), "p1": some(2, 2), "grad1": some(2, 2)}
    call = Call("update", names.UPDATE, "torch.optim.SGD", (), {"lr": 0.1}, tensors, frozenset({"p0", "p1"}))
    lines = program(torch.optim.SGD, "step", changed, call, tmp_path).splitlines()
    assert lines[0].startswith("p = torch.nn.Parameter(torch.tensor([")
    assert lines[1].startswith("p.grad = torch.tensor([")
    assert lines[2:] == ["torch.optim.SGD([p], lr=0.1).step()", "print(p.data)"]


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (lambda known, x: known(x), "with the same arguments, the call alone gives the same under both"),
        (lambda known, x: known(x) * (1 + 1e-7), "with the same arguments, the call alone gives the same under both"),
        (lambda known, x: 1 / 0, "the call alone fails: division by zero"),
    ],
)
def test_what_does_not_differ_alone_is_not_cut_out(changed: Change, why: str, tmp_path: Path) -> None:
    with pytest.raises(UnwritableError, match=why):
        program(torch, "sigmoid", changed, forward("torch.sigmoid", tensor("x"), x=some(4)), tmp_path)


def test_what_ten_lines_do_not_hold_is_not_cut_out(tmp_path: Path) -> None:
    x = torch.linspace(0, 1, 64, dtype=torch.float64).square()

    def changed(known: Change, given: torch.Tensor) -> Any:
        return known(given) * (1.5 if torch.equal(given, x) else 1.0)

    with pytest.raises(UnwritableError, match="what is left of it has 64 numbers, more than ten lines hold"):
        program(torch, "sigmoid", changed, forward("torch.sigmoid", tensor("x"), x=x), tmp_path)


def test_a_dimension_of_one_is_not_made_smaller() -> None:
    assert smaller._spans(1) == []
    assert smaller._spans(2) == [(0, 1), (1, 2)]


def test_an_update_is_written_of_the_optimisers_of_torch_alone() -> None:
    class SGD(torch.optim.SGD):
        pass

    parameter = torch.nn.Parameter(torch.ones(1))
    parameter.grad = torch.ones(1)
    of_torch = WrittenCall()
    write_update(of_torch, torch.optim.SGD([parameter], 0.1))
    assert set(of_torch.tensors) == {"p0", "grad0"}
    with pytest.raises(UnwritableError, match="SGD is no optimiser of torch"):
        write_update(WrittenCall(), SGD([parameter], 0.1))


def test_a_program_that_fails_as_it_is_written_says_so() -> None:
    with pytest.raises(UnwritableError, match=r"written as a program, it fails: no such thing$"):
        cut._printed(sys.executable, "import sys; sys.exit('tried\\nno such thing')")


# --- how it is written ------------------------------------------------------------------------------------------------


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
        some(3, 4).t(),
        some(4, 6)[:, ::2],
        some(3, 1).expand(3, 4),
    ],
    ids=lambda x: f"{x.dtype} {tuple(x.shape)} {x.stride()}",
)
def test_a_tensor_is_written_to_the_last_bit(x: torch.Tensor) -> None:
    own = own_memory(x)
    made = eval(tensor_text(own), {"torch": torch, "complex": complex})
    assert (made.dtype, made.shape, made.stride()) == (x.dtype, x.shape, own.stride())
    assert torch.equal(torch.nan_to_num(made, 123.0), torch.nan_to_num(x, 123.0))
    if x.is_floating_point():
        assert torch.equal(torch.signbit(made), torch.signbit(x))


def test_a_leaf_that_requires_a_gradient_is_written_as_one() -> None:
    for x in (torch.tensor(1.0), some(3, 4).t(), torch.zeros(9, 9)):
        made = eval(tensor_text(own_memory(x), requires=True), {"torch": torch})
        assert made.requires_grad
        assert made.is_leaf


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "None"),
        (1.5, "1.5"),
        (math.inf, "torch.inf"),
        (-math.inf, "-torch.inf"),
        (math.nan, "torch.nan"),
        ("mean", "'mean'"),
        ((1,), "(1,)"),
        ([1, (2, 3)], "[1, (2, 3)]"),
        (torch.Size([4]), "(4,)"),
        (torch.float16, "torch.float16"),
        (torch.channels_last, "torch.channels_last"),
        (torch.device("cpu"), "'cpu'"),
    ],
)
def test_an_argument_is_written_as_python_writes_it(value: Any, said: str) -> None:
    assert trees.text(trees.tree(value, str)) == said


def test_an_index_is_written_between_brackets() -> None:
    index = trees.tree((slice(None, 3), ..., slice(1, None, 2), None), str)
    call = forward("__getitem__", tensor("x"), index, form=names.OPERATOR, x=some(4))
    assert call.expression() == "x[:3, ..., 1::2, None]"
    for alone, said in ((slice(1, None), "x[1:]"), ((), "x[()]"), ((2,), "x[2]"), (-1, "x[-1]")):
        given = trees.tree(alone, str)
        assert forward("__getitem__", tensor("x"), given, form=names.OPERATOR, x=some(4)).expression() == said


def test_an_argument_that_cannot_be_written_says_so() -> None:
    with pytest.raises(UnwritableError, match="an argument is a function, which has no short way to be written"):
        trees.tree(lambda: 0, str)


@pytest.mark.parametrize(
    ("func", "written"),
    [
        (torch.clamp, (names.FUNCTION, "torch.clamp")),
        (F.softplus, (names.FUNCTION, "torch.nn.functional.softplus")),
        (torch.special.expit, (names.FUNCTION, "torch.special.expit")),
        (torch.einsum, (names.FUNCTION, "torch.einsum")),
        (torch.Tensor.clamp, (names.METHOD, "clamp")),
        (torch.Tensor.mT.__get__, (names.PROPERTY, "mT")),  # type: ignore[attr-defined]
        (torch.Tensor.__rsub__, (names.OPERATOR, "__rsub__")),
        (torch.Tensor.__getitem__, (names.OPERATOR, "__getitem__")),
        (torch.ops.aten.clamp.default, (names.FUNCTION, "torch.ops.aten.clamp.default")),
    ],
    ids=lambda one: getattr(one, "__name__", None),
)
def test_a_function_has_the_name_that_its_users_write(func: Any, written: tuple[str, str]) -> None:
    assert names.written(func) == written


def test_a_function_without_a_public_name_says_so() -> None:
    with pytest.raises(UnwritableError, match=r"prims\.abs is an op of another package"):
        names.written(torch.ops.prims.abs)
    with pytest.raises(UnwritableError, match="no function of torch that has a public name"):
        names.written(some)


def test_tensors_have_the_names_of_parameters() -> None:
    x, y, z = some(1), some(2), some(3)
    assert [names.Names(F.mse_loss, (x, y), {"weight": z}).of(one) for one in (x, y, z)] == ["x", "target", "weight"]
    assert [names.Names(torch.clamp, (x,), {"min": y}).of(one) for one in (x, y)] == ["x", "min_"]
    naming = names.Names(torch.cat, ([x, y],), {})
    assert [naming.of(one) for one in (x, y, x)] == ["x", "a", "x"]


# --- how far apart ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "far", "at"),
    [
        (torch.tensor([1.0, 4.0]), torch.tensor([1.0, 3.0]), 0.25, (1,)),
        (torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[1.0, 2.0], [1.0, 4.0]]), 0.5, (1, 0)),
        (torch.tensor([math.nan, 1.0]), torch.tensor([math.nan, 2.0]), 0.5, (1,)),
        (torch.tensor([math.nan, 1.0]), torch.tensor([0.0, 1.0]), math.inf, (0,)),
        (torch.tensor([math.inf, 1.0]), torch.tensor([-math.inf, 1.0]), math.inf, (0,)),
        (torch.tensor([2, 3]), torch.tensor([2, 4]), 0.25, (1,)),
        (torch.tensor(1.0), torch.tensor([1.0]), math.inf, ()),
        (torch.tensor(1.0), torch.tensor(1.0, dtype=torch.float64), math.inf, ()),
    ],
)
def test_how_far_apart_two_outcomes_are(
    one: torch.Tensor, other: torch.Tensor, far: float, at: tuple[int, ...]
) -> None:
    (found,) = apart(Outcome(None, {"y0": one}), Outcome(None, {"y0": other}))
    assert found.far == pytest.approx(far)
    assert found.at == at
    assert apart(Outcome(None, {"y0": one}), Outcome(None, {"y0": one.clone()})) == []
