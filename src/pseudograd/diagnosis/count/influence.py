"""Structural cuts: values that leave the graph without a derivative, and of these the ones that still decide the loss.

A list of every detach and argmax is mostly noise. Each such value carries a mark through the calls that read it; a backward whose loss
has the mark is influenced by the cut. A mark is an integer with a bit for each cut.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, is_grad_enabled

from ...listen import functions, nodes
from ...listen.frames import Place, Places
from ...listen.harmless import forget
from .leaves import Leaves
from .marks import Arrays, Notes, note, noted, tensors_in

# Of the values of their tensors these read nothing, or nothing that a loss could need.
_NAMES = (
    "size dim numel __len__ stride storage_offset is_contiguous zeros_like ones_like empty_like full_like rand_like randn_like "
    "randint_like new_zeros new_ones new_empty new_full new_tensor __repr__ __format__ is_floating_point is_complex element_size data_ptr "
    "requires_grad_ retain_grad register_hook backward zero_ get_device ndimension __hash__ is_same_size __deepcopy__ untyped_storage "
    "is_pinned is_shared share_memory_ result_type can_cast type_as is_tensor is_nonzero"
)
_READ_NO_VALUE = frozenset(_NAMES.split())
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
    *(f"__{name}__" for name in ("eq", "ne", "gt", "ge", "lt", "le")),
    "isclose",
)
_DETACHES = (".detach()", ".data")  # they hand out the value as it is
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

    def __init__(self, leaves: Leaves, places: Places) -> None:
        self.cuts: dict[tuple[str, Place], Cut] = {}
        self._by_bit: list[Any] = []  # cuts, and values of clamps
        self._values = 0  # the bits that stand for the value of a clamp, which is no cut
        self._leaves, self._places = leaves, places
        self._marks: Notes = {}
        self._detached: Notes = {}  # of what was detached: the leaves upstream, and a bit for a leaf
        self._origins: dict[
            int, tuple[weakref.ref[Tensor], weakref.ref[Tensor]]
        ] = {}  # of what has a leaf's memory: the leaf
        self._arrays = Arrays()
        self._local = threading.local()

    def mark_of(self, tensor: Tensor) -> int:
        return noted(self._marks, tensor)

    def _mark(self, tensor: Tensor, bits: int) -> None:
        if bits:
            note(self._marks, tensor, bits)

    def cut_from(self, tensor: Tensor) -> tuple[int, bool]:
        """The leaves upstream of what this tensor was detached from, and whether that was a leaf; none for another tensor."""
        bits = noted(self._detached, tensor)
        return bits >> 1, bool(bits & 1)

    def let_go(self, tensor: Tensor, other: Tensor) -> Callable[[], None]:
        """Keep no weak reference to these until what is returned is called, when each has become the other."""
        marks = self.mark_of(other), self.mark_of(tensor)
        for key in (id(tensor), id(other)):
            for notes in (self._marks, self._detached, self._origins):
                notes.pop(key, None)  # type: ignore[attr-defined]
        for key, (_, leaf) in list(self._origins.items()):
            if leaf() is tensor or leaf() is other:
                del self._origins[key]

        def take_again() -> None:
            for swapped, bits in zip((tensor, other), marks, strict=True):
                self._mark(swapped, bits)

        return take_again

    # --- calls --------------------------------------------------------------------------------------------------------

    def is_plain(self, args: Any, kwargs: Any, result: Any) -> bool:
        """Is nothing cut, and nothing marked? For speed alone, as most calls are so: no argument carries a mark, and the result has a
        graph of its own or is the first argument, to which nothing that learns was added where no graph leads.
        """
        if type(result) not in _PLAIN or self._origins or self._arrays.all:
            return False
        is_itself, marks = args and result is args[0], self._marks
        if is_grad_enabled():
            if nodes.node_of(result) is None:
                return False
            if not (marks or is_itself):
                return True
        elif not is_itself:
            return False
        for value in (*args, *kwargs.values()) if kwargs else args:
            if isinstance(value, Tensor):
                if id(value) in marks or (is_itself and value is not result and value.requires_grad):
                    return False
            elif isinstance(value, (list, tuple, dict)):
                return False
        return True

    def after_call(self, func: object, args: Any, kwargs: object, result: object) -> None:
        """After a call of torch that is not plain."""
        name = _name_of(func)
        if name is None:
            return
        inputs = tensors_in([args, kwargs])
        marks = self._marks_of(inputs or args)  # torch.tensor(array) takes no tensor
        learning = [tensor for tensor in inputs if tensor.requires_grad and _is_continuous(tensor)]
        if not (learning or marks):
            return
        outputs = tensors_in([result])
        is_in_place = (name.endswith("_") and not name.endswith("__")) or name in _IN_PLACE
        if learning:
            marks |= self._cut_by(name, inputs, learning, outputs, is_in_place)
        if not outputs and name in _LEAVE_TORCH and not functions.is_inside():
            self._note_number(name, learning, marks, result)
        if is_in_place and (marks or outputs):
            marks &= ~self._values  # a projection sets a parameter, which is then no longer what the clamp was given
            for tensor in tensors_in([args[:1] or inputs[:1]]):  # several of a _foreach_ function
                self._mark(tensor, marks)
                self._mark_origin(tensor)
        for tensor in outputs:
            self._mark(tensor, marks)

    def _marks_of(self, values: Iterable[Any]) -> int:
        marks = 0
        if self._marks or self._arrays.all:
            for value in values:
                marks |= self.mark_of(value) | self._arrays.mark_of(value)
        return marks

    def _cut_by(
        self, name: str, inputs: list[Tensor], learning: list[Tensor], outputs: list[Tensor], is_in_place: bool
    ) -> int:
        """Notes what a call cuts off, and marks it. Returns the mark of what is written where no graph leads."""
        new = _outputs_without_graph(outputs, inputs)
        written = self._find_written(inputs, learning) if is_in_place and not new else []
        if (new or written) and functions.is_inside():
            for tensor in learning:
                self._local.hidden = getattr(self._local, "hidden", 0) | self._leaves.upstream_of(tensor)
        elif new:
            kind = _kind(name, len(new) < len(outputs))
            bits = self._cut(kind, learning)
            for tensor in new:
                self._mark(tensor, bits)
                if kind in _DETACHES:
                    self._note_detached(tensor, learning[0])
        elif written:
            return self._cut(_kind(name, False), written)
        return 0

    def _note_detached(self, tensor: Tensor, source: Tensor) -> None:
        is_leaf = nodes.node_of(source) is None
        note(self._detached, tensor, self._leaves.upstream_of(source) << 1 | is_leaf)
        if is_leaf:  # they have one memory, as long as both live
            key, origins = id(tensor), self._origins
            origins[key] = weakref.ref(tensor, partial(forget, origins, key)), weakref.ref(source)

    def _find_written(self, inputs: list[Tensor], learning: list[Tensor]) -> list[Tensor]:
        """What learns and is written where no graph leads: under no_grad, or into the memory of a leaf."""
        if is_grad_enabled() and id(inputs[0]) not in self._origins:
            return []
        return [tensor for tensor in learning if tensor is not inputs[0]]

    def _mark_origin(self, changed: Tensor) -> None:
        """A leaf is written to through its memory: what that is made of decides with it. Of the leaf itself that says nothing."""
        known = self._origins.get(id(changed))
        origin = known[1]() if known is not None and known[0]() is changed else None
        if origin is None:
            return
        own, bits = self._leaves.upstream_of(origin), 0
        for cut in self._by_bit:
            if isinstance(cut, Cut) and cut.upstream & ~own:
                bits |= 1 << cut.bit
        self._mark(origin, bits & self.mark_of(changed))

    def _note_number(self, name: str, learning: list[Tensor], marks: int, result: object) -> None:
        """A number or an array of what learns, or of what was cut from it, leaves torch."""
        upstream = 0
        for cut in self._by_bit:
            if marks >> cut.bit & 1 and isinstance(cut, Cut):
                upstream |= cut.upstream
        if learning or upstream:
            kind = f".{name}()" if not name.startswith("_") else f"{name.strip('_')}()"
            bit = self._cut(kind, learning, leaves_torch=True, upstream=upstream)
            self._arrays.add(result, marks | bit)

    def _cut(self, kind: str, learning: list[Tensor], leaves_torch: bool = False, upstream: int = 0) -> int:
        place = self._places.here(3)
        cut = self.cuts.get((kind, place))
        if cut is None:
            cut = self.cuts[kind, place] = Cut(kind, place, len(self._by_bit))
            self._by_bit.append(cut)
            if leaves_torch:
                cut.reaches_loss = None
        cut.calls += 1
        cut.upstream |= upstream
        for tensor in learning:
            cut.upstream |= self._leaves.upstream_of(tensor)
        return 1 << cut.bit

    # --- what else happens in a program -------------------------------------------------------------------------------

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """It is about to change each parameter by its gradient, and nobody will hear how."""
        if not self._marks:
            return
        for parameter in (parameter for group in optimizer.param_groups for parameter in group["params"]):
            grad = parameter.grad
            self._mark(parameter, 0 if grad is None else self.mark_of(grad) & ~self._values)
            self._mark_origin(parameter)

    def after_function(self, result: object) -> None:
        """A Function ran. What calls of torch inside it read makes no graph: that is a cut, unless it made a node of its own."""
        hidden, self._local.hidden = getattr(self._local, "hidden", 0), 0
        outputs = tensors_in([result]) if hidden else []
        if hidden and not any(tensor.requires_grad for tensor in outputs):
            kind = NEEDS_NOTHING if is_grad_enabled() else "a Function under no_grad"
            bits = self._cut(kind, [], upstream=hidden)
            for tensor in outputs:
                self._mark(tensor, bits)

    def follow(self, value: Any, marked: Tensor) -> None:
        """This is the value of a clamp: `value.decides` is set where a loss depends on it and gives a gradient to what is clamped."""
        if value.bit is None:
            value.bit = len(self._by_bit)
            self._by_bit.append(value)
            self._values |= 1 << value.bit
        self._mark(marked, 1 << value.bit)

    def before_backward(self, roots: Iterable[object]) -> None:
        """A backward starts from these."""
        marks = learning = 0
        for root in roots:
            if isinstance(root, Tensor):
                marks |= self.mark_of(root)
                if self._values and root.requires_grad:
                    learning |= self._leaves.upstream_of(root)
        for source in self._by_bit:
            if not marks >> source.bit & 1:
                continue
            if not isinstance(source, Cut):
                source.decides = bool((source.upstream | source.round) & learning)
            elif source.reaches_loss is not None:
                source.reaches_loss = True


def _name_of(func: object) -> str | None:
    """None for a function that reads no value."""
    name = str(getattr(func, "__name__", ""))
    if name == "__get__":
        attribute = getattr(getattr(func, "__self__", None), "__name__", "")
        return None if attribute not in _HAND_OUT else ".data" if attribute == "data" else attribute
    return None if name in _READ_NO_VALUE else name


def _is_continuous(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _outputs_without_graph(outputs: list[Tensor], inputs: list[Tensor]) -> list[Tensor]:
    """Under no_grad a view of what learns says that it requires a gradient, and is a leaf."""
    new = [tensor for tensor in outputs if not tensor.requires_grad]
    if not is_grad_enabled():
        old = set(map(id, inputs))
        leaves = [tensor for tensor in outputs if tensor.requires_grad and nodes.node_of(tensor) is None]
        new += [tensor for tensor in leaves if id(tensor) not in old]
    return new


def _kind(name: str, is_output_among_several: bool) -> str:
    if name in ("detach", "detach_"):
        return ".detach()"
    if name == ".data":
        return ".data"
    if is_output_among_several:
        return f"indices of {name}"
    if not is_grad_enabled():
        return f"{name} under no_grad"
    if name in _COMPARISONS:
        return "comparison"
    if name in _CASTS:
        return "cast to integers"
    return "torch.tensor(x)" if name == "tensor" else name
