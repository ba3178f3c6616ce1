"""The call that differs, cut out of its program: ten lines that print something else under each torch.

In a process of the program `keeping` keeps the call, as `text`. Here `workers` run a `call` in both interpreters, `shrink` makes it
smaller, and `cut` does one after the other.
"""
