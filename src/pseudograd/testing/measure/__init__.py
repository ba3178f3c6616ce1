"""Measurements of any function: inputs, gradients by every way, what is saved, differences.

They return values. `contract` asserts what must hold of them.
"""
