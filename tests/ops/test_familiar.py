"""The names people already use mean what they mean where people use them."""

import pytest
import torch
import torch.fx

import pseudograd as pg

X = torch.tensor([-2.0, -1.0, 0.0, 1.0, 2.0])


def _gradient(f: object, grad: float) -> list[float]:
    return pg.gradient(f, X, grad).tolist()


SAME = {
    "clamp_with_grad": (pg.familiar.clamp_with_grad, {"rule": "inward"}),
    "ClampWithGrad.apply": (pg.familiar.ClampWithGrad.apply, {"rule": "inward"}),
    "clamp_with_grad_proposed": (pg.familiar.clamp_with_grad_proposed, {"rule": "sign"}),
    "clamp_with_grad2": (pg.familiar.clamp_with_grad2, {"rule": "sign"}),
    "ClampWithGradProposed.apply": (pg.familiar.ClampWithGradProposed.apply, {"rule": "sign"}),
    "ClampWithGrad2.apply": (pg.familiar.ClampWithGrad2.apply, {"rule": "sign"}),
    "ClampWithGradThatWorks.apply": (pg.familiar.ClampWithGradThatWorks.apply, {"rule": "zero", "edge": "closed"}),
}


@pytest.mark.parametrize("name", SAME)
def test_a_familiar_name_is_clamp_with_its_rule(name: str) -> None:
    """Also with one bound, and in a graph that torch.fx traced."""
    familiar, how = SAME[name]
    assert torch.equal(familiar(X, -1, 1), torch.clamp(X, -1, 1))
    traced = torch.fx.symbolic_trace(lambda x: familiar(x, -1, 1))
    assert [node.target.__name__ for node in traced.graph.nodes if node.op == "call_function"] == ["clamp"]
    for grad in (1.0, -1.0, 0.0, -3.0):
        expected = _gradient(lambda x: pg.clamp(x, -1, 1, **how), grad)
        assert _gradient(lambda x: familiar(x, -1, 1), grad) == _gradient(traced, grad) == expected
    assert _gradient(lambda x: familiar(x, None, 1), 1.0) == _gradient(lambda x: pg.clamp(x, None, 1, **how), 1.0)
    assert _gradient(lambda x: familiar(x, min=-1), 1.0) == _gradient(lambda x: pg.clamp(x, -1, **how), 1.0)
    with pytest.raises(ValueError, match="one of min and max must be given"):
        familiar(X, None, None)


def test_names_that_are_one() -> None:
    assert pg.familiar.clamp_with_grad2 is pg.familiar.clamp_with_grad_proposed
    assert pg.familiar.ClampWithGrad2 is pg.familiar.ClampWithGradProposed
    assert pg.familiar.get_gradient is pg.gradient
    assert pg.familiar.ReplaceGrad.apply is pg.replace_grad
    assert not any(
        issubclass(c, torch.autograd.Function)
        for c in (pg.familiar.ClampWithGrad, pg.familiar.ClampWithGrad2, pg.familiar.ReplaceGrad)
    )
