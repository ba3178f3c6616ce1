"""A gradient that is not finite has a line, values that did it, and a next step that ends it when it is pasted."""

import copy
import importlib
import itertools
import math
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from pseudograd import diagnose
from pseudograd.diagnosis.context import Diagnosis
from pseudograd.diagnosis.count import births
from pseudograd.diagnosis.count.graph_shapes import op_of
from pseudograd.diagnosis.count.nonfinite import Nonfinite

from ..choices import folded, slow_but
from ..written import assert_written
from .checks import codes, define, diagnosed, make_function, only
from .trainers import Parts, steps

# --- the next step, pasted ----------------------------------------------------------------------------------------------


def _faults() -> Any:
    """The data of benchmarks/nan_tools.py."""
    folder = str(Path(__file__).parents[2] / "benchmarks")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        return importlib.import_module("nan_programs")


_PROGRAM = """\
import torch
from torch.nn import functional as F
p = torch.nn.Parameter(torch.linspace(-2, 2, 5).to(torch.{dtype}))
mask = torch.tensor([True, True, True, False, False])
z = p * 1
{line}
y[y.detach().isfinite()].float().sum().backward()
"""
# A line with a fault, and the values that it names.
_LINES = {
    "torch.where(z > 0, torch.sqrt(z), z)": "x is 0 (1) or below 0 (2)",
    "torch.where(mask, 0, (z * z).sum(0, keepdim=True).mul(0).sqrt())": "x is 0",
    "torch.relu(z).sqrt() + (z - z).abs().sqrt()": "x is 0",
    "(z - z).abs() ** 0.5": "x is 0",
    "torch.where(z == 0, z, z / z)": "x is 0",
    "torch.where(mask, z * torch.log(z.abs()), z)": "a factor is -inf",
    "torch.where(z > 0, torch.log(z), z)": "x is 0",
    "torch.acos(z / 2)": "x is 1 (1) or -1 (1)",
    "torch.where(z.abs() < 2, torch.asin(z / 2), z)": "x is 1 (1) or -1 (1)",
    "torch.atanh(z / 2)": "x is 1 (1) or -1 (1)",
    "torch.acosh(z - z.detach() + 1)": "x is 1",
    "torch.where(z < 1, torch.exp(z * 500), z)": "x is above ",
    "torch.where(z > 0, z.rsqrt(), z)": "x is 0 (1) or below 0 (2)",
    "torch.where(mask, z, torch.log1p(z * 0 - 1))": "x is -1, and",
    "torch.special.entr(z * (z > 0))": "x is 0",
    "(z - torch.inf * (mask | ~mask)).log_softmax(0)": "",
    "torch.logit(z - z.detach() + (z.detach() > 0))": "x is 0 (3) or 1 (2)",
    "torch.addcdiv(z, z, z - z.detach())": "x is 0",
    "z / (z - z.detach()).square().sum(0, keepdim=True).sqrt()": "x is 0",
    "z / (z - z.detach() + z.detach().sub(z.detach()))": "x is 0",
    "torch.where(mask, z / len(''), z)": "",
}


def _run(program: str, file: Path) -> tuple[Diagnosis, Tensor]:
    file.write_text(program, encoding="utf-8")
    values: dict[str, Tensor] = {}
    with diagnose() as d:
        exec(compile(program, file, "exec"), values)
    grad = values["p"].grad
    return d, grad


_DTYPES = ("float32", "float16", "bfloat16", "float64")
_IN_TURNS = {(line, _DTYPES[at % 4]) for at, line in enumerate(_LINES)}


@folded
@pytest.mark.parametrize(
    ("line", "dtype"), slow_but(_IN_TURNS, itertools.product(_LINES, _DTYPES), pytest.mark.program)
)
def test_the_line_of_the_next_step_ends_the_nan(line: str, dtype: str, tmp_path: Path) -> None:
    program = _PROGRAM.format(dtype=dtype, line=f"y = {line}")
    d, grad = _run(program, tmp_path / "fault.py")
    findings = [finding for finding in d.findings if finding.code == "nonfinite"]
    assert findings
    assert not bool(grad.isfinite().all())
    assert any(_LINES[line] in finding.evidence for finding in findings)
    for finding in findings:
        assert finding.where.endswith("fault.py:6")
        assert finding.expression in line
        program = program.replace(finding.expression, finding.next_step.partition("  #")[0])
    d, grad = _run(program, tmp_path / "mended.py")
    assert "nonfinite" not in codes(d)
    assert bool(grad.isfinite().all())


# The log of what rounds to 0; its cause, and the function of torch for both. A clamp where log_softmax is -inf, too.
_LOGS = {
    "(z * 200).softmax(0)[1:].log()": ("softmax rounds", "torch.log_softmax(z * 200, 0)[1:]"),
    "(z * 200).softmax(0).gather(0, z.argsort()).log()": ("softmax rounds", "torch.log_softmax(z * 200, 0)"),
    "(z * 200).sigmoid().log()": ("sigmoid rounds", "F.logsigmoid(z * 200)"),
    "(1 - (z * 200).sigmoid()).log()": ("sigmoid rounds", "F.logsigmoid(-(z * 200))"),
    "z.masked_fill(z < 0, -torch.inf).softmax(0)[1:3].log()": ("a logarithm", ""),
    "(1 - (z * 200).softmax(0)).log()": ("a logarithm", ""),
}


@pytest.mark.parametrize("fault", _LOGS)
def test_the_log_of_a_softmax_gets_the_function_of_torch_for_both(fault: str, tmp_path: Path) -> None:
    cause, mend = _LOGS[fault]
    d, grad = _run(_PROGRAM.format(dtype="float32", line=f"y = {fault}"), tmp_path / "fault.py")
    finding = only(d, "nonfinite")
    assert cause in finding.cause
    assert not bool(grad.isfinite().all())
    assert (finding.next_step.partition("(")[0] in mend) if mend else ("clamp(" in finding.next_step)
    if mend:
        d, grad = _run(_PROGRAM.format(dtype="float32", line=f"y = {mend}"), tmp_path / "mended.py")
        assert "nonfinite" not in codes(d)
        assert bool(grad.isfinite().all())


def birth_of(function: Callable[[Tensor, Tensor], Tensor], *numbers: float) -> str:
    """The kind of a birth at a function of an x with these numbers, and the clause about x."""
    x = nn.Parameter(torch.tensor([*map(float, numbers)]))
    y: Any = function(x * 1, torch.ones_like(x))
    op = op_of(y.grad_fn)
    clause, is_ordinary = births.describe_input(op, y.grad_fn, torch.ones_like(y, dtype=torch.bool))
    return f"{births.kind_of(op, y.grad_fn, is_ordinary)}: {clause}"


def broken(*numbers: float) -> str:
    return births.broken_numbers(torch.tensor(numbers))


def is_calm(hits: int, backwards: int, kind: str, **state: Any) -> bool:
    """If it is no finding that gradients of this kind were not finite in so many backwards."""
    recorder: Any = SimpleNamespace(leaves=None, noted=None, backwards=backwards)
    record: Any = Nonfinite(recorder, lambda: True)
    vars(record).update(state, hit_backwards=list(range(1, hits + 1)), births={1: SimpleNamespace(kind=kind)})
    answer = record.is_calm
    record.reached = {1: None}
    assert (record.is_finding, bool(record.births)) == (not answer, True)
    return answer


def test_a_birth_has_the_written_kind_and_the_values_that_did_it() -> None:
    names = {
        "torch": torch,
        "birth_of": birth_of,
        "broken": broken,
        "is_calm": is_calm,
        "inf": math.inf,
        "nan": math.nan,
    }
    assert_written(Path(__file__).with_name("births.txt"), names)


_FROM_INPUTS = """
x.log(), x.log1p(), x.sinh(), x * w, x.detach() * w, x / w, x ** 2, x ** w, x @ w, x @ w.t(), w @ x, torch.mv(x, x[0])
torch.addmm(zeros, x, w), torch.addmm(zeros, w.t(), x), torch.addmv(zeros[0], x, x[0]), torch.addr(zeros, x[0], x[1])
torch.dot(x[0], x[1]), torch.baddbmm(zeros[None], x[None], x[None]), torch.xlogy(x, w)
"""
_FROM_X = (
    "x * w, x / w, x * 3, x / 3, x.double(), x.clone(), x.view(4), x[:, None], x.sum(-1), x.sum((0, -1), True), x.sum()"
)


def test_the_result_of_an_op_is_known_from_its_inputs_or_from_x() -> None:
    w = nn.Parameter(torch.tensor([[2.0, 3.0], [4.0, 5.0]]))
    names = {"torch": torch, "x": (x := w * 0.1 + 1), "w": w, "zeros": torch.zeros(2, 2)}
    for y in eval(f"({_FROM_INPUTS.strip().replace(chr(10), ', ')})", names):
        result = births.recompute(op_of(y.grad_fn), y.grad_fn)
        assert result is not None
        assert result.reshape(y.shape).tolist() == y.tolist()
    for y in eval(f"({_FROM_X})", names):
        replay = births.replay_of(op_of(y.grad_fn), y.grad_fn)
        assert replay is not None
        assert torch.equal(replay(x), y)
    for y in (x.sin(), 2**x):
        assert births.recompute(op_of(y.grad_fn), y.grad_fn) is births.replay_of(op_of(y.grad_fn), y.grad_fn) is None


def test_the_line_of_the_next_step_keeps_a_value_that_the_loss_uses(tmp_path: Path) -> None:
    """Behind a square 0 arrives, too, and nothing is left out: the distance of equal vectors is 0 in the loss."""
    program = _PROGRAM.format(dtype="float32", line="y = torch.sqrt((z - z) ** 2).square()")
    d, _ = _run(program, tmp_path / "fault.py")
    finding = only(d, "nonfinite")
    assert "as behind a where, a mask, a clamp or a square" in finding.cause
    mended = program.replace(finding.expression, finding.next_step.partition("  #")[0])
    _, grad = _run(mended + "assert y.max() < 1e-6", tmp_path / "mended.py")
    assert not bool(grad.any())


def _next_step(line: str, p: nn.Parameter, folder: Path, grad: Tensor | None = None) -> str:
    body = f"y = {line}\ny.backward(torch.ones_like(y) if grad is None else grad)"
    with diagnose() as d:
        define(body, folder / "line.py", "", torch=torch, p=p, grad=grad)()
    finding = only(d, "nonfinite")
    return f"{finding.cause}; {finding.next_step} of {finding.expression}"


def test_the_next_step_is_as_short_as_it_can_be(tmp_path: Path) -> None:
    """A long operand has a name only where it stands twice."""
    p = nn.Parameter(torch.ones(3))
    assert "inner" not in _next_step("torch.sqrt(p.sub(p.detach()).square().sum(0, keepdim=True))", p, tmp_path)
    twice = _next_step("p / p.sub(p.detach()).sum(0, keepdim=True)", p, tmp_path)
    assert "(inner := p.sub(p.detach()).sum(0, keepdim=True)).abs() > 1e-06, inner," in twice


@pytest.mark.parametrize(
    ("line", "said"),
    {
        "10 ** (p * 99)": "the result, or the gradient, is larger than its dtype holds",
        "torch.hypot(p - p.detach(), p * 0)": "; (x * x + y * y).clamp(min=1e-12).sqrt()  # in place of hypot(x, y)",
        "torch.rms_norm(p - p.detach(), (3,), eps=0.0)": "# for the x that enters rsqrt here",
        "torch.nn.functional.normalize(p - p.detach(), dim=0, eps=0.0)": "# for the divisor here",
    }.items(),
)
def test_the_next_step_changes_no_x_but_that_of_the_op(line: str, said: str, tmp_path: Path) -> None:
    """A number has no clamp, a hypot takes x below 0, and a function of torch divides by no argument of its own."""
    assert said in _next_step(line, nn.Parameter(torch.ones(3)), tmp_path)


@pytest.mark.parametrize("dtype", [torch.float32, torch.cfloat])
def test_a_division_whose_quotient_is_left_out_gets_another_divisor(dtype: torch.dtype, tmp_path: Path) -> None:
    p, division = nn.Parameter(torch.ones(3, dtype=dtype)), "p / (p - p.detach())"
    assert "(p - p.detach()), 1e-06))  # in front of it" in _next_step(division, p, tmp_path)
    masked = _next_step(f"torch.where(p.real > 9, {division}, 0)", p, tmp_path)
    assert "(p - p.detach()), 1))  # in front of it: what stands behind it comes too late" in masked


@pytest.mark.parametrize("divisor", [2.0, 0.001])
def test_a_division_by_an_ordinary_number_overflows(divisor: float, tmp_path: Path) -> None:
    """A divisor that is kept from 0, as the least width of a Gaussian, needs no other floor."""
    p, grad = nn.Parameter(torch.full((3,), divisor)), torch.full((3,), 1e4)
    text = _next_step("torch.full((3,), 3e35) / p", p, tmp_path, grad)
    assert text.startswith("the result, or the gradient, is larger")


def test_a_result_beyond_float16_is_no_gradient_that_a_scaler_lowers(tmp_path: Path) -> None:
    p, grad = nn.Parameter(torch.ones(3, dtype=torch.float16)), torch.tensor(math.inf, dtype=torch.float16)
    assert "(p * 400).pow(2)" in _next_step("(p * 400).pow(2).sum().sqrt()", p, tmp_path, grad)
    start = "the result is larger than float16 holds: 65,504; ((p * 400).float()).pow(2)  # compute it in float32"
    assert _next_step("(p * 400).pow(2)", p, tmp_path).startswith(start)


def test_a_nan_that_a_mask_keeps_from_every_gradient_is_told_if_the_loss_is_nan() -> None:
    net, x = nn.Linear(4, 8), torch.randn(16, 4)

    def loss() -> Tensor:
        return net(x).masked_fill(torch.ones(8, dtype=torch.bool), -math.inf).softmax(1).mean()

    d = steps(net, loss, 2, torch.optim.SGD(net.parameters(), 0.1))
    assert codes(d)[0] == "nonfinite"
    assert "the result are not finite, and so is the loss; no parameter got it" in d.findings[0].evidence
    assert d.findings[0].cause.startswith("every entry of a row is -inf, or one is inf or nan")


def test_an_op_of_the_forward_is_not_called_its_backward(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="degrees of freedom"):
        said = _next_step("p[None].std(0)", nn.Parameter(torch.ones(3)), tmp_path)
    assert said.startswith("too few entries: a mean of none, or the spread of a single one, has no value; ")
    said = _next_step("torch.nn.functional.mse_loss(p[:0], p[:0].detach()) * p", nn.Parameter(torch.ones(3)), tmp_path)
    assert "; Leave this loss out where it has no entries." in said


@pytest.mark.parametrize("is_reentrant", [None, False, True])
def test_the_first_steps_of_a_scaler_are_calm_behind_a_relu_too(is_reentrant: bool | None) -> None:
    """The relu cuts some of what overflowed, and no step uses any of it. In a checkpoint, its Function did not make it."""
    head = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))

    def scaled(x: Tensor) -> Tensor:
        return head(x) * 20

    def net(x: Tensor) -> Tensor:
        x.requires_grad_()
        return scaled(x) if is_reentrant is None else checkpoint(scaled, x, use_reentrant=is_reentrant)

    optimizer, scaler = torch.optim.SGD(head.parameters(), 1e-3), torch.amp.GradScaler("cpu", init_scale=2.0**16)
    with diagnose() as d:
        for _ in range(12):
            x = torch.randn(24, 8)
            with torch.autocast("cpu", dtype=torch.float16):
                loss = functional.cross_entropy(net(x), x[:, :3].argmax(1), reduction="sum")
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    assert codes(d) == []
    assert any("as a GradScaler" in line for line in d.calm)


def test_a_loss_that_is_not_finite_is_told_where_every_gradient_is() -> None:
    p = nn.Parameter(torch.tensor([300.0, 2.0], dtype=torch.float16))
    with diagnose() as d:
        for scale in (1, 0.01, 1):
            ((p * scale).square().sum().sqrt() + p.sum()).backward()
    where = "tests/diagnosis/test_nonfinite.py:"
    (line,) = [line for line in d.calm if line.startswith(f"the loss at {where}")]
    assert line.endswith("is not finite in 2 of 3 backward passes that were looked at, first in backward 1")


@pytest.mark.program
@folded
@pytest.mark.parametrize("fault", _faults().FAULTS)
def test_the_programs_that_tools_are_compared_with_have_their_lines_and_causes(fault: str, tmp_path: Path) -> None:
    faults, file = _faults(), tmp_path / "train.py"
    file.write_text(faults.source_of(fault))
    program: dict[str, Any] = {}
    exec(compile(file.read_text(), file, "exec"), program)
    with diagnose(program["net"]) as d:
        program["train"]()
    finding = only(d, "nonfinite")
    assert re.search(faults.FAULTS[fault][1], finding.cause)
    assert finding.where in [f"{file}:{line}" for line in faults.lines_of(fault)]


# --- the forward, the data, the weights -----------------------------------------------------------------------------------


_BROKEN = torch.ones(16, 4).index_put((torch.tensor(0), torch.tensor(0)), torch.tensor(math.nan))
# A loss, in which the blamed expression stands between guillemets; and a part of the evidence.
_SOURCES = {
    "the forward": ("«(net(x) * 0).log()».mean()", "it came in with the forward"),
    "overflow": ("«(net(x) * 900).exp()».mean()", "where x is above 88.72, and so is"),
    "data": ("«net(broken)».square().mean()", "1 of 64 entries of what is put in with weight are nan"),
    "target": (
        "«functional.mse_loss(net(x), torch.full((16, 8), inf))»",
        "128 of 128 entries of 'target' here are inf in backward 1, and so is the loss: it came in from outside of the graph",
    ),
    "weights": (
        "net(x).square().mean() if net.weight.data[0].fill_(nan).any() else 0",
        "weight is not finite before backward 1",
    ),
    "a row": (
        "«net(x).masked_fill(x.new_ones(8) > 0, -inf).log_softmax(-1)».mul(net(x)).mean()",
        "it came in with the forward",
    ),
    "a division in front of tanh": (
        "(«net(x).mul(0) / (0 * x[:, :1])»).tanh().mean()",
        "entries of the result are not finite, where x is 0",
    ),
    "a division in front of a softmax": (
        "((«net(x).sub(1) / (x[:, :1] * 0)») @ net(x).T).softmax(-1).mean()",
        "128 of 128 entries of the result are not finite, where x is 0",
    ),
    "a function": (
        "«Infinite.apply(net(x))».mean()",
        "born in backward 1: 128 of 128 entries that leave are not finite",
    ),
    "a mean of nothing": (
        "net(x).square().mean() * «net(x)[net(x) > 99].mean()»",
        "1 of 1 entries of the result are not finite, and so is the loss",
    ),
    "a loss without targets": (
        "net(x).mean() * («functional.cross_entropy(net(x), torch.full((16,), -100))» + 1)",
        "1 of 1 entries of the result are not finite, and so is the loss",
    ),
    "an op behind which nothing gets it": (  # in the second step, the weight gets nan from the bias
        "(«functional.linear(x, net.weight).sub(99).relu().log()» + net.bias).square().mean() + (net.weight.T * net.bias).mean()",
        "and so is the loss; 1 parameter got it: bias; the step after backward 1 used it",
    ),
    "a target beside it": (
        "«(net(x) + torch.full((8,), inf)).square()».mean()",
        "128 of 128 entries that leave are not finite, where x is inf, and all that arrive",
    ),
    "a product": (
        "«torch.baddbmm(torch.zeros(1, 16, 16), net(x)[None] * 1e30, net(x).T[None] * 1e30)».mean()",
        "256 of 256 entries of the result are not finite, and so is the loss",
    ),
    "the first layer": ("«net(x.sign() * 3.4e38)».square().sum()", "entries of the result are not finite, and"),
    "a sum": ("«(net(x) * 8e18).square().sum()»", "1 of 1 entries of the result are not finite"),
    "a factor in front of a sum": ("(«net(x).square() * 3e38»).sum()", "entries of the result are not finite"),
    "matrices": ("(«(net(x) * 1e30) @ (net(x).T * 1e30)»).mean()", "256 of 256 entries of the result are not finite"),
    **{
        f"the forward of a checkpoint, {name}": (
            "checkpoint(lambda x: «(net(x) * 900).exp()».tanh() + (net(x) * 900).exp(), x.requires_grad_(), "
            f"use_reentrant={name == 'reentrant'}).square().mean()",
            "entries of the result are not finite",
        )
        for name in ("run again", "reentrant")
    },
    "a row of a checkpoint": (
        "checkpoint(lambda x: net(x) + «net(x).masked_fill(x.new_ones(8) > 0, -inf).softmax(-1)», x.requires_grad_(), "
        "use_reentrant=True).square().mean()",
        "entries of the result are not finite",
    ),
    "a checkpoint": (  # its own backward returns what the one inside of it made
        "checkpoint(lambda x: «(net(x) * 0).sqrt()», x.requires_grad_(), use_reentrant=True).mean()",
        "born in backward 1: 128 of 128 entries that leave are not finite",
    ),
}


def _diagnose_source(name: str, folder: Path, count: int) -> tuple[Diagnosis, str]:
    """After so many steps; and the expression to blame."""
    source, names = _SOURCES[name][0], {"functional": functional, "checkpoint": checkpoint, "broken": _BROKEN}
    infinite = make_function("Infinite", lambda ctx, x: x.clone(), lambda ctx, grad: grad / 0)
    names |= {"torch": torch, "inf": math.inf, "nan": math.nan, "Infinite": infinite}
    loss = define(f"return {re.sub('[«»]', '', source)}", folder / "loss.py", "net, x", **names)
    net, x = nn.Linear(4, 8), torch.randn(16, 4)
    d = steps(net, lambda: loss(net, x), count, torch.optim.SGD(net.parameters(), 0.1))
    return d, source.partition("«")[2].partition("»")[0]


@pytest.mark.parametrize("name", _SOURCES)
def test_a_broken_loss_is_blamed_where_it_came_from(name: str, tmp_path: Path) -> None:
    d, expression = _diagnose_source(name, tmp_path, 2)
    assert codes(d)[:1] == ["nonfinite"]
    finding = only(d, "nonfinite")
    assert _SOURCES[name][1] in finding.evidence
    assert finding.expression == expression
    assert re.search("parameters? got it", finding.evidence)
    assert "the step after backward 1 used it" in finding.evidence


def test_a_factor_that_a_checkpoint_hides_is_blamed_by_what_it_makes() -> None:
    p = nn.Parameter(torch.tensor([0.0, 1.0]))
    d = diagnosed(
        lambda: checkpoint(
            lambda: torch.where(p > 0, 1 * p.sqrt().reciprocal() * p.sqrt(), p), use_reentrant=False
        ).sum()
    )
    assert d.findings[0].cause.startswith("the other factor is not finite here. What arrives at these entries is 0")


def test_a_product_in_the_only_backward_has_its_line(tmp_path: Path) -> None:
    d, expression = _diagnose_source("matrices", tmp_path, 1)
    assert only(d, "nonfinite").expression == expression


_CHECKPOINTED: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "plain": lambda f, x: f(x),
    "compiled": lambda f, x: torch.compile(f, backend="aot_eager")(x),
    "run again": lambda f, x: checkpoint(f, x, use_reentrant=False),
    "reentrant": lambda f, x: checkpoint(f, x.requires_grad_(), use_reentrant=True),
}


@pytest.mark.parametrize("way", _CHECKPOINTED)
def test_a_gradient_that_overflows_in_the_only_backward_has_its_line(way: str) -> None:
    net, x = nn.Linear(4, 8), torch.ones(16, 4)
    with diagnose() as d:
        y = _CHECKPOINTED[way](lambda x: net(x).relu(), x)
        ((y - y.detach()) * 3e38).sum().backward()
    assert only(d, "nonfinite").expression == "net(x)"
    assert "all that arrive are finite" in only(d, "nonfinite").evidence


def test_rows_that_a_lookup_adds_up_overflow() -> None:
    rows = nn.Parameter(torch.ones(2, 4))
    with diagnose() as d:
        y = functional.embedding(torch.zeros(40, dtype=torch.long), rows)
        ((y - y.detach()) * 3e38).sum().backward()
    assert only(d, "nonfinite").cause.startswith("the result, or the gradient, is larger than its dtype holds")


def test_a_product_whose_gradient_overflows_in_a_later_step_is_named_in_the_next_one() -> None:
    w, v = nn.Parameter(torch.ones(4, 4)), torch.full((4, 4), 1e30)
    with diagnose() as d:
        for scale in (1.0, 1.0, 1.0, 1.0, 1e20, 1e20, 1e20):
            (torch.full((8, 4), 1e-30) @ w @ v * scale).sum().backward()
    finding = only(d, "nonfinite")
    assert finding.evidence.startswith("born in backward 6: 32 of 32 entries that leave are not finite")
    assert finding.expression == "torch.full((8, 4), 1e-30) @ w @ v"


def test_a_value_that_enters_is_no_fault_of_the_op_that_it_enters(tmp_path: Path) -> None:
    finding = only(_diagnose_source("a target beside it", tmp_path, 1)[0], "nonfinite")
    assert finding.cause == "a value that enters is not finite: it came in with the forward, from an op before it"
    assert "clamp" not in finding.next_step


@pytest.mark.parametrize("maker", ["log", "softmax", "not trained"])
def test_what_is_detached_is_named_where_a_later_graph_makes_it_or_at_the_call_that_gets_it(maker: str) -> None:
    """The discriminator of a GAN is called at three lines; the first step of its own gets what the generator made of 0."""
    net, judge, x = nn.Linear(4, 4), nn.Linear(4, 1), torch.randn(16, 4)
    optimizers = torch.optim.SGD(net.parameters(), 0.1), torch.optim.SGD(judge.parameters(), 0.1)
    with diagnose() as d:
        for _ in range(3):
            h = net(x).masked_fill(torch.ones(4) > 0, -math.inf)
            fake = h.softmax(1) if maker == "softmax" else (net(x) * 0).log()
            (judge(x).square() + judge(torch.cat([x, fake.detach()])).square().mean()).mean().backward()
            optimizers[1].step()
            if maker != "not trained":
                judge(fake).mean().backward()
                optimizers[0].step()
    finding = only(d, "nonfinite")
    expressions = {"log": "(net(x) * 0).log()", "softmax": "h.softmax(1)"}
    assert finding.expression == expressions.get(maker, "judge(torch.cat([x, fake.detach()]))")
    assert (", and so is the loss, as in backward 1" in finding.evidence) == (maker in expressions)


MATRICES: dict[str, tuple[Callable[[Tensor], Tensor], Tensor, str]] = {
    "eigh": (lambda x: torch.linalg.eigh(x @ x.T)[1], torch.eye(4), "torch.diag(torch.linspace(0, 1e-3, n))"),
    "svd": (lambda x: torch.linalg.svd(x)[0], torch.eye(4), "torch.diag(torch.linspace(0, 1e-3, n))"),
    "qr": (lambda x: torch.linalg.qr(x)[0], torch.zeros(4, 4), "1e-4 * torch.eye(n)"),
    "matrix_exp": (torch.matrix_exp, 200 * torch.eye(4), "x.clamp(max=40)"),
}


@pytest.mark.parametrize("name", MATRICES)
def test_the_advice_for_a_matrix_mends_it(name: str) -> None:
    """One number on the whole diagonal leaves equal eigenvalues equal."""
    function, start, advised = MATRICES[name]
    x, weights = nn.Parameter(start.clone()), torch.randn(4, 4)
    d = diagnosed(lambda: (function(x) * weights).sum())
    assert advised in only(d, "nonfinite").next_step
    x.grad, change = None, eval(advised, {"torch": torch, "n": 4, "x": x})
    (function(change if "x" in advised.split(".")[0] else x + change) * weights).sum().backward()
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.RMSprop, torch.optim.Adagrad])
def test_an_epsilon_that_is_0_in_float16_is_named_and_the_advice_mends_it(kind: type[torch.optim.Adam]) -> None:
    net, x = nn.Linear(4, 3).half(), torch.randn(8, 4).half()
    x[:, 0] = 0
    weights = copy.deepcopy(net.state_dict())
    d = steps(None, lambda: net(x).square().mean(), 3, kind(net.parameters(), 1e-3))
    finding = only(d, "nonfinite")
    assert f"of {kind.__name__} is 0 in float16" in finding.cause
    net.load_state_dict(weights)
    optimizer = eval(f"kind(net.parameters(), 1e-3, {finding.next_step.partition('#')[0]})")
    assert codes(steps(None, lambda: net(x).square().mean(), 3, optimizer)) == []


# --- the steps ----------------------------------------------------------------------------------------------------------


def _train(check: Callable[[nn.Module], bool]) -> Diagnosis:
    torch.manual_seed(0)
    net, x = Parts(body=nn.Linear(4, 4), gain=nn.Parameter(torch.zeros(4))), torch.randn(16, 4)
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    with diagnose(net) as d:
        for _ in range(6):
            optimizer.zero_grad()
            (net.body(x).square().mean() + net.gain.abs().sum().sqrt()).backward()
            if check(net):
                optimizer.step()
    return d


def _are_finite(net: nn.Module) -> bool:
    return all(bool(p.grad is None or p.grad.isfinite().all()) for p in net.parameters())


def _clip(net: nn.Module) -> bool:
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    return True


def _replace(net: nn.Module) -> bool:
    for parameter in net.parameters():
        if parameter.grad is not None:
            parameter.grad.nan_to_num_(0.0, 0.0, 0.0)
    return True


def test_steps_that_are_skipped_use_or_replace_it_are_told_apart() -> None:
    finding = only(_train(_are_finite), "nonfinite")
    assert "1 parameter got it: gain; no step followed 6 of 6 such backwards" in finding.evidence
    assert finding.next_step.startswith("net.gain.abs().sum().clamp(min=1e-12).sqrt()")
    assert "gain; the step after backward 1 used that of 3 parameters" in only(_train(_clip), "nonfinite").evidence
    d = _train(_replace)
    assert "nonfinite" not in codes(d)
    (calm,) = [calm for calm in d.calm if calm.startswith("gradients were not finite in 6 backwards, born at ")]
    assert calm.endswith(": the program replaced them before 6 steps")


def test_half_precision_names_the_factor_and_a_warm_up_is_calm() -> None:
    def train(scales: list[float]) -> Diagnosis:
        p = nn.Parameter(torch.ones(4))
        optimizer = torch.optim.SGD([p], 1e-9)
        with diagnose() as d:
            for scale in scales:
                optimizer.zero_grad()
                (p.half() * 2).float().sum().mul(scale).backward()
                if p.grad is not None and bool(p.grad.isfinite().all()):
                    optimizer.step()
        return d

    assert codes(train([2.0**16, 2.0**15, 2.0**14, 2.0**13])) == []
    finding = only(train([2.0**17] * 12), "nonfinite")
    assert "a gradient leaves, 2 times as much as float16 holds: 65,504" in finding.cause
    assert "no step followed 12 of 12" in finding.evidence


@pytest.mark.parametrize(
    ("dtype", "advice"), [(torch.float32, "torch.amp.GradScaler"), (torch.float16, "Keep the weights in float32")]
)
def test_a_scaler_is_advised_for_weights_that_it_accepts(dtype: torch.dtype, advice: str) -> None:
    p = nn.Parameter(torch.ones(4, dtype=dtype))
    finding = only(diagnosed(lambda: (p.half() * 2).float().sum() * 2.0**17, times=12), "nonfinite")
    assert finding.next_step.startswith(advice)


@pytest.mark.parametrize("function", [lambda p: 1 / p, lambda p: torch.ones(2) / p])
def test_a_complex_0_is_no_negative_number(function: Callable[[Tensor], Tensor]) -> None:
    p = nn.Parameter(torch.tensor([0j, 1 + 1j]))
    assert "where x is 0, and" in only(diagnosed(lambda: function(p).real.sum()), "nonfinite").evidence


@pytest.mark.parametrize(
    "loss", [lambda x: x.masked_fill(x > 0, -math.inf).softmax(0)[0], lambda x: x.exp().log().sum()]
)
def test_infinities_that_are_meant_are_no_finding(loss: Callable[[Tensor], Tensor]) -> None:
    p = nn.Parameter(torch.linspace(-1, 1, 5))
    with diagnose() as d:
        torch.logsumexp(torch.stack([p, torch.full((5,), -math.inf)]), 0).sum().backward()
        loss(p).backward()
    assert codes(d) == []
    assert d._recorder.nonfinite is None


def test_a_slope_that_grows_without_end_in_a_later_step_has_its_value_too() -> None:
    """Gradients of earlier steps were counted in groups, when the saved values of their nodes were gone."""
    w = torch.nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
    with diagnose() as d:
        for step in range(4):
            (w * float(step != 3)).sqrt().sum().backward()
    (finding,) = d.findings
    assert finding.evidence.startswith("born in backward 4: 3 of 3 entries that leave are not finite, where x is 0")
