"""The routes that a program can be sent on, and what of them a process is told by its environment."""

from __future__ import annotations

import subprocess

from pseudograd.errors import must, unknown_name

from ..interpreters import Interpreter, asked

EAGER, AOT_EAGER, INDUCTOR, CPU, CUDA = "eager", "aot_eager", "inductor", "cpu", "cuda"
COMPILED = (AOT_EAGER, INDUCTOR)
_COMPILERS, _DEVICES = (EAGER, *COMPILED), (CPU, CUDA)
_ARGUMENT = "--routes"
_SECONDS = 120
_ASK = "import torch; print('yes' if torch.cuda.is_available() else 'no')"


def pair(text: str) -> tuple[str, str]:
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


def interpreter_for(given: str, routes: tuple[str, str]) -> Interpreter:
    """The one that takes both routes; ValueError where it cannot."""
    found = asked("--from", given)
    if CUDA in routes and not _has_cuda(found):
        remedy = f"Torch {found.torch} finds no such device here"
        raise ValueError(must("upgrade", _ARGUMENT, "name a device that is there", CUDA, remedy))
    return found


def _has_cuda(interpreter: Interpreter) -> bool:
    done = subprocess.run(
        [interpreter.path, "-c", _ASK],
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    return done.stdout.strip() == "yes"


def environment(route: str) -> dict[str, str]:
    """What a run on that route has besides."""
    return dict(_WITHOUT_ACCELERATORS) if route == CPU else {}


# Each vendor's way to say that none of its devices may be seen.
_NONE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_WITHOUT_ACCELERATORS = {**dict.fromkeys(_NONE, "-1"), "ONEAPI_DEVICE_SELECTOR": "*:cpu"}
