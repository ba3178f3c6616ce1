"""The arguments of a call without its tensors: plain values that JSON holds, and how Python writes them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

Tree = Any  # a plain value, a list, or {"tensor": name}, {"tuple": [...]}, {"slice": [...]}, {"code": text}
_CODE = (torch.dtype, torch.layout, torch.memory_format)


class UnwritableError(Exception):
    """What cannot stand in a program of ten lines. Its text says why, as the end of a sentence."""


class SameAloneError(UnwritableError):
    """With the same arguments the call gives the same under both."""


def tree(value: Any, name_of: Callable[[Tensor], str]) -> Tree:
    """name_of: of a tensor in it."""
    if isinstance(value, Tensor):
        return {"tensor": name_of(value)}
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"code": not_finite(value)}
    if type(value) is complex:
        return {"code": repr(value)}
    if type(value) is list:
        return [tree(one, name_of) for one in value]
    if type(value) in (tuple, torch.Size):
        return {"tuple": [tree(one, name_of) for one in value]}
    if isinstance(value, slice):
        return {"slice": [tree(one, name_of) for one in (value.start, value.stop, value.step)]}
    if value is Ellipsis:
        return {"code": "..."}
    if isinstance(value, _CODE):
        return {"code": str(value)}
    if isinstance(value, torch.device):
        return value.type
    raise UnwritableError(f"an argument is a {type(value).__name__}, which has no short way to be written")


def not_finite(value: float) -> str:
    return "torch.nan" if value != value else "torch.inf" if value > 0 else "-torch.inf"


def text(one: Tree) -> str:
    if isinstance(one, list):
        return f"[{', '.join(map(text, one))}]"
    if not isinstance(one, dict):
        return repr(one)
    if "tensor" in one:
        return str(one["tensor"])
    if "tuple" in one:
        inside = ", ".join(map(text, one["tuple"]))
        return f"({inside},)" if len(one["tuple"]) == 1 else f"({inside})"
    if "slice" in one:
        start, stop, step = ("" if part is None else text(part) for part in one["slice"])
        return f"{start}:{stop}" + (f":{step}" if step else "")
    return str(one["code"])


def index_text(one: Tree) -> str:
    """Between brackets."""
    return ", ".join(map(text, one["tuple"])) if isinstance(one, dict) and one.get("tuple") else text(one)


def leaves(one: Tree) -> Iterator[Tree]:
    """Numbers, texts, and the dicts that stand for what is neither a list nor a tuple."""
    children = _children(one)
    if children is None:
        yield one
    else:
        for child in children:
            yield from leaves(child)


def replaced(one: Tree, change: Callable[[Tree], Tree]) -> Tree:
    """With every leaf changed."""
    children = _children(one)
    if children is None:
        return change(one)
    made = [replaced(child, change) for child in children]
    return made if isinstance(one, list) else {next(iter(one)): made}


def _children(one: Tree) -> list[Tree] | None:
    if isinstance(one, list):
        return one
    if isinstance(one, dict) and ("tuple" in one or "slice" in one):
        return next(iter(one.values()))  # type: ignore[no-any-return]
    return None


def tensors_in(*some: Tree) -> list[str]:
    """The names of the tensors, each once."""
    found = (leaf["tensor"] for one in some for leaf in leaves(one) if isinstance(leaf, dict) and "tensor" in leaf)
    return list(dict.fromkeys(found))
