"""Rewritten calls that were made before: what does not depend on the values of x and of tensor bounds is decided once.

At ten elements a rewritten call is to cost little more than an empty mode of functions around torch's own, so each line here counts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from types import FrameType
from typing import NamedTuple

import torch
from torch import Tensor

from .. import engine
from ..arguments import has_negative_zero
from ..formula import own
from ..rule import Call, prepared, remember
from ..torch_table.forms import KINKED
from ..torch_table.private import node_number
from ..torch_table.records import Arguments, Inputs, Keywords
from .entered_contexts import Entered
from .report import Log, Tallied

_PLAIN = (Tensor, torch.nn.Parameter)


class Known(NamedTuple):
    """A call of one function of torch in one context. run(x, *tensors): its result, or None where it has to be read anew.

    is_given_all: its arguments are tensors and nothing else. has_zero: a number is 0, of which a table does not see the sign.
    """

    run: Callable[..., Tensor | None]
    op: str
    rule: str
    has_tensors: bool
    is_given_all: bool
    has_zero: bool
    tallied: dict[tuple[int, int], Tallied]  # by the line of the program


def run_known(mode: Entered, calls: dict[object, Known], args: Arguments, kwargs: Keywords) -> Tensor | None:
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
        result = known.run(*(args if known.is_given_all and not kwargs else _tensors((*args, *kwargs.values()))))
    elif known.has_zero and has_negative_zero((*args[1:], *kwargs.values())):
        return None
    else:
        result = known.run(x)
    log = mode.log
    if result is not None and log is not None:
        caller = sys._getframe(2)
        tallied = known.tallied.get((id(caller.f_code), caller.f_lasti))
        if tallied is None:
            _note_first(log, known, caller)
        else:
            tallied.calls += 1
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


def _tensors(values: Iterable[object]) -> list[Tensor]:
    return [value for value in values if isinstance(value, Tensor) and type(value) in _PLAIN]


def _note_first(log: Log, known: Known, caller: FrameType) -> None:
    """Only a line of the program tells where the call is: a line of a package may be reached from many."""
    tallied = log.count(known.op, known.rule, None)
    if tallied.call is not None and tallied.call == tallied.program and tallied.call.code is caller.f_code:
        # It keeps the code, so that no other one gets its id.
        known.tallied[id(caller.f_code), caller.f_lasti] = tallied


def remember_call(
    mode: Entered,
    func: object,
    args: Arguments,
    kwargs: Keywords,
    op: str,
    rule: str,
    call: Call,
    inputs: Inputs,
    in_place: bool,
) -> None:
    """After the second call of a function that was read and rewritten, if the next one like it needs less."""
    if func not in mode.rewritten:
        mode.rewritten.add(func)
        return
    x = inputs[0]
    if type(x) is not Tensor or not args or x is not args[0]:
        return
    argument_ids, input_ids = list(map(id, _tensors((*args, *kwargs.values())))), list(map(id, _tensors(inputs)))
    has_tensors = any(isinstance(value, Tensor) for value in inputs[1:])
    if has_tensors and (argument_ids != input_ids or len(set(input_ids)) < len(input_ids)):
        return  # if one comes twice, nobody knows which is which
    for kinked in KINKED.get(func, ()) if mode.kinks else ():
        if kinked.kink.pick or kinked.family in mode.kinks:
            return  # a pin reads its calls each time
    try:
        key = _key_of(args, kwargs)
        memory = prepared.get(mode) or remember(prepared, mode, {})
        calls = memory.setdefault(func, {})
        if key in calls:  # it leaves some calls to be read, and to make it takes longer than that
            return
        run = engine.find_ready(call, inputs, in_place)
        if run is not None:
            is_given_all = has_tensors and len(_tensors(args)) == len(args)
            has_zero = not has_tensors and 0 in inputs[1:]
            remember(calls, key, Known(run, op, rule, has_tensors, is_given_all, has_zero, {}))
    except TypeError:
        return
