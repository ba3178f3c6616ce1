"""A diagnosis beside other contexts: nested, in helpers, ended out of order, and around one half of a step only."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import pseudograd as pg
from pseudograd import diagnose, engine
from pseudograd.diagnosis import Diagnosis
from pseudograd.listen import patches
from pseudograd.listen.hooks import backwards, clearings, swaps
from pseudograd.torch_table.private import mode_stack

from ..choices import slow_but

X = [-2.0, -0.5, 0.5, 2.0, 3.0]
ARRIVED, CUT = 5, 3
STOCK = [0.0, 1.0, 1.0, 0.0, 0.0]


def clamp(x: Tensor) -> Tensor:
    return torch.clamp(x * 1, -1.0, 1.0)


compiled = torch.compile(clamp, backend="aot_eager")
PROGRAMS: dict[str, Callable[[Tensor], Tensor]] = {
    "plain": clamp,
    "checkpoint": lambda x: checkpoint(clamp, x, use_reentrant=False),
    "checkpoint with reentry": lambda x: checkpoint(clamp, x, use_reentrant=True),
    "compiled": compiled,
    "checkpoint of compiled code": lambda x: checkpoint(compiled, x, use_reentrant=False),
}
# A backward of compiled code shows no clamp, and that of a checkpoint with reentry shows it to no what-if.
HIDDEN_OUTSIDE = ("compiled", "checkpoint of compiled code")
every_program = pytest.mark.parametrize("program", slow_but([*PROGRAMS][:3], PROGRAMS, pytest.mark.program))


@pytest.fixture(autouse=True)
def _compiled_afresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    assert [row for row in patches.status() if row["name"].startswith("torch.") and "_dynamo" not in row["name"]] == []
    assert backwards.subscribers == swaps.subscribers == clearings.subscribers == ()
    assert not mode_stack()


def forward(program: str) -> tuple[Tensor, Tensor]:
    x = torch.tensor(X, requires_grad=True)
    return x, PROGRAMS[program](x)


def step(program: str) -> list[float]:
    x, y = forward(program)
    y.sum().backward()
    return x.grad.tolist()


def count_clamps(d: Diagnosis) -> tuple[int, int]:
    assert d.to_json()["errors"] == []
    clamps = [site for site in d.sites if site.op == "clamp"]
    return sum(site.arrived for site in clamps), sum(site.cut for site in clamps)


@every_program
def test_nested_diagnoses_count_the_program_and_not_each_other(program: str) -> None:
    whatif = {"inward": {"clamp": "inward"}}
    for _ in range(2):  # as a cell that runs twice
        with diagnose(whatif=whatif) as outer, diagnose(whatif=whatif) as inner:
            assert step(program) == STOCK
        for d in (outer, inner):
            assert (count_clamps(d), d.backwards) == ((ARRIVED, CUT), 1)
            own = {".detach()"} if "reentry" in program else set()  # torch's, in the checkpoint
            assert {cut.kind for cut in d.structural} == own
            if "reentry" not in program:
                (row,) = d.whatif["as it is"]
                assert (row.zero, row.norm) == (3 / 5, pytest.approx(2**0.5))
    assert step(program) == STOCK


@every_program
def test_a_rule_acts_around_and_inside_a_diagnosis(program: str) -> None:
    rule, asking = lambda: pg.override(clamp="identity"), lambda: diagnose(whatif={"closed": "closed"})
    for outside, inside in ((rule, asking), (asking, rule)):
        with outside(), inside():
            assert step(program) == [1.0] * 5


@every_program
def test_backwards_inside_are_counted_wherever_the_graph_was_made(program: str) -> None:
    x, y = forward(program)
    with diagnose() as inside:
        y.sum().backward()
        later, y = forward(program)
    y.sum().backward()
    for leaf in (x, later):
        assert leaf.grad.tolist() == STOCK
    assert inside.backwards == 1
    if program not in HIDDEN_OUTSIDE:
        assert count_clamps(inside) == (ARRIVED, CUT)


@every_program
def test_contexts_may_end_out_of_order(program: str) -> None:
    first, second = diagnose(), diagnose()
    first.__enter__()
    second.__enter__()
    first.__exit__()
    step(program)
    second.__exit__()
    assert count_clamps(second) == (ARRIVED, CUT)
    assert first.backwards == 0
    assert not hasattr(engine.run, "hidden")
    assert "apply" not in vars(torch.autograd.Function) or not hasattr(vars(torch.autograd.Function)["apply"], "hidden")


def test_compiled_code_is_compiled_again_afterwards() -> None:
    graphs = []
    f = torch.compile(clamp, backend=lambda graph, inputs: graphs.append(graph) or graph.forward)
    with diagnose():
        f(torch.tensor(X))
    assert graphs == []
    f(torch.tensor(X))
    assert len(graphs) == 1


@pytest.mark.filterwarnings("ignore:Dynamo (does not know how to trace|detected a call to)")
def test_in_compiled_code_it_says_so_and_leaves_nothing() -> None:
    def inside(x: Tensor) -> Tensor:
        with diagnose():
            return clamp(x)

    with pytest.raises(
        RuntimeError, match=r"diagnose: the context must be entered outside code that torch\.compile runs"
    ):
        torch.compile(inside, backend="eager")(torch.tensor(X))


def test_torch_may_swap_a_tensor_whose_memory_another_one_shares() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    with diagnose():
        new = torch.nn.Parameter(torch.zeros(2))
        data, new_data = weight.detach(), new.detach()
        torch.utils.swap_tensors(weight, new)
        torch.utils.swap_tensors(data, new_data)
    assert (weight.tolist(), data.tolist()) == ([0.0, 0.0], [0.0, 0.0])
