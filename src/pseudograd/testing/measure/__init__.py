"""Measurements of any function: inputs, gradients by every way, what is saved, differences. They return values and assert nothing."""
