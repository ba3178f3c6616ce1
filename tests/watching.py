"""What a computation asks of ATen."""

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class Watching(TorchDispatchMode):
    """Notes the name of every operator, and of every new tensor the number of elements."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.sizes: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.names.append(func.overloadpacket.__name__)
        old = {tensor.untyped_storage().data_ptr() for tensor in args if isinstance(tensor, Tensor)}
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(tensor, Tensor) and tensor.untyped_storage().data_ptr() not in old:
                self.sizes.append(tensor.numel())
        return result
