"""Checks of what must hold for every rule. Each takes a case, measures it with `measure`, and asserts."""
