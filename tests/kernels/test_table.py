"""The table of kernels: who is asked first, what doctor says of it, and how one runs alone."""

import ast
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import pseudograd as pg
from pseudograd import doctor, engine, kernels
from pseudograd.kernels import bits, table
from pseudograd.kernels.residuals import INPUTS
from pseudograd.rule import OPS, Call, make_call

from ..watching import Watching
from .ways import needs_native

FOLDER = Path(kernels.__file__).parent


def constant(name: str, number: float, **how: Any) -> kernels.Kernel:
    """A kernel that gives this number for every grad of clamp/inverting, which no other fused kernel serves."""

    def serves(call: Call) -> bool:
        return call.label == "clamp/inverting"

    def backward(grad: Tensor, *rest: Any) -> tuple[Any, ...]:
        return torch.full_like(grad, number), None, None

    return kernels.Kernel(name, INPUTS, serves, backward, **how)


@contextmanager
def registered(*entries: kernels.Kernel) -> Iterator[None]:
    kernels.register(*entries)
    try:
        yield
    finally:
        kernels.remove(*entries)


def gradient() -> list[float]:
    x = torch.tensor([0.75, 0.5], requires_grad=True)
    pg.clamp(x, 0, 1, rule="inverting", maximize=True).sum().backward()  # no kernel of ours serves it
    return x.grad.tolist()


TRUE = [0.25, 0.5]


def test_the_larger_priority_is_preferred_whichever_came_first() -> None:
    first, second = constant("first", 1.0, priority=3), constant("second", 2.0, priority=4)
    for order in ((first, second), (second, first)):
        with registered(*order):
            assert gradient() == [2, 2]
            with kernels.switch_off("second"):
                assert gradient() == [1, 1]
            with kernels.switch_off(second, "first"):
                assert gradient() == TRUE
            with kernels.use_only(first):
                assert gradient() == [1, 1]
            serving = kernels.that_serve(make_call(OPS["clamp"], "inverting", "closed"))
            assert [kernel.name for kernel in serving][-2:] == ["second", "first"]
    assert gradient() == TRUE


def test_of_equal_priorities_the_name_decides_and_the_librarys_own_are_in_order() -> None:
    a, b = constant("a", 1.0), constant("b", 2.0)
    for order in ((a, b), (b, a)):
        with registered(*order):
            assert gradient() == [1, 1]
    by_name = {kernel.name: kernel.priority for kernel in table._kernels if kernel.residual is INPUTS}
    assert by_name.get("native", 30) > by_name["portable"] > 0


def test_a_registered_kernel_is_in_doctor() -> None:
    def line() -> list[str]:
        lines = doctor.text(doctor.examine()).splitlines()
        return [" ".join(line.split()) for line in lines if line.startswith("  mine ")]

    assert line() == []
    with registered(constant("mine", 1.0, device="cpu")):
        assert line() == ["mine active registered, for clamp/inverting on CPU"]
        with kernels.switch_off("mine"):
            assert line() == ["mine not active switched off by kernels.switch_off"]
    with registered(constant("mine", 1.0)):
        assert line() == ["mine active registered, for clamp/inverting on any device"]
    assert line() == []


def test_doctor_says_what_each_kernel_serves_by_the_table() -> None:
    why = {row["kernel"]: row["why"] for row in kernels.status()}
    assert set(why) == {"native", "portable", "cuda"}
    assert why["portable"].startswith("a handful of ATen calls, for ")
    for rule in ("clamp/zero", "clamp/inward", "step/gaussian", "rounding/trust"):
        assert f"{rule}," in f"{why['portable'].removesuffix(' on any device')},"


@pytest.mark.usefixtures("table_as_it_was")
def test_a_rule_that_is_registered_is_served_and_shown() -> None:
    @pg.register_rule("clamp", formula="0", source="a test", is_linear=True, sides=lambda: ((0.0, 0.0), (0.0, 0.0)))
    def cut(grad: Tensor, x: Tensor, y: Tensor, min: Any, max: Any) -> Tensor:
        return torch.zeros_like(grad)

    assert "clamp/cut" in table.rules_of([kernel for kernel in table._kernels if kernel.name == "portable"])


def test_no_kernel_names_a_rule() -> None:
    """They read a rule's row; a rule of anybody's with such a row is served alike. An edge has a name of its own: "inward" is one, too."""
    rules = {rule for op in OPS.values() for rule in op.rules}
    assert [name for file in FOLDER.rglob("*.py") for name in _named(file, rules)] == []


def _named(file: Path, rules: set[str]) -> Iterator[str]:
    tree = ast.parse(file.read_text())
    edges = {
        id(name)
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare) and ast.unparse(node.left).endswith("edge")
        for name in node.comparators
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node.value in rules and id(node) not in edges:
            yield f"{file.name}:{node.lineno} {node.value}"


def operators_of(f: Any, x: Tensor, *off: str | kernels.Kernel, count: tuple[str, ...] = ("aten::",)) -> int:
    """How many functions of ATen, or others, a call and its backward run in all, without these kernels."""
    with kernels.switch_off(*off):
        y = f(x)
        y.backward(torch.ones_like(y))
        x.grad = None
        with torch.autograd.profiler.profile() as profile:
            y = f(x)
            y.backward(torch.ones_like(y))
        x.grad = None
    library = ("aten::", "pseudograd_native::")
    outermost = [
        event for event in profile.function_events if not str(getattr(event.cpu_parent, "name", "")).startswith(library)
    ]
    return sum(event.name.startswith(count) for event in outermost)


CALLS = {
    "clamp": [
        (rule, lambda x, rule=rule: pg.clamp(x, -1.0, 1.0, rule=rule)) for rule in ("inward", "zero", "leaky", "sign")
    ],
    "between tensors": [
        (rule, lambda x, rule=rule: pg.clamp(x, torch.zeros_like(x), torch.ones_like(x), rule=rule))
        for rule in ("inward", "zero")
    ],
    "relu": [(rule, lambda x, rule=rule: pg.relu(x, rule=rule)) for rule in OPS["relu"].rules],
    "gelu": [("fewbit", lambda x: pg.gelu(x, rule="fewbit"))],
    "sign": [(rule, lambda x, rule=rule: pg.sign(x, rule=rule)) for rule in ("window", "triangle", "gaussian")],
}


@pytest.mark.parametrize("op", CALLS)
def test_on_a_device_without_kernels_a_call_keeps_no_bits_and_runs_no_more_than_its_formula(
    op: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tensor on CPU stands in for one on such a device."""
    monkeypatch.setattr(bits, "devices", set())
    monkeypatch.setattr(bits, "_has_kernels", lambda x: False)
    x = torch.linspace(-2, 2, 5000).requires_grad_()
    with kernels.switch_off("native"):
        kept = {rule: f(x).grad_fn.state[1] for rule, f in CALLS[op]}
    assert {rule for rule, residual in kept.items() if residual is not INPUTS} == set()
    of_cpu = [kernel for kernel in table._kernels if kernel.device == "cpu"]
    counts = {rule: (operators_of(f, x, *of_cpu), operators_of(f, x, "native", "portable")) for rule, f in CALLS[op]}
    more = {rule: both for rule, both in counts.items() if both[0] > both[1] or not both[0]}
    assert more == {}


@pytest.mark.parametrize(
    ("device", "devices", "expected"), [("cpu", set(), True), ("mps", set(), False), ("cuda", {"cuda"}, True)]
)
def test_steps_keep_bits_on_the_cpu_and_where_kernels_are_active(
    device: str, devices: set[str], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bits, "devices", devices)
    assert bits._has_kernels(SimpleNamespace(is_cpu=device == "cpu", device=torch.device(device))) is expected  # type: ignore[arg-type]


@pytest.fixture
def no_kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As on a device without kernels. The mode that counts is not noticed."""
    monkeypatch.setattr(engine, "dispatch_modes", lambda: False)
    monkeypatch.setattr(bits, "_has_kernels", lambda x: False)
    before = set(bits.devices)
    with kernels.switch_off("native"):
        bits.devices.clear()
        yield
        bits.devices.update(before)


_advantage = torch.ones(100)
WITHOUT_KERNELS: dict[str, tuple[int, Callable[[Tensor], Tensor]]] = {
    "round": (1, pg.round),
    "fake_quantize": (18, lambda x: pg.fake_quantize(x, 0.25)),
    "fake_quantize, identity": (5, lambda x: pg.fake_quantize(x, 0.25, rule="identity")),
    "abs": (7, pg.abs),
    "abs, edge 1": (4, lambda x: pg.abs(x, edge=1)),
    "sign": (5, pg.sign),
    "policy loss": (37, lambda x: pg.policy.loss(x, _advantage)),
}


@pytest.mark.parametrize("name", WITHOUT_KERNELS)
def test_a_call_without_kernels_starts_few_operators(name: str, no_kernels: None) -> None:
    most, f = WITHOUT_KERNELS[name]
    x = torch.linspace(-2, 2, 100, requires_grad=True)
    grad = torch.ones(100)
    torch.autograd.grad(f(x), x, grad)  # prepares the call
    with Watching() as watching:
        torch.autograd.grad(f(x), x, grad)
    starts_nothing = {"detach", "promote_types", "view", "_local_scalar_dense"}
    assert sum(name not in starts_nothing for name in watching.names) == most


_LEVEL, _ADVANTAGE = torch.tensor(0.5, requires_grad=True), torch.ones(5000)
WITH_A_FORMULA: dict[str, tuple[int, Callable[[Tensor], Tensor]]] = {
    "policy loss": (4, lambda x: pg.policy.loss(x, _ADVANTAGE)),
    "policy loss in log space": (4, lambda x: pg.policy.loss(x, _ADVANTAGE, space="log", ceiling=3.0)),
    "fake_quantize, a scale that learns": (4, lambda x: pg.fake_quantize(x, _LEVEL)),
    "jumprelu, a threshold that learns": (4, lambda x: pg.jumprelu(x, _LEVEL, bandwidth=1.0)),
    "jumprelu, an exponential": (6, lambda x: pg.jumprelu(x, _LEVEL, bandwidth=1.0, rule="sigmoid")),
    "sign": (3, lambda x: pg.sign(x, rule="gaussian")),
    "inverting": (2, lambda x: pg.clamp(x, -1.0, 1.0, rule="inverting")),
    "inverting between tensors": (2, lambda x: pg.clamp(x, x.detach() - 1, 1.0, rule="inverting")),
}


@needs_native
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", WITH_A_FORMULA)
def test_a_call_with_a_formula_in_c_starts_few_operators(name: str, dtype: torch.dtype) -> None:
    """Its own, the exponential of the loss and the sum of a gradient: each is a kernel on a device. A loss and tensors behind x
    are cast to float32."""
    most, f = WITH_A_FORMULA[name]
    x = torch.linspace(-2, 2, 5000, dtype=dtype, requires_grad=True)
    count = ("aten::exp", "aten::sum", "aten::clamp", "aten::to", "pseudograd_native::")
    casts = {"policy loss": 3, "policy loss in log space": 3, "inverting between tensors": 2}.get(name, 0)
    assert operators_of(f, x, count=count) == most + (casts if dtype is torch.bfloat16 else 0)
    assert operators_of(f, x, "native") > 4 * most
