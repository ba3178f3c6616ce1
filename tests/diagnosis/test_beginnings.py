"""Before the first call nothing is counted, and nothing is known."""

from typing import Any

import torch
from torch import nn

from pseudograd.diagnosis.count import (
    births,
    influence,
    names,
    nonfinite,
    norms,
    on_device,
    optimisers,
    recorder,
    sensitivity,
    stalls,
    tally,
    values,
    whatif,
    windows,
)
from pseudograd.diagnosis.count.leaf import Entries, EverTrue, Leaf
from pseudograd.diagnosis.count.leaves import Leaves
from pseudograd.listen.frames import NOWHERE
from pseudograd.listen.harmless import Errors
from pseudograd.torch_table.forms import SPELLINGS


def test_nothing_is_known_at_the_beginning() -> None:
    leaves, parameter, whole = Leaves("key", {}), nn.Parameter(torch.zeros(2)), recorder.Recorder(True)
    owner, optimizer = names.Owner(nn.ReLU(), False), torch.optim.SGD([parameter], 0.1)
    sums: Any = tally.Tally("MulBackward0", NOWHERE, leaves)
    records: list[Any] = [
        *(leaves, whole, sums, Leaf(0, parameter, names.Names(), 0), Entries(False), EverTrue(), owner, norms.Facts()),
        *(norms.Sizes(), norms.Losses(), norms.Series(), sensitivity._Shares(), values.Climb(), influence.Followed),
        *(influence.Cut("", NOWHERE, 0, 0), influence.ConstantTerm(NOWHERE, 0), recorder._Thread()),
        *(influence.Influence(leaves, whole.locations), on_device.Ledger(torch.device("cpu"), False)),
        *(stalls.ParameterSteps(parameter, None), stalls.Batch(torch.half), stalls._Optimiser()),
        *(optimisers.SteppedOptimiser(optimizer), optimisers.Optimisers(leaves, bool, Errors())),
        *(nonfinite.Nonfinite(whole, bool), nonfinite._Search([], False), whatif._Pass(), whatif.WhatIf("", {})),
        *(births.Birth(sums, "", "log", 0, 0, 0, "", torch.half, 0), windows.Windows(parameter.detach())),
        values.Values(SPELLINGS[torch.clamp], NOWHERE, torch.zeros(0), 0, 1),
    ]
    known = [(name, value) for record in records for name, value in vars(record).items()]
    begun = [f"{name}={value}" for name, value in known if isinstance(value, (int, float)) and value and value == value]
    assert " ".join(begun) == (
        "is_full=True is_loss_finite=True may_break=True is_parameter=True is_finite=True "
        "_interval=1 direct_bit=2 bits=3 size=2 is_half=True is_counted=True eps=1.0"
    )
