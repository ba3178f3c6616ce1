"""One call of torch with all that it reads, and the lines of a program that make it."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ..recorded import BACKWARD, UPDATE
from . import names, trees
from .trees import Tree, UnwritableError

_IN_PLACE = ("__iadd__", "__isub__", "__imul__", "__itruediv__")


@dataclass(frozen=True)
class Call:
    """kind: of the event that differs; of a backward the gradients are looked at, else what the call returns.

    grads: of an output (None: the only one) the name of the tensor that arrives there; with None for that, its sum is differentiated.
    times: steps of an optimiser. autocast: device and dtype. made: of a tensor the text that makes it, where no list of numbers does.
    """

    kind: str
    form: str
    name: str
    args: tuple[Tree, ...]
    kwargs: Mapping[str, Tree]
    tensors: Mapping[str, Tensor]
    requires: frozenset[str] = frozenset()
    grads: tuple[tuple[int | None, str | None], ...] = ()
    autocast: tuple[str, str] | None = None
    times: int = 1
    made: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_of_gradients(self) -> bool:
        return self.kind == BACKWARD

    @property
    def is_in_place(self) -> bool:
        """Does it change its first tensor?"""
        if self.form not in (names.FUNCTION, names.METHOD):
            return False
        last = self.name.rpartition(".")[2]
        return (
            self.kwargs.get("inplace") is True or last in _IN_PLACE or (last.endswith("_") and not last.endswith("__"))
        )

    def but(self, **changed: Any) -> Call:
        """With something changed, and without tensors that nobody names any more."""
        other = replace(self, **changed)
        if other.kind == UPDATE:
            return other
        used = {*trees.tensors_in(*other.args, *other.kwargs.values()), *(name for _, name in other.grads if name)}
        tensors = {name: one for name, one in other.tensors.items() if name in used}
        made = {name: text for name, text in other.made.items() if tensors.get(name) is self.tensors[name]}
        return replace(other, tensors=tensors, requires=other.requires & tensors.keys(), made=made)

    # --- lines ----------------------------------------------------------------------------------------------------------

    def lines(self, is_scalar: bool = False) -> list[str]:
        """After its tensors are there: `y` is what it returns. is_scalar: y is known to have one entry, and no dimension."""
        if self.kind == UPDATE:
            return self._update()
        found = [f"y = {self.expression()}"]
        if self.autocast is not None:
            device, dtype = self.autocast
            found = [f"with torch.autocast({device!r}, {dtype}):", f"    {found[0]}"]
        return [*found, *self._backward(is_scalar)] if self.is_of_gradients else found

    def expression(self) -> str:
        given = [trees.text(one) for one in self.args]
        if self.is_in_place:
            self._clone_first(given)
        if self.form == names.OPERATOR:
            if self.name == "__getitem__":
                given[1] = trees.index_text(self.args[1])
            return names.OPERATORS[self.name].format(*given)
        if self.form == names.PROPERTY:
            return f"{given[0]}.{self.name}"
        named = [f"{name}={trees.text(one)}" for name, one in self.kwargs.items()]
        if self.form == names.METHOD:
            return f"{given[0]}.{self.name}({', '.join([*given[1:], *named])})"
        return f"{self.name}({', '.join([*given, *named])})"

    def _clone_first(self, given: list[str]) -> None:
        """A leaf that requires a gradient cannot be changed in place."""
        for at, one in enumerate(self.args):
            if isinstance(one, dict) and "tensor" in one:
                given[at] += ".clone()"
                return

    def _backward(self, is_scalar: bool) -> list[str]:
        outputs = ["y" if at is None else f"y[{at}]" for at, _ in self.grads]
        wanted = [name for _, name in self.grads]
        if not any(wanted):
            sums = [one if is_scalar else f"{one}.sum()" for one in outputs]
            return [f"{sums[0]}.backward()" if len(sums) == 1 else f"({' + '.join(sums)}).backward()"]
        if len(outputs) == 1:
            return [f"{outputs[0]}.backward({wanted[0]})"]
        return [f"torch.autograd.backward([{', '.join(outputs)}], [{', '.join(map(str, wanted))}])"]

    def _update(self) -> list[str]:
        some = [name for name in self.tensors if name.startswith("p")]
        options = "".join(f", {name}={trees.text(one)}" for name, one in self.kwargs.items())
        made = f"{self.name}([{', '.join(some)}]{options})"
        results = some[0] if len(some) == 1 else f"[{', '.join(some)}]"
        given = [f"{name}.grad = {_grad_of(name)}" for name in some]
        if self.times == 1:
            return [*given, f"{made}.step()", f"y = {results}"]
        return [
            *given,
            f"optimiser = {made}",
            f"for _ in range({self.times}):",
            "    optimiser.step()",
            f"y = {results}",
        ]


def _grad_of(parameter: str) -> str:
    return f"grad{parameter.removeprefix('p')}"


def of_content(content: Mapping[str, Any], kind: str) -> Call:
    """From what the program's process has kept; kind: of the event. UnwritableError where it kept no call."""
    if content["why"]:
        raise UnwritableError(content["why"])
    tensors = torch.load(io.BytesIO(content["tensors"]), weights_only=True, map_location="cpu")
    grads = tuple((at, name) for at, name in content["grads"]) if kind == BACKWARD else ()
    if kind == BACKWARD and not grads:
        raise UnwritableError("nothing that the call returns requires a gradient")
    if kind == BACKWARD and not content["requires"]:
        raise UnwritableError("none of its arguments requires a gradient")
    autocast = None if content["autocast"] is None else (content["autocast"][0], content["autocast"][1])
    requires = content["requires"] if kind == BACKWARD else ()
    call = Call(
        kind,
        content["form"],
        content["name"],
        tuple(content["args"]),
        content["kwargs"],
        tensors,
        frozenset(requires),
        grads,
        autocast,
    )
    if kind == UPDATE:
        return replace(call, requires=frozenset(name for name in tensors if name.startswith("p")))
    return call.but()
