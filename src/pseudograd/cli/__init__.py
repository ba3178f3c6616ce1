"""The commands that need the library, one file each; see `pseudograd_notices.command_line`."""

from pseudograd_notices.command_line import main

__all__ = ["main"]
