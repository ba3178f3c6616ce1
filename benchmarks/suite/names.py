"""What routes are called where people read of them, and their colours: the same in every figure."""

from __future__ import annotations

from pseudograd.look.palette import FORWARD, colour

_BY_OP = {
    ("native", "relu"): "torch.relu",
    ("native", "clamp_"): "torch.clamp_",
    ("native", "lower_bound"): "torch.clamp_min",
    ("native", "gelu, backward"): "gelu of torch",
    ("floor", "gelu, backward"): "one copy",
    ("inward", "relu"): "pg.relu, inward",
    ("inward", "clamp_"): "pg.clamp_, inward",
    ("inward", "lower_bound"): "pg.lower_bound",
}
_NAMES = {
    "native": "torch.clamp",
    "floor": "two copies",
    "snippet": "popular snippet",
    "inward": "pg.clamp, inward",
    "fewbit": "pg.gelu, fewbit",
    "spike": "triangle written plainly",
    **{rule: f"pg.heaviside, {rule}" for rule in ("triangle", "arctan", "window")},
    "compressai": "CompressAI LowerBound",
    "brevitas": "brevitas tensor_clamp",
    "relu": "ReLU",
    "native, compiled": "torch.clamp, compiled",
    "snippet, compiled": "popular snippet, compiled",
    "formula, compiled": "plain formula, compiled",
    "inward, compiled": "pg.clamp, compiled",
}
_COLOURS = {
    "floor": FORWARD,
    "native": colour("torch.clamp"),
    "hardtanh": "#5a5a5a",
    "relu": "#5a5a5a",
    "snippet": "#8B1A4F",
    "no activation": FORWARD,
}
DASHES = {"floor": ":", "hardtanh": "--", "snippet": "-."}


def route_name(route: str, op: str = "clamp") -> str:
    return _BY_OP.get((route, op)) or _NAMES.get(route, route)


def shade(route: str) -> str:
    return _COLOURS.get(route) or colour(route)
