"""Change backward rules without editing the program: override, pin_edge and convert, each in the file of its name."""
