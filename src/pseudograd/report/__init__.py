"""`compare`'s report: run the tasks, draw them, judge them by their numbers, and write one folder."""

from .run import Results, compare
from .write import check_folder, write

__all__ = ["Results", "check_folder", "compare", "write"]
