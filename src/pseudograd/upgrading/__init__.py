"""`pseudograd upgrade`: what differs first between a training under one torch and under another.

In a process of the program: `following` hears it, `digests` makes four numbers of a tensor, `schedule` says of which steps, `pinning` pins
lines. Here: `interpreters` are asked whether they can, `runs` runs in them, `recorded` is what came back and the file of it, `differences`
compares two, `answer` says what it was, and `upgrade` does one after the other.
"""
