"""The parameters of a program, which of them lie upstream of a node, and whether a gradient ever came to them."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ..torch_private import is_batched, is_fake, is_wrapped, local
from .norms import Sizes

_UNNAMED = 64  # leaves that are no parameters and belong to no module: a program may make new ones in every step


def _nothing() -> None:
    return None


class Leaf:
    """One parameter, or another tensor that a program asks the gradient of. The tensor itself is not kept alive."""

    def __init__(self, name: str, tensor: Tensor, is_named: bool) -> None:
        self.name = name
        self.is_named = is_named  # by a module; the others may be anybody's
        self.shape = tuple(tensor.shape)
        self.tensor: Callable[[], Tensor | None] = weakref.ref(tensor)
        self.gradients = 0
        # Did any gradient differ from 0? A bool, or a tensor of a device that must not be waited for.
        self.moved: Any = False
        self.sizes: Sizes | None = None

    def arrived(self, grad: Tensor | None) -> None:
        """A gradient is about to be added to it; None where the backward of a custom Function gave none."""
        if grad is None:
            return
        self.gradients += 1
        if is_wrapped(grad) or is_batched(grad) or is_fake(grad) or grad.is_meta:
            self.moved = True  # nobody can say that it was 0
            return
        if self.sizes is not None:
            self.sizes.add(grad)
        if self.moved is True:
            return
        grad = local(grad)
        found = (grad._values() if grad.is_sparse else grad).any()
        self.moved = self.moved | (bool(found) if found.device.type == "cpu" else found)

    @property
    def starves(self) -> bool:
        """No gradient, or nothing but zeros."""
        return not bool(self.moved)


class Leaves:
    """All that were met. A set of them is an integer with a bit for each."""

    def __init__(self, key: str, look_for_names: Callable[[], None]) -> None:
        self._look_for_names = look_for_names
        self.all: list[Leaf] = []
        self._bits: dict[int, int] = {}  # by the id of a tensor, which may be used again when it has gone
        self._key = key  # under which a node of autograd remembers what lies upstream of it
        self._unnamed = 0
        self.are_measured = False

    def add_module(self, module: nn.Module, prefix: str = "") -> None:
        for name, parameter in module.named_parameters():
            if parameter.requires_grad and not is_lazy(parameter) and self._known(parameter) is None:
                self._add(f"{prefix}{name}", parameter, is_named=True)

    def _known(self, tensor: Tensor) -> int | None:
        bit = self._bits.get(id(tensor))
        return bit if bit is not None and self.all[bit].tensor() is tensor else None

    def _add(self, name: str, tensor: Tensor, is_named: bool) -> int:
        self._bits[id(tensor)] = len(self.all)
        self.all.append(Leaf(name, tensor, is_named))
        if self.are_measured and isinstance(tensor, nn.Parameter):
            self.all[-1].sizes = Sizes()
        return len(self.all) - 1

    def set_of(self, tensor: Any) -> int:
        """The leaf itself; the empty set for one of too many without a name."""
        bit = self._known(tensor)
        if bit is None:
            self._look_for_names()
            bit = self._known(tensor)
        if bit is None:
            if is_wrapped(tensor) or is_lazy(tensor) or self._unnamed >= _UNNAMED:
                return 0
            self._unnamed += 1
            kind = "parameter" if isinstance(tensor, nn.Parameter) else "leaf"
            bit = self._add(f"{kind} {self._unnamed} of shape {tuple(tensor.shape)}", tensor, is_named=False)
        return 1 << bit

    def upstream(self, node: Any) -> int:
        """Of a node of autograd. Each node is asked once and remembers, as long as it lives."""
        if node is None:
            return 0
        known = node.metadata.get(self._key)
        if known is not None:
            return int(known)
        stack = [(node, False)]
        while stack:
            one, is_ready = stack.pop()
            if self._key in one.metadata:
                continue
            if hasattr(one, "variable"):
                one.metadata[self._key] = self.set_of(one.variable)
                continue
            inputs = [other for other, _ in one.next_functions if other is not None]
            if not is_ready:
                stack.append((one, True))
                stack += [(other, False) for other in inputs if self._key not in other.metadata]
                continue
            found = 0
            for other in inputs:
                found |= other.metadata.get(self._key, 0)
            one.metadata[self._key] = found
        return int(node.metadata[self._key])

    def of_tensor(self, tensor: Tensor) -> int:
        """Upstream of a tensor, itself if it is a leaf."""
        return self.upstream(tensor.grad_fn) if tensor.grad_fn is not None else self.set_of(tensor)

    def one(self, some: int) -> Leaf | None:
        """Of a set with one leaf; None for the empty set."""
        return self.all[some.bit_length() - 1] if some else None

    def let_go(self, tensors: tuple[Any, ...]) -> Callable[[], None]:
        """Keep no weak reference to these until what is returned is called."""
        mine = [(self.all[bit], one) for one in tensors if (bit := self._known(one)) is not None]
        for leaf, _ in mine:
            leaf.tensor = _nothing

        def take_again() -> None:
            for leaf, one in mine:
                leaf.tensor = weakref.ref(one)

        return take_again

    def named(self, some: int) -> list[Leaf]:
        return [leaf for bit, leaf in enumerate(self.all) if some >> bit & 1]
