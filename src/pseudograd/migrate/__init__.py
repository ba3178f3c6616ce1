"""Scripts that define popular classes themselves, made to import them: `pseudograd migrate`."""

from .edit import Migration, migrated

__all__ = ["Migration", "migrated"]
