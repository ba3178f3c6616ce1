"""What a command needs around the program that it runs: the process, signals, what is printed, files written whole."""
