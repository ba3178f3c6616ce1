"""What is heard of a program on a route: all outside of blocks; of a block what leaves it, and the gradient that arrives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from pseudograd.listen import frames
from pseudograd.listen.harmless import harmless
from pseudograd.listen.quietly import quietly, unheard
from pseudograd.torch_table.private import is_fake

from ..following import ATTACHED, Heard
from ..recording import BACKWARD, FORWARD

_DEEP = 5


class BlockHeard(Heard):
    """Blocks and segments besides. A node that no line is known of is none that both routes have."""

    def _follow(self, new: Iterable[object], place: frames.Place) -> None:
        if place is not frames.NOWHERE:
            super()._follow(new, place)

    def on_backward(self, roots: Any, grads: object, inputs: object) -> Any:
        """A compiler's own backward, of tensors without values, is none of the program's."""
        return None if any(map(is_fake, roots)) else super().on_backward(roots, grads, inputs)

    def number_of_next(self) -> int:
        if self._ranges.may_hide_some():
            self._ranges.unseen_behind(())  # what was made before the block stays to be found
        return self._ranges.seen_up_to

    @harmless("a compiled block")
    def end_block(self, name: str, before: int, result: object) -> None:
        """A block was called and returned this."""
        with quietly():
            tensors = list(_tensors_in(result))
            new: list[Any] = self._ranges.since(before, tensors)  # torch's types take `metadata` for a method
            for node in new:
                node.metadata[ATTACHED] = True
            if self.is_on:
                place = self._places.here(4)
                self._add(self._site(FORWARD, f"{name}, all of it", place), tensors)
                self._await(tensors, self._site(BACKWARD, f"{name}, all of it", place), arrived=True)

    @harmless("a segment of a graph")
    def passed(self, site: tuple[str, ...], taken: Sequence[object], result: object) -> None:
        """A segment was called with `taken` and returned `result`. site: its op, its line, the program's line, the expression."""
        if not self.is_on:
            return
        with quietly():
            forward, backward = (self.sites.setdefault((kind, *site), len(self.sites)) for kind in (FORWARD, BACKWARD))
            tensors = list(_tensors_in(result))
            self._add(forward, tensors)
            self._await(tensors, backward, arrived=True)
            self._await(taken, backward, arrived=False)

    def _await(self, values: Iterable[object], site: int, *, arrived: bool) -> None:
        """The gradient of each: what arrives at its maker, or what leaves towards it."""
        for value in values:
            if isinstance(value, Tensor) and value.requires_grad and value.grad_fn is not None:
                value.register_hook(partial(self._came, site, arrived))

    @harmless("the gradient of a block")
    def _came(self, site: int, arrived: bool, grad: object) -> None:
        if self.is_on and not unheard.depth:
            with quietly():
                self._add(site, () if arrived else (grad,), "", (grad,) if arrived else ())


def _tensors_in(value: object, deep: int = 0) -> Iterable[Tensor]:
    """Of what a module may return: containers, and records such as those of transformers."""
    if isinstance(value, Tensor):
        yield value
    elif deep < _DEEP:
        inner: Iterable[object] = ()
        if isinstance(value, Mapping):
            inner = value.values()
        elif isinstance(value, (tuple, list)):
            inner = value
        elif hasattr(value, "__dataclass_fields__"):
            inner = vars(value).values()
        for item in inner:
            yield from _tensors_in(item, deep + 1)
