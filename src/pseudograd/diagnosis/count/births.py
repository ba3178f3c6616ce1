"""The op that made a value that is not finite: its kind, and the x that caused it, read from the saved values of its node.

In `births` and `nonfinite` a tensor is *broken* if it holds nan or inf, and a *birth* is the op that made the first broken tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from operator import methodcaller
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from torch import Tensor

from ...listen import nodes
from ...listen.nodes import GraphNode
from ...torch_table.private import input_metadata, saved, saved_names
from .drops import MATRIX_PRODUCTS
from .graph_shapes import op_of
from .leaf import has_numbers

if TYPE_CHECKING:
    from .norms import Losses
    from .tally import Tally

_KindOfOp = Literal["root", "division", "log", "arc", "overflow", "softmax", "factor", "product"]
_OtherKind = Literal[
    "log of softmax",
    "log of sigmoid",
    "minus infinity",
    "too few",
    "half",
    "half result",
    "function",
    "matrix",
    "data",
    "weights",
    "broken input",
    "unseen",
    "other",
]
Kind = Literal[_KindOfOp, _OtherKind]  # `judge/findings/nonfinite.py` has a sentence for each
_MATRIX_OPS = (*MATRIX_PRODUCTS, "Addmv", "Addr")  # each entry of their result depends on many entries of x
_KINDS: dict[_KindOfOp, str] = {
    "root": "Sqrt Pow LinalgVectorNorm Norm Cdist",
    "division": "Div Reciprocal Rsqrt Atan2 Addcdiv",
    "log": "Log Log2 Log10 Log1P Logit Xlogy SpecialEntr",
    "arc": "Acos Asin Acosh Atanh Erfinv",
    "overflow": "Exp Exp2 Expm1 Sinh Cosh LinalgMatrixExp",
    "softmax": "Softmax LogSoftmax Logsumexp ScaledDotProductFlashAttentionForCpu",
    "factor": "Mul Addcmul",
    "product": " ".join((*_MATRIX_OPS, "Convolution", "Embedding", "Sum", "Prod", "Cumprod")),
}
KIND_OF: dict[str, Kind] = {name: kind for kind, names in _KINDS.items() for name in names.split()}
# By the name of a saved input: its index in `next_functions`, if that is not 0.
_NAMES_OF_SECOND = "other weight exponent target mat2 mat1 batch1 mat vec vec1 tensor x2 tensor1 key"
_NAMES_OF_THIRD = "tensor2 batch2 vec2 value bias"
_INDICES = {**dict.fromkeys(_NAMES_OF_SECOND.split(), 1), **dict.fromkeys(_NAMES_OF_THIRD.split(), 2), "attn_mask": 3}
_WITHOUT_VALUES = frozenset(("Softmax", "LogSoftmax", "Logsumexp", *_MATRIX_OPS))  # no single x explains their slope
_UNSIGNED = 2**64  # unsigned numbers of 64 bits are below it
_RESULTS = frozenset(("result", "output", "logsumexp"))
# The saved input that can make the slope infinite, for ops where that is not `self`.
_DECIDING = {"Div": "other", "Atan2": "other", "Xlogy": "other", "Addcdiv": "tensor2"}
_LOSSES = "NllLoss NllLoss2D MseLoss SmoothL1Loss BinaryCrossEntropy BinaryCrossEntropyWithLogits"
TOO_FEW = frozenset(("Mean", "Std", "Var", *_LOSSES.split()))  # ops that make nan of too few finite numbers
_MEAN = 1  # among the numbers of torch's reductions
_NEAR_0, _NEAR_0_IN_HALF = 1e-6, 1e-2  # a smaller divisor is near 0
_SELECTING = ("Index", "Gather", "Select", "Slice", "View", "Squeeze", "Unsqueeze", "Expand", "Transpose")
_MASKING = ("MaskedFill", "Where", "Add", "IndexPut", "IndexFill", "Scatter")  # they may write -inf
# The inverse of an op: of the largest number of a dtype it gives the largest x that does not overflow.
_LIMITS = {"Exp": torch.log, "Exp2": torch.log2, "Expm1": torch.log}
# A function that computes the result of an op again, or the part of it that may be broken, and the saved inputs that it takes.
_FUNCTIONS = (
    "log: self; log2: self; log10: self; log1p: self; logit: self; acos: self; asin: self; acosh: self; atanh: self; erfinv: self; "
    "sinh: self; cosh: self; mul: self other; div: self other; xlogy: self other; pow: self exponent; mm: self mat2; bmm: self mat2; "
    "mv: self vec; dot: self tensor"
)
_INPUTS: dict[str, tuple[str, ...]] = {
    function.capitalize(): (function, *names.split())
    for function, names in (part.split(": ") for part in _FUNCTIONS.split("; "))
} | {
    "Log1P": ("log1p", "self"),
    "Addmm": ("mm", "mat1", "mat2"),
    "Baddbmm": ("bmm", "batch1", "batch2"),
    "Addbmm": ("bmm", "batch1", "batch2"),
    "Addmv": ("mv", "mat", "vec"),
    "Addr": ("outer", "vec1", "vec2"),
}


class Position(NamedTuple):
    """The position of a node among the nodes with the same op in one backward."""

    ordinal: int  # counts from 0
    total: int  # the number of these nodes


NO_POSITION = Position(0, 0)


@dataclass
class Birth:
    """An op whose backward made a broken gradient from finite ones, or whose forward made a broken value.

    parameter: a parameter that is another input of the op; for the kind "weights", the broken parameter.
    """

    tally: Tally | None  # None if the diagnosis did not see the call
    op: str
    kind: Kind
    backward: int  # the number of the backward
    entries: int  # the number of broken entries
    elements: int  # the number of all entries
    values: str  # a clause about x at the broken entries
    dtype: torch.dtype
    upstream: int  # the set of leaves that its gradient flows to
    is_masked: bool = False  # do only zeros arrive at the broken entries?
    is_forward: bool = False  # was the broken value made in the forward?
    origin: str = ""  # the op that made the broken input
    broken: str = ""  # the name of a saved input that is broken
    parameter: str = ""
    line_losses: Losses | None = None  # the losses of the line that called backward
    position: Position = NO_POSITION
    excess: float = 0.0  # the largest gradient as a multiple of the largest number of float16; 0 if it is not known
    divides_by_number: bool = False  # is the divisor one number outside of the graph, as a number of Python is?
    hidden_leaves: int = 0  # the set of leaves behind a detach
    earlier_backward: int = 0  # the number of a backward that got the same value, behind a detach; 0 if there is none


def is_broken(value: object) -> bool:
    """Is it a tensor that holds nan or inf?"""
    if not isinstance(value, Tensor) or not has_numbers(value) or not (value.is_floating_point() or value.is_complex()):
        return False
    value = value.detach()
    return not bool((value._values() if value.is_sparse else value).isfinite().all())


def broken_numbers(value: Tensor) -> str:
    """The broken numbers that a tensor holds, such as "nan or -inf"."""
    groups = {"nan": value.isnan(), "inf": value == torch.inf, "-inf": value == -torch.inf}
    return " or ".join(word for word, group in groups.items() if bool(group.any()))


def saved_value(node: GraphNode, name: str) -> Tensor | None:
    """A saved value, if it is a tensor whose numbers can be read without running code of the program."""
    try:
        value = saved(node, name, None)
    except RuntimeError:
        return None
    if not isinstance(value, Tensor) or not has_numbers(value) or value.layout is not torch.strided:
        return None
    return value.detach() if value.is_floating_point() or value.is_complex() else None


def saved_inputs(node: GraphNode) -> dict[str, Tensor]:
    names = [name for name in saved_names(node) if name not in _RESULTS and name[:6] != "result"]
    return {name: value for name in names if (value := saved_value(node, name)) is not None}


def saved_results(node: GraphNode) -> list[Tensor]:
    names = [name for name in saved_names(node) if name in _RESULTS]
    return [value for name in names if (value := saved_value(node, name)) is not None]


def maker_of(node: GraphNode, name: str) -> GraphNode | None:
    """The node that made a saved input; None if the input needs no gradient."""
    position, inputs = position_of(node, name), node.next_functions
    return inputs[position][0] if position < len(inputs) else None


def kind_of(op: str, node: GraphNode, is_ordinary: bool) -> Kind:
    """The kind of a birth by its op. is_ordinary: are the result and the slope finite for such an x?"""
    kind = KIND_OF.get(op, "matrix" if op.startswith("Linalg") else "other")
    if op == "LogSoftmax" and not any(bool(value.isnan().any()) for value in saved_results(node)):
        return "minus infinity"
    if is_ordinary and (kind == "root" or op in _LIMITS or (op == "Div" and not _may_be_near_0(node))):
        return "product"  # the op is harmless for this x: what arrives is too large
    if op == "Log" and not is_ordinary:
        return _kind_of_log(node)
    if op == "Pow" and not isinstance(saved(node, "self", None), Tensor):
        return "product"  # a number to the power of x
    return "division" if op == "Pow" and _least_exponent(node) < 0 else kind


def _kind_of_log(node: GraphNode) -> Kind:
    """The kind is "log of softmax" or "log of sigmoid" if such an op makes x: torch has one function for both steps. Else "log"."""
    maker, is_complement = node.next_functions[0][0], False
    while maker is not None and op_of(maker) in (*_SELECTING, "Rsub"):
        is_complement |= op_of(maker) == "Rsub"
        maker = maker.next_functions[0][0]
    if maker is None or op_of(maker) not in ("Softmax", "Sigmoid"):
        return "log"
    if op_of(maker) == "Sigmoid":
        return "log of sigmoid"
    logits = maker.next_functions[0][0]
    is_masked = logits is None or op_of(logits) in _MASKING
    return "log" if is_complement or is_masked else "log of softmax"


def divides_by_number(op: str, node: GraphNode) -> bool:
    try:
        divisor = saved(node, "other", None) if op == "Div" else None
    except RuntimeError:
        return False
    return isinstance(divisor, Tensor) and not divisor.dim() and maker_of(node, "other") is None


def position_of(node: GraphNode, name: str) -> int:
    """The index of a saved input in `next_functions`."""
    if name in ("mat2", "vec") and nodes.name_of(node).startswith("Add"):  # as in addmm(input, mat1, mat2)
        return 2
    return _INDICES.get(name, 0)


def _may_be_near_0(node: GraphNode) -> bool:
    """May an entry of the divisor be near 0?"""
    value = saved_value(node, "other")
    near = _NEAR_0_IN_HALF if value is not None and value.dtype is torch.float16 else _NEAR_0
    return value is None or not value.numel() or float(value.abs().min()) < near


def _least_exponent(node: GraphNode) -> float:
    value = saved(node, "exponent", 1.0)
    return float(value.detach().min()) if isinstance(value, Tensor) else float(value)


def recompute(op: str, node: GraphNode) -> Tensor | None:
    """The result of an op from its saved inputs; None if they are not known."""
    if _averages_nothing(op, node):
        return torch.full(tuple(input_metadata(node)[0].shape), torch.nan)
    if op not in _INPUTS:
        return None
    function, *names = _INPUTS[op]
    values: list[Tensor | float | None] = []
    for name in names:
        value = saved_value(node, name)
        values.append(_leaf_value(node, name) if value is None else value)
    if op == "Pow" and values[1] is None:
        values[1] = _least_exponent(node)
    if any(value is None for value in values):
        return None
    try:
        result: Tensor = getattr(torch, function)(*values)
        return result
    except RuntimeError:
        return None


def _averages_nothing(op: str, node: GraphNode) -> bool:
    """Is it a mean of no entries, or of losses that do not count?"""
    if op == "Mean":
        return not saved(node, "self_sym_numel", 1)
    if op not in TOO_FEW or saved(node, "reduction", 0) != _MEAN:
        return False
    count, x = saved_value(node, "total_weight"), saved_value(node, "self")
    return (count is not None and not bool(count)) or (x is not None and not x.numel())


def _leaf_value(node: GraphNode, name: str) -> Tensor | None:
    """An input that the node did not save, read from the leaf that it is or is the transpose of; None if it is another value."""
    maker = maker_of(node, name)
    is_transposed = maker is not None and op_of(maker) == "T"
    leaf = maker.next_functions[0][0] if maker is not None and is_transposed else maker
    value = getattr(leaf, "variable", None)
    if not isinstance(value, Tensor) or not has_numbers(value):
        return None
    return value.detach().t() if is_transposed else value.detach()


def replay_of(op: str, node: GraphNode) -> Callable[[Tensor], Tensor] | None:
    """A function that computes the result of an op that saves no x from x, also after the graph is freed; None if the op is not known."""
    if op in ("Mul", "Div") and (other := saved(node, "other", None)) is not None:
        return partial(torch.mul if op == "Mul" else torch.div, other=other)
    if op == "ToCopy":
        return methodcaller("to", input_metadata(node)[0].dtype)
    if op in ("Clone", "View", "UnsafeView", "Unsqueeze", "Squeeze"):
        return methodcaller("reshape", tuple(input_metadata(node)[0].shape))
    if op == "Sum":
        # The node holds a negative dim as an unsigned number.
        dims = [dim - _UNSIGNED if dim >= _UNSIGNED // 2 else dim for dim in saved(node, "dim", ())]
        return partial(torch.sum, dim=dims, keepdim=saved(node, "keepdim", False))
    return None


# --- the values of x ------------------------------------------------------------------------------------------------


class InputDescription(NamedTuple):
    """The x at the broken entries."""

    clause: str = ""
    is_ordinary: bool = False  # are the result and the slope of the op finite for such an x?


def describe_input(op: str, node: GraphNode, mask: Tensor) -> InputDescription:
    """Describe the input on which the slope of the op depends most. mask: the broken entries."""
    results, inputs = saved_results(node), saved_inputs(node)
    x = inputs.get(_DECIDING.get(op, "self"))
    if op in _WITHOUT_VALUES:
        return InputDescription()
    if op in _LIMITS and results:
        at = _entries_of(results[0], mask)
        limit = float(_LIMITS[op](torch.tensor(torch.finfo(results[0].dtype).max, dtype=torch.float64)))
        is_beyond = bool(at.isinf().any())
        return InputDescription(f"x is above {limit:.4g}" if is_beyond else "", is_ordinary=not is_beyond)
    if op in ("Sqrt", "Rsqrt", "Reciprocal") and results:
        at = _entries_of(results[0], mask)
        zero = (at == 0) if op == "Sqrt" else at.isinf()
        below = at.isnan() & ~zero  # the inverse of a complex 0 is inf and nan
        return InputDescription(_clause({"0": zero, "below 0": below}), not bool((zero | below).any()))
    if x is None:
        return InputDescription()
    at = _entries_of(x, mask)
    if at.is_complex():
        return InputDescription(_clause({"0": at == 0}), not bool((at == 0).any()))
    groups = {"0": at == 0}
    if op == "Log1P":
        groups = {"-1": at == -1}
    if op in ("Acos", "Asin", "Atanh", "Erfinv", "Acosh"):
        groups = {"1": at == 1, "-1": at == -1, "outside of [-1, 1]": at.abs() > 1}
    elif op == "Logit":
        groups = {"0": at == 0, "1": at == 1, "outside of [0, 1]": (at < 0) | (at > 1)}
    elif op == "Log" or (op == "Pow" and _least_exponent(node) % 1):
        groups["below 0"] = at < 0
    is_ordinary = not any(bool(group.any()) for group in groups.values())
    groups |= {"inf": at == torch.inf, "-inf": at == -torch.inf, "nan": at.isnan()}
    if text := _clause(groups):
        return InputDescription(text, is_ordinary)
    text = f"x lies from {float(at.min()):.3g} to {float(at.max()):.3g}" if at.numel() else ""
    return InputDescription(text, is_ordinary=True)


def _entries_of(value: Tensor, mask: Tensor) -> Tensor:
    """The entries of the mask; all entries if the shapes do not fit."""
    try:
        return torch.broadcast_to(value, mask.shape)[mask]
    except RuntimeError:
        return value.reshape(-1)


def _clause(groups: Mapping[str, Tensor]) -> str:
    """Such as "x is 0 (3) or below 0 (1)"; "" if all groups are empty."""
    counts = {text: count for text, group in groups.items() if (count := int(torch.count_nonzero(group)))}
    if len(counts) < 2:
        return "".join(f"x is {text}" for text in counts)
    return "x is " + " or ".join(f"{text} ({count:,})" for text, count in counts.items())


def excess_over_float16(op: str, node: GraphNode, grad: Tensor | None) -> float:
    """The largest gradient that leaves, as a multiple of the largest number of float16; 0 if it is not known."""
    if grad is None or op not in ("Mul", "ToCopy"):
        return 0.0
    largest = grad.detach().float().abs()
    if op == "Mul":
        factors = [value.float().abs() for value in saved_inputs(node).values()]
        try:
            largest = torch.stack([(largest * factor).max() for factor in factors])
        except RuntimeError:  # no factor, or one of another shape
            return 0.0
    return float(largest.max()) / torch.finfo(torch.float16).max
