"""The table of residuals and of the kernels that compute with them. It may change at any time; neither rules nor engine name a kernel.

`residual_of` says what a call saves. `forward`, `backward` and `value` run the first kernel that can compute with the given tensors; if
they return None, the engine runs the plain formula. Compiled and functorch calls save the inputs and run the formula.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from typing import Any, NoReturn

import torch
from torch import Tensor

from ..record import Record
from ..rule import OPS, Call, Gradients, Primitive, Wants, prepared
from ..torch_table.private import checkpoint_frame, dispatch_keys, is_zero
from .residuals import INPUTS, Inputs, Residual, Saved


def _leave_to_formula(*arguments: object) -> NoReturn:
    raise NotImplementedError


class Coded(Record):
    """How a call saves planes (see `bits`) instead of its tensors.

    encode(*tensors) -> (y, planes, order). order: the order of x's dimensions in memory, as a number (see `bits.order_of`).
    decode(grad, planes, entry, order) -> the gradient of one tensor. entry: the entry of `settings` for this tensor.
    settings: for each tensor, numbers of the rule, in a form that the kernel reads; None if nobody asks for the gradient of the tensor.
    code: the `bits.Code`, which says by what to multiply grad.
    residual: what the call saves, made of the planes, the order and `code`.
    """

    encode: Callable[..., tuple[Tensor, Tensor, int | None]]
    decode: Callable[..., Tensor]
    settings: tuple[Tensor | None, ...]
    code: object
    residual: Residual


class Prepared(Record):
    """A call whose only tensor is x. Everything that does not depend on x is decided.

    With few elements the call saves x:
        forward(x, settings) -> y
        backward(grad, x, settings) -> grad_x; by default the formula computes it.
    With many elements, and if pays(x), the call saves planes as `coded` says:
        encode_in_place(x, settings) -> (planes, order), and x becomes y.
    """

    forward: Callable[[Tensor, Tensor | None], Tensor]
    call: Call
    others: Inputs  # the inputs after x
    settings: Tensor | None = None  # numbers of the rule for x, as an entry of `Coded.settings`
    backward: Callable[[Tensor, Tensor, Tensor | None], Tensor] = _leave_to_formula
    coded: Coded | None = None
    encode_in_place: Callable[[Tensor, Tensor | None], tuple[Tensor, int | None]] = _leave_to_formula
    pays: Callable[[Tensor], bool] = _leave_to_formula
    passes_grad: bool = False  # does x get grad as it is? Then nothing is saved
    takes_only_few_elements: bool = False  # must a call with many elements be left to `engine.run`?
    takes_any_layout: bool = False  # does forward take x of every layout, as torch's own ops do?


class PreparedBetween(Record):
    """A call with a range between tensors: the inputs after x are tensors or None. Everything that depends on no value is decided.

    forward(*tensors) -> y. backward(grad, *tensors, settings) -> the gradient of the tensor with these settings.
    inputs(values): `values` has an entry for each tensor; the result has an entry for each input, None where the input is no tensor.
    coded(wants): how the call saves planes if these gradients are wanted; None if it saves all its tensors.
    """

    forward: Callable[..., Tensor]
    backward: Callable[..., Tensor]
    settings: tuple[Tensor, ...]
    inputs: Callable[[Sequence[Any]], list[Any]]
    call: Call
    coded: Callable[[Wants], Coded | None]


class Kernel(Record):
    """Computes the gradients from a residual faster than the formula, and perhaps the residual itself.

    serves(call) -> bool is asked once for each call.
    priority: the kernel with the largest number is asked first; of kernels with equal numbers, the first in the order of names.
    The next four functions get plain tensors, and run only if no mode watches and no second derivative is recorded. To decline a call,
    they return None or raise NotImplementedError.
    backward(grad, saved, wants, call) -> one gradient per input, not summed over broadcast dimensions.
    forward(call, inputs, wants) -> (y, saved); not for the residual of inputs, which costs nothing to save.
    forward_in_place(call, inputs, wants) -> saved, and the first input becomes y.
    value(call, inputs) -> y; for the residual of inputs.
    prepare(call, others, dtype) -> the call prepared with these numbers after x, or None.
    prepare_between(call, inputs) -> the call prepared with tensors after x, or None. The result may depend only on which inputs are None
        and on the dtype of the other inputs.
    """

    name: str
    residual: Residual
    serves: Callable[[Call], bool]
    backward: Callable[[Tensor, Saved, Wants, Call], Gradients | None]
    forward: Callable[[Call, Inputs, Wants], tuple[Tensor, Saved] | None] | None = None
    forward_in_place: Callable[[Call, Inputs, Wants], Saved | None] | None = None
    device: str = ""  # the type of the only device that it computes on; "" for any
    prepare: Callable[[Call, Inputs, torch.dtype], Prepared | None] | None = None
    prepare_between: Callable[[Call, Inputs], PreparedBetween | None] | None = None
    value: Callable[[Call, Inputs], Tensor | None] | None = None
    priority: int = 0


class _Entries(Record):
    """The entries of the table that serve one call, as long as the table does not change."""

    state: int  # `_state` when they were found
    residuals: tuple[Residual, ...]
    kernels: dict[str, tuple[Kernel, ...]]  # by the name of their residual
    has_values: bool  # can a kernel compute y for a call that saves its inputs?


can_have_names = hasattr(Tensor, "has_names")
PLAIN = (Tensor, torch.nn.Parameter)
_residuals: list[Residual] = []
_kernels: list[Kernel] = []
_accounts: dict[str, Callable[[], dict[str, str]]] = {}
_switched_off: set[str | Kernel] = set()
_state = 0  # of the table: each change gives it a new number


def register(*entries: Residual | Kernel) -> None:
    """Put residuals and kernels into the table, which asks them in the order of their priorities."""
    for entry in entries:
        table = _table_of(entry)
        table.append(entry)
        table.sort(key=lambda entry: (-entry.priority, entry.name))
    _note_change()


def _table_of(entry: Residual | Kernel) -> list[Any]:
    return _kernels if isinstance(entry, Kernel) else _residuals


def remove(*entries: Residual | Kernel) -> None:
    """Take residuals and kernels out of the table. A backward still to come uses the residual of its forward."""
    for entry in entries:
        _table_of(entry).remove(entry)
    _note_change()


def account(name: str, describe: Callable[[], dict[str, str]]) -> None:
    """Register describe() -> {"state", "why"} for the kernels of this name, which may be missing from the table."""
    _accounts[name] = describe


@contextmanager
def switch_off(*names: str | Kernel) -> Iterator[None]:
    """Switch off these kernels, or all kernels of these names, in every thread. What calls save stays the same."""
    added = set(names) - _switched_off
    _switched_off.update(added)
    _note_change()
    try:
        yield
    finally:
        _switched_off.difference_update(added)
        _note_change()


def use_only(kernel: Kernel) -> AbstractContextManager[None]:
    """Switch off all other kernels: this kernel or the formula computes."""
    return switch_off(*(other for other in _kernels if other is not kernel))


def that_serve(call: Call) -> list[Kernel]:
    """All kernels that may compute the call, switched on or off."""
    return [] if call.primitive.through is not None else [kernel for kernel in _kernels if kernel.serves(call)]


def _note_change() -> None:
    global _state
    _state += 1
    prepared.clear()


def _find_entries(call: Call) -> _Entries:
    """The entries that serve the call. Every call of every op asks twice, so the answer stays at the call."""
    served: _Entries | None = call.served
    if served is not None and served.state == _state:
        return served
    residuals = _residuals if _may_keep_bits(call.primitive) else ()
    kernels: dict[str, tuple[Kernel, ...]] = {}
    for kernel in that_serve(call):
        if not {kernel.name, kernel} & _switched_off:
            kernels[kernel.residual.name] = (*kernels.get(kernel.residual.name, ()), kernel)
    has_values = any(kernel.value is not None for kernel in kernels.get(INPUTS.name, ()))
    suitable = tuple([residual for residual in residuals if residual.suits(call)])
    call.served = served = _Entries(_state, suitable, kernels, has_values)
    return served


def _may_keep_bits(primitive: Primitive) -> bool:
    if primitive.through is not None:  # the rule is written for other inputs than those of the primitive
        return False
    # "as torch": the primitive runs in place of a function of torch. A checkpoint runs its forward twice and compares what both runs save.
    # So both must be under the same contexts of ours; listen/hooks.py sees to that, where torch has `checkpoint_frame`.
    return primitive.saves == "rule" or (primitive.saves == "as torch" and checkpoint_frame is not None)


def residual_of(call: Call, inputs: Inputs, wants: Wants) -> Residual:
    """The first residual that serves the call; that of the inputs if no other one does."""
    for residual in _find_entries(call).residuals:
        if residual.serves(call, inputs, wants):
            return residual
    return INPUTS


def forward(residual: Residual, call: Call, inputs: Inputs, wants: Wants) -> tuple[Tensor, Saved] | None:
    """(y, saved) by the first kernel that can compute them, else None."""
    return _run_first("forward", residual, call, inputs, call, inputs, wants)


def have_values(call: Call) -> bool:
    """May `value` return a tensor? This is a faster question than `value`."""
    return _find_entries(call).has_values


def value(call: Call, inputs: Inputs) -> Tensor | None:
    """y of a call that saves its inputs, by the first kernel that can compute it, else None."""
    return _run_first("value", INPUTS, call, inputs, call, inputs)


def forward_in_place(residual: Residual, call: Call, inputs: Inputs, wants: Wants) -> Saved | None:
    """What the call saves, by the first kernel that can compute it and write y into the first input; else None, and nothing has changed."""
    return _run_first("forward_in_place", residual, call, inputs, call, inputs, wants)


def _run_first(method: str, residual: Residual, call: Call, values: Iterable[object], *arguments: object) -> Any:
    """Run this method of the first kernel that has it, computes on the device of the values, and does not decline; else None."""
    device = ""
    for kernel in _find_entries(call).kernels.get(residual.name, ()):
        run = getattr(kernel, method)
        if run is not None:
            device = device or device_of(values) or _NONE
            if device == _NONE or kernel.device not in ("", device):
                continue
            try:
                result = run(*arguments)
            except NotImplementedError:
                continue
            if result is not None:
                return result
    return None


def backward(residual: Residual, grad: Tensor, saved: Saved, wants: Wants, call: Call) -> Gradients | None:
    """The gradients by the first kernel that can compute them, else None."""
    return _run_first("backward", residual, call, (grad, *saved), grad, saved, wants, call)


def prepare(call: Call, others: Inputs, dtype: torch.dtype, device: str) -> Prepared | None:
    """The call prepared with these numbers after x, by the first kernel for the device that can; else None."""
    recipe = _prepare_by_first(device, "prepare", call, others, dtype)
    return None if recipe is None else recipe.replaced(coded=_keep_if_first(call, recipe.coded))


def prepare_plainly(call: Call, others: Inputs) -> Prepared | None:
    """The call prepared without a kernel: torch's own forward, and in backward any kernel or the formula."""
    rule, wants = call.rule, (True, *[False] * len(others))
    if rule.is_from_user or call.maximize or call.primitive.saves != "rule":
        return None
    passes_grad = not call.keeps(wants)
    if passes_grad:  # the rule reads only grad; does x get grad itself?
        grad = torch.zeros(0)
        if call.pull(grad, (None,) * len(wants), None, wants)[0] is not grad:
            return None
    prepared_call = Prepared(forward_of_x(call, others), call, others, passes_grad=passes_grad, takes_any_layout=True)
    may_save_planes = bool(_find_entries(call).residuals) and not passes_grad  # with many elements
    return prepared_call.replaced(takes_only_few_elements=may_save_planes)


def forward_of_x(call: Call, others: Inputs) -> Callable[[Tensor, Tensor | None], Tensor]:
    """The forward of torch for a `Prepared`. It reads no settings."""
    forward = call.primitive.forward
    return lambda x, settings: forward(x, *others)


def prepare_between(call: Call, inputs: Inputs) -> PreparedBetween | None:
    """The call prepared with tensors after x, by the first kernel for the device of x that can; else None."""
    recipe = _prepare_by_first(inputs[0].device.type, "prepare_between", call, inputs)
    if recipe is None:
        return None
    return recipe.replaced(coded=lru_cache(lambda wants: _keep_if_first(call, recipe.coded(wants))))


def _prepare_by_first(device: str, method: str, call: Call, *arguments: object) -> Any:
    """The result of this method of the first kernel for exactly this device that does not decline."""
    for kernel in _find_entries(call).kernels.get(INPUTS.name, ()):
        run = getattr(kernel, method) if kernel.device == device else None
        if run is not None and (recipe := run(call, *arguments)) is not None:
            return recipe
    return None


def _keep_if_first(call: Call, coded: Coded | None) -> Coded | None:
    """`coded`; or None if a call that is not prepared would save another residual."""
    return coded if coded is not None and _find_entries(call).residuals[:1] == (coded.residual,) else None


# What `_find_device` returned for these dispatch keys, which decide it. Without this table, its calls of methods of the tensor would reach
# the program's TorchFunctionMode each time.
_device_by_keys: dict[int, str] = {}


_NONE, _SEVERAL = "none", "several"


def device_of(values: Iterable[object]) -> str:
    """The type of the device of these tensors: "none" if a tensor is not plain, "several" for several devices, "" without tensors.

    A plain tensor has strided memory of its own that holds its values, so out= and raw pointers are safe.
    """
    device = ""
    for value in values:
        if type(value) in PLAIN and isinstance(value, Tensor):
            keys = dispatch_keys(value).raw_repr()
            own = _device_by_keys[keys] if keys in _device_by_keys else _find_device(value, keys)
            if own == _NONE:
                return _NONE
            device = own if device in ("", own) else _SEVERAL
        elif isinstance(value, Tensor):
            return _NONE
    return device


def are_plain(values: Iterable[object]) -> bool:
    """Are all tensors plain?"""
    return device_of(values) != _NONE


def _find_device(value: Tensor, keys: int) -> str:
    plain = value.layout is torch.strided and not (
        value.is_mkldnn
        or value.is_nested
        or value.is_meta
        or value.is_neg()
        or value.is_conj()
        or is_zero(value)
        or (can_have_names and value.has_names())  # type: ignore[attr-defined]  # not on every torch
    )
    device = value.device.type if plain else _NONE
    if keys:
        _device_by_keys[keys] = device
    return device


def status() -> list[dict[str, str]]:
    """For each name of kernels: which rules they serve, or why they do not run. They are in the order in which they are asked."""
    names = dict.fromkeys([*(kernel.name for kernel in _kernels), *_accounts])
    return [{"kernel": name, **_status_of(name)} for name in names]


def _status_of(name: str) -> dict[str, str]:
    entries = [kernel for kernel in _kernels if kernel.name == name]
    status = _accounts[name]() if name in _accounts else {"state": "active", "why": "registered"}
    if status["state"] != "active" or not entries:
        return status
    if name in _switched_off or _switched_off.issuperset(entries):
        return {"state": "not active", "why": "switched off by kernels.switch_off"}
    devices = sorted({kernel.device.upper() for kernel in entries})
    on = " and ".join(devices) if all(devices) else "any device"
    return {"state": "active", "why": f"{status['why']}, for {', '.join(rules_of(entries))} on {on}"}


def rules_of(serving: Iterable[Kernel]) -> list[str]:
    """The rules that these kernels compute with some edge, in the order of the table of rules."""
    names: dict[str, None] = {}
    for op in OPS.values():
        for rule in op.rules.values():
            calls = [Call(op, rule, dict(rule.parameters), edge, False) for edge in op.edges or (None,)]
            if any(kernel.serves(call) for kernel in serving for call in calls):
                names[f"{op.rule_set}/{rule.name}"] = None
    return list(names)
