"""What torch's own ops do exactly at a bound, in each era. torch 2.14 changed it without an error.

`FORMS` holds the measured slopes dy/dx (and what a tensor bound gets) where x equals the bound; `measure` measures the installed torch.
`scripts/measure_torch_facts.py` prints the measurement, and a test holds the table against every torch the suite runs on.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

CLOSED_ERA, OPEN_ERA = "torch<=2.13", "torch>=2.14"
ERAS = (CLOSED_ERA, OPEN_ERA)


class Slopes(NamedTuple):
    """At the bound: what of grad goes to x, and what to the bound where that is a tensor (None where it is a number)."""

    x: float
    bound: float | None = None


class Form(NamedTuple):
    """A way to write a clamp with torch. `f(x, bound)` is called with x == bound == 0."""

    f: Callable[[Tensor, Tensor], Tensor]
    slopes: dict[str, Slopes]


def _form(
    f: Callable[[Tensor, Tensor], Tensor], closed_era: tuple[float, ...], open_era: tuple[float, ...] | None = None
) -> Form:
    return Form(f, {CLOSED_ERA: Slopes(*closed_era), OPEN_ERA: Slopes(*(closed_era if open_era is None else open_era))})


def _fake_quantize(x: Tensor, bound: Tensor) -> Tensor:
    """Scale 1 and grid 0..15: the least grid value is the bound."""
    return torch.fake_quantize_per_tensor_affine(x, 1.0, 0, 0, 15)


FORMS: dict[str, Form] = {
    "clamp(x, min=0)": _form(lambda x, b: torch.clamp(x, min=0.0), (1.0,), (0.0,)),
    "clamp(x, max=0)": _form(lambda x, b: torch.clamp(x, max=0.0), (1.0,), (0.0,)),
    "clip(x, 0, 1)": _form(lambda x, b: torch.clip(x, 0.0, 1.0), (1.0,), (0.0,)),
    "x.clamp_(0, 1)": _form(lambda x, b: (x * 1).clamp_(0.0, 1.0), (1.0,), (0.0,)),
    "clamp_min(x, 0)": _form(lambda x, b: torch.clamp_min(x, 0.0), (1.0,), (0.0,)),
    "clamp(x, 0, 0)": _form(lambda x, b: torch.clamp(x, 0.0, 0.0), (1.0,), (0.0,)),
    "clamp(x, min=tensor)": _form(lambda x, b: torch.clamp(x, min=b), (1.0, 0.0), (0.5, 0.5)),
    "clamp(x, max=tensor)": _form(lambda x, b: torch.clamp(x, max=b), (1.0, 0.0), (0.5, 0.5)),
    "maximum(x, tensor)": _form(lambda x, b: torch.maximum(x, b), (0.5, 0.5)),
    "minimum(x, tensor)": _form(lambda x, b: torch.minimum(x, b), (0.5, 0.5)),
    "fmax(x, tensor)": _form(lambda x, b: torch.fmax(x, b), (1.0, 0.0), (0.5, 0.5)),
    "fmin(x, tensor)": _form(lambda x, b: torch.fmin(x, b), (1.0, 0.0), (0.5, 0.5)),
    "where(x >= tensor, x, tensor)": _form(lambda x, b: torch.where(x >= b, x, b), (1.0, 0.0)),
    "relu(x)": _form(lambda x, b: torch.relu(x), (0.0,)),
    "relu6(x)": _form(lambda x, b: functional.relu6(x), (0.0,)),
    "hardtanh(x, 0, 1)": _form(lambda x, b: functional.hardtanh(x, 0.0, 1.0), (0.0,)),
    "fake_quantize(x), least grid value": _form(_fake_quantize, (1.0,)),
}


def measure(form: Form) -> Slopes:
    """The slopes of torch as it is here, inside whatever mode is entered."""
    with torch.inference_mode(False), torch.enable_grad():
        x, bound = torch.zeros(1, requires_grad=True), torch.zeros(1, requires_grad=True)
        grad_x, grad_bound = torch.autograd.grad(form.f(x, bound).sum(), (x, bound), allow_unused=True)
    return Slopes(float(grad_x), None if grad_bound is None else float(grad_bound))


def era_of(version: str) -> str:
    """The era of a torch version such as "2.13.0+cpu"."""
    major, minor = (int(part) for part in version.split("+")[0].split(".")[:2])
    return CLOSED_ERA if (major, minor) <= (2, 13) else OPEN_ERA


Measured = TypeVar("Measured")


def outside_every_mode(measurement: Callable[[], Measured]) -> Measured:
    """In a thread of its own: modes, transforms and the default device belong to the thread that entered them."""
    with ThreadPoolExecutor(max_workers=1) as own_thread:
        return own_thread.submit(measurement).result()


@functools.cache
def installed_era() -> str:
    """The era that the installed torch behaves as, by measurement, whatever is entered where this is asked."""
    slopes = outside_every_mode(lambda: measure(FORMS["clamp(x, min=0)"]))
    return CLOSED_ERA if slopes.x == 1 else OPEN_ERA


installed_era._dynamo_marked_constant = True  # type: ignore[attr-defined]  # as torch.compiler.assume_constant_result, without its import


RULE_OF_ERA = {CLOSED_ERA: "zero/closed", OPEN_ERA: "zero/open"}  # with number bounds
