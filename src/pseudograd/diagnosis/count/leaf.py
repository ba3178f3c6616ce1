"""One parameter of a program, or another leaf: which gradients arrived, which of its entries got one, and whether optimisers saw them."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from ...formula import is_nested
from ...kernels.native.counts import Squares, can_square
from ...listen.frames import Location
from ...listen.nodes import GraphNode
from ...torch_table.private import (
    current_node,
    hooks_after_accumulation,
    hooks_of,
    is_batched,
    is_opaque,
    is_wrapped,
    local,
)
from .names import Names
from .norms import Sizes, is_power_of_two

# A mask costs a byte for each entry. In a tensor with more entries than this, each row counts as one entry.
_MOST_SINGLE_ENTRIES = 2**22
_LARGEST_TABLE = 2**18  # entries; in a larger lookup table, nobody searches for the op that drops some gradients
MOST_IN_WARM_UP = 10  # backwards in a row for which a scaler may skip the step, until its scale fits
_HAS_DISTRIBUTED = torch.distributed.is_available()
Key = TypeVar("Key")

Flag = bool | Tensor  # a tensor on a device that must not be waited for


class EverTrue:
    """Was one of several flags true? Those of a device are read when somebody needs the answer."""

    def __init__(self) -> None:
        self._flag: Flag = False
        self.has_flags = False  # was any flag added?
        self.is_certain = False  # is the answer "yes" known without waiting for a device?

    def add(self, flag: Flag) -> None:
        self.has_flags = True
        if not self.is_certain:
            self._flag = flag is True or self._flag | flag
            self.is_certain = self._flag is True

    def add_nonzero(self, grad: Tensor) -> None:
        """The flag: does the gradient differ from 0?"""
        if not self.is_certain:
            self.add(is_nonzero(grad))

    @property
    def unread(self) -> Tensor | None:
        """The flag that lies on a device."""
        return self._flag if isinstance(self._flag, Tensor) else None

    def __bool__(self) -> bool:
        """Waits for the device."""
        return bool(self._flag)


class Missing(NamedTuple):
    """Numbers of entries, and of units: rows along the first dimension."""

    entries: int  # all entries
    without: int  # entries without a gradient
    units: int  # all units
    dead_units: int  # units of which no entry had a gradient


class Entries:
    """Which entries of a tensor ever got a gradient. is_detailed: a mask of the entries, until each had a gradient; otherwise one flag."""

    def __init__(self, is_detailed: bool) -> None:
        self.looks = 0  # the gradients that were looked at
        self.is_complete = False  # can no later gradient change the answers?
        self._is_detailed = is_detailed
        self._had_gradient = EverTrue()  # did any gradient differ from 0?
        self._mask: Tensor | None = None
        self._counts_rows = False  # does the mask have one entry for each row?
        # The number of entries that had a gradient; None if the mask was not read since the last gradient.
        self._count: int | None = None
        self._missing: Missing | None = None  # of a parameter that is gone

    def add(self, grad: Tensor) -> None:
        grad = local(grad)
        if self.is_complete or not grad.numel():
            return
        self.looks += 1
        self._count = None
        if grad.layout is not torch.strided or not self._is_detailed:
            self._had_gradient.add_nonzero(grad)
            return
        is_large = grad.numel() > _MOST_SINGLE_ENTRIES and grad.dim() > 1
        nonzero = grad.flatten(1).any(1) if is_large else grad != 0  # of a large tensor by row
        if self._mask is None:
            self._mask, self._counts_rows = nonzero, nonzero.shape != grad.shape
        elif self._mask.shape == nonzero.shape:
            self._mask |= nonzero
        else:  # the shape changed, so the mask says nothing any more
            self.drop()
            return
        # To read the mask costs as much as to update it.
        if is_power_of_two(self.looks) and self._mask.is_cpu and bool(self._mask.all()):
            self.drop()

    def bytes_of(self, grad: Tensor) -> Tensor | None:
        """The mask as bytes, for a kernel that updates it; None if it has another shape. The caller must call `note_look` afterwards."""
        mask = self._mask
        return None if mask is None or mask.shape != grad.shape else mask.view(torch.uint8)

    def note_look(self, missing: int) -> None:
        """A kernel has updated the mask. missing: the number of entries that never had a gradient."""
        self.looks += 1
        if not missing:
            self.drop()

    @property
    def unread_mask(self) -> Tensor | None:
        """The mask, if it lies on a device and was not read since the last gradient."""
        mask = self._mask
        return None if mask is None or mask.is_cpu or self._count is not None else mask

    def note_count(self, count: int) -> None:
        """count: the number of entries that ever had a gradient, as read from the mask."""
        self._count = count
        self._had_gradient.add(count > 0)
        if self._mask is not None and count == self._mask.numel():
            self.drop()

    def count_with_gradient(self) -> int:
        """The number of entries of the mask that ever had a gradient. Waits for the device if the mask was not read yet."""
        if self._count is None and self._mask is not None:
            return int(torch.count_nonzero(self._mask))
        return self._count or 0

    def drop(self) -> None:
        """Count the tensor as complete: some gradient arrived, and nothing more can be known."""
        self._had_gradient.add(True)
        self._mask, self._missing, self.is_complete = None, None, True

    def settle(self) -> None:
        """Reduce the mask of a parameter that is gone to counts, unless that would wait for a device."""
        if self._mask is not None and self._mask.is_cpu:
            self._had_gradient.add(self.had_gradient)
            self._missing, self._mask, self.is_complete = self.missing(), None, True

    @property
    def had_gradient(self) -> bool:
        """Did any entry get a gradient? Waits for the device."""
        if self._had_gradient.is_certain or self._mask is None:
            return bool(self._had_gradient)
        return bool(self._mask.any())

    @property
    def mask(self) -> Tensor | None:
        """Which entries ever had a gradient; None if every entry had one, or no mask of single entries exists."""
        return None if self._counts_rows else self._mask

    def missing(self) -> Missing | None:
        """The counts of missing entries; None if every entry had a gradient or no mask exists."""
        mask = self._mask
        if mask is None or not mask.numel():
            return self._missing
        rows = mask.flatten(1).any(1) if mask.dim() > 1 else mask.reshape(-1)
        without = int(torch.count_nonzero(~mask))
        return Missing(mask.numel(), without, rows.numel(), int(torch.count_nonzero(~rows))) if without else None


class Leaf:
    """One parameter, or another tensor whose gradient a program computes. The tensor itself is not kept alive.

    since: the number of backward passes before the leaf was met. number: its number among leaves without a name.
    """

    def __init__(self, number: int, tensor: Tensor, names: Names, since: int) -> None:
        self.number, self.since, self._names = number, since, names
        self.variable: str | None = None  # its name in the program, if no module has it
        self.namesakes = 0  # leaves that had this name before
        self.used_at: Location | None = None  # where it was first used, if no module had it by then
        self.shape = () if is_nested(tensor) else tuple(tensor.shape)
        self.is_empty = not local(tensor).numel()
        self.is_parameter = isinstance(tensor, nn.Parameter)
        self.tensor: Callable[[], Tensor | None] = weakref.ref(tensor)
        self.gradients = 0
        self.sizes: Sizes | None = None
        self.broken: dict[Leaf, None] = {}  # if the norms are measured, the same dict as `Leaves.broken`
        self.entries = Entries(self.is_parameter)
        # FSDP uses a whole parameter in place of the shard that the optimiser has.
        self.has_whole = False
        self.whole_had_gradient = EverTrue()  # did the whole parameter get a gradient other than 0?
        # Did the last gradient differ from 0? None if nobody looked: when a step has seen a gradient, nobody needs to look.
        self.last_was_nonzero: Flag | None = None
        self.has_run = False  # does it belong to a module that ran, or to the model that the user named?
        self.is_in_optimizer = False  # does an optimiser that took a step have it?
        self.is_stepped = False  # was there a step with a rate other than 0?
        self.ascends = False  # does its optimiser maximise?
        self.stepped_after: int | None = None  # the number of backward passes before the first step with such a rate
        # Where the first graph of each loss reads it. None: at an op that nobody counts.
        self.read_at: set[Location | None] = set()
        self.zero_factor: Leaf | None = None  # a parameter that is 0, and that multiplies every use of this one
        self.is_frozen = False  # does it require no gradient although an optimiser has it?
        self.step_saw_gradient = EverTrue()  # did an optimiser see a gradient other than 0?
        self.step_missed_gradient = EverTrue()  # did an optimiser see no gradient although one had just arrived?
        self.taken_at: Location | None = None  # the call that took such a gradient away
        self.grad_was_nonzero = EverTrue()  # did `.grad` after a backward ever differ from 0?
        self.has_hooks = False  # did the program's own hooks exist when zeros arrived? They may have made the zeros
        self.is_requested = False  # did an autograd.grad name it?
        self.is_looked_up = False  # does an index choose rows of it?
        self.padding: int | None = None  # the row that gets no gradient although it is looked up
        self.function: str | None = None  # the node of a custom Function that has it as an input

    @property
    def name(self) -> str:
        """The name as it is known now: a module that holds the leaf may turn up until the report is made."""
        return self._known_name or f"{self._kind} {self.number} of shape {self.shape}"

    @property
    def name_or_shape(self) -> str:
        """The name, or a description without a number, which is the same for leaves that a program makes in each step."""
        return self._known_name or f"a {self._kind} of shape {self.shape}"

    @property
    def _known_name(self) -> str | None:
        return self._names.name_of(self) or self.label

    @property
    def _kind(self) -> str:
        return "parameter" if self.is_parameter else "leaf"

    @property
    def label(self) -> str | None:
        """Its variable, with a number if other leaves had it before."""
        return f"{self.variable}({self.namesakes + 1})" if self.namesakes else self.variable

    @property
    def place(self) -> str:
        """Its place in a list or dict of the program, such as "weights[0]"; "" if it is in none."""
        return self.variable if self.variable and "[" in self.variable else ""

    @property
    def misses_many(self) -> bool:
        """Are so many entries missing that a search for the line that drops them is worth it?"""
        mask = self.entries.mask
        if mask is None or is_recorded(mask):  # the values of a CUDA graph cannot be read
            return False
        entries = mask.numel()
        if self.is_looked_up:
            return entries <= _LARGEST_TABLE and self.entries.count_with_gradient() > 0
        return 0 < self.entries.count_with_gradient() <= entries / 2

    @property
    def _awaits_step(self) -> bool:
        """Is the leaf in an optimiser, and has no optimiser seen a gradient of it other than 0 yet?"""
        return self.is_in_optimizer and not self.step_saw_gradient.is_certain

    def add(self, grad: Tensor | None) -> None:
        """Note a gradient that is about to be added to `.grad`. It is None if the backward of a custom Function returned None."""
        if grad is None:
            return
        self.gradients += 1
        is_followed = self.gradients < 2 or self._awaits_step
        is_measured = self._measure_by_kernel(grad)
        is_readable = is_measured or has_numbers(grad)
        if self.sizes is not None and is_readable:
            if not is_measured:
                self.sizes.add(grad)
            if not self.sizes.is_finite:
                self._note_broken(grad)
        if self.entries.is_complete and not is_followed:
            return
        if not is_readable:  # nobody can say that it was 0
            self.entries.drop()
            self.last_was_nonzero = None
            return
        if not is_measured:
            self.entries.add(grad)
        self.last_was_nonzero = is_nonzero(grad) if is_followed else None
        if self.last_was_nonzero is False:
            self.has_hooks = bool(hooks_of(self.tensor()))

    def can_be_measured_on_device(self, grad: Tensor) -> bool:
        """May the gradient be measured on its device, together with those of other leaves?"""
        is_usual = type(grad) is Tensor and grad.layout is torch.strided and grad.is_floating_point()
        return is_usual and not grad.is_cpu and not self._awaits_step and has_numbers(grad)

    def _note_broken(self, grad: Tensor) -> None:
        """Note the leaf as broken if an entry of the gradient is not finite. The norm does not tell: large entries overflow, too."""
        grad = local(grad)
        if not bool((grad._values() if grad.is_sparse else grad).isfinite().all()):
            self.broken[self] = None

    def _measure_by_kernel(self, grad: Tensor) -> bool:
        """Note the norm, and which entries had a gradient, in one pass over memory; False if no kernel can."""
        sizes, entries = self.sizes, self.entries
        if not can_square(grad) or is_wrapped(grad) or is_batched(grad):
            return False
        had_gradient = None if entries.is_complete else entries.bytes_of(grad)
        if had_gradient is None and not entries.is_complete:
            return False
        missing = 0
        if sizes is not None:
            missing = sizes.add_by_kernel(grad, had_gradient)
        elif had_gradient is not None:
            missing = Squares().add(grad, had_gradient)
        if missing >= 0 and had_gradient is not None:
            entries.note_look(missing)
        return missing >= 0

    def add_to_whole(self, grad: Tensor | None) -> None:
        """Note a gradient of the whole parameter, of which this leaf is a shard."""
        if grad is None:
            return
        self.gradients += 1
        if not has_numbers(grad):  # nobody can say that it was 0
            self.whole_had_gradient.add(True)
            return
        if grad.is_cpu:  # a device is not waited for
            self._note_broken(grad)
        self.whole_had_gradient.add_nonzero(grad)

    def look_at_grad(self) -> bool:
        """Look at `.grad` after a backward, unless an optimiser will. Returns whether later backwards have to look again."""
        if self.is_in_optimizer and (self.entries.is_complete or not self.has_whole):
            return False
        tensor = self.tensor()
        grad = None if tensor is None else tensor.grad
        if grad is not None and has_numbers(grad):
            if self.has_whole:  # FSDP2 has summed it and handed it out
                self.entries.add(grad)
            self.grad_was_nonzero.add_nonzero(grad)
        is_known = self.grad_was_nonzero.is_certain and (self.entries.is_complete or not self.has_whole)
        return tensor is not None and not is_known

    @property
    def had_gradient(self) -> bool:
        """Did a gradient other than 0 arrive, whatever became of it?"""
        return bool(self.whole_had_gradient) or self.entries.had_gradient

    @property
    def is_taken_away(self) -> bool:
        """Did a gradient arrive, and was it 0 or gone at each step of an optimiser, or in `.grad` if no optimiser has the leaf?"""
        # Without a gradient of its own, a shard misses nothing: the other shards may have got all of it.
        if self.step_saw_gradient or not self.entries.had_gradient:
            return False
        if self.is_in_optimizer:
            return bool(self.step_missed_gradient)
        return self.grad_was_nonzero.has_flags and not self.grad_was_nonzero

    @property
    def starves(self) -> bool:
        """Did it get no gradient, or only zeros, or a gradient that was gone when a step should have used it?"""
        return not self.step_saw_gradient and (not self.had_gradient or self.is_taken_away)


def has_numbers(grad: Tensor) -> bool:
    """Can its numbers be read? No if it is nested, under a transform, on the device "meta", or if FSDP has freed its memory."""
    if is_wrapped(grad) or is_batched(grad) or is_opaque(grad) or grad.is_meta or is_nested(grad):
        return False
    return grad.layout is not torch.strided or not grad.numel() or bool(local(grad).untyped_storage().size())


def is_nonzero(grad: Tensor) -> Flag:
    """Does any entry differ from 0? The answer of a device is a tensor, which is not waited for."""
    grad = local(grad)
    values = grad._values() if grad.is_sparse else grad
    return bool(torch.count_nonzero(values)) if values.is_cpu else values.any()


# --- gradients that are read when the backward has ended --------------------------------------------------------------


class Arrivals:
    """The leaves whose gradient is read from `.grad` at the end of the running backward, which costs less than a hook for each leaf.

    This is exact if `.grad` was None before and no Python code runs in the backward. Before such code calls torch, the listener calls
    `hand_over`: the gradients that have arrived are counted, and the other leaves get hooks.
    """

    def __init__(self, add_on_device: Callable[[torch.device, list[tuple[Leaf, Tensor]]], None]) -> None:
        self.expected: dict[Leaf, GraphNode] = {}  # each leaf with the node that adds to its gradient
        self._add_on_device = add_on_device

    def expect(self, leaf: Leaf, node: GraphNode) -> bool:
        """Expect the gradient of a leaf. Returns False if the leaf needs a hook: its first gradient needs one, to note the order."""
        tensor = node.variable
        if not leaf.gradients or leaf in self.expected or leaf.tensor() is not tensor:
            return False
        if type(tensor) is not nn.Parameter or tensor.grad is not None or is_recorded(tensor):
            return False
        if hooks_after_accumulation(tensor):
            return False
        self.expected[leaf] = node
        return True

    def count_before(self, leaf: Leaf) -> None:
        """A node with a hook is about to add to the gradient of this leaf: count what `.grad` holds already."""
        if self.expected.pop(leaf, None):
            self._count([leaf])

    def hand_over(self, attach: Callable[[GraphNode, Leaf], None]) -> None:
        """Code of the program runs: attach hooks to the leaves that wait. A node that runs now calls no new hook: its leaf stays."""
        nodes = self.end()
        running = current_node()
        for leaf, node in nodes.items():
            if getattr(leaf.tensor(), "grad", None) is None:
                attach(node, leaf)
                if node is running:
                    self.expected[leaf] = node

    def end(self) -> dict[Leaf, GraphNode]:
        """Count the gradients that have come. Returns the leaves that were expected."""
        nodes, self.expected = self.expected, {}
        self._count(nodes)
        return nodes

    def _count(self, leaves: Iterable[Leaf]) -> None:
        on_devices: dict[torch.device, list[tuple[Leaf, Tensor]]] = {}
        for leaf in leaves:
            grad = getattr(leaf.tensor(), "grad", None)
            if grad is None:
                continue
            if leaf.can_be_measured_on_device(grad):
                on_devices.setdefault(grad.device, []).append((leaf, grad))
            else:
                leaf.add(grad)
        for device, pairs in on_devices.items():
            self._add_on_device(device, pairs)


def read_together(numbers: Mapping[Key, Tensor]) -> list[tuple[Key, float]]:
    """Read these numbers, at once from each device. Those of a device on which a CUDA graph is being captured are left out."""
    by_device: dict[torch.device, dict[Key, Tensor]] = {}
    for key, number in numbers.items():
        if not is_recorded(number):
            by_device.setdefault(number.device, {})[key] = number
    read: list[tuple[Key, float]] = []
    for part in by_device.values():
        read += zip(part, torch.stack([*part.values()]).tolist(), strict=True)
    return read


def is_recorded(tensor: Tensor) -> bool:
    """Is a CUDA graph being captured on its device, so that no value can be read?"""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


def nobody_else_runs() -> bool:
    """Does no other thread run, and nothing in C++ that changes gradients, as DistributedDataParallel does?"""
    return threading.active_count() == 1 and not (_HAS_DISTRIBUTED and torch.distributed.is_initialized())
