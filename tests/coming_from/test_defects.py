"""Defects that were measured in the projects of docs/coming_from.md: none of them is ours."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

import pseudograd as pg

INF = torch.inf


def _grad(f: Callable[[Tensor], Tensor], x: Tensor, g: Tensor) -> Tensor:
    leaf = x.clone().requires_grad_()
    return torch.autograd.grad(f(leaf), leaf, g)[0]


def _product(x: Tensor, g: Tensor, lo: float, hi: float) -> Tensor:
    """The mask of the copied formula, to show that these inputs are where it fails."""
    return g * (g * (x - torch.clamp(x, lo, hi)) >= 0)


def test_underflow() -> None:
    cases = (
        (torch.float16, 1.002, 1, 1e-5),
        (torch.float16, 1.002, 1, 2.0**-24),
        (torch.bfloat16, 1.0078125, 1, 1e-39),
        (torch.float32, 1 + 2.0**-20, 1, 1e-40),
        (torch.float32, 1e-10, 0, 1e-36),  # no subnormal but the product
        (torch.float64, 1e-200, 0, 1e-200),
    )
    for dtype, distance, bound, tiny in cases:
        x, g = torch.tensor([distance, -distance], dtype=dtype), torch.tensor([-tiny, tiny], dtype=dtype)
        assert _product(x, g, -bound, bound).count_nonzero() == 2, (
            "the product does not underflow here, so this shows nothing"
        )
        ways = ({}, {"rule": "zero"}, {"edge": "inward"}, {"edge": "open"})
        bounds = ((-bound, bound), (torch.tensor(-bound, dtype=dtype), torch.tensor(bound, dtype=dtype)))
        for low, high in bounds:
            for how in ways:
                assert _grad(lambda x, a=low, b=high, how=how: pg.clamp(x, a, b, **how), x, g).tolist() == [0, 0]
            inward = _grad(lambda x, a=low, b=high: pg.clamp(x, a, b), x, -g)
            assert torch.equal(inward, -g), "inward passes however small it is"


def test_infinite_grad_and_bound() -> None:
    x, g = torch.tensor([0.0, 0.0, 2.0, 2.0, -2.0, -2.0]), torch.tensor([INF, -INF, INF, -INF, INF, -INF])
    assert _product(x, g, -1, 1)[:2].isnan().any() or not torch.equal(_product(x, g, -1, 1)[:2], g[:2])
    assert _grad(lambda x: pg.familiar.clamp_with_grad(x, -1, 1), x, g).tolist() == [INF, -INF, INF, 0, 0, -INF]
    assert _grad(lambda x: pg.clamp(x, -1, 1, rule="zero"), x, g).tolist() == [INF, -INF, 0, 0, 0, 0]
    x, g = torch.tensor([INF, INF, -INF, -INF]), torch.tensor([1.0, -1.0, 1.0, -1.0])
    assert _product(x, g, -INF, INF).tolist() == [0, 0, 0, 0]
    assert torch.equal(_grad(lambda x: pg.familiar.clamp_with_grad(x, -INF, INF), x, g), g)
    assert torch.equal(_grad(lambda x: pg.familiar.clamp_with_grad(x, -1, INF), x[:2], g[:2]), g[:2])


def test_dtype_and_shape() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        for shape in ((), (1,), (2, 3), (0,)):
            for bound in (0.25, torch.tensor(0.25), torch.tensor([0.25], dtype=dtype).squeeze()):
                x = torch.full(shape, -1.0, dtype=dtype, requires_grad=True)
                y = pg.lower_bound(x, bound)
                y.sum().neg().backward()
                assert (y.dtype, y.shape) == (x.dtype, x.shape) if not isinstance(bound, Tensor) else y.shape == x.shape
                assert (x.grad.dtype, x.grad.shape) == (x.dtype, x.shape)
                assert x.grad.eq(-1).all()


def test_sigmoid() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        x = torch.cat([torch.linspace(-1000, 1000, 4001), torch.tensor([-3.5, -3.6, 3.6, INF, -INF])]).to(dtype)
        if dtype is torch.float32:
            theirs = torch.exp(-25 * x) / (torch.exp(-25 * x) + 1) ** 2
            assert theirs[x <= -3.6].isnan().all(), "the plain formula does not overflow here, so this shows nothing"
        for scale in (1 / 25, 1.0, 1e-3):
            for sign in (1.0, -1.0):
                grad_x = _grad(
                    lambda x, s=scale: pg.heaviside(x, rule=pg.rules.sigmoid(scale=s)), x, torch.full_like(x, sign)
                )
                assert grad_x.isfinite().all()
                assert (grad_x * sign >= 0).all()
                assert grad_x[x == 0].item() == torch.tensor(sign / 4 / scale, dtype=torch.float32).to(dtype).item()
        leaf = x.clone().requires_grad_()
        (first,) = torch.autograd.grad(pg.sign(leaf, rule="sigmoid").sum(), leaf, create_graph=True)
        assert torch.autograd.grad(first.sum(), leaf)[0].isfinite().all()


def _trick(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return x + (f(x) - x).detach()


def test_detach_trick() -> None:
    def f(x: Tensor) -> Tensor:
        return torch.clamp(x, 0, 1)

    for dtype, value in ((torch.float32, 3e7), (torch.bfloat16, 300.0), (torch.float16, 3000.0), (torch.float32, INF)):
        x = torch.tensor([value], dtype=dtype)
        assert _trick(f, x).item() != 1, "the trick is exact here, so this shows nothing"
        for rule in ("identity", "inward", "zero", "leaky"):
            assert pg.clamp(x.requires_grad_(), 0, 1, rule=rule).item() == 1
    assert _trick(f, torch.tensor([3e7])).item() == 0
    torch.manual_seed(0)
    x = 5 * torch.randn(100_000)
    y = torch.clamp(x, -0.3, 0.7)
    wrong = (_trick(lambda x: torch.clamp(x, -0.3, 0.7), x) != y)[x != y].float().mean().item()
    assert 0.82 < wrong < 0.84, wrong
    assert torch.equal(pg.clamp(x.requires_grad_(), -0.3, 0.7, rule="identity"), y)
    assert _trick(f, torch.tensor([INF])).isnan()


def test_double_count() -> None:
    x, g = torch.tensor([-2.0, 0.0, 3.0]), torch.tensor([1.0, -1.0, 2.0])
    assert torch.equal(_grad(pg.straight_through(torch.nn.Identity().forward), x, g), g)
    assert torch.equal(_grad(lambda x: pg.replace_grad(x, x), x, g), g)
    assert torch.equal(_grad(pg.surrogate(backward=lambda x: x)(lambda x: x), x, g), g)


def test_code_words() -> None:
    torch.manual_seed(0)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        x, code = torch.randn(100_000).to(dtype), torch.randn(100_000).to(dtype)
        changed = (_trick(lambda _, code=code: code, x) != code).float().mean().item()
        assert 0.33 < changed < 0.37, changed
        assert torch.equal(pg.replace_grad(code, x.requires_grad_()), code)
        vectors, book = x.detach()[:4000].reshape(-1, 8), code[:64].reshape(8, 8)
        for rule in ("identity", "rotation"):
            codes, chosen = pg.codebook.vector_quantize(vectors.clone().requires_grad_(), book, rule=rule)
            assert torch.equal(codes, book[chosen])
    zero = torch.zeros(1, 8, requires_grad=True)
    pg.codebook.vector_quantize(zero, torch.ones(1, 8), rule="rotation")[0].sum().backward()
    assert zero.grad.tolist() == [[1] * 8]


def test_not_finite() -> None:
    x = torch.tensor([[INF, -INF, torch.nan, 1e30]])
    scale, zero = torch.tensor([0.25]), torch.tensor([0], dtype=torch.int32)
    theirs = torch.fake_quantize_per_channel_affine(x, scale, zero, 0, -4, 3)
    assert theirs[0, 0] == -1, "torch's per-channel op sends +inf to the upper end by now: change the page"
    assert not theirs.isnan().any()
    assert not torch.fake_quantize_per_tensor_affine(x, 0.25, 0, -4, 3).isnan().any()
    for how in ({"scale": 0.25}, {"scale": scale, "zero_point": zero, "axis": 0}):
        for leaf in (x, x.clone().requires_grad_()):
            ours = pg.fake_quantize(leaf, **how, quant_min=-4, quant_max=3)
            assert ours[0, [0, 1, 3]].tolist() == [0.75, -1, 0.75]
            assert ours[0, 2].isnan()
