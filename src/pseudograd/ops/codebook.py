"""Vector quantisation: each vector becomes its nearest code, and the gradient passes on by a named rule.

The file has more than 300 lines because the exact search for the nearest code stands beside the op that needs it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .. import engine
from ..arguments import check_device, check_floating
from ..errors import must, unknown_name
from ..rule import RuleLike, RuleObject
from .replace import replace_grad

__all__ = ["codebook_loss", "commitment_loss", "vector_quantize"]

DEFAULT_RULE, ROTATION_RULE = RULES = ("identity", "rotation")
TRANSLATES = {"ste": "identity", "straight_through": "identity", "replace": "identity", "rotate": "rotation"}


@engine.unscriptable
def vector_quantize(x: Tensor, codebook: Tensor, *, rule: RuleLike = DEFAULT_RULE) -> tuple[Tensor, Tensor]:
    """The nearest code of each vector, and its index.

    Forward:  indices = argmin over k of |x - codebook[k]|^2 in float64, the first where several are equal; codes = codebook[indices],
        exactly. Distances are computed in chunks, and again in float64 where rounding could change the index.
    Backward: a pseudo-gradient. "identity": grad_x = grad. "rotation": grad_x = |q|/|x| R^T grad for x and its code q, where R rotates
        the direction of x into that of q. R is a constant in further derivatives. If x or q is 0 or at most eps times as long as the
        other, or if they point in opposite directions, grad_x = grad. The codebook gets no gradient: it learns by `codebook_loss` or
        a moving average. Saves nothing, or three tensors like x for "rotation". Linear in grad.

    Args:
        x: (..., d), floating point.
        codebook: (K, d), K and d > 0, floating point, same device. May differ in dtype from x, as it does under autocast.
        rule: "identity" or "rotation".
    Returns: codes (..., d) in the dtype of codebook, and indices (...) in int64. A vector with a NaN gets index 0. A code with a NaN
        is the nearest of every other vector, because torch.argmin treats NaN as the least.
    Raises: ValueError if the shapes or devices do not fit, the codebook is empty or the rule is unknown; TypeError if an argument
        is no floating-point tensor.
    Example:
        >>> x = torch.tensor([[0.9, 0.2], [-3.0, 1.0]], requires_grad=True)
        >>> codes, indices = vector_quantize(x, torch.tensor([[1.0, 0.0], [-1.0, 0.0]]))
        >>> codes.sum().backward(); codes.tolist(), indices, x.grad.tolist()
        ([[1.0, 0.0], [-1.0, 0.0]], tensor([0, 1]), [[1.0, 1.0], [1.0, 1.0]])
    Source: van den Oord, Vinyals & Kavukcuoglu (2017); rotation trick: Fifty et al. (2024).
    """
    name = _name_of_rule(rule)
    _check("vector_quantize", x, codebook)
    indices = nearest_code(x.detach(), codebook.detach())
    codes = functional.embedding(indices, codebook.detach())
    rotates = name == ROTATION_RULE and engine.is_recording(x)
    return replace_grad(codes, _rotate(x, codes) if rotates else x), indices


def commitment_loss(x: Tensor, codes: Tensor) -> Tensor:
    """The distance of vectors from their codes. Its gradient moves the vectors.

    Forward:  mean of (x - codes)^2 over all elements.
    Backward: the true gradient to x; codes are constants. Saves both.

    Args:
        x: (..., d), floating point: what was quantised.
        codes: shape of x: what `vector_quantize` returned.
    Returns: 0-d. Multiply it by a weight before you add it to the task's loss; van den Oord et al. use 0.25.
    Raises: TypeError if an argument is no floating-point tensor; ValueError if the shapes differ.
    Example:
        >>> x = torch.tensor([[0.5, 0.0]], requires_grad=True)
        >>> commitment_loss(x, torch.tensor([[1.0, 0.0]])).backward(); x.grad
        tensor([[-0.5000,  0.0000]])
    Source: van den Oord, Vinyals & Kavukcuoglu (2017).
    """
    for argument, value in (("x", x), ("codes", codes)):
        check_floating("commitment_loss", argument, value)
    if x.shape != codes.shape:
        remedy = "Give the codes that vector_quantize returned"
        raise ValueError(must("commitment_loss", "codes", f"have shape {tuple(x.shape)}", tuple(codes.shape), remedy))
    return functional.mse_loss(x, codes.detach())


def codebook_loss(x: Tensor, codebook: Tensor, indices: Tensor) -> Tensor:
    """The distance of codes from the vectors that chose them. Its gradient moves the codes.

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


def _rotate(x: Tensor, codes: Tensor) -> Tensor:
    """|q|/|x| R x, linear in x. R = I - 2 r r^T + 2 q x^T with unit vectors: the directions x and q, and r halfway between them."""
    dtype = torch.float64 if torch.float64 in (x.dtype, codes.dtype) else torch.float32
    halfway, x_direction, code_direction, scale = _rotation(x.detach().to(dtype), codes.to(dtype))
    y = x.to(dtype)
    along_halfway, along_x = ((direction * y).sum(-1, keepdim=True) for direction in (halfway, x_direction))
    y = y - halfway * (2 * along_halfway) + code_direction * (2 * along_x)
    return y * scale


def _rotation(x: Tensor, codes: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The direction halfway, the directions of x and of codes, and |codes| / |x|. Zeros and 1 where the rotation is not defined."""
    eps = torch.finfo(x.dtype).eps
    unit = torch.maximum(x.abs(), codes.abs()).amax(-1, keepdim=True)  # so that no square overflows or underflows
    x, codes = x / unit, codes / unit
    x_length, code_length = (v.square().sum(-1, keepdim=True).sqrt() for v in (x, codes))
    is_defined = (x_length > eps * code_length) & (code_length > eps * x_length)  # False for a NaN
    x, codes, scale = x / x_length, codes / code_length, code_length / x_length
    halfway = x + codes
    length = halfway.square().sum(-1, keepdim=True).sqrt()
    is_defined = is_defined & (length > eps**0.5)  # the direction of a shorter vector is mostly rounding
    halfway, x, codes = (torch.where(is_defined, direction, 0) for direction in (halfway / length, x, codes))
    return halfway, x, codes, torch.where(is_defined, scale, 1)


def _name_of_rule(rule: RuleLike) -> str:
    name = rule.name if isinstance(rule, RuleObject) else rule
    if name in RULES and not (isinstance(rule, RuleObject) and rule.parameters):
        return name
    translation = TRANSLATES.get(name) if isinstance(name, str) else None
    hint = f"{name!r} is {translation!r} here" if translation else None
    raise unknown_name("vector_quantize", "rule", RULES, name, hint)


def _check(op: str, x: Tensor, codebook: Tensor) -> None:
    for argument, value in (("x", x), ("codebook", codebook)):
        check_floating(op, argument, value)
    if codebook.dim() != 2 or not codebook.numel():
        raise ValueError(must(op, "codebook", "have shape (K, d) with K > 0 and d > 0", tuple(codebook.shape)))
    if not x.dim() or x.shape[-1] != codebook.shape[1]:
        shape = f"have shape (..., {codebook.shape[1]}), as long as a code"
        raise ValueError(must(op, "x", shape, tuple(x.shape), "Move channels last"))
    check_device(op, "codebook", codebook, x.device, "x")


# --- the search for the nearest code ----------------------------------------------------------------------------------
# Distances come from matrix products in single precision, a chunk at a time. If two distances are closer than the proven bound of
# their rounding errors, the vector is searched again in double precision, and codes that are still too close are compared by squared
# differences. So the index is that of the least float64 squared difference, or the first such index if several are equal.
# The first search reads one result from the device, the vectors that are not decided: each reading waits for all work of the device.
# The search branches on values, which a traced function must not do. So it is a custom op: a compiler and vmap see one node.

CHUNK = 2**22  # numbers in the largest temporary: 16 MiB in single precision
SPARE = 10  # the bound counts this many roundings beside those of the product


def nearest_code(x: Tensor, codebook: Tensor) -> Tensor:
    """Indices, int64, of shape x.shape[:-1]. With NaN and infinity the result is torch.argmin of the float64 distances."""
    if hasattr(x, "device_mesh") or hasattr(codebook, "device_mesh"):
        _register_sharding()
    return torch.ops.pseudograd.nearest_code.default(x, codebook)


@cache
def _register_sharding() -> None:
    """Tell DTensor that each device searches the whole codebook for its own part of the vectors."""
    from torch.distributed.tensor import Replicate, Shard  # imported only for a DTensor, which has imported it already
    from torch.distributed.tensor.experimental import register_sharding

    def placements(x: Any, codebook: Any) -> list[tuple[list[Any], list[Any]]]:
        allowed = [Replicate(), *map(Shard, range(x.ndim - 1))]
        return [([placement], [placement, Replicate()]) for placement in allowed]

    register_sharding(torch.ops.pseudograd.nearest_code.default)(placements)


def _nearest_code(x: Tensor, codebook: Tensor) -> Tensor:
    vectors = x.reshape(-1, x.shape[-1])
    with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
        is_double = torch.float64 in (x.dtype, codebook.dtype) or not _keeps_single_precision(x.device)
        indices = (_search_exactly if is_double else _search_in_single)(vectors, codebook)
    return indices.reshape(x.shape[:-1])


def _make_meta_result(x: Tensor, codebook: Tensor) -> Tensor:
    return x.new_empty(x.shape[:-1], dtype=torch.int64)


def _search_under_vmap(info: Any, in_dims: tuple[int | None, ...], x: Tensor, codebook: Tensor) -> tuple[Tensor, int]:
    x_dim, codebook_dim = in_dims
    if codebook_dim is None:
        return nearest_code(x.movedim(x_dim, 0), codebook), 0  # type: ignore[arg-type]
    xs = [x] * info.batch_size if x_dim is None else x.unbind(x_dim)
    return torch.stack([nearest_code(*pair) for pair in zip(xs, codebook.unbind(codebook_dim), strict=True)]), 0


# torch.library.custom_op would import Dynamo in the first call.
_library = torch.library.Library("pseudograd", "DEF")
_library.define("nearest_code(Tensor x, Tensor codebook) -> Tensor")
_library.impl("nearest_code", _nearest_code, "CompositeExplicitAutograd")
_library.impl(
    "nearest_code", _make_meta_result, "Meta"
)  # register_fake would look for its caller's source, which costs 3 ms
torch.library.register_vmap("pseudograd::nearest_code", _search_under_vmap, lib=_library)


def _search_in_single(x: Tensor, codebook: Tensor) -> Tensor:
    """The index of each vector by scores |c|^2 - 2 x.c. An uncertain vector, as each with NaN, infinity or overflow, is searched again.

    `_slack` says how far two scores have to be apart. Here |x| + longest stands for every length, and `spare` for the loss by underflow.
    """
    codes, size, limits = codebook.float(), x.shape[-1] + SPARE, torch.finfo(torch.float32)
    lengths = torch.linalg.vector_norm(codes, dim=-1)
    indices = torch.empty(len(x), dtype=torch.int64, device=x.device)
    least, second = torch.empty((2, len(x)), device=x.device)
    # A CUDA device gets fewer and larger parts, because Python starts each. One buffer holds the scores of every part in turn.
    step = _vectors_at_a_time(max(codebook.shape) // (2 if x.is_cuda else 1))
    buffer, squares = torch.empty(min(step, len(x)), len(codes), device=x.device), lengths.square()
    for start in range(0, len(x), step):
        part = slice(start, start + step)
        vectors, part_indices = x[part].float(), indices[part]
        scores = torch.addmm(squares, vectors, codes.mT, alpha=-2, out=buffer[: len(vectors)])
        torch.min(scores, -1, out=(least[part], part_indices))
        torch.amin(scores.scatter_(1, part_indices.unsqueeze(1), torch.inf), -1, out=second[part])
    gamma = _gamma(size, limits.eps)
    share = 2 * (gamma + _gamma(size, torch.finfo(torch.float64).eps)) / max(1 - gamma, 0.5) ** 2
    spare = math.sqrt(8 * size * limits.tiny / share)
    reach = torch.linalg.vector_norm(x, dim=-1, dtype=torch.float32).add_(lengths.amax().add_(spare)).square_()
    undecided = (second > least.add_(reach, alpha=share)).logical_not_().nonzero()[:, 0]
    if len(undecided) and len(codebook) > 1:
        indices[undecided] = _search_exactly(x[undecided], codebook)
    return indices


def _search_exactly(x: Tensor, codebook: Tensor) -> Tensor:
    """The exact index of each vector, also if vectors or codes have NaN or infinity.

    As in argmin, NaN is the least distance and the first of equal distances counts. So a vector whose distances are all equal gets 0.
    """
    if not codebook.isfinite().all():
        return _search_by_differences(x, codebook)
    is_finite = x.isfinite().all(-1)
    indices = torch.zeros(len(x), dtype=torch.int64, device=x.device)
    indices[is_finite] = _search_in_double(x[is_finite], codebook)
    return indices


def _search_by_differences(x: Tensor, codebook: Tensor) -> Tensor:
    codes = codebook.double()
    chunks = [squared_differences(x[part].unsqueeze(1), codes).argmin(-1) for part in _chunks(len(x), codebook.numel())]
    return torch.cat(chunks) if chunks else x.new_empty(0, dtype=torch.int64)


def squared_differences(x: Tensor, codes: Tensor) -> Tensor:
    """The squared distances in float64, which define the nearest code."""
    return (x.double() - codes.double()).square_().sum(-1)


def _vectors_at_a_time(numbers_per_vector: int) -> int:
    return max(1, CHUNK // max(1, numbers_per_vector))


def _chunks(vectors: int, numbers_per_vector: int) -> Iterator[slice]:
    step = _vectors_at_a_time(numbers_per_vector)
    return (slice(start, min(start + step, vectors)) for start in range(0, vectors, step))


def _search_in_double(x: Tensor, codebook: Tensor) -> Tensor:
    """The search in double precision, with the mean of the codes subtracted. Codes that are too close are compared by differences."""
    first = _first_of_equals(codebook)
    codes = codebook[first].double()
    mean = codes.mean(0)
    centred = codes - mean
    squares = centred.square().sum(-1)
    longest = squares.amax().sqrt()
    indices = torch.empty(len(x), dtype=torch.int64, device=x.device)
    for part in _chunks(len(x), len(codes)):
        vectors = x[part].double()
        scores = torch.addmm(squares, vectors - mean, centred.mT, alpha=-2)
        is_candidate = ~(scores > (scores.amin(-1) + _slack(vectors - mean, longest)).unsqueeze(1))
        vector, code = is_candidate.nonzero(as_tuple=True)
        chunks = _chunks(len(vector), codes.shape[-1])
        distances = [squared_differences(vectors[vector[pairs]], codes[code[pairs]]) for pairs in chunks]
        indices[part] = first[_first_least(torch.cat(distances), vector, code, len(vectors))]
    return indices


def _first_of_equals(codebook: Tensor) -> Tensor:
    """The first index of each distinct code, in order: no precision could decide between equal codes."""
    distinct, inverse = codebook.unique(dim=0, return_inverse=True)
    indices = torch.arange(len(codebook), device=codebook.device)
    return indices.new_full((len(distinct),), len(codebook)).scatter_reduce(0, inverse, indices, "amin").sort().values


def _first_least(distance: Tensor, vector: Tensor, code: Tensor, vectors: int) -> Tensor:
    """For each vector, the lowest index among the codes at the least distance. distance[k] is that of vector[k] and code[k]."""
    least = distance.new_full((vectors,), torch.inf).scatter_reduce(0, vector, distance, "amin")
    is_least = distance == least[vector]
    no_code = code.new_full((vectors,), torch.iinfo(code.dtype).max)
    return no_code.scatter_reduce(0, vector[is_least], code[is_least], "amin")


def _slack(x: Tensor, longest: Tensor) -> Tensor:
    """The difference that two scores |c|^2 - 2 x.c need for their order to be certain: twice the error of a score (Higham, Accuracy and
    Stability of Numerical Algorithms, 3.1), for a sum in any order.

    |computed - exact| <= gamma (|c|^2 + 2 |x| |c|) <= gamma (|c| + |x|)^2, gamma = m u / (1 - m u). m is d plus SPARE, which includes two
    roundings from the subtraction of the mean. The error of the squared differences is as large. The last term is the loss by underflow.
    """
    size, limits = x.shape[-1] + SPARE, torch.finfo(torch.float64)
    reach = x.square().sum(-1).sqrt_().add_(longest).square_()
    error = 2 * _gamma(size, limits.eps) * reach + 4 * size * limits.tiny
    return torch.where(reach < limits.max / 16, 2 * error, torch.inf)


def _gamma(size: int, eps: float) -> float:
    """Higham's gamma with unit roundoff eps / 2. Infinite if size is too large for the bound."""
    lost = size * eps / 2
    return lost / (1 - lost) if lost < 0.5 else float("inf")


def _keeps_single_precision(device: torch.device) -> bool:
    """Does a float32 matrix product keep all bits of its inputs? The bound does not hold for a product in TF32 or bfloat16."""
    try:
        if torch.get_float32_matmul_precision() != "highest":
            return False
    except RuntimeError:  # set by the newer interface
        return False
    backend = torch.backends.cuda.matmul if device.type == "cuda" else torch.backends.mkldnn
    settings = (backend, getattr(backend, "matmul", None))
    return all(getattr(each, "fp32_precision", "none") in ("none", "ieee") for each in settings)
