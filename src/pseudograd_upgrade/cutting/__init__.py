"""The call that differs, cut out of its program: ten lines that print something else under each torch.

`recorder` records the arguments in the program's process. `shrink` makes the `call` smaller, `worker` runs it in both interpreters, and
`cut` checks the program that is left.
"""
