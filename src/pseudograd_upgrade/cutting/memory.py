"""What a tensor holds at one moment, and copies of it that keep its strides."""

from __future__ import annotations

import torch
from torch import Tensor

from ..digests import is_readable
from .trees import UnwritableError

MOST = 512 << 20  # bytes of one call
_FEW = 1 << 16  # entries of what is copied, and not watched for a change
_LOOSE = 4  # times its entries: memory that a view may span, and keep its strides


class Before:
    """What a tensor holds now: a copy where it is about to change, else the tensor itself, which nobody has changed while its version
    is the same. `why`: what keeps it from being written.
    """

    def __init__(self, tensor: Tensor, is_changed: bool) -> None:
        self.why = ""
        if type(tensor) not in (Tensor, torch.nn.Parameter):
            self.why = f"an argument is a {type(tensor).__name__}, no plain tensor"
        elif not is_readable(tensor):
            self.why = "an argument is inside a transform of torch.func, or is sparse, nested or without data"
        elif tensor.numel() * tensor.element_size() > MOST:
            self.why = f"one of its tensors has {tensor.numel():,} entries"
        is_copied = not self.why and (is_changed or tensor.is_inference() or tensor.numel() < _FEW)
        self._tensor = own_memory(tensor) if is_copied else tensor if self.why else tensor.detach()
        self._version = None if self.why or is_copied else self._tensor._version

    def tensor(self) -> Tensor:
        if self._version is None:
            return self._tensor
        if self._tensor._version != self._version:
            raise UnwritableError("an argument was changed in place after the call")
        return own_memory(self._tensor)


def own_memory(tensor: Tensor) -> Tensor:
    """A copy with the same strides, in memory that holds nothing else; without them where most of that would be gaps."""
    x = tensor.detach()
    sizes = list(zip(x.shape, x.stride(), strict=True))
    span = 1 + sum((size - 1) * stride for size, stride in sizes) if x.numel() else 0
    if not span or span > _LOOSE * x.numel() or x.is_conj() or x.is_neg():
        return x.clone(memory_format=torch.contiguous_format)
    if any(size > 1 and not stride for size, stride in sizes):
        return x.as_strided((span,), (1,), x.storage_offset()).clone().as_strided(x.shape, x.stride(), 0)
    return x.new_zeros(span).as_strided(x.shape, x.stride()).copy_(x)
