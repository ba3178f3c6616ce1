"""convert: exchange activation modules of a model for modules with another backward rule, and back."""

from __future__ import annotations

import fnmatch
import itertools
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from .. import notebook
from ..errors import must
from ..rule import RuleLike, RuleObject
from ..torch_table.forms import MODULES
from ..torch_table.private import children_of
from ..wording import counted
from .with_rule import kind_of, module_with_rule, names_of, primitive_for

Value = RuleLike | nn.Module | Callable[[nn.Module], nn.Module]


class _Exchange:
    """A module of a model, with its path, its parent and its name there; and the module that `convert` puts in its place."""

    new: nn.Module
    was_training: bool

    def __init__(self, path: str, parent: nn.Module, name: str, old: nn.Module) -> None:
        self.path, self.parent, self.name, self.old = path, parent, name, old

    def make(self, new: nn.Module) -> None:
        self.new, self.was_training = new, new.training
        setattr(self.parent, self.name, new)

    def take_back(self) -> None:
        """Put the old module back, unless the program has put another module there.

        A module that `module_with_rule` made shares the tables of hooks and parameters with the old one. Its other attributes, as they are
        now, go back to the old one.
        """
        old, new = self.old, self.new
        if children_of(self.parent).get(self.name) is not new:
            return
        if new.training is not self.was_training:
            old.train(new.training)
        shares_tables = new is not old and children_of(new) is children_of(old)
        if shares_tables:
            for name in old.__dict__.keys() - new.__dict__.keys():
                del old.__dict__[name]
            old.__dict__.update({name: value for name, value in new.__dict__.items() if name != "rewritten"})
        setattr(self.parent, self.name, old)

    def __repr__(self) -> str:
        before, after = kind_of(self.old).__name__, kind_of(self.new).__name__
        return f"{self.path} ({before})" if before == after else f"{self.path} ({before} to {after})"


_SHOWN = 6  # names in the repr of a conversion
_NO_PLACE = "The model itself has no place; put it into a torch.nn.Sequential"
_serial_numbers = itertools.count()
_not_undone: weakref.WeakSet[Conversion] = weakref.WeakSet()


class Conversion:
    """What `convert` did. `paths` names the exchanged modules. `undo()` puts the old modules back; so does leaving it as a context.

    Conversions of one model may be undone in any order: each takes back its own exchange, and the last one brings back the first modules.
    A module that the program itself has put in the place since then stays.
    """

    def __init__(self, exchanges: list[_Exchange]) -> None:
        self.paths = tuple(exchange.path for exchange in exchanges)
        self._exchanges = exchanges
        self._shown = [repr(exchange) for exchange in exchanges]
        self._serial_number = next(_serial_numbers)
        _not_undone.add(self)

    def undo(self) -> None:
        """Put the modules back that were there. Once: later calls do nothing."""
        later = sorted(
            (c for c in _not_undone if c._serial_number > self._serial_number), key=lambda c: c._serial_number
        )
        next_exchanges: dict[tuple[nn.Module, str], _Exchange] = {}  # by the parent and the name there
        for conversion in later:
            for other in conversion._exchanges:
                next_exchanges.setdefault((other.parent, other.name), other)
        for exchange in self._exchanges:
            next_exchange = next_exchanges.get((exchange.parent, exchange.name))
            if next_exchange is None:
                exchange.take_back()
            elif next_exchange.old is exchange.new:
                next_exchange.old = exchange.old  # the later conversion puts this module back when it is undone
        self._exchanges = []
        _not_undone.discard(self)

    def __enter__(self) -> Conversion:
        if self not in _not_undone:
            raise RuntimeError(
                "convert: the conversion must stand when its context is entered, got one that was undone. Call convert again."
            )
        return self

    def __exit__(self, *exception: object) -> None:
        self.undo()

    def _count_text(self) -> str:
        return counted(len(self.paths), "module") + ("" if self in _not_undone else ", undone")

    def _repr_html_(self) -> str:
        """One line for each module."""
        return notebook.to_html("\n".join([f"Conversion: {self._count_text()}", *self._shown]))

    def __repr__(self) -> str:
        rest = len(self.paths) - _SHOWN
        names = [*self._shown[:_SHOWN], *([f"and {rest} more"] if rest > 0 else [])]
        return f"Conversion({self._count_text()}: {', '.join(names)})"


def convert(model: nn.Module, mapping: RuleLike | Mapping[Any, Value]) -> Conversion:
    """Exchange modules of `model` for ones with another backward rule.

    Forward:  each exchanged activation, such as nn.ReLU, nn.Hardtanh or nn.GELU, computes what it did, bit for bit.
    Backward: that of the public op with the rule and its default edge. A module saves its input. nn.GELU and nn.SiLU save 2 or 3 bits of
        each element under a rule of few bits, nn.LeakyReLU and nn.Hardsigmoid save one bit. Where torch has no place for a rule (forward
        mode for a rule that reads grad, sparse tensors, torch.jit.trace) the module keeps torch's own gradient and warns.

    Args:
        model: changed in place. Names, state_dict, hooks and training mode stay; a module that is used twice is exchanged once.
        mapping: a rule's name or a rule object, for every activation above that has the rule; or a dictionary from a class, the path of a
            module, or a pattern such as "encoder.*", to a rule (a pattern means the activations that have it), another module, or a
            function from the old module to the new one, such as `lambda old: pg.nn.ReLU(edge="closed")`. If several keys match, the last
            one counts.
    Returns: a Conversion: `paths` of what was exchanged, `undo()`; usable as a context. Several can be undone in any order.
    Raises: ValueError if a key matches nothing or a rule is unknown; TypeError if a module takes no rule or a value is none of these.
    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
        >>> convert(model, "sign")
        Conversion(1 module: 1 (ReLU))
        >>> model[1]
        ReLU(rule=sign/open)
    Source: new in pseudograd; module surgery is how captum and lucent override ReLU.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(must("convert", "model", "be a torch.nn.Module", model))
    sites = list(_find_sites(model))
    chosen: dict[str, Any] = {}
    for key, value in _choices(model, sites, mapping).items():
        paths = _paths_of(key, value, sites)
        if not paths:
            remedy = _NO_PLACE if kind_of(model) is key else None
            raise ValueError(
                must("convert", "each key", "match a module of the model", getattr(key, "__name__", key), remedy)
            )
        chosen.update(dict.fromkeys(paths, value))
    exchanges = [site for site in sites if site.path in chosen]
    modules: dict[int, nn.Module] = {}
    for site in exchanges:  # all of them before the first exchange: an error changes nothing
        if id(site.old) not in modules:
            modules[id(site.old)] = _make_module(site.old, site.path, chosen[site.path])
    for site in exchanges:
        site.make(modules[id(site.old)])
    return Conversion(exchanges)


def _find_sites(model: nn.Module) -> Iterator[_Exchange]:
    """Every place in the model that holds a module. A shared module has several places, perhaps in the same parent."""
    for path, parent in model.named_modules():
        for name, child in children_of(parent).items():
            if child is not None:
                yield _Exchange(f"{path}.{name}" if path else name, parent, name, child)


def _choices(model: nn.Module, sites: list[_Exchange], mapping: object) -> Mapping[Any, object]:
    if isinstance(mapping, Mapping):
        return mapping
    if not isinstance(mapping, (str, RuleObject)):
        raise TypeError(must("convert", "mapping", "be a rule, or a dictionary from modules to rules", mapping))
    kinds_in_model = {kind_of(site.old) for site in sites}
    activations = {kind: mapping for kind in MODULES if kind in kinds_in_model}
    takers = {kind: rule for kind, rule in activations.items() if primitive_for(kind, rule) is not None}
    if takers:
        return takers
    if not activations:
        remedy = "Name its modules in a dictionary, or use override around the calls"
        remedy = _NO_PLACE if kind_of(model) in MODULES else remedy
        if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
            remedy = "TorchScript has no place for a rule: convert, and then use, the model that is not scripted"
        raise ValueError(must("convert", "model", f"hold one of {names_of()}", type(model).__name__, remedy))
    return activations  # none takes the rule: making the first module raises the error


def _paths_of(key: object, value: object, sites: list[_Exchange]) -> list[str]:
    """The paths that a key matches. If a pattern has a rule, only those of activations that have this rule, if there are any."""
    matches = [site for site in sites if _matches(key, site.path, site.old)]
    takers = []
    if isinstance(value, (str, RuleObject)) and isinstance(key, str) and all(site.path != key for site in matches):
        kinds = [(site, kind_of(site.old)) for site in matches]
        takers = [site for site, kind in kinds if kind in MODULES and primitive_for(kind, value) is not None]
    return [site.path for site in takers or matches]


def _matches(key: object, path: str, module: nn.Module) -> bool:
    if isinstance(key, str):
        return fnmatch.fnmatchcase(path, key)
    return key in (kind_of(module), type(module))


def _make_module(old: nn.Module, path: str, value: Value) -> nn.Module:
    if isinstance(value, nn.Module):
        return value
    if isinstance(value, (str, RuleObject)):
        if kind_of(old) in MODULES:
            return module_with_rule(old, value)
        remedy = "Give a module or a function instead, or use override around the calls"
        kinds = f"be one of {names_of()} to take a rule"
        raise TypeError(must("convert", f"{path!r}", kinds, type(old).__name__, remedy))
    if isinstance(value, type) or not callable(value):
        remedy = f"Make a module of the class: {value.__name__}()" if isinstance(value, type) else None
        raise TypeError(must("convert", f"the value for {path!r}", "be a rule, a module or a function", value, remedy))
    new = value(old)
    if not isinstance(new, nn.Module):
        raise TypeError(must("convert", f"the function for {path!r}", "return a module", new))
    return new
