"""The value matrix: every op and rule through every way torch has of asking for a gradient. A cell is equal values, or our error.

Each way takes (f, x, weight) and returns what must equal the plain backward, or the plain double backward, of the same problem;
those of testing/measure/transforms.py also take all tensor inputs at once.
"""

import copy
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import functional
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from pseudograd.testing.contract import all_inputs
from pseudograd.testing.contract.cases import Case
from pseudograd.testing.measure import transforms
from pseudograd.testing.measure.transforms import gradient_by_backward, loss_of

from . import batches
from .cases import CASES

Way = Callable[..., Any]

# One case for each op and rule, at the op's own edge, descending.
MATRIX_CASES = [
    case for case in CASES if not case.parameters and not case.maximize and case.edge in (case.op.default_edge, None)
]

# The other cases that a compiler may see otherwise: every case of clamp; of the ops that share its rules every edge of fake_quantize.
OTHER_CASES = [
    case
    for case in CASES
    if case not in MATRIX_CASES
    and (case.op.name == "clamp" or (case.op.name == "fake_quantize" and not case.parameters and not case.maximize))
]


def _curved(f: Callable[[Tensor], Tensor], weight: Tensor) -> Callable[[Tensor], Tensor]:
    """A loss with a second derivative, so that a Hessian has something to show."""
    return lambda x: (f(x) ** 2 * weight).sum()


def second_by_double_backward(f: Callable[[Tensor], Tensor], x: Tensor, weight: Tensor) -> Tensor:
    """What all Hessian ways must equal: each row by a second reverse pass."""
    leaf = x.clone().requires_grad_()
    (first,) = torch.autograd.grad(_curved(f, weight)(leaf), leaf, create_graph=True)
    rows = [
        torch.autograd.grad(element, leaf, retain_graph=True, allow_unused=True, materialize_grads=True)[0]
        for element in first.reshape(-1)
    ]
    return torch.stack(rows).reshape(*x.shape, *x.shape)


def autocast(f: Any, x: Tensor, weight: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return gradient_by_backward(f, x, weight)


def functional_jacobian(f: Any, x: Tensor, weight: Tensor) -> Tensor:
    result = functional.jacobian(loss_of(f, weight), x, vectorize=True)
    assert isinstance(result, Tensor)
    return result


def functional_hessian(f: Any, x: Tensor, weight: Tensor) -> Tensor:
    result = functional.hessian(_curved(f, weight), x, vectorize=True)
    assert isinstance(result, Tensor)
    return result


def compiled_autograd(f: Any, x: Tensor, weight: Tensor) -> Tensor:
    leaf = x.clone().requires_grad_()
    loss = loss_of(f, weight)(leaf)
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager", fullgraph=True)):
        loss.backward()
    assert leaf.grad is not None
    return leaf.grad


def gradient_by_make_fx(f: Any, x: Tensor, weight: Tensor) -> Tensor:
    """The trace is made at other values than those at which the gradient is computed."""
    elsewhere = x * 0.5 if isinstance(x, Tensor) else [tensor * 0.5 for tensor in x]
    return make_fx(lambda x, weight: gradient_by_backward(f, x, weight))(elsewhere, weight)(x, weight)


def traced_by_jit(f: Any, x: Tensor, weight: Tensor) -> Tensor:
    """check_trace=False: torch's own check runs the function on inputs that require no grad and finds another graph."""
    return gradient_by_backward(torch.jit.trace(f, (x.clone().requires_grad_(),), check_trace=False), x, weight)


class _Module(nn.Module):
    """A model as users write it: it holds its arguments and calls the op."""

    def __init__(self, case: str, others: list[Any]) -> None:
        super().__init__()
        self.case, self.others = case, others

    def forward(self, x: Tensor) -> Tensor:
        return _BY_NAME[self.case](x, *self.others)


_BY_NAME: dict[str, Callable[..., Tensor]] = {str(case): case.function() for case in CASES}


def module_of(case: Case, others: list[Any]) -> _Module:
    return _Module(str(case), others)


def copied(f: Any, x: Tensor, weight: Tensor) -> Tensor:
    return gradient_by_backward(copy.deepcopy(f), x, weight)


def pickled(f: Any, x: Tensor, weight: Tensor) -> Tensor:
    return gradient_by_backward(pickle.loads(pickle.dumps(f)), x, weight)


def _row_by_row(row: Callable[..., Tensor], f: Any, x: Tensor, weight: Tensor) -> Tensor:
    return batches.stack_rows([row(f, x, weight, pick) for pick in batches.picks(x)], x)


# Values that equal the plain backward, for every rule. Compiled together with the op: ...
COMPILED_FIRST: dict[str, Way] = {
    "func.grad": transforms.gradient_by_func_grad,
    "func.vjp": transforms.gradient_by_vjp,
    "jacrev": transforms.gradient_by_jacrev,
    "vmap(grad)": transforms.gradient_by_vmap_of_grad,
    "vmap(vjp)": lambda f, x, w: vmap(lambda row, weight: vjp(f, row)[1](weight)[0])(x, w),
    "vmap(jacrev)": lambda f, x, w: vmap(lambda row, weight: jacrev(loss_of(f, weight))(row))(x, w),
    "grad(vmap)": transforms.gradient_by_grad_of_vmap,
    "vmap, then backward": transforms.gradient_by_recorded_vmap,
}
# ... applied to what comes out of the compiler ...
COMPILED_ALONE: dict[str, Way] = {
    "plain": gradient_by_backward,
    "is_grads_batched": transforms.gradient_by_batched_grads,
    "functional.jacobian(vectorize=True)": functional_jacobian,
    "checkpoint, not reentrant": transforms.gradient_by_checkpoint,
    "checkpoint, reentrant": transforms.gradient_by_reentrant_checkpoint,
    "autocast": autocast,
    "saved_tensors_hooks": transforms.gradient_by_saved_tensors_hooks,
    "deepcopy of a module": copied,
    "compiled autograd": compiled_autograd,
}
# ... and in eager mode only.
FIRST: dict[str, Way] = {
    **COMPILED_FIRST,
    **{name: way for name, way in COMPILED_ALONE.items() if name != "plain"},
    "grad(create_graph=True)": transforms.gradient_by_create_graph,
    "make_fx": gradient_by_make_fx,
    "jit.trace": traced_by_jit,
    "pickle of a module": pickled,
}
# Values that equal the double backward, for every rule: reverse over reverse. First those that give the row of one element.
ROWS: dict[str, Callable[[Any, Tensor, Tensor, Tensor], Tensor]] = {
    "grad of grad": lambda f, x, w, pick: grad(lambda x: (grad(_curved(f, w))(x) * pick).sum())(x),
    "vmap(grad of grad)": lambda f, x, w, pick: vmap(
        lambda row, w, p: grad(lambda x: (grad(_curved(f, w))(x) * p).sum())(row)
    )(x, w, pick),
}
SECOND: dict[str, Way] = {
    "jacrev(jacrev)": lambda f, x, w: jacrev(jacrev(_curved(f, w)))(x),
    **{name: partial(_row_by_row, row) for name, row in ROWS.items()},
    "functional.hessian(vectorize=True)": functional_hessian,
}
# Forward mode: values for rules that are linear in grad, our error for the others.
FORWARD: dict[str, Way] = {
    "func.jvp": lambda f, x, w: jvp(f, (x,), (w,))[1],
    "jacfwd": lambda f, x, w: jacfwd(loss_of(f, w))(x),
    "vmap(jvp)": lambda f, x, w: vmap(lambda row, weight: jvp(f, (row,), (weight,))[1])(x, w),
    "vmap(jacfwd)": lambda f, x, w: vmap(lambda row, weight: jacfwd(loss_of(f, weight))(row))(x, w),
    "forward_ad.dual_level": transforms.diagonal_by_dual_level,
}
FORWARD_SECOND: dict[str, Way] = {
    "hessian": lambda f, x, w: hessian(_curved(f, w))(x),
    "vmap(hessian)": lambda f, x, w: _block_diagonal(vmap(lambda row, weight: hessian(_curved(f, weight))(row))(x, w)),
}
COMPILED_SECOND: dict[str, Way] = {
    name: SECOND[name] for name in ("jacrev(jacrev)", "grad of grad", "vmap(grad of grad)")
}
COMPILED_FORWARD: dict[str, Way] = {
    **{name: FORWARD[name] for name in ("func.jvp", "jacfwd", "vmap(jvp)")},
    # The weight outside: see limits.py.
    "vmap(jacfwd)": lambda f, x, w: vmap(lambda row: jacfwd(lambda z: f(z).sum())(row))(x) * w,
}
COMPILED_FORWARD_SECOND: dict[str, Way] = {"hessian": FORWARD_SECOND["hessian"]}
# The gradients of every tensor input at once, with mixed dtypes: what was broadcast gets the sum, cast to its dtype.
ALL_INPUTS = {name: way for name, way in FIRST.items() if way in transforms.REVERSE or name == "make_fx"}
COMPILED_ALL_INPUTS: dict[str, Way] = {
    name: way for name, way in {**COMPILED_ALONE, **COMPILED_FIRST}.items() if name in {"plain", *ALL_INPUTS}
}
CASES_OF_MANY = [case for case in MATRIX_CASES if any(all_inputs.problems(case))]

# How the page of the docs is arranged: its columns and the order of its rows.
PLACES = ("eager", "compiled, static", "compiled, dynamic", "inductor")
WAYS = list(
    dict.fromkeys(
        [
            *("plain", *FIRST, "autocast, mixed dtypes", "inference_mode", "double backward", *SECOND),
            *(*FORWARD, "vmap(jacfwd) over a batched weight", *FORWARD_SECOND),
            *("autograd.grad of a reentrant checkpoint", "make_fx of a compiled function"),
            "jit.trace of a compiled function",
            *(f"{name}, all inputs" for name in ("plain", *ALL_INPUTS)),
        ]
    )
)


def _block_diagonal(blocks: Tensor) -> Tensor:
    """(n, m, m) Hessians of independent samples as the (n, m, n, m) Hessian of all of them."""
    n, m = blocks.shape[:2]
    hessian_of_all = torch.zeros(n, m, n, m, dtype=blocks.dtype)
    for i in range(n):
        hessian_of_all[i, :, i, :] = blocks[i]
    return hessian_of_all


class _Rounded(nn.Module):
    """replace_grad as a function of the tensor that gets the gradient."""

    def forward(self, soft: Tensor) -> Tensor:
        return _BY_NAME["replace_grad-replace"](soft.detach().round(), soft)


def problem(case: Case) -> tuple[Callable[[Tensor], Tensor], Tensor, Tensor]:
    """(f, x, weight): both sides of each bound and the bounds themselves, both signs of grad, in float64."""
    inputs = case.samples()[0].build(torch.float64)
    bounds = [value for value in inputs[1:] if isinstance(value, float)] or [0.5]
    x = torch.tensor([bounds[0], bounds[0] - 0.7, bounds[0] + 0.3, bounds[-1], bounds[-1] + 0.9, bounds[-1] - 0.2])
    x = torch.cat([x, x]).double().reshape(4, 3)
    weight = torch.tensor([[1.0, -0.5, 2.0], [-1.5, 0.25, 1.0]], dtype=torch.float64)
    f = _Rounded() if case.op.name == "replace_grad" else module_of(case, list(inputs[1:]))
    return f, x, torch.cat([weight, -weight])
