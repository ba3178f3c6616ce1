"""Survivors that no test can kill, with the reason: (file, function, change) -> why."""

EXPLAINED: dict[tuple[str, str, str], str] = {
    (
        "ops/bounds.py",
        "_checked",
        "len(call.admitted) > 1000 -> len(call.admitted) >= 1000",
    ): "when the memory of passed checks is emptied makes no difference to any value",
}
