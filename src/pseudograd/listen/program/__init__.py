"""What a command needs to run a program: its processes, signals and output, and files that are written whole."""
