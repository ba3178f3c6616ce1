"""Where torch asks whether a mode, an override or a hook is active, a context of ours changes no value, no gradient and no count of calls:
in fast paths, traces and autocast.

Each program below passes one of these questions of torch. Its results are those without a context, bit for bit.
"""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import pseudograd as pg
from pseudograd.torch_table.private import mode_stack, tells_unpack_hooks

from ..diagnosis.test_harmless import Doubled

pytestmark = [
    pytest.mark.filterwarnings(f"ignore:{start}")
    for start in (
        "The PyTorch API of nested tensors",
        "torch.chain_matmul is deprecated",
        "`?torch.jit",
        "Converting a tensor",
    )
]

CONTEXTS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "diagnose": pg.diagnose,
    "a what-if": lambda: pg.diagnose(whatif={"open": "open"}),
    "sensitivity": lambda: pg.diagnose(sensitivity=True),
    "override": lambda: pg.override(fake_quantize="identity"),
    "pin": lambda: pg.pin_edge("torch<=2.13" if torch.__version__ >= "2.14" else "torch>=2.14"),
    "framework": lambda: pg.pin_edge("jax"),
}
PADDING = torch.tensor([[0, 0, 0, 1, 1], [0, 0, 0, 0, 0]]).bool()
ALL_PADDING = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 0, 0, 0]]).bool()
Program = Callable[[], object]
PROGRAMS: dict[str, Program] = {}


def program_of_the_table(program: Program) -> Program:
    PROGRAMS[program.__name__.replace("_", " ")] = program
    return program


def small_step() -> list[object]:
    net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 2))
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        net(torch.randn(6, 4)).square().sum().backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
    return [*net.parameters(), *net.buffers(), *_gradients(net)]


def _gradients(module: nn.Module) -> list[Tensor | None]:
    return [parameter.grad for parameter in module.parameters()]


def _encoder(norm: nn.Module | None = None) -> nn.TransformerEncoder:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 2, norm=norm)


# --- torch.overrides.has_torch_function ---------------------------------------------------------------------------------


@program_of_the_table
def attention_that_evaluates() -> object:
    encoder, attention = _encoder().eval(), nn.MultiheadAttention(16, 2, batch_first=True).eval()
    x = torch.randn(2, 5, 16)
    with torch.no_grad():
        y = encoder(x, src_key_padding_mask=PADDING)
        z = attention(x, x, x, key_padding_mask=ALL_PADDING, need_weights=False)[0]
    assert (y[0, 3:] == 0).all(), "torch has no fast path here, so that this test shows nothing"
    with torch.inference_mode():
        inference = [attention(x, x, x, key_padding_mask=PADDING)[0].clone(), attention(x, x, x)[1].clone()]
    return [y, z, inference, encoder.requires_grad_(False)(x, src_key_padding_mask=PADDING)]


@program_of_the_table
def encoders_of_which_a_part_evaluates_or_is_frozen() -> object:
    evaluates, frozen, learns = _encoder().train(), _encoder(nn.LayerNorm(16)).eval(), _encoder().eval()
    evaluates.layers.eval()
    frozen.layers.requires_grad_(False)
    learns.layers[0].requires_grad_(False)
    with torch.no_grad():
        values = [evaluates(torch.randn(2, 5, 16), src_key_padding_mask=PADDING)]
    for encoder, padding in ((frozen, PADDING), (learns, None)):
        values.append(encoder(torch.randn(2, 5, 16), None, padding))
        values[-1].square().sum().backward()
    return [values, _gradients(frozen), _gradients(learns)]


@program_of_the_table
def attention_that_is_frozen_but_for_an_adapter() -> object:
    """Torch asks about the weights of the attention alone, of whatever else it has, and whatever mask it gets."""
    attention, x = nn.MultiheadAttention(16, 2, batch_first=True).eval().requires_grad_(False), torch.randn(2, 5, 16)
    attention.adapter = nn.Linear(16, 16)
    values = [
        attention(x, x, x, key_padding_mask=ALL_PADDING)[0],
        attention(x, x, x, attn_mask=nn.Parameter(x[0] @ x[1].T)),
    ]
    with torch._C.DisableTorchFunction():
        values += [attention(x, x, x)[0], _encoder().eval().requires_grad_(False)(x, src_key_padding_mask=PADDING)]
    trace = torch.jit.trace(attention, (x, x, x, PADDING), check_trace=True)
    nested = torch.nested.nested_tensor(list(x))
    with pytest.raises(AssertionError) as error:
        attention.requires_grad_()(nested, nested, nested, need_weights=False)
    return [values, trace(x, x, x, PADDING), str(error.value)]


@program_of_the_table
def an_argument_that_torch_leaves_out() -> object:
    """Torch does not hand these three to a mode of functions."""
    x = torch.randn(4, 3, requires_grad=True)
    out = torch.zeros(2, 2)
    torch.chain_matmul(torch.ones(2, 3), torch.ones(3, 2), out=out)
    if "weight" in functional.l1_loss.__annotations__:  # before torch 2.13 it has none
        loss: Callable[..., Tensor] = functional.l1_loss
        loss(x, torch.randn(4, 3), weight=torch.rand(4, 3)).backward()
    try:
        order: object = torch.empty(1, 2, 3, 4).dim_order(ambiguity_check=True)
    except RuntimeError as error:
        order = str(error)
    return [x.grad, out, order]


# --- traces and compilers -----------------------------------------------------------------------------------------------


@program_of_the_table
def scripts_traces_and_graphs() -> object:
    from torch.fx.experimental.proxy_tensor import make_fx

    net, x = nn.Sequential(nn.Linear(4, 8), nn.Tanh()), torch.randn(3, 4)
    codes = [torch.fx.symbolic_trace(net).code, make_fx(torch.func.grad(_sum_of_tanh))(x).code]
    with torch.no_grad():
        return [torch.jit.trace(net, x)(x), torch.jit.script(net)(x), codes]


def _sum_of_tanh(x: Tensor) -> Tensor:
    return x.tanh().sum()


@program_of_the_table
def fake_tensors_and_devices() -> object:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = nn.Linear(4, 8)
        fake(torch.randn(3, 4)).tanh().sum().backward()
    with torch.device("meta"):
        devices = [torch.ones(2).device, nn.Linear(2, 2).weight.device, torch.get_default_device()]
    return [[grad.shape for grad in _gradients(fake) if grad is not None], list(map(str, devices)), torch.ones(2)]


# --- autocast -----------------------------------------------------------------------------------------------------------

LOSSES: list[Callable[[Tensor, Tensor], Tensor]] = [
    lambda a, b: functional.margin_ranking_loss(a[:, 0], b[:, 0], torch.ones(4)),
    lambda a, b: functional.cosine_embedding_loss(a, b, torch.ones(4)),
    lambda a, b: functional.hinge_embedding_loss(a, torch.ones_like(a)),
    lambda a, b: functional.triplet_margin_loss(a, b, a + b),
    lambda a, b: torch.quantile(a, 0.3),
]


@program_of_the_table
def losses_and_weights_that_autocast_remembers() -> object:
    a, b = (torch.randn(4, 3, dtype=torch.bfloat16).requires_grad_() for _ in range(2))
    net = nn.Linear(3, 3)
    with torch.autocast("cpu", torch.bfloat16):
        losses = [*(loss(a, b) for loss in LOSSES), net(net(a)).sum()]
    torch.stack([loss.float() for loss in losses]).sum().backward()
    return [losses, a.grad, b.grad, _gradients(net)]


# --- hooks --------------------------------------------------------------------------------------------------------------


@program_of_the_table
def a_saved_tensor_that_is_unpacked_once() -> object:
    """Hooks that keep a tensor until it is asked for, as those that offload to a disk do."""
    stash: dict[int, Tensor] = {}
    counts = [0, 0]

    def pack(tensor: Tensor) -> int:
        counts[0] += 1
        stash[counts[0]] = tensor
        return counts[0]

    def unpack(number: int) -> Tensor:
        counts[1] += 1
        return stash.pop(number)

    x = torch.randn(2, 5, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        y = (x.tanh() * x.clamp(-0.5, 0.5)).relu().abs().sum() + functional.max_pool1d(x, 2).sum()
    y.backward()
    return [x.grad, counts]


@program_of_the_table
def checkpoints() -> object:
    net, x = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.4), nn.Tanh()), torch.randn(3, 4, requires_grad=True)
    for reenters in (True, False):
        checkpoint(net, x, use_reentrant=reenters).sum().backward()
    return [x.grad, _gradients(net), torch.rand(2)]


@program_of_the_table
def the_name_of_a_custom_function() -> object:
    apply: Any = Doubled.apply
    return [apply.__name__, apply.__self__ is Doubled, functools.wraps(apply)(lambda x: x).__name__]


@program_of_the_table
def closures_and_fused_optimisers() -> object:
    w = nn.Parameter(torch.randn(4))
    newton = torch.optim.LBFGS([w], max_iter=3, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        newton.zero_grad()
        loss = (w**4).sum() + w.sum()
        loss.backward()
        return loss

    values = [newton.step(closure)]
    for is_fused in (True, False):
        adam = torch.optim.Adam([w], fused=is_fused, foreach=not is_fused)
        closure()
        adam.step()
    return [values, w]


# --- calls that the program counts --------------------------------------------------------------------------------------


class Logs:
    def __init__(self, log: list[str]) -> None:
        super().__init__()
        self.log = log

    def note(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.log.append(func.__name__)
        return func(*args, **(kwargs or {}))


class Functions(Logs, TorchFunctionMode):
    __torch_function__ = Logs.note


class Dispatches(Logs, TorchDispatchMode):
    __torch_dispatch__ = Logs.note


@program_of_the_table
def modes_of_the_program() -> object:
    log: list[str] = []
    encoder = _encoder().eval()
    with Functions(log), Dispatches(log):
        with torch.no_grad():
            encoder(torch.randn(2, 5, 16))
        assert "multi_head_attention_forward" in log
        return [small_step(), log]


class Listed(nn.Linear):
    """A module may print or make its layers when somebody lists its parts."""

    log: list[str]

    def named_modules(self, *args: Any, **named: Any) -> Any:
        self.log.append("modules")
        return super().named_modules(*args, **named)

    def named_parameters(self, *args: Any, **named: Any) -> Any:
        self.log.append("parameters")
        return super().named_parameters(*args, **named)

    def __getattr__(self, name: str) -> Any:
        self.log.append(name)
        return super().__getattr__(name)


@program_of_the_table
def a_module_that_counts_who_lists_its_parts() -> object:
    Listed.log = []
    net = nn.Sequential(Listed(4, 4), nn.Tanh())
    optimizer = torch.optim.SGD([net[0].weight])
    for module in (net, net[0], net):
        module(torch.randn(3, 4)).sum().backward()
        optimizer.step()
    return [net[0].weight, Listed.log]


class Counted(Tensor):
    calls: list[str]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.calls.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})


@program_of_the_table
def a_tensor_that_counts_its_calls() -> object:
    Counted.calls = []
    x = torch.randn(4).as_subclass(Counted).requires_grad_()
    (x.tanh() * 2).sum().backward()
    return [x.grad, Counted.calls]


@program_of_the_table
def sparse_gradients() -> object:
    table = nn.Embedding(6, 3, sparse=True)
    a = torch.tensor([[0.0, 2.0], [0.0, 3.0]]).to_sparse().requires_grad_()
    torch.sparse.mm(a, torch.ones(2, 2, requires_grad=True)).sum().backward()
    table(torch.tensor([1, 1, 4])).square().sum().backward()
    states = [table.weight.grad.is_coalesced(), a.grad.is_coalesced()]
    optimizer = torch.optim.SparseAdam(table.parameters())
    optimizer.step()
    return [a.grad.to_dense(), table.weight, states]


PROGRAMS["plain step"] = small_step


def frozen(value: object) -> object:
    """The value in a form that == compares: of a tensor the dtype, shape and bits."""
    if isinstance(value, Tensor):
        bits = value.detach().contiguous().reshape(-1).view(torch.uint8).tolist()
        return str(value.dtype), tuple(value.shape), bits
    return [frozen(item) for item in value] if isinstance(value, (list, tuple)) else value


def result(program: Program) -> object:
    torch.manual_seed(0)
    return frozen([program(), torch.get_rng_state()])


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_context_changes_nothing(name: str) -> None:
    if name == "a saved tensor that is unpacked once" and not tells_unpack_hooks:
        pytest.xfail("torch 2.8 does not tell that reading a saved tensor would run a hook of the program")
    alone = result(PROGRAMS[name])
    for context in CONTEXTS:
        with CONTEXTS[context]() as entered:
            inside = result(PROGRAMS[name])
        assert inside == alone, context
        assert getattr(entered, "errors", []) == [], context
        assert not mode_stack()


def test_attention_that_records_derivatives_is_rewritten_and_seen() -> None:
    encoder = _encoder().eval()
    with pg.override(relu="identity") as context, pg.diagnose() as d:
        encoder(torch.randn(2, 5, 16)).sum().backward()
    assert [(row.op, row.calls) for row in context.report().rewritten] == [("relu", 2)]
    assert d.backwards == 1


def test_a_trace_has_torchs_relu_and_the_report_says_so() -> None:
    model, x = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)), torch.randn(4, 8)
    with pg.override(relu="leaky") as context:
        for _ in range(3):  # from the third call on the context does not read the call again
            model(x)
        traced = torch.jit.trace(model, x)
    assert torch.equal(traced(x), model(x))
    assert "aten::relu" in str(traced.inlined_graph)
    assert "torch.jit.trace keeps the values and drops the rule" in str(context.report())


@pytest.mark.program
@pytest.mark.parametrize("learns", [False, True])
def test_torch_cond_compiles_its_branches_in_a_diagnosis(learns: bool) -> None:
    def program() -> object:
        x = torch.randn(3, requires_grad=learns)
        y = torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))
        if learns:
            y.sum().backward()
        return [y, x.grad]

    alone = result(program)
    with pg.diagnose() as d:
        assert result(program) == alone
    assert d.errors == []
