"""Change a backward rule without editing the code: override, pin_edge, convert."""

from .modules import convert
from .pin import pin_edge
from .switches import override

__all__ = ["convert", "override", "pin_edge"]
