"""The public ops, one file per family."""

from .bounds import clamp, clamp_, hardtanh, lower_bound, relu, relu6, upper_bound

__all__ = ["clamp", "clamp_", "hardtanh", "lower_bound", "relu", "relu6", "upper_bound"]
