"""Measurements of any function: inputs, gradients by every way, what is saved, differences.

They return values; what must hold of these, `contract` asserts.
"""
