"""An interpreter on a route."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ..interpreters import Interpreter
from .names import environment

WITHOUT_TF32 = "TensorFloat-32 off"
_TF32_OFF = {"NVIDIA_TF32_OVERRIDE": "0"}  # NVIDIA's libraries read it, whatever the program sets


@dataclass(frozen=True)
class Routed(Interpreter):
    route: str = ""

    def label(self, torch: str) -> str:
        return f"{torch} {self.route}"

    @property
    def environment(self) -> Mapping[str, str]:
        return environment(self.route)


@dataclass(frozen=True)
class Device(Routed):
    """All is heard as between two torches. is_exact: without TensorFloat-32."""

    is_exact: bool = False
    follows: ClassVar[str] = "pseudograd_upgrade.routes.drawing"

    @property
    def said(self) -> str:
        return super().said + (f", {WITHOUT_TF32}" if self.is_exact else "")

    @property
    def environment(self) -> Mapping[str, str]:
        return {**super().environment, **(_TF32_OFF if self.is_exact else {})}


@dataclass(frozen=True)
class Compiled(Routed):
    """By the compiler of the route, or by none: then only what blocks leave is heard.

    is_cut: each line of a block alone, and heard. out: lines that are not compiled. moved: lines whose inputs are moved a little.
    """

    is_cut: bool = False
    out: tuple[str, ...] = ()
    moved: tuple[str, ...] = ()
    follows: ClassVar[str] = "pseudograd_upgrade.routes.following"

    @property
    def said(self) -> str:
        said = super().said + (", each line alone" if self.is_cut else "")
        said += f", {', '.join(self.out)} left out" if self.out else ""
        return said + (f", {', '.join(self.moved)} moved off its point" if self.moved else "")

    @property
    def asked(self) -> Mapping[str, Any]:
        return {**super().asked, "route": self.route, "cut": self.is_cut, "out": self.out, "moved": self.moved}
