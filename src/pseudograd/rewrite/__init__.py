"""Change a backward rule without editing the code: override, pin_edge, convert."""

from .convert import convert
from .override import override
from .pin import pin_edge

__all__ = ["convert", "override", "pin_edge"]
