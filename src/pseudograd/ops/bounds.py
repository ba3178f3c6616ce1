"""The clamp family: clamp, clamp_, lower_bound, upper_bound, relu, relu6, hardtanh.

All share the seven rules below. A rule says what x gets outside the bounds; the edge says what it gets exactly at a bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling
from torch.nn import functional

from .. import engine
from ..checks import check_broadcast, check_device, check_tensor, is_number, rounded, rounded_to
from ..errors import must
from ..reference import bounds as reference
from ..rule import Call, Drawing, Gradients, Op, Rule, RuleLike, Sample, chosen, register

Bound = float | Tensor | None
EDGES = ("closed", "open", "half", "projected")


# --- the rules: what x gets outside ---------------------------------------------------------------------------------


def _blocked(grad: Tensor, below: Tensor, above: Tensor) -> Tensor:
    """Where a descent step along grad moves x further out. Signs only: a product would underflow."""
    return (below & (grad > 0)) | (above & (grad < 0))


def _zero(grad: Tensor, x: Tensor, min: Bound, max: Bound, below: Tensor, above: Tensor) -> Tensor:
    return torch.where(below | above, 0.0, grad)


def _identity(grad: Tensor, x: Tensor, min: Bound, max: Bound, below: Tensor, above: Tensor) -> Tensor:
    return grad


def _inward(grad: Tensor, x: Tensor, min: Bound, max: Bound, below: Tensor, above: Tensor) -> Tensor:
    return torch.where(_blocked(grad, below, above), 0.0, grad)


def _sign(grad: Tensor, x: Tensor, min: Bound, max: Bound, below: Tensor, above: Tensor) -> Tensor:
    return torch.where(above, 1.0, torch.where(below, -1.0, grad))


def _leaky(grad: Tensor, x: Tensor, min: Bound, max: Bound, below: Tensor, above: Tensor, slope: float) -> Tensor:
    return torch.where(below | above, rounded(slope, grad) * grad, grad)


def _elastic(grad: Tensor, x: Tensor, min: Any, max: Any, below: Tensor, above: Tensor, width: float) -> Tensor:
    span = _span(min, max, grad)
    scale = rounded(rounded(width, grad) * span, grad)
    share = torch.where(above, x - max, min - x) / scale
    share = torch.where(share < 1, share, 1.0)
    usable = _is_usable(span, above) & _as_mask(scale < torch.inf, above) & (share > 0)
    return torch.where(_blocked(grad, below, above), torch.where(usable, -grad * share, 0.0), grad)


def _inverting(grad: Tensor, x: Tensor, min: Any, max: Any, below: Tensor, above: Tensor) -> Tensor:
    span = _span(min, max, grad)
    room = torch.where(grad < 0, max - x, x - min) / span
    scaled = torch.where(room == 0, 0.0, grad * room)
    scaled = torch.where((grad == 0) | (x != x), grad, scaled)
    return torch.where(_is_usable(span, above), scaled, _inward(grad, x, min, max, below, above))


def _span(min: Any, max: Any, like: Tensor) -> Any:
    """max - min, rounded like everything else; a number where both bounds are."""
    return rounded(max - min, like)


def _is_usable(span: Any, like: Tensor) -> Tensor:
    """Positive and finite? As a mask, because bounds may be tensors."""
    return _as_mask((span > 0) & (span < torch.inf), like)


# --- the edge, and the gradient to the bounds -----------------------------------------------------------------------


def _edge_share(edge: str, grad: Tensor, at_min: Tensor, at_max: Tensor) -> tuple[Any, Any]:
    """At the edge: (what x gets, what the bound gets)."""
    if edge == "closed":
        return grad, 0.0
    if edge == "open":
        return 0.0, grad
    if edge == "half":
        return 0.5 * grad, 0.5 * grad
    blocked = _blocked(grad, at_min, at_max)
    return torch.where(blocked, 0.0, grad), torch.where(blocked, grad, 0.0)


def _pull_of(outside: Callable[..., Tensor], has_edge: bool = True) -> Callable[..., Gradients]:
    """A whole backward rule from what it does outside. The bounds get the true gradient of what they replaced."""

    def pull(
        grad: Tensor, x: Tensor, min: Bound, max: Bound, *, y: Tensor, wants: tuple[bool, ...], edge: str, **parameters: Any
    ) -> Gradients:
        wants_x, wants_min, wants_max = wants
        edge = edge if has_edge else "closed"
        if y is None:  # nothing was kept, because x gets grad as it is and nobody asks for more
            return grad, None, None
        below, above = x < y, x > y
        at = x == y
        at_min = at & (x == min) if min is not None else torch.zeros_like(at)
        at_max = at & (x == max) if max is not None else torch.zeros_like(at)
        to_x, to_bound = _edge_share(edge, grad, at_min, at_max)
        grad_x = grad_min = grad_max = None
        if wants_x:
            grad_x = outside(grad, x, min, max, below, above, **parameters)
            if edge != "closed":
                grad_x = torch.where(at_min | at_max, to_x, grad_x)
        if wants_min:
            crossed = min > max if max is not None else False
            grad_min = torch.where(below & ~_as_mask(crossed, at), grad, torch.where(at_min, to_bound, 0.0))
        if wants_max:
            crossed = min > max if min is not None else False
            replaced = above | (below & _as_mask(crossed, at))
            grad_max = torch.where(replaced, grad, torch.where(at_max & ~at_min, to_bound, 0.0))
        return grad_x, grad_min, grad_max

    return pull


def _as_mask(value: Any, like: Tensor) -> Tensor:
    return value if isinstance(value, Tensor) else torch.full_like(like, bool(value))


def _keeps(wants: tuple[bool, ...], **parameters: Any) -> tuple[str, ...]:
    return ("x", "min", "max")


def _keeps_for_the_bounds_only(wants: tuple[bool, ...], **parameters: Any) -> tuple[str, ...]:
    return ("x", "min", "max") if wants[1] or wants[2] else ()


def _linear_unless_projected(edge: str, **parameters: Any) -> bool:
    return edge != "projected"


def _always(**parameters: Any) -> bool:
    return True


def _never(**parameters: Any) -> bool:
    return False


def _reference(name: str) -> Callable[..., tuple[float, ...]]:
    def of_one_number(*arguments: Any, **parameters: Any) -> tuple[float, ...]:
        return reference.gradient(name, *arguments, **parameters)

    return of_one_number


RULES: dict[str, Rule] = {
    row.name: row
    for row in (
        Rule(
            name="zero",
            formula="0",
            source="the true gradient; torch.clamp",
            also_called="true gradient, tfc disconnected, clipped straight-through",
            translates=("true", "disconnected", "clipped_ste", "native", "clipped_straight_through"),
            pull=_pull_of(_zero),
            reference=_reference("zero"),
            is_linear=_linear_unless_projected,
            keeps=_keeps,
        ),
        Rule(
            name="identity",
            formula="grad",
            source="straight-through estimator (Bengio, Léonard & Courville, 2013)",
            also_called="straight-through, clamp_ste, preserve-gradient",
            translates=("ste", "straight_through", "clamp_ste", "preserve_gradient"),
            pull=_pull_of(_identity, has_edge=False),
            reference=_reference("identity"),
            is_linear=_always,
            keeps=_keeps_for_the_bounds_only,
        ),
        Rule(
            name="inward",
            formula="grad, or 0 where grad points strictly outward",
            source="lucid and tensorflow-compression (2018); ClampWithGrad, VQGAN+CLIP notebooks (K. Crowson, 2021)",
            also_called="ClampWithGrad, identity_if_towards, LowerBound, redirected ReLU, conditional integration",
            translates=("identity_if_towards", "clamp_with_grad", "towards", "directional", "redirected"),
            pull=_pull_of(_inward),
            reference=_reference("inward"),
            is_linear=_never,
            keeps=_keeps,
        ),
        Rule(
            name="sign",
            formula="sign(x - y)",
            source="An analysis of clamp_with_grad (J. Halliwell, 2022)",
            also_called="the article's proposed variant",
            translates=("clamp_with_grad_proposed", "clamp_with_grad2", "proposed"),
            pull=_pull_of(_sign),
            reference=_reference("sign"),
            is_linear=_never,
            keeps=_keeps,
        ),
        Rule(
            name="leaky",
            formula="slope * grad",
            source="leaky clamp; lucent's ReLU layers (2020) with slope 0.1",
            also_called="leaky clamp",
            translates=("leaky_clamp",),
            parameters={"slope": 0.1},
            pull=_pull_of(_leaky),
            reference=_reference("leaky"),
            is_linear=_linear_unless_projected,
            keeps=_keeps,
        ),
        Rule(
            name="elastic",
            formula="grad, or -grad * min(1, |x - y| / (width * (max - min))) where grad points strictly outward",
            source="new in pseudograd",
            also_called="",
            parameters={"width": 1.0},
            requires=("min", "max"),
            pull=_pull_of(_elastic),
            reference=_reference("elastic"),
            is_linear=_never,
            keeps=_keeps,
        ),
        Rule(
            name="inverting",
            formula="everywhere: grad * (max - x) / (max - min) if grad < 0, else grad * (x - min) / (max - min)",
            source="inverting gradients (Hausknecht & Stone, 2016)",
            also_called="inverting gradients",
            translates=("inverting_gradients",),
            requires=("min", "max"),
            pull=_pull_of(_inverting, has_edge=False),
            reference=_reference("inverting"),
            is_linear=_never,
            keeps=_keeps,
        ),
    )
}


# --- samples: what the contract tests run every rule over --------------------------------------------------------------


def _values(dtype: torch.dtype, *edges: float) -> Tensor:
    """Both sides of each edge, the edges and their neighbours, both zeros, subnormals, the largest values, infinities, NaN."""
    info = torch.finfo(dtype)
    tiny = info.tiny * info.eps
    near = [edge * factor + shift for edge in edges for factor in (1 - info.eps, 1, 1 + info.eps) for shift in (-0.25, 0, 0.25)]
    far = [edge + sign * distance for edge in edges for distance in (0.5, 3.0, 40.0) for sign in (-1, 1)]
    special = [0.0, -0.0, tiny, -tiny, info.tiny, -info.tiny, info.max, info.min, torch.inf, -torch.inf, torch.nan]
    return torch.tensor([*near, *far, *special], dtype=torch.float64).to(dtype)


def _numbers(name: str, low: float | None, high: float | None) -> Sample:
    edges = [edge for edge in (low, high) if edge is not None and abs(edge) != torch.inf]
    return Sample(name, lambda dtype: (_values(dtype, *(edges or [0.0])), low, high))


def _tensors(name: str, low: float | None, high: float | None, *, shape: tuple[int, ...] = (3, 9)) -> Sample:
    """x of shape (3, 9), or (9,) where the bounds are the larger; one bound for each row, exact hits among the values."""

    def build(dtype: torch.dtype) -> tuple[Any, ...]:
        def bound(value: float | None) -> Tensor | None:
            return None if value is None else torch.tensor([[value], [value / 2], [value / 4]], dtype=dtype)

        x = torch.linspace(-2.0, 2.0, 27, dtype=torch.float64).reshape(3, 9)
        x[:, 0], x[:, 1] = torch.tensor([-1.0, -0.5, -0.25]), torch.tensor([1.0, 0.5, 0.25])
        return (x if len(shape) == 2 else x[0]).to(dtype), bound(low), bound(high)

    return Sample(name, build)


def _mixed() -> Sample:
    build = _tensors("", None, 1.0).build
    return Sample("a number and a tensor", lambda dtype: (build(dtype)[0], -1.0, build(dtype)[2]))


def _samples(low: bool, high: bool) -> Callable[[], Iterator[Sample]]:
    """The samples of an op with these bounds."""

    def samples() -> Iterator[Sample]:
        for name, least, most in (("numbers", -1.0, 1.0), ("zero in the bounds", 0.0, 0.0), ("not representable", -0.3, 0.7)):
            if low and high and least == most:
                yield _numbers("from zero", 0.0, 1.0)
                yield _numbers("to zero", -2.0, 0.0)
                yield _numbers("one point", 0.5, 0.5)
                yield _numbers("infinite", -torch.inf, torch.inf)
            else:
                yield _numbers(name, least if low else None, most if high else None)
        yield _tensors("per channel", -1.0 if low else None, 1.0 if high else None)
        yield _tensors("larger than x", -1.0 if low else None, 1.0 if high else None, shape=(9,))
        if low and high:
            yield _tensors("crossed", 1.0, -1.0)
            yield _mixed()

    return samples


# --- the ops --------------------------------------------------------------------------------------------------------


def _torch_clamp(x: Tensor, min: Bound, max: Bound) -> Tensor:
    """torch.clamp, which takes two numbers or two tensors but not one of each: there the number becomes a 0-d tensor."""
    if min is not None and max is not None and isinstance(min, Tensor) is not isinstance(max, Tensor):
        dtype = x.dtype if x.is_floating_point() else None
        min, max = (b if isinstance(b, Tensor) else torch.full((), b, dtype=dtype, device=x.device) for b in (min, max))
    return torch.clamp(x, min, max)  # type: ignore[arg-type]


_NUMBER_OR_NONE = (float, int, type(None))


def _check(op: str, call: Call, x: Tensor, min: Bound, max: Bound, names: tuple[str, str] = ("min", "max")) -> None:
    """Raise our error for every bad argument. Number bounds that passed are remembered: checking costs as much as a small clamp."""
    if type(x) is not Tensor or type(min) not in _NUMBER_OR_NONE or type(max) not in _NUMBER_OR_NONE or is_compiling():
        _check_all(op, call, x, min, max, names)
        return
    asked = (min, max, x.dtype)
    if asked not in call.admitted:
        _check_all(op, call, x, min, max, names)
        if len(call.admitted) > 1000:  # bounds that change at every step
            call.admitted.clear()
        call.admitted.add(asked)


def _check_all(op: str, call: Call, x: Tensor, min: Bound, max: Bound, names: tuple[str, str]) -> None:
    check_tensor(op, "x", x)
    if min is None and max is None:
        raise ValueError(f"{op}: one of {' and '.join(names)} must be given, got None for both. Give at least one bound.")
    if call.rule.requires and (min is None or max is None):
        remedy = "It uses the range max - min: give both bounds, or use rule='inward'"
        raise ValueError(must(op, "rule", "be one that works with a single bound", call.rule.name, remedy))
    for name, bound in zip(names, (min, max), strict=True):
        if isinstance(bound, Tensor):
            check_tensor(op, name, bound)
            check_broadcast(op, name, bound, x.shape, "x")
            check_device(op, name, bound, x.device, "x")
        elif bound is not None:
            _check_number(op, name, bound, x)
    if is_number(min) and is_number(max) and min > max:  # type: ignore[operator]
        raise ValueError(
            f"{op}: {names[0]} must not exceed {names[1]}, got {names[0]}={min!r} and {names[1]}={max!r}. Swap them or drop one."
        )


def _check_number(op: str, name: str, bound: Any, x: Tensor) -> None:
    if not is_number(bound):
        raise TypeError(must(op, name, "be a number, a tensor or None", bound))
    if bound != bound:
        raise ValueError(must(op, name, "not be NaN", bound, "Use None for no bound"))
    if x.is_floating_point() and not is_compiling():
        fits = abs(bound) == torch.inf or abs(rounded_to(bound, x.dtype)) != torch.inf
        if not fits:
            raise ValueError(must(op, name, f"fit {x.dtype}", bound, "Use None for no bound, or a wider dtype"))


def clamp(
    x: Tensor,
    min: Bound = None,
    max: Bound = None,
    *,
    rule: RuleLike = "inward",
    edge: str = "closed",
    maximize: bool = False,
) -> Tensor:
    """Clamp `x`; outside the bounds let only gradients pass that lead back inside.

    Forward:  y = torch.clamp(x, min, max), bit for bit.
    Backward: grad_x by `rule` outside the bounds and by `edge` at them; with the default "inward" grad_x = grad inside the range and
        where a descent step along grad leads back, else 0: a pseudo-gradient. Saves x and tensor bounds; "identity" saves nothing.
        Not linear in grad with "inward", "sign", "elastic", "inverting" or edge="projected": gradients then do not add up over
        losses, micro-batches or ranks that share x as a parameter, and forward mode raises.

    Args:
        x: any shape, floating point; an integer x is clamped as torch does and gets no gradient.
        min, max: in the unit of x; number, tensor that broadcasts with x, or None for no bound. Tensor bounds get the gradient of
            what they replaced, summed to their shape. Where a tensor min exceeds max, y = max.
        rule: a name or a rule object; `pseudograd rules clamp` lists them.
        edge: what x gets exactly at a bound: "closed" grad (torch <= 2.13), "open" 0 (torch >= 2.14 with numbers), "half" 0.5 * grad
            (torch >= 2.14 with tensors), "projected" as "inward" does outside. "identity" and "inverting" ignore it.
        maximize: True for gradient ascent: computes -rule(-grad). No effect on rules that are linear in grad.
    Returns: shape, dtype and device of torch.clamp(x, min, max).
    Raises: ValueError if both bounds are None, a number bound is NaN or does not fit the dtype of x, min > max (numbers only: comparing
        tensors would force a device sync), a shape does not broadcast, or rule or edge is unknown; TypeError for complex tensors and
        for bounds that are no numbers; NotImplementedError in forward mode with a rule that is not linear in grad.
    Example:
        >>> x = torch.tensor([-2.0, 0.0, 2.0], requires_grad=True)
        >>> clamp(x, -1, 1).sum().backward(); x.grad
        tensor([0., 1., 1.])
    Source: ClampWithGrad, VQGAN+CLIP notebooks (K. Crowson, 2021, MIT); tensorflow-compression and lucid (2018) for the same rule.
    """
    return _bounded(CLAMP, x, min, max, rule, edge, maximize)


def _bounded(
    op: Op, x: Tensor, min: Bound, max: Bound, rule: RuleLike, edge: str, maximize: bool, names: tuple[str, str] = ("min", "max")
) -> Tensor:
    call = chosen(op, rule, edge, maximize)
    _check(op.name, call, x, min, max, names)
    return engine.run(call, x, min, max)


def clamp_(
    x: Tensor,
    min: Bound = None,
    max: Bound = None,
    *,
    rule: RuleLike = "inward",
    edge: str = "closed",
    maximize: bool = False,
) -> Tensor:
    """Clamp `x` in place, with the gradient of `clamp`.

    Forward:  x becomes torch.clamp(x, min, max), bit for bit.
    Backward: that of `clamp` with the same rule and edge. Saves a copy of the old x, as torch.clamp_ does; "identity" saves nothing.

    Args:
        x: any shape; not a leaf that requires grad (torch's own error).
        min, max: as in `clamp`; tensors must broadcast to the shape of x.
        rule, edge, maximize: as in `clamp`.
    Returns: x itself.
    Raises: as `clamp`, and ValueError if a bound is larger than x.
    Example:
        >>> x = torch.tensor([-2.0, 0.0, 2.0], requires_grad=True)
        >>> y = clamp_(x * 1, -1, 1); y.sum().backward(); x.grad
        tensor([0., 1., 1.])
    Source: as `clamp`.
    """
    call = chosen(CLAMP, rule, edge, maximize)
    _check("clamp_", call, x, min, max)
    for name, bound in (("min", min), ("max", max)):
        if isinstance(bound, Tensor):
            check_broadcast("clamp_", name, bound, x.shape, "x", grows=False)
    if not engine.is_recording(x, min, max):
        return torch.clamp_(x, min, max)
    kept = x.clone() if call.keeps((True, isinstance(min, Tensor), isinstance(max, Tensor))) else x
    return x.copy_(engine.run(call, kept, min, max))


def lower_bound(
    x: Tensor, bound: float | Tensor, *, rule: RuleLike = "inward", edge: str = "closed", maximize: bool = False
) -> Tensor:
    """max(x, bound); below the bound let only gradients pass that lead back up.

    Forward:  y = torch.clamp(x, min=bound), bit for bit.
    Backward: that of `clamp` with min=bound. Saves x and a tensor bound; "identity" saves nothing. Linear in grad as in `clamp`.

    Args:
        x: any shape, floating point.
        bound: in the unit of x; number or tensor that broadcasts with x. A tensor gets the gradient of what it replaced.
        rule, edge, maximize: as in `clamp`; "elastic" and "inverting" need two bounds and raise.
    Returns: shape, dtype and device of torch.clamp(x, min=bound).
    Raises: as `clamp`.
    Example:
        >>> x = torch.tensor([-2.0, 2.0], requires_grad=True)
        >>> lower_bound(x, 0).neg().sum().backward(); x.grad
        tensor([-1., -1.])
    Source: tensorflow-compression `lower_bound` (2018); CompressAI `LowerBound`.
    """
    _check_given("lower_bound", bound)
    return _bounded(LOWER_BOUND, x, bound, None, rule, edge, maximize, ("bound", "max"))


def _check_given(op: str, bound: object) -> None:
    if bound is None:
        raise ValueError(must(op, "bound", "be a number or a tensor", None))


def upper_bound(
    x: Tensor, bound: float | Tensor, *, rule: RuleLike = "inward", edge: str = "closed", maximize: bool = False
) -> Tensor:
    """min(x, bound); above the bound let only gradients pass that lead back down.

    Forward:  y = torch.clamp(x, max=bound), bit for bit.
    Backward: that of `clamp` with max=bound. Saves x and a tensor bound; "identity" saves nothing. Linear in grad as in `clamp`.

    Args:
        x: any shape, floating point.
        bound: in the unit of x; number or tensor that broadcasts with x. A tensor gets the gradient of what it replaced.
        rule, edge, maximize: as in `clamp`; "elastic" and "inverting" need two bounds and raise.
    Returns: shape, dtype and device of torch.clamp(x, max=bound).
    Raises: as `clamp`.
    Example:
        >>> x = torch.tensor([-2.0, 2.0], requires_grad=True)
        >>> upper_bound(x, 0).sum().backward(); x.grad
        tensor([1., 1.])
    Source: tensorflow-compression `upper_bound` (2018).
    """
    _check_given("upper_bound", bound)
    return _bounded(UPPER_BOUND, x, None, bound, rule, edge, maximize, ("min", "bound"))


def relu(x: Tensor, *, rule: RuleLike = "zero", edge: str = "open", maximize: bool = False) -> Tensor:
    """max(x, 0), by default with torch's own gradient.

    Forward:  y = torch.relu(x), bit for bit.
    Backward: that of `clamp` with min=0; the default is 0 at and below 0, as torch.relu. Saves x; "identity" saves nothing.

    Args:
        x: any shape, floating point; an integer x gets no gradient.
        rule, edge, maximize: as in `clamp`; "elastic" and "inverting" need two bounds and raise.
    Returns: shape, dtype and device of x.
    Raises: as `clamp`.
    Example:
        >>> x = torch.tensor([-2.0, 0.0, 2.0], requires_grad=True)
        >>> relu(x, edge="closed").sum().backward(); x.grad
        tensor([0., 1., 1.])
    Source: torch.relu; rule "inward" is lucid's redirected ReLU (2018).
    """
    return _bounded(RELU, x, 0.0, None, rule, edge, maximize)


def relu6(x: Tensor, *, rule: RuleLike = "zero", edge: str = "open", maximize: bool = False) -> Tensor:
    """min(max(x, 0), 6), by default with torch's own gradient.

    Forward:  y = torch.nn.functional.relu6(x), bit for bit.
    Backward: that of `clamp` with bounds 0 and 6; the default is 0 outside and at both, as torch. Saves x; "identity" saves nothing.

    Args:
        x: any shape, floating point; an integer x gets no gradient.
        rule, edge, maximize: as in `clamp`.
    Returns: shape, dtype and device of x.
    Raises: as `clamp`.
    Example:
        >>> x = torch.tensor([-2.0, 3.0, 9.0], requires_grad=True)
        >>> relu6(x, rule="inward").sum().backward(); x.grad
        tensor([0., 1., 1.])
    Source: torch.nn.functional.relu6; rule "inward" is lucid's redirected ReLU6 (2018).
    """
    return _bounded(RELU6, x, 0.0, 6.0, rule, edge, maximize)


def hardtanh(
    x: Tensor,
    min_val: float = -1.0,
    max_val: float = 1.0,
    *,
    rule: RuleLike = "zero",
    edge: str = "open",
    maximize: bool = False,
) -> Tensor:
    """Clamp `x` to two numbers, by default with torch's own gradient of hardtanh.

    Forward:  y = torch.nn.functional.hardtanh(x, min_val, max_val), bit for bit.
    Backward: that of `clamp`; the default is 0 outside and at both bounds, as torch. Saves x; "identity" saves nothing.

    Args:
        x: any shape, floating point.
        min_val, max_val: numbers, in the unit of x.
        rule, edge, maximize: as in `clamp`.
    Returns: shape, dtype and device of x.
    Raises: as `clamp`, and TypeError if a bound is no number.
    Example:
        >>> x = torch.tensor([-2.0, 0.0, 2.0], requires_grad=True)
        >>> hardtanh(x, rule="identity").sum().backward(); x.grad
        tensor([1., 1., 1.])
    Source: torch.nn.functional.hardtanh.
    """
    for name, bound in (("min_val", min_val), ("max_val", max_val)):
        if not is_number(bound):
            raise TypeError(must("hardtanh", name, "be a number", bound, "Use clamp for tensor bounds"))
    return _bounded(HARDTANH, x, min_val, max_val, rule, edge, maximize, ("min_val", "max_val"))


def _op(name: str, forward: Callable[..., Tensor], public: Callable[..., Tensor], bounds: tuple[Any, Any], **defaults: Any) -> Op:
    low, high = bounds
    drawing = Drawing(-2.0, 2.0, bounds) if high != 6.0 else Drawing(-3.0, 9.0, bounds)
    return register(
        Op(
            name=name,
            family="clamp",
            forward=forward,
            inputs=("x", "min", "max"),
            rules=RULES,
            edges=EDGES,
            public=public,
            drawing=drawing,
            **{"samples": _samples(low is not None, high is not None), **defaults},
        )
    )


_CLAMP_DEFAULTS = {"default_rule": "inward", "default_edge": "closed"}
_RELU_DEFAULTS = {"default_rule": "zero", "default_edge": "open"}

CLAMP = _op("clamp", _torch_clamp, clamp, (-1.0, 1.0), **_CLAMP_DEFAULTS)
LOWER_BOUND = _op(
    "lower_bound", _torch_clamp, lambda x, min, max, **how: lower_bound(x, min, **how), (-1.0, None), **_CLAMP_DEFAULTS
)
UPPER_BOUND = _op(
    "upper_bound", _torch_clamp, lambda x, min, max, **how: upper_bound(x, max, **how), (None, 1.0), **_CLAMP_DEFAULTS
)
RELU = _op(
    "relu",
    lambda x, min, max: torch.relu(x),
    lambda x, min, max, **how: relu(x, **how),
    (0.0, None),
    samples=lambda: [_numbers("relu", 0.0, None)],
    **_RELU_DEFAULTS,
)
RELU6 = _op(
    "relu6",
    lambda x, min, max: functional.relu6(x),
    lambda x, min, max, **how: relu6(x, **how),
    (0.0, 6.0),
    samples=lambda: [_numbers("relu6", 0.0, 6.0)],
    **_RELU_DEFAULTS,
)
HARDTANH = _op(
    "hardtanh",
    functional.hardtanh,
    hardtanh,
    (-1.0, 1.0),
    samples=lambda: [_numbers("hardtanh", -1.0, 1.0), _numbers("from zero", 0.0, 1.0), _numbers("one point", 0.5, 0.5)],
    **_RELU_DEFAULTS,
)
