"""Survivors that no test can kill, with the reason: (file, function, change) -> why."""

EXPLAINED: dict[tuple[str, str, str], str] = {
    (
        "ops/bounds.py",
        "_checked",
        "len(call.admitted) > 1000 -> len(call.admitted) >= 1000",
    ): "when the memory of passed checks is emptied makes no difference to any value",
    (
        "nn.py",
        "_any_input",
        "1 -> 2",
    ): "the dimensions beside the axis may have any size, and there may be more of them",
}
