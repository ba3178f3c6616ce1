"""The step functions that replace the derivatives of gelu and silu under the rule "fewbit", by activation and number of bits.

They have the least mean squared error for an x from a standard normal distribution, by dynamic programming over thresholds 0.01 apart
(Novikov et al., "Few-bit backward", 2023, use a uniform weight on [-10, 10]). They are rounded to 8 significant bits, so every float dtype
has the same thresholds and slopes. The slopes at x and -x add up to 1, as the derivatives do. Both forms of gelu share the same numbers:
the difference of their derivatives is smaller than the rounding.
"""

from __future__ import annotations

from typing import NamedTuple


class StepFunction(NamedTuple):
    """Its value at x is slopes[k], where k is the number of thresholds that x is above."""

    thresholds: tuple[float, ...]
    slopes: tuple[float, ...]


FITTED: dict[str, dict[int, StepFunction]] = {
    "gelu": {
        2: StepFunction((-0.5, 0.0, 0.5), (-0.046875, 0.3125, 0.6875, 1.046875)),
        3: StepFunction(
            (-0.78125, -0.470703125, -0.2197265625, 0.0, 0.2197265625, 0.470703125, 0.78125),
            (-0.09375, 0.06640625, 0.23828125, 0.4140625, 0.5859375, 0.76171875, 0.93359375, 1.09375),
        ),
    },
    "silu": {
        2: StepFunction((-0.671875, 0.0, 0.671875), (0.03125, 0.34375, 0.65625, 0.96875)),
        3: StepFunction(
            (-1.1171875, -0.66015625, -0.310546875, 0.0, 0.310546875, 0.66015625, 1.1171875),
            (-0.0390625, 0.1171875, 0.26953125, 0.421875, 0.578125, 0.73046875, 0.8828125, 1.0390625),
        ),
    },
}
