"""An interpreter with the installed torch in which a test changes functions, as if torch itself had changed them."""

from __future__ import annotations

import sys
from pathlib import Path

# A script that changes torch and then runs a program as python does. The change has the name of a file of torch's optimisers.
_PYTHON = """\
#!{python}
import os, runpy, sys
import torch

CHANGE = '''
import functools
from torch.overrides import handle_torch_function, has_torch_function

def replaced(owner, name):  # modes see a call of the planted function as a call of torch's
    known = getattr(owner, name)
    def replace(function):
        @functools.wraps(known)
        def call(*args, **kwargs):
            tensors = tuple(value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor))
            if has_torch_function(tensors):
                return handle_torch_function(call, tensors, *args, **kwargs)
            return function(known, *args, **kwargs)
        setattr(owner, name, call)
    return replace
{change}
'''
file = os.path.join(os.path.dirname(torch.__file__), "optim", "planted.py")
exec(compile(CHANGE, file, "exec"), {{"torch": torch}})
if sys.argv[1] == "-c":
    exec(sys.argv[2], {{"__name__": "__main__"}})
else:
    sys.path[0], sys.argv = os.path.dirname(os.path.abspath(sys.argv[1])), sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
"""


def planted(change: str) -> str:
    """The path of the interpreter. change: source in which @replaced(owner, name) decorates a function that gets torch's function first."""
    python = Path("planted").absolute()
    python.write_text(_PYTHON.format(python=sys.executable, change=change), encoding="utf-8")
    python.chmod(0o755)
    return str(python)
