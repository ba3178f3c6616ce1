"""A loss of the user's that returns one number, as tasks need it: one number for each element."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class ElementByElement:
    """Calls the loss with each element by itself, of shape (1,), all at once by torch.vmap.

    Called with all of them it would return their sum or their mean: with a mean, the gradient of each would shrink with their number, and
    a loss that couples them would be another problem.
    """

    loss: Callable[[Tensor], Tensor]

    def __call__(self, y: Tensor) -> Tensor:
        return torch.vmap(lambda element: self.loss(element.reshape(1)).reshape(()))(y.reshape(-1)).reshape(y.shape)
