"""`pseudograd upgrade --routes`: the first difference between two routes through one torch.

In a process of the program: `regions` says what is compiled and hears it as one block, `segments` cuts a compiled graph at the program's
lines, `hearing` and `following` join them to what hears an upgrade, and `drawing` draws a device's random numbers on the CPU. Here:
`interpreters` knows the routes, and `question` goes down from the first block that differs to the line in it.
"""
