"""Structural cuts: values that leave the graph without a derivative, and still decide a loss.

A list of every detach and argmax would be mostly noise. So each such value carries a mark through the calls that read it: a loss with this
mark depends on the cut. A mark is an integer: two bits for each cut, one bit for each clamp and for each constant term of a loss. The lower
bit of a cut says that a value depends on it. The upper one is its *direct* bit: there is no further cut between the cut and the value.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable
from functools import lru_cache, partial, reduce
from operator import or_

import torch
from torch import Tensor, is_grad_enabled

from ...listen import hooks, nodes
from ...listen.frames import Location, Locations, file_and_line
from ...listen.harmless import forget
from ...torch_table.private import backward_pass
from ...torch_table.records import Arguments, Keywords
from .leaves import Leaves
from .norms import PLAIN

# Functions that do not read the values of their tensors, or whose result cannot affect a loss.
_NAMES_READING_NO_VALUE = (
    "size dim numel __len__ stride storage_offset is_contiguous zeros_like ones_like empty_like full_like rand_like randn_like "
    "randint_like new_zeros new_ones new_empty new_full __repr__ __format__ is_floating_point is_complex element_size data_ptr "
    "requires_grad_ retain_grad register_hook backward zero_ get_device ndimension __hash__ is_same_size __deepcopy__ untyped_storage "
    "is_pinned is_shared share_memory_ result_type can_cast type_as is_tensor is_nonzero"
)
_READ_NO_VALUE = frozenset(_NAMES_READING_NO_VALUE.split())
_VIEWS = ("data", "T", "mT", "H", "mH", "real", "imag")  # properties that are the tensor itself, or a view of it
# Functions by which a value leaves torch.
_EXITS = ("item", "tolist", "numpy", "__float__", "__int__", "__index__", "__bool__", "__array__")
# If only these functions are between a sum and the loss, a constant in the sum changes no gradient.
_NAMES_OF_LINEAR = (
    "add add_ __add__ __radd__ __iadd__ sub sub_ rsub __sub__ __rsub__ __isub__ neg __neg__ negative sum mean nansum stack "
    "cat clone to float double half bfloat16 type_as view reshape flatten squeeze unsqueeze contiguous expand requires_grad_ "
    "retain_grad"
)
_NAMES_OF_SCALING = "mul mul_ __mul__ __rmul__ __imul__ multiply div div_ divide true_divide __truediv__ __itruediv__"
_LINEAR, _SCALING = frozenset(_NAMES_OF_LINEAR.split()), frozenset(_NAMES_OF_SCALING.split())
_IN_PLACE = ("__setitem__", "__iadd__", "__imul__", "__isub__", "__itruediv__")
_ORDERS = ("eq", "ne", "gt", "ge", "lt", "le")
_COMPARISONS = (*_ORDERS, *(f"__{name}__" for name in _ORDERS), "isclose")
SELECTIONS = ("topk", "argsort", "sort", "kthvalue")
_KINDS_OF_DETACH = (".detach()", ".data")  # they hand out the value as it is
_FUNCTIONS_THAT_DETACH = ("detach", "detach_", ".data", "tensor", "new_tensor")
WITHOUT_GRAD = " under no_grad"
NEEDS_NOTHING = "a Function none of whose inputs needs a gradient"  # as checkpoint with use_reentrant=True is
SUMS = frozenset((torch.add, torch.sub, Tensor.add, Tensor.sub, Tensor.add_, Tensor.sub_, Tensor.__rsub__))
_CASTS = ("long", "int", "short", "byte", "bool", "to", "type")


class Marks:
    """Bits for tensors, by id, as long as the tensors live."""

    def __init__(self) -> None:
        self.all: dict[int, tuple[weakref.ref[Tensor], int]] = {}

    def get(self, tensor: Tensor) -> int:
        known = self.all.get(id(tensor))
        return known[1] if known is not None and known[0]() is tensor else 0

    def add(self, tensor: Tensor, bits: int) -> None:
        key = id(tensor)
        known = self.all.get(key)
        if known is not None and known[0]() is tensor:
            self.all[key] = known[0], known[1] | bits
        elif bits:
            self.all[key] = weakref.ref(tensor, partial(forget, self.all, key)), bits


class Cut:
    """One structural cut."""

    def __init__(self, kind: str, location: Location, bit: int, since: int) -> None:
        self.kind, self.location = kind, location
        self.since = since  # the number of backward passes before its first call
        self.direct_bit = 0b10 << bit
        self.bits = 0b11 << bit
        self.calls = 0
        # Does its value reach a loss with no further cut in between, so that the leaves would get a gradient without this cut?
        self.is_final_cut = False
        self.is_recomputed = False  # was it made in a backward, as by a checkpoint that computes its forward once more?
        # Lines that read the result of a comparison with its value.
        self.compared_at: set[str] = set()
        self.cut_again_at: set[str] = set()  # lines that detach its value once more, or hand it out of torch
        self.upstream = 0  # the set of leaves whose gradient it cuts
        self.reaches_loss: bool | None = False  # None if its value left torch


class Followed:
    """The value of a clamp, which carries a mark."""

    bit: int | None = None
    upstream = 0  # the set of leaves upstream of x
    detached_upstream = 0  # if x is detached: the set of leaves upstream of the tensor that x was detached from
    decides = False  # does the loss of this step depend on the value, and also on these leaves by another path?


class ConstantTerm:
    """A number without a gradient that a program adds to a number with a gradient, such as its loss."""

    def __init__(self, location: Location, bit: int) -> None:
        self.location, self.bit = location, bit
        self.cuts: set[Cut] = set()  # the cuts that it depends on; none are known for a number of Python
        self.passes = 0  # the backward passes whose loss depends on the sum


class Influence:
    """The marks of tensors, and the cuts that they stand for."""

    def __init__(self, leaves: Leaves, locations: Locations) -> None:
        self.cuts: dict[tuple[str, Location], Cut] = {}
        self._marks = Marks()
        self._by_bit: list[Cut | Followed | ConstantTerm] = []
        self._backwards = 0
        self.constant_terms: dict[Location, ConstantTerm] = {}
        # The bits of constant terms: a value has such a bit if it depends on the sum by linear functions alone.
        self._term_bits = 0
        self._clamp_bits = 0  # of `Followed` values
        self._compared_bits = 0  # of cuts whose value a comparison makes or reads
        self._direct_bits = self._direct_bits_of_no_grad = 0  # of all cuts, and of those under no_grad alone
        self._leaves, self._locations = leaves, locations
        self._detached = Marks()  # the leaves upstream of the tensor from which a tensor was detached
        # By id of a detached tensor: a weak reference to it, and one to the leaf, or other tensor without a graph, whose memory it shares.
        self._origins: dict[int, tuple[weakref.ref[Tensor], weakref.ref[Tensor]]] = {}
        # cut_in_function: the leaves whose gradient the calls inside a Function have cut
        self._local = threading.local()

    def source_of_detached(self, tensor: Tensor) -> tuple[int, bool]:
        """The leaves upstream of the tensor that this one was detached from, and whether that tensor is a leaf."""
        return self._detached.get(tensor), self._origin_of(tensor) is not None

    def drop_references(self, tensor: Tensor, other: Tensor) -> Callable[[], None]:
        """Drop the weak references to two tensors that torch swaps. The returned function makes them again."""
        marks = self._marks.get(other), self._marks.get(tensor)
        for key in (id(tensor), id(other)):
            self._marks.all.pop(key, None)
            self._detached.all.pop(key, None)
        self._origins.clear()

        def restore() -> None:
            for swapped, bits in zip((tensor, other), marks, strict=True):
                self._marks.add(swapped, bits)

        return restore

    # --- calls --------------------------------------------------------------------------------------------------------

    def mark_plainly(self, func: object, args: Arguments, kwargs: Keywords, result: object) -> bool:
        """A fast path for calls whose arguments have no mark, or whose result has a graph and gets all marks.

        Returns False if it has done nothing, so that `after_call` must be called.
        """
        if type(result) not in PLAIN or not isinstance(result, Tensor) or self._origins:
            return False
        is_itself, known, may_have_graph = args and result is args[0], self._marks.all, is_grad_enabled()
        if may_have_graph:
            if nodes.node_of(result) is None:
                return False
            if not (known or is_itself):
                return True
        elif not is_itself:
            return False
        values, marks = (*args, *kwargs.values()) if kwargs else args, 0
        for value in values:
            if isinstance(value, Tensor):
                if is_itself and value is not result and value.requires_grad:
                    return False
                if id(value) in known:
                    marks |= self._marks.get(value)
            elif isinstance(value, (list, tuple, dict)):
                return False
        if not marks:
            return True
        inputs = [value for value in values if isinstance(value, Tensor)]
        if is_itself or not (may_have_graph and _computes_only(func) and all(map(_is_continuous, inputs))):
            return False
        if marks & self._compared_bits:
            return False
        learning = sum(tensor.requires_grad for tensor in inputs)
        if marks & self._term_bits and not _is_linear(_name_of(func) or "", learning):
            marks &= ~self._term_bits
        self._marks.add(result, marks)
        return True

    def after_call(self, func: object, args: Arguments, kwargs: Keywords, result: object) -> None:
        """After a call that `mark_plainly` leaves: give its results the marks of its inputs, and note the cuts that it makes."""
        name = _name_of(func)
        if name is None:
            return
        args = args[1:] if name == "new_tensor" else args  # its first argument only has the dtype
        # The result of autograd.grad does not depend on the values of its inputs.
        inputs = tensors_in([args, kwargs] if func is not torch.autograd.grad else [args[:1] or kwargs["outputs"]])
        marks = self._marks_of(inputs)
        continuous = [tensor for tensor in inputs if _is_continuous(tensor)]
        # The direct bits of the continuous inputs. If this call cuts, its result does not get them.
        direct = 0
        if marks & self._direct_bits:
            direct = self._direct_bits & (marks if 0 < len(inputs) == len(continuous) else self._marks_of(continuous))
        learning = [tensor for tensor in continuous if tensor.requires_grad]
        if not (learning or marks):
            if name == ".data" and isinstance(result, Tensor):
                self._note_origin(result, inputs[0])
            return
        self._note_reading(name, marks, direct)
        outputs = tensors_in([result])
        is_in_place = (name.endswith("_") and not name.endswith("__")) or name in _IN_PLACE
        if name in _FUNCTIONS_THAT_DETACH:
            marks &= ~direct
        elif not is_grad_enabled():
            marks &= ~(direct & ~self._direct_bits_of_no_grad)
        if learning:
            marks |= self._cut_by(name, inputs, learning, outputs, is_in_place)
        if not outputs and name in _EXITS and not hooks.is_inside_function():
            self._note_exit(name, learning, marks)
        if is_in_place and (marks or outputs):
            marks &= ~self._clamp_bits  # a projection sets a parameter, which is then no longer the input of the clamp
            written = tensors_in([args[:1] or inputs[:1]])  # several tensors for a _foreach_ function
            for tensor in written:
                is_leaf = tensor.requires_grad and nodes.node_of(tensor) is None
                self._marks.add(tensor, self._marks_of_others(marks, tensor) if is_leaf else marks)
                self._mark_origin(tensor)
            outputs = [tensor for tensor in outputs if all(tensor is not other for other in written)]
        is_linear = _is_linear(name, len(learning))
        for tensor in outputs:
            bits = marks if tensor.requires_grad and is_linear else marks & ~self._term_bits
            self._marks.add(tensor, bits if _is_continuous(tensor) else bits & ~direct)

    def _note_reading(self, name: str, marks: int, direct: int) -> None:
        """Note at the cuts of these marks if this call compares their value, cuts it again, or reads what was compared."""
        if name in _COMPARISONS and marks:
            for cut in self._cuts_among(marks):
                self._compared_bits |= cut.bits
        elif marks & self._compared_bits:
            line = file_and_line(self._locations.here().call)
            for cut in self._cuts_among(marks & self._compared_bits):
                cut.compared_at.add(line)
        if direct and (name in _FUNCTIONS_THAT_DETACH or name in _EXITS):
            line = file_and_line(self._locations.here().call)
            for cut in self._cuts_among(direct):
                cut.cut_again_at.add(line)

    def _marks_of(self, tensors: Iterable[Tensor]) -> int:
        return reduce(or_, map(self._marks.get, tensors), 0) if self._marks.all else 0

    def _cut_by(
        self, name: str, inputs: list[Tensor], learning: list[Tensor], outputs: list[Tensor], is_in_place: bool
    ) -> int:
        """Note and mark the values that a call cuts off. Returns the mark of a tensor that it writes outside the graph, else 0."""
        new = _outputs_without_graph(outputs, inputs)
        # Under no_grad, or in the memory of a leaf, writing makes no graph.
        is_outside = is_in_place and not new and (not is_grad_enabled() or id(inputs[0]) in self._origins)
        written = [tensor for tensor in learning if tensor is not inputs[0]] if is_outside else []
        if (new or written) and hooks.is_inside_function():
            for tensor in learning:
                cut = getattr(self._local, "cut_in_function", 0)
                self._local.cut_in_function = cut | self._leaves.upstream_of(tensor)
        elif new:
            kind = _kind(name, len(new) < len(outputs))
            bits = self._cut(kind, learning, is_compared=name in _COMPARISONS)
            for tensor in new:
                self._marks.add(tensor, bits)
                if kind in _KINDS_OF_DETACH:
                    self._detached.add(tensor, self._leaves.upstream_of(learning[0]))
                    if nodes.node_of(learning[0]) is None:
                        self._note_origin(tensor, learning[0])
        elif written:
            return self._cut(_kind(name, False), written)
        return 0

    def _note_origin(self, tensor: Tensor, source: Tensor) -> None:
        """Note that a tensor shares the memory of another one, as long as both live."""
        key, origins = id(tensor), self._origins
        origins[key] = weakref.ref(tensor, partial(forget, origins, key)), weakref.ref(source)

    def _origin_of(self, tensor: Tensor) -> Tensor | None:
        known = self._origins.get(id(tensor))
        return known[1]() if known is not None and known[0]() is tensor else None

    def leaves_behind_cuts(self, tensor: Tensor) -> int:
        """The leaves upstream of the cuts that a value without a gradient comes from."""
        return self._leaves_behind(self._marks.get(tensor))

    def _leaves_behind(self, marks: int) -> int:
        return reduce(or_, (cut.upstream for cut in self._cuts_among(marks)), 0)

    def _cuts_among(self, marks: int) -> set[Cut]:
        return {cut for bit, cut in enumerate(self._by_bit) if marks >> bit & 1 and isinstance(cut, Cut)}

    def _mark_origin(self, changed: Tensor) -> None:
        """Mark a leaf whose memory was written to, unless the value was made of the leaf itself."""
        origin = self._origin_of(changed)
        if origin is not None:
            self._marks.add(origin, self._marks_of_others(self._marks.get(changed), origin))

    def _marks_of_others(self, marks: int, leaf: Tensor) -> int:
        """The marks without those of cuts that have this leaf alone upstream: a projection of a leaf hides no other leaf from the loss."""
        own = self._leaves.upstream_of(leaf) if marks and leaf.requires_grad else 0
        return marks & reduce(or_, (cut.bits for cut in self._cuts_among(marks) if cut.upstream & ~own), 0)

    def _note_exit(self, name: str, learning: list[Tensor], marks: int) -> None:
        """Note a number or an array that leaves torch, if it was made of a tensor that learns, or of a value that was cut from one."""
        upstream = self._leaves_behind(marks)
        if learning or upstream:
            kind = f".{name}()" if not name.startswith("_") else f"{name.strip('_')}()"
            self._cut(kind, learning, upstream, is_exit=True)

    def _cut(
        self, kind: str, learning: list[Tensor], upstream: int = 0, is_exit: bool = False, is_compared: bool = False
    ) -> int:
        """Note a cut at this location of the program. Returns its mark."""
        location = self._locations.here()
        cut = self.cuts.get((kind, location))
        if cut is None:
            cut = self.cuts[kind, location] = Cut(kind, location, len(self._by_bit), self._backwards)
            self._by_bit += [cut, cut]
            self._direct_bits |= cut.direct_bit
            if kind.endswith(WITHOUT_GRAD):
                self._direct_bits_of_no_grad |= cut.direct_bit
            if is_exit:
                cut.reaches_loss = None
        cut.calls += 1
        cut.is_recomputed |= backward_pass() >= 0
        cut.upstream |= upstream
        for tensor in learning:
            cut.upstream |= self._leaves.upstream_of(tensor)
        if is_compared or (cut.upstream.bit_count() == 1 and any(name in kind for name in SELECTIONS)):
            self._compared_bits |= cut.bits
        return cut.bits

    def note_sum(self, args: Arguments, result: object) -> None:
        """Note a number without a gradient that is added to one that has a gradient."""
        # Under no_grad a number is added to a parameter in place, as by the step of an optimiser.
        if not is_grad_enabled() or not isinstance(result, Tensor) or result.dim() or not result.requires_grad:
            return
        for value in args[:2]:
            if type(value) is float:
                self._note_term(result, 0)
            elif isinstance(value, Tensor) and not value.requires_grad and not value.dim():
                marks = self._marks.get(value)
                if marks and not self._detached.get(value):  # x + (y - x).detach() is straight-through
                    self._note_term(result, marks)

    def _note_term(self, result: Tensor, marks: int) -> None:
        location = self._locations.here()
        term = self.constant_terms.get(location)
        if term is None:
            term = self.constant_terms[location] = ConstantTerm(location, len(self._by_bit))
            self._by_bit.append(term)
            self._term_bits |= 1 << term.bit
        term.cuts |= self._cuts_among(marks & self._direct_bits) or self._cuts_among(marks)
        self._marks.add(result, 1 << term.bit)

    # --- Functions, clamps, backwards ---------------------------------------------------------------------------------

    def after_function(self, result: object) -> None:
        """A Function ran: the calls inside it make no graph. Note a cut, unless the Function made a node of its own."""
        upstream, self._local.cut_in_function = getattr(self._local, "cut_in_function", 0), 0
        outputs = tensors_in([result]) if upstream else []
        if upstream and not any(tensor.requires_grad for tensor in outputs):
            bits = self._cut(NEEDS_NOTHING if is_grad_enabled() else "a Function under no_grad", [], upstream)
            for tensor in outputs:
                self._marks.add(tensor, bits)

    def follow(self, value: Followed, result: Tensor) -> None:
        """Mark the result of a clamp, so that a backward sets `value.decides`."""
        if value.bit is None:
            value.bit = len(self._by_bit)
            self._by_bit.append(value)
            self._clamp_bits |= 1 << value.bit
        self._marks.add(result, 1 << value.bit)

    def before_backward(self, roots: Iterable[object]) -> None:
        self._backwards += 1
        marks = upstream = 0
        for root in roots:
            if isinstance(root, Tensor):
                marks |= self._marks.get(root)
                if self._clamp_bits and root.requires_grad:
                    upstream |= self._leaves.upstream_of(root)
        for bit, source in enumerate(self._by_bit):
            if not marks >> bit & 1:
                continue
            if isinstance(source, ConstantTerm):
                source.passes += 1
            elif not isinstance(source, Cut):
                source.decides = bool((source.upstream | source.detached_upstream) & upstream)
            else:
                source.is_final_cut |= bool(self._direct_bits >> bit & 1)
                if source.reaches_loss is not None:
                    source.reaches_loss = True


def tensors_in(values: Iterable[object]) -> list[Tensor]:
    """The tensors among the values, in lists and dictionaries too."""
    tensors: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            tensors.append(value)
        elif isinstance(value, (list, tuple, dict)):
            tensors += tensors_in(value.values() if isinstance(value, dict) else value)
    return tensors


def _name_of(func: object) -> str | None:
    """The name of a function of torch; None if the function reads no value."""
    name = str(getattr(func, "__name__", ""))
    if name == "__get__":
        attribute = getattr(getattr(func, "__self__", None), "__name__", "")
        if attribute == "data":
            return ".data"
        return attribute if attribute in _VIEWS else None
    return None if name in _READ_NO_VALUE else name


def _is_linear(name: str, learning: int) -> bool:
    """Is the result linear in its inputs? learning: how many of them have a gradient."""
    return name in _LINEAR or (name in _SCALING and learning == 1)


@lru_cache(maxsize=4096)
def _computes_only(func: object) -> bool:
    """Does the function compute new values only: no comparison, nothing that leaves torch or is detached, no write to an argument?"""
    name = _name_of(func)
    if name is None or name in _COMPARISONS or name in _EXITS or name in _FUNCTIONS_THAT_DETACH or name in _IN_PLACE:
        return False
    return not name.endswith("_") or name.endswith("__")


def _is_continuous(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _outputs_without_graph(outputs: list[Tensor], inputs: list[Tensor]) -> list[Tensor]:
    """The results that have no graph. A view of a tensor that learns, made under no_grad, is one: it requires a gradient, and is a leaf."""
    new = [tensor for tensor in outputs if not tensor.requires_grad]
    if not is_grad_enabled():
        old = set(map(id, inputs))
        leaves = [tensor for tensor in outputs if tensor.requires_grad and nodes.node_of(tensor) is None]
        new += [tensor for tensor in leaves if id(tensor) not in old]
    return new


def _kind(name: str, is_one_of_several: bool) -> str:
    """The name of a cut by a function. is_one_of_several: other results of the call have a graph."""
    if name in ("detach", "detach_", ".data"):
        return ".data" if name == ".data" else ".detach()"
    if is_one_of_several:
        return f"indices of {name}"
    if not is_grad_enabled():
        return f"{name}{WITHOUT_GRAD}"
    if name in _COMPARISONS:
        return "comparison"
    if name in _CASTS:
        return "cast to integers"
    return "torch.tensor(x)" if name in ("tensor", "new_tensor") else name
