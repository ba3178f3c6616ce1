"""The nearest code of each vector, exactly, in bounded memory: the search behind `vector_quantize`.

Distances come from matrix products in single precision, a chunk at a time. Rounding may have decided where two of them are closer
than its proven bound; those rows are searched again in double precision, and what is still close there by squared differences in
double precision. So the index is that of the least float64 squared difference, the first one where several are equal.

The search looks at values, which no tracer may. It is a custom op, so that a compiler and vmap see one node.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

CHUNK = 2**22  # numbers in the largest temporary: 16 MiB in single precision
SPARE = 10  # roundings that the bound allows beyond those of the product


def nearest_code(x: Tensor, codebook: Tensor) -> Tensor:
    """Indices, int64, of shape x.shape[:-1]. NaN and infinity decide as in torch.argmin of the float64 distances."""
    return torch.ops.pseudograd.nearest_code.default(x, codebook)


def _nearest_code(x: Tensor, codebook: Tensor) -> Tensor:
    rows = x.reshape(-1, x.shape[-1])
    with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
        sound, usable = rows.isfinite().all(-1), codebook.isfinite().all(-1)
        found = _of_finite(rows, codebook) if sound.all() and usable.all() else _of_any(rows, codebook, sound, usable)
    return found.reshape(x.shape[:-1])


def _shape(x: Tensor, codebook: Tensor) -> Tensor:
    return x.new_empty(x.shape[:-1], dtype=torch.int64)


def _batched(info: Any, in_dims: tuple[int | None, ...], x: Tensor, codebook: Tensor) -> tuple[Tensor, int]:
    x_dim, codebook_dim = in_dims
    if codebook_dim is None:
        return nearest_code(x.movedim(x_dim, 0), codebook), 0  # type: ignore[arg-type]
    xs = [x] * info.batch_size if x_dim is None else x.unbind(x_dim)
    found = [nearest_code(each, codes) for each, codes in zip(xs, codebook.unbind(codebook_dim), strict=True)]
    return torch.stack(found), 0


# torch.library.custom_op would import Dynamo in the first call.
_library = torch.library.Library("pseudograd", "DEF")
_library.define("nearest_code(Tensor x, Tensor codebook) -> Tensor")
_library.impl("nearest_code", _nearest_code, "CompositeExplicitAutograd")
_library.impl("nearest_code", _shape, "Meta")  # register_fake would look for its caller's source, which costs 3 ms
torch.library.register_vmap("pseudograd::nearest_code", _batched, lib=_library)


def _of_any(x: Tensor, codebook: Tensor, sound: Tensor, usable: Tensor) -> Tensor:
    """Index 0 stands wherever all distances are infinite or NaN: argmin takes the first least, and NaN for least."""
    found = torch.zeros(len(x), dtype=torch.int64, device=x.device)
    spoilt = codebook.isnan().any(-1)
    if spoilt.any():  # every distance to such a code is NaN
        found[sound] = spoilt.nonzero()[0, 0]
    elif usable.any():
        found[sound] = usable.nonzero()[:, 0][_of_finite(x[sound], codebook[usable])]
    if not usable.all():
        found[~sound] = _by_all_differences(x[~sound], codebook)
    return found


def _by_all_differences(x: Tensor, codebook: Tensor) -> Tensor:
    codes = codebook.double()
    chunks = [squared_differences(x[part].unsqueeze(1), codes).argmin(-1) for part in _chunks(len(x), codebook.numel())]
    return torch.cat(chunks) if chunks else x.new_empty(0, dtype=torch.int64)


def squared_differences(x: Tensor, codes: Tensor) -> Tensor:
    """The distance that decides."""
    return (x.double() - codes.double()).square_().sum(-1)


def _chunks(rows: int, numbers_per_row: int) -> Iterator[slice]:
    step = max(1, CHUNK // max(1, numbers_per_row))
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


def _of_finite(x: Tensor, codebook: Tensor) -> Tensor:
    """Nearest codes by matrix product, and by `_settled` wherever rounding may have decided."""
    double = torch.float64 in (x.dtype, codebook.dtype) or not _keeps_single_precision(x.device)
    dtype = torch.float64 if double else torch.float32
    products = _Products(codebook, dtype)
    found = torch.empty(len(x), dtype=torch.int64, device=x.device)
    close = torch.empty(len(x), dtype=torch.bool, device=x.device)
    for part in _chunks(len(x), len(codebook)):
        scores, slack = products(x[part])
        least, found[part] = scores.min(-1)
        runner_up = scores.scatter_(1, found[part].unsqueeze(1), torch.inf).amin(-1)
        close[part] = ~(runner_up > least + slack)  # also where either is NaN by overflow
    rows = close.nonzero()[:, 0]
    if len(rows) and len(codebook) > 1:
        found[rows] = _settled(x[rows], codebook)
    return found


def _settled(x: Tensor, codebook: Tensor) -> Tensor:
    """The same decision in double precision; by squared differences between the codes that it leaves open."""
    first = _first_of_equals(codebook)
    codes = codebook[first].double()
    products = _Products(codes, torch.float64)
    found = torch.empty(len(x), dtype=torch.int64, device=x.device)
    for part in _chunks(len(x), len(codes)):
        rows = x[part].double()
        scores, slack = products(rows)
        open_ = ~(scores > (scores.amin(-1) + slack).unsqueeze(1))
        row, code = open_.nonzero(as_tuple=True)
        pairs = [squared_differences(rows[row[some]], codes[code[some]]) for some in _chunks(len(row), codes.shape[-1])]
        found[part] = first[_first_least(torch.cat(pairs), row, code, len(rows))]
    return found


def _first_of_equals(codebook: Tensor) -> Tensor:
    """Positions of the different codes, each at its first place. Equal codes would leave every row open."""
    distinct, which = codebook.unique(dim=0, return_inverse=True)
    places = torch.arange(len(codebook), device=codebook.device)
    first = places.new_full((len(distinct),), len(codebook)).scatter_reduce(0, which, places, "amin")
    return first.sort().values


def _first_least(distance: Tensor, row: Tensor, code: Tensor, rows: int) -> Tensor:
    """For each row the least code among its pairs of least distance."""
    least = distance.new_full((rows,), torch.inf).scatter_reduce(0, row, distance, "amin")
    least_at = distance == least[row]
    return code.new_full((rows,), torch.iinfo(code.dtype).max).scatter_reduce(0, row[least_at], code[least_at], "amin")


class _Products:
    """|c|^2 - 2 x.c for rows x and all codes c: the squared distance less |x|^2, which all codes of a row share.

    Both are measured from the middle of codes that lie far from 0: the error grows with the squares of their lengths.
    """

    def __init__(self, codebook: Tensor, dtype: torch.dtype) -> None:
        parts = [codebook[part] for part in _chunks(*codebook.shape)]
        middle = codebook.mean(0, dtype=torch.float64)
        spread = torch.cat([squared_differences(part, middle) for part in parts]).amax()
        self.dtype = dtype
        self.middle = middle if middle.square().sum() > spread else None
        self.codes = torch.cat([self._moved(part) for part in parts])
        squares = torch.cat([self.codes[part].double().square().sum(-1) for part in _chunks(*codebook.shape)])
        self.squares = squares.to(dtype)
        self.length = squares.amax().sqrt()

    def _moved(self, values: Tensor) -> Tensor:
        return (values if self.middle is None else values.double() - self.middle).to(self.dtype)

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The scores, and per row how far apart the scores of two codes must be for their order to be certain."""
        x = self._moved(x)
        scores = torch.addmm(self.squares, x, self.codes.mT, alpha=-2)
        return scores, self.slack(x)

    def slack(self, x: Tensor) -> Tensor:
        """Twice the error of a score (Higham, Accuracy and Stability of Numerical Algorithms, 3.1), for a sum in any order.

        |computed - exact| <= gamma (|c|^2 + 2 |x| |c|), gamma = m u / (1 - m u), m = d plus the few roundings around the sum; those of
        x and c when they are moved count as two more. The second line is the error of the squared differences that decide in the end,
        the third what underflow can take away.
        """
        size, limits = x.shape[-1] + SPARE, torch.finfo(x.dtype)
        own, longest = x.double().square().sum(-1).sqrt_(), self.length
        error = _gamma(size, limits.eps) * longest * (longest + 2 * own)
        error += _gamma(size, torch.finfo(torch.float64).eps) * (longest + own).square()
        error += 4 * size * limits.tiny
        return torch.where((longest + own).square() < limits.max / 16, 2 * error, torch.inf).to(x.dtype)


def _gamma(size: int, eps: float) -> float:
    """Higham's gamma with unit roundoff eps / 2; infinite where the bound says nothing."""
    lost = size * eps / 2
    return lost / (1 - lost) if lost < 0.5 else float("inf")


def _keeps_single_precision(device: torch.device) -> bool:
    """May a float32 matrix product round its inputs to fewer bits (TF32, bfloat16)? The bound holds only where it may not."""
    try:
        if torch.get_float32_matmul_precision() != "highest":
            return False
    except RuntimeError:  # set by the newer interface
        return False
    backend = torch.backends.cuda.matmul if device.type == "cuda" else torch.backends.mkldnn
    settings = (backend, getattr(backend, "matmul", None))
    return all(getattr(each, "fp32_precision", "none") in ("none", "ieee") for each in settings)
