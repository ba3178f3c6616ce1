"""Your own case: train what you like with each rule's clamp, over seeds, and say which differ."""

from .comparing import compare
from .comparison import Comparison
from .tuning import Tuning, tune

__all__ = ["Comparison", "Tuning", "compare", "tune"]
