"""A residual of 1, 2 or 3 bits per element, for rules whose gradient is grad times one of a few slopes (`Rule.steps`).

What is kept, in this order: the codes, a uint8 tensor of shape (bits, 8 * ceil(n / 64)); the shape of x; its strides; the slopes. Element
i is the i-th in the memory of x, which is dense, in whatever order its dimensions lie. Row p of the codes is bit plane p: bit i % 8 of
its byte i // 8 is bit p of the code of element i. What lies behind the n-th bit of a plane has no meaning.

Plain ATen, chunk by chunk, so that neither pass has temporaries of the size of x. On a CPU eight bools at a time are one int64.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import torch
from torch import Size, Tensor
from torch.nn import functional

from ..geometry import Steps
from ..rule import Call, Gradients, Wants
from . import range_bits
from .residuals import Inputs, Kept, Residual
from .table import are_plain, register

CHUNK = 2**20  # elements, a multiple of 64
# Times eight bytes of 0 or 1, it gathers them in the highest byte, the first byte in the lowest bit: 128 for the first byte in memory.
(_GATHER,) = struct.unpack("q", bytes.fromhex("8040201008040201"))


def _steps_of(call: Call, inputs: Inputs) -> Steps | None:
    return None if call.rule.steps is None else call.rule.steps(*inputs[1:], **call.parameters)


def steps_of(call: Call, inputs: Inputs) -> Steps:
    """Of a call that `FEW_BITS` serves."""
    steps = _steps_of(call, inputs)
    assert steps is not None
    return steps


def suits(call: Call) -> bool:
    return call.rule.steps is not None


def _serves(call: Call, inputs: Inputs, wants: Wants) -> bool:
    x = inputs[0]
    if torch.jit.is_tracing():  # type: ignore[attr-defined]  # sizes are tensors there, and asking them leaves a warning in the trace
        return False
    if x.numel() < range_bits.least or x.dtype not in range_bits.DTYPES or not are_plain((x,)):
        return False
    return range_bits.order_of(x) is not None and _steps_of(call, inputs) is not None


def bits_of(steps: Steps) -> int:
    return (len(steps.slopes) - 1).bit_length()


def _bytes_of_a_plane(elements: int) -> int:
    return -(-elements // 64) * 8


def in_memory(x: Tensor) -> Tensor:
    """All elements in the order in which they lie."""
    return x.as_strided((x.numel(),), (1,))


def _chunks(elements: int) -> Iterator[slice]:
    for start in range(0, elements, CHUNK):
        yield slice(start, min(start + CHUNK, elements))


def packed(x: Tensor, steps: Steps) -> Tensor:
    """The codes of x."""
    elements = x.numel()
    planes = torch.empty((bits_of(steps), _bytes_of_a_plane(elements)), dtype=torch.uint8, device=x.device)
    for chunk in _chunks(elements):
        for plane, bits in zip(planes, steps.planes(in_memory(x)[chunk]), strict=True):
            words = functional.pad(bits, (0, -len(bits) % 64)).view(torch.int64)
            first = chunk.start // 8
            plane[first : first + len(words)] = words.mul(_GATHER).bitwise_right_shift_(56).bitwise_and_(255)
    return planes


def _slopes_of_four(steps_slopes: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """For four neighbours at a time: row k has their slopes, where bits 4p..4p + 3 of k are their bits of plane p."""
    bits = (len(steps_slopes) - 1).bit_length()
    k = torch.arange(16**bits, device=device).unsqueeze(1)
    neighbour = torch.arange(4, device=device)
    code = sum(((k >> (neighbour + 4 * plane)) & 1) << plane for plane in range(bits))
    return torch.tensor(steps_slopes, dtype=dtype, device=device)[code]


def _unpacked(
    planes: Tensor, elements: int, slopes: tuple[float, ...], dtype: torch.dtype
) -> Iterator[tuple[slice, Tensor]]:
    """Chunk by chunk the slope of each element; float32 for half precision, because 1/6 should be rounded no further."""
    rows = _slopes_of_four(slopes, torch.float64 if dtype is torch.float64 else torch.float32, planes.device)
    planes = planes.to(
        torch.uint8
    )  # as they were kept; a hook of saved tensors may have handed them back in another dtype
    for chunk in _chunks(elements):
        bytes_ = planes[:, chunk.start // 8 : -(-chunk.stop // 8)].int()
        low, high = bytes_[0] & 15, bytes_[0] >> 4
        for plane in range(1, len(planes)):
            low |= (bytes_[plane] & 15) << 4 * plane
            high |= bytes_[plane] >> 4 << 4 * plane
        which = torch.stack([low, high], dim=1).reshape(-1)
        yield chunk, rows.index_select(0, which).reshape(-1)[: chunk.stop - chunk.start]


def _encode(call: Call, inputs: Inputs, wants: Wants) -> tuple[Tensor, Kept]:
    x, steps = inputs[0], steps_of(call, inputs)
    return call.primitive.forward(*inputs), [packed(x, steps), tuple(x.shape), x.stride(), steps.slopes]


def _pull(grad: Tensor, kept: Kept, wants: Wants, call: Call) -> Gradients:
    """grad * slope, with all slopes at once: for every kind of grad."""
    planes, shape, strides, slopes = kept
    dtype = torch.float64 if grad.dtype is torch.float64 else torch.float32
    slope = torch.empty_strided(shape, strides, dtype=dtype, device=planes.device)
    for chunk, part in _unpacked(planes, Size(shape).numel(), slopes, dtype):
        in_memory(slope)[chunk] = part
    if 0.0 in slopes:
        grad = torch.where(slope == 0, slope, grad)
    return grad * slope, *[None] * (len(wants) - 1)


def _nbytes(call: Call, inputs: Inputs, wants: Wants) -> int:
    return bits_of(steps_of(call, inputs)) * _bytes_of_a_plane(inputs[0].numel())


FEW_BITS: Residual = Residual("few bits", _serves, _encode, _pull, _nbytes, suits, priority=10)


def backward(grad: Tensor, kept: Kept, wants: Wants, call: Call) -> Gradients | None:
    """The same with slopes for one chunk at a time, into the only new tensor of the size of x, which lies as x does."""
    planes, shape, strides, slopes = kept
    if grad.dtype not in range_bits.DTYPES:
        return None
    grad_x = torch.empty_strided(shape, strides, dtype=grad.dtype, device=grad.device)
    from_grad = in_memory(grad if grad.stride() == strides else grad_x.copy_(grad))
    for chunk, slope in _unpacked(planes, grad_x.numel(), slopes, grad.dtype):
        into = in_memory(grad_x)[chunk]
        torch.mul(from_grad[chunk], slope, out=into)
        if 0.0 in slopes:
            into.masked_fill_(slope == 0, 0.0)
    return grad_x, *[None] * (len(wants) - 1)


register(FEW_BITS)
