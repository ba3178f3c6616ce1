"""`pseudograd upgrade`: the first difference between a training under one torch and under another.

In a process of the program: `following` hears it, `digests` makes four numbers of a tensor, `schedule` says of which steps, `changing` pins
lines and moves parameters. Here: `runs` runs the program in interpreters, `recording` is what comes back and the file of it,
`differences` compares two recordings, `growth` knows magnified rounding, `upgrade` asks one thing after the other, and `answer` says it.
`cutting` makes a program of the call that differs, `routes` compares two routes through one torch.
"""

# What this package imports from `pseudograd`: the whole interface between the two. tests/engine/test_import.py holds it.
USES = (
    "pseudograd.cli._arguments",
    "pseudograd.dynamo",
    "pseudograd.errors",
    "pseudograd.listen.frames",
    "pseudograd.listen.harmless",
    "pseudograd.listen.listener",
    "pseudograd.listen.nodes",
    "pseudograd.listen.patches",
    "pseudograd.listen.program.files",
    "pseudograd.listen.program.follow",
    "pseudograd.listen.quietly",
    "pseudograd.notebook",
    "pseudograd.rewrite.context",
    "pseudograd.rewrite.mode",
    "pseudograd.rewrite.pin_edge",
    "pseudograd.rewrite.sites",
    "pseudograd.rewrite.standard_input",
    "pseudograd.torch_table.eras",
    "pseudograd.torch_table.private",
    "pseudograd.wording",
)
