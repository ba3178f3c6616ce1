"""Checks of what must hold for every rule of the table. Each takes a case, measures it with `measure`, and asserts."""
