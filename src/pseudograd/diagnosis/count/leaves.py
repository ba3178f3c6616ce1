"""The parameters of a program, which of them lie upstream of a node, and whether a gradient ever came to them."""

from __future__ import annotations

import functools
import operator
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ...kernels.native.counts import can_square, look
from ...listen import nodes
from ...listen.harmless import harmless
from ...listen.quietly import quietly
from ...torch_table.private import (
    accumulates,
    base_of,
    hooks_of,
    is_batched,
    is_fake,
    is_wrapped,
    local,
    saved,
    shards_of,
)
from .missing_gradients import Entries
from .names import Names, tops_of
from .norms import Sizes

_OWN = 4096  # leaves that no module holds, and leaves that are gone: a program may make new ones in every step
_WITH_A_BIT = 16_384  # leaves of all kinds: a program may make a new model in every step
_CROWDS = 64  # of the others, by what they look alike
# They read some rows of a table: those that nobody asked for get no gradient.
_TABLES = ("Embedding", "EmbeddingBag", "Index", "IndexSelect", "Gather", "Select", "Slice", "Narrow", "Take")
LEAF = "torch::autograd::AccumulateGrad"
_LOOKUPS = frozenset(f"{name}Backward0" for name in _TABLES)
_OF_FUNCTIONS: Any = torch.autograd.function.BackwardCFunction


def _nothing() -> None:
    return None


class Leaf:
    """One parameter, or another tensor that a program asks the gradient of. The tensor itself is not kept alive."""

    def __init__(self, number: int, tensor: Tensor, names: Names, since: int) -> None:
        self.number = number  # of those without a name
        self.since = since  # the backward passes that there were before it was met
        self.shape = tuple(tensor.shape)
        self.is_empty = not local(tensor).numel()
        self.is_parameter = isinstance(tensor, nn.Parameter)
        self.tensor: Callable[[], Tensor | None] = weakref.ref(tensor)
        self.gradients = 0
        self.sizes: Sizes | None = None
        self.entries = Entries(self.is_parameter)
        self.elsewhere: object = False  # did what stands for it in a forward get one? As FSDP's whole parameters do
        self.has_whole = False  # does anything stand for it?
        self.last: object = (
            None  # did the gradient that came last differ from 0? Followed until an optimiser has seen one that does
        )
        self.has_run = False  # is it of a module that ran, or of the model given?
        self.held = False  # by an optimiser that stepped,
        self.stepped = False  # with a rate other than 0
        self.is_frozen = False  # while an optimiser holds it
        self.seen: Any = False  # did such an optimiser see a gradient other than 0?
        self.missed: Any = False  # was there a step that saw none although one had just come?
        self.after: Any = (
            None  # where no optimiser steps it: was .grad after a backward ever other than 0? None: nobody saw it
        )
        self.has_hooks = False  # the program's own, when zeros came: they may have made them
        self.asked = False  # for its gradient, by an autograd.grad
        self.is_looked_up = False  # are rows of it chosen by an index?
        self.padding: int | None = None  # the row that gets no gradient although it is
        self.function: str | None = None  # the node of a custom Function that it is an input of
        self._names = names

    @property
    def name(self) -> str:
        """As it is known now: a module that holds it may be found until the report is made."""
        kind = "parameter" if self.is_parameter else "leaf"
        return self._names.of(self) or f"{kind} {self.number} of shape {self.shape}"

    @property
    def is_named(self) -> bool:
        """By a module, so that model.get_parameter finds it."""
        return self._names.of(self) is not None

    def arrived(self, grad: Tensor | None, norm: object = None) -> None:
        """A gradient is about to be added to it; None where the backward of a custom Function gave none. norm: see `Sizes.add`."""
        if grad is None:
            return
        self.gradients += 1
        is_followed = self.gradients < 2 or (self.held and self.seen is not True)
        is_measured = norm is None and self._measured(grad)
        numbers = is_measured or norm is not None or has_numbers(grad)
        if self.sizes is not None and numbers and not is_measured:
            self.sizes.add(grad, norm)
        if self.entries.is_complete and not is_followed:
            return
        if numbers:
            if not is_measured:
                self.entries.add(grad)
            self.last = moves(grad) if is_followed else None
            if self.last is False:
                self.has_hooks = bool(hooks_of(self.tensor()))
        else:  # nobody can say that it was 0
            self.entries.drop()
            self.last = None

    def arrived_again(self, grad: Tensor) -> bool:
        """As `arrived`, for speed: whether that was all that there is to note."""
        if not self.gradients or (self.held and self.seen is not True) or not self._measured(grad):
            return False
        self.gradients += 1
        return True

    def _measured(self, grad: Tensor) -> bool:
        """Its norm, and which entries have had a gradient, in one look; False where that has to be two."""
        sizes, entries = self.sizes, self.entries
        if not can_square(grad) or is_wrapped(grad) or is_batched(grad):
            return False
        had = None
        if not entries.is_complete:
            had = entries.had(grad)
            if had is None:
                return False
        missing = 0
        if sizes is not None:
            missing = sizes.add_at_once(grad, had)
        elif had is not None:
            missing = look(grad, had)
        if missing < 0:
            return False
        if had is not None:
            entries.looked(missing)
        return True

    def arrived_in_its_place(self, grad: Tensor | None) -> None:
        """At what stands for it in a forward."""
        if grad is not None:
            self.gradients += 1
            if self.elsewhere is not True:
                self.elsewhere = self.elsewhere | moves(grad) if has_numbers(grad) else True

    def look_after(self) -> bool:
        """At .grad, when a backward has ended; whether it has to be looked at again."""
        tensor = self.tensor()
        grad = None if tensor is None else tensor.grad
        if grad is not None and has_numbers(grad):
            if self.has_whole:  # what FSDP2 has summed and handed out
                self.entries.add(grad)
            if self.after is not True:
                self.after = moves(grad) if self.after is None else self.after | moves(grad)
        return tensor is not None and (self.after is not True or (self.has_whole and not self.entries.is_complete))

    @property
    def moved(self) -> bool:
        """Did a gradient other than 0 come, whatever became of it?"""
        return bool(self.elsewhere) or self.entries.moved

    @property
    def is_swallowed(self) -> bool:
        """One came, and was 0 or gone whenever an optimiser stepped, or in .grad itself where none steps it."""
        if bool(self.seen) or not self.entries.moved:  # of a shard, itself: the rest may have got all that came
            return False
        return bool(self.missed) if self.held else self.after is not None and not bool(self.after)

    @property
    def starves(self) -> bool:
        """No gradient, or nothing but zeros, or nothing of it left when it should have been used."""
        return not bool(self.seen) and (not self.moved or self.is_swallowed)


def has_numbers(grad: Tensor) -> bool:
    """Can they be read? Not under a transform, nor on the device "meta"."""
    return not (is_wrapped(grad) or is_batched(grad) or is_fake(grad) or grad.is_meta)


def moves(grad: Tensor) -> Any:
    """Is any entry other than 0? On a device that must not be waited for, a tensor."""
    grad = local(grad)
    values = grad._values() if grad.is_sparse else grad
    return bool(torch.count_nonzero(values)) if values.device.type == "cpu" else values.any()


@harmless("a parameter that is gone")
def _tell(gone: Callable[[], None]) -> None:
    with quietly():
        gone()


class Crowd:
    """Leaves beyond those that have a bit each: they are counted one by one, and share a bit."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.members: dict[int, Leaf] = {}
        self.gone = 0
        self._gone_starving = {True: 0, False: 0}  # by whether an optimiser stepped them

    def add(self, leaf: Leaf, key: int) -> None:
        self.members[key] = leaf

    def left(self, key: int) -> None:
        """The tensor is gone: what it got is counted, and the rest forgotten."""
        leaf = self.members.pop(key, None)
        if leaf is not None:
            self.gone += 1
            self._gone_starving[leaf.stepped] += leaf.starves

    @property
    def count(self) -> int:
        return self.gone + len(self.members)

    def starving(self, are_all_judged: bool) -> int:
        """Of those that an optimiser stepped, or of all."""
        here = [leaf for leaf in list(self.members.values()) if leaf.stepped or are_all_judged]
        gone = self._gone_starving[True] + (self._gone_starving[False] if are_all_judged else 0)
        return gone + sum(leaf.starves for leaf in here)


class Leaves:
    """All that were met. A set of them is an integer with a bit for each."""

    def __init__(self, key: str, look_for_names: Callable[[], None]) -> None:
        self._look_for_names = look_for_names
        self.names = Names()
        self.all: list[Leaf | None] = []  # None: the bit of a crowd
        self.crowds: dict[object, tuple[int, Crowd]] = {}
        self._bits: dict[int, tuple[weakref.ref[Tensor], int]] = {}  # by the id of a tensor, which may be used again
        self.key = key  # under which a node of autograd remembers what lies upstream of it
        self._is_special: dict[type, bool] = {}  # by the class of a node: has `_joined` something to note?
        self.unnamed = 0
        self.are_measured = False
        self.backwards = 0  # that have ended
        self._pending: list[Leaf] = []
        self._followed = 0  # of all, those that are or were among the pending

    def __iter__(self) -> Iterator[tuple[int, Leaf]]:
        """Each with its bit."""
        return ((bit, leaf) for bit, leaf in enumerate(list(self.all)) if leaf is not None)

    def add_module(self, module: nn.Module, is_given: bool = False) -> None:
        """Its parameters, and their names."""
        named: dict[str, Tensor] = dict(module.named_parameters())
        whole = {id(one): sharded for some in module.modules() for sharded, one in shards_of(some) if one is not None}
        for name, parameter in named.items():
            parameter = whole.get(id(parameter), parameter)  # as the optimiser holds it
            if parameter.requires_grad and not is_lazy(parameter) and self._known(parameter) is None:
                if len(self.all) < _WITH_A_BIT and len(self.all) - len(self._bits) < _OWN:
                    self._add(parameter, 0)
                else:
                    self._crowd_in(parameter)
            bit = self._known(parameter)
            leaf = None if bit is None else self.all[bit]
            if leaf is not None:
                leaf.has_run = True
                self.names.note(leaf, module, name, is_given)
        for some in module.modules():
            self._join_shards(some)

    def name_from(self, modules: Iterable[nn.Module]) -> None:
        """What is known already and stands in these."""
        for module in modules:
            for name, parameter in module.named_parameters():
                bit = self._known(parameter)
                leaf = None if bit is None else self.all[bit]
                if leaf is not None:
                    self.names.note(leaf, module, name)

    def name_all(self) -> None:
        """From every module that is alive, what the model given does not name."""
        owner_of = self.names.owner_of
        some = [leaf for _, leaf in self if leaf.is_parameter and not getattr(owner_of(leaf), "is_given", False)]
        tensors = [tensor for leaf in some if (tensor := leaf.tensor()) is not None]
        if tensors:
            self.name_from(tops_of(tensors))

    def _join_shards(self, module: nn.Module) -> None:
        for sharded, one in shards_of(module):
            bit = self._known(sharded)
            leaf = None if bit is None else self.all[bit]
            if one is not None and leaf is not None and self._known(one) is None:
                leaf.has_whole = True
                self._remember(one, bit)  # type: ignore[arg-type]

    def end_backward(self, number: int) -> None:
        """What no optimiser steps is looked at itself, until its .grad is seen to differ from 0."""
        self.backwards = number
        if self._followed < len(self.all):
            self._pending += [leaf for leaf in self.all[self._followed :] if leaf is not None and leaf.is_parameter]
            self._followed = len(self.all)
        if self._pending:
            self._pending = [leaf for leaf in self._pending if self._has_to_be_followed(leaf)]

    @staticmethod
    def _has_to_be_followed(leaf: Leaf) -> bool:
        is_known = leaf.held and (leaf.entries.is_complete or not leaf.has_whole)
        return not is_known and leaf.look_after()

    def _known(self, tensor: Tensor) -> int | None:
        found = self._bits.get(id(tensor))
        return found[1] if found is not None and found[0]() is tensor else None

    def known(self, tensor: Tensor) -> Leaf | None:
        """The leaf of this tensor, if it was met; of a crowd, its own as well."""
        found = self._bits.get(id(tensor))
        if found is None or found[0]() is not tensor:
            return None
        bit = found[1]
        leaf = self.all[bit]
        if leaf is not None:
            return leaf
        return next((crowd.members.get(id(tensor)) for at, crowd in self.crowds.values() if at == bit), None)

    def _remember(self, tensor: Tensor, bit: int, gone: Callable[[], None] | None = None) -> None:
        key, bits = id(tensor), self._bits

        def forget(reference: object) -> None:
            if key in bits and bits[key][0] is reference:
                del bits[key]
                if gone is not None:
                    _tell(gone)  # at any moment of the program

        bits[key] = weakref.ref(tensor, forget), bit

    def _add(self, tensor: Tensor, number: int) -> int:
        self.all.append(leaf := Leaf(number, tensor, self.names, self.backwards))
        if self.are_measured and leaf.is_parameter:
            leaf.sizes = Sizes(self._now)
        self._remember(tensor, len(self.all) - 1, leaf.entries.settle)
        return len(self.all) - 1

    def _now(self) -> int:
        return self.backwards + 1

    def meet(self, tensor: Tensor) -> Leaf | None:
        """The leaf of a tensor that an optimiser holds."""
        self.set_of(tensor)
        return self.known(tensor)

    def are_at_home(self, values: Iterable[object]) -> bool:
        """Is every leaf among these of a module that ran?"""
        for one in values:
            if isinstance(one, Tensor):
                if one.requires_grad and one.is_leaf:
                    met = self._bits.get(id(one))
                    leaf = None if met is None or met[0]() is not one else self.all[met[1]] or self.known(one)
                    if leaf is None or not leaf.has_run:
                        return False
            elif isinstance(one, dict) or (
                isinstance(one, (list, tuple)) and not all(type(item) is int for item in one)
            ):
                return False
        return True

    def set_of(self, tensor: Any) -> int:
        """The leaf itself; the empty set for what has no gradient of its own."""
        met = self._bits.get(id(tensor))
        bit = met[1] if met is not None and met[0]() is tensor else None
        if bit is None and not (is_wrapped(tensor) or is_lazy(tensor)):
            self._look_for_names()
            bit = self._known(tensor)
            if bit is None:
                self.unnamed += 1
                bit = self._add(tensor, self.unnamed) if self.unnamed <= _OWN else self._crowd_in(tensor)
        return 0 if bit is None else 1 << bit

    def _crowd_in(self, tensor: Tensor) -> int:
        is_parameter, shape = isinstance(tensor, nn.Parameter), tuple(tensor.shape)
        key: object = (is_parameter, shape)
        if key not in self.crowds and len(self.crowds) >= _CROWDS:
            key, shape = (is_parameter, None), None  # type: ignore[assignment]
        if key not in self.crowds:
            kind = "parameters" if is_parameter else "leaves"
            crowd = Crowd(f"{kind} of shape {shape}" if shape is not None else f"{kind} of other shapes")
            self.crowds[key] = len(self.all), crowd
            self.all.append(None)
        bit, crowd = self.crowds[key]
        key = id(tensor)
        crowd.add(Leaf(self.unnamed, tensor, self.names, self.backwards), key)
        self._remember(tensor, bit, lambda: crowd.left(key))
        return bit

    def upstream(self, node: Any) -> int:
        """Of a node of autograd. Each node is asked once and remembers, as long as it lives."""
        if node is None:
            return 0
        known = node.metadata.get(self.key)
        if known is not None:
            return int(known)
        stack = [(node, False)]
        while stack:
            one, is_ready = stack.pop()
            if self.key in one.metadata:
                continue
            edges = one.next_functions
            inputs = [other for other, _ in edges if other is not None]
            if inputs and not is_ready:
                stack.append((one, True))
                stack += [(other, False) for other in inputs if self.key not in other.metadata]
                continue
            known = {other: other.metadata.get(self.key, 0) for other in inputs}
            joined = functools.reduce(operator.or_, known.values(), 0)
            self.remember(one, self._joined(one, edges, joined, known))
        return int(node.metadata[self.key])

    def remember(self, node: Any, upstream: int) -> None:
        node.metadata[self.key] = upstream

    def behind(self, starts: Iterable[object]) -> dict[Any, int]:
        """Every node that a backward from these can reach, with what lies upstream of it. Each node of each backward comes here, so that
        it calls nothing for those that it knows what to do with.
        """
        found: dict[object, int] = {None: 0}
        bits, is_special = self._bits, self._is_special
        stack: list[tuple[Any, Any]] = [(node, None) for node in starts]
        while stack:
            node, edges = stack.pop()
            if node in found:
                continue
            ways: list[object] = []
            upstream = 0
            if edges is None:
                edges = node.next_functions
                for other, _ in edges:
                    if other in found:
                        upstream |= found[other]
                    elif (
                        type(other) is accumulates
                        and (known := bits.get(id(tensor := other.variable)))
                        and known[0]() is tensor
                    ):
                        found[other] = bit = 1 << known[1]
                        upstream |= bit
                    else:
                        ways.append(other)
            else:
                for other, _ in edges:
                    upstream |= found[other]
            if ways:
                stack.append((node, edges))
                stack += [(other, None) for other in reversed(ways)]
                continue
            kind = type(node)
            if not edges or is_special.get(kind, True):
                upstream = self._joined(node, edges, upstream, found)
                name = nodes.name_of(node)
                if edges and nodes.has_one_name(kind):
                    is_special[kind] = name in _LOOKUPS
            found[node] = upstream
        del found[None]
        return found

    def _joined(self, node: object, edges: Any, upstream: int, of: dict[object, int]) -> int:
        """What lies upstream of a node: of its inputs all together, of a leaf itself. What is special about it is noted at the leaves."""
        if not edges:
            variable = getattr(node, "variable", None)
            return 0 if variable is None else self.set_of(variable)
        if upstream and not upstream & (upstream - 1) and nodes.name_of(node) in _LOOKUPS:  # of one leaf alone
            for leaf in self.named(upstream):
                leaf.is_looked_up = True
                row = saved(node, "padding_idx", -1)
                if 0 <= row < leaf.shape[0]:  # for none torch has -1, or that without its sign
                    leaf.padding = row
        if isinstance(node, _OF_FUNCTIONS):
            for one, _ in edges:
                if hasattr(one, "variable"):
                    for leaf in self.named(of[one]):
                        leaf.function = node.name()
        return upstream

    def of_tensor(self, tensor: Tensor) -> int:
        """Upstream of a tensor, itself if it is a leaf. A view that was made under no_grad is one, and stands for what it is of."""
        node = nodes.of_tensor(tensor)
        base = base_of(tensor) if node is None else None
        if base is not None and base.requires_grad:
            tensor, node = base, nodes.of_tensor(base)
        return self.upstream(node) if node is not None else self.set_of(tensor)

    def one(self, some: int) -> Leaf | None:
        """Of a set with one leaf; None for the empty set, and for one of a crowd."""
        return self.all[some.bit_length() - 1] if some else None

    def let_go(self, tensors: tuple[Any, ...]) -> Callable[[], None]:
        """Keep no weak reference to these until what is returned is called."""
        mine = [(bit, self.known(one), one) for one in tensors if (bit := self._known(one)) is not None]
        for _, leaf, one in mine:
            del self._bits[id(one)]
            if leaf is not None:
                leaf.tensor = _nothing

        def take_again() -> None:
            for bit, leaf, one in mine:
                self._remember(one, bit)
                if leaf is not None:
                    leaf.tensor = weakref.ref(one)

        return take_again

    def named(self, some: int) -> list[Leaf]:
        """Of a set, those that have a bit each."""
        found = []
        while some:
            least = some & -some
            leaf = self.all[least.bit_length() - 1]
            some ^= least
            if leaf is not None:
                found.append(leaf)
        return found
