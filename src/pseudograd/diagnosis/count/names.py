"""The names of parameters: their path in the model that the user gave, or in the outermost module of the program that has them."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterable
from typing import Any

from torch import nn

from ...listen.frames import is_of_a_package, is_users, next_program_frame
from ...torch_table.private import WRAPPED_MODULES, children_of, modules_in


class Owner:
    """A module whose parameters are named by their path in it. The module itself is not kept alive."""

    def __init__(self, module: nn.Module, is_given: bool) -> None:
        self.module = weakref.ref(module)
        self.kind = type(module).__name__
        self.is_given = is_given
        self.variable = ""  # its name in the program, if it is known


class Names:
    """The names of leaves. Names are made when somebody reads them, because the outer module may turn up late."""

    def __init__(self) -> None:
        self._entries: dict[object, tuple[Owner, str]] = {}
        self._owners: list[Owner] = []
        self._chained: dict[object, set[int]] = {}
        self._labels: dict[Owner, str] | None = None  # until another name is noted

    def note(self, leaf: object, module: nn.Module, path: str, is_given: bool = False) -> None:
        """Note a module that has this leaf. The given model wins; else the longest path, which is that in the outermost module."""
        known = self._entries.get(leaf)
        if known is None or (not known[0].is_given and (is_given or path.endswith(f".{known[1]}"))):
            owner = next((owner for owner in self._owners if owner.module() is module), None)
            if owner is None:
                self._owners.append(owner := Owner(module, is_given))
            self._entries[leaf] = owner, path
            self._labels = None

    def name_of(self, leaf: object) -> str | None:
        owner, path = self._entries.get(leaf, (None, ""))
        if owner is None:
            return None
        labels = self._labelled()
        return path if owner.is_given or owner is next(iter(labels)) else f"{labels[owner]}.{path}"

    def path_of(self, leaf: object) -> str:
        """Its path in the module of `owner_of`."""
        return self._entries[leaf][1]

    def owner_of(self, leaf: object) -> Owner | None:
        return self._entries.get(leaf, (None, ""))[0]

    def chained(self, leaf: object) -> set[int]:
        """The positions in its path, from the end, of layers of a Sequential, which run one after another."""
        self.note_chains()
        return self._chained.get(leaf, set())

    def note_chains(self) -> None:
        """Note which parts of the paths are layers of a Sequential, as long as the modules are alive."""
        for leaf, (owner, path) in self._entries.items():
            module: object = owner.module()
            parts = path.split(".")
            for position, part in enumerate(parts[:-1], -len(parts)):
                if isinstance(module, nn.Sequential):
                    self._chained.setdefault(leaf, set()).add(position)
                module = children_of(module).get(part) if isinstance(module, nn.Module) else None

    def name_by_globals(self, depth: int) -> dict[int, Owner]:
        """Name the owners that are global variables of the program, as seen from the frame `depth` above. Global variables need no search.

        Returns the owners that have no name yet, by the ids of their modules.
        """
        modules = [(owner.module(), owner) for owner in self._owners if not owner.variable]
        unnamed = {id(module): owner for module, owner in modules if module is not None}
        frame = next_program_frame(sys._getframe(depth)) if unnamed else None
        for name, value in frame.f_globals.copy().items() if frame is not None else ():
            if id(value) in unnamed:
                unnamed.pop(id(value)).variable = name
        return unnamed

    def label(self, owner: Owner) -> str:
        """The class of a module, with a number where several modules of that class have parameters."""
        return self._labelled()[owner]

    def _labelled(self) -> dict[Owner, str]:
        """The given model first, then the modules in the order in which they were met."""
        if self._labels is None:
            used = {owner for owner, _ in self._entries.values()}
            counts: dict[str, int] = {}
            self._labels = {}
            for owner in sorted(filter(used.__contains__, self._owners), key=lambda owner: not owner.is_given):
                number = counts[owner.kind] = counts.get(owner.kind, 0) + 1
                self._labels[owner] = owner.kind if number == 1 else f"{owner.kind}({number})"
        return self._labels


def unwrapped(module: nn.Module) -> nn.Module:
    """The module inside DistributedDataParallel, torch.compile and their like."""
    while is_wrapper(module):
        (module,) = children_of(module).values()
    return module


def is_wrapper(module: nn.Module) -> bool:
    """Is it a module of torch or a package, around one module and with nothing of its own?"""
    children = children_of(module)
    if len(children) != 1 or next(iter(children)) not in WRAPPED_MODULES or next(iter(children.values())) is None:
        return False
    file = getattr(sys.modules.get(type(module).__module__), "__file__", None) or ""
    return not getattr(module, "_parameters", None) and bool(file) and (is_of_a_package(file) or not is_users(file))


def tops_of(tensors: Iterable[object]) -> list[nn.Module]:
    """The outermost modules that have these parameters, among all that are alive.

    A module knows neither the module around it nor other modules with its parameters, so this looks at all modules.
    """
    wanted = {id(tensor) for tensor in tensors}
    parents: dict[int, list[nn.Module]] = {}
    modules: list[nn.Module] = []
    for module in instances_of(nn.Module):
        if not is_wrapper(module):
            for child in children_of(module).values():
                parents.setdefault(id(child), []).append(module)
        if any(id(parameter) in wanted for parameter in (module.__dict__.get("_parameters") or {}).values()):
            modules.append(module)
    return list({id(top): top for top in (_top_of(module, parents) for module in modules)}.values())


def instances_of(*kinds: type) -> list[Any]:
    """All objects of these classes that are alive. It reads all objects of Python, which may be millions, in C."""
    met, queue = set(kinds), list(kinds)
    for kind in queue:
        new: set[type] = set(type.__subclasses__(kind)) - met
        met |= new
        queue += new
    # Not `gc.get_objects`: while we hold a tuple that another thread is making, Python raises a SystemError there.
    return [instance for instance in gc.get_referrers(*met) if type(instance) in met]


def _top_of(module: nn.Module, parents: dict[int, list[nn.Module]]) -> nn.Module:
    """The outermost module that has this module; the largest, if there are several."""
    tops, stack, met = [], [unwrapped(module)], {id(module)}
    while stack:
        inner = stack.pop()
        around = parents.get(id(inner), ())
        if not around:
            tops.append(inner)
        stack += [other for other in around if id(other) not in met]
        met.update(id(other) for other in around)
    return max(tops, key=lambda top: len(modules_in(top))) if tops else module
