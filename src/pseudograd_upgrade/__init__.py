"""`pseudograd upgrade`: the first difference between a training under one torch and under another.

`runs` runs the program in interpreters. In its process `recorder` records it, and `digests` computes four numbers of a
tensor. `recording` holds the result, `differences` compares two recordings, and `upgrade` decides which runs are
necessary for an `answer`; `suite` asks that of each test of a suite, and `suite_plugin` and `suite_recorder` follow the tests. `cutting`
makes a program of the call that differs; `routes` compares two routes through one torch.
"""

# What this package imports from `pseudograd`: the whole interface between the two. tests/engine/test_import.py holds it.
USES = (
    "pseudograd.dynamo",
    "pseudograd.errors",
    "pseudograd.listen.frames",
    "pseudograd.listen.harmless",
    "pseudograd.listen.hooks",
    "pseudograd.listen.listener",
    "pseudograd.listen.nodes",
    "pseudograd.listen.patches",
    "pseudograd.listen.program.files",
    "pseudograd.listen.program.follow",
    "pseudograd.listen.program.process",
    "pseudograd.listen.program.signals",
    "pseudograd.rewrite.pin_edge",
    "pseudograd.rewrite.standard_input",
    "pseudograd.torch_table.eras",
    "pseudograd.torch_table.private",
    "pseudograd.wording",
    "pseudograd_notices.answers",
    "pseudograd_notices.options",
    "pseudograd_notices.settings",
)
