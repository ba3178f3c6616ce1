"""All leaves of a program, and the sets of leaves upstream of a node."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ...listen import nodes
from ...listen.frames import Location
from ...listen.harmless import harmless, quietly
from ...listen.nodes import GraphNode
from ...torch_table.private import (
    accumulates,
    base_of,
    is_sharded,
    is_wrapped,
    modules_in,
    number_of,
    parameters_in,
    saved,
    shards_of,
)
from .leaf import Leaf, is_recorded, read_together
from .names import Names, tops_of, unwrapped
from .norms import Sizes, is_power_of_two

if TYPE_CHECKING:
    from .on_device import Ledger

# The most leaves without a module, and the most whose tensor is gone: a program may make new ones in every step.
_MOST_NAMELESS = 4096
_MOST_WITHOUT_VARIABLE = 64  # leaves without a name for which the next search looks again
_SEARCHES_OF_EACH_STEP = 32  # so many steps search for names; later ones ever less often
_MANY_NODES = 8_000  # a graph with more may have a chain that needs a break
_MOST_LEAVES = 16_384  # leaves of all kinds: a program may make a new model in every step
# Nodes that read some entries of a tensor, so that the others get no gradient. _TABLES: those that look rows up by an index.
_TABLES = "Embedding EmbeddingBag Index IndexSelect Gather Take"
_TABLE_NODES = frozenset(f"{name}Backward0" for name in _TABLES.split())
_PARTS = "Select Slice MaskedSelect Diagonal Triu Tril Topk Max Min Kthvalue Median Amax Amin MaxPool2DWithIndices"
LOOKUPS = _TABLE_NODES | {f"{name}Backward0" for name in _PARTS.split()}
_FUNCTION_NODE: type = torch.autograd.function.BackwardCFunction


@harmless("a parameter that is gone")
def _settle(leaf: Leaf) -> None:
    """Reduce what is known of the entries of a leaf to counts, if its tensor is gone."""
    if leaf.tensor() is None:
        with quietly():
            leaf.entries.settle()


class Leaves:
    """All leaves of a program. A set of leaves is an integer with a bit for each.

    key: a node of autograd holds the set of leaves upstream under this key of its metadata.
    roots: the outermost modules that ran, by id.
    """

    def __init__(self, key: str, roots: dict[int, weakref.ref[nn.Module]], are_measured: bool = False) -> None:
        self.names = Names()
        self.all: list[Leaf] = []  # by bit
        self.has_more = False  # were there more leaves than are looked at?
        self.key = key
        self.are_measured = are_measured  # are norms measured, or only elements counted?
        self.backwards = 0  # the number of backward passes that have ended
        self._bits: dict[int, tuple[weakref.ref[Tensor], int]] = {}  # by the id of a tensor, which may be used again
        self._is_special: dict[type, bool] = {}  # by the class of a node: must `_upstream_of_special` be called?
        self._used_at: dict[int, Location] = {}  # by id: where parameters that have no `Leaf` yet were last used
        self._nameless = 0
        self._variables: Counter[str] = Counter()  # the names in the program that leaves have got
        self._without_variable: list[Leaf] = []  # leaves whose name in the program nobody knows
        self._searches = 0  # of the program, for such names
        self._has_new_parameters = False  # since all modules were last searched for names
        self._roots = roots
        self._named_roots: dict[int, weakref.ref[nn.Module]] = {}  # the roots whose parameters have names
        self._looked_at: list[Leaf] = []  # the leaves whose `.grad` is looked at after each backward
        self.broken: dict[Leaf, None] = {}  # the leaves that got nan or inf in this backward
        self._followed = 0  # the number of leaves that are or were in `_looked_at`
        self.ledgers: dict[torch.device, Ledger] = {}  # what is counted on devices

    def __iter__(self) -> Iterator[tuple[int, Leaf]]:
        """Each leaf with its bit."""
        return enumerate(list(self.all))

    def ledger_of(self, device: torch.device) -> Ledger:
        ledger = self.ledgers.get(device)
        if ledger is None:
            from .on_device import Ledger

            ledger = self.ledgers.setdefault(device, Ledger(device, self.are_measured))
        return ledger

    # --- names --------------------------------------------------------------------------------------------------------

    def add_module(self, module: nn.Module, is_given: bool = False) -> None:
        """Add the parameters of a module, with their names."""
        shards = [pair for part in modules_in(module).values() for pair in shards_of(part)]
        shard_by_full = {id(full): shard for shard, full in shards if full is not None}
        for name, tensor in parameters_in(module):
            parameter: Tensor = shard_by_full.get(id(tensor), tensor)  # the one that the optimiser has
            if parameter.requires_grad and not is_lazy(parameter) and self._bit_of(parameter) is None:
                self._add(parameter, is_nameless=False)
            leaf = self.leaf_of(parameter)
            if leaf is not None:
                leaf.has_run = True
                self.names.note(leaf, module, name, is_given)
        for shard, full in shards:
            bit = self._bit_of(shard)
            if full is not None and bit is not None and self._bit_of(full) is None:
                self.all[bit].has_whole = True
                self._remember(full, bit)

    def name_all(self) -> None:
        """Search all modules that are alive for the names of parameters that the given model does not have."""
        owner_of = self.names.owner_of
        rest = [leaf for _, leaf in self if leaf.is_parameter and not getattr(owner_of(leaf), "is_given", False)]
        tensors = [tensor for leaf in rest if (tensor := leaf.tensor()) is not None]
        for module in tops_of(tensors) if tensors else ():
            for name, parameter in parameters_in(module):
                known = self.leaf_of(parameter)
                if known is not None:
                    self.names.note(known, module, name)
        self.names.note_chains()

    def name_roots(self) -> None:
        """Add the modules that ran since the last call."""
        for key, reference in list(self._roots.items()):
            module = reference()
            if module is None:
                self._named_roots.pop(key, None)
                if self._roots.get(key) is reference:
                    del self._roots[key]
            elif self._named_roots.get(key) is not reference or is_sharded(module):
                self._named_roots[key] = reference
                self.add_module(unwrapped(module))

    def find_names(self, backwards: int) -> None:
        """Name new leaves while modules and variables are alive. Ever less often, because the search reads all objects of Python."""
        is_due = is_power_of_two(backwards)
        if self._has_new_parameters and is_due:
            self._has_new_parameters = False
            self.name_all()
        if is_due or (self._without_variable and self._searches < _SEARCHES_OF_EACH_STEP):
            self._searches += 1
            self.name_by_variables(depth=2)

    def name_by_variables(self, depth: int) -> None:
        """Give leaves and nets the names of the program's variables that hold them, as seen from the frame `depth` above."""
        owners = self.names.name_by_globals(depth + 1)
        leaves = {id(tensor): leaf for leaf in self._without_variable if (tensor := leaf.tensor()) is not None}
        if not (leaves or owners):
            self._without_variable.clear()
            return
        from ...listen.variables import names_in_program  # it loads `dis` and `inspect`

        for key, name in names_in_program({*leaves, *owners}, depth + 1).items():
            if key in owners:
                owners[key].variable = name
                continue
            leaf = leaves.pop(key)
            leaf.variable, leaf.namesakes = name, self._variables[name]
            self._variables[name] += 1
        self._without_variable = list(leaves.values())[-_MOST_WITHOUT_VARIABLE:]

    # --- tensors ------------------------------------------------------------------------------------------------------

    def end_backward(self, number: int, must_read: bool = True) -> None:
        """Look at `.grad` of each parameter that no optimiser steps, until it differs from 0.

        must_read: read now which entries on a device had a gradient. Otherwise that is read in ever fewer passes.
        """
        self.backwards = number
        if must_read or is_power_of_two(number):
            self._read_devices()
        if self._followed < len(self.all):
            self._looked_at += [leaf for leaf in self.all[self._followed :] if leaf.is_parameter]
            self._followed = len(self.all)
        if self._looked_at:
            self._looked_at = [leaf for leaf in self._looked_at if leaf.look_at_grad()]

    def _read_devices(self) -> None:
        """Read how many entries ever had a gradient, at once for all parameters on a device. Waits for the device."""
        masks = {leaf.entries: mask for _, leaf in self if (mask := leaf.entries.unread_mask) is not None}
        unread = {entries: torch.count_nonzero(mask) for entries, mask in masks.items() if not is_recorded(mask)}
        for entries, count in read_together(unread):
            entries.note_count(int(count))

    def _bit_of(self, tensor: Tensor) -> int | None:
        entry = self._bits.get(id(tensor))
        return entry[1] if entry is not None and entry[0]() is tensor else None

    def add(self, tensor: Tensor) -> Leaf | None:
        """The leaf of a tensor. A new leaf is added; None if there are too many."""
        self.set_of(tensor)
        return self.leaf_of(tensor)

    def leaf_of(self, tensor: Tensor) -> Leaf | None:
        """The leaf of a tensor; None if it is not known."""
        bit = self._bit_of(tensor)
        return None if bit is None else self.all[bit]

    def _remember(self, tensor: Tensor, bit: int) -> None:
        key, bits, leaf = id(tensor), self._bits, self.all[bit]

        def forget(reference: object) -> None:
            if key in bits and bits[key][0] is reference:
                del bits[key]
                _settle(leaf)  # this may happen at any moment of the program

        bits[key] = weakref.ref(tensor, forget), bit

    def _add(self, tensor: Tensor, is_nameless: bool) -> int | None:
        """The bit of a new leaf; None if there are too many."""
        gone = len(self.all) - len(self._bits)
        has_room = len(self.all) < _MOST_LEAVES and gone < _MOST_NAMELESS
        if is_nameless:
            has_room = self._nameless < _MOST_NAMELESS
        if not has_room:
            self.has_more = True
            return None
        self._nameless += is_nameless
        leaf = Leaf(self._nameless, tensor, self.names, self.backwards)
        leaf.used_at = self._used_at.pop(id(tensor), None)
        if is_nameless:
            self._without_variable.append(leaf)
            self._has_new_parameters |= leaf.is_parameter
        if self.are_measured and leaf.is_parameter:
            leaf.sizes, leaf.broken = Sizes(lambda: self.backwards + 1), self.broken
        self.all.append(leaf)
        self._remember(tensor, len(self.all) - 1)
        return len(self.all) - 1

    def have_run(self, values: Iterable[object]) -> bool:
        """Does every leaf among the values belong to a module that ran?"""
        for value in values:
            if isinstance(value, Tensor):
                if value.requires_grad and value.is_leaf:
                    known = self._bits.get(id(value))
                    if known is None or known[0]() is not value or not self.all[known[1]].has_run:
                        return False
            # A list or tuple of integers is a size; any other may hold leaves.
            elif isinstance(value, dict) or (isinstance(value, (list, tuple)) and not {*map(type, value)} <= {int}):
                return False
        return True

    def note_use(self, values: Iterable[object], location: Location) -> None:
        """Note where parameters are used that no known module has."""
        for value in values:
            if isinstance(value, nn.Parameter) and self._bit_of(value) is None:
                if len(self._used_at) >= _MOST_NAMELESS:
                    self._used_at.clear()
                self._used_at[id(value)] = location

    def drop_references(self, tensors: tuple[Tensor, ...]) -> Callable[[], None]:
        """Drop the weak references to these tensors. The returned function makes them again."""
        known = [(bit, self.all[bit], tensor) for tensor in tensors if (bit := self._bit_of(tensor)) is not None]
        for _, leaf, tensor in known:
            del self._bits[id(tensor)]
            leaf.tensor = lambda: None

        def restore() -> None:
            for bit, leaf, tensor in known:
                self._remember(tensor, bit)
                leaf.tensor = weakref.ref(tensor)

        return restore

    def find_partial(self) -> int:
        """The set of parameters that are looked up, or that miss a gradient for half of their entries. Waits for the device."""
        return sum(1 << bit for bit, leaf in self if leaf.entries.mask is not None and leaf.misses_many)

    # --- sets ---------------------------------------------------------------------------------------------------------

    def set_of(self, tensor: Tensor) -> int:
        """The set with the leaf of this tensor. A new leaf is added; the set is empty if the tensor can have none."""
        bit = self._bit_of(tensor)
        if bit is None and not (is_wrapped(tensor) or is_lazy(tensor)):
            self.name_roots()
            bit = self._bit_of(tensor)
            if bit is None:
                bit = self._add(tensor, is_nameless=True)
        return 0 if bit is None else 1 << bit

    def single(self, leaves: int) -> Leaf | None:
        """The leaf of a set with one leaf; None for the empty set."""
        return self.all[leaves.bit_length() - 1] if leaves else None

    def unpack(self, leaves: int) -> list[Leaf]:
        """The leaves of a set."""
        members = []
        while leaves:
            bit = leaves.bit_length() - 1
            members.append(self.all[bit])
            leaves ^= 1 << bit
        return members[::-1]

    def upstream_of(self, tensor: Tensor) -> int:
        """The leaves upstream of a tensor. A leaf that is a view, made under no_grad, counts as its base."""
        node = nodes.node_of(tensor)
        base = base_of(tensor) if node is None else None
        if base is not None and base.requires_grad:
            tensor, node = base, nodes.node_of(base)
        return self.upstream(node) if node is not None else self.set_of(tensor)

    def upstream(self, node: GraphNode | None) -> int:
        """The leaves upstream of a node of autograd, which are written into its metadata."""
        if node is None:
            return 0
        known = node.metadata.get(self.key)
        return int(self.reachable_from([node], self.key)[node] if known is None else known)

    def reachable_from(self, starts: Iterable[GraphNode | None], key: str | None = None) -> dict[GraphNode, int]:
        """The nodes that a backward from `starts` can reach, each with the set of leaves upstream. Ordinary nodes need no call, for speed.

        key: the key of the metadata in which the sets are looked up and written. None: the metadata is not used.
        """
        upstream_of: dict[Any, int] = {None: 0}
        bits, is_special, known_set = self._bits, self._is_special, upstream_of.get
        stack: list[Any] = [*starts]  # nodes to visit; a pair of a node and its inputs is visited after the inputs
        while stack:
            node = stack.pop()
            upstream = 0
            if type(node) is tuple:
                node, inputs = node
                for other, _ in inputs:
                    upstream |= upstream_of[other]
            elif node in upstream_of:
                continue
            else:
                inputs, ahead = node.next_functions, None
                for other, _ in inputs:
                    leaves = known_set(other)
                    if leaves is None:
                        if (
                            type(other) is accumulates
                            and (known := bits.get(id(tensor := other.variable)))
                            and known[0]() is tensor
                        ):
                            leaves = upstream_of[other] = 1 << known[1]
                        elif key is not None and (leaves := other.metadata.get(key)) is not None:
                            upstream_of[other] = leaves
                        elif ahead is None:
                            ahead = [other]
                            continue
                        else:
                            ahead.append(other)
                            continue
                    upstream |= leaves
                if ahead is not None:
                    stack.append((node, inputs))
                    stack += ahead[::-1]
                    continue
            kind = type(node)
            if is_special.get(kind, True):
                upstream = self._upstream_of_special(node, upstream, upstream_of)
                name = nodes.name_of(node)
                if inputs and nodes.has_one_name(kind):
                    is_special[kind] = name in _TABLE_NODES
            upstream_of[node] = upstream
            if key is not None:
                node.metadata[key] = upstream
        del upstream_of[None]
        if len(upstream_of) > _MANY_NODES:
            for node in upstream_of:
                if not number_of(node) % nodes.STRIDE:
                    nodes.break_chain(node)
        return upstream_of

    def _upstream_of_special(self, node: GraphNode, upstream: int, upstream_of: Mapping[GraphNode, int]) -> int:
        """The leaves upstream of a node without inputs, a lookup or a custom Function. A leaf that such a node reads notes it."""
        inputs = node.next_functions
        if not inputs:
            variable = getattr(node, "variable", None)
            return 0 if variable is None else self.set_of(variable)
        reads_leaf = hasattr(inputs[0][0], "variable")
        if reads_leaf and nodes.name_of(node) in _TABLE_NODES:
            for leaf in self.unpack(upstream):
                leaf.is_looked_up = True
                row = saved(node, "padding_idx", leaf.shape[0])
                if 0 <= row < leaf.shape[0]:  # without a padding it is -1, or -1 as an unsigned number
                    leaf.padding = row
        if isinstance(node, _FUNCTION_NODE):
            for other, _ in inputs:
                if hasattr(other, "variable"):
                    for leaf in self.unpack(upstream_of[other]):
                        leaf.function = node.name()
        return upstream
