"""Structural cuts: values that leave the graph without a derivative, and of these the ones that still decide the loss.

A list of every detach and argmax is mostly noise. Each such value carries a mark through the calls that read it; a backward whose loss
has the mark is influenced by the cut.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, is_grad_enabled

from ...listen import frames, functions, nodes
from ...listen.frames import Place
from ...listen.harmless import forget
from ...torch_table.private import marks_of_profiles, set_grad_enabled
from .arrays import Arrays
from .leaves import Leaves

# Of the values of their tensors these read nothing, or nothing that a loss could need.
# fmt: off
_READ_NO_VALUE = {
    "size", "dim", "numel", "__len__", "stride", "storage_offset", "is_contiguous", "zeros_like", "ones_like", "empty_like",
    "full_like", "rand_like", "randn_like", "randint_like", "new_zeros", "new_ones", "new_empty", "new_full", "new_tensor",
    "__repr__", "__format__", "is_floating_point", "is_complex", "element_size", "data_ptr", "requires_grad_", "retain_grad",
    "register_hook", "backward", "zero_", "get_device", "ndimension", "__hash__", "is_same_size", "__deepcopy__",
    "untyped_storage", "is_pinned", "is_shared", "share_memory_", "result_type", "can_cast", "type_as", "is_tensor", "is_nonzero",
}
# fmt: on
# Three of four calls in a training step: they read no value and make no node, so there is nothing to hear in them.
# fmt: off
_PROPERTIES = (
    "grad", "requires_grad", "is_leaf", "shape", "dtype", "device", "layout", "ndim", "itemsize", "nbytes", "is_sparse", "is_nested",
    "is_cpu", "is_cuda", "is_meta", "is_quantized", "_version",
)
# fmt: on
_QUERIES = ("dim", "size", "numel", "stride", "is_contiguous", "is_complex", "is_floating_point")
_SETTERS: tuple[Any, ...] = (Tensor.grad,)
SILENT = frozenset(
    [
        *(getattr(Tensor, name).__get__ for name in _PROPERTIES),
        *(getattr(Tensor, name) for name in _QUERIES),
        *(one.__set__ for one in _SETTERS),
        *marks_of_profiles,
        *(torch.is_complex, torch.is_floating_point, set_grad_enabled),
    ]
)
_PLAIN = (Tensor, torch.nn.Parameter)
_HAND_OUT = ("data", "T", "mT", "H", "mH", "real", "imag")  # properties that are the tensor itself, or a view of it
_LEAVE_TORCH = ("item", "tolist", "numpy", "__float__", "__int__", "__index__", "__bool__", "__array__")
_IN_PLACE = ("__setitem__", "__iadd__", "__imul__", "__isub__", "__itruediv__")
_COMPARISONS = (
    "eq",
    "ne",
    "gt",
    "ge",
    "lt",
    "le",
    "__eq__",
    "__ne__",
    "__gt__",
    "__ge__",
    "__lt__",
    "__le__",
    "isclose",
)
_WHOLE = (".detach()", ".data")  # they hand out the value as it is
NEEDS_NOTHING = "a Function none of whose inputs needs a gradient"  # as checkpoint with use_reentrant=True is
_CASTS = ("long", "int", "short", "byte", "bool", "to", "type")


class Cut:
    """One structural cut: its kind, its place, the leaves upstream, and whether a loss depended on it."""

    def __init__(self, kind: str, place: Place, bit: int) -> None:
        self.kind = kind
        self.place = place
        self.bit = bit
        self.calls = 0
        self.upstream = 0
        self.reaches_loss: bool | None = False  # None: the value left torch, and nobody can say


class Influence:
    """The marks that tensors carry, and the cuts that they stand for."""

    def __init__(self, leaves: Leaves, roots: dict[int, weakref.ref[torch.nn.Module]], places: frames.Places) -> None:
        self.cuts: dict[tuple[str, Place], Cut] = {}
        self._by_bit: list[Any] = []  # cuts, and values of clamps
        self._leaves = leaves
        self._places = places
        self._roots = roots  # the outermost modules that ran
        self._marks: dict[int, tuple[weakref.ref[Tensor], int]] = {}
        self._detached: dict[
            int, tuple[weakref.ref[Tensor], int]
        ] = {}  # what was detached: the leaves upstream, and a bit for a leaf
        self._origins: dict[
            int, tuple[weakref.ref[Tensor], weakref.ref[Tensor]]
        ] = {}  # of a leaf, what shares its memory
        self._local = threading.local()
        self._arrays = Arrays()
        self._values = 0  # the bits that stand for the value of a clamp, which is no cut

    def mark_of(self, tensor: Tensor) -> int:
        known = self._marks.get(id(tensor))
        return known[1] if known is not None and known[0]() is tensor else 0

    def _mark(self, tensor: Tensor, bits: int) -> None:
        _note(self._marks, tensor, bits)

    def let_go(self, one: Tensor, other: Tensor) -> Callable[[], None]:
        """Keep no weak reference to these until what is returned is called, when each has become the other."""
        found = [self.mark_of(other), self.mark_of(one)]
        for notes in (self._marks, self._detached, self._origins):
            for tensor in (one, other):
                notes.pop(id(tensor), None)  # type: ignore[attr-defined]
        for key, (_, leaf) in list(self._origins.items()):
            if leaf() is one or leaf() is other:
                del self._origins[key]

        def take_again() -> None:
            for tensor, bits in zip((one, other), found, strict=True):
                if bits:
                    self._mark(tensor, bits)

        return take_again

    def seen(self, func: object, args: Any, kwargs: object, result: object) -> None:
        """After a call of torch that is not plain."""
        name = getattr(func, "__name__", "")
        if name == "__get__":
            name = getattr(getattr(func, "__self__", None), "__name__", "")
            if name not in _HAND_OUT:
                return
            name = ".data" if name == "data" else name
        if name in _READ_NO_VALUE:
            return
        inputs: list[Tensor] = []
        _gather(args, inputs)
        if kwargs:
            _gather(kwargs, inputs)
        marks = 0
        if self._marks or self._arrays.all:
            for one in inputs or args:  # torch.tensor(array) takes no tensor
                marks |= self.mark_of(one) | self._arrays.mark_of(one)
        if not (inputs or marks):
            return
        learning = [one for one in inputs if one.requires_grad and (one.is_floating_point() or one.is_complex())]
        if not (learning or marks):
            return
        outputs: list[Tensor] = []
        _gather(result, outputs)
        is_in_place = (name.endswith("_") and not name.endswith("__")) or name in _IN_PLACE
        if learning:
            new = _cut_off(outputs, inputs)
            written = self._written(inputs, learning) if is_in_place and not new else []
            if (new or written) and functions.is_inside():
                for one in learning:
                    self._local.hidden = getattr(self._local, "hidden", 0) | self._leaves.of_tensor(one)
            elif new:
                kind = _kind(name, len(new) < len(outputs))
                bits = self._cut(kind, learning)
                for one in new:
                    self._mark(one, bits)
                    if kind in _WHOLE:
                        whole = self._leaves.of_tensor(learning[0])
                        is_leaf = nodes.of_tensor(learning[0]) is None
                        _note(self._detached, one, whole << 1 | is_leaf)
                        if is_leaf:
                            self._share(one, learning[0])
            elif written:
                marks |= self._cut(_kind(name, False), written)
        if not outputs and name in _LEAVE_TORCH and not functions.is_inside():
            self._left(name, learning, marks, result)
        if is_in_place and (marks or outputs):
            marks &= ~self._values  # a projection sets a parameter, which is then no longer what the clamp was given
            changed: list[Tensor] = []
            _gather(args[:1] or inputs[:1], changed)  # several of a _foreach_ function
            for one in changed:
                if marks:
                    self._mark(one, marks)
                self._mark_origin(one)
        if marks:
            for one in outputs:
                self._mark(one, marks)

    def is_plain(self, args: Any, kwargs: Any, result: Any) -> bool:
        """Is nothing cut, and nothing marked? For speed alone, as most calls are so: no argument carries a mark, and the result has a
        graph of its own or is the first argument, to which nothing that learns was added where no graph leads.
        """
        if type(result) not in _PLAIN or self._origins or self._arrays.all:
            return False
        is_itself, marks = args and result is args[0], self._marks
        if is_grad_enabled():
            if nodes.of_tensor(result) is None:
                return False
            if not (marks or is_itself):
                return True
        elif not is_itself:
            return False
        for one in (*args, *kwargs.values()) if kwargs else args:
            if isinstance(one, Tensor):
                if id(one) in marks or (is_itself and one is not result and one.requires_grad):
                    return False
            elif isinstance(one, (list, tuple, dict)):
                return False
        return True

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """It is about to change each parameter by its gradient, and nobody will hear how."""
        if not self._marks:
            return
        for one in (one for group in optimizer.param_groups for one in group["params"]):
            grad = one.grad
            marks = 0 if grad is None else self.mark_of(grad) & ~self._values
            if marks:
                self._mark(one, marks)
            self._mark_origin(one)

    def _share(self, alias: Tensor, leaf: Tensor) -> None:
        """They have one memory, as long as both live."""
        key, origins = id(alias), self._origins
        origins[key] = weakref.ref(alias, partial(forget, origins, key)), weakref.ref(leaf)

    def _written(self, inputs: list[Tensor], learning: list[Tensor]) -> list[Tensor]:
        """What learns and is written where no graph leads: under no_grad, or into the memory of a leaf."""
        if is_grad_enabled() and id(inputs[0]) not in self._origins:
            return []
        return [one for one in learning if one is not inputs[0]]

    def _mark_origin(self, changed: Tensor) -> None:
        """A leaf is written to through its memory: what that is made of decides with it. Of the leaf itself that says nothing."""
        known = self._origins.get(id(changed))
        origin = known[1]() if known is not None and known[0]() is changed else None
        if origin is None:
            return
        own, bits = self._leaves.of_tensor(origin), 0
        for cut in self._by_bit:
            if isinstance(cut, Cut) and cut.upstream & ~own:
                bits |= 1 << cut.bit
        bits &= self.mark_of(changed)
        if bits:
            self._mark(origin, bits)

    def applied(self, result: object) -> None:
        """A Function ran. What calls of torch inside it read makes no graph: that is a cut, unless it made a node of its own."""
        hidden, self._local.hidden = getattr(self._local, "hidden", 0), 0
        if not hidden:
            return
        outputs: list[Tensor] = []
        _gather(result, outputs)
        if not any(one.requires_grad for one in outputs):
            kind = NEEDS_NOTHING if is_grad_enabled() else "a Function under no_grad"
            bits = self._cut(kind, [], upstream=hidden)
            for one in outputs:
                self._mark(one, bits)

    def _left(self, name: str, learning: list[Tensor], marks: int, result: object) -> None:
        """A number or an array of what learns, or of what was cut from it."""
        upstream = 0
        for cut in self._by_bit:
            if marks >> cut.bit & 1 and isinstance(cut, Cut):
                upstream |= cut.upstream
        if learning or upstream:
            kind = f".{name}()" if not name.startswith("_") else f"{name.strip('_')}()"
            bit = self._cut(kind, learning, leaves_torch=True, upstream=upstream)
            self._arrays.add(result, marks | bit)

    def follow(self, value: Any, marked: Tensor) -> None:
        """This is the value of a clamp: `value.decides` is set where a loss depends on it and gives a gradient to what is clamped."""
        if value.bit is None:
            value.bit = len(self._by_bit)
            self._by_bit.append(value)
            self._values |= 1 << value.bit
        self._mark(marked, 1 << value.bit)

    def cut_from(self, tensor: Tensor) -> tuple[int, bool]:
        """The leaves upstream of what this tensor was detached from, and whether that was a leaf; none for another tensor."""
        known = self._detached.get(id(tensor))
        bits = known[1] if known is not None and known[0]() is tensor else 0
        return bits >> 1, bool(bits & 1)

    def _cut(self, kind: str, learning: list[Tensor], leaves_torch: bool = False, upstream: int = 0) -> int:
        place = self._places.here(3, self._roots)
        key = kind, place
        cut = self.cuts.get(key)
        if cut is None:
            cut = self.cuts[key] = Cut(kind, place, len(self._by_bit))
            self._by_bit.append(cut)
            if leaves_torch:
                cut.reaches_loss = None
        cut.calls += 1
        cut.upstream |= upstream
        for one in learning:
            cut.upstream |= self._leaves.of_tensor(one)
        return 1 << cut.bit

    def reached(self, roots: Any) -> None:
        """A backward starts from these."""
        marks = learning = 0
        for root in roots:
            if isinstance(root, Tensor):
                marks |= self.mark_of(root)
                if self._values and root.requires_grad:
                    learning |= self._leaves.of_tensor(root)
        for one in self._by_bit:
            if not marks >> one.bit & 1:
                continue
            if not isinstance(one, Cut):
                one.decides = bool((one.upstream | one.round) & learning)
            elif one.reaches_loss is not None:
                one.reaches_loss = True


def _note(notes: dict[int, tuple[weakref.ref[Tensor], int]], tensor: Tensor, bits: int) -> None:
    """Add to what is noted of a tensor, as long as it lives."""
    key = id(tensor)
    known = notes.get(key)
    if known is not None and known[0]() is tensor:
        notes[key] = known[0], known[1] | bits
        return
    notes[key] = weakref.ref(tensor, partial(forget, notes, key)), bits


def _cut_off(outputs: list[Tensor], inputs: list[Tensor]) -> list[Tensor]:
    """Those without a graph; under no_grad a view of what learns says that it requires a gradient, and is a leaf."""
    new = [one for one in outputs if not one.requires_grad]
    if not is_grad_enabled():
        given = {id(one) for one in inputs}
        new += [one for one in outputs if one.requires_grad and nodes.of_tensor(one) is None and id(one) not in given]
    return new


def _kind(name: str, is_one_of_several: bool) -> str:
    if name in ("detach", "detach_"):
        return ".detach()"
    if name == ".data":
        return ".data"
    if is_one_of_several:
        return f"indices of {name}"
    if not is_grad_enabled():
        return f"{name} under no_grad"
    if name in _COMPARISONS:
        return "comparison"
    if name in _CASTS:
        return "cast to integers"
    return "torch.tensor(x)" if name == "tensor" else name


def _gather(value: object, found: list[Tensor]) -> None:
    if isinstance(value, Tensor):
        found.append(value)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _gather(item, found)
    elif isinstance(value, dict):
        for item in value.values():
            _gather(item, found)
