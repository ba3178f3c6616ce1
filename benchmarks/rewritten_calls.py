"""What a single rewritten call costs, forward and backward, beside torch's own and beside an empty mode of functions around it.

    python benchmarks/rewritten_calls.py [--check]

No context that sees the calls of torch can cost less than the empty mode.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
from collections.abc import Callable
from itertools import product

import torch
from torch import Tensor

import pseudograd as pg
from harness import EmptyMode, Limit, Route, Taken, judge, parser_of, ratio, time_routes
from pseudograd.torch_table.eras import ERAS, installed_era

PLAIN, EMPTY, OWN_ERA, OTHER_ERA = "torch's own", "an empty mode", "pin to the installed era", "pin to the other era"
CLOSED, INWARD = 'pin_edge("closed")', 'override(clamp="inward")'
SIZES = (10, 100_000, 1_000_000)
WARM = 64  # calls that are not timed: until then a processor is still learning what this context runs that the last one did not


CONTEXTS: dict[str, Callable[[], contextlib.AbstractContextManager[object]]] = {
    PLAIN: contextlib.nullcontext,
    EMPTY: EmptyMode,
    OWN_ERA: lambda: pg.pin_edge(installed_era()),
    OTHER_ERA: lambda: pg.pin_edge(next(era for era in ERAS if era != installed_era())),
    CLOSED: lambda: pg.pin_edge("closed"),
    INWARD: lambda: pg.override(clamp="inward"),
}

# By call, size, context and what it is compared with. The aim at 10 elements is 1.2 for all of them; README.md says what it would take.
NUMBERS, TENSORS = ("numbers", "a number"), ("tensors", "channels", "learned tensors")
CHANGED = (OTHER_ERA, CLOSED, INWARD)
PROMISES = {
    **{(call, 10, OWN_ERA, EMPTY): 1.0 for call in (*NUMBERS, *TENSORS)},
    **{("numbers", 10, context, EMPTY): 1.2 for context in CHANGED},
    **{("a number", 10, context, EMPTY): 1.3 for context in CHANGED},
    **{(call, 10, context, EMPTY): 1.5 for call, context in product(TENSORS, CHANGED)},
    **{(call, 100_000, context, PLAIN): 0.3 for call, context in product((*NUMBERS, *TENSORS), CHANGED)},
    **{(call, 1_000_000, context, PLAIN): 0.3 for call, context in product(("numbers", *TENSORS), CHANGED)},
}


def calls(size: int) -> dict[str, Callable[[], object]]:
    """Forward and backward. About half of x is outside its bounds."""
    generator = torch.Generator().manual_seed(0)
    x = (torch.randn(size, generator=generator) * 1.5).requires_grad_()
    grad = torch.randn(size, generator=generator)
    low, high = -torch.ones(size), torch.ones(size)
    learned_low, learned_high = low.clone().requires_grad_(), high.clone().requires_grad_()
    image = x.detach()[: max(size // 64 * 64, 1)]
    image = image.view((4, 16, -1) if size >= 64 else (1, 1, 1)).clone().requires_grad_()
    channels = -torch.ones(image.shape[1], 1), torch.ones(image.shape[1], 1)

    def both(forward: Callable[[], Tensor], *inputs: Tensor) -> Callable[[], object]:
        return lambda: torch.autograd.grad(forward(), inputs, grad[: inputs[0].numel()].view(inputs[0].shape))

    return {
        "numbers": both(lambda: torch.clamp(x, -1.0, 1.0), x),
        "a number": both(lambda: torch.clamp_min(x, -1.0), x),
        "tensors": both(lambda: torch.clamp(x, low, high), x),
        "a tensor": both(lambda: torch.clamp_min(x, low), x),
        "channels": both(lambda: torch.clamp(image, *channels), image),
        "learned tensors": both(lambda: torch.clamp(x, learned_low, learned_high), x, learned_low, learned_high),
        "fmax": both(lambda: torch.fmax(x, learned_low), x, learned_low),
    }


def main() -> int:
    options = parser_of(__doc__, rounds=31).parse_args()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, one thread, median of {options.rounds} rounds; x torch's own", flush=True)
    names = [name for name in CONTEXTS if name != PLAIN]
    print(f"{'call':<16} {'elements':>9} {'us':>9}" + "".join(f" {name:>25}" for name in names))
    results: dict[tuple[str, int], Taken] = {}
    for size in SIZES:
        for call, step in calls(size).items():
            routes = {name: Route(step, context) for name, context in CONTEXTS.items()}
            taken = results[call, size] = time_routes(routes, options.rounds, settles=WARM)
            ratios = "".join(f" {ratio(taken, name, PLAIN):>25.2f}" for name in names)
            print(f"{call:<16} {size:>9,} {statistics.median(taken[PLAIN]) * 1e6:>9.1f}{ratios}", flush=True)
    limits = [
        Limit(f"{context}, {call}, {size:,} elements, x {against}", ratio(results[call, size], context, against), limit)
        for (call, size, context, against), limit in PROMISES.items()
    ]
    return judge(limits, options.check)


if __name__ == "__main__":
    sys.exit(main())
