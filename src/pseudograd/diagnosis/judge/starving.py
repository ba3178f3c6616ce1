"""Which parameters starve, what is to blame, and which get nothing on purpose.

A parameter starves if it is of the model that was given, or an optimiser stepped it, and it got nothing. What no optimiser steps beside
others that one does is a target or a teacher: that is said in one calm line.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ...listen.frames import named
from ...wording import counted, shortened
from ..count.leaves import Leaf
from ..count.missing_gradients import Missing
from ..count.windows import NODE
from ..count.zeros import fading
from ..records import Partly, Site, Starved, Structural

ZEROED = "a gradient that was taken away"
_LEAVES_ON_PURPOSE = (".detach()",)


class Starving:
    """Of one diagnosis, asked when its report is made."""

    def __init__(self, recorder: Any, sites: Sequence[Site], structural: Sequence[Structural]) -> None:
        self._recorder = recorder
        self._sites = sites
        self._structural = structural
        self._leaves = recorder.leaves
        self._optimisers = recorder.optimisers
        self._optimisers.settle()
        given = [leaf for _, leaf in self._leaves if self._is_of_the_model(leaf)]
        self._has_model = bool(given)
        self._model_is_stepped = any(leaf.stepped for leaf in given)
        self._learning = {leaf.name for _, leaf in self._leaves if leaf.is_parameter and leaf.moved}

        self._cut_upstream = 0
        for cut in structural:
            self._cut_upstream |= cut.upstream

    # --- who is judged ------------------------------------------------------------------------------------------------

    def _is_of_the_model(self, leaf: Leaf) -> bool:
        owner = self._leaves.names.owner_of(leaf)
        return owner is not None and owner.is_given

    def _is_judged(self, leaf: Leaf) -> bool:
        """Should it learn here?"""
        if leaf.held:
            return leaf.stepped
        if self._has_model:
            return self._is_of_the_model(leaf) and not self._model_is_stepped
        return not self._optimisers.have_stepped and self._was_asked(leaf)

    def _was_asked(self, leaf: Leaf) -> bool:
        """Where every backward is an autograd.grad of others, nobody wanted its gradient."""
        return self._recorder.accumulates or leaf.asked

    def _is_idle(self, bit: int, leaf: Leaf) -> bool:
        """Nothing of it was used, while others in the same list of modules learned: an expert that no router chose."""
        used = self._recorder.reached | self._cut_upstream
        if leaf.gradients or used >> bit & 1:
            return False
        parts = leaf.name.split(".")
        for at, part in enumerate(parts[:-1]):
            if part.isdigit() and any(
                len(other) == len(parts)
                and other[at].isdigit()
                and other[:at] == parts[:at]
                and other[at + 1 :] == parts[at + 1 :]
                for other in map(_parts, self._learning)
            ):
                return True
        return False

    def _without(self) -> list[tuple[int, Leaf]]:
        """Those that got nothing, and that had a backward to get it in."""
        some = []
        for bit, leaf in self._leaves:
            tensor = leaf.tensor()
            is_frozen = leaf.is_frozen or (tensor is not None and not tensor.requires_grad)
            if (
                not is_frozen
                and leaf.since < self._recorder.backwards
                and not (leaf.is_empty and leaf.gradients)
                and leaf.starves
            ):
                some.append((bit, leaf))
        return some

    def _feels_no_shift(self, leaf: Leaf) -> bool:
        """A bias that gets zeros while the weight beside it learns: what arrives at the layer adds up to 0, as in a critic whose loss is
        a difference of means.
        """
        path = leaf.name.rpartition("bias")
        return path[1:] == ("bias", "") and f"{path[0]}weight" in self._learning and not leaf.has_hooks

    def starved(self) -> list[Starved]:
        """All that do, with what is to blame."""
        some = []
        left_alone = self._nets_left_alone()
        for bit, leaf in self._without():
            if not self._is_judged(leaf) or self._leaves.names.owner_of(leaf) in left_alone:
                continue
            if self._is_idle(bit, leaf):
                continue
            cause, why = self._cause(bit, leaf)
            if cause is None and leaf.gradients and not leaf.is_swallowed and self._feels_no_shift(leaf):
                continue
            if not (leaf.has_run or leaf.held) and cause is None and not self._recorder.reached >> bit & 1:
                continue  # a tensor of somebody that no loss depends on, such as what was copied from
            gradient = ZEROED if leaf.is_swallowed else "zeros" if leaf.gradients else "no gradient"
            blamed = [one.where for one in self._structural if one.upstream >> bit & 1 and one.reaches_loss]
            elsewhere = tuple(dict.fromkeys(where for where in blamed if cause is None or where != cause.where))
            some.append(Starved(leaf.name, leaf.shape, gradient, cause, why, elsewhere, self._is_unstepped(leaf)))
        return some + list(self._of_crowds())

    def _is_unstepped(self, leaf: Leaf) -> bool:
        return self._optimisers.have_stepped and not leaf.held

    def _of_crowds(self) -> Iterable[Starved]:
        for _, crowd in self._leaves.crowds.values():
            starving = crowd.starving(not (self._has_model or self._optimisers.have_stepped))
            if starving:
                name = f"{starving:,} of {crowd.count:,} {crowd.kind}"
                why = "they are too many for a cause of each, as where new ones are made in every step"
                yield Starved(name, (), "no gradient, or zeros alone,", None, why)

    # --- what is to blame ---------------------------------------------------------------------------------------------

    def _cause(self, bit: int, leaf: Leaf) -> tuple[Site | Structural | None, str]:
        """What to blame: the cut nearest to the parameter that stops all of its gradient."""
        one = 1 << bit
        if leaf.is_swallowed:
            when = "between the backward and the step" if leaf.held else "after it has arrived"
            return None, f"a hook, or code of the program, sets it to 0 or None {when}"
        if leaf.gradients:
            return self._cause_of_zeros(one, leaf)
        blamed = [cut for cut in self._structural if cut.upstream & one and cut.reaches_loss is not False]
        for cut in blamed:
            if cut.reaches_loss:
                return cut, f"its only way to the loss is cut by {cut.kind}"
        if blamed:
            cut = blamed[0]
            return cut, f"its value left torch through {cut.kind}; whether the loss depends on it nobody can see"
        if self._recorder.reached & one:
            stopping = [
                site for site in self._sites if site.upstream & one and site.arrived and site.cut == site.arrived
            ]
            if stopping:
                return stopping[-1], f"the backward of {stopping[-1].op} hands nothing on"
            return (
                None,
                "it is on the way to the loss, and no gradient came: a backward that returns None, or autograd.grad of others",
            )
        return None, "it is on no path to the loss"

    def _cause_of_zeros(self, one: int, leaf: Leaf) -> tuple[Site | Structural | None, str]:
        upstream = [site for site in self._sites if site.upstream & one and site.arrived]
        for tally in self._recorder.tallies.values():
            window = tally.windows.get(one)
            if window is not None and window.is_narrow:
                where = named(tally.place.call)
                at = next((site for site in self._sites if site.where == where), None)
                return at, f"the window of jumprelu is too narrow: bandwidth={window.bandwidth:g}"
        stopping = [site for site in upstream if site.cut == site.arrived]
        if stopping:
            return stopping[-1], f"all of the gradient is cut by {stopping[-1].op}"
        found = self._recorder.zeros.cause(one, self._sites) or fading(one, self._sites, self._recorder.backwards)
        if found is not None:
            return found
        may = "; a hook of the parameter itself may do it" if leaf.has_hooks else ""
        return None, f"the gradient becomes 0 on the way, at no single op{may}"

    # --- what gets nothing on purpose ---------------------------------------------------------------------------------

    def _nets_left_alone(self) -> set[object]:
        """Where neither a model nor an optimiser tells what should learn: nets that got nothing and whose values leave the graph under
        no_grad or by a detach alone, beside others that got something. That is how a target net is written.
        """
        if self._has_model or self._optimisers.have_stepped:
            return set()
        names, without = self._leaves.names, dict(self._without())
        owners: dict[object, bool] = {}
        for bit, leaf in self._leaves:
            owner = names.owner_of(leaf)
            if owner is not None:
                owners[owner] = owners.get(owner, True) and bit in without and self._is_left_alone(1 << bit)
        return {owner for owner, is_alone in owners.items() if is_alone} if not all(owners.values()) else set()

    def _is_left_alone(self, one: int) -> bool:
        cuts = [cut for cut in self._structural if cut.upstream & one and cut.reaches_loss is not False]
        return bool(cuts) and all(cut.kind.endswith("under no_grad") or cut.kind in _LEAVES_ON_PURPOSE for cut in cuts)

    def calm(self) -> list[str]:
        """What got nothing, and should not."""
        groups: dict[str, list[Leaf]] = {}
        left_alone = self._nets_left_alone()
        used = self._recorder.reached | self._cut_upstream
        for bit, leaf in self._without():
            owner = self._leaves.names.owner_of(leaf)
            if self._is_judged(leaf) and self._is_idle(bit, leaf):
                says = "are used in no backward while others of their list learn, as experts that no router chose"
                groups.setdefault(says, []).append(leaf)
            elif leaf.held and not leaf.stepped:
                groups.setdefault("stand in a group of an optimiser whose rate is 0", []).append(leaf)
            elif owner is None or not leaf.has_run or not used >> bit & 1:
                continue
            elif owner in left_alone:
                groups.setdefault(
                    "run under no_grad or behind a detach alone, as a target or teacher net should", []
                ).append(leaf)
            elif not self._is_judged(leaf) and self._optimisers.have_stepped:
                says = "are stepped by no optimiser: they learn nothing here, as a target or teacher net should"
                groups.setdefault(says, []).append(leaf)
            elif not self._has_model and not self._was_asked(leaf):
                groups.setdefault("are asked for no gradient: every backward is an autograd.grad of others", []).append(
                    leaf
                )
            elif self._is_judged(leaf):
                if leaf.gradients and self._feels_no_shift(leaf) and self._cause(bit, leaf)[0] is None:
                    says = "get zeros alone while the weight beside them learns: what arrives there adds up to 0"
                    groups.setdefault(says, []).append(leaf)
            else:
                groups.setdefault("are not of the model given, and got no gradient", []).append(leaf)
        return [
            f"{counted(len(some), 'parameter')} of {self._nets(some)} {_agreeing(says, len(some))}"
            for says, some in groups.items()
        ]

    def _nets(self, some: Sequence[Leaf]) -> str:
        """The nets that these make up: modules of the model given by their path, others by their class."""
        nets: dict[str, None] = {}
        for leaf in some:
            owner = self._leaves.names.owner_of(leaf)
            path = leaf.name.split(".")
            if owner is None:
                nets["no module"] = None
            elif path[0] == self._leaves.names.label(owner):
                nets[path[0]] = None
            else:
                nets[path[0] if len(path) > 1 and not path[0].isdigit() else owner.kind] = None
        return shortened(list(nets), 4)

    # --- what is starved in part --------------------------------------------------------------------------------------

    def partly(self) -> list[Partly]:
        """Parameters that learn, and of which some entries got no gradient in any backward."""
        some = []
        for bit, leaf in self._leaves:
            if not self._is_judged(leaf) or not leaf.is_parameter or leaf.starves:
                continue
            missing = leaf.entries.missing()
            if missing is None:
                continue
            site = self._behind(1 << bit, leaf, missing)
            some.append(
                Partly(
                    leaf.name,
                    leaf.shape,
                    **missing._asdict(),
                    backwards=leaf.entries.looks,
                    cause=site,
                    is_looked_up=leaf.is_looked_up,
                    is_shard=leaf.has_whole,
                    padding=leaf.padding,
                )
            )
        return some

    def _behind(self, one: int, leaf: Leaf, missing: Missing) -> Site | None:
        """The op nearest to it that may hold its dead units: a Function that it is an input of, if more arrives there than the other
        units could get; else the last one on the way back that cuts.
        """
        upstream = [site for site in self._sites if site.upstream & one and site.arrived]
        for site in reversed(upstream):
            if (
                NODE if site.is_own else site.op
            ) == leaf.function and site.arrived / site.elements > 1 - missing.dead_units / missing.units:
                return site
        return next((site for site in reversed(upstream) if site.cut), None)


def _parts(name: str) -> list[str]:
    return name.split(".")


def _agreeing(says: str, count: int) -> str:
    if count > 1:
        return says
    for many, single in (("stand ", "stands "), ("are ", "is "), ("run ", "runs "), ("get ", "gets ")):
        if says.startswith(many):
            return single + says.removeprefix(many).replace("they learn", "it learns").replace("them", "it")
    return says
