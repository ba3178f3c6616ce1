"""Survivors that no test can kill, with the reason: (file, function, change) -> why."""

EXPLAINED: dict[tuple[str, str, str], str] = {}
