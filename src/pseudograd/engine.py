"""How torch runs a rule. Only this file subclasses autograd.Function. A lowering is one of the ways below; this file picks it.

| context                                                          | lowering                                        |
|------------------------------------------------------------------|-------------------------------------------------|
| not recording                                                    | torch's own op, nothing saved                   |
| eager, plain tensors                                             | Pseudograd: old-style, with a fused kernel      |
|   and the same op, rule and bounds as an earlier call            | ReadyCall: a Pseudograd for these calls alone   |
| subclasses, fake, meta, a dispatch mode, a batched grad,         | Pseudograd with the rule's formula              |
|   grad mode on in backward                                       |                                                 |
| functorch or forward mode                                        | PseudogradFunctional: vmap rule and jvp         |
| compiling, the row of the rule is ours, and only x is a tensor   | PseudogradInGraph: Dynamo sees no formula       |
| compiling otherwise                                              | PseudogradCompiled: the formula alone           |
| exporting while recording                                        | torch's own op, and a warning                   |
| compiling over functorch                                         | PseudogradFunctional through allow_in_graph     |

No mechanism of torch is right everywhere: setup_context costs 17 us a call, Dynamo refuses a jvp, and torch.compile over functorch
drops the backward of any Function that it may look into. The file has more than 300 lines because all lowerings share the state of a
node, and because each further call between two files would show in the time of a small clamp.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, lru_cache, partial
from math import copysign
from types import ModuleType
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import Parameter

from . import dynamo, formula, kernels
from .arguments import has_negative_zero, in_graph, is_constant
from .formula import Depth, our_formulas
from .geometry import edge_reads_grad
from .kernels import bits
from .kernels.residuals import INPUTS, Inputs, Residual, Saved, select_inputs
from .kernels.table import PLAIN, Coded, Prepared, PreparedBetween, device_of
from .rule import (
    BOUNDED,
    OPS,
    Call,
    Edge,
    Gradients,
    Op,
    Primitive,
    RuleLike,
    Wants,
    call_for,
    make_call,
    prepared,
    remember,
    split_spec,
)
from .torch_table.private import (
    backward_class,
    constant_result,
    dispatch_modes,
    forward_mode_at,
    function_of,
    has_forward_mode,
    in_forward_mode,
    is_allowed_in_graph,
    is_batched,
    is_exporting,
    is_tracing,
    is_view,
    nested_level,
    primal,
    transforms_are_active,
    without_torch_function,
)

_is_compiling, _is_dynamo_compiling = torch.compiler.is_compiling, torch.compiler.is_dynamo_compiling
_is_grad_enabled = torch.is_grad_enabled


# --- who watches ------------------------------------------------------------------------------------------------------

Watcher = Callable[[], Callable[[Tensor | None], None]]

_lock = threading.RLock()  # re-entrant: the garbage collector may run code that takes it again
_watchers: tuple[Watcher, ...] = ()  # the entry points below ask only whether it is empty
_watch_depth = Depth()  # above 0 inside a call that the watchers see already


@contextmanager
def watch(watcher: Watcher) -> Iterator[None]:
    """Watch the calls that this engine runs eagerly, in every thread. watcher() runs before each call and returns a function, which runs
    after the call with its result, or with None where the call raised. Neither may raise. Contexts may end in any order.
    """
    global _watchers
    with _lock:
        _watchers = (*_watchers, watcher)
    try:
        yield
    finally:
        with _lock:
            remaining = list(_watchers)
            remaining.remove(watcher)
            _watchers = tuple(remaining)


Result = TypeVar("Result", bound=Tensor | None)


def _run_watched(entry_point: Callable[..., Result], *arguments: object) -> Result:
    """Run one of the entry points below between the watchers."""
    endings, result = [watcher() for watcher in _watchers], None
    try:
        with _watch_depth:
            result = entry_point(*arguments)
            return result
    finally:
        for end in reversed(endings):
            end(result)


# --- the entry points -------------------------------------------------------------------------------------------------


def is_recording(*inputs: object) -> bool:
    """May a derivative of this call be asked for? requires_grad alone does not tell: inside vmap it is False."""
    if torch.is_grad_enabled() and _requires_grad(inputs):
        return True
    return transforms_are_active() or in_forward_mode()


def run(call: Call, *inputs: Any) -> Tensor:
    """Compute the op on `inputs` so that its backward is the call's rule, whatever context of torch is active."""
    if _watchers and not _is_compiling() and not _watch_depth.depth:
        return _run_watched(run, call, *inputs)
    if transforms_are_active() or in_forward_mode():
        return _apply_over_functorch(call, inputs) if _is_compiling() else _apply_functional(call, inputs)
    if not (torch.is_grad_enabled() and _requires_grad(inputs)):
        return call.primitive.forward(*inputs)
    if not _is_compiling():
        if formula.is_nested(inputs[0]):
            return formula.apply_to_components(partial(run, call), inputs[0], inputs[1:])
        return _apply_eager(call, *inputs)
    if not is_exporting():
        return PseudogradCompiled.apply(call, *call.numbers.values(), *inputs)
    # torch.export keeps no custom backward, so the graph gets torch's own op. A warning tells the user, who may train the program.
    _warn_of_export(call.label)
    return call.primitive.forward(*inputs)


def run_prepared(op: str, x: object, rule: object, edge: object, maximize: object, *others: object) -> Tensor | None:
    """Run a call that `prepare` has seen. None if `prepare` has not seen the call, or if `run` must decide. `prepared` does not tell True,
    1 and 1.0 apart: an op that takes only one of these has to check before.

    At ten elements each line of this function is a hundredth of the time of the call and its backward.
    """
    if _is_compiling():  # a compiler must not see the table of prepared calls
        return _run_in_graph(op, x, rule, edge, maximize, others)
    if _watchers and not _watch_depth.depth:
        return _run_watched(run_prepared, op, x, rule, edge, maximize, *others)
    # A diagnosis looks at the parameters that torch's own op gets.
    if type(x) is not Tensor and (type(x) is not Parameter or _watchers):
        return None
    if maximize is not False:
        return None
    try:
        key = op, rule, edge, x.dtype, *others
        # For CUDA the last part of the key is True, which takes less time than the name of the device.
        ready = prepared.get(key if x.is_cpu else (*key, x.is_cuda or x.device.type))
        if ready is None and Tensor in (kinds := tuple(map(type, others))):
            run_between = prepared.get((op, rule, edge, x.dtype, x.device.type, *kinds))
            return run_between(x, *[value for value in others if value is not None]) if run_between else None
    except TypeError:  # an argument cannot be hashed: `run` decides
        return None
    if not ready or not x.requires_grad or not torch.is_grad_enabled():
        return None
    if dispatch_modes() or transforms_are_active() or in_forward_mode() or is_tracing():
        return None
    for position in ready.zero_positions:  # -0.0 has the key of 0.0
        if copysign(1.0, others[position]) < 0:
            return None
    return ready(x)


def run_op(
    op: Op,
    check: Callable[[str, str, Tensor], None],
    x: Tensor,
    rule: RuleLike,
    edge: Edge | None = None,
    *others: float,
) -> Tensor:
    """Run a public call of an op whose only tensor is x: as it was prepared, or else check it, prepare it for the next time and run it."""
    y = run_prepared(op.name, x, rule, edge, False, *others)
    if y is None:
        check(op.name, "x", x)
        call = call_for(op, rule, edge)
        prepare(x, call, rule, edge, *others)
        y = run(call, x, *others)
    return y


def prepare(x: Tensor, call: Call, rule: object, edge: object, *others: object) -> None:
    """Prepare a call for `run_prepared`. Its arguments have been checked."""
    # The tensor of settings that is remembered must be plain, so nothing may watch now.
    if call.maximize or not torch.is_grad_enabled() or _is_watched():
        return
    if any(isinstance(value, Tensor) for value in others):
        _prepare_between(x, call, rule, edge, *others)
        return
    device = x.device.type
    key: tuple[object, ...] = call.primitive.name, rule, edge, x.dtype, *others
    if device != "cpu":
        key = (*key, x.is_cuda or device)
    # A rule with a user's function is not remembered: the objects that the function holds must be freed with it.
    holds_function = call.rule.is_from_user and call.rule.sides is None
    if not (key in prepared or holds_function or has_negative_zero(others)):
        recipe = kernels.prepare(call, others, x.dtype, device) or kernels.prepare_plainly(call, others)
        remember(prepared, key, False if recipe is None else ReadyCall(recipe))


def _prepare_between(x: Tensor, call: Call, rule: object, edge: object, *others: object) -> None:
    """`prepare` for bounds that are tensors. One prepared call serves all tensors: it asks for their dtypes and devices each time."""
    kinds = tuple(map(type, others))
    key = call.primitive.name, rule, edge, x.dtype, x.device.type, *kinds
    has_number = any(kind is not Tensor and value is not None for kind, value in zip(kinds, others, strict=True))
    if key in prepared or type(x) is not Tensor or has_number or call.rule.is_from_user:
        return
    if call.keeps((True, *[False] * len(kinds))):  # a rule that saves nothing is left to `run`
        remember(prepared, key, _make_ready_between(call, (x, *others), hides_backward=False) or False)


def run_in_place(call: Call, x: Tensor, *others: object) -> Tensor:
    """`run`, with the result in x. It saves a copy of the old x as torch's in-place ops do, if the rule reads x and no bits can replace x.

    torch raises its own errors for leaves, and counts the versions of x.
    """
    if _watchers and not _is_compiling() and not _watch_depth.depth:
        return _run_watched(run_in_place, call, x, *others)
    wants = tuple(isinstance(value, Tensor) for value in (x, *others))
    if not _is_compiling() and _saves_no_inputs(call, x, others, wants):
        return PseudogradInPlace.apply(call, x, *others)
    return x.copy_(run(call, x.clone() if call.keeps(wants) else x, *others))


def _saves_no_inputs(call: Call, x: Tensor, others: tuple[object, ...], wants: tuple[bool, ...]) -> bool:
    """Does the call save something else than its inputs? Then x needs no copy."""
    if not (x.requires_grad and torch.is_grad_enabled()) or x.is_leaf or is_view(x):
        return False
    if _is_watched() or in_forward_mode():
        return False
    return kernels.residual_of(call, (x, *others), wants) is not INPUTS


def _warn_of_export(label: str) -> None:
    """With strict=True Dynamo runs this function while it traces, because no warning can be part of a trace."""
    warnings.warn(
        f"{label}: torch.export keeps the values and drops the rule; training the exported program uses torch's own "
        "gradient. Export under torch.no_grad() for inference, or train the original.",
        stacklevel=2,
    )


def _requires_grad(inputs: tuple[object, ...]) -> bool:
    for value in inputs:  # noqa: SIM110  any() over a generator costs half a microsecond more
        if isinstance(value, Tensor) and value.requires_grad:
            return True
    return False


Public = TypeVar("Public", bound=Callable[..., object])


def unscriptable(function: Public) -> Public:
    """Decorator: torch.jit.script raises our error, not its own about a line of our source. TorchScript has no custom backward."""

    def refuse() -> None:
        raise no_script(function.__name__)

    function.__prepare_scriptable__ = refuse  # type: ignore[attr-defined]  # torch.jit.script calls it before it reads any source
    return function


def no_script(name: str) -> NotImplementedError:
    return NotImplementedError(
        f"{name}: torch.jit.script must not be used, TorchScript cannot hold a custom backward. "
        "Use torch.compile to train, torch.export or torch.jit.trace for inference."
    )


# --- what every lowering shares ---------------------------------------------------------------------------------------


class Node(Protocol):
    """A node of ours in autograd's graph, as forward and backward see it. `state` is a plain tuple, because that costs less."""

    needs_input_grad: tuple[bool, ...]
    saved_tensors: tuple[Tensor, ...]
    state: tuple[Call, Residual, list[object]]
    order: int | None  # the order of x's dimensions in memory, if the node saves bits
    shape: torch.Size  # the shape of y, in forward mode
    numbers: tuple[float, ...]  # the parameters of the rule that are numbers, under a compiler
    words: tuple[str, str, str | None]  # op, rule and edge, which name the call in a graph
    others: tuple[float | None, ...]  # the inputs behind x

    def save_for_backward(self, *tensors: object) -> None: ...

    def save_for_forward(self, *tensors: object) -> None: ...

    def mark_dirty(self, *tensors: Tensor) -> None: ...


def _remember(ctx: Node, call: Call, residual: Residual, saved: Saved) -> None:
    """Save what backward needs: the tensors by autograd, the rest in `state`.

    Tensors are saved in reverse order, as torch's own ops save theirs: where our op stands in for torch's, a checkpoint compares the two.
    """
    ctx.save_for_backward(*[value if isinstance(value, Tensor) else None for value in saved[::-1]])
    # One attribute, because each costs 0.1 us.
    ctx.state = call, residual, [None if isinstance(value, Tensor) else value for value in saved]


def _recall(ctx: Node, unpacked: tuple[Tensor, ...] | None = None) -> list[Any]:
    """The saved values in their order. unpacked: `saved_tensors`, if the caller has read them, which a checkpoint allows only once."""
    *_, values = ctx.state
    tensors = ctx.saved_tensors if unpacked is None else unpacked
    return [value if tensor is None else tensor for tensor, value in zip(tensors[::-1], values)]  # noqa: B905  of one length


def call_of(node: object) -> Call | None:
    """The call that a node of ours computes; None for any other node."""
    state = getattr(node, "state", None)
    call = state[0] if type(state) is tuple else getattr(function_of(type(node)), "call", None)
    return call if isinstance(call, Call) else None  # another library's Function may have an attribute `call`


def saved_inputs_of(node: Any, primitive: Primitive) -> tuple[Call, list[Any]] | None:
    """The call of a node of ours, and the inputs that it saved. None for a node of another primitive or with another residual, and if a
    checkpoint refuses to unpack the inputs a second time.
    """
    call = call_of(node)
    if call is None or call.primitive is not primitive or getattr(node, "state", (None, None))[1] is not INPUTS:
        return None
    try:
        return call, _recall(node)
    except RuntimeError:
        return None


def _forward_mode_error(call: Call, why: str = "the rule reads the incoming gradient") -> NotImplementedError:
    linear_rules = [name for name, rule in call.primitive.rules.items() if rule.is_linear]
    advice = f", or a rule that is linear in grad: {', '.join(linear_rules)}" if linear_rules else ""
    advice += "".join(f" (with an edge other than {edge!r})" for edge in call.primitive.edges if edge_reads_grad(edge))
    return NotImplementedError(f"{call.label}: forward mode must not be used, {why}. Use reverse mode{advice}.")


# --- the lowerings ----------------------------------------------------------------------------------------------------


class Pseudograd(Function):
    """For eager calls of plain tensors. It has no setup_context, which would double the cost of a small call."""

    @staticmethod
    def forward(ctx: Node, call: Call, *inputs: Any) -> Tensor:
        wants = ctx.needs_input_grad[1:]
        residual = kernels.residual_of(call, inputs, wants)
        if residual is INPUTS:  # what `residual.encode` does, in less time
            _remember(ctx, call, INPUTS, select_inputs(call, inputs, wants))
            # For a few elements torch's own forward takes less time than a call of a kernel.
            # `_is_watched` comes first: a trace would record the size that is read here.
            if _is_watched() or inputs[0].numel() < bits.least_elements or not kernels.have_values(call):
                return call.primitive.forward(*inputs)
            y = kernels.value(call, inputs)
            return call.primitive.forward(*inputs) if y is None else y
        encoded = None if _is_watched() else kernels.forward(residual, call, inputs, wants)
        y, saved = residual.encode(call, inputs, wants) if encoded is None else encoded
        _remember(ctx, call, residual, saved)
        return y

    @staticmethod
    def backward(ctx: Node, grad: Tensor, unpacked: tuple[Tensor, ...] | None = None) -> object:
        call, residual, _ = ctx.state
        return None, *_pull(grad, _recall(ctx, unpacked), ctx.needs_input_grad[1:], call, residual)


def _pull(grad: Tensor, saved: Saved, wants: Wants, call: Call, residual: Residual) -> Gradients:
    """The gradients of the inputs: by a kernel if nobody watches and no second derivative is recorded, else by the formula."""
    if not (torch.is_grad_enabled() or _is_watched() or is_batched(grad)):
        gradients = kernels.backward(residual, grad, saved, wants, call)
        if gradients is not None:
            return gradients
    if residual is not INPUTS and formula.are_sparse(grad, []):
        grad = grad.to_dense()
    return residual.pull(grad, saved, wants, call)


# The eager Functions below are all named Pseudograd, because users meet the name in graphs and diagnoses.


class _InPlace:
    class Pseudograd(Function):
        """For a call in place that saves bits: x is read and written in one pass."""

        @staticmethod
        def forward(ctx: Node, call: Call, x: Tensor, *others: object) -> Tensor:
            wants = ctx.needs_input_grad[1:]
            residual = kernels.residual_of(call, (x, *others), wants)
            saved = kernels.forward_in_place(residual, call, (x, *others), wants)
            if saved is None:
                y, saved = residual.encode(call, (x, *others), wants)
                x.copy_(y)
            ctx.mark_dirty(x)
            _remember(ctx, call, residual, saved)
            return x

        @staticmethod
        def backward(ctx: Node, grad: Tensor) -> object:
            return Pseudograd.backward(ctx, grad)


PseudogradInPlace = _InPlace.Pseudograd


class ReadyCall:
    """A prepared call, as a function of x that runs one of three autograd Functions of x alone: further arguments would cost time.

    Each Function is made at its first use, because a program may clamp between other numbers at every step.

    hides_backward: is the backward hidden from all modes of functions? True for a rewritten call: torch enters the mode again for the
        backward, where the mode would see every access to an attribute.
    """

    def __init__(self, recipe: Prepared, hides_backward: bool = False) -> None:
        self.recipe, self.hides_backward, self.is_linear = recipe, hides_backward, recipe.call.is_linear
        self.zero_positions = [position for position, value in enumerate(recipe.others) if value == 0]
        self.coded, self.pays = recipe.coded, recipe.pays
        self.takes_only_few_elements, self.takes_any_layout = recipe.takes_only_few_elements, recipe.takes_any_layout

    def __call__(self, x: Tensor) -> Tensor | None:
        try:
            if x.dim() > bits.MOST_DIMENSIONS:
                return None
            # If ranks share the parameter, `run` may have to warn.
            if type(x) is not Tensor and not self.is_linear:
                return None
            # The layout of a nested tensor is strided, too.
            if self.takes_any_layout and (x.layout is not torch.strided or x.is_nested):
                return None
            if x.numel() < bits.least_elements:
                return self.apply_saving_x(x)
            if self.coded is not None and self.pays(x):
                return self.apply_saving_code(x)
            return None if self.takes_only_few_elements else self.apply_saving_x(x)
        except RuntimeError:  # the operators take neither sparse tensors nor those of another backend
            return None

    def run_in_place(self, x: Tensor) -> Tensor | None:
        """Run the call with the result in x, if it saves bits; otherwise it needs a copy of x."""
        try:
            if self.coded is None or x.dim() > bits.MOST_DIMENSIONS or x.is_leaf or is_view(x):
                return None
            return self.apply_saving_code_in_place(x) if self.pays(x) else None
        except RuntimeError:  # as in `__call__`; nothing has been written
            return None

    @cached_property
    def apply_saving_x(self) -> Callable[[Tensor], Tensor]:
        make = _function_saving_nothing if self.recipe.passes_grad else _function_saving_x
        return _make_apply(make(self.recipe), self.hides_backward)

    @cached_property
    def apply_saving_code(self) -> Callable[[Tensor], Tensor]:
        return _make_apply(self._make_function_saving_code(), self.hides_backward)

    @cached_property
    def apply_saving_code_in_place(self) -> Callable[[Tensor], Tensor]:
        function = _function_saving_code_in_place(self.recipe, self._make_function_saving_code())
        return _make_apply(function, self.hides_backward)

    def _make_function_saving_code(self) -> type[Function]:
        assert self.coded is not None
        others = [None] * len(self.recipe.others)
        return _function_saving_code(self.recipe.call, self.coded, lambda values: [*values, *others])


def find_ready(call: Call, inputs: Inputs, in_place: bool) -> Callable[..., Tensor | None] | None:
    """A function that runs a rewritten call, given x and those bounds that are tensors. None if no kernel serves the call.

    The function returns None where `run` must decide. The caller makes sure that no mode has to see the call. The function is remembered,
    because a program may enter a context at every step, and Python calls a new function slowly.
    """
    x, *others = inputs
    kinds = [Tensor if isinstance(value, Tensor) else value for value in others]
    key = "ready", in_place, call, x.dtype, x.device.type, *kinds
    if has_negative_zero([value for value in others if not isinstance(value, Tensor)]):
        return None
    if key not in prepared:
        remember(prepared, key, _make_ready(call, inputs, in_place))
    return prepared[key]


def _make_ready(call: Call, inputs: Inputs, in_place: bool) -> Callable[..., Tensor | None] | None:
    x, *others = inputs
    if any(isinstance(value, Tensor) for value in others):
        return None if in_place else _make_ready_between(call, inputs, hides_backward=True)
    is_on_cpu, device = x.is_cpu, x.device.type
    recipe = None if call.maximize else kernels.prepare(call, tuple(others), x.dtype, device)
    if recipe is None:
        return None
    rewritten = ReadyCall(recipe, hides_backward=True)
    apply_saving_x = rewritten.apply_saving_x

    def run(x: Tensor) -> Tensor | None:
        if not x.requires_grad or not _is_grad_enabled() or x.is_cpu is not is_on_cpu or _watchers:
            return None
        if dispatch_modes() or transforms_are_active() or in_forward_mode() or is_tracing():
            return None
        if not (is_on_cpu or x.device.type == device):
            return None
        if in_place:
            return rewritten.run_in_place(x)
        # For few elements in the usual layout this is all that `rewritten` asks.
        if recipe.takes_any_layout or x.numel() >= bits.least_elements or x.dim() > bits.MOST_DIMENSIONS:
            return rewritten(x)
        try:
            return apply_saving_x(x)
        except RuntimeError:  # as in ReadyCall.__call__
            return None

    return run


def _make_ready_between(call: Call, inputs: Inputs, hides_backward: bool) -> Callable[..., Tensor | None] | None:
    """A function that does what a `ReadyCall` does, for bounds that are tensors. None if no kernel serves the call."""
    x, recipe = inputs[0], kernels.prepare_between(call, inputs)
    if recipe is None:
        return None
    dtype, inputs_of, is_on_cpu, device = x.dtype, recipe.inputs, x.is_cpu, x.device.type
    apply = _make_apply(_function_saving_tensors(recipe), hides_backward)
    apply_unprepared = _apply_hidden if hides_backward else _apply_eager

    @lru_cache
    def find_coded(wants: Wants) -> Callable[..., Tensor] | None:
        coded = recipe.coded(wants)
        if coded is None:
            return None
        return _make_apply(_function_saving_code(recipe.call, coded, recipe.inputs), hides_backward)

    def run(*tensors: Tensor) -> Tensor | None:
        x, *bounds = tensors
        is_recording_inputs = x.requires_grad
        for bound in bounds:
            if bound.dtype is not dtype or bound.is_cpu is not is_on_cpu:
                return None
            is_recording_inputs = is_recording_inputs or bound.requires_grad
        if not is_recording_inputs or not _is_grad_enabled() or x.is_cpu is not is_on_cpu or _watchers:
            return None
        if dispatch_modes() or transforms_are_active() or in_forward_mode() or is_tracing():
            return None
        if x.dim() > bits.MOST_DIMENSIONS:
            return None
        if not is_on_cpu and device_of(tensors) != device:
            return None
        try:
            if x.numel() < bits.least_elements:
                return apply(*tensors)
            if x.is_nested:
                return None
            if bits.pays_between(tensors) and device_of(tensors) == device:
                apply_coded = find_coded(tuple([tensor.requires_grad for tensor in tensors]))
                if apply_coded is not None:
                    return apply_coded(*tensors)
            if len(tensors) == 2:  # with one bound no kernel computes y; with two bounds some do
                return apply(*tensors)
            return apply_unprepared(call, *inputs_of(tensors))
        except RuntimeError:  # torch refuses the call: `run` raises the error for the program
            return None

    return run


def _hide_backward(lowering: type[Function]) -> type[Function]:
    """The lowering with a backward that no mode of functions sees. Only the reading of saved tensors stays outside: a checkpoint then runs
    its forward again, and the modes have to rewrite that forward as before.
    """

    backward_of_lowering = lowering.backward

    class Pseudograd(lowering):  # type: ignore[misc,valid-type]
        @staticmethod
        def backward(ctx: Node, grad: Tensor) -> object:
            if type(grad) is not Tensor:
                return backward_of_lowering(ctx, grad)
            saved = ctx.saved_tensors
            with without_torch_function():
                return backward_of_lowering(ctx, grad, saved)

    return Pseudograd


def _function_saving_tensors(recipe: PreparedBetween) -> type[Function]:
    value, pull, settings_of_tensors = recipe.forward, recipe.backward, recipe.settings

    class Pseudograd(Function):
        call = recipe.call  # read by `call_of` alone

        @staticmethod
        def forward(ctx: Node, *tensors: Tensor) -> Tensor:
            ctx.save_for_backward(*tensors[::-1])
            return value(*tensors)

        @staticmethod
        def backward(ctx: Node, grad: Tensor, unpacked: tuple[Tensor, ...] | None = None) -> object:
            tensors, wants = (ctx.saved_tensors if unpacked is None else unpacked)[::-1], ctx.needs_input_grad
            if _can_use_operators(grad):
                pulled: list[Tensor | None] = []
                dtype = grad.dtype
                try:
                    for settings, want in zip(settings_of_tensors, wants):  # noqa: B905  of one length
                        gradient = pull(grad, *tensors, settings) if want else None
                        if want and gradient.dtype is not dtype:  # type: ignore[union-attr]
                            break  # a hook of saved tensors has changed a dtype, and no operator takes that
                        pulled.append(gradient)
                    else:  # all gradients have their dtype
                        return tuple(pulled)
                except NotImplementedError:  # the operators take no sparse grad, and none of another backend
                    pass
            inputs, wanted = recipe.inputs(tensors), recipe.inputs(wants)
            gradients = _pull(grad, inputs, tuple(map(bool, wanted)), recipe.call, INPUTS)
            return tuple(gradient for gradient, value in zip(gradients, inputs, strict=True) if value is not None)

    return Pseudograd


def _function_saving_code(
    coded_call: Call, coded: Coded, inputs_of: Callable[[Sequence[Any]], list[Any]]
) -> type[Function]:
    """inputs_of: as `PreparedBetween.inputs`."""
    encode, decode, settings_of_tensors = coded.encode, coded.decode, coded.settings

    class Pseudograd(Function):
        call = coded_call  # read by `call_of` alone

        @staticmethod
        def forward(ctx: Node, *tensors: Tensor) -> Tensor:
            y, code, order = encode(*tensors)
            if order:
                ctx.order = order
            ctx.save_for_backward(code)
            return y

        @staticmethod
        def backward(ctx: Node, grad: Tensor, unpacked: tuple[Tensor, ...] | None = None) -> object:
            (code,) = ctx.saved_tensors if unpacked is None else unpacked
            wants = ctx.needs_input_grad
            # A hook of saved tensors may have changed the code.
            if _can_use_operators(grad) and type(code) is Tensor and bits.are_bytes(code):
                try:
                    if len(wants) == 1:
                        return decode(grad, code, settings_of_tensors[0], ctx.order)
                    pairs = zip(settings_of_tensors, wants, strict=True)
                    pulled = [decode(grad, code, settings, ctx.order) if want else None for settings, want in pairs]
                    return tuple(pulled)
                except NotImplementedError:  # the operators take no sparse grad, and none of another backend
                    pass
            wanted = inputs_of(wants)
            gradients = _pull(grad, [code, ctx.order, coded.code], tuple(map(bool, wanted)), coded_call, coded.residual)
            return tuple(gradient for gradient, want in zip(gradients, wanted, strict=True) if want is not None)

    return Pseudograd


def _function_saving_x(recipe: Prepared) -> type[Function]:
    value, pull, settings, others = recipe.forward, recipe.backward, recipe.settings, recipe.others
    wants = (True, *[False] * len(others))

    class Pseudograd(Function):
        call = recipe.call  # read by `call_of` alone

        @staticmethod
        def forward(ctx: Node, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return value(x, settings)

        @staticmethod
        def backward(ctx: Node, grad: Tensor, unpacked: tuple[Tensor, ...] | None = None) -> object:
            (x,) = ctx.saved_tensors if unpacked is None else unpacked
            # A hook of saved tensors may have changed x.
            if _can_use_operators(grad) and type(x) in PLAIN and x.dtype is grad.dtype:
                try:
                    return pull(grad, x, settings)
                except NotImplementedError:  # no kernel, a sparse grad, or one of another backend
                    pass
            return _pull(grad, [x, *others], wants, recipe.call, INPUTS)[0]

    return Pseudograd


def _function_saving_code_in_place(recipe: Prepared, saving_code: type[Function]) -> type[Function]:
    encode, settings = recipe.encode_in_place, recipe.settings

    class Pseudograd(saving_code):  # type: ignore[misc,valid-type]  # mypy knows no bases that are computed
        @staticmethod
        def forward(ctx: Node, x: Tensor) -> Tensor:
            code, order = encode(x, settings)
            if order:
                ctx.order = order
            ctx.mark_dirty(x)
            ctx.save_for_backward(code)
            return x

    return Pseudograd


def _function_saving_nothing(recipe: Prepared) -> type[Function]:
    value, settings = recipe.forward, recipe.settings

    class Pseudograd(Function):
        call = recipe.call  # read by `call_of` alone

        @staticmethod
        def forward(ctx: Node, x: Tensor) -> Tensor:
            return value(x, settings)

        @staticmethod
        def backward(ctx: Node, grad: Tensor, unpacked: tuple[Tensor, ...] | None = None) -> object:
            return grad

    return Pseudograd


def _can_use_operators(grad: Tensor) -> bool:
    """May the operators of a kernel, which have no derivative, compute with this grad? `_pull` asks the same for every kind of tensor."""
    return type(grad) is Tensor and not (
        _is_grad_enabled() or _is_dynamo_compiling() or dispatch_modes() or transforms_are_active() or is_batched(grad)
    )


def _apply_of(lowering: type[Function]) -> Callable[..., Any]:
    """The C function that Function.apply calls. The Python around it takes 2 us, and only looks for functorch, as `run` has done."""
    return super(Function, lowering).apply  # type: ignore[misc]  # of a class in C


def _make_apply(lowering: type[Function], hides_backward: bool) -> Callable[..., Tensor]:
    lowering = _hide_backward(lowering) if hides_backward else lowering
    node_class = backward_class(lowering)
    # Without this attribute torch looks for a vjp before each backward, which takes half a microsecond.
    node_class.apply = lowering.backward
    # Nearly every x has this order. To set it on each node would take half a microsecond, too.
    node_class.order = 0
    return _apply_of(lowering)


_apply_eager = _apply_of(Pseudograd)
_apply_hidden = _make_apply(Pseudograd, hides_backward=True)


def _is_watched() -> bool:
    """Does a mode, a transform, torch.jit.trace or compiled autograd watch? None of them sees what a kernel computes."""
    return bool(_is_compiling() or dispatch_modes() or transforms_are_active() or is_tracing())


class PseudogradFunctional(Function):
    """For functorch and forward mode: with a vmap rule and a jvp."""

    generate_vmap_rule = True

    @staticmethod
    def forward(call: Call, *inputs: object) -> Tensor:
        return call.primitive.forward(*inputs)

    @staticmethod
    def setup_context(ctx: Node, inputs: Inputs, output: Tensor) -> None:
        call, values = inputs[0], inputs[1:]
        saved = select_inputs(call, values, tuple(isinstance(value, Tensor) for value in values))
        _remember(ctx, call, INPUTS, saved)
        ctx.save_for_forward(*[value if isinstance(value, Tensor) else None for value in saved[::-1]])
        ctx.shape = output.shape

    @staticmethod
    def backward(ctx: Node, grad: Tensor) -> object:
        return None, *formula.pull(grad, _recall(ctx), ctx.needs_input_grad[1:], ctx.state[0])

    @staticmethod
    def jvp(ctx: Node, _: None, *tangents: object) -> Tensor:
        """The same slope, applied to each tangent: a linear element-wise pull is its own transpose."""
        call = ctx.state[0]
        if not call.is_linear:
            raise _forward_mode_error(call)
        if not has_forward_mode:
            raise _forward_mode_error(call, "this torch lacks what it needs (see `pseudograd doctor`)")
        inputs, level = _recall(ctx), nested_level()
        with forward_mode_at(level):
            inputs = [primal(value, level) for value in inputs]
            total: Any = None
            for position, tangent in enumerate(tangents):
                if tangent is not None:
                    wants = tuple(position == other for other in range(len(tangents)))
                    part = formula.pull(primal(tangent, level).expand(ctx.shape), inputs, wants, call)[position]
                    total = part if total is None else total + part
        return total


def _apply_functional(call: Call, inputs: Iterable[object]) -> Tensor:
    with our_formulas:  # the forward runs under the modes of `rewrite`, which must leave it alone
        return PseudogradFunctional.apply(call, *inputs)


class PseudogradCompiled(Function):
    """For Dynamo: plain formulas, and neither a jvp (Dynamo refuses it) nor a vmap rule.

    The rule's numbers are arguments, before the inputs: torch 2.8 and 2.10 put a size of x in the place of a symbolic number that only the
    call holds. Saved tensors are copies, because a compiler does not notice if the program changes one in place afterwards. Inductor
    removes the copies that nobody needs.
    """

    @staticmethod
    def forward(ctx: Node, call: Call, *numbers_and_inputs: Any) -> Tensor:
        count = len(call.numbers)
        inputs = numbers_and_inputs[count:]
        saved = select_inputs(call, inputs, ctx.needs_input_grad[1 + count :])
        _remember(ctx, call, INPUTS, [value.clone() if isinstance(value, Tensor) else value for value in saved])
        ctx.numbers = numbers_and_inputs[:count]
        return call.primitive.forward(*inputs)

    @staticmethod
    def backward(ctx: Node, grad: Tensor) -> object:
        call, count = ctx.state[0], len(ctx.numbers)
        numbers = dict(zip(call.numbers, ctx.numbers))  # noqa: B905  of one length
        gradients = formula.pull_dense(
            grad, _after_grad(grad, _recall(ctx)), ctx.needs_input_grad[1 + count :], call, numbers
        )
        return None, *[None] * count, *gradients


class PseudogradInGraph(Function):
    """PseudogradCompiled for a call that three words name and that has no tensor but x. The graph that Dynamo makes has one node for the
    forward and one for the backward, which name the call.

    Dynamo guards each thing that it reads in tracing, and checks it before every run: nearly 200 guards for a formula and its row. A number
    that may be a symbol of the graph is left to `PseudogradCompiled`.
    """

    @staticmethod
    def forward(ctx: Node, x: Tensor, op: str, rule: str, edge: str | None, *others: float | None) -> Tensor:
        ctx.save_for_backward(x.clone())  # a copy, as above
        ctx.words, ctx.others = (op, rule, edge), others
        return _forward_in_graph(x, op, *others)

    @staticmethod
    def backward(ctx: Node, grad: Tensor) -> object:
        (x,) = ctx.saved_tensors
        return _pull_in_graph(grad, x, *ctx.words, *ctx.others), None, None, None, *[None] * len(ctx.others)


def _forward_in_graph(x: Tensor, op: str, *others: float | None) -> Tensor:
    with in_graph():
        return OPS[op].forward(x, *others)


def _pull_in_graph(
    grad: Tensor, x: Tensor, op: str, rule: str, edge: str | None, *others: float | None
) -> Tensor | None:
    wants = True, *[False] * len(others)
    with in_graph():
        return formula.pull_dense(grad, _after_grad(grad, [x, *others]), wants, make_call(OPS[op], rule, edge))[0]


def _run_in_graph(
    op: str, x: object, rule: object, edge: object, maximize: object, others: tuple[Any, ...]
) -> Tensor | None:
    """Run a call by `PseudogradInGraph`; None for any other call, and for one that may be wrong: `run` decides, and raises its errors."""
    if type(x) is not Tensor and type(x) is not Parameter:
        return None
    if not x.requires_grad or x.is_complex():
        return None
    if type(rule) is not str or (type(edge) is not str and edge is not None) or maximize is not False:
        return None
    for value in others:
        if value is not None and not (type(value) in (float, int) and is_constant(value) and value == value):
            return None
    if not torch.is_grad_enabled() or transforms_are_active() or in_forward_mode() or is_exporting():
        return None
    if not _is_ours(op, rule, edge, tuple([value is not None for value in others])):
        return None
    if None not in others and len(others) == 2 and not others[0] <= others[1]:  # crossed bounds are an error
        return None
    return PseudogradInGraph.apply(x, op, rule, edge, *others)


@constant_result
def _is_ours(op: str, rule: str, edge: str | None, are_given: tuple[bool, ...]) -> bool:
    """Is the rule ours, so that its row cannot change, and does it serve a call with this edge and these inputs?

    are_given: for each input behind x, is it other than None? Dynamo runs this function while it traces.
    """
    _register_at_last()
    row, inputs, edges = OPS[op].rules.get(rule), OPS[op].inputs, OPS[op].edges
    if row is None or row.is_from_user or None in row.parameters.values() or (edges and edge not in edges):
        return False
    if inputs == BOUNDED:
        return all(are_given) if row.requires else any(are_given)
    return len(inputs) <= 2 and len(inputs) == len(are_given) + 1


def _after_grad(grad: Tensor, inputs: list[object]) -> list[object]:
    """The inputs, with an x that depends on grad, so that a compiler computes nothing from x before the backward.

    Otherwise Inductor saves bools that say where x is outside. On the CPU, loops over bools take ten times as long as loops that read x.
    """
    x, *others = inputs
    if not isinstance(x, Tensor) or not x.is_cpu or any(isinstance(other, Tensor) for other in others):
        return inputs
    return [torch.where(grad == grad, x, x), *others]


def _apply_over_functorch(call: Call, inputs: tuple[object, ...]) -> Tensor:
    _register_at_last()
    if call.rule.is_from_user:
        _show_to_dynamo(call, inputs)
    return _apply_in_graph(*call.spec, *inputs)


def _show_to_dynamo(call: Call, inputs: tuple[object, ...]) -> None:
    """Run a user's formula where Dynamo traces it: Dynamo then guards the globals and closures that the formula reads.

    Without these guards the graph would use the first values of the globals for ever. The unused result does not stay in the graph.
    """
    with torch.no_grad():
        values = [value.detach() if isinstance(value, Tensor) else value for value in inputs]
        wants = tuple(isinstance(value, Tensor) for value in values)
        formula.pull_dense(call.primitive.forward(*values), values, wants, call)


def _apply_in_graph(*leaves: object) -> Tensor:
    """The node that Dynamo puts into its graph. A graph holds no objects of ours, so the first of `leaves` name the call."""
    call, inputs = split_spec(leaves)
    return _apply_functional(call, inputs)


def _register(dynamo_module: ModuleType) -> None:
    for function in (_apply_in_graph, _forward_in_graph, _pull_in_graph):
        dynamo_module.allow_in_graph(function)
    dynamo_module.assume_constant_result(_warn_of_export)


def registration() -> str:
    """Says whether Dynamo's own table has our functions."""
    dynamo_module = sys.modules.get("torch._dynamo")
    if dynamo_module is None and dynamo.is_awaited():
        return "waits for the first import of torch._dynamo"
    if dynamo_module is None:
        return "NOT registered: the import hook is gone"
    if is_allowed_in_graph(dynamo_module, _apply_in_graph):
        return "registered with Dynamo"
    return "NOT registered with Dynamo: import pseudograd before torch._dynamo, or report how it was imported"


@constant_result
def _register_at_last() -> None:
    """Register with a Dynamo whose import our hook missed. Dynamo runs this function while it traces, instead of tracing it."""
    dynamo.run_callbacks(sys.modules["torch._dynamo"])


dynamo.when_dynamo_arrives(_register)
