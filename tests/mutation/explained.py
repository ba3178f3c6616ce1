"""Survivors that no test can kill, with the reason: (file, function, change) -> why."""

EXPLAINED: dict[tuple[str, str, str], str] = {
    ("ops/bound_rules.py", "_elastic", "share < 1 -> share <= 1"): "where share is 1, both branches are 1",
    ("ops/bound_rules.py", "_inverting", "grad < 0 -> grad <= 0"): "a grad of 0 is passed on by the line below",
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
}
