"""The numbers that the texts this project grew out of print, and what they do not say: the edge decides some of them."""

import pytest
import torch
from torch import Tensor

import pseudograd as pg


def _leaf(*values: float) -> Tensor:
    return torch.tensor(values, requires_grad=True)


@pytest.mark.parametrize(
    ("edge", "a_grad", "b_grad"),
    [
        ("closed", [1, 2, 1, 0], [1, 2, 3, 0]),
        ("open", [0, 2, 1, 0], [0, 2, 3, 0]),
        ("half", [0.5, 2, 1, 0], [0.5, 2, 3, 0]),
    ],
)
def test_product_through_a_clamp(edge: str, a_grad: list[float], b_grad: list[float]) -> None:
    """a[0] * b[0] = 1 lies exactly on min: only there do the edges differ."""
    a, b = _leaf(1.0, 2.0, 3.0, 4.0), _leaf(1.0, 2.0, 1.0, 2.0)
    c = pg.clamp(a * b, 1, 5, rule="zero", edge=edge)
    d = c.sum()
    d.backward()
    assert c.tolist() == [1, 4, 3, 5]
    assert d.item() == 13
    assert a.grad.tolist() == a_grad
    assert b.grad.tolist() == b_grad


def test_chain_rule_row_by_row() -> None:
    """dd/dc * dc/dx * dx/da for each of the four products."""
    a, b = _leaf(1.0, 2.0, 3.0, 4.0), torch.tensor([1.0, 2.0, 1.0, 2.0])
    x = a * b
    x.retain_grad()
    pg.clamp(x, 1, 5, rule="zero").sum().backward()
    assert x.grad.tolist() == [1, 1, 1, 0]
    assert (x.grad * b).tolist() == [1 * 1 * 1, 1 * 1 * 2, 1 * 1 * 1, 1 * 0 * 2] == a.grad.tolist()


def test_an_additive_branch_survives_the_clamp() -> None:
    a = _leaf(4.0)
    (pg.clamp(a * 2, 1, 5, rule="zero") + 3 * a).sum().backward()
    assert a.grad.tolist() == [3]


def _two_layers(activation: object) -> tuple[Tensor, Tensor]:
    """Gradients of both weights of a network whose fourth sample gets a pre-activation of exactly 0."""
    x = torch.tensor([[3.0, 2, 1], [1, 0, 2], [4, 1, 2], [0, 0, 1]])
    first = torch.tensor([[1.0, 2], [0, 1], [4, 0]], requires_grad=True)
    second = torch.tensor([[-1.0, 1], [-2, 3]], requires_grad=True)
    hidden = x @ first
    assert hidden[3].tolist() == [4, 0]
    (activation(hidden) @ second - 1).square().sum().backward()
    return first.grad, second.grad


@pytest.mark.parametrize(("edge", "difference"), [("closed", -38), ("open", 0), ("half", -19)])
def test_clamp_at_zero_against_relu(edge: str, difference: float) -> None:
    of_relu = _two_layers(torch.relu)
    of_clamp = _two_layers(lambda h: pg.clamp(h, min=0, rule="zero", edge=edge))
    assert (of_relu[0] - of_clamp[0]).tolist() == [[0, 0], [0, 0], [0, difference]]
    assert torch.equal(of_relu[1], of_clamp[1])
    ours = _two_layers(pg.relu)
    assert torch.equal(ours[0], of_relu[0])
    assert torch.equal(ours[1], of_relu[1])


@pytest.mark.parametrize(("edge", "expected"), [("closed", -2), ("open", 0), ("half", -1)])
def test_scalar_at_zero(edge: str, expected: float) -> None:
    x = torch.tensor(0.0, requires_grad=True)
    (pg.clamp(x, min=0, rule="zero", edge=edge) - 1).square().backward()
    assert x.grad.item() == expected
    y = torch.tensor(0.0, requires_grad=True)
    (pg.relu(y, edge=edge) - 1).square().backward()
    assert y.grad.item() == expected


def test_half_precision_does_not_leak() -> None:
    """The product of the copied snippet underflows to -0 here, and lets the gradient pass."""
    for sign in (1.0, -1.0):
        x = torch.tensor([sign * 1.002], dtype=torch.float16, requires_grad=True)
        pg.clamp(x, -1, 1).backward(torch.tensor([-sign * 1e-5], dtype=torch.float16))
        assert x.grad.item() == 0


@pytest.mark.parametrize("size", [5, 64])
def test_infinite_gradients(size: int) -> None:
    """Outward outside is 0, not NaN; inside and inward it passes."""
    x = torch.tensor([2.0, -2.0, 0.5, 0.5, 2.0]).repeat(size).requires_grad_()
    grad = torch.tensor([-torch.inf, torch.inf, torch.inf, -torch.inf, torch.inf]).repeat(size)
    pg.clamp(x, -1, 1).backward(grad)
    assert x.grad.tolist() == [0, 0, torch.inf, -torch.inf, torch.inf] * size


@pytest.mark.parametrize(
    ("rule", "left", "right"),
    [("inward", -3.1416, 0.0), ("sign", -1.0, 1.0), ("identity", -3.1416, -3.1416), ("zero", 0.0, 0.0)],
)
def test_the_article_s_loss(rule: str, left: float, right: float) -> None:
    """loss = sin(pi * c) + 1 on c = clamp(x, -1, 1): slope -pi at both ends, so `inward` blocks on the right only."""
    x = torch.linspace(-2, 2, 401)
    found = pg.gradient(lambda x: torch.sin(torch.pi * pg.clamp(x, -1, 1, rule=rule)) + 1, x)
    assert torch.allclose(found[x < -1.001], torch.tensor(left), atol=1e-3)
    assert torch.allclose(found[x > 1.001], torch.tensor(right), atol=1e-3)


def test_detach_trick_is_inexact_and_replace_grad_is_not() -> None:
    x, q = torch.tensor(1e8), torch.tensor(1.0)
    assert (x + (q - x).detach()).item() == 0
    assert pg.replace_grad(q, x).item() == 1
