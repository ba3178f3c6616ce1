"""The parameters that starve, each with the cut that causes it, and the parameters that are meant to get no gradient.

A parameter starves if it got no gradient, and it belongs to the given model or an optimiser stepped it. If an optimiser steps only other
parameters, this parameter belongs to a target or teacher net: a line of `d.calm` says so, and there is no finding.

In this file `bit` is the index of a leaf, and `mask` is 1 << bit, the set with this leaf alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

from ...wording import counted, shortened
from ..count.influence import WITHOUT_GRAD
from ..count.leaf import Leaf, Missing
from ..count.names import Owner
from ..count.recorder import LAST_NEW_SUSPECT, Recorder
from ..count.tally import OWN_NODE
from ..records import Partly, Reason, Site, Starved, Structural
from ..sites import site_of

Cause = Site | Structural | None

ZEROED = "a gradient that was taken away"
# Why a parameter gets nothing and does not starve.
_IDLE = "are used in no backward, but other modules of the same list learn: for example experts that no router chose"
_RATE_0 = "belong to a group of an optimiser with the rate 0"
_TARGET_NET = "are used only under no_grad or before a detach, as is right for a target or teacher net"
_UNSTEPPED = "are stepped by no optimiser: they learn nothing here, as is right for a target or teacher net"
_NOT_WANTED = "get no gradient: every backward is an autograd.grad with respect to other tensors"
_CANCELLED = "get only zeros, although the weight of the layer gets a gradient: those of the layer's output add up to 0"
_NOT_GIVEN = "are not part of the given model, and got no gradient"
_STARTS_AT_0 = "get only zeros as long as a parameter that multiplies them is 0, as in the first step of a LoRA"
_THRESHOLDS = ("threshold", "hardshrink", "softshrink", "maximum", "minimum", "fmax", "fmin")
_ADD_A_BIAS = ("addmm", "convolution", "linear")


class _Cause(NamedTuple):
    """Why a leaf starves: the cut, and a sentence about it."""

    cut: Cause
    why: str
    reason: Reason = ""


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
        self._learning_names = {leaf.name for _, leaf in self._leaves if leaf.is_parameter and not leaf.starves}
        self._left_out = {
            _module_of(leaf) for _, leaf in self._leaves if leaf.had_gradient and not leaf.is_in_optimizer
        }
        self._learning_siblings = {siblings for name in self._learning_names for siblings in _siblings(name)}
        self._used = recorder.reached  # the set of leaves upstream of a loss or of a cut
        for cut in structural:
            self._used |= cut.upstream
        self._without_gradient = [(bit, leaf) for bit, leaf in self._leaves if self._lacks_gradient(leaf)]

    # --- which parameters are judged ------------------------------------------------------------------------------------------------

    def _is_of_the_model(self, leaf: Leaf) -> bool:
        owner = self._leaves.names.owner_of(leaf)
        return owner is not None and owner.is_given

    def _is_judged(self, leaf: Leaf) -> bool:
        """Should this leaf learn here?"""
        if leaf.is_in_optimizer:
            return bool(leaf.is_stepped)
        if self._has_model:
            return self._is_of_the_model(leaf) and not self._model_is_stepped
        return not self._have_stepped and self._is_gradient_wanted(leaf)

    def _is_gradient_wanted(self, leaf: Leaf) -> bool:
        """Does the program ask for the gradient of this leaf? Not if every backward is an autograd.grad with respect to other tensors."""
        return bool(self._recorder.accumulates or leaf.is_requested)

    def _lacks_gradient(self, leaf: Leaf) -> bool:
        """Did this leaf get no gradient, although a backward ran after it was made?"""
        tensor = leaf.tensor()
        if leaf.is_frozen or (tensor is not None and not tensor.requires_grad):
            return False
        return leaf.since < self._recorder.backwards and not (leaf.is_empty and leaf.gradients) and leaf.starves

    def _is_idle(self, bit: int, leaf: Leaf) -> bool:
        """Is this leaf unused although other modules of the same list learn? An example is an expert that no router chose."""
        if leaf.gradients or self._used >> bit & 1:
            return False
        chained = self._leaves.names.chained(leaf)
        learning = self._learning_siblings.intersection(_siblings(leaf.name))
        return any(position not in chained for position, _ in learning)

    def _is_cancelled_bias(self, leaf: Leaf) -> bool:
        """Is it a bias that gets zeros although its weight learns? The gradients of its output add up to 0, as in a difference of means."""
        path = leaf.name.rpartition("bias")
        weights = (f"{path[0]}weight", f"{path[0]}parametrizations.weight.")  # also weight_orig and weight_g
        learns = any(name.startswith(weights) for name in self._learning_names)
        return path[1:] == ("bias", "") and learns and not leaf.has_hooks

    @cached_property
    def _target_nets(self) -> set[Owner]:
        """Nets that get no gradient because all uses of their values are under no_grad or detached, if some other net learns.

        The set is used only if neither a model nor an optimiser says which parameters should learn.
        """
        if self._has_model or self._have_stepped:
            return set()
        without = dict(self._without_gradient)
        owners: dict[Owner, bool] = {}
        for bit, leaf in self._leaves:
            owner = self._leaves.names.owner_of(leaf)
            if owner is not None:
                owners[owner] = owners.get(owner, True) and bit in without and self._is_cut_on_purpose(1 << bit)
        return set() if all(owners.values()) else {owner for owner, is_cut in owners.items() if is_cut}

    def _cuts(self, mask: int) -> list[Structural]:
        """The cuts between a leaf and a loss. Cuts that surely reach the loss come first, among them those with no other cut after them,
        and a no_grad, as around the rollout of a policy, last of these.
        """
        cuts = [cut for cut in self._structural if cut.upstream & mask and cut.reaches_loss is not False]
        return sorted(cuts, key=lambda c: (not c.reaches_loss, not c.is_final_cut, c.kind.endswith(WITHOUT_GRAD)))

    def _is_cut_on_purpose(self, mask: int) -> bool:
        cuts = self._cuts(mask)
        return bool(cuts) and all(cut.kind.endswith("under no_grad") or cut.kind == ".detach()" for cut in cuts)

    # --- a verdict for each parameter without a gradient --------------------------------------------------------------

    @cached_property
    def _verdicts(self) -> list[tuple[Leaf, Starved | str | None]]:
        return [(leaf, self._verdict(bit, leaf)) for bit, leaf in self._without_gradient]

    def _verdict(self, bit: int, leaf: Leaf) -> Starved | str | None:
        """A record if the leaf starves, else the reason why it may get no gradient. None for a tensor that no network uses."""
        owner = self._leaves.names.owner_of(leaf)
        is_in_a_net = owner is not None and bool(leaf.has_run and self._used >> bit & 1)
        if owner in self._target_nets:
            return _TARGET_NET if is_in_a_net else None
        if self._is_judged(leaf):
            return _IDLE if self._is_idle(bit, leaf) else self._judge(bit, leaf, is_in_a_net)
        if leaf.is_in_optimizer:
            return _RATE_0
        if not is_in_a_net:
            return None
        if self._have_stepped:
            # The finding `unused` names it, or another parameter of its module.
            is_of_unused = leaf.gradients and (leaf.zero_factor is not None or _module_of(leaf) in self._left_out)
            return None if is_of_unused else _UNSTEPPED
        return _NOT_GIVEN if self._has_model or self._is_gradient_wanted(leaf) else _NOT_WANTED

    def _judge(self, bit: int, leaf: Leaf, is_in_a_net: bool) -> Starved | str | None:
        if leaf.gradients and not leaf.is_taken_away and self._is_at_its_start(leaf):
            return _STARTS_AT_0
        cause, why, reason = self._cause(1 << bit, leaf)
        adds_up = cause is None or (reason == "adds up to 0" and isinstance(cause, Site) and cause.op in _ADD_A_BIAS)
        if adds_up and leaf.gradients and not leaf.is_taken_away and self._is_cancelled_bias(leaf):
            return _CANCELLED if is_in_a_net else None
        if cause is None and not (leaf.has_run or leaf.is_in_optimizer or self._recorder.reached >> bit & 1):
            return None  # no loss depends on this tensor, for example the source of a copy
        gradient = ZEROED if leaf.is_taken_away else "zeros" if leaf.gradients else "no gradient"
        cuts = self._cuts(1 << bit)
        blamed = [cut.where for cut in cuts if cut.reaches_loss and cut.is_final_cut == cuts[0].is_final_cut]
        others = tuple(dict.fromkeys(where for where in blamed if cause is None or where != cause.where))
        is_unstepped = self._have_stepped and not leaf.is_in_optimizer
        is_in_all = not leaf.gradients or leaf.gradients >= self._recorder.backwards - leaf.since
        return Starved(leaf.name, leaf.shape, gradient, cause, why, others, is_unstepped, is_in_all, reason)

    def _is_at_its_start(self, leaf: Leaf) -> bool:
        """Is the leaf multiplied by a parameter that is still 0 because no step could change it before the last backward?"""
        factor, backwards = leaf.zero_factor, self._recorder.backwards
        if factor is None or (self._have_stepped and not factor.is_in_optimizer):
            return False
        is_new = factor.stepped_after == backwards if self._have_stepped else factor.stepped_after is None
        return backwards <= LAST_NEW_SUSPECT or is_new

    @property
    def starved(self) -> list[Starved]:
        """The starving parameters, each with its cause."""
        return [verdict for _, verdict in self._verdicts if isinstance(verdict, Starved)]

    def excused(self) -> list[str]:
        """The parameters that got no gradient and do not starve."""
        return [leaf.name for leaf, verdict in self._verdicts if not isinstance(verdict, Starved)]

    # --- causes -------------------------------------------------------------------------------------------------------

    def _cause(self, mask: int, leaf: Leaf) -> _Cause:
        """The nearest cut that stops the whole gradient of the leaf."""
        if leaf.is_taken_away:
            when = "between the backward and the step" if leaf.is_in_optimizer else "after it has arrived"
            return _Cause(None, f"a hook, or code of the program, sets it to 0 or None {when}")
        if leaf.gradients:
            return self._cause_of_zeros(mask, leaf)
        for tally in self._recorder.tallies.values():
            if tally.withheld & mask:
                function = site_of(tally)
                why = f"the backward of {function.op} returns None for an input that depends on the parameter"
                return _Cause(function, why, "returns None")
        cuts, raised, is_reached = self._cuts(mask), self._recorder.raised, self._recorder.reached & mask
        if cuts and cuts[0].reaches_loss and not (raised and is_reached):
            behind = "" if cuts[0].is_final_cut else ", and by another cut after it"
            way = "its way to the loss" if len(cuts) > 1 else "its only way to the loss"
            return _Cause(cuts[0], f"{way} is cut by {cuts[0].kind}{behind}")
        if cuts and not cuts[0].reaches_loss:
            why = f"its value left torch through {cuts[0].kind}: nobody can see whether the loss depends on it"
            return _Cause(cuts[0], why)
        again = next((cut for cut in self._structural if cut.is_recomputed and cut.upstream & mask), None)
        if again is not None and (raised or not is_reached):
            where = "in code that a backward runs, as the forward of a checkpoint or the backward of a Function"
            return _Cause(again, f"{again.kind} cuts it {where}")
        if not is_reached and raised < self._recorder.backwards:
            return _Cause(None, "it is on no path to the loss", "no path")
        site = self._nearest_full_cut(mask)
        if site is not None:
            return _Cause(site, f"the backward of {site.op} passes no gradient on")
        if raised:
            why = f"{counted(raised, 'backward')} ended with an error before its gradient arrived"
            return _Cause(None, why, "error")
        why = (
            "backward passes run through ops that use it, and none gives it a gradient: an op returns None, the pass is an autograd.grad "
            "with respect to other tensors, or the loss consists of derivatives that do not depend on it"
        )
        return _Cause(None, why)

    def _cause_of_zeros(self, mask: int, leaf: Leaf) -> _Cause:
        site = self._nearest_full_cut(mask)
        if site is not None:
            normalises = ", which normalises a single number" if site.normalises_one_number else ""
            return _Cause(site, f"all of the gradient is cut by {site.op}{normalises}")
        maker = self._recorder.zeros.cause(mask, self._sites, site_of)
        if maker is not None:
            return _Cause(*maker)
        linear = None if leaf.has_hooks else self._second_derivative_of_relu(mask)
        if linear is not None:
            return _Cause(linear, "the loss depends on it through a second derivative of a relu, which is 0")
        becomes_0 = "the gradient becomes 0 on its way back, and"
        if leaf.has_hooks:
            why = f"{becomes_0} no op of this run makes it 0, so a hook of the parameter itself may do so"
            return _Cause(None, why, "own hook")
        return _Cause(None, f"{becomes_0} this run does not show where")

    def _sites_to_loss(self, mask: int) -> list[Site]:
        """The ops between this leaf and a loss at which a gradient arrived; the op nearest to the leaf comes last."""
        return [site for site in self._sites if site.upstream & mask and site.arrived]

    def _second_derivative_of_relu(self, mask: int) -> Site | None:
        """The relu nearest to this leaf in a backward that became a part of the graph."""
        sites = (site for site in self._sites_to_loss(mask)[::-1] if site.is_second_order)
        return next((site for site in sites if site.op in ("thresholdBackward", "leakyReluBackward")), None)

    def _nearest_full_cut(self, mask: int) -> Site | None:
        """The op nearest to this leaf that cuts all of the gradient that arrives at the op."""
        full_cuts = [site for site in self._sites_to_loss(mask) if site.cut == site.arrived]
        return full_cuts[-1] if full_cuts else None

    # --- parameters that are meant to get no gradient -----------------------------------------------------------------------

    def calm(self) -> list[str]:
        """A sentence for each reason, with the number of its parameters and their nets."""
        groups: dict[str, list[Leaf]] = {}
        for leaf, verdict in self._verdicts:
            if isinstance(verdict, str):
                groups.setdefault(verdict, []).append(leaf)
        return [
            f"{counted(len(leaves), 'parameter')} of {self._nets(leaves)} {_agree(reason, len(leaves))}"
            for reason, leaves in groups.items()
        ]

    def _nets(self, leaves: Sequence[Leaf]) -> str:
        """The names of the nets: a module of the given model by its path, another module by its class."""
        nets: dict[str, None] = {}
        for leaf in leaves:
            owner = self._leaves.names.owner_of(leaf)
            first, *rest = leaf.name.split(".")
            is_path = owner is not None and (first == self._leaves.names.label(owner) or (rest and not first.isdigit()))
            nets[first if is_path else "no module" if owner is None else owner.kind] = None
        return shortened(list(nets), 4)

    # --- parameters that starve in part -------------------------------------------------------------------------------

    def partly_starved(self) -> Iterator[Partly]:
        """Parameters that learn, although some of their entries got no gradient in any backward."""
        for bit, leaf in self._leaves:
            if not self._is_judged(leaf) or not leaf.is_parameter or leaf.starves:
                continue
            missing = leaf.entries.missing()
            if missing is not None:
                drops = [(site_of(drop.tally), drop.how) for drop in self._recorder.zeros.drops.of(1 << bit)]
                are_rows = (
                    len(leaf.shape) > 1 and missing.without * missing.units == missing.dead_units * missing.entries
                )
                is_in_rows = are_rows and bool(drops) and drops[0][0].elements != drops[0][0].calls * missing.entries
                yield Partly(
                    leaf.name,
                    leaf.shape,
                    **missing._asdict(),
                    backwards=leaf.entries.looks,
                    cause=self._cause_of_dead_units(1 << bit, leaf, missing),
                    is_looked_up=leaf.is_looked_up,
                    is_shard=leaf.has_whole,
                    padding=leaf.padding,
                    drops=tuple(drops),
                    own_choice=self._own_choice(1 << bit, drops[0][0], is_in_rows) if drops else None,
                )

    def _own_choice(self, mask: int, site: Site, is_in_rows: bool) -> Structural | Site | None:
        """A comparison of values that depend on this leaf, if its result decides what happens at this op; or the op, if it has a threshold.

        is_in_rows: are whole rows without a gradient, as where a product with data lies in front of the op?
        """
        if site.upstream == mask and not is_in_rows and (site.family == "relu" or site.op in _THRESHOLDS):
            return site
        return next((cut for cut in self._cuts(mask) if cut.reaches_loss and site.where in cut.compared_at), None)

    def _cause_of_dead_units(self, mask: int, leaf: Leaf, missing: Missing) -> Site | None:
        """The op that may cause the dead units of a leaf: the Function that has the leaf as an input, else the nearest op that cuts.

        It is the Function only if more gradient arrives there than the living units alone can receive.
        """
        nearest_first = self._sites_to_loss(mask)[::-1]
        living = 1 - missing.dead_units / missing.units
        for site in nearest_first:
            if (OWN_NODE if site.is_own else site.op) == leaf.function and site.arrived / site.elements > living:
                return site
        return next((site for site in nearest_first if site.cut), None)


def _module_of(leaf: Leaf) -> str:
    return leaf.name.rpartition(".")[0]


def _siblings(name: str) -> Iterator[tuple[int, str]]:
    """For each number in a name: its position from the end, and the name without it. Layers of one list share such a name."""
    parts = name.split(".")
    for at, part in enumerate(parts[:-1]):
        if part.isdigit():
            yield at - len(parts), ".".join([*parts[:at], "", *parts[at + 1 :]])


def _agree(sentence: str, count: int) -> str:
    """The sentence, which is in the plural; if count is 1, in the singular."""
    verb, _, rest = sentence.partition(" ")
    if count > 1:
        return sentence
    return f"{'is' if verb == 'are' else verb + 's'} {rest}".replace("they learn", "it learns").replace("them", "it")
