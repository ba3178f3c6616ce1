"""The routes that a program can take through one torch, and an interpreter on each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from pseudograd.errors import must, unknown_name

from ..runs import Interpreter, ask_python, find_interpreter

EAGER, AOT_EAGER, INDUCTOR, CPU, CUDA = "eager", "aot_eager", "inductor", "cpu", "cuda"
COMPILED = (AOT_EAGER, INDUCTOR)
_COMPILERS, _DEVICES = (EAGER, *COMPILED), (CPU, CUDA)
_ARGUMENT = "--routes"
_HAS_CUDA = "import torch; print(torch.cuda.is_available())"
# Each vendor's way to say that none of its devices may be used.
_NO_DEVICES = {
    **dict.fromkeys(("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"), "-1"),
    "ONEAPI_DEVICE_SELECTOR": "*:cpu",
}
# NVIDIA's libraries read it, whatever the program sets.
ENVIRONMENTS: Mapping[str, Mapping[str, str]] = {CPU: _NO_DEVICES, CUDA: {"NVIDIA_TF32_OVERRIDE": "0"}}


def parse_routes(text: str) -> tuple[str, str]:
    """The two routes of "eager,inductor"; ValueError where they are none, not two, one twice, or of two kinds. The CPU is the first."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in _COMPILERS + _DEVICES:
            raise unknown_name("upgrade", _ARGUMENT, _COMPILERS + _DEVICES, name)
    if len(names) != 2 or names[0] == names[1]:
        raise ValueError(must("upgrade", _ARGUMENT, "be two routes that differ", text, "Write eager,inductor"))
    if len({name in _DEVICES for name in names}) == 2:
        remedy = f"Ask {CPU},{CUDA} or two of {', '.join(_COMPILERS)}"
        raise ValueError(must("upgrade", _ARGUMENT, "name two devices or two compilers", text, remedy))
    return (CPU, CUDA) if CPU in names else (names[0], names[1])


def has_cuda(interpreter: Interpreter) -> bool:
    return ask_python(interpreter.path, _HAS_CUDA, 120).strip() == "True"


def find_routes(python: str, routes: tuple[str, str]) -> list[Device] | list[Compiled]:
    """The interpreter on each of the routes; ValueError where it has no such device."""
    interpreter = find_interpreter("--from", python)
    path, torch = interpreter.path, interpreter.torch
    if CUDA not in routes:
        return [Compiled(path, torch, route) for route in routes]
    if not has_cuda(interpreter):
        remedy = f"Torch {torch} finds no such device here"
        raise ValueError(must("upgrade", _ARGUMENT, "name a device that is there", CUDA, remedy))
    return [Device(path, torch, route) for route in routes]


@dataclass(frozen=True)
class _Routed(Interpreter):
    route: str = ""

    def label(self, torch: str) -> str:
        return f"{torch} {self.route}"

    @property
    def environment(self) -> Mapping[str, str]:
        return ENVIRONMENTS.get(self.route, {})


@dataclass(frozen=True)
class Device(_Routed):
    """Everything is heard, as between two torches."""

    module: ClassVar[str] = "pseudograd_upgrade.routes.drawing"


@dataclass(frozen=True)
class Compiled(_Routed):
    """By the compiler of the route, or by none. Only what blocks return is heard.

    is_cut: is each line a block of its own? out: lines that are not compiled. moved: lines whose inputs are moved a little.
    """

    is_cut: bool = False
    out: tuple[str, ...] = ()
    moved: tuple[str, ...] = ()
    module: ClassVar[str] = "pseudograd_upgrade.routes.following"

    @property
    def details(self) -> str:
        details = super().details + (", each line alone" if self.is_cut else "")
        details += f", {', '.join(self.out)} left out" if self.out else ""
        return details + (f", {', '.join(self.moved)} moved off its point" if self.moved else "")

    @property
    def options(self) -> Mapping[str, object]:
        return {**super().options, "route": self.route, "cut": self.is_cut, "out": self.out, "moved": self.moved}
