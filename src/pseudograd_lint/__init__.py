"""`pseudograd lint`: risky clamps in source, without running it. Nothing here imports torch or pseudograd, so that it starts at once."""

USES = ()  # it imports nothing of `pseudograd`, which needs torch
