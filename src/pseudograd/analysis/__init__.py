"""Look at a backward rule: its gradient as numbers, and as a picture."""

from .drawing import plot
from .slopes import get_gradient, gradient

__all__ = ["get_gradient", "gradient", "plot"]
