"""Change a backward rule without editing the code: override, pin_edge, convert."""

from .override import override
from .pin import pin_edge

__all__ = ["override", "pin_edge"]
