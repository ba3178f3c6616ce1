"""The parameters that starve with the cut to blame, and those that get nothing on purpose.

A parameter starves if it is of the model that was given, or an optimiser stepped it, and it got nothing. If an optimiser steps others and
not this one, it belongs to a target or a teacher: one calm line says so. One file, as each verdict depends on all cuts, sites and names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cached_property

from ...listen.frames import named
from ...wording import counted, shortened
from ..count.leaf import Leaf, Missing
from ..count.names import Owner
from ..count.recorder import LAST_NEW_SUSPECT, Recorder
from ..count.tally import OWN_NODE
from ..count.zeros import ADDS_UP
from ..records import Partly, Site, Starved, Structural
from ..sites import site_of

Cause = Site | Structural | None

ZEROED = "a gradient that was taken away"
NO_PATH = "on no path to the loss"
# Why a parameter gets nothing and does not starve.
_IDLE = "are used in no backward while others of their list learn, as experts that no router chose"
_RATE_0 = "stand in a group of an optimiser whose rate is 0"
_LEFT_ALONE = "run under no_grad or behind a detach alone, as a target or teacher net should"
_UNSTEPPED = "are stepped by no optimiser: they learn nothing here, as a target or teacher net should"
_NOT_ASKED = "are asked for no gradient: every backward is an autograd.grad of others"
_NO_SHIFT = "get zeros alone while the weight beside them learns: what arrives there adds up to 0"
_STARTS_AT_0 = "get zeros alone until what multiplies them has left 0, as in the first step of a LoRA"
RETURNS_NONE = "returns None for what comes from it"
_NO_SHIFT_ONCE = "get zeros alone in the one backward that reached them, while the weight beside them gets more"
_ADD_A_BIAS = ("addmm", "convolution", "linear")
_NOT_GIVEN = "are not of the model given, and got no gradient"


class Starving:
    """Judges every parameter of one diagnosis."""

    def __init__(self, recorder: Recorder, sites: Sequence[Site], structural: Sequence[Structural]) -> None:
        self._recorder, self._leaves = recorder, recorder.leaves
        self._sites, self._structural = sites, structural
        recorder.optimisers.settle()
        self._have_stepped = recorder.optimisers.have_stepped
        model = [leaf for _, leaf in self._leaves if self._is_of_the_model(leaf)]
        self._has_model = bool(model)
        self._model_is_stepped = any(leaf.is_stepped for leaf in model)
        self._learning = {leaf.name for _, leaf in self._leaves if leaf.is_parameter and not leaf.starves}
        self._used = recorder.reached
        for cut in structural:
            self._used |= cut.upstream
        self._without = [(bit, leaf) for bit, leaf in self._leaves if self._got_nothing(leaf)]

    # --- who is judged ------------------------------------------------------------------------------------------------

    def _is_of_the_model(self, leaf: Leaf) -> bool:
        owner = self._leaves.names.owner_of(leaf)
        return owner is not None and owner.is_given

    def _is_judged(self, leaf: Leaf) -> bool:
        """Should it learn here?"""
        if leaf.is_in_optimizer:
            return bool(leaf.is_stepped)
        if self._has_model:
            return self._is_of_the_model(leaf) and not self._model_is_stepped
        return not self._have_stepped and self._was_asked(leaf)

    def _was_asked(self, leaf: Leaf) -> bool:
        """Does the program want its gradient? Not if every backward is an autograd.grad of others."""
        return bool(self._recorder.accumulates or leaf.is_requested)

    def _got_nothing(self, leaf: Leaf) -> bool:
        """Was there a backward, and no gradient for this leaf?"""
        tensor = leaf.tensor()
        if leaf.is_frozen or (tensor is not None and not tensor.requires_grad):
            return False
        return leaf.since < self._recorder.backwards and not (leaf.is_empty and leaf.gradients) and leaf.starves

    def _is_idle(self, bit: int, leaf: Leaf) -> bool:
        """Does nothing use it while others in the same list of modules learn, as an expert that no router chose?"""
        if leaf.gradients or self._used >> bit & 1:
            return False
        parts = leaf.name.split(".")
        chained = self._leaves.names.chained(leaf)
        for at, part in enumerate(parts[:-1]):
            if part.isdigit() and at - len(parts) in chained:
                continue
            before, after = (re.escape(".".join(path)) for path in (parts[:at], parts[at + 1 :]))
            sibling = re.compile((f"{before}\\." if at else "") + f"\\d+\\.{after}")
            if part.isdigit() and any(map(sibling.fullmatch, self._learning)):
                return True
        return False

    def _feels_no_shift(self, leaf: Leaf) -> bool:
        """Does a bias get zeros while its weight learns? The gradients of the layer add up to 0, as for a difference of means."""
        path = leaf.name.rpartition("bias")
        return path[1:] == ("bias", "") and f"{path[0]}weight" in self._learning and not leaf.has_hooks

    @cached_property
    def _nets_left_alone(self) -> set[Owner]:
        """Nets without a gradient whose values leave the graph under no_grad or by a detach alone, beside nets that learn: target nets.

        They matter if neither a model nor an optimiser says what should learn.
        """
        if self._has_model or self._have_stepped:
            return set()
        without = dict(self._without)
        owners: dict[Owner, bool] = {}
        for bit, leaf in self._leaves:
            owner = self._leaves.names.owner_of(leaf)
            if owner is not None:
                owners[owner] = owners.get(owner, True) and bit in without and self._leaves_on_purpose(1 << bit)
        return set() if all(owners.values()) else {owner for owner, is_alone in owners.items() if is_alone}

    def _cuts(self, leaf: int) -> list[Structural]:
        """The cuts behind a leaf that may decide a loss: first those behind which the way to the loss is free."""
        cuts = [cut for cut in self._structural if cut.upstream & leaf and cut.reaches_loss is not False]
        return sorted(cuts, key=lambda cut: (not cut.reaches_loss, not cut.is_last))

    def _leaves_on_purpose(self, leaf: int) -> bool:
        cuts = self._cuts(leaf)
        return bool(cuts) and all(cut.kind.endswith("under no_grad") or cut.kind == ".detach()" for cut in cuts)

    # --- a verdict for each parameter without a gradient --------------------------------------------------------------

    @cached_property
    def _verdicts(self) -> list[tuple[Leaf, Starved | str | None]]:
        return [(leaf, self._verdict(bit, leaf)) for bit, leaf in self._without]

    def _verdict(self, bit: int, leaf: Leaf) -> Starved | str | None:
        """A record if it starves, else the reason why it gets nothing; None for a tensor that no network uses."""
        owner = self._leaves.names.owner_of(leaf)
        is_of_a_net = owner is not None and bool(leaf.has_run and self._used >> bit & 1)
        if self._is_judged(leaf):
            if self._is_idle(bit, leaf):
                return _IDLE
            if owner in self._nets_left_alone:
                return _LEFT_ALONE if is_of_a_net else None
            return self._judge(bit, leaf, is_of_a_net)
        if leaf.is_in_optimizer:
            return _RATE_0
        if not is_of_a_net:
            return None
        if owner in self._nets_left_alone:
            return _LEFT_ALONE
        if self._have_stepped:  # beside a parameter that is 0 it is no target: the finding `unused` has both
            return None if leaf.gradients and leaf.zero_factor is not None else _UNSTEPPED
        return _NOT_GIVEN if self._has_model or self._was_asked(leaf) else _NOT_ASKED

    def _judge(self, bit: int, leaf: Leaf, is_of_a_net: bool) -> Starved | str | None:
        if leaf.gradients and not leaf.is_swallowed and self._is_at_its_start(leaf):
            return _STARTS_AT_0
        cause, why = self._cause(1 << bit, leaf)
        cancels = cause is None or (isinstance(cause, Site) and cause.op in _ADD_A_BIAS and why.endswith(ADDS_UP))
        if cancels and leaf.gradients and not leaf.is_swallowed and self._feels_no_shift(leaf):
            says = _NO_SHIFT_ONCE if leaf.gradients == 1 else _NO_SHIFT
            return says if is_of_a_net else None
        if cause is None and not (leaf.has_run or leaf.is_in_optimizer or self._recorder.reached >> bit & 1):
            return None  # a tensor that no loss depends on, such as the source of a copy
        gradient = ZEROED if leaf.is_swallowed else "zeros" if leaf.gradients else "no gradient"
        cuts = self._cuts(1 << bit)
        blamed = [cut.where for cut in cuts if cut.reaches_loss and cut.is_last == cuts[0].is_last]
        others = tuple(dict.fromkeys(where for where in blamed if cause is None or where != cause.where))
        is_unstepped = self._have_stepped and not leaf.is_in_optimizer
        is_in_all = not leaf.gradients or leaf.gradients >= self._recorder.backwards - leaf.since
        return Starved(leaf.name, leaf.shape, gradient, cause, why, others, is_unstepped, is_in_all)

    def _is_at_its_start(self, leaf: Leaf) -> bool:
        """Is it multiplied by a parameter that was 0 in the last backward, and that no step could move before?"""
        factor, backwards = leaf.zero_factor, self._recorder.backwards
        if factor is None or (self._have_stepped and not factor.is_in_optimizer):
            return False
        return backwards <= LAST_NEW_SUSPECT or factor.stepped_after in (None, backwards)

    @property
    def starved(self) -> list[Starved]:
        """The starving parameters, each with its cause."""
        return [verdict for _, verdict in self._verdicts if isinstance(verdict, Starved)]

    def idle(self) -> list[str]:
        """The parameters that got nothing and do not starve."""
        return [leaf.name for leaf, verdict in self._verdicts if not isinstance(verdict, Starved)]

    # --- causes -------------------------------------------------------------------------------------------------------

    def _cause(self, bit: int, leaf: Leaf) -> tuple[Cause, str]:
        """The cut nearest to the parameter that stops all of its gradient, and a sentence about it."""
        if leaf.is_swallowed:
            when = "between the backward and the step" if leaf.is_in_optimizer else "after it has arrived"
            return None, f"a hook, or code of the program, sets it to 0 or None {when}"
        if leaf.gradients:
            return self._cause_of_zeros(bit, leaf)
        for tally in self._recorder.tallies.values():
            if tally.withheld & bit:
                function = site_of(tally)
                return function, f"the backward of {function.op} {RETURNS_NONE}"
        cuts = self._cuts(bit)
        if cuts and cuts[0].reaches_loss:
            behind = "" if cuts[0].is_last else ", and again behind it"
            way = "its way to the loss" if len(cuts) > 1 else "its only way to the loss"
            return cuts[0], f"{way} is cut by {cuts[0].kind}{behind}"
        if cuts:
            why = f"its value left torch through {cuts[0].kind}; whether the loss depends on it nobody can see"
            return cuts[0], why
        raised, is_reached = self._recorder.raised, self._recorder.reached & bit
        ended = f"{counted(raised, 'backward')} ended with an error before its gradient came"
        again = next((cut for cut in self._structural if cut.is_again and cut.upstream & bit), None)
        if raised and again is not None:
            return again, f"{ended}, and {again.kind} cuts it in a forward that was computed once more"
        if not is_reached and raised < self._recorder.backwards:
            return None, f"it is {NO_PATH}"
        site = self._last_stop(bit)
        if site is not None:
            return site, f"the backward of {site.op} hands nothing on"
        if raised:
            return None, ended
        why = (
            "backward passes run over what uses it, and none brings it a gradient: one returns None, is an autograd.grad of others, or the "
            "loss is made of derivatives that do not depend on it"
        )
        return None, why

    def _cause_of_zeros(self, bit: int, leaf: Leaf) -> tuple[Cause, str]:
        for tally in self._recorder.tallies.values():
            window = tally.windows.get(bit)
            if window is not None and window.is_narrow:
                where = named(tally.location.call)
                at = next((site for site in self._sites if site.where == where), None)
                return at, f"the window of jumprelu is too narrow: bandwidth={window.bandwidth:g}"
        site = self._last_stop(bit)
        if site is not None:
            return (
                site,
                f"all of the gradient is cut by {site.op}{', which normalises one number alone' if site.is_of_one else ''}",
            )
        cause = self._recorder.zeros.cause(bit, self._sites, site_of)
        if cause is not None:
            return cause
        may = "; a hook of the parameter itself may do it" if leaf.has_hooks else ""
        return None, f"the gradient becomes 0 on the way, and this run does not show where{may}"

    def _upstream(self, bit: int) -> list[Site]:
        """The ops between this leaf and a loss at which a gradient arrived; the op nearest to the leaf comes last."""
        return [site for site in self._sites if site.upstream & bit and site.arrived]

    def _last_stop(self, bit: int) -> Site | None:
        """The op nearest to this leaf that cuts everything."""
        stops = [site for site in self._upstream(bit) if site.cut == site.arrived]
        return stops[-1] if stops else None

    # --- parameters that get nothing on purpose -----------------------------------------------------------------------

    def calm(self) -> list[str]:
        """A sentence for each reason, with the nets that the parameters make up."""
        groups: dict[str, list[Leaf]] = {}
        for leaf, verdict in self._verdicts:
            if isinstance(verdict, str):
                groups.setdefault(verdict, []).append(leaf)
        return [
            f"{counted(len(leaves), 'parameter')} of {self._nets(leaves)} {_agree(says, len(leaves))}"
            for says, leaves in groups.items()
        ]

    def _nets(self, leaves: Sequence[Leaf]) -> str:
        """Modules of the model given by their path, others by their class."""
        nets: dict[str, None] = {}
        for leaf in leaves:
            owner = self._leaves.names.owner_of(leaf)
            first, *rest = leaf.name.split(".")
            is_path = owner is not None and (first == self._leaves.names.label(owner) or (rest and not first.isdigit()))
            nets[first if is_path else "no module" if owner is None else owner.kind] = None
        return shortened(list(nets), 4)

    # --- parameters that starve in part -------------------------------------------------------------------------------

    def partly(self) -> Iterator[Partly]:
        """Parameters that learn, and of which some entries got no gradient in any backward."""
        for bit, leaf in self._leaves:
            if not self._is_judged(leaf) or not leaf.is_parameter or leaf.starves:
                continue
            missing = leaf.entries.missing()
            if missing is not None:
                drops = [(site_of(drop.tally), drop.how) for drop in self._recorder.zeros.drops.of(1 << bit)]
                yield Partly(
                    leaf.name,
                    leaf.shape,
                    **missing._asdict(),
                    backwards=leaf.entries.looks,
                    cause=self._holds_units(1 << bit, leaf, missing),
                    is_looked_up=leaf.is_looked_up,
                    is_shard=leaf.has_whole,
                    padding=leaf.padding,
                    drops=tuple(drops),
                    own_choice=self._own_choice(1 << bit, drops[0][0].where) if drops else None,
                )

    def _own_choice(self, leaf: int, where: str) -> Structural | None:
        """A comparison of values that come from this leaf, which decides at this line."""
        return next((cut for cut in self._cuts(leaf) if cut.reaches_loss and where in cut.decides_at), None)

    def _holds_units(self, bit: int, leaf: Leaf, missing: Missing) -> Site | None:
        """The op nearest to the leaf that may hold its dead units: a Function that it is an input of, if more arrives there than the other
        units could get; else the last op on the way back that cuts.
        """
        upstream = self._upstream(bit)[::-1]
        least = 1 - missing.dead_units / missing.units
        for site in upstream:
            if (OWN_NODE if site.is_own else site.op) == leaf.function and site.arrived / site.elements > least:
                return site
        return next((site for site in upstream if site.cut), None)


def _agree(says: str, count: int) -> str:
    """The sentence with its verb in the singular, for one parameter."""
    verb, _, rest = says.partition(" ")
    if count > 1:
        return says
    return f"{'is' if verb == 'are' else verb + 's'} {rest}".replace("they learn", "it learns").replace("them", "it")
