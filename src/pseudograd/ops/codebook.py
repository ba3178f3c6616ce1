"""Vector quantisation: each vector becomes its nearest code, and the gradient passes on by a named rule."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from .. import engine
from ..arguments import check_tensor
from ..errors import must, unknown_name
from ..rule import RuleLike, RuleObject
from .nearest_code import nearest_code
from .replace import replace_grad

__all__ = ["codebook_loss", "commitment_loss", "vector_quantize"]

DEFAULT_RULE = "identity"
TRANSLATES = {"ste": "identity", "straight_through": "identity", "replace": "identity", "rotate": "rotation"}


@engine.unscriptable
def vector_quantize(x: Tensor, codebook: Tensor, *, rule: RuleLike = DEFAULT_RULE) -> tuple[Tensor, Tensor]:
    """The nearest code of each vector, and its index.

    Forward:  indices = argmin over k of |x - codebook[k]|^2 in float64, the first where several are equal; codes = codebook[indices],
        exactly. Distances are computed in chunks, never all at once, and what rounding could decide is decided in float64.
    Backward: a pseudo-gradient. "identity": grad_x = grad. "rotation": grad_x = |q|/|x| R^T grad for x and its code q, where R turns
        the direction of x into that of q, and is a constant to further derivatives; where one of the two is no longer than eps times
        the other (zero, say), or they point in opposite directions, grad_x = grad. The codebook gets no gradient: it learns by
        `codebook_loss` or a moving average. Saves nothing, or three tensors like x for "rotation". Linear in grad.

    Args:
        x: (..., d), floating point.
        codebook: (K, d), K and d > 0, floating point, same device. May differ in dtype from x, as it does under autocast.
        rule: "identity" or "rotation".
    Returns: codes (..., d) in the dtype of codebook, and indices (...) in int64. A vector with a NaN gets index 0, and a code with a
        NaN is everybody's nearest, as torch.argmin has it.
    Raises: ValueError if the shapes or devices do not fit, the codebook is empty or the rule is unknown; TypeError if an argument
        is no floating-point tensor.
    Example:
        >>> x = torch.tensor([[0.9, 0.2], [-3.0, 1.0]], requires_grad=True)
        >>> codes, indices = vector_quantize(x, torch.tensor([[1.0, 0.0], [-1.0, 0.0]]))
        >>> codes.sum().backward(); codes.tolist(), indices, x.grad.tolist()
        ([[1.0, 0.0], [-1.0, 0.0]], tensor([0, 1]), [[1.0, 1.0], [1.0, 1.0]])
    Source: van den Oord, Vinyals & Kavukcuoglu (2017); rotation trick: Fifty et al. (2024).
    """
    name = _checked_rule(rule)
    _check("vector_quantize", x, codebook)
    indices = nearest_code(x.detach(), codebook.detach())
    codes = functional.embedding(indices, codebook.detach())
    turns = name == "rotation" and engine.is_recording(x)
    return replace_grad(codes, _rotated(x, codes) if turns else x), indices


def commitment_loss(x: Tensor, codes: Tensor) -> Tensor:
    """How far vectors are from their codes; pulls the vectors.

    Forward:  mean of (x - codes)^2 over all elements.
    Backward: the true gradient to x; codes are constants. Saves both.

    Args:
        x: (..., d), floating point: what was quantised.
        codes: shape of x: what `vector_quantize` returned.
    Returns: 0-d. Weigh it against the task's loss; van den Oord et al. use 0.25.
    Raises: TypeError if an argument is no floating-point tensor; ValueError if the shapes differ.
    Example:
        >>> x = torch.tensor([[0.5, 0.0]], requires_grad=True)
        >>> commitment_loss(x, torch.tensor([[1.0, 0.0]])).backward(); x.grad
        tensor([[-0.5000,  0.0000]])
    Source: van den Oord, Vinyals & Kavukcuoglu (2017).
    """
    for argument, value in (("x", x), ("codes", codes)):
        _check_floating("commitment_loss", argument, value)
    if x.shape != codes.shape:
        remedy = "Give the codes that vector_quantize returned"
        raise ValueError(must("commitment_loss", "codes", f"have shape {tuple(x.shape)}", tuple(codes.shape), remedy))
    return functional.mse_loss(x, codes.detach())


def codebook_loss(x: Tensor, codebook: Tensor, indices: Tensor) -> Tensor:
    """How far codes are from the vectors that chose them; pulls the codes.

    Forward:  mean of (codebook[indices] - x)^2 over all elements.
    Backward: the true gradient to codebook; x is a constant. A code that nobody chose gets 0. Saves x, the chosen codes and indices.

    Args:
        x: (..., d), floating point: what was quantised.
        codebook: (K, d), floating point.
        indices: (...), int64: what `vector_quantize` returned.
    Returns: 0-d.
    Raises: as `vector_quantize`, and TypeError or ValueError if indices have another dtype or shape.
    Example:
        >>> codebook = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], requires_grad=True)
        >>> codebook_loss(torch.tensor([[0.5, 0.0]]), codebook, torch.tensor([0])).backward(); codebook.grad
        tensor([[0.5000, 0.0000],
                [0.0000, 0.0000]])
    Source: van den Oord, Vinyals & Kavukcuoglu (2017).
    """
    _check("codebook_loss", x, codebook)
    remedy = "Give the indices that vector_quantize returned"
    if not isinstance(indices, Tensor) or indices.dtype is not torch.int64:
        raise TypeError(must("codebook_loss", "indices", "be an int64 tensor", indices, remedy))
    if indices.shape != x.shape[:-1]:
        shape = tuple(x.shape[:-1])
        raise ValueError(must("codebook_loss", "indices", f"have shape {shape}", tuple(indices.shape), remedy))
    return functional.mse_loss(functional.embedding(indices, codebook), x.detach())


def _rotated(x: Tensor, codes: Tensor) -> Tensor:
    """|q|/|x| R x, linear in x: R = I - 2 r r^T + 2 q x^T for the directions x and q, where r halves their angle."""
    dtype = torch.float64 if torch.float64 in (x.dtype, codes.dtype) else torch.float32
    turn, x_direction, code_direction, scale = _turn(x.detach().to(dtype), codes.to(dtype))
    y = x.to(dtype)
    along, ahead = ((direction * y).sum(-1, keepdim=True) for direction in (turn, x_direction))
    y = y - turn * (2 * along) + code_direction * (2 * ahead)
    return y * scale


def _turn(x: Tensor, codes: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Bisecting direction, directions of x and codes, and |codes| / |x|; zeros and 1 where there is no turn to speak of, or a NaN."""
    eps = torch.finfo(x.dtype).eps
    unit = torch.maximum(x.abs(), codes.abs()).amax(-1, keepdim=True)  # so that no square leaves the dtype
    x, codes = x / unit, codes / unit
    own, other = (v.square().sum(-1, keepdim=True).sqrt() for v in (x, codes))
    fits = (own > eps * other) & (other > eps * own)
    x, codes, scale = x / own, codes / other, other / own
    middle = x + codes
    length = middle.square().sum(-1, keepdim=True).sqrt()
    fits = fits & (length > eps**0.5)  # below, the direction of the middle is mostly rounding
    turn = middle / length
    return torch.where(fits, turn, 0), torch.where(fits, x, 0), torch.where(fits, codes, 0), torch.where(fits, scale, 1)


def _checked_rule(rule: RuleLike) -> str:
    names = ("identity", "rotation")
    asked = rule.name if isinstance(rule, RuleObject) else rule
    if asked in names and not (isinstance(rule, RuleObject) and rule.parameters):
        return asked
    translation = TRANSLATES.get(asked) if isinstance(asked, str) else None
    hint = f"{asked!r} is {translation!r} here" if translation else None
    raise unknown_name("vector_quantize", "rule", names, asked, hint)


def _check(op: str, x: Tensor, codebook: Tensor) -> None:
    for argument, value in (("x", x), ("codebook", codebook)):
        _check_floating(op, argument, value)
    if codebook.dim() != 2 or not codebook.numel():
        raise ValueError(must(op, "codebook", "have shape (K, d) with K > 0 and d > 0", tuple(codebook.shape)))
    if not x.dim() or x.shape[-1] != codebook.shape[1]:
        raise ValueError(
            must(
                op,
                "x",
                f"have shape (..., {codebook.shape[1]}), as long as a code",
                tuple(x.shape),
                "Move channels last",
            )
        )
    if x.device != codebook.device:
        remedy = f"Call .to({str(x.device)!r}) first"
        raise ValueError(must(op, "codebook", f"be on {x.device}, the device of x", str(codebook.device), remedy))


def _check_floating(op: str, argument: str, value: object) -> None:
    check_tensor(op, argument, value)
    if not value.is_floating_point():  # type: ignore[attr-defined]
        raise TypeError(must(op, argument, "be floating point", value.dtype, "Call .float() first"))  # type: ignore[attr-defined]
