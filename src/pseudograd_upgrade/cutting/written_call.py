"""A call of torch or a step of an optimiser, with what it reads, as plain values and tensors that another process can run again."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..recorded import UPDATE
from . import names, trees
from .memory import MOST, Before
from .trees import Tree, UnwritableError


class WrittenCall:
    """One call. why: what keeps it from being written."""

    def __init__(self) -> None:
        self.why = ""
        self.spec: dict[str, Any] = {}
        self.tensors: dict[str, Before] = {}
        self.outputs: list[int | None] = []  # that require a gradient; None: the only one
        self.grads: dict[int | None, Before] = {}  # that arrived, by the output

    def take(self, given: Sequence[Tree], named: Mapping[str, Tree], requires: Iterable[str]) -> None:
        self.spec |= {"args": list(given), "kwargs": dict(named), "requires": sorted(requires)}

    def content(self) -> dict[str, object]:
        """Plain values, and bytes that torch reads as tensors alone."""
        names_of = {at: f"grad{'' if at is None else at}" for at in self.grads}
        held = {**self.tensors, **{names_of[at]: one for at, one in self.grads.items()}}
        self.why = self.why or next((one.why for one in held.values() if one.why), "")
        file = io.BytesIO()
        try:
            tensors = {} if self.why else {name: one.tensor() for name, one in held.items()}
            if sum(one.untyped_storage().nbytes() for one in tensors.values()) > MOST:
                self.why = f"its tensors have {sum(one.numel() for one in tensors.values()):,} entries together"
            else:
                torch.save(tensors, file)
        except UnwritableError as error:
            self.why = str(error)
        grads = [[at, names_of.get(at)] for at in self.grads or self.outputs]
        return {"why": self.why, **self.spec, "grads": grads, "tensors": file.getvalue()}


class Held(NamedTuple):
    """An argument, what it held before the call, and whether it required a gradient."""

    tensor: Tensor
    before: Before
    requires: bool


def write_call(call: WrittenCall, naming: names.Names, args: Any, kwargs: Any, held: Sequence[Held]) -> None:
    before = {id(one.tensor): one for one in held}
    requires = set()

    def named(tensor: Tensor) -> str:
        name, one = naming.of(tensor), before[id(tensor)]
        if one.before.why:
            raise UnwritableError(one.before.why)
        call.tensors[name] = one.before
        if one.requires:
            requires.add(name)
        return name

    given = [trees.tree(one, named) for one in args]
    call.take(given, {name: trees.tree(one, named) for name, one in kwargs.items()}, requires)


def autocast() -> list[str] | None:
    """The device and the dtype; None outside."""
    for device in ("cpu", "cuda"):
        if torch.is_autocast_enabled(device):
            return [device, str(torch.get_autocast_dtype(device))]
    return None


def _is_other(one: object, other: object) -> bool:
    return type(one) is not type(other) or one != other


def _no_tensor(tensor: Tensor) -> str:
    raise UnwritableError("an option of its optimiser is a tensor")


def listed(result: object) -> Sequence[Any]:
    return result if isinstance(result, (tuple, list)) else ()


def tensors_of(args: object, kwargs: Mapping[str, object]) -> list[Tensor]:
    found: list[Tensor] = []

    def look(value: object) -> None:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (tuple, list)):
            for one in value:
                look(one)
        elif isinstance(value, slice):
            look((value.start, value.stop, value.step))

    look(args)
    look(list(kwargs.values()))
    return found


def write_update(call: WrittenCall, optimiser: Any) -> None:
    kind = type(optimiser)
    if getattr(torch.optim, kind.__name__, None) is not kind:
        raise UnwritableError(f"{kind.__name__} is no optimiser of torch")
    group = optimiser.param_groups[0]
    if len(optimiser.param_groups) > 1:
        raise UnwritableError("its optimiser has several groups of parameters")
    options = {name: group[name] for name in optimiser.defaults if name in group}
    plain = kind([torch.nn.Parameter(torch.zeros(1))], **({"lr": group["lr"]} if "lr" in group else {})).defaults
    options = {name: one for name, one in options.items() if name not in plain or _is_other(plain[name], one)}
    if "lr" in group:
        options = {"lr": group["lr"], **options}
    for at, one in enumerate(one for one in group["params"] if one.grad is not None):
        for name, tensor in ((f"p{at}", one), (f"grad{at}", one.grad)):
            call.tensors[name] = Before(tensor, is_changed=True)
    call.spec |= {"kind": UPDATE, "form": names.UPDATE, "name": f"torch.optim.{kind.__name__}", "autocast": None}
    call.take([], {name: trees.tree(one, _no_tensor) for name, one in options.items()}, [])
