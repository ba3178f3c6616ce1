"""`compare`'s report: run the tasks, draw them, judge them by their numbers, and write one folder; or draw it again from there."""

from .against import side_by_side
from .own import results_of
from .read import FolderError, read
from .results import Results
from .run import compare
from .write import check_folder, set_aside, unfinished, write

__all__ = [
    "FolderError",
    "Results",
    "check_folder",
    "compare",
    "read",
    "results_of",
    "set_aside",
    "side_by_side",
    "unfinished",
    "write",
]
