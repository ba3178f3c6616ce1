"""Look at a backward rule: its gradient as numbers, and as a picture."""

from .gradient import get_gradient, gradient
from .plot import plot

__all__ = ["get_gradient", "gradient", "plot"]
