"""Parameters that get a gradient and that no optimiser holds: do they move, which container holds them, what are their names?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from torch import Tensor, nn
from torch.optim import Optimizer

from ...listen.variables import names_in_program
from ...torch_table.private import modules_in, parameters_in
from .leaf import EverTrue, Leaf, has_numbers
from .names import Owner, instances_of
from .norms import sample, view_of_sample

_OF_TORCH = frozenset(vars(nn.Module()))  # the attributes that torch itself gives a module
_MOST_ITEMS = 1000  # a larger container is not looked into


class Container(NamedTuple):
    """A list, tuple or dictionary in which a module keeps layers or parameters, so that its `parameters()` does not give them."""

    owner: type[nn.Module]
    attribute: str
    kind: str
    holds_modules: bool


class Unheld:
    """Facts about parameters that no optimiser holds, collected from time to time while their modules and variables are alive."""

    def __init__(self) -> None:
        self.containers: dict[Leaf, Container] = {}
        self.variables: dict[int, str] = {}  # by the id of a net or optimiser: its name in the program
        # nets that hold all their parameters themselves, such as the module of a loss
        self.without_layers: set[Owner] = set()
        # The path to a leaf, outermost module first: the class of each module, and its attribute. Only the keys of the inner dict count.
        self.attributes: dict[Leaf, dict[tuple[type[nn.Module], str], None]] = {}
        self._first_values: dict[Leaf, Tensor] = {}  # a sample of the values when the parameter was met
        self._changed: dict[Leaf, EverTrue] = {}
        self._held: set[Leaf] = set()  # leaves of an optimiser that took no step during the diagnosis
        self._searched: set[Leaf] = set()

    def look(self, leaves: Iterable[Leaf]) -> None:
        """Note the first values of the parameters, and later whether they have changed. Does not wait for a device."""
        for leaf in leaves:
            tensor, first = leaf.tensor(), self._first_values.get(leaf)
            changed = self._changed.setdefault(leaf, EverTrue())
            if tensor is None or changed.is_certain or not has_numbers(tensor):
                continue
            values = view_of_sample(tensor)
            if first is None:
                self._first_values[leaf] = sample(tensor)
            elif first.shape != values.shape or first.dtype != values.dtype or first.device != values.device:
                changed.add(True)
            else:
                differs = (values != first).any()
                changed.add(bool(differs) if differs.is_cpu else differs)

    def is_left_out(self, leaf: Leaf) -> bool:
        """Had it the same values at every look, and is it in no optimiser, not even in one that took no step?"""
        return leaf in self._first_values and leaf not in self._held and not self._changed[leaf]

    def search(self, leaves: list[Leaf], stepped: set[int], owner_of: Callable[[Leaf], Owner | None]) -> None:
        """Search all objects of Python for those that hold these parameters. It is slow, so each parameter is searched only once.

        stepped: the ids of the optimisers that took a step during the diagnosis.
        """
        wanted = {id(tensor): leaf for leaf in leaves if (tensor := leaf.tensor()) is not None}
        if self._searched.issuperset(wanted.values()):
            return
        self._searched.update(wanted.values())
        for module in instances_of(nn.Module):
            self._look_into(module, wanted)
        for optimizer in instances_of(Optimizer):
            if id(optimizer) in stepped:
                continue
            groups = optimizer.__dict__.get("param_groups") or ()
            self._held.update(wanted[id(part)] for group in groups for part in group["params"] if id(part) in wanted)
        self._note_names_and_paths(wanted, stepped, owner_of)

    def _look_into(self, module: nn.Module, wanted: Mapping[int, Leaf]) -> None:
        for name, value in list(module.__dict__.items()):
            if name in _OF_TORCH or type(value) not in (list, tuple, dict) or not 1 < len(value) <= _MOST_ITEMS:
                continue  # a list with one item is skipped, because people use it to hide a layer on purpose
            for item in _items(value):
                parts = [part for _, part in parameters_in(item)] if isinstance(item, nn.Module) else [item]
                container = Container(type(module), name, type(value).__name__, isinstance(item, nn.Module))
                for part in parts:
                    if id(part) in wanted:
                        self.containers[wanted[id(part)]] = container

    def _note_names_and_paths(
        self, wanted: Mapping[int, Leaf], stepped: set[int], owner_of: Callable[[Leaf], Owner | None]
    ) -> None:
        """Note what the program calls the nets of these leaves and the optimisers, the paths to the leaves, and the nets without layers."""
        owners = {owner for leaf in wanted.values() if (owner := owner_of(leaf)) is not None}
        nets = {id(module): owner for owner in owners if (module := owner.module()) is not None}
        names = names_in_program({*nets, *stepped}, depth=4)  # four frames up is the step
        for key in nets.keys() & names.keys():
            nets[key].variable = names[key]
        for owner in nets.values():
            module = owner.module()
            for part in modules_in(module).values() if module is not None else ():
                for name, tensor in parameters_in(part):
                    if id(tensor) in wanted:
                        path = self.attributes.setdefault(wanted[id(tensor)], {})
                        path[type(part), name.partition(".")[0]] = None
            if module is None or type(module).__module__.startswith("torch."):
                continue
            if all("." not in name for name, _ in parameters_in(module)):
                self.without_layers.add(owner)
        self.variables |= names


def _items(value: object, depth: int = 2) -> Iterator[object]:
    """The modules and parameters in a container, and in the containers in it."""
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ():
        if isinstance(item, (nn.Module, Tensor)):
            yield item
        elif depth > 1 and type(item) in (list, tuple, dict):
            yield from _items(item, depth - 1)
