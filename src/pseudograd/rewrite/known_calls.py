"""Run a rewritten call that is like an earlier one. All that does not depend on the values of x and of tensor bounds was decided then.

Other calls are *read*: the row of their function arranges the arguments for a primitive. At ten elements, a rewritten call should cost
little more than torch's own call under an empty mode of functions. So each line here counts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from types import FrameType
from typing import NamedTuple

from torch import Tensor

from .. import engine
from ..arguments import has_negative_zero
from ..formula import our_formulas
from ..kernels.table import PLAIN
from ..rule import Call, prepared, remember
from ..torch_table.forms import KINKED
from ..torch_table.private import node_number
from ..torch_table.records import Arguments, Inputs, Keywords
from .entered_contexts import Entered
from .report import Log, Tallied


class KnownCall(NamedTuple):
    """How to run the calls with one key. op, rule: for the report."""

    run: Callable[..., Tensor | None]  # run(x, *tensors): the result; None for a call that has to be read
    op: str
    rule: str
    has_tensors: bool  # is a bound a tensor?
    has_only_tensors: bool  # are all positional arguments tensors?
    has_zero: bool  # is a number 0 or -0, which have the same key?
    tallied: dict[tuple[int, int], Tallied]  # by the line of the program


def run_known(mode: Entered, calls: dict[object, KnownCall], args: Arguments, kwargs: Keywords) -> Tensor | None:
    """The result of a call that is like one of `calls`, those of its function; None for another call, which has to be read."""
    if not args or our_formulas.depth:
        return None
    x = args[0]
    if type(x) is not Tensor:
        return None
    try:
        # The keys of the two usual forms are written out, because `_key_of` takes longer.
        if not kwargs and len(args) == 3:
            _, low, high = args
            known = calls.get((x.dtype, Tensor if type(low) in PLAIN else low, Tensor if type(high) in PLAIN else high))
        elif not kwargs and len(args) == 2:
            known = calls.get((x.dtype, Tensor if type(args[1]) in PLAIN else args[1]))
        else:
            known = calls.get(_key_of(args, kwargs))
    except TypeError:  # an argument cannot be hashed
        return None
    if known is None:
        return None
    if known.has_tensors:
        result = known.run(
            *(args if known.has_only_tensors and not kwargs else _plain_tensors((*args, *kwargs.values())))
        )
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
    """What tells the calls of one function apart. All tensors behind x are alike here: `run` checks their dtypes and shapes."""
    key = [args[0].dtype]
    for value in args[1:]:
        key.append(Tensor if type(value) in PLAIN else value)
    for name, value in kwargs.items():
        key += (name, Tensor if type(value) in PLAIN else value)
    return tuple(key)


def _plain_tensors(values: Iterable[object]) -> list[Tensor]:
    return [value for value in values if isinstance(value, Tensor) and type(value) in PLAIN]


def _note_first(log: Log, known: KnownCall, caller: FrameType) -> None:
    """Count a call at a line without a tally. A tally is kept only if the program itself calls torch there: one line of a package may serve
    many lines of the program.
    """
    tallied = log.count(known.op, known.rule, None)
    if tallied.call is not None and tallied.call == tallied.program and tallied.call.code is caller.f_code:
        # `tallied` keeps the code alive, so that no other code gets its id.
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
    """Remember how to run calls like this one, which was read and rewritten. The first call of each function is not remembered."""
    if func not in mode.rewritten:
        mode.rewritten.add(func)
        return
    x = inputs[0]
    if type(x) is not Tensor or not args or x is not args[0]:
        return
    argument_ids, input_ids = (
        list(map(id, _plain_tensors((*args, *kwargs.values())))),
        list(map(id, _plain_tensors(inputs))),
    )
    has_tensors = any(isinstance(value, Tensor) for value in inputs[1:])
    if has_tensors and (argument_ids != input_ids or len(set(input_ids)) < len(input_ids)):
        return  # the key would not say which argument is which input
    for kinked in KINKED.get(func, ()) if mode.conventions else ():
        if kinked.kink.pick or kinked.family in mode.conventions:
            return  # a pin of this kink has to read each call
    try:
        key = _key_of(args, kwargs)
        memory = prepared.get(mode) or remember(prepared, mode, {})
        calls = memory.setdefault(func, {})
        if key in calls:  # its `run` left this call to be read; a new `run` would do the same
            return
        run = engine.find_ready(call, inputs, in_place)
        if run is not None:
            has_only_tensors = has_tensors and len(_plain_tensors(args)) == len(args)
            has_zero = not has_tensors and 0 in inputs[1:]
            remember(calls, key, KnownCall(run, op, rule, has_tensors, has_only_tensors, has_zero, {}))
    except TypeError:
        return
