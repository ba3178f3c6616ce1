"""Defects that were measured in the projects of docs/coming_from.md: none of them is ours."""

from collections.abc import Callable

import torch
from torch import Tensor

import pseudograd as pg

INF = torch.inf


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
