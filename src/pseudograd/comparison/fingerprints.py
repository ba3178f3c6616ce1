"""What decides a run, as a digest that is the same in every process: functions by value, with all that they hold and call.

cloudpickle takes functions apart; joblib's hasher hashes arrays, and texts by value. Alone neither is enough: cloudpickle's bytes differ
between processes, by the order of sets, by which equal texts are one object, and by a random number in each class. So sets are sorted,
texts, tuples and code go by value, code without its file and lines, and classes by their dicts. What is installed goes by name and version.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import io
import pickle
import platform
import sys
import sysconfig
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ..errors import installing
from ..rewrite import entered_contexts

_PACKAGE = Path(__file__).resolve().parents[1]
_BY_VALUE = (str, bytes, tuple, frozenset, types.CodeType)  # whether two of these are one object says nothing
_IS_OF_THE_CLASS = ("__dict__", "__weakref__", "_abc_impl", "__doc__", "__firstlineno__", "__static_attributes__")
_PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


class FingerprintError(Exception):
    """What a run depends on cannot be told: why, in words for its user."""


def fingerprint(held: object) -> str:
    """Of functions, rules and data, and of all that torch is set to. Raises FingerprintError."""
    try:
        import cloudpickle
        from joblib.hashing import NumpyHasher
    except ImportError as error:
        raise FingerprintError(f"cloudpickle and joblib must be installed. {installing('report')}") from error
    if entered_contexts.modes():
        raise FingerprintError("it runs inside a context of override or pin_edge, which no name tells from another")
    hasher = _hasher_class(NumpyHasher, cloudpickle)()
    try:
        with _by_value(cloudpickle):
            hasher.hash(_Held(held, _settings()))
            digest = hasher.hash(sorted(hasher.packages))
    except Exception as error:
        raise FingerprintError(f"{_shown(hasher, error)} has no fingerprint") from error
    return str(digest)


def _shown(hasher: object, error: Exception) -> str:
    text = " ".join(str(error).split())[:160]
    return f"what run holds ({type(error).__name__}: {text})" if text else "what run holds"


class _Held:
    """Data to hash, whose parts are no tuple of the user's."""

    def __init__(self, *parts: object) -> None:
        self.parts = parts


class _Part(_Held):
    """Something that was taken apart."""


def _part(*parts: object) -> object:
    return _Part, parts


@functools.cache
def _hasher_class(hasher: Any, cloudpickle: Any) -> Any:
    class Fingerprint(hasher):  # type: ignore[misc]
        """joblib's, with functions and classes taken apart."""

        dispatch_table = cloudpickle.Pickler.dispatch_table

        def __init__(self) -> None:
            super().__init__(hash_name="sha256")
            self.packages: set[tuple[str, str]] = set()
            self._taker = cloudpickle.Pickler(io.BytesIO())

        def memoize(self, obj: object) -> None:
            if not isinstance(obj, _BY_VALUE):
                super().memoize(obj)

        def save(self, obj: object) -> None:
            if isinstance(obj, types.BuiltinMethodType) and isinstance(
                obj.__self__, (types.ModuleType, type, type(None))
            ):
                obj = _Held("builtin", getattr(obj.__self__, "__name__", ""), obj.__qualname__)
            elif isinstance(obj, types.MethodType):
                obj = _Held("method", obj.__func__, obj.__self__)
            super().save(obj)

        def save_global(self, obj: object, name: object = None, pack: object = None) -> None:
            """What asks to be found by its name: not in a module of the user's, where that says nothing of what it is."""
            module = sys.modules.get(getattr(obj, "__module__", None) or "")
            if obj is not _Part and module is not None and _is_users(module):
                raise TypeError(f"{obj!r}")
            super().save_global(obj, name)

        def _batch_setitems(self, items: object, *obj: object) -> None:
            pickle._Pickler._batch_setitems(self, items, *obj)  # type: ignore[attr-defined]  # in the order they have

        def reducer_override(self, obj: Any) -> object:
            if obj is _Part:
                return NotImplemented
            if isinstance(obj, functools._lru_cache_wrapper):
                return _part("cached", obj.__wrapped__)
            if type(obj).__name__ == "ufunc":
                return _part("ufunc", obj.__name__)
            if isinstance(obj, torch.Tensor):
                return _part("tensor", *_of_tensor(obj))
            if isinstance(obj, torch.Generator):
                return _part("generator", *_of_tensor(obj.get_state()))
            if isinstance(obj, (set, frozenset)):
                return _part(type(obj).__name__, sorted(_digest_of(one, self) for one in obj))
            if isinstance(obj, types.CodeType):
                return _part("code", *_of_code(obj))
            if isinstance(obj, types.ModuleType):
                return self._of_module(obj)
            if isinstance(obj, type):
                return self._of_class(obj)
            if isinstance(obj, types.FunctionType):
                return self._of_function(obj)
            return NotImplemented

        def _of_function(self, function: Any) -> object:
            taken = self._taker.reducer_override(function)
            if taken is NotImplemented:
                return self._by_name(function)
            own, state = taken[2]
            left_out = ("_cloudpickle_submodules", "__doc__", "__module__")
            kept = {key: value for key, value in state.items() if key not in left_out}
            return _Part, ("function", function.__code__), (own, kept)

        def _of_class(self, cls: type) -> object:
            if self._taker.reducer_override(cls) is NotImplemented or cls.__module__ == "builtins":
                return self._by_name(cls)
            kept = {key: value for key, value in vars(cls).items() if key not in _IS_OF_THE_CLASS}
            return _Part, ("class", cls.__qualname__, cls.__bases__), kept

        def _of_module(self, module: Any) -> object:
            if not _is_users(module):
                self._note(module.__name__)
                return _part("module", module.__name__)
            names = sorted(name for name in vars(module) if not name.startswith("__"))
            return _Part, ("module", module.__name__), {name: getattr(module, name) for name in names}

        def _by_name(self, obj: Any) -> object:
            self._note(obj.__module__ or "")
            return _part("name", obj.__module__, obj.__qualname__)

        def _note(self, module: str) -> None:
            package = module.partition(".")[0]
            self.packages.add((package, _version_of(package)))

    return Fingerprint


def _digest_of(value: object, outer: Any) -> str:
    inner = type(outer)()
    digest = inner.hash(value)
    outer.packages |= inner.packages
    return str(digest)


def _of_code(code: types.CodeType) -> tuple[object, ...]:
    """What it computes; not its file, lines and columns."""
    return (
        code.co_code,
        code.co_consts,
        code.co_names,
        code.co_varnames,
        code.co_freevars,
        code.co_cellvars,
        code.co_flags,
        code.co_argcount,
        code.co_posonlyargcount,
        code.co_kwonlyargcount,
        getattr(code, "co_exceptiontable", b""),
    )


def _of_tensor(x: torch.Tensor) -> tuple[object, ...]:
    if type(x) not in _PLAIN_TENSORS or x.layout is not torch.strided or x.is_quantized or x.device.type == "meta":
        raise TypeError(f"a {type(x).__name__} of layout {x.layout} on {x.device}")
    there = x.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    data: Any = there.view(torch.uint8).numpy() if there.numel() else b""
    digest = hashlib.sha256(data).hexdigest()
    return digest, str(x.dtype), tuple(x.shape), str(x.device), x.requires_grad, type(x).__name__


# --- whose a module is ------------------------------------------------------------------------------------------------


@contextmanager
def _by_value(cloudpickle: Any) -> Iterator[None]:
    """While it is entered cloudpickle takes apart the functions of the user's modules too, which it would name."""
    before = set(cloudpickle.list_registry_pickle_by_value())
    users = [
        module
        for name, module in list(sys.modules.items())
        if isinstance(module, types.ModuleType)
        and vars(module).get("__name__") == name
        and name not in before
        and _is_users(module)
    ]
    for module in users:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in users:
            cloudpickle.unregister_pickle_by_value(module)


def _is_users(module: Any) -> bool:
    """Was it neither installed nor does it come with Python, torch or this package?"""
    file = vars(module).get("__file__")  # getattr would wake modules that load on demand
    if module.__name__ == "__main__" or module.__name__ not in sys.modules:
        return True
    return bool(file) and not _is_installed(file)


@functools.cache  # asked of every module for every run, and to follow a path's links takes most of that
def _is_installed(file: str) -> bool:
    path = Path(file).resolve()
    if "site-packages" in path.parts or "dist-packages" in path.parts:
        return True
    return any(path.is_relative_to(folder) for folder in _installed_folders())


@functools.cache
def _installed_folders() -> tuple[Path, ...]:
    paths = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    return (*(Path(path).resolve() for path in paths if path), Path(torch.__file__).resolve().parent, _PACKAGE)


@functools.cache
def _version_of(package: str) -> str:
    if package == _PACKAGE.name or package.startswith(f"{_PACKAGE.name}_"):
        return _own_digest()
    if package in sys.stdlib_module_names:
        return platform.python_version()
    known = getattr(sys.modules.get(package), "__version__", None)
    if isinstance(known, str):
        return known
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


@functools.cache
def _own_digest() -> str:
    """This package by its source: who works on it has one version for long."""
    digest = hashlib.sha256()
    for file in sorted(_PACKAGE.rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _settings() -> list[object]:
    """What torch is set to, and the machine, as far as they change numbers."""
    device = torch.get_default_device() if hasattr(torch, "get_default_device") else "cpu"
    cuda = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    return [
        _own_digest(),
        torch.__version__,
        platform.python_version(),
        platform.machine(),
        cuda,
        str(device),
        torch.get_num_threads(),
        str(torch.get_default_dtype()),
        torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_autocast_enabled(),
        _version_of("numpy"),
    ]
