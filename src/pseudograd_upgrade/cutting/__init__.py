"""The call that differs, cut out of its program: ten lines that print something else under each torch.

In a process of the program: `keeping` waits for the call, `kept` is what it reads, `memory` as it was, `names` how torch's users call it.
Here: a `call` in terms of `trees` and tensors, `workers` that run it in both interpreters, `shrinking` by `smaller` and `simpler` ones,
`literals` and `text` as a program, and `cut` does one after the other.
"""
