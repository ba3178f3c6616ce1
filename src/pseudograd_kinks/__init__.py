"""The kink table: which gradient torch, JAX and TensorFlow give where a function has no slope, or a tie.

table.json holds the points and their measured gradients. `table` reads it; `check` and `against` compare the installed torch with it;
`collect` measures it anew.
"""

# What this package imports from `pseudograd`: the whole interface between the two. tests/engine/test_import.py holds it.
USES = (
    "pseudograd.cli._arguments",
    "pseudograd.doctor",
    "pseudograd.errors",
    "pseudograd.listen.program.files",
    "pseudograd.listen.program.signals",
    "pseudograd.record",
    "pseudograd.rewrite.pin_edge",
    "pseudograd.torch_table.conventions",
    "pseudograd.torch_table.eras",
)
