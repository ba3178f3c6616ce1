"""Replace the classes that an old script or notebook defines by the import of the same class from `pseudograd.familiar`."""

from .edit import Migration, make_migration

__all__ = ["Migration", "make_migration"]
