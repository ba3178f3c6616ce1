"""All private names of torch that the library uses. If torch lacks one, a fallback keeps ops right, and `pseudograd doctor` lists it.

For example, if torch does not tell whether a transform is active, every call runs in the slower way that serves transforms, too.
The file is long because no other file uses anything private of torch.
"""

from __future__ import annotations

import functools
import importlib
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from operator import methodcaller
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad, graph
from torch.optim import SGD
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint

MISSING = object()


class Name(NamedTuple):
    """A private name; what is worse without it; and whether this torch has it, as a bool or as a function that measures it."""

    name: str
    without: str
    is_there: bool | Callable[[], bool]


NAMES: list[Name] = []


def _find(name: str, without: str, fallback: object = MISSING) -> Any:
    """What torch has under this dotted name, or the fallback."""
    value: object = sys.modules["torch"]
    path = ""
    for part in name.split(".")[1:]:
        path = f"{path}.{part}"
        value = getattr(value, part, sys.modules.get(f"torch{path}", MISSING))  # torch.optim hides its module optimizer
        if value is MISSING:
            break
    NAMES.append(Name(name, without, value is not MISSING))
    return fallback if value is MISSING else value


def _attribute(
    name: str, without: str, is_there: Callable[[], bool] | None = None, default: object = None
) -> Callable[[object], Any]:
    """A function that reads this private attribute of a node, tensor or class. It returns the default if there is no such attribute.

    is_there: does this torch have it? By default: does the class Tensor have it?
    """
    attribute = name.rpartition(".")[2]
    NAMES.append(Name(name, without, is_there or (lambda: hasattr(Tensor, attribute))))
    return lambda owner: getattr(owner, attribute, default)


# --- what is active? --------------------------------------------------------------------------------------------------

_NO_KERNELS, _NO_FORWARD_MODE = "backward is the formula, without kernels", "forward mode is refused"
_SLOWER = "a backward in a diagnosis costs some microseconds more"

transforms_are_active: Callable[[], bool] = _find(
    "torch._C._are_functorch_transforms_active", "every call takes the lowering for torch.func", lambda: True
)
dispatch_modes: Callable[[], int] = _find("torch._C._len_torch_dispatch_stack", _NO_KERNELS, lambda: 1)
is_batched: Callable[[Tensor], bool] = _find(  # what is_grads_batched hands to backward, under no functorch transform
    "torch._C._functorch.is_legacy_batchedtensor", _NO_KERNELS, lambda tensor: True
)
is_zero: Callable[[Tensor], bool] = _find("torch.Tensor._is_zerotensor", _NO_KERNELS, lambda tensor: True)
is_tracing: Callable[[], bool] = _find(
    "torch._C._is_tracing",
    "a small call costs a tenth of a microsecond more",
    torch.jit.is_tracing,  # type: ignore[attr-defined]
)
# A context in which no mode of functions sees the calls.
without_torch_function: Callable[[], AbstractContextManager[object]] = _find(
    "torch._C.DisableTorchFunction",
    "a mode of functions sees the tensor that a native kernel reads its numbers from",
    nullcontext,
)
is_view: Callable[[Tensor], bool] = _find(
    "torch.Tensor._is_view", "clamp_ keeps a copy of x where two bits would do", lambda tensor: True
)
# What kind of tensor this is: `.raw_repr()` is a number, 0 if torch does not say.
dispatch_keys: Callable[[Tensor], Any] = _find(
    "torch._C._dispatch_keys",
    "a backward costs some microseconds more",
    lambda tensor: types.SimpleNamespace(raw_repr=lambda: 0),
)
_has_raw = _find("torch.ops.aten.clone.default._op", "a small call costs a microsecond more", None) is not None
_has_levels = (
    _find("torch.autograd.forward_ad._current_level", "every call takes the lowering for forward mode") is not MISSING
)
_has_export_flag = (
    _find("torch.compiler._is_exporting_flag", "torch.export of a program that records drops rules silently")
    is not MISSING
)


_NO_DISPATCH = Tensor.__torch_dispatch__


def is_opaque(value: object) -> bool:
    """Does its class intercept each call, so that its numbers cannot be read, as with a fake tensor? A DTensor has a local part."""
    dispatch = getattr(type(value), "__torch_dispatch__", _NO_DISPATCH)
    return dispatch != _NO_DISPATCH and not hasattr(value, "_local_tensor")


def fake_mode_of(tensor: Tensor) -> AbstractContextManager[object]:
    """The mode that made a fake tensor. Outside it a formula's constants would be real, and torch refuses to mix real and fake tensors."""
    mode = None if type(tensor) is Tensor else getattr(tensor, "fake_mode", None)
    return nullcontext() if mode is None else mode


def raw(operator: object) -> object:
    """The function in C++ that an operator of torch.ops calls."""
    return getattr(operator, "_op", operator) if _has_raw else operator


def in_forward_mode() -> bool:
    return not _has_levels or forward_ad._current_level >= 0


def is_exporting() -> bool:
    return _has_export_flag and torch.compiler._is_exporting_flag


# --- forward mode inside forward mode, and functionalize --------------------------------------------------------------

_FUNCTORCH = (
    *("get_interpreter_stack", "TransformType", "is_batchedtensor", "get_unwrapped", "maybe_get_bdim"),
    *("maybe_get_level", "_add_batch_dim", "is_gradtrackingtensor", "_wrap_for_grad", "_unwrap_for_grad"),
)
_functions = [_find(f"torch._C._functorch.{name}", _NO_FORWARD_MODE, None) for name in _FUNCTORCH]
_interpreters, _kinds, _is_batched_here, _unwrapped, _batched_dimension = _functions[:5]
_level_of, _batched, _is_wrapped_for_grad, _wrapped_for_grad, _unwrapped_for_grad = _functions[5:]
_forward_mode_enabled = _find("torch.autograd.forward_ad._set_fwd_grad_enabled", _NO_FORWARD_MODE, None)
has_forward_mode = None not in (*_functions, _forward_mode_enabled)
is_wrapped: Callable[[Tensor], bool] = _find(
    "torch._C._functorch.is_functorch_wrapped_tensor",
    "minimum and maximum keep torch's rule under override",
    lambda tensor: True,
)


def nested_level() -> int | None:
    """The innermost level of forward mode if it is inside another one, else None."""
    levels = [layer.level() for layer in _interpreters() or () if layer.key() == _kinds.Jvp]
    return levels[-1] if len(levels) > 1 else None


def forward_mode_at(level: int | None) -> AbstractContextManager[object]:
    """A context with forward mode on: torch turns it off in a jvp, for the outer levels too, so that jvp of jvp would be 0."""
    return nullcontext() if level is None else _forward_mode_enabled(True)


def primal(value: object, level: int | None) -> Any:
    """The tensor without its tangent of this level; tangents of outer levels stay.

    The result is wrapped as torch wraps the result of a Function at a level. A tensor of a vmap inside the level is unwrapped and wrapped
    again.
    """
    if level is None or not isinstance(value, Tensor):
        return value
    if _is_batched_here(value):
        return _batched(primal(_unwrapped(value), level), _batched_dimension(value), _level_of(value))
    if _is_wrapped_for_grad(value) and _level_of(value) == level:
        return _wrapped_for_grad(_unwrapped_for_grad(value, level), level)
    return value


def levels_of(value: Tensor) -> Iterator[Tensor]:
    """The tensor itself, and the tensor in each wrapper of a transform, inwards."""
    yield value
    while _unwrapped is not None and is_wrapped(value):
        value = _unwrapped(value)
        yield value


def physical(value: Tensor) -> Tensor:
    """The tensor inside all wrappers of transforms, with the dimensions that vmap hides in front; of a DTensor, the local part.

    Call it where no transform is active.
    """
    dimensions = []  # those that vmap hides, the outermost first
    while is_wrapped(value):
        if _unwrapped is None:
            return value
        if _is_batched_here(value):
            dimensions.append(_batched_dimension(value))
        value = _unwrapped(value)
    for front, dimension in enumerate(reversed(dimensions)):
        value = value.movedim(front + dimension, front)
    return value if type(value) is Tensor else local(value)


def below_wrappers(value: Tensor) -> Tensor:
    """The tensor inside all wrappers of transforms, as it is there. (`physical` returns a view, which has another node.)"""
    *_, value = levels_of(value)
    return value


def local(value: Tensor) -> Tensor:
    """The part of a distributed tensor that this process holds. To read the rest, the processes would have to wait for each other."""
    return value if type(value) is Tensor else getattr(value, "_local_tensor", value)


def is_functionalized() -> bool:
    if _interpreters is None or _kinds is None:
        return False
    return any(layer.key() == _kinds.Functionalize for layer in _interpreters() or ())


# --- optimisers -------------------------------------------------------------------------------------------------------

set_grad_enabled = _find("torch._C._set_grad_enabled", _SLOWER, torch.set_grad_enabled)
# The functions that an optimiser calls around its step for profilers.
marks_of_profiles = tuple(
    mark
    for name in ("_record_function_enter_new", "_record_function_exit._RecordFunction")
    if (mark := _find(f"torch.ops.profiler.{name}", _SLOWER, None)) is not None
)
# The methods of an optimiser that its own step calls.
_PARTS = "_optimizer_step_code _init_group _accelerator_graph_capture_health_check _cuda_graph_capture_health_check"
PARTS_OF_A_STEP = frozenset(_PARTS.split())
_SLOWER_DIAGNOSIS = "a diagnosis costs a third more"
_before_steps = _find("torch.optim.optimizer._global_optimizer_pre_hooks", _SLOWER_DIAGNOSIS, None)
_after_steps = _find("torch.optim.optimizer._global_optimizer_post_hooks", _SLOWER_DIAGNOSIS, None)
NAMES.append(Name("torch.optim.Optimizer._init_group", _SLOWER_DIAGNOSIS, lambda: hasattr(SGD, "_init_group")))


def global_step_hooks() -> list[dict[int, object]]:
    """The hooks before and after the steps of all optimisers; empty if torch keeps them elsewhere."""
    return [] if _before_steps is None or _after_steps is None else [_before_steps, _after_steps]


def step_hooks(optimizer: object) -> list[dict[int, object]]:
    """The hooks before and after the steps of all optimisers, and of this optimiser alone; empty if torch keeps them elsewhere."""
    own = vars(optimizer)
    before, after = own.get("_optimizer_step_pre_hooks"), own.get("_optimizer_step_post_hooks")
    of_all = global_step_hooks()
    return [] if not of_all or before is None or after is None else [*of_all, before, after]


# --- modes and backwards ----------------------------------------------------------------------------------------------

_mode_stack = _find("torch.overrides._get_current_function_mode_stack", "contexts must end in order", None)
push_mode = _find("torch._C._push_on_torch_function_stack", "contexts must end in order", None)
pop_mode = _find("torch._C._pop_torch_function_stack", "contexts must end in order", None)
has_mode_stack = None not in (_mode_stack, push_mode, pop_mode)
if not has_mode_stack:
    push_mode, pop_mode = (lambda mode: None), (lambda: None)


def mode_stack() -> list[Any]:
    """Torch's own stack of this thread: the modes of functions, ours and others, that would see the next call."""
    return list(_mode_stack()) if has_mode_stack else []


mode_count: Callable[[], int] = _find(
    "torch._C._len_torch_function_stack", "a backward in a context costs a microsecond more", lambda: len(mode_stack())
)


def take_off_the_stack(mode: object) -> bool:
    """Take the mode off torch's stack, also from below modes that the program has left there. Returns whether it was there."""
    if mode_count():
        top = pop_mode()
        if top is mode:
            return True
        push_mode(top)
    stack = mode_stack()
    if mode not in stack:
        return False
    above = stack[stack.index(mode) + 1 :]
    for _ in range(len(above) + 1):
        pop_mode()
    for other in above:
        push_mode(other)
    return True


def end_mode(mode: TorchFunctionMode, is_in_its_thread: bool) -> None:
    """End the context of a mode, in whatever order. If the mode is gone, a context of torch has popped it instead of its own: pop that."""
    if not has_mode_stack:
        if is_in_its_thread:
            TorchFunctionMode.__exit__(mode, None, None, None)
    elif take_off_the_stack(mode):
        # An error of a signal's handler may have left it there once more, after a backward.
        while mode_count() and take_off_the_stack(mode):
            pass
    elif is_in_its_thread and mode_count():
        pop_mode()


_pop_dispatch = _find("torch.utils._python_dispatch._pop_mode", "modes of dispatch see what diagnose computes", None)
_push_dispatch = _find("torch.utils._python_dispatch._push_mode", "modes of dispatch see what diagnose computes", None)


@contextmanager
def without_dispatch_modes() -> Iterator[None]:
    """A context in which no dispatch mode of the program sees the calls."""
    count = 0 if None in (_pop_dispatch, _push_dispatch) else dispatch_modes()
    modes = [_pop_dispatch() for _ in range(count)]
    try:
        yield
    finally:
        for mode in reversed(modes):
            _push_dispatch(mode)


def outside_of_transforms() -> AbstractContextManager[object]:
    """A context in which no transform of torch.func sees the calls."""
    # A transform imports this module before it is active.
    module = sys.modules.get("torch._functorch.pyfunctorch")
    context = getattr(module, "temporarily_clear_interpreter_stack", nullcontext)
    return context()


for _owner in ("torch.autograd.graph", "torch.autograd"):
    _find(f"{_owner}._engine_run_backward", "no context acts on a forward inside a backward")
node_number: Callable[[], int] = _find(
    "torch._C._autograd._get_sequence_nr", "reports do not say what was not reached", lambda: 0
)
current_node: Callable[[], Any] = _find(
    "torch._C._current_autograd_node", "diagnose has neither sides nor what-ifs", lambda: None
)
accumulates: object = _find("torch._C._functions.AccumulateGrad", _SLOWER, None)
backward_pass: Callable[[], int] = _find(  # the number of the one that runs here, below 0 outside
    "torch._C._current_graph_task_id", "nested diagnoses on a device count each other's what-ifs", lambda: -1
)
tells_unpack_hooks = hasattr(torch._C._autograd.SavedTensor, "unpack_hook")  # since torch 2.9
saved_tensors_hooks: Callable[[bool], Any] = _find(  # those of this thread: what packs and what unpacks
    "torch._C._autograd._top_saved_tensors_default_hooks", "what-ifs on torch 2.8 run checkpoints again", lambda _: None
)
# On torch 2.15 a public name, absent before: a context in which a hook sees every node that is made.
node_creation_hook = getattr(graph, "node_creation_hook", None)
checkpoint_frame = _find(
    "torch.utils.checkpoint._CheckpointFrame", "a checkpoint recomputes under the contexts of its backward", None
)
# Identifies the stream of this thread on a CUDA device, given by its number, in a tenth of the time that a torch.cuda.Stream takes.
stream_key: Callable[[int], object] = getattr(torch._C, "_cuda_getCurrentStream", torch.cuda.current_stream)
foreach_clamp_min_ = _find("torch._foreach_clamp_min_", "optim clips one parameter after the other", None)
foreach_clamp_max_ = _find("torch._foreach_clamp_max_", "optim clips one parameter after the other", None)
fused_nn = _find("torch._C._nn", "its functions keep torch's rule under override", None)
hardtanh = getattr(fused_nn, "hardtanh", nn.functional.hardtanh)

# --- modules ----------------------------------------------------------------------------------------------------------

module_call = getattr(_find("torch.nn.Module._call_impl", "sites have no module", None), "__code__", None)
module_wrapped_call = getattr(
    _find("torch.nn.Module._wrapped_call_impl", "a site costs half a microsecond more", None), "__code__", None
)
# In DistributedDataParallel, in a module that torch.compile has made, and in one that torch.export traces.
WRAPPED_MODULES = ("module", "_orig_mod", "_export_root")
NAMES.append(Name("torch.nn.Module._modules", "sites have no module", lambda: "_modules" in vars(nn.Module())))


def children_of(module: object) -> dict[str, nn.Module]:
    """The modules in a module, by name. A scripted module has them in a class of torch's own."""
    modules = getattr(module, "_modules", {})
    return modules if isinstance(modules, dict) else dict(modules.items())


def modules_in(module: nn.Module) -> dict[str, nn.Module]:
    """What `named_modules` yields, by path. It runs no code of the program, whose own `named_modules` may print or make layers."""
    modules: dict[str, nn.Module] = {}
    met = set[int]()
    ahead = [("", module)]
    # A function inside that calls itself would be a cycle, which keeps a net alive until the garbage is collected.
    while ahead:
        path, part = ahead.pop()
        if id(part) not in met:
            met.add(id(part))
            modules[path] = part
            children = [(name, child) for name, child in children_of(part).items() if child is not None]
            ahead += [(f"{path}.{name}" if path else name, child) for name, child in reversed(children)]
    return modules


def parameters_in(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """What `named_parameters` yields. It runs no code of the program; a wrapper of torch's own gives its parameters names of its own."""
    own = type(module).named_parameters
    if own is not nn.Module.named_parameters and own.__module__.startswith("torch."):
        yield from module.named_parameters()
        return
    met = set[int]()
    for path, part in modules_in(module).items():
        for name, parameter in list(getattr(part, "_parameters", {}).items()):
            if parameter is not None and id(parameter) not in met:
                met.add(id(parameter))
                yield f"{path}.{name}" if path else name, parameter


def is_sharded(module: nn.Module) -> bool:
    """Is it the outermost module under fully_shard? Its forward uses whole parameters, made when it first runs."""
    return hasattr(type(module), "_get_fsdp_state")


def shards_of(module: nn.Module) -> list[tuple[Tensor, Tensor | None]]:
    """The parameters of a module under fully_shard as the optimiser holds them, each with the whole parameter that its forward uses.

    Empty for other modules, and if torch keeps them elsewhere: then the whole parameters have no name in a diagnosis.
    """
    state = getattr(type(module), "_get_fsdp_state", lambda _: None)(module)  # without the program's own __getattr__
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:  # torch < 2.12
        groups = [getattr(state, "_fsdp_param_group", None)]
    return [
        (parameter.sharded_param, getattr(parameter, "_unsharded_param", None))
        for group in groups
        for parameter in getattr(group, "fsdp_params", ())
        if isinstance(getattr(parameter, "sharded_param", None), Tensor)
    ]


# --- compilers --------------------------------------------------------------------------------------------------------

_tracing = _find("torch._guards.TracingContext", "compiled calls have no line in reports", None)
with suppress(ImportError):
    importlib.import_module("torch.utils._device")
DeviceContext = _find(
    "torch.utils._device.DeviceContext", "a compiled checkpoint under torch.device keeps torch's rule", None
)
Marked = TypeVar("Marked", bound=Callable[..., object])


def traced_frames() -> list[Any]:
    return [] if _tracing is None else list(_tracing.extract_stack())


def let_dynamo_dispatch(imported: Any, functions: object) -> None:
    """Let Dynamo hand these functions to modes, in addition to those that torch.overrides lists."""
    listed = getattr(imported.variables.torch, "get_overridable_functions", None)
    if listed is not None:
        # Where a test mocks a function of torch, torch's own list cannot be made; Dynamo makes it later, without ours.
        with suppress(AttributeError):
            listed().update(functions)


def let_dynamo_skip(code: object) -> None:
    """Let Dynamo compile this code where it traces a call of it, and not by itself."""
    from torch._dynamo import eval_frame

    skip_code = getattr(eval_frame, "skip_code", None)
    if skip_code is not None:
        skip_code(code)


def higher_order_variables(*names: str) -> list[Any]:
    """Dynamo's classes of these names, for the calls of functions that run other functions."""
    from torch._dynamo.variables import higher_order_ops

    variables = [getattr(higher_order_ops, name, None) for name in names]
    return [variable for variable in variables if hasattr(variable, "_call_function")]


def call_undispatched(variable: Any, *args: object) -> object:
    """Do what a variable of Dynamo does when no mode sees the call."""
    return variable._call_function(*args)


def compiler_named(backend: str) -> Callable[[object, list[object]], object]:
    """The function that compiles a graph with its inputs as that backend of torch.compile does."""
    dynamo = importlib.import_module("torch._dynamo")
    return dynamo.lookup_backend(backend)


def let_inductor_draw_as_eager_mode_does() -> None:
    config: Any = importlib.import_module("torch._inductor.config")
    config.fallback_random = True


def allow_recompilations(most: int) -> None:
    """Let Dynamo compile one code object up to `most` times before it runs the code eagerly."""
    config: Any = importlib.import_module("torch._dynamo").config
    config.recompile_limit = max(config.recompile_limit, most)
    config.accumulated_recompile_limit = max(config.accumulated_recompile_limit, 8 * most)


def is_allowed_in_graph(imported: Any, function: object) -> bool:
    return bool(imported.trace_rules.is_callable_allowed(function))


def constant_result(function: Marked) -> Marked:
    """Dynamo runs the function while it traces and keeps the result: torch.compiler.assume_constant_result without its import."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


# --- attributes of nodes and tensors ----------------------------------------------------------------------------------


def _example_has(attribute: str) -> Callable[[], bool]:
    def has() -> bool:
        with without_torch_function(), torch.enable_grad():
            return hasattr(torch.zeros(1, requires_grad=True).sin().grad_fn, attribute)

    return has


def _wraps_nodes() -> bool:
    with without_torch_function(), torch.enable_grad():
        x = torch.zeros(2, requires_grad=True) * 1
        x[:1].mul_(2)
        return node_creation_hook is None or wrapped_node(x.grad_fn) is not None  # before torch 2.15 there is neither


_NODE = "torch.autograd.graph.Node"
NAMES += [
    Name(f"{_NODE}._saved_*", "diagnose has neither sides nor what-ifs", _example_has("_saved_self")),
    Name(f"{_NODE}._raw_saved_*", "a what-if runs checkpoints again", _example_has("_raw_saved_self")),
    Name(f"{_NODE}._sequence_nr", "reports do not say what was not reached", _example_has("_sequence_nr")),
]
# Shape, dtype and device of each gradient that arrives at a node.
input_metadata = _attribute(f"{_NODE}._input_metadata", "diagnose has no what-ifs", _example_has("_input_metadata"), ())
# The node of an op in place on a view, inside the node of its base; None before torch 2.15.
wrapped_node = _attribute(
    f"{_NODE}._wrapped_node", "a what-if does not say which op in place hides its node", _wraps_nodes
)
# The custom Function of a node or of a class of nodes, None for torch's own; and the class of nodes of a custom Function.
function_of: Callable[[object], Any] = _attribute(
    f"{_NODE}._forward_cls",
    "diagnose does not name custom Functions",
    lambda: function_of(backward_class(checkpoint.CheckpointFunction)) is not None,
)
backward_class: Callable[[object], Any] = _attribute(
    "torch.autograd.Function._backward_cls",
    "a small backward costs half a microsecond more",
    lambda: backward_class(checkpoint.CheckpointFunction) is not None,
)
# The tensor that a view is of.
base_of = _attribute("torch.Tensor._base", "an op in place on a view counts as one on all of it")
_hooks_of = _attribute("torch.Tensor._backward_hooks", "diagnose blames an op for zeros that a hook made")
# The hooks that run after a gradient was added to that of a leaf; True if torch does not say.
hooks_after_accumulation = _attribute("torch.Tensor._post_accumulate_grad_hooks", _SLOWER, default=True)


def hooks_of(tensor: object) -> dict[int, object]:
    """The program's own hooks on a tensor."""
    return _hooks_of(tensor) or {}


# The number of a node: the nodes that one thread makes are numbered in order.
number_of: Callable[[Any], int] = methodcaller("_sequence_nr")


def saved(node: object, name: str, *default: object) -> Any:
    """The value that a node of torch has saved under this name. If it has saved none: the default, or an AttributeError without a default.

    RuntimeError if code of the program would run again to unpack it: a hook, or the forward of a checkpoint.
    """
    variables = getattr(node, f"_raw_saved_{name}", None)
    hook = getattr(
        variables[0] if isinstance(variables, (list, tuple)) and variables else variables, "unpack_hook", None
    )
    module = getattr(hook, "__module__", None) or ""
    if hook is not None and (module == "torch.utils.checkpoint" or not module.startswith("torch.")):
        raise RuntimeError("code of the program would run once more")
    return getattr(node, f"_saved_{name}", *default)


def saves(node: object, name: str) -> bool:
    """Does the node, or nodes of this class, save something under this name?"""
    return hasattr(node, f"_saved_{name}")


@functools.cache
def _names_of_saved(kind: type) -> tuple[str, ...]:
    return tuple(name for name in dir(kind) if name.startswith("_raw_saved"))


def saved_names(node: object) -> list[str]:
    return [name.removeprefix("_raw_saved_") for name in _names_of_saved(type(node))]  # type: ignore[arg-type]


def saved_variables(node: object) -> list[Any]:
    """The variables that a node saves, still packed."""
    values = [getattr(node, name) for name in _names_of_saved(type(node))]  # type: ignore[arg-type]
    return [item for value in values for item in (value if isinstance(value, (tuple, list)) else (value,))]


def status() -> list[dict[str, str]]:
    """The names that this torch lacks, and what is worse without them."""
    lacking = [name for name in NAMES if not (name.is_there() if callable(name.is_there) else name.is_there)]
    return [{"name": name.name, "without": name.without} for name in lacking]
