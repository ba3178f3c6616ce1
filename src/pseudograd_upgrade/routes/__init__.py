"""`pseudograd upgrade --routes`: the first difference between two routes through one torch.

In the program's process `blocks` records each compiled part as one block, `segments` cuts a compiled graph at the program's lines, and
`drawing` draws a device's random numbers on the CPU. `question` goes from the first block that differs to the line in it.
"""
