"""Runs of a program that a test writes as numbers."""

from pseudograd_upgrade.recording import Digest, Event, Origin, Recording, load_recording

ORIGINS = [
    ["forward", "linear", "train.py:1", "train.py:1", "linear(x)"],
    ["forward", "gelu", "train.py:2", "train.py:2", "gelu(x)"],
    ["backward", "GeluBackward0", "train.py:2", "train.py:2", "gelu(x)"],
    ["leaf", "torch::autograd::AccumulateGrad", "?", "?", ""],
    ["forward", "silu", "train.py:3", "train.py:3", "silu(x)"],
    ["backward", "SiluBackward0", "train.py:3", "train.py:3", "silu(x)"],
    ["update", "SGD.step", "train.py:4", "train.py:4", ""],
    ["update", "Adam.step", "train.py:5", "train.py:5", ""],
    ["backward", "ClampBackward1", "package/gate.py:7", "train.py:6", "x.clamp(0, 1)"],
    ["backward", "ClampBackward1", "package/gate.py:7", "train.py:8", "x.clamp(0, 1)"],
]
# The positions of origins in ORIGINS
LINEAR, GELU, GELU_GRAD, LEAF, SILU, SILU_GRAD, SGD, ADAM, CLAMP_GRAD, OTHER_CLAMP_GRAD = range(len(ORIGINS))


def run(
    *events: tuple[int, float] | tuple[int, float, str],
    losses: tuple[float, ...] = (1.0,),
    dtype: str = "float32",
    step: int = 1,
    status: int = 0,
    origins: list[list[str]] = ORIGINS,
    **raw: object,
) -> Recording:
    """A run with the events of one step: the number of an origin, a number in its tensor, and the options of the op."""
    made = [
        Event(Origin(*origins[at]), "".join(options), (Digest(f"{dtype} [4]", (x, abs(x), x / 2, 4.0)),))
        for at, x, *options in events
    ]
    content = {"torch": "2.13.0", "steps": {step: made}, "losses": [[loss] for loss in losses], **raw}
    return load_recording(content, status)
