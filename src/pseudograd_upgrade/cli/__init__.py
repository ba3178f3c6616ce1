"""The subcommands of `pseudograd` that this package adds: one file for each."""
