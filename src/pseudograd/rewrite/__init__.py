"""Change a backward rule without editing the code: override, pin_edge, convert, each in the file of its name."""
