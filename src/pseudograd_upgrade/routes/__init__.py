"""`pseudograd upgrade --routes`: what differs first between two ways through one torch.

In a process of the program: `regions` says what is compiled and hears it as one block, `segments` cuts a compiled graph at the program's
lines, and `hearing` joins them to what hears an upgrade. Here: `names` knows the routes, `runs` runs the program on one, and `question`
goes down from the first block that differs to the line in it.
"""
