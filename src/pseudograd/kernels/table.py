"""The table of residuals and of the kernels that compute with them. It may change at any time; neither rules nor engine name one.

`residual_of` says what a call keeps; `backward` runs the first kernel that is ready for the tensors at hand, else the residual's own
plain formula. Compiled and functorch calls keep the inputs and run the formula.
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
    """How a call saves planes in place of all of its tensors.

    encode(*tensors) -> (y, planes, order). decode(grad, planes, column, order) -> the gradient of the tensor with this column; a column is
    None where nobody asks for the gradient. code: what `residual` saves beside the planes and the order.
    """

    encode: Callable[..., tuple[Tensor, Tensor, int | None]]
    decode: Callable[..., Tensor]
    columns: tuple[Tensor | None, ...]
    code: object
    residual: Residual


class Prepared(Record):
    """A call whose only tensor is x, with everything decided that does not depend on x.

    With few elements it saves x: forward(x, settings) -> y, backward(grad, x, settings) -> grad_x, which the formula gives by default.
    With many it saves planes as `coded` says, if it `pays` for x; encode_in_place(x, settings) -> (planes, order). If it `is_of_few` it
    serves no more than few elements.
    others: the inputs behind x. takes_any: does forward take x of every layout, as torch's own ops do? passes: x gets grad as it is, so
    nothing is saved.
    """

    forward: Callable[[Tensor, Tensor | None], Tensor]
    call: Call
    others: Inputs
    settings: Tensor | None = None
    backward: Callable[[Tensor, Tensor, Tensor | None], Tensor] = _leave_to_formula
    coded: Coded | None = None
    encode_in_place: Callable[[Tensor, Tensor | None], tuple[Tensor, int | None]] = _leave_to_formula
    pays: Callable[[Tensor], bool] = _leave_to_formula
    passes: bool = False
    is_of_few: bool = False
    takes_any: bool = False


class PreparedBetween(Record):
    """A call with tensors or None behind x that saves all its tensors, with everything decided that depends on no value.

    forward(*tensors) -> y. backward(grad, *tensors, column) -> the gradient of the tensor with this column. inputs(values): the inputs of
    the call, from one value for each tensor. coded(wants): how the call saves planes when these gradients are wanted; None where it does
    not.
    """

    forward: Callable[..., Tensor]
    backward: Callable[..., Tensor]
    columns: tuple[Tensor, ...]
    inputs: Callable[[Sequence[Any]], list[Any]]
    call: Call
    coded: Callable[[Wants], Coded | None]


class Kernel(Record):
    """A faster way to the gradients of a residual, and perhaps to the residual.

    device: the type of the only device that it computes on; "" for any.
    serves(call) -> bool is asked once for each call.
    priority: of two that are ready, the one with the larger number runs; of equal ones the one whose name comes first.
    backward(grad, saved, wants, call) -> one gradient per input, unreduced, or None to decline;
    forward(call, inputs, wants) -> (y, saved), or None to decline; for residuals other than the inputs, which cost nothing to keep.
    forward_in_place(call, inputs, wants) -> saved, and the first input becomes y.
    All get tensors that are plain, and run where no mode watches and no second derivative is recorded.
    prepare(call, others, dtype): the call with numbers behind x made ready, or None to decline. prepare_between(call, inputs): the same
    with tensors; none of it may depend on more than which inputs are there, and on their dtype.
    value(call, inputs) -> y, or None to decline; where the inputs are kept.
    """

    name: str
    residual: Residual
    serves: Callable[[Call], bool]
    backward: Callable[[Tensor, Saved, Wants, Call], Gradients | None]
    forward: Callable[[Call, Inputs, Wants], tuple[Tensor, Saved] | None] | None = None
    forward_in_place: Callable[[Call, Inputs, Wants], Saved | None] | None = None
    device: str = ""
    prepare: Callable[[Call, Inputs, torch.dtype], Prepared | None] | None = None
    prepare_between: Callable[[Call, Inputs], PreparedBetween | None] | None = None
    value: Callable[[Call, Inputs], Tensor | None] | None = None
    priority: int = 0


class _Served(Record):
    """What the table has for one call, as long as the table does not change."""

    state: int
    residuals: tuple[Residual, ...]
    kernels: dict[str, tuple[Kernel, ...]]  # by the name of their residual
    has_values: bool  # of calls that keep their inputs


can_have_names = hasattr(Tensor, "has_names")
PLAIN = (Tensor, torch.nn.Parameter)
_residuals: list[Residual] = []
_kernels: list[Kernel] = []
_accounts: dict[str, Callable[[], dict[str, str]]] = {}
_off: set[str | Kernel] = set()
_state = 0  # of the table: another number after each change


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
    """Take them out again. A backward still to come uses the residual of its forward."""
    for entry in entries:
        _table_of(entry).remove(entry)
    _note_change()


def account(name: str, of: Callable[[], dict[str, str]]) -> None:
    """Say how kernels of this name are, as `state` and `why`, also where none is registered because something is missing."""
    _accounts[name] = of


@contextmanager
def off(*names: str | Kernel) -> Iterator[None]:
    """Switch off these kernels, or all kernels of these names, in every thread. What calls save stays the same."""
    added = set(names) - _off
    _off.update(added)
    _note_change()
    try:
        yield
    finally:
        _off.difference_update(added)
        _note_change()


def only(kernel: Kernel) -> AbstractContextManager[None]:
    """Switch off all other kernels: this kernel or the formula computes."""
    return off(*(other for other in _kernels if other is not kernel))


def that_serve(call: Call) -> list[Kernel]:
    """All kernels that may compute the call, switched on or off."""
    return [] if call.primitive.through is not None else [kernel for kernel in _kernels if kernel.serves(call)]


def _note_change() -> None:
    global _state
    _state += 1
    prepared.clear()


def _served(call: Call) -> _Served:
    """What the table has for the call. Every call of every op asks twice, so the answer stays at the call."""
    served: _Served | None = call.served
    if served is not None and served.state == _state:
        return served
    residuals = _residuals if _may_keep_bits(call.primitive) else ()
    kernels: dict[str, tuple[Kernel, ...]] = {}
    for kernel in that_serve(call):
        if not {kernel.name, kernel} & _off:
            kernels[kernel.residual.name] = (*kernels.get(kernel.residual.name, ()), kernel)
    has_values = any(kernel.value is not None for kernel in kernels.get(INPUTS.name, ()))
    suitable = tuple([residual for residual in residuals if residual.suits(call)])
    call.served = served = _Served(_state, suitable, kernels, has_values)
    return served


def _may_keep_bits(primitive: Primitive) -> bool:
    """What stands in for a function of torch may: a checkpoint, which compares what its two runs keep, runs both under the same contexts
    of ours (listen/hooks.py). Not where this torch lacks what that needs, nor where the formulas are not those of the rule.
    """
    if primitive.through is not None:
        return False
    return primitive.saves == "rule" or (primitive.saves == "as torch" and checkpoint_frame is not None)


def residual_of(call: Call, inputs: Inputs, wants: Wants) -> Residual:
    """The first residual that serves the call; the inputs where none does."""
    for residual in _served(call).residuals:
        if residual.serves(call, inputs, wants):
            return residual
    return INPUTS


_NONE, _SEVERAL = "none", "several"


def forward(residual: Residual, call: Call, inputs: Inputs, wants: Wants) -> tuple[Tensor, Saved] | None:
    """By the first kernel that can; None where none can."""
    return _first("forward", residual, call, inputs, call, inputs, wants)


def have_values(call: Call) -> bool:
    """May `value` find one? Asked first, because it takes no time."""
    return _served(call).has_values


def value(call: Call, inputs: Inputs) -> Tensor | None:
    """Of a call that keeps its inputs, by the first kernel that can; None where none can."""
    return _first("value", INPUTS, call, inputs, call, inputs)


def forward_in_place(residual: Residual, call: Call, inputs: Inputs, wants: Wants) -> Saved | None:
    """By the first kernel that can, into the first input; None where none can, and nothing has changed."""
    return _first("forward_in_place", residual, call, inputs, call, inputs, wants)


def _first(does: str, residual: Residual, call: Call, values: Iterable[object], *arguments: object) -> Any:
    """What the first kernel gives that does this for the residual, on the device of the values, without declining."""
    device = ""
    for kernel in _served(call).kernels.get(residual.name, ()):
        run = getattr(kernel, does)
        if run is not None:
            device = device or device_of(values) or _NONE
            result = run(*arguments) if device != _NONE and kernel.device in ("", device) else None
            if result is not None:
                return result
    return None


def backward(residual: Residual, grad: Tensor, saved: Saved, wants: Wants, call: Call) -> Gradients | None:
    """By the first kernel that can; None where none can."""
    return _first("backward", residual, call, (grad, *saved), grad, saved, wants, call)


def prepare(call: Call, others: Inputs, dtype: torch.dtype, device: str) -> Prepared | None:
    """The call with these numbers behind x made ready, if a kernel on the device can."""
    recipe = _first_on(device, "prepare", call, others, dtype)
    return None if recipe is None else recipe.replaced(coded=_of_first_residual(call, recipe.coded))


def prepare_plainly(call: Call, others: Inputs) -> Prepared | None:
    """The same where no kernel can: torch's own forward, and in backward what `backward` finds, or the formula."""
    rule, wants = call.rule, (True, *[False] * len(others))
    if rule.is_users or call.maximize or call.primitive.saves != "rule":
        return None
    passes, forward = not call.keeps(wants), call.primitive.forward
    if passes:  # nothing is read but grad: is it also what x gets?
        grad = torch.zeros(0)
        if call.pull(grad, (None,) * len(wants), None, wants)[0] is not grad:
            return None

    def value(x: Tensor, settings: Tensor | None) -> Tensor:
        return forward(x, *others)

    is_of_few = bool(_served(call).residuals) and not passes
    return Prepared(value, call, others, passes=passes, is_of_few=is_of_few, takes_any=True)


def prepare_between(call: Call, inputs: Inputs) -> PreparedBetween | None:
    """The call with tensors behind x made ready, if a kernel on the device of x can."""
    recipe = _first_on(inputs[0].device.type, "prepare_between", call, inputs)
    if recipe is None:
        return None
    return recipe.replaced(coded=lru_cache(lambda wants: _of_first_residual(call, recipe.coded(wants))))


def _first_on(device: str, does: str, call: Call, *arguments: object) -> Any:
    """What the first kernel for this very device gives that does this for a call, without declining."""
    for kernel in _served(call).kernels.get(INPUTS.name, ()):
        run = getattr(kernel, does) if kernel.device == device else None
        if run is not None and (recipe := run(call, *arguments)) is not None:
            return recipe
    return None


def _of_first_residual(call: Call, coded: Coded | None) -> Coded | None:
    """A code only where the call would keep the same one unprepared."""
    return coded if coded is not None and _served(call).residuals[:1] == (coded.residual,) else None


# By a tensor's dispatch keys, which say all of it: the methods of `_device` would be calls of torch to every mode of functions.
_device_by_keys: dict[int, str] = {}


def device_of(values: Iterable[object]) -> str:
    """The type of the device of numbers and plain tensors, which have strided memory of their own that holds their values.

    There out= and raw pointers are safe. "none" if a tensor is not plain, "several" if they are on more devices than one.
    """
    device = ""
    for value in values:
        if type(value) in PLAIN and isinstance(value, Tensor):
            keys = dispatch_keys(value).raw_repr()
            own = _device_by_keys[keys] if keys in _device_by_keys else _device(value, keys)
            if own == _NONE:
                return _NONE
            device = own if device in ("", own) else _SEVERAL
        elif isinstance(value, Tensor):
            return _NONE
    return device


def are_plain(values: Iterable[object]) -> bool:
    """On whatever devices."""
    return device_of(values) != _NONE


def _device(value: Tensor, keys: int) -> str:
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
    """Which kernels run and what for, and why others do not; those first that are asked first."""
    names = dict.fromkeys([*(kernel.name for kernel in _kernels), *_accounts])
    return [
        {"kernel": name, **_status_of(name, [kernel for kernel in _kernels if kernel.name == name])} for name in names
    ]


def _status_of(name: str, entries: list[Kernel]) -> dict[str, str]:
    status = _accounts[name]() if name in _accounts else {"state": "active", "why": "registered"}
    if status["state"] != "active" or not entries:
        return status
    if name in _off or _off.issuperset(entries):
        return {"state": "not active", "why": "switched off by kernels.off"}
    devices = sorted({kernel.device.upper() for kernel in entries})
    on = " and ".join(devices) if all(devices) else "any device"
    return {"state": "active", "why": f"{status['why']}, for {', '.join(rules_of(entries))} on {on}"}


def rules_of(serving: Iterable[Kernel]) -> list[str]:
    """By the table of rules: those that these kernels compute, with some edge."""
    names: dict[str, None] = {}
    for op in OPS.values():
        for rule in op.rules.values():
            calls = [Call(op, rule, dict(rule.parameters), edge, False) for edge in op.edges or (None,)]
            if any(kernel.serves(call) for kernel in serving for call in calls):
                names[f"{op.rule_set}/{rule.name}"] = None
    return list(names)
