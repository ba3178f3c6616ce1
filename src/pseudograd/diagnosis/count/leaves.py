"""The leaves of a program: which lie upstream of a node, and what they are called. One file: all of it reads one table of tensors."""

from __future__ import annotations

import functools
import operator
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ...listen import nodes
from ...listen.harmless import harmless
from ...listen.quietly import quietly
from ...torch_table.private import accumulates, base_of, is_sharded, is_wrapped, saved, shards_of
from .leaf import Leaf
from .names import Names, tops_of, unwrapped
from .norms import Sizes

_OWN = 4096  # leaves that no module holds, and leaves that are gone: a program may make new ones in every step
_WITH_A_BIT = 16_384  # leaves of all kinds: a program may make a new model in every step
_CROWDS = 64  # of the others, by what they look alike
# They read some rows of a table: those that nobody asked for get no gradient.
_TABLES = "Embedding EmbeddingBag Index IndexSelect Gather Select Slice Narrow Take"
_LOOKUPS = frozenset(f"{name}Backward0" for name in _TABLES.split())
_FUNCTION_NODE: Any = torch.autograd.function.BackwardCFunction


def _nothing() -> None:
    return None


@harmless("a parameter that is gone")
def _settle(gone: Callable[[], None]) -> None:
    with quietly():
        gone()


class Crowd:
    """Leaves beyond those that have a bit each: they are counted one by one, and share a bit."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.members: dict[int, Leaf] = {}
        self.gone = 0
        self._gone_starving = {True: 0, False: 0}  # by whether an optimiser stepped them

    def forget(self, key: int) -> None:
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
        judged = [leaf for leaf in list(self.members.values()) if leaf.stepped or are_all_judged]
        gone = self._gone_starving[True] + (self._gone_starving[False] if are_all_judged else 0)
        return gone + sum(leaf.starves for leaf in judged)


class Leaves:
    """All that were met. A set of them is an integer with a bit for each. roots: the outermost modules that ran, by their id."""

    def __init__(self, key: str, roots: dict[int, weakref.ref[nn.Module]]) -> None:
        self.names = Names()
        self.all: list[Leaf | None] = []  # None: the bit of a crowd
        self.crowds: dict[object, tuple[int, Crowd]] = {}
        self.key = key  # under which a node of autograd remembers what lies upstream of it
        self.are_measured = False
        self.backwards = 0  # that have ended
        self._bits: dict[int, tuple[weakref.ref[Tensor], int]] = {}  # by the id of a tensor, which may be used again
        self._is_special: dict[type, bool] = {}  # by the class of a node: has `_joined` something to note?
        self._unnamed = 0
        self._asked_for_names = 0  # of those, how many there were when all modules were searched
        self._roots = roots
        self._named_roots: dict[int, weakref.ref[nn.Module]] = {}  # of the roots, those whose parameters are known
        self._pending: list[Leaf] = []
        self._followed = 0  # of all, those that are or were among the pending

    def __iter__(self) -> Iterator[tuple[int, Leaf]]:
        """Each with its bit."""
        return ((bit, leaf) for bit, leaf in enumerate(list(self.all)) if leaf is not None)

    # --- names --------------------------------------------------------------------------------------------------------

    def add_module(self, module: nn.Module, is_given: bool = False) -> None:
        """Its parameters, and their names."""
        named: dict[str, Tensor] = dict(module.named_parameters())
        shards = [pair for part in module.modules() for pair in shards_of(part)]
        sharded_by_full = {id(full): sharded for sharded, full in shards if full is not None}
        for name, parameter in named.items():
            parameter = sharded_by_full.get(id(parameter), parameter)  # as the optimiser holds it
            if parameter.requires_grad and not is_lazy(parameter) and self._known(parameter) is None:
                if len(self.all) < _WITH_A_BIT and len(self.all) - len(self._bits) < _OWN:
                    self._add(parameter, 0)
                else:
                    self._add_to_crowd(parameter)
            leaf = self._single_leaf(parameter)
            if leaf is not None:
                leaf.has_run = True
                self.names.note(leaf, module, name, is_given)
        for sharded, full in shards:
            bit, leaf = self._known(sharded), self._single_leaf(sharded)
            if full is not None and bit is not None and leaf is not None and self._known(full) is None:
                leaf.has_whole = True
                self._remember(full, bit)

    def _single_leaf(self, tensor: Tensor) -> Leaf | None:
        """The leaf of a tensor, if it was met and is of no crowd."""
        bit = self._known(tensor)
        return None if bit is None else self.all[bit]

    def name_from(self, modules: Iterable[nn.Module]) -> None:
        """What is known already and stands in these."""
        for module in modules:
            for name, parameter in module.named_parameters():
                leaf = self._single_leaf(parameter)
                if leaf is not None:
                    self.names.note(leaf, module, name)

    def name_all(self) -> None:
        """From every module that is alive, what the model that the user named does not name."""
        owner_of = self.names.owner_of
        rest = [leaf for _, leaf in self if leaf.is_parameter and not getattr(owner_of(leaf), "is_given", False)]
        tensors = [tensor for leaf in rest if (tensor := leaf.tensor()) is not None]
        if tensors:
            self.name_from(tops_of(tensors))

    def name_roots(self) -> None:
        """The parameters of modules that ran, where the user named no model."""
        for key, reference in list(self._roots.items()):
            module = reference()
            if module is None:
                self._named_roots.pop(key, None)
                if self._roots.get(key) is reference:
                    del self._roots[key]
            elif self._named_roots.get(key) is not reference or is_sharded(module):
                self._named_roots[key] = reference
                self.add_module(unwrapped(module))

    def name_new(self, backwards: int) -> None:
        """While the modules are alive, which a report may not find any more. It asks all modules, so ever less often."""
        if self._asked_for_names < self._unnamed and not backwards & (backwards - 1):
            self._asked_for_names = self._unnamed
            self.name_all()

    # --- tensors ------------------------------------------------------------------------------------------------------

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
        entry = self._bits.get(id(tensor))
        return entry[1] if entry is not None and entry[0]() is tensor else None

    def known(self, tensor: Tensor) -> Leaf | None:
        """The leaf of this tensor, if it was met; of a crowd, its own as well."""
        bit = self._known(tensor)
        leaf = None if bit is None else self.all[bit]
        if bit is None or leaf is not None:
            return leaf
        return next((crowd.members.get(id(tensor)) for at, crowd in self.crowds.values() if at == bit), None)

    def _remember(self, tensor: Tensor, bit: int, gone: Callable[[], None] | None = None) -> None:
        key, bits = id(tensor), self._bits

        def forget(reference: object) -> None:
            if key in bits and bits[key][0] is reference:
                del bits[key]
                if gone is not None:
                    _settle(gone)  # at any moment of the program

        bits[key] = weakref.ref(tensor, forget), bit

    def _add(self, tensor: Tensor, number: int) -> int:
        self.all.append(leaf := Leaf(number, tensor, self.names, self.backwards))
        if self.are_measured and leaf.is_parameter:
            leaf.sizes = Sizes(lambda: self.backwards + 1)
        self._remember(tensor, len(self.all) - 1, leaf.entries.settle)
        return len(self.all) - 1

    def _add_to_crowd(self, tensor: Tensor) -> int:
        is_parameter, shape = isinstance(tensor, nn.Parameter), tuple(tensor.shape)
        look: object = (is_parameter, shape)
        is_alike = look in self.crowds or len(self.crowds) < _CROWDS
        if not is_alike:
            look = (is_parameter, None)
        if look not in self.crowds:
            kind = "parameters" if is_parameter else "leaves"
            crowd = Crowd(f"{kind} of shape {shape}" if is_alike else f"{kind} of other shapes")
            self.crowds[look] = len(self.all), crowd
            self.all.append(None)
        bit, crowd = self.crowds[look]
        key = id(tensor)
        crowd.members[key] = Leaf(self._unnamed, tensor, self.names, self.backwards)
        self._remember(tensor, bit, lambda: crowd.forget(key))
        return bit

    def meet(self, tensor: Tensor) -> Leaf | None:
        """The leaf of a tensor that an optimiser holds."""
        self.set_of(tensor)
        return self.known(tensor)

    def have_run(self, values: Iterable[object]) -> bool:
        """Is every leaf among these of a module that ran?"""
        for value in values:
            if isinstance(value, Tensor):
                if value.requires_grad and value.is_leaf:
                    met = self._bits.get(id(value))
                    leaf = None if met is None or met[0]() is not value else self.all[met[1]] or self.known(value)
                    if leaf is None or not leaf.has_run:
                        return False
            elif isinstance(value, dict) or (
                isinstance(value, (list, tuple)) and not all(type(item) is int for item in value)
            ):
                return False
        return True

    def let_go(self, tensors: tuple[Tensor, ...]) -> Callable[[], None]:
        """Keep no weak reference to these until what is returned is called."""
        mine = [(bit, self.known(tensor), tensor) for tensor in tensors if (bit := self._known(tensor)) is not None]
        for _, leaf, tensor in mine:
            del self._bits[id(tensor)]
            if leaf is not None:
                leaf.tensor = _nothing

        def take_again() -> None:
            for bit, leaf, tensor in mine:
                self._remember(tensor, bit)
                if leaf is not None:
                    leaf.tensor = weakref.ref(tensor)

        return take_again

    # --- sets ---------------------------------------------------------------------------------------------------------

    def set_of(self, tensor: Tensor) -> int:
        """The leaf itself; the empty set for what has no gradient of its own."""
        bit = self._known(tensor)
        if bit is None and not (is_wrapped(tensor) or is_lazy(tensor)):
            self.name_roots()
            bit = self._known(tensor)
            if bit is None:
                self._unnamed += 1
                bit = self._add(tensor, self._unnamed) if self._unnamed <= _OWN else self._add_to_crowd(tensor)
        return 0 if bit is None else 1 << bit

    def single(self, leaves: int) -> Leaf | None:
        """Of a set with one leaf; None for the empty set, and for one of a crowd."""
        return self.all[leaves.bit_length() - 1] if leaves else None

    def named(self, leaves: int) -> list[Leaf]:
        """Of a set, those that have a bit each."""
        members = []
        while leaves:
            least = leaves & -leaves
            leaf = self.all[least.bit_length() - 1]
            leaves ^= least
            if leaf is not None:
                members.append(leaf)
        return members

    def upstream_of(self, tensor: Tensor) -> int:
        """Upstream of a tensor, itself if it is a leaf. A view that was made under no_grad is one, and stands for what it is of."""
        node = nodes.node_of(tensor)
        base = base_of(tensor) if node is None else None
        if base is not None and base.requires_grad:
            tensor, node = base, nodes.node_of(base)
        return self.upstream(node) if node is not None else self.set_of(tensor)

    def upstream(self, node: Any) -> int:
        """Of a node of autograd. Each node is asked once and remembers, as long as it lives."""
        if node is None:
            return 0
        known = node.metadata.get(self.key)
        if known is not None:
            return int(known)
        stack = [(node, False)]
        while stack:
            top, is_ready = stack.pop()
            if self.key in top.metadata:
                continue
            edges = top.next_functions
            inputs = [other for other, _ in edges if other is not None]
            if inputs and not is_ready:
                stack.append((top, True))
                stack += [(other, False) for other in inputs if self.key not in other.metadata]
                continue
            known = {other: other.metadata.get(self.key, 0) for other in inputs}
            joined = functools.reduce(operator.or_, known.values(), 0)
            top.metadata[self.key] = self._joined(top, edges, joined, known)
        return int(node.metadata[self.key])

    def reachable_from(self, starts: Iterable[object]) -> dict[Any, int]:
        """Every node that a backward from these can reach, with what lies upstream of it. Each node of each backward comes here, so that
        it calls nothing for those that it knows what to do with.
        """
        upstream_of: dict[Any, int] = {None: 0}
        bits, is_special = self._bits, self._is_special
        stack: list[tuple[Any, Any]] = [(node, None) for node in starts]
        while stack:
            node, edges = stack.pop()
            if node in upstream_of:
                continue
            ahead: list[object] = []
            upstream = 0
            edges = node.next_functions if edges is None else edges
            for other, _ in edges:
                if other in upstream_of:
                    upstream |= upstream_of[other]
                elif (
                    type(other) is accumulates
                    and (known := bits.get(id(tensor := other.variable)))
                    and known[0]() is tensor
                ):
                    upstream_of[other] = bit = 1 << known[1]
                    upstream |= bit
                else:
                    ahead.append(other)
            if ahead:
                stack.append((node, edges))
                stack += [(other, None) for other in reversed(ahead)]
                continue
            kind = type(node)
            if not edges or is_special.get(kind, True):
                upstream = self._joined(node, edges, upstream, upstream_of)
                name = nodes.name_of(node)
                if edges and nodes.has_one_name(kind):
                    is_special[kind] = name in _LOOKUPS
            upstream_of[node] = upstream
        del upstream_of[None]
        return upstream_of

    def _joined(self, node: Any, edges: Any, upstream: int, upstream_of: Mapping[Any, int]) -> int:
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
        if isinstance(node, _FUNCTION_NODE):
            for other, _ in edges:
                if hasattr(other, "variable"):
                    for leaf in self.named(upstream_of[other]):
                        leaf.function = node.name()
        return upstream
