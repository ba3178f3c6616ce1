"""Which nodes of autograd stand at a kink or a tie, and what they would hand on under another known convention there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import formula
from ..rewrite.conventions import Pinning, call_of, prepared, rewritten
from ..rule import Call
from ..torch_conventions import FAMILIES, KINKED, Kinked, of_node, pins, text_of
from ..torch_eras import ERAS, OPEN_ERA, installed_era
from ..torch_forms import SPELLINGS, SavedValues, kept_by
from . import pools
from .whatif import under

NOTED = "pseudograd: at a kink"  # in the metadata of a node: what was noted of its call, None where nothing stands at a kink
_SELU = 1.0507009873554804934193349852946
# With x = 0 (or 3): the arguments that make it a kink, where x alone does not.
_BESIDE: dict[str, tuple[Any, ...]] = {
    "clamp": (0.0, 1.0),
    "hardtanh": (0.0, 1.0),
    "leaky_relu": (0.01,),
    "elu": (1.0,),
    "celu": (1.0,),
    **{name: (torch.zeros(1),) for name in ("maximum", "minimum", "fmax", "fmin", "hypot")},
}


class Other(NamedTuple):
    """Another convention of a family: whose, its text, and what of grad each one that is known gives to x at the kink."""

    whose: str
    convention: str
    passes: dict[str, float]


class AtKink(NamedTuple):
    """A node of which some entries stand at a kink. left(leaving, arriving): what leaves it under the other convention."""

    node: Any
    family: str
    entries: int
    elements: int
    left: Callable[[tuple[Any, ...], tuple[Any, ...]], tuple[Any, ...]]


def within(family: str, calling: Any) -> str | None:
    """The call of torch that runs the function inside, where no pin of the family reaches it."""
    if family == pools.FAMILY or any(one.family == family for one in KINKED.get(calling, ())):
        return None
    spelling = SPELLINGS.get(calling)
    if spelling is not None and spelling.form.write is not None and pins(spelling.form, (family,)):
        return None
    return getattr(calling, "__name__", None) or "code that no mode sees"


@lru_cache(maxsize=64)
def other_of(family: str) -> Other | None:
    """Of what is known the convention that differs most from that of the installed torch; None where all agree."""
    if family == pools.FAMILY:
        return Other(pools.LAST, pools.LAST, {})
    row, era = FAMILIES[family], installed_era()
    here = row.of_torch(era)
    known = {**{name: row.of_torch(name) for name in ERAS}, **row.others, **row.alike}
    form = next(one.spelling.form for some in KINKED.values() for one in some if one.family == family)
    if form.op.startswith("written"):
        some = [(name, text_of(one)) for name, one in known.items() if one not in (here, OPEN_ERA)]
        return Other(*some[0], {}) if some else None
    passes = {name: _passes(family, form, text_of(one)) for name, one in known.items()}
    most = max(passes, key=lambda name: abs(passes[name] - passes[era]))
    return None if passes[most] == passes[era] else Other(most, text_of(known[most]), passes)


def _passes(family: str, form: Any, convention: str) -> float:
    """What of grad x gets at the kink."""
    prepared({family: convention})
    x = torch.full((1,), 3.0 if family == "hardsigmoid" else 0.0)
    name, inputs = form.arrange(x, *_BESIDE.get(family, ()))
    call = call_of(convention, name, inputs)
    assert call is not None, "the table has it"
    wants = tuple(isinstance(one, Tensor) for one in inputs)
    to_x, *_ = formula.pull(torch.ones(1), list(inputs), wants, call)
    assert to_x is not None, "wanted"
    return float(to_x)


def at_kinks(behind: Any) -> Iterator[AtKink]:
    """Of these nodes, those that stand at a kink of which another convention is known."""
    for node in behind:
        name = node.name()
        if name.startswith(pools.NODE):
            found = _of_pool(node)
        elif (noted := node.metadata.get(NOTED)) is not None:
            found = _of_noted(node, noted)
        else:
            kinked = of_node(name)
            found = None if kinked is None or kinked.family == "relu" else _read(node, kinked)
        if found is not None:
            yield found


def _of_pool(node: Any) -> AtKink | None:
    tied = pools.tied(node)
    if tied is None:
        return None
    last, entries, elements = tied
    return AtKink(
        node, pools.FAMILY, entries, elements, lambda leaving, arriving: pools.left(last, leaving, arriving[0])
    )


def _read(node: Any, kinked: Kinked) -> AtKink | None:
    kept = kept_by(kinked.spelling.form, node) or _kept_in_place(node, kinked)
    family = None if kept is None else _family(node, kinked.family, kept)
    if kept is not None and family == "relu6":
        kept = kept._replace(primitive="torch.relu6")
    other = None if family is None else other_of(family)
    if kept is None or family is None or other is None:
        return None
    calls = [
        call_of(text, kept.primitive, kept.inputs)
        for text in (text_of(FAMILIES[family].of_torch(installed_era())), other.convention)
        if prepared({family: text})
    ]
    here, call = calls
    if here is None or call is None:
        return None
    entries, elements = _entries(node, kept, here, call)
    if not entries:
        return None
    return AtKink(
        node, family, entries, elements, lambda leaving, arriving: under(call, kept, kept.inputs, leaving, arriving[0])
    )


def _kept_in_place(node: Any, kinked: Kinked) -> SavedValues | None:
    """Of a leaky relu in place the result is kept, which is 0 where x is, and of its sign."""
    if kinked.family != "leaky_relu" or not hasattr(node, "_saved_result") or not node._saved_negative_slope > 0:
        return None
    values = [node._saved_result, node._saved_negative_slope]
    read = kinked.spelling.form.arrange(*values)
    return None if read is None else SavedValues(values, *read)


def _family(node: Any, family: str, kept: SavedValues) -> str | None:
    """One node serves relu6 and hardtanh, and another selu and elu."""
    if family == "hardtanh" and tuple(kept.inputs[1:]) == (0.0, 6.0):
        return "relu6"
    if family == "selu" and abs(node._saved_scale - _SELU) > 1e-6:
        return None
    return family


def _entries(node: Any, kept: SavedValues, here: Call, other: Call) -> tuple[int, int]:
    """How many stand where the two differ, and how many there are."""
    metadata = node._input_metadata[0]
    ones = torch.ones(tuple(metadata.shape), dtype=metadata.dtype, device=metadata.device)
    inputs = [one.detach() if isinstance(one, Tensor) else one for one in kept.inputs]
    wants = tuple(isinstance(one, Tensor) for one in inputs)
    differs = torch.zeros_like(ones, dtype=torch.bool)
    for one, two in zip(formula.pull(ones, inputs, wants, here), formula.pull(ones, inputs, wants, other), strict=True):
        if one is not None and two is not None:
            differs |= (one != two) & ~(one.isnan() & two.isnan())
    return int(differs.sum()), ones.numel()


# --- what a node does not keep: noted when it was made ----------------------------------------------------------------


class Tied(NamedTuple):
    """A call once more, under the other convention, on an x of its own: what its graph gives to x is what would leave the node."""

    x: Tensor
    y: Tensor
    family: str
    entries: int


def _is_noted(kinked: Kinked) -> bool:
    return kinked.family == "relu" or kinked.spelling.form.op.startswith("written")


NOTED_CALLS = {func for func, some in KINKED.items() if any(map(_is_noted, some))} | {Tensor.norm}


def note_before(func: Any, args: Any, kwargs: Any) -> Any:
    """Where x of a relu is 0, whose node keeps the result alone; and where a sort, a maximum over a dimension and the like have ties."""
    if func is Tensor.norm:  # a function in Python
        func = torch.norm
    for kinked in KINKED.get(func, ()):
        values = kinked.spelling.values(args, kwargs)
        if values is None or not isinstance(values[0], Tensor) or not values[0].requires_grad:
            continue
        if kinked.family == "relu":
            zero = values[0].detach() == 0
            return zero if bool(zero.any()) else None
        if kinked.family == "quantile":
            return _sorted(values[0].detach(), values[2])
        if kinked.spelling.form.op.startswith("written"):
            return _tied(kinked, func, args, kwargs, values[0])
    return None


def _tied(kinked: Kinked, func: Any, args: Any, kwargs: Any, x: Tensor) -> Tied | None:
    other = other_of(kinked.family)
    if other is None or x.dim() == 0 or not x.is_floating_point() or not args or args[0] is not x:
        return None
    with torch.enable_grad():
        mine = x.detach().requires_grad_()
        under_it = rewritten(
            Pinning({}, prepared({kinked.family: other.convention}), None), func, (mine, *args[1:]), kwargs
        )
        if under_it is None:
            return None
        y, own = _first(under_it), _first(func(mine, *args[1:], **kwargs))
        weights = torch.arange(1, y.numel() + 1, dtype=y.dtype, device=y.device).reshape(y.shape)
        (new,) = torch.autograd.grad(y, mine, weights, retain_graph=True)
        (old,) = torch.autograd.grad(own, mine, weights)
    differs = (new != old) & ~(new.isnan() & old.isnan())
    return Tied(mine, y, kinked.family, int(differs.sum())) if bool(differs.any()) else None


class Sorted(NamedTuple):
    """What a quantile sorts, along its last dimension."""

    x: Tensor


def _sorted(x: Tensor, dim: Any) -> Sorted | None:
    flat = x.reshape(-1) if dim is None or x.dim() == 0 else x.transpose(dim, -1)
    ordered = flat.sort(dim=-1).values
    return Sorted(flat) if bool((ordered[..., 1:] == ordered[..., :-1]).any()) else None


def _of_sort_inside(noted: Sorted, node: Any) -> None:
    """Its sort is a node behind the result; JAX and torch 2.13 leave equal ones in their order there."""
    sort = node
    for _ in range(8):
        if sort is None or sort.name().startswith("SortBackward"):
            break
        sort = sort.next_functions[0][0] if sort.next_functions else None
    if sort is None or not sort.name().startswith("SortBackward"):
        return
    index, x = sort._saved_indices, noted.x
    if index.shape != x.shape:
        x = x.reshape(index.shape) if index.numel() == x.numel() else x
    stable = x.sort(dim=-1, stable=True)
    if index.shape != x.shape or not torch.equal(x.gather(-1, index), stable.values):
        return
    with torch.enable_grad():
        mine = x.detach().requires_grad_()
        y = mine.gather(-1, stable.indices)
    entries = int((index != stable.indices).sum())
    if entries:
        sort.metadata[NOTED] = Tied(mine, y, "quantile", entries)


def _first(result: Any) -> Tensor:
    return result if isinstance(result, Tensor) else result[0]  # type: ignore[no-any-return]


def note_after(noted: Any, args: Any, result: Any) -> None:
    """At the node that the call made, where it stands alone between x and the result."""
    first = result if isinstance(result, Tensor) else result[0] if isinstance(result, tuple) else None
    node = first.grad_fn if isinstance(first, Tensor) else None
    if node is None:
        return
    if isinstance(noted, Sorted):
        _of_sort_inside(noted, node)
    elif isinstance(noted, Tied):
        before = node.next_functions[0][0] if node.next_functions else None
        if before is not None and (before is args[0].grad_fn or getattr(before, "variable", None) is args[0]):
            node.metadata[NOTED] = noted  # type: ignore[index]
    elif node.name().startswith("ReluBackward"):
        node.metadata[NOTED] = noted  # type: ignore[index]


def _of_noted(node: Any, noted: Any) -> AtKink | None:
    if isinstance(noted, Tied):
        return AtKink(
            node,
            noted.family,
            noted.entries,
            noted.x.numel(),
            lambda leaving, arriving: _of_tied(noted, leaving, arriving),
        )
    other = other_of("relu")
    assert other is not None, "the table has it"
    share = float(other.convention)

    def left(leaving: tuple[Any, ...], arriving: tuple[Any, ...]) -> tuple[Any, ...]:
        return (torch.where(noted, arriving[0] * share, leaving[0]),) if leaving[0] is not None else leaving

    return AtKink(node, "relu", int(noted.sum()), noted.numel(), left)


def _of_tied(noted: Tied, leaving: tuple[Any, ...], arriving: tuple[Any, ...]) -> tuple[Any, ...]:
    if leaving[0] is None:
        return leaving
    (grad,) = torch.autograd.grad(noted.y, noted.x, arriving[0], retain_graph=True)
    return (grad.to(leaving[0].dtype), *leaving[1:])
