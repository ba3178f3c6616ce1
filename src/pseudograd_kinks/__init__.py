"""The kink table: which gradient torch, JAX and TensorFlow give where a function has no slope, or a tie."""

# What this package imports from `pseudograd`: the whole interface between the two. tests/engine/test_import.py holds it.
USES = (
    "pseudograd.cli._arguments",
    "pseudograd.cli._command",
    "pseudograd.errors",
    "pseudograd.listen.program.files",
    "pseudograd.record",
    "pseudograd.torch_table.conventions",
    "pseudograd.torch_table.eras",
)
