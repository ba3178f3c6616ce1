"""`pseudograd lint`: risky clamps in source, without running it. Nothing here imports torch or pseudograd, so that it starts at once."""

# What this package imports of its neighbours. tests/engine/test_import.py holds it.
USES = (
    "pseudograd_notices.code",
    "pseudograd_notices.command_line",
    "pseudograd_notices.formats",
    "pseudograd_notices.notice",
    "pseudograd_notices.options",
    "pseudograd_notices.source",
    "pseudograd_notices.workers",
)
