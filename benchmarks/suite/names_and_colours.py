"""What routes and cases are called where people read of them, and their colours: one each, in every figure."""

from __future__ import annotations

from pseudograd.look.palette import FORWARD, colour

from .cases import Case, Question

_NATIVE = {
    "relu": "torch.relu",
    "clamp_": "torch.clamp_",
    "lower_bound": "torch.clamp_min",
    "gelu, backward": "gelu of torch",
}
_OURS = {"relu": "pg.relu, inward", "clamp_": "pg.clamp_, inward", "lower_bound": "pg.lower_bound"}
_SHOWN = {
    "floor": "two copies",
    "hardtanh": "hardtanh",
    "snippet": "popular snippet",
    "inward": "pg.clamp, inward",
    "zero/closed": "zero/closed",
    "zero/open": "zero/open",
    "fewbit": "pg.gelu, fewbit",
    "spike": "triangle written plainly",
    **{rule: f"pg.heaviside, {rule}" for rule in ("triangle", "arctan", "window")},
    "compressai": "CompressAI LowerBound",
    "brevitas": "brevitas tensor_clamp",
    "relu": "ReLU",
    "native, compiled": "torch.clamp, compiled",
    "snippet, compiled": "snippet, compiled",
    "formula, compiled": "plain formula, compiled",
    "inward, compiled": "pg.clamp, compiled",
}
# Of the palette's own colours for things that are no rule.
_COLOURS = {
    "floor": FORWARD,
    "native": colour("torch.clamp"),
    "hardtanh": "#5a5a5a",
    "relu": "#5a5a5a",
    "snippet": "#8B1A4F",
    "formula": "#3F6B00",
    "compressai": "#3F6B00",
    "spike": "#8B1A4F",
    "brevitas": "#A0522D",
    "fewbit": colour("inward"),
    "no activation": FORWARD,
}
DASHES = {"floor": ":", "hardtanh": "--", "snippet": "-."}


def shown(route: str, op: str = "clamp") -> str:
    if route == "native":
        return _NATIVE.get(op, "torch.clamp")
    if route == "inward" and op in _OURS:
        return _OURS[op]
    if route == "floor" and op.endswith("backward"):
        return "one copy"
    return _SHOWN.get(route, route)


def shade(route: str) -> str:
    name = route.removesuffix(", compiled")
    return _COLOURS.get(name) or colour(name)


def dashes(route: str) -> object:
    return DASHES.get(route, "-")


def varied(question: Question) -> list[str]:
    """The fields of a case in which the cases of a question differ."""
    cases = question.cases()
    names = ("dtype", "threads", "data", "layout", "size")
    return [name for name in names if len({getattr(case, name) for case in cases}) > 1]


def value_of(case: Case, field: str) -> str:
    return f"{case.size:,}" if field == "size" else str(getattr(case, field))
