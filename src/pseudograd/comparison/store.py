"""Finished runs in a folder, and the fingerprint that recognises a run.

A fingerprint covers functions by value, with all that they hold and call. cloudpickle takes functions apart and joblib hashes the parts.
The bytes of cloudpickle alone differ between processes, by the order of sets, by which equal texts are one object, and by a random number
in each class. So sets are sorted, texts, tuples and code go by value, code without its file and lines, and classes by their dicts.
Installed packages go by their version. The folder is no joblib.Memory, which reads pickles: they may run code, and damage stays unseen.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import io
import json
import platform
import shutil
import sys
import sysconfig
import types
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ..errors import installing, must
from ..rewrite import entered_contexts

_MARK = b"pseudograd run 4\n"  # before the checksum
_SUFFIX, _STAGED = ".run", ".part"  # of a finished file, and of a file that is being written
Key = Mapping[str, object]


class Store:
    """A folder of finished runs, each in a file of its own, whole or not at all. A damaged file is run again, and `notes` says so."""

    def __init__(self, folder: Path, where: str, argument: str = "keep") -> None:
        self.folder, self.where, self.argument = folder, where, argument
        self.damaged = 0
        files = list(folder.iterdir()) if folder.is_dir() else [folder] if folder.exists() else []
        if not all(file.suffix in (_SUFFIX, _STAGED) for file in files):
            raise ValueError(must(where, argument, "hold finished runs alone", str(folder), "Choose another folder"))

    @property
    def notes(self) -> tuple[str, ...]:
        runs = "1 kept run was damaged" if self.damaged == 1 else f"{self.damaged} kept runs were damaged"
        return (f"{runs}, and made again.",) if self.damaged else ()

    def read(self, key: Key) -> dict[str, Any] | None:
        """The run that was written under this key; None where there is no such run, or a damaged one."""
        try:
            data = self._file(key).read_bytes()
        except OSError:
            return None
        body = data[len(_seal(b"")) :]
        if data != _seal(body):
            self.damaged += 1
            return None
        run: dict[str, Any] = torch.load(io.BytesIO(body), weights_only=True)
        return run

    def write(self, key: Key, run: dict[str, object]) -> None:
        staged = self.folder / f"{uuid.uuid4().hex}{_STAGED}"
        buffer = io.BytesIO()
        torch.save(run, buffer)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            staged.write_bytes(_seal(buffer.getvalue()))
            staged.replace(self._file(key))
        except OSError as error:
            remedy = f"{error.strerror}: choose another folder"
            what = must(self.where, self.argument, "take the finished runs", str(self.folder), remedy)
            raise ValueError(what) from error
        finally:
            staged.unlink(missing_ok=True)

    @property
    def count(self) -> int:
        return len(list(self.folder.glob(f"*{_SUFFIX}")))

    def clear(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def _file(self, key: Key) -> Path:
        text = json.dumps(key, sort_keys=True)
        return self.folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}{_SUFFIX}"


def _seal(data: bytes) -> bytes:
    """The data behind a checksum, which tells a damaged file."""
    return _MARK + hashlib.sha256(data).digest() + data


# All that decides the numbers of a code object: not its file, lines and columns.
_CODE = "code consts names varnames freevars cellvars flags argcount posonlyargcount kwonlyargcount exceptiontable"


class FingerprintError(Exception):
    """An object has no fingerprint: why, in words for the user."""


def fingerprint(held: object) -> str:
    """A text that is equal for equal functions, rules, data, settings of torch and installed versions. Raises FingerprintError."""
    try:
        import cloudpickle
        from joblib.hashing import NumpyHasher
    except ImportError as error:
        raise FingerprintError(f"cloudpickle and joblib must be installed. {installing('report')}") from error
    if entered_contexts.modes():
        raise FingerprintError("it runs inside a context of override or pin_edge, which no name tells from another")
    try:
        with _users_modules_by_value(cloudpickle):
            return str(_hasher(NumpyHasher, cloudpickle)().hash([held, _settings()]))
    except Exception as error:
        text = " ".join(str(error).split())[:160]
        what = f"what run holds ({type(error).__name__}: {text})" if text else "what run holds"
        raise FingerprintError(f"{what} has no fingerprint") from error


class _Part:
    """The parts of an object, in its place."""

    def __init__(self, *parts: object) -> None:
        self.parts = parts


@functools.cache
def _hasher(joblib_hasher: Any, cloudpickle: Any) -> Any:
    by_value = (str, bytes, tuple, frozenset, types.CodeType)  # whether two of these are one object says nothing
    not_of_the_class = ("__dict__", "__weakref__", "_abc_impl", "__doc__", "__firstlineno__", "__static_attributes__")

    class Fingerprint(joblib_hasher):
        dispatch_table = cloudpickle.Pickler.dispatch_table

        def __init__(self) -> None:
            super().__init__(hash_name="sha256")
            self._cloudpickle = cloudpickle.Pickler(io.BytesIO())

        def memoize(self, obj: object) -> None:
            if not isinstance(obj, by_value):
                super().memoize(obj)

        def save(self, obj: object) -> None:
            if isinstance(obj, types.BuiltinMethodType) and isinstance(obj.__self__, (types.ModuleType, type)):
                obj = _Part("builtin", obj.__self__.__name__, obj.__qualname__)
            elif isinstance(obj, types.MethodType):
                obj = _Part("method", obj.__func__, obj.__self__)
            super().save(obj)

        def save_global(self, obj: object, name: object = None, pack: object = None) -> None:
            """Save the name of an object. A name in a module of the user's does not say what the object is, so it is refused."""
            if obj is not _Part and _is_users(sys.modules.get(getattr(obj, "__module__", None) or "")):
                raise TypeError(f"{obj!r}")
            super().save_global(obj, name)

        def reducer_override(self, obj: Any) -> object:
            if isinstance(obj, functools._lru_cache_wrapper):
                return _Part, ("cached", obj.__wrapped__)
            if isinstance(obj, torch.Tensor):
                return _Part, ("tensor", *_tensor_parts(obj))
            if isinstance(obj, torch.Generator):
                return _Part, ("generator", *_tensor_parts(obj.get_state()))
            if isinstance(obj, (set, frozenset)):
                return _Part, ("set", sorted(type(self)().hash(element) for element in obj))
            if type(obj) is dict:  # in its order, which joblib would sort
                return _Part, ("dict",), None, (part for item in obj.items() for part in item)
            if isinstance(obj, types.CodeType):
                return _Part, ("code", *(getattr(obj, f"co_{name}", b"") for name in _CODE.split()))
            if isinstance(obj, types.ModuleType):
                names = sorted(name for name in vars(obj) if not name.startswith("__")) if _is_users(obj) else ()
                return _Part, ("module", obj.__name__), {name: getattr(obj, name) for name in names}
            if not isinstance(obj, (type, types.FunctionType)) or obj is _Part:
                return NotImplemented
            reduced = self._cloudpickle.reducer_override(obj)
            if reduced is NotImplemented or obj.__module__ == "builtins":
                return _Part, ("name", obj.__module__, obj.__qualname__)
            if isinstance(obj, type):
                state = {key: value for key, value in vars(obj).items() if key not in not_of_the_class}
                return _Part, ("class", obj.__qualname__, obj.__bases__), state
            attributes, slots = reduced[2]
            for name in ("_cloudpickle_submodules", "__doc__", "__module__"):
                slots.pop(name, None)
            return _Part, ("function", obj.__code__), (attributes, slots)

    return Fingerprint


def _tensor_parts(x: torch.Tensor) -> tuple[object, ...]:
    is_plain = type(x) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer) and x.layout is torch.strided
    if not is_plain or x.is_quantized or x.device.type == "meta":
        raise TypeError(f"a {type(x).__name__} of layout {x.layout} on {x.device}")
    flat = x.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    digest = hashlib.sha256(flat.view(torch.uint8).numpy().data if flat.numel() else b"").hexdigest()
    return digest, str(x.dtype), tuple(x.shape), str(x.device), x.requires_grad, type(x).__name__


@contextmanager
def _users_modules_by_value(cloudpickle: Any) -> Iterator[None]:
    """Let cloudpickle take the functions of the user's modules apart, too; it would name them."""
    before = cloudpickle.list_registry_pickle_by_value()
    loaded = [(name, module) for name, module in list(sys.modules.items()) if name not in before and _is_users(module)]
    users = [module for name, module in loaded if vars(module).get("__name__") == name]
    for module in users:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in users:
            cloudpickle.unregister_pickle_by_value(module)


def _is_users(module: object) -> bool:
    """Is the module neither installed nor a part of Python, torch or this package?"""
    if not isinstance(module, types.ModuleType):
        return False
    if module.__name__ == "__main__" or module.__name__ not in sys.modules:
        return True
    file = vars(module).get("__file__")  # getattr would load modules that load on demand
    return bool(file) and not _is_installed(file)


@functools.cache  # asked about every module for every fingerprint
def _is_installed(file: str) -> bool:
    path = Path(file).resolve()
    is_packaged = "site-packages" in path.parts or "dist-packages" in path.parts
    return is_packaged or not _installed_folders().isdisjoint(path.parents)


@functools.cache
def _installed_folders() -> frozenset[Path]:
    """The folders of Python, of torch, of this package and of its neighbours."""
    folders = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    return frozenset(folder.resolve() for folder in (*folders, Path(torch.__file__).parent, *_own_folders()))


def _own_folders() -> list[Path]:
    """The folders of this package and of its neighbours."""
    return sorted(Path(__file__).resolve().parents[2].glob("pseudograd*/"))


@functools.cache
def _installed() -> list[str]:
    """Versions of all distributions. This package by its source: while someone works on it, its version says nothing."""
    own = hashlib.sha256()
    for file in sorted(file for folder in _own_folders() for file in folder.rglob("*.py")):
        own.update(file.read_bytes())
    versions = {f"{distribution.name} {distribution.version}" for distribution in importlib.metadata.distributions()}
    return [own.hexdigest(), *sorted(versions)]


def _settings() -> list[object]:
    """The settings of torch and the machine, as far as they change numbers."""
    return [
        _installed(),
        torch.__version__,
        platform.python_version(),
        platform.machine(),
        torch.cuda.get_device_name() if torch.cuda.is_available() else "",
        str(torch.get_default_device()) if hasattr(torch, "get_default_device") else "cpu",
        torch.get_num_threads(),
        str(torch.get_default_dtype()),
        torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_autocast_enabled(),
    ]
