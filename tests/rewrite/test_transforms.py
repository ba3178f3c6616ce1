"""vmap, func.grad, jvp and their compositions under a rewriting, against the public op in the same place."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.func import grad, hessian, jacrev, jvp, vmap
from torch.nn import functional

import pseudograd as pg
from pseudograd.rewrite.override import override

from ..choices import folded

X = torch.tensor([[-2.0, -1.0, 0.3], [0.6, 1.0, 2.0]])
W = torch.tensor([[1.0, -2.0, 3.0], [-4.0, 5.0, -6.0]])
LOW = torch.tensor([-1.0, -0.5, 0.3])

# A spelling, and the public op with the same edge.
PAIRS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[..., Tensor]]] = {
    "numbers": (lambda x: torch.clamp(x, -1, 1), lambda x, rule: pg.clamp(x, -1, 1, rule=rule)),
    "tensors": (lambda x: x.clamp(LOW, -LOW + 1), lambda x, rule: pg.clamp(x, LOW, -LOW + 1, rule=rule)),
    "in place": (lambda x: (x * 1).clamp_(-1, 1), lambda x, rule: pg.clamp(x, -1, 1, rule=rule)),
    "maximum": (lambda x: torch.maximum(x, LOW), lambda x, rule: pg.lower_bound(x, LOW, rule=rule)),
    "minimum": (lambda x: torch.minimum(LOW, x), lambda x, rule: pg.upper_bound(x, LOW, rule=rule)),
    "relu": (torch.relu, lambda x, rule: pg.relu(x, rule=rule)),
    "hardtanh": (functional.hardtanh, lambda x, rule: pg.hardtanh(x, rule=rule)),
}


def loss(f: Callable[[Tensor], Tensor], weights: Tensor = W) -> Callable[[Tensor], Tensor]:
    return lambda x: (f(x) ** 2 * weights).sum() + (f(x) * weights).sum()


def _backward(f: Callable[[Tensor], Tensor], weights: Tensor | None = None) -> Tensor:
    x = X.clone().requires_grad_()
    return torch.autograd.grad(f(x), x, weights, is_grads_batched=weights is not None)[0]


TRANSFORMS: dict[str, Callable[[Callable[[Tensor], Tensor]], Tensor]] = {
    "hessian": lambda f: hessian(loss(f))(X),
    "vmap": lambda f: vmap(f)(X),
    "backward of vmap": lambda f: _backward(lambda x: (vmap(f)(x) * W).sum()),
    "vmap(grad)": lambda f: vmap(grad(loss(f, W[0])))(X),
    "jacrev": lambda f: jacrev(f)(X),
    "grad of grad": lambda f: grad(lambda x: (grad(loss(f))(x) ** 2).sum())(X),
    "is_grads_batched": lambda f: _backward(f, torch.stack([W, -W])),
}


@folded
@pytest.mark.parametrize("rule", ["inward", "identity"])
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("name", PAIRS)
def test_a_transform_sees_the_rule(name: str, transform: str, rule: str) -> None:
    spelling, public = PAIRS[name]
    if transform == "hessian" and rule == "inward":
        return  # it goes through forward mode, which no rule that reads grad has
    wanted = TRANSFORMS[transform](lambda x: public(x, rule))
    with override(clamp=rule, relu=rule) as context:
        assert torch.equal(TRANSFORMS[transform](spelling), wanted)
    assert context.report().rewritten
    assert context.report().missed == ()


def test_forward_mode_of_a_directional_rule_stays_torchs_and_is_reported() -> None:
    plain = jvp(lambda x: torch.clamp(x, -1, 1), (X,), (W,))[1]
    with override(clamp="inward") as context:
        assert torch.equal(jvp(lambda x: torch.clamp(x, -1, 1), (X,), (W,))[1], plain)
    (missed,) = context.report().missed
    assert missed.why == "rule inward reads the incoming gradient, and forward mode has none"
