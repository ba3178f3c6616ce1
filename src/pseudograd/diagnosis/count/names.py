"""What a parameter is called: by the model that was given, or by the outermost module of the program that holds it."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterable
from itertools import compress
from typing import Any

from torch import nn

from ...listen.frames import is_of_a_package, is_users
from ...torch_table.private import WRAPPED_MODULES, children_of


class Owner:
    """A module whose parameters are called by their path in it. The module itself is not kept alive."""

    def __init__(self, module: nn.Module, is_given: bool) -> None:
        self.module = weakref.ref(module)
        self.kind = type(module).__name__
        self.is_given = is_given


class Names:
    """Of leaves. They are put together when somebody reads them: the module around a module may show up until then."""

    def __init__(self) -> None:
        self._of: dict[Any, tuple[Owner, str]] = {}
        self._owners: list[Owner] = []
        self._labels: dict[Owner, str] | None = None  # until another name is told

    def note(self, leaf: object, module: nn.Module, path: str, is_given: bool = False) -> None:
        """The model that was given keeps what it names; else the longest way to the parameter does, from the module furthest out."""
        known = self._of.get(leaf)
        if known is None or (not known[0].is_given and (is_given or path.endswith(f".{known[1]}"))):
            self._of[leaf] = self._owner(module, is_given), path
            self._labels = None

    def _owner(self, module: nn.Module, is_given: bool) -> Owner:
        for owner in self._owners:
            if owner.module() is module:
                return owner
        self._owners.append(Owner(module, is_given))
        return self._owners[-1]

    def name_of(self, leaf: object) -> str | None:
        entry = self._of.get(leaf)
        if entry is None:
            return None
        owner, path = entry
        is_first = owner is next(iter(self._labelled()))
        return path if owner.is_given or is_first else f"{self.label(owner)}.{path}"

    def owner_of(self, leaf: object) -> Owner | None:
        entry = self._of.get(leaf)
        return None if entry is None else entry[0]

    def label(self, owner: Owner) -> str:
        """A module beside others: by its class, with a number where several are of one."""
        return self._labelled()[owner]

    def _labelled(self) -> dict[Owner, str]:
        """Of those whose names are used, the given one first, then in the order in which they were met."""
        if self._labels is None:
            used = {owner for owner, _ in self._of.values()}
            met: dict[str, int] = {}
            self._labels = {}
            for owner in sorted(filter(used.__contains__, self._owners), key=lambda owner: not owner.is_given):
                number = met[owner.kind] = met.get(owner.kind, 0) + 1
                self._labels[owner] = owner.kind if number == 1 else f"{owner.kind}({number})"
        return self._labels


def unwrapped(module: nn.Module) -> nn.Module:
    """Below DistributedDataParallel, torch.compile and their like."""
    while is_wrapper(module):
        (module,) = children_of(module).values()
    return module


def is_wrapper(module: nn.Module) -> bool:
    """Of torch or a package, around one module and with nothing of its own."""
    children = children_of(module)
    if len(children) != 1 or next(iter(children)) not in WRAPPED_MODULES or next(iter(children.values())) is None:
        return False
    file = getattr(sys.modules.get(type(module).__module__), "__file__", None) or ""
    return not getattr(module, "_parameters", None) and bool(file) and (is_of_a_package(file) or not is_users(file))


def tops_of(tensors: Iterable[object]) -> list[nn.Module]:
    """The outermost modules that hold these parameters, of all that are alive: torch keeps no way from a parameter to its module, nor
    from a module to the one around it. It passes over all objects of Python, so it is for reports.
    """
    wanted = {id(tensor) for tensor in tensors}
    kinds = _kinds(nn.Module, set())
    parents: dict[int, list[nn.Module]] = {}
    holders: list[nn.Module] = []
    objects = gc.get_objects()
    for module in compress(objects, map(kinds.__contains__, map(type, objects))):  # all in C: there may be millions
        children, own = children_of(module), module.__dict__.get("_parameters") or {}
        if not is_wrapper(module):
            for child in children.values():
                parents.setdefault(id(child), []).append(module)
        if any(id(parameter) in wanted for parameter in own.values()):
            holders.append(module)
    return list({id(top): top for top in (_top_of(holder, parents) for holder in holders)}.values())


def _kinds(base: type, kinds: set[type]) -> set[type]:
    """Every class of modules."""
    if base not in kinds:
        kinds.add(base)
        below: list[type] = type.__subclasses__(base)
        for kind in below:
            _kinds(kind, kinds)
    return kinds


def _top_of(module: nn.Module, parents: dict[int, list[nn.Module]]) -> nn.Module:
    """Where several hold it, the largest."""
    tops, stack, met = [], [unwrapped(module)], {id(module)}
    while stack:
        inner = stack.pop()
        around = parents.get(id(inner), ())
        if not around:
            tops.append(inner)
        stack += [other for other in around if id(other) not in met]
        met.update(id(other) for other in around)
    return max(tops, key=lambda top: sum(1 for _ in top.modules())) if tops else module
