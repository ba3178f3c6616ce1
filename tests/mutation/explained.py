"""Survivors that no test can kill, with the reason: (file, function, change) -> why."""

BY_ITSELF = (
    "autograd itself sums a gradient to the shape of its input and casts it to its dtype; done here to be sure of it"
)

EXPLAINED: dict[tuple[str, str, str], str] = {
    (
        "kernels/portable.py",
        "_neighbour",
        "abs(value) < torch.finfo(dtype).tiny -> abs(value) <= torch.finfo(dtype).tiny",
    ): "at the smallest normal number both ways of counting give the same step",
    (
        "ops/bounds.py",
        "_checked",
        "len(call.admitted) > 1000 -> len(call.admitted) >= 1000",
    ): "when the memory of passed checks is emptied makes no difference to any value",
    ("engine.py", "_deliver", "grad.shape != shape -> grad.shape == shape"): BY_ITSELF,
    ("engine.py", "_deliver", "grad.dtype != dtype -> grad.dtype == dtype"): BY_ITSELF,
    (
        "engine.py",
        "_deliver",
        "grad.dtype != dtype or grad.device != device -> grad.dtype != dtype and grad.device != device",
    ): BY_ITSELF,
    (
        "engine.py",
        "_deliver",
        "grad.device != device -> grad.device == device",
    ): "a 0-d bound on the CPU beside x on another device: needs an accelerator",
    (
        "engine.py",
        "find_spec",
        "spec is None or spec.loader is None -> spec is None and spec.loader is None",
    ): "torch._dynamo is always found, with a loader",
}
