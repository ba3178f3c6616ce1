"""Residuals and the kernels that compute with them. Every file of this folder is imported, and registers its residuals and kernels."""

from importlib import import_module
from pkgutil import iter_modules

from .table import (
    Kernel,
    account,
    backward,
    forward,
    forward_in_place,
    have_values,
    prepare,
    prepare_between,
    prepare_plainly,
    register,
    remove,
    residual_of,
    status,
    switch_off,
    that_serve,
    use_only,
    value,
)

for _file in iter_modules(__path__):
    import_module(f"{__name__}.{_file.name}")

__all__ = ["Kernel", "account", "backward", "forward", "forward_in_place", "have_values", "prepare"]
__all__ += ["prepare_between", "prepare_plainly", "register", "remove", "residual_of", "status"]
__all__ += ["switch_off", "that_serve", "use_only", "value"]
