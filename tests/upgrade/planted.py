"""An interpreter with the installed torch in which a test changes functions, as if torch itself had changed them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

# At the start of python: runs the change once torch has been imported, in the name of a file of torch's optimisers.
_HOOK = """
import os, sys

class Planting:
    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        later = sys.meta_path[sys.meta_path.index(self) + 1 :]
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in later)))
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            file = os.path.join(os.path.dirname(module.__file__), "optim", "planted.py")
            with open(os.path.join(os.path.dirname(__file__), "planted.txt")) as source:
                exec(compile(source.read(), file, "exec"), {"torch": module})

        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Planting())
"""
# Modes see a call of the planted function as a call of torch's.
_REPLACED = """
import functools
from torch.overrides import handle_torch_function, has_torch_function

def replaced(owner, name):
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
"""


def planted(change: str) -> str:
    """The path of the interpreter. change: source in which @replaced(owner, name) decorates a function that gets torch's function first."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "planted"], check=True)
    python = Path("planted", "Scripts" if os.name == "nt" else "bin", "python").absolute()
    query = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(subprocess.run([python, "-c", query], capture_output=True, text=True, check=True).stdout.strip())
    (site / "planting.py").write_text(_HOOK, encoding="utf-8")
    (site / "planted.txt").write_text(_REPLACED + change, encoding="utf-8")
    paths = [path for path in sys.path if "site-packages" in path]
    (site / "planted.pth").write_text("\n".join([*paths, "import planting"]) + "\n", encoding="utf-8")
    return str(python)
