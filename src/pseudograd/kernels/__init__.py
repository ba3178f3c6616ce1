"""Residuals and the kernels that compute with them. To add one, write its file: every file of this folder registers what it holds."""

from importlib import import_module
from pkgutil import iter_modules

from .table import (
    Kernel,
    account,
    backward,
    forward,
    forward_in_place,
    have_values,
    off,
    only,
    prepare,
    prepare_between,
    prepare_plainly,
    register,
    remove,
    residual_of,
    status,
    that_serve,
    value,
)

for _file in iter_modules(__path__):
    import_module(f"{__name__}.{_file.name}")

__all__ = ["Kernel", "account", "backward", "forward", "forward_in_place", "have_values", "off", "only", "prepare"]
__all__ += ["prepare_between", "prepare_plainly", "register", "remove", "residual_of", "status", "that_serve", "value"]
