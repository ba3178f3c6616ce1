"""`compare`'s report: run the tasks, draw them, judge them by their numbers, and write one folder; or draw it again from there."""

from .read import FolderError, read
from .results import Results
from .run import compare
from .write import check_folder, write

__all__ = ["FolderError", "Results", "check_folder", "compare", "read", "write"]
