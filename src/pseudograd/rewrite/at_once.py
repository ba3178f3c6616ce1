"""Rewritten calls that were made before: what does not depend on the values of x and of tensor bounds is decided once.

At ten elements a rewritten call is to cost little more than an empty mode of functions around torch's own, so each line here counts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .. import engine
from ..arguments import has_negative_zero
from ..formula import own
from ..rule import Call, prepared, remember
from ..torch_table.forms import KINKED
from ..torch_table.private import node_number
from ..torch_table.records import Arguments, Keywords
from .report import Log, Tallied

_PLAIN = (Tensor, torch.nn.Parameter)


class Known:
    """A call of one function of torch in one context. run(x, *tensors): its result, or None where it has to be read anew."""

    __slots__ = ("has_tensors", "has_zero", "is_given_all", "op", "places", "rule", "run")

    def __init__(
        self,
        run: Callable[..., Tensor | None],
        op: str,
        rule: str,
        has_tensors: bool,
        has_zero: bool,
        is_given_all: bool,
    ) -> None:
        self.run = run
        self.op = op
        self.rule = rule
        self.has_tensors = has_tensors
        self.is_given_all = is_given_all  # its arguments are tensors and nothing else
        self.has_zero = has_zero  # a number, of which a table does not see the sign
        self.places: dict[tuple[int, int], Tallied] = {}


def run_known(mode: Any, calls: dict[tuple[object, ...], Known], args: Arguments, kwargs: Keywords) -> Tensor | None:
    """The result of a call of a function of which `mode` has seen these; None for every other, which it has to read."""
    if not args or own.depth:
        return None
    x = args[0]
    if type(x) is not Tensor:
        return None
    try:
        # Written out, because these are most of them.
        if not kwargs and len(args) == 3:
            _, low, high = args
            known = calls.get(
                (x.dtype, Tensor if type(low) in _PLAIN else low, Tensor if type(high) in _PLAIN else high)
            )
        elif not kwargs and len(args) == 2:
            known = calls.get((x.dtype, Tensor if type(args[1]) in _PLAIN else args[1]))
        else:
            known = calls.get(_key_of(args, kwargs))
    except TypeError:  # one of them cannot be what it should
        return None
    if known is None:
        return None
    if known.has_tensors:
        result = known.run(*(args if known.is_given_all and not kwargs else _tensors(args, kwargs)))
    elif known.has_zero and has_negative_zero((*args[1:], *kwargs.values())):
        return None
    else:
        result = known.run(x)
    if result is not None:
        log, caller = mode.log, sys._getframe(2)
        place = known.places.get((id(caller.f_code), caller.f_lasti))
        if place is None:
            _note_first(log, known, caller)
        else:
            place.calls += 1
        log.nodes.seen_up_to = node_number()
    return result


def _key_of(args: Arguments, kwargs: Keywords) -> tuple[object, ...]:
    """Tensors behind x are alike: their dtypes and shapes are for `run`."""
    key = [args[0].dtype]
    for value in args[1:]:
        key.append(Tensor if type(value) in _PLAIN else value)
    for name, value in kwargs.items():
        key += (name, Tensor if type(value) in _PLAIN else value)
    return tuple(key)


def _tensors(args: Arguments, kwargs: Keywords) -> list[Tensor]:
    return [value for value in (*args, *kwargs.values()) if type(value) in _PLAIN]


def _are_in_order(arguments: list[Tensor], inputs: list[Tensor]) -> bool:
    """Do the tensors come as the call takes them? If one comes twice, nobody knows which is which."""
    ids = list(map(id, arguments))
    return ids == list(map(id, inputs)) and len(set(ids)) == len(ids)


def _note_first(log: Log, known: Known, caller: Any) -> None:
    """Only a line of the program tells where the call is: a line of a package may be reached from many."""
    tallied = log.count(known.op, known.rule, None)
    if tallied.call is not None and tallied.call == tallied.program and tallied.call.code is caller.f_code:
        known.places[id(caller.f_code), caller.f_lasti] = tallied  # it keeps the code, so that no other one gets its id


def remember_call(
    mode: Any,
    func: object,
    args: Arguments,
    kwargs: Keywords,
    op: str,
    rule: str,
    call: Call,
    inputs: tuple[object, ...],
) -> None:
    """After a call that was read and rewritten, if the next one like it needs less."""
    x = inputs[0]
    if type(x) is not Tensor or not args or x is not args[0]:
        return
    has_tensors = False
    for value in inputs[1:]:
        has_tensors = has_tensors or isinstance(value, Tensor)
    if has_tensors and not _are_in_order(_tensors(args, kwargs), _tensors(inputs, {})):
        return
    has_zero = not has_tensors and 0 in inputs[1:]
    for kinked in KINKED.get(func, ()) if mode.kinks else ():
        if kinked.kink.pick or kinked.family in mode.kinks:
            return  # a pin reads its calls each time
    try:
        key = _key_of(args, kwargs)
        memory = prepared.get(mode) or remember(prepared, mode, {})
        calls = memory.setdefault(func, {})
        if key in calls:  # it leaves some calls to be read, and to make it takes longer than that
            return
        run = engine.ready(call, inputs)
        if run is None:
            return
        is_given_all = len(_tensors(args, {})) == len(args) if has_tensors else False
        remember(calls, key, Known(run, op, rule, has_tensors, has_zero, is_given_all))
    except TypeError:
        return
