"""What can be imported here."""

import functools
import importlib


@functools.cache
def can_import(name: str) -> bool:
    """A package may be there and ask for another torch."""
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True
