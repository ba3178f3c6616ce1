"""Survivors that no test can kill, with the reason: (file, function, change) -> why."""

EXPLAINED: dict[tuple[str, str, str], str] = {
    ("ops/bound_rules.py", "_elastic", "share < 1 -> share <= 1"): "where share is 1, both branches are 1",
    ("ops/bound_rules.py", "_inverting", "grad < 0 -> grad <= 0"): "a grad of 0 is passed on by the line below",
}
