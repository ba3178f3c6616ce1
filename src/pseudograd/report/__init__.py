"""`compare`'s report: from outcomes, of tasks or of a comparison, to one folder with their words and pictures; or again from there."""

from .against import side_by_side
from .read import FolderError, read
from .results import Results
from .sources import compare, results_of
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
