"""Parameters that get a gradient and that no optimiser steps, and optimisers that step nothing. Each parameter is in one finding only."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import chain, pairwise
from typing import NamedTuple

from ....listen.frames import NO_LINE, Location
from ....wording import counted, shortened
from ...count.leaf import Leaf
from ...count.names import Owner
from ...count.unheld import Container, Unheld
from ...records import Finding
from ...sites import COMPARE
from ..statements import (
    Place,
    find_assignment,
    find_attribute,
    find_making,
    is_made_from_itself,
    name_of_optimiser,
    reads_gradient,
)
from .kind import Evidence, Kind

_MOST_NAMED = 4  # parameters in a line to paste
_MINORITY = 0.25  # of the parameters of a net: if more are left out, they are probably frozen on purpose
_FEWEST_MADE = 3  # backward passes, each with a new parameter
_BY_FORWARD = "they are put into the net here, while it runs, and the optimiser was made without them"
_RUN = ("forward", "training_step")  # the methods that run in each step
_ANOTHER_MODULE = "the optimiser holds those of another module, as of a copy, and the loss does not use that"


def _find(evidence: Evidence) -> Iterator[Finding]:
    unheld = evidence.recorder.optimisers.unheld
    if unheld is None:
        yield from _frozen_optimisers(evidence, None)
        return
    judge = _Judge(evidence, unheld)
    yield from _frozen_optimisers(evidence, judge)
    leaves = [leaf for _, leaf in evidence.leaves if _is_unheld(leaf) and not evidence.deliberate.parameter(leaf.name)]
    made_anew = list(_group_by_line(leaves, evidence))
    for group in made_anew:
        location = group[0].used_at
        # The program itself may move it, as it does with a multiplier.
        if not (location and location.call and is_made_from_itself(location.call)):
            yield _report_anew(group, evidence, judge.optimiser.name)
    reported = set(chain(*made_anew))
    yield from judge.findings([leaf for leaf in leaves if unheld.is_left_out(leaf) and leaf not in reported])


def find_replaced(evidence: Evidence) -> set[str]:
    """The names of parameters that an optimiser holds, and that the net has replaced. A finding of this kind names them."""
    unheld = evidence.recorder.optimisers.unheld
    if unheld is None:
        return set()
    judge = _Judge(evidence, unheld)
    new = [leaf for leaf in judge.left_out if not evidence.deliberate.parameter(leaf.name)]
    return {leaf.name for group in judge.nets(new).values() for leaf in judge.find_replaced(group)}


def _is_unheld(leaf: Leaf) -> bool:
    """Did it get gradients that no optimiser could use, and that the program did not ask for one by one?"""
    if leaf.is_in_optimizer or leaf.is_frozen or leaf.is_requested or not (leaf.is_parameter and leaf.had_gradient):
        return False
    return bool(getattr(leaf.tensor(), "requires_grad", True)) and not leaf.is_taken_away


# --- made anew in each step -------------------------------------------------------------------------------------------


def _group_by_line(leaves: Sequence[Leaf], evidence: Evidence) -> Iterator[list[Leaf]]:
    """The parameters that are made anew in each step, by the line that uses them: a new one in each backward pass."""
    lines: dict[tuple[Location, tuple[int, ...]], list[Leaf]] = {}
    for leaf in leaves:
        if leaf.used_at is not None and leaf.used_at.call is not None:
            lines.setdefault((leaf.used_at, leaf.shape), []).append(leaf)
    by_line: dict[object, list[Leaf]] = {}
    for (location, _), group in lines.items():
        starts = sorted({leaf.since for leaf in group})
        if len(starts) < _FEWEST_MADE or location.call is None or reads_gradient(location.call):
            continue
        ends = {start: after - start for start, after in pairwise([*starts, evidence.backwards])}
        if all(leaf.gradients <= ends[leaf.since] for leaf in group):
            # The copies of a net are one group, whatever lines of its forward use their parameters.
            are_used_again = any(leaf.gradients > 1 for leaf in group)
            by_line.setdefault(tuple(starts) if are_used_again else location, []).extend(group)
    yield from by_line.values()


def _report_anew(group: Sequence[Leaf], evidence: Evidence, optimizer: str) -> Finding:
    location = group[0].used_at
    assert location is not None, "grouped by it"
    assert location.call is not None, "grouped by it"
    place = find_making(location.call)
    passes, name = len({leaf.since for leaf in group}), re.match(r"\w+(?= *[:=])", place.source if place else "")
    shapes = dict.fromkeys(str(leaf.shape) for leaf in group)
    value = name[0] if name else "parameter"
    value = f"[{value}]" if place is None or "Parameter(" in place.source else f"{value}.parameters()"
    most = max(leaf.gradients for leaf in group)
    if most > 1:  # as copies of a model, one for each client
        each = counted(most, "backward pass", "backward passes")
        made = f"made anew {passes:,} times: each got a gradient in up to {each}, and no optimiser holds it"
        cause = f"the steps of {optimizer} move the parameters that it was given, and the loss uses these in their place: they never learn"
        what, after = (value, "this line") if place else ("them", "they were made")
        next_step = f"Make an optimiser over {what} each time, after {after}: {optimizer} holds others{COMPARE}."
    else:
        made = f"in {passes:,} backward passes: a new one in each, which got its gradient then, and which no optimiser holds"
        cause = "it is made where the loss is computed, so that no step changes the one that the next step uses: it never learns"
        next_step = (
            f'{optimizer}.add_param_group({{"params": {value}}})  # after it was made once, before the loop{COMPARE}'
        )
    return KIND.finding(
        *(place or (str(location.call), location.call.expression)),
        f"{counted(len(group), 'parameter')} of shape {shortened(list(shapes), 3)} {made}",
        cause,
        next_step,
        module=location.module if most == 1 else None,
        is_muted=evidence.deliberate.location(location),
    )


# --- left out by the optimisers ---------------------------------------------------------------------------------------


class _MadeOptimiser(NamedTuple):
    """The statement that made an optimiser, and the name of the optimiser in the program."""

    place: Place
    name: str


class _Judge:
    """Finds, for each net, the parameters that were left out by mistake."""

    def __init__(self, evidence: Evidence, unheld: Unheld) -> None:
        self._evidence, self._unheld, self._names = evidence, unheld, evidence.leaves.names
        self._optimisers = evidence.recorder.optimisers.all
        self._stale = [leaf for _, leaf in evidence.leaves if _is_stale(leaf)]
        candidates = [leaf for _, leaf in evidence.leaves if _is_unheld(leaf)]
        self.left_out = [leaf for leaf in candidates if unheld.is_left_out(leaf)]
        # Something else moves these, as a moving average.
        self._moved = [leaf for leaf in candidates if not unheld.is_left_out(leaf)]

    def findings(self, leaves: Sequence[Leaf]) -> Iterator[Finding]:
        contained: dict[Container, list[Leaf]] = {}
        for leaf in leaves:
            if leaf in self._unheld.containers:
                contained.setdefault(self._unheld.containers[leaf], []).append(leaf)
        for container, group in contained.items():
            yield self._report_container(container, group)
        for owner, group in self.nets(leaves).items():
            makings = self._makings(group)
            if None not in makings:
                by_making: dict[Place | None, list[Leaf]] = {}
                for leaf, making in zip(group, makings, strict=True):
                    by_making.setdefault(making, []).append(leaf)
                for making, made in by_making.items():
                    yield self._report(made, _BY_FORWARD, making)
                continue
            cause = self._cause(owner, group)
            if cause:
                # A parameter that is only multiplied by one of the group, which is 0, as in a LoRA, got zeros and belongs to the group.
                others = [leaf for _, leaf in self._evidence.leaves if leaf.zero_factor in group and leaf not in group]
                yield self._report([*(leaf for leaf in others if not leaf.is_in_optimizer), *group], cause)

    def nets(self, leaves: Sequence[Leaf]) -> dict[Owner | None, list[Leaf]]:
        """The parameters by net, without those in a plain list and those of a net that something else moves, such as a moving average.

        The key None holds those of no net, without those whose gradients the program itself reads.
        """
        nets: dict[Owner | None, list[Leaf]] = {}
        moved = {self._names.owner_of(leaf) for leaf in self._moved} - {None}
        for leaf in leaves:
            owner, call = self._names.owner_of(leaf), leaf.used_at and leaf.used_at.call
            if owner in moved or leaf in self._unheld.containers:
                continue
            if owner is not None or not (call and reads_gradient(call)):
                nets.setdefault(owner, []).append(leaf)
        return nets

    def find_replaced(self, group: Sequence[Leaf]) -> list[Leaf]:
        """The parameters that optimisers hold in place of these: alike in shape, in no module that ran, and without a gradient."""
        are_of_a_net = self._names.owner_of(group[0]) is not None
        return [old for old in self._stale if any(_are_alike(old, new, are_of_a_net) for new in group)]

    def _cause(self, owner: Owner | None, group: Sequence[Leaf]) -> str:
        """The mistake that left them out; "" if it may be meant."""
        old = self.find_replaced(group)
        if any(self._names.owner_of(leaf) not in (None, owner) for leaf in old):
            return _ANOTHER_MODULE
        if old:
            return "they were made, or put in the place of others, after the optimiser was made"
        if owner is None:
            return "the optimiser was made without them, and they are in no module"
        others = [leaf for leaf in self._leaves_of(owner) if leaf not in group]
        held = [leaf for leaf in others if leaf.is_in_optimizer]
        held_leaves = set(held)
        if not held:
            is_alone = owner in self._unheld.without_layers and not others
            return "what the loss uses has parameters, too, and the optimiser was made without them" if is_alone else ""
        if any(optimiser.frozen and not held_leaves.isdisjoint(optimiser.leaves) for optimiser in self._optimisers):
            return "they were added after the optimiser was made, and some that it holds are frozen by now"
        if min(leaf.since for leaf in group) > max(leaf.since for leaf in held):
            return "they began to require a gradient, or were added, after the optimiser was made"
        if len(group) <= _MINORITY * (len(group) + len(others)) and not self._come_first(group, held):
            return "the optimiser was made without them, while it holds the rest of the net"
        return ""

    def _makings(self, group: Sequence[Leaf]) -> list[Place | None]:
        """For each parameter, the statement that puts it into the net while the net runs."""
        attributes = [self._unheld.attributes.get(leaf, ()) for leaf in group]
        makings = {attribute: find_attribute(*attribute, *_RUN) for attribute in dict.fromkeys(chain(*attributes))}
        return [next(filter(None, map(makings.get, path)), None) for path in attributes]

    def _come_first(self, group: Sequence[Leaf], held: Sequence[Leaf]) -> bool:
        """Do they get their gradients after all parameters that are held? First layers do, and people freeze these."""
        orders = [[leaf.sizes.order for leaf in leaves if leaf.sizes is not None] for leaves in (group, held)]
        return not all(orders) or min(orders[0]) > max(orders[1])

    def _report(self, group: Sequence[Leaf], cause: str, making: Place | None = None) -> Finding:
        names, old = [leaf.name for leaf in group], [leaf.name for leaf in self.find_replaced(group)]
        instead = f". It holds others, which no backward reached: {shortened(old)}" if old else ""
        (where, expression), optimizer = self.optimiser
        is_making = re.match(rf"{re.escape(optimizer)}\b[^=(]*=", expression)
        next_step = f"{expression}  # once more, after the net is complete{COMPARE}"
        if cause == _ANOTHER_MODULE or not old or not is_making:
            add = self.add_group(group)
            instead_of = "let the loss use the other module" if cause == _ANOTHER_MODULE else "requires_grad_(False)"
            when = "before the loop"
            if any(leaf.since for leaf in group):
                when = f"once, after the line that makes {'it' if len(group) == 1 else 'them'}"
            next_step = f"{add}  # {when}{COMPARE}; or {instead_of}{self.say_net(group[0], add)}"
        if making is not None:
            made_at = f" at {where}" if is_making else ""
            where, expression = making
            net, which = self._net(group[0]), self.say_net(group[0], "model.")
            next_step = f"{net}(x)  # with one batch x, before the optimiser is made{made_at}{COMPARE}{which}"
        return KIND.finding(
            where,
            expression,
            f"{counted(len(group), 'parameter')} got {_gradients(group, self._evidence)}, and no optimiser that stepped holds "
            f"{'it, so it' if len(group) == 1 else 'them, so they'} stayed as before: {shortened(names)}{instead}",
            cause if len(group) > 1 else _singular(cause),
            next_step,
            parameters=tuple(names),
        )

    def add_group(self, group: Sequence[Leaf]) -> str:
        """The call that gives these parameters to the optimiser."""
        name = self.optimiser.name
        return f'{name}.add_param_group({{"params": {self._expression(group, name)}}})'

    @cached_property
    def optimiser(self) -> _MadeOptimiser:
        """The optimiser with the most parameters."""
        largest = max(self._optimisers, key=lambda optimiser: len(optimiser.leaves))
        call = largest.location.call
        if call is None:
            return _MadeOptimiser(Place(NO_LINE, ""), "optimizer")
        name = largest.name or name_of_optimiser(call.expression)
        return _MadeOptimiser(find_assignment(call, name) or Place(str(call), call.expression), name)

    def _expression(self, group: Sequence[Leaf], optimizer: str) -> str:
        """An expression of the program for these parameters."""
        owner = self._names.owner_of(group[0])
        if owner is None:
            return f"[{', '.join(leaf.place or leaf.label or 'parameter' for leaf in group)}]"
        of_net = self._leaves_of(owner)
        group = [leaf for leaf in of_net if leaf in group]
        net, paths = self._net(group[0]), [self._names.path_of(leaf) for leaf in group]
        # An optimiser refuses a parameter that it holds, and it may hold frozen parameters of the net.
        if len(group) == len(of_net) and not any(optimiser.frozen for optimiser in self._optimisers):
            return f"{net}.parameters()"
        if len(group) <= _MOST_NAMED:
            return f"[{', '.join(f'{net}.get_parameter({path!r})' for path in paths)}]"
        is_not_held = f'all(p is not q for g in {optimizer}.param_groups for q in g["params"])'
        return f"[p for p in {net}.parameters() if {is_not_held}]"

    def _leaves_of(self, owner: Owner) -> list[Leaf]:
        return [leaf for _, leaf in self._evidence.leaves if self._names.owner_of(leaf) is owner]

    def _net(self, leaf: Leaf) -> str:
        owner = self._names.owner_of(leaf)
        return (owner.variable if owner is not None else "") or "model"

    def say_net(self, leaf: Leaf, advice: str) -> str:
        """A clause with the class of the net, if the advice calls the net `model` because its name is not known."""
        owner = self._names.owner_of(leaf)
        is_unknown = owner is not None and "model." in advice and not owner.variable
        return f"; model is the {owner.kind}" if owner is not None and is_unknown else ""

    def _report_container(self, container: Container, group: Sequence[Leaf]) -> Finding:
        names, attribute = [leaf.name for leaf in group], f"self.{container.attribute}"
        what = "Module" if container.holds_modules else "Parameter"
        right = f"torch.nn.{what}{'Dict' if container.kind == 'dict' else 'List'}"
        where, expression = find_attribute(container.owner, container.attribute, "__init__", *_RUN) or (NO_LINE, "")
        own = re.search(rf"(\w+)\.{re.escape(container.attribute)}\b[^=]*=", expression)
        edited = attribute if own is None else f"{own[1]}.{container.attribute}"
        return KIND.finding(
            where,
            expression,
            f"{counted(len(group), 'parameter')} got {_gradients(group, self._evidence)}, and no optimiser that stepped holds them: "
            f"{shortened(names)}",
            f"{attribute} of {container.owner.__name__} is a {container.kind}: parameters() does not give what is in it, nor do to(), "
            "state_dict() and train() reach it",
            f"{edited} = {right}({edited})  # in __init__, after this statement{COMPARE}",
            parameters=tuple(names),
        )


def _gradients(group: Sequence[Leaf], evidence: Evidence) -> str:
    most = max(min(leaf.gradients, evidence.backwards - leaf.since) for leaf in group)
    return f"a gradient in {counted(most, 'backward pass', 'backward passes')}"


def _singular(cause: str) -> str:
    cause = cause.replace("they are", "it is").replace("they were", "it was").replace("they began", "it began")
    return cause.replace("were added", "was added").replace("without them", "without it")


def _is_stale(leaf: Leaf) -> bool:
    """Does an optimiser step it with a rate other than 0, although its module never ran and it got no gradient?"""
    is_idle = leaf.is_in_optimizer and leaf.is_stepped and not leaf.gradients and not leaf.has_run
    return is_idle and not leaf.step_saw_gradient


def _are_alike(old: Leaf, new: Leaf, are_of_a_net: bool) -> bool:
    """May `new` have replaced `old`? In a net, a new head may have other sizes; for tensors of no net the shapes must agree."""
    return len(old.shape) == len(new.shape) if are_of_a_net else old.shape == new.shape


# --- optimisers that step nothing -------------------------------------------------------------------------------------


def _frozen_optimisers(evidence: Evidence, judge: _Judge | None) -> Iterator[Finding]:
    left_out = {} if judge is None else judge.nets(judge.left_out)
    for optimiser in evidence.recorder.optimisers.all:
        call, count = optimiser.location.call, optimiser.parameters
        if call is not None and count and 2 <= optimiser.frozen_steps == optimiser.steps:
            name = name_of_optimiser(call.expression)
            unfreeze = f'for group in {name}.param_groups: [p.requires_grad_(True) for p in group["params"]]'
            next_step = f"{unfreeze}  # before the loop{COMPARE}; or no step"
            if judge is not None and left_out:  # as the new head of a frozen net
                group = next(iter(left_out.values()))
                gets = f"{shortened([leaf.name for leaf in group])} got gradients, and no optimiser that stepped holds them"
                next_step = f"{judge.add_group(group)}  # before the loop: {gets}{COMPARE}"
            yield KIND.finding(
                str(call),
                call.expression,
                f"{counted(optimiser.steps, 'step')} of an optimiser whose {counted(count, 'parameter')} require no gradient",
                "what it holds was frozen after the optimiser was made, so its steps do nothing",
                next_step,
                is_muted=evidence.deliberate.location(optimiser.location),
            )


KIND = Kind("PG212", order=32, find=_find, is_alone=True)
