"""vector_quantize, commitment_loss, codebook_loss. The references are dense formulas in float64."""

import itertools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import pseudograd as pg
from pseudograd.codebook import codebook_loss, commitment_loss, vector_quantize
from pseudograd.ops import codebook as search

from ..choices import folded, marks_of, slow_but
from ..watching import Watching

RULES = ("identity", "rotation")
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def nearest_by_definition(x: Tensor, codebook: Tensor) -> Tensor:
    return ((x.double().unsqueeze(-2) - codebook.double()) ** 2).sum(-1).argmin(-1)


def rotation_by_definition(x: Tensor, code: Tensor) -> Tensor:
    """|q|/|x| R as a dense float64 matrix, by Rodrigues' formula in the plane of x and its code."""
    x, code = x.double(), code.double()
    a, b = x / x.norm(), code / code.norm()
    across = torch.outer(b, a) - torch.outer(a, b)
    rotation = torch.eye(len(x), dtype=torch.float64) + across + across @ across / (1 + a @ b)
    assert torch.allclose(rotation @ rotation.mT, torch.eye(len(x), dtype=torch.float64), atol=1e-9)
    assert torch.allclose(rotation @ a, b, atol=1e-9)
    return code.norm() / x.norm() * rotation


def matrices(rule: str, x: Tensor, codes: Tensor) -> Tensor:
    """The Jacobians of the rule, (rows, d, d) in float64."""
    if rule == "identity":
        return torch.eye(x.shape[-1], dtype=torch.float64).expand(len(x), -1, -1)
    return torch.stack([rotation_by_definition(*pair) for pair in zip(x, codes, strict=True)])


def problem(rows: int = 7, size: int = 4, codes: int = 9, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, size).to(dtype), torch.randn(codes, size).to(dtype)


def indices_of(x: Tensor, codebook: Tensor) -> Tensor:
    """The indices of vector_quantize, after a check that they are those of the definition."""
    indices = vector_quantize(x, codebook)[1]
    assert torch.equal(indices, nearest_by_definition(x, codebook))
    return indices


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of pairs of a vector and a code that are compared by differences: in double precision at least one for each vector."""
    counts: list[int] = []
    own = search.squared_differences
    monkeypatch.setattr(search, "squared_differences", lambda x, codes: (counts.append(len(x)), own(x, codes))[1])
    return counts


# --- the nearest code ---------------------------------------------------------------------------------------------------


@folded
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("scale", "shift"), [(1, 0), (1, 100), (1, 3e4), (1e-30, 0), (1e30, 0), (1e-42, 0), (1e-4, 1), (0, 1)]
)
def test_indices_are_those_of_least_float64_distance(dtype: torch.dtype, scale: float, shift: float) -> None:
    """Also where single precision loses the distances, under- or overflows, and with many codes alike."""
    x, codebook = (torch.randn(n, 8, dtype=torch.float64).mul(scale).add(shift).to(dtype) for n in (300, 200))
    codes = vector_quantize(x, codebook)[0]
    assert codes.dtype is dtype
    expected = codebook[indices_of(x, codebook)]
    assert torch.equal(torch.nan_to_num(codes), torch.nan_to_num(expected))  # 1e30 in float16 is infinite


def midway(rows: int, size: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Vectors half way between two codes, so that matrix products in their dtype cannot tell which code is nearer."""
    pair = torch.randn(2 * rows, size, dtype=torch.float64).to(dtype)
    return (pair[:rows].double() + pair[rows:].double()).div(2).to(dtype), pair


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_near_ties_are_decided_in_float64(dtype: torch.dtype, compared: list[int]) -> None:
    """Each problem has two codes and a vector between them. Matrix products alone would give wrong indices."""
    x, codebook = midway(40, 64, dtype)
    for k in range(40):
        indices_of(x[k], codebook[[k, 40 + k]])
    assert sum(compared) > (50 if dtype is torch.float64 else -1)
    if dtype is torch.float32:
        scores = (codebook**2).sum(-1) - 2 * x @ codebook.mT
        assert not torch.equal(scores.argmin(-1), nearest_by_definition(x, codebook))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_first_of_equal_codes_is_taken(dtype: torch.dtype) -> None:
    x, codebook = problem(40, 5, 6, dtype)
    indices_of(x, codebook.repeat(3, 1)[torch.randperm(18)])
    assert indices_of(x, torch.zeros(9, 5, dtype=dtype)).unique().tolist() == [0]
    mirrored = torch.tensor([[2.0], [1.0], [-1.0]], dtype=dtype)  # 0 is equally far from two codes
    assert indices_of(torch.zeros(1, 1, dtype=dtype), mirrored).tolist() == [1]
    assert indices_of(torch.zeros(1, 1, dtype=dtype), mirrored.flip(0)).tolist() == [0]


@folded
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("part", ["x", "codebook", "both", "all codes"])
def test_infinities_and_nan_are_decided_as_argmin_does(value: float, part: str) -> None:
    x, codebook = problem(30, 8, 20, torch.float32)
    if part in ("x", "both"):
        x[3, 2], x[5] = value, value
    if part in ("codebook", "both"):
        codebook[4, 2], codebook[7] = value, value
    if part == "all codes":
        codebook[:, 1] = value
    indices = indices_of(x, codebook)
    if value != value and part == "x":
        assert indices[[3, 5]].tolist() == [0, 0]
    if value != value and part == "codebook":
        assert indices.unique().tolist() == [4]


SINGLE, DOUBLE = torch.float32, torch.float64


@pytest.mark.parametrize(
    ("dtype", "vector", "codes", "nearest"),
    [
        (SINGLE, 0.915e19, (-0.03e19, 1.85e19), 1),  # the square of the nearest code is infinite in float32
        (SINGLE, 1e-23, (5.9e-23, -3.8e-23), 1),  # squares are a few subnormal units
        (DOUBLE, 1e20, (1.0, 2.0), 0),  # the differences that decide cannot tell the codes apart
        (DOUBLE, 0.663e154, (-0.03e154, 1.35e154), 1),  # as the first
    ],
)
def test_the_bound_covers_overflow_and_underflow(
    dtype: torch.dtype, vector: float, codes: tuple[float, ...], nearest: int
) -> None:
    x, codebook = torch.tensor([[vector]], dtype=dtype), torch.tensor(codes, dtype=dtype).unsqueeze(1)
    assert indices_of(x, codebook).item() == nearest


def test_the_bound_is_infinite_where_nothing_is_certain() -> None:
    eps = 2.0**-23
    assert search._gamma(2**22, eps) == 0.25 / 0.75
    assert search._gamma(3 * 2**21, eps) == 0.375 / 0.625
    assert {search._gamma(size, eps) for size in (2**23, 2**24, 2**30)} == {torch.inf}
    length = torch.tensor(2.0**510, dtype=torch.float64)  # twice that squared is more than a 16th of the largest number
    for share, is_certain in ((1, False), (0.49, True)):
        assert search._slack(share * length.reshape(1, 1), share * length).isfinite().item() == is_certain


@pytest.mark.parametrize(
    ("vectors", "codes", "dtypes", "is_lowered"),
    [
        ([1.0, -3.0, 5.0], [0.0, 4.0, -4.0], (SINGLE, SINGLE), False),
        ([1e19, -1e19], [1e19], (SINGLE, SINGLE), False),
        ([1e-10], [-1.0, 1.0], (SINGLE, DOUBLE), False),
        ([1e-10], [-1.0, 1.0], (DOUBLE, SINGLE), False),
        ([1e-10], [-1.0, 1.0], (SINGLE, SINGLE), True),
    ],
)
def test_a_certain_order_is_not_searched_again(
    vectors: list[float],
    codes: list[float],
    dtypes: tuple[torch.dtype, torch.dtype],
    is_lowered: bool,
    monkeypatch: pytest.MonkeyPatch,
    compared: list[int],
) -> None:
    """Products are in double precision if one of the two is, or if products in single precision are lowered."""
    monkeypatch.setattr(search, "_keeps_single_precision", lambda device: not is_lowered)
    x, codebook = (torch.tensor(v, dtype=dtype).unsqueeze(1) for v, dtype in zip((vectors, codes), dtypes, strict=True))
    indices_of(x, codebook)
    assert sum(compared) == (len(vectors) if is_lowered or DOUBLE in dtypes else 0)


@pytest.mark.parametrize("chunk", [1, 64, 1000])
def test_the_size_of_a_chunk_changes_nothing(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x, codebook = problem(50, 8, 33, torch.float32)
    codebook = torch.cat([codebook, codebook[:5]])
    monkeypatch.setattr(search, "CHUNK", chunk)
    for shift in (0, 1000):
        indices_of(x + shift, codebook + shift)


@pytest.mark.parametrize(("size", "shift", "scale"), [(8, 1e3, 1e-2), (64, 1e4, 1e-2), (64, 1e5, 0.5), (64, -1e6, 4.0)])
def test_codes_far_from_0_cost_little_more(size: int, shift: float, scale: float, compared: list[int]) -> None:
    """Without the subtraction of the mean no distance would be certain. With it few vectors have a second candidate."""
    x, codebook = (torch.randn(n, size).mul(scale).add(shift) for n in (400, 300))
    indices_of(x, codebook)
    assert 400 <= sum(compared) < 440


def test_no_temporary_is_larger_than_a_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The full matrix would be three chunks. With the shift each row is searched twice. The last vectors are longer than the codebook."""
    for shift in (0, 1000):
        x, codebook = torch.randn(3 * 2**11, 4) + shift, torch.randn(2**11, 4) + shift
        with Watching() as watching:
            search._nearest_code(x, codebook)
        assert search.CHUNK / 4 < max(watching.sizes) <= search.CHUNK == 2**22  # 16 MiB in single precision
    monkeypatch.setattr(search, "CHUNK", 2**12)
    code = torch.ones(1, 64)
    with Watching() as watching:
        indices = search._nearest_code(torch.zeros(64, 64), torch.cat([code, -code]))
    assert indices.tolist() == [0] * 64
    assert max(watching.sizes) <= 2**12


def test_autocast_and_lowered_products_do_not_touch_the_distances() -> None:
    x, codebook = midway(300, 64, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        indices_of(x, codebook)
    before = torch.get_float32_matmul_precision()
    try:
        for lowered in ("high", "medium"):
            torch.set_float32_matmul_precision(lowered)
            assert not search._keeps_single_precision(torch.device("cpu"))
            indices_of(x, codebook)
    finally:
        torch.set_float32_matmul_precision(before)
    assert search._keeps_single_precision(torch.device("cpu"))


@pytest.mark.parametrize(
    ("cuda", "mkldnn", "lowered"),
    [
        ({}, {}, set()),  # older torch
        ({"fp32_precision": "tf32"}, {"fp32_precision": "ieee"}, {"cuda"}),
        ({"fp32_precision": "ieee"}, {"fp32_precision": "bf16"}, {"cpu"}),
        ({}, {"matmul": SimpleNamespace(fp32_precision="tf32")}, {"cpu"}),  # in its products alone
    ],
)
def test_each_device_has_its_own_setting(
    cuda: dict[str, str], mkldnn: dict[str, object], lowered: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settings that torch cannot sum up, of the older and the newer interface, count as lowered."""
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "highest")
    monkeypatch.setattr(torch.backends.cuda, "matmul", SimpleNamespace(**cuda))
    monkeypatch.setattr(torch.backends, "mkldnn", SimpleNamespace(**mkldnn))
    for device in ("cpu", "cuda"):
        assert search._keeps_single_precision(torch.device(device)) == (device not in lowered)

    def refuse() -> str:
        raise RuntimeError("mix of the legacy and new APIs")

    monkeypatch.setattr(torch, "get_float32_matmul_precision", refuse)
    assert not search._keeps_single_precision(torch.device("cpu"))


def test_inputs_are_unchanged_and_their_strides_do_not_matter() -> None:
    for dtype in DTYPES:
        x, codebook = problem(30, 6, 12, dtype)
        codebook[3] = codebook[5]
        before = x.clone(), codebook.clone()
        expected = vector_quantize(x, codebook)
        assert torch.equal(x, before[0])
        assert torch.equal(codebook, before[1])
        strided = vector_quantize(x.mT.contiguous().mT, codebook.repeat_interleave(2, 1)[:, ::2])
        assert all(torch.equal(a, b) for a, b in zip(strided, expected, strict=True))
        expanded = vector_quantize(x[:1].expand(4, 3, 6), codebook)
        assert (expanded[0].shape, expanded[1].shape) == ((4, 3, 6), (4, 3))
        assert expanded[1].unique().tolist() == expected[1][:1].tolist()


def test_no_vector_has_no_code() -> None:
    x, codebook = problem()
    codes, index = vector_quantize(x[:0], codebook)
    assert (codes.shape, index.shape) == ((0, 4), (0,))


@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 3, 4), (2, 1, 3, 4)], ids=str)
@pytest.mark.parametrize("rule", RULES)
def test_vectors_of_any_shape_are_quantised_row_by_row(rule: str, shape: tuple[int, ...]) -> None:
    """The vectors, their gradients and the losses are those of the same vectors in rows. Shapes are known without values."""
    codes, indices = vector_quantize(torch.empty(shape, device="meta"), torch.empty(5, 4, device="meta"))
    assert (codes.shape, indices.shape, indices.dtype) == (shape, shape[:-1], torch.int64)
    x, grad = torch.randn(shape, dtype=torch.float64), torch.randn(shape, dtype=torch.float64)
    codebook = torch.randn(6, 4, dtype=torch.float64)
    leaf, rows = x.clone().requires_grad_(), x.reshape(-1, 4).clone().requires_grad_()
    codes, indices = vector_quantize(leaf, codebook, rule=rule)
    codes_in_rows, indices_in_rows = vector_quantize(rows, codebook, rule=rule)
    assert indices.shape == shape[:-1]
    assert torch.equal(indices.flatten(), indices_in_rows)
    assert torch.equal(codes.reshape(-1, 4), codes_in_rows)
    codes.backward(grad)
    codes_in_rows.backward(grad.reshape(-1, 4))
    close = {"rtol": 1e-12, "atol": 1e-12}
    assert torch.allclose(leaf.grad.reshape(-1, 4), rows.grad, **close)
    assert torch.allclose(commitment_loss(x, codes), commitment_loss(x.reshape(-1, 4), codes_in_rows), **close)
    of_rows = codebook_loss(x.reshape(-1, 4), codebook, indices_in_rows)
    assert torch.allclose(codebook_loss(x, codebook, indices), of_rows, **close)


# --- gradients, by every route ------------------------------------------------------------------------------------------

Loss = Callable[[Tensor], Tensor]


def _backward(loss: Loss, x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    loss(x).backward()
    return x.grad


def _compiled(f: Callable[..., Tensor]) -> Callable[..., Tensor]:
    torch._dynamo.reset()
    return torch.compile(f, fullgraph=True, backend="aot_eager")


ROUTES: dict[str, Callable[[Loss, Tensor], Tensor]] = {
    "backward": _backward,
    "func.grad": lambda loss, x: torch.func.grad(loss)(x),
    "jacfwd": lambda loss, x: torch.func.jacfwd(loss)(x),
    "compile": lambda loss, x: _backward(_compiled(loss), x),
    "compile(func.grad)": lambda loss, x: _compiled(torch.func.grad(loss))(x),
}


def _routes() -> Iterator[Any]:
    """Every rule by every route; those that compile are programs."""
    for route, rule in itertools.product(ROUTES, RULES):
        yield pytest.param(rule, route, marks=marks_of("compile" not in route, pytest.mark.program))


@folded
@pytest.mark.parametrize(("rule", "route"), [*_routes()])
def test_gradient_is_that_of_the_dense_matrix(rule: str, route: str) -> None:
    x, codebook = problem()
    weight = torch.rand_like(x) - 0.5
    codes = codebook[nearest_by_definition(x, codebook)]
    expected = torch.einsum("nij,ni->nj", matrices(rule, x, codes), weight * codes.cos())
    gradient = ROUTES[route](lambda x: (weight * vector_quantize(x, codebook, rule=rule)[0].sin()).sum(), x)
    assert gradient.dtype is x.dtype
    assert torch.allclose(gradient, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rule", RULES)
def test_gradient_in_every_dtype(rule: str, dtype: torch.dtype) -> None:
    x, codebook = problem(20, 16, 30, dtype)
    x.requires_grad_()
    grad = torch.randn(20, 16).to(dtype)
    codes, indices = vector_quantize(x, codebook, rule=rule)
    codes.backward(grad)
    assert torch.equal(codes, codebook[indices])
    expected = torch.einsum("nij,ni->nj", matrices(rule, x.detach(), codes.detach()), grad.double())
    tolerance = 20 * torch.finfo(dtype).eps
    assert x.grad.dtype is dtype
    assert torch.allclose(x.grad.double(), expected, rtol=tolerance, atol=tolerance)
    assert rule != "identity" or torch.equal(x.grad, grad)


@pytest.mark.parametrize(
    ("rule", "is_compiled"),
    slow_but([("identity", False), ("rotation", False)], itertools.product(RULES, (False, True)), pytest.mark.program),
)
def test_double_backward_takes_the_rotation_for_a_constant(rule: str, is_compiled: bool) -> None:
    """d/dx of v . J^T (w cos q) is J^T (-w sin(q) * J v), because J is a constant."""
    x, codebook = problem()
    w, v = torch.randn_like(x), torch.randn_like(x)

    def loss(x: Tensor) -> Tensor:
        return (w * vector_quantize(x, codebook, rule=rule)[0].sin()).sum()

    second = torch.func.grad(lambda x: (v * torch.func.grad(loss)(x)).sum())
    if is_compiled:
        gradient = _compiled(second)(x)
    else:
        leaf = x.clone().requires_grad_()
        (first,) = torch.autograd.grad(loss(leaf), leaf, create_graph=True)
        (gradient,) = torch.autograd.grad((v * first).sum(), leaf)
        assert torch.allclose(gradient, second(x), rtol=1e-12, atol=1e-12)
    codes = codebook[nearest_by_definition(x, codebook)]
    jacobian = matrices(rule, x, codes)
    inner = -w * codes.sin() * torch.einsum("nij,nj->ni", jacobian, v)
    assert torch.allclose(gradient, torch.einsum("nij,ni->nj", jacobian, inner), rtol=1e-11, atol=1e-11)


IN_DIMS = [(0, None), (1, None), (0, 0), (None, 0), (0, 2)]


@folded
@pytest.mark.parametrize(
    ("rule", "in_dims", "is_compiled"),
    [
        *((rule, dims, False) for rule in RULES for dims in IN_DIMS),
        *slow_but([], [("rotation", (0, None), True), ("identity", (0, 0), True)], pytest.mark.program),
    ],
)
def test_vmap_equals_a_loop(rule: str, in_dims: tuple[int | None, int | None], is_compiled: bool) -> None:
    batches = torch.randn(3, 6, 4, dtype=torch.float64), torch.randn(3, 5, 4, dtype=torch.float64)
    stacked = [batch[0] if dim is None else batch.movedim(0, dim) for batch, dim in zip(batches, in_dims, strict=True)]

    def quantize(x: Tensor, codebook: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        codes, indices = vector_quantize(x, codebook, rule=rule)
        grad = torch.func.grad(lambda x: vector_quantize(x, codebook, rule=rule)[0].sin().sum())(x)
        return codes, indices, grad

    mapped = torch.vmap(quantize, in_dims)
    results = (_compiled(mapped) if is_compiled else mapped)(*stacked)
    for k in range(3):
        alone = quantize(*(batch[0 if dim is None else k] for batch, dim in zip(batches, in_dims, strict=True)))
        assert torch.equal(results[0][k], alone[0])
        assert torch.equal(results[1][k], alone[1])
        assert torch.allclose(results[2][k], alone[2], rtol=1e-13, atol=1e-13)


# --- without a rotation -----------------------------------------------------------------------------------------------

NO_ROTATION = {
    "x is zero": ([0.0, 0.0, 0.0], [1.0, 2.0, 3.0]),
    "code is zero": ([1.0, 2.0, 3.0], [0.0, 0.0, 0.0]),
    "both are zero": ([0.0, 0.0, 0.0], [0.0, 0.0, 0.0]),
    "opposite, of other length": ([1.0, -2.0, 3.0], [-0.1, 0.2, -0.3]),
    "x is infinite": ([torch.inf, 0.0, 0.0], [1.0, 2.0, 3.0]),
    "x is NaN": ([torch.nan, 0.0, 0.0], [1.0, 2.0, 3.0]),
    "code is infinite": ([1.0, 2.0, 3.0], [torch.inf, 0.0, 0.0]),
}


@folded
@pytest.mark.parametrize("case", NO_ROTATION)
def test_without_a_rotation_the_gradient_passes_and_is_finite(case: str) -> None:
    """Also for the largest gradients, whose sum is infinite in single precision."""
    vector, code = NO_ROTATION[case]
    x, codebook = torch.tensor([vector], requires_grad=True), torch.tensor([code])

    def quantize(x: Tensor) -> Tensor:
        return vector_quantize(x, codebook, rule="rotation")[0]

    codes = quantize(x)
    assert torch.equal(codes, codebook)
    grad = torch.tensor([[3.0, -5.0, 7.0]], requires_grad=True)
    (first,) = torch.autograd.grad(codes, x, grad, create_graph=True)
    assert first.tolist() == [[3, -5, 7]]
    second = torch.autograd.grad(first.square().sum(), (grad, x), allow_unused=True)
    assert second[0].tolist() == [[6, -10, 14]]
    assert second[1] is None or second[1].isfinite().all()
    x, grad = x.detach(), torch.full((1, 3), 2e38)
    assert torch.equal(torch.func.vjp(quantize, x)[1](grad)[0], grad)
    assert torch.equal(torch.func.jvp(quantize, (x,), (grad,))[1], grad)


@folded
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("short", ["x", "code"])
@pytest.mark.parametrize(("eps", "turns"), [(2, False), (3.5, False), (4, False), (4.5, True), (32, True)])
def test_no_rotation_if_one_vector_is_too_short(eps: float, turns: bool, short: str, dtype: torch.dtype) -> None:
    """The gradient passes as it is if one vector is at most eps times as long as the other, whose length here is 4."""
    long, little = torch.ones(1, 16, dtype=dtype), torch.zeros(1, 16, dtype=dtype)
    little[0, 0] = eps * torch.finfo(dtype).eps
    x, code = (little, long) if short == "x" else (long, little)
    grad = torch.linspace(-1, 2, 16, dtype=dtype).unsqueeze(0)
    x = x.requires_grad_()
    (gradient,) = torch.autograd.grad(vector_quantize(x, code, rule="rotation")[0], x, grad)
    expected = grad[0].double() @ rotation_by_definition(x.detach()[0], code[0]) if turns else grad[0].double()
    torch.testing.assert_close(gradient[0].double(), expected, rtol=1e-5, atol=1e-5 * expected.abs().max().item())


@pytest.mark.parametrize(
    ("apart", "turns", "dtype"), [(0.5, False, SINGLE), (2.0, True, SINGLE), (1.0, False, DOUBLE), (2.0, True, DOUBLE)]
)
def test_there_is_no_rotation_between_opposite_directions(apart: float, turns: bool, dtype: torch.dtype) -> None:
    """Directions count as opposite if the length of their sum is at most the root of eps. A rotation would give almost -grad."""
    x = torch.tensor([[1.0, 0.0]], dtype=dtype, requires_grad=True)
    code = torch.tensor([[-1.0, apart * torch.finfo(dtype).eps ** 0.5]], dtype=dtype)
    grad = torch.tensor([[3.0, -5.0]], dtype=dtype)
    (gradient,) = torch.autograd.grad(vector_quantize(x, code, rule="rotation")[0], x, grad)
    assert torch.allclose(gradient, -grad if turns else grad, rtol=1e-2)


@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1e20, 1e30])
def test_the_rotation_does_not_depend_on_the_scale(scale: float) -> None:
    """The squares of these numbers do not fit float32. The matrix does not depend on the scale."""
    x, code = torch.tensor([[1.0, 2.0, -1.0]]), torch.tensor([[0.5, 1.0, 1.0]])
    grad = torch.tensor([[1.0, -2.0, 0.5]])
    leaf = (x * scale).requires_grad_()
    vector_quantize(leaf, code * scale, rule="rotation")[0].backward(grad)
    expected = rotation_by_definition(x[0], code[0]).mT @ grad[0].double()
    assert torch.allclose(leaf.grad[0].double(), expected, rtol=1e-5)


# --- graph, losses, errors ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rule", "tensors"), [("identity", 0), ("rotation", 3)])
def test_the_codebook_gets_no_gradient_and_few_tensors_are_saved(rule: str, tensors: int) -> None:
    x, codebook = problem(50, 8, 9)
    codebook.requires_grad_()
    assert not vector_quantize(x, codebook, rule=rule)[0].requires_grad
    saved: set[int] = set()

    def note(tensor: Tensor) -> Tensor:
        if tensor.numel() == x.numel():
            saved.add(tensor.data_ptr())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        codes, indices = vector_quantize(x.requires_grad_(), codebook, rule=rule)
    assert len(saved - {x.data_ptr()}) == tensors
    assert codes.requires_grad
    assert not indices.requires_grad
    codes.sum().backward()
    assert codebook.grad is None


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_losses_are_mean_squares_with_one_side_constant(dtype: torch.dtype) -> None:
    x, codebook = (v.requires_grad_() for v in problem(6, 4, 5, dtype))
    codes, indices = vector_quantize(x, codebook)
    difference = (x.detach().double() - codes.detach().double()).numpy()
    close = {"rtol": 8 * torch.finfo(dtype).eps, "atol": 8 * torch.finfo(dtype).eps}

    committed = commitment_loss(x, codes)
    committed.backward()
    assert torch.allclose(committed.double(), torch.tensor((difference**2).mean()), **close)
    assert torch.allclose(x.grad.double(), torch.tensor(2 * difference / 24), **close)
    assert codebook.grad is None

    x.grad = None
    learned = codebook_loss(x, codebook, indices)
    learned.backward()
    expected = torch.zeros(5, 4, dtype=torch.float64)
    for row, code in enumerate(indices.tolist()):
        expected[code] -= torch.tensor(2 * difference[row] / 24)
    assert torch.allclose(learned.double(), committed.double(), **close)
    assert torch.allclose(codebook.grad.double(), expected, **close)
    assert x.grad is None


def test_rules_are_names_and_names_of_the_field_are_translated() -> None:
    x, codebook = problem()
    expected = codebook[nearest_by_definition(x, codebook)]
    assert torch.equal(vector_quantize(x, codebook, rule=pg.rules.identity())[0], expected)
    for wrong in (pg.rules.leaky(0.1), "rotatoin", ["identity"]):
        with pytest.raises(KeyError, match="vector_quantize: rule must be one of identity, rotation, got"):
            vector_quantize(x, codebook, rule=wrong)
    for name in ("ste", "replace", "straight_through", "rotate"):
        translation = "rotation" if name == "rotate" else "identity"
        with pytest.raises(ValueError, match=f"identity, rotation, got '{name}'. '{name}' is '{translation}' here"):
            vector_quantize(x, codebook, rule=name)


def test_bad_calls_say_what_must_change() -> None:
    x, codebook = problem()
    for arguments, kind, text in (
        (([1.0], codebook), TypeError, "x must be a tensor"),
        ((x, [1.0]), TypeError, "codebook must be a tensor"),
        ((x.long(), codebook), TypeError, r"x must be floating point, got torch.int64. Call .float\(\) first"),
        ((x.to(torch.complex64), codebook), TypeError, "x must be real"),
        ((x, codebook[0]), ValueError, r"codebook must have shape \(K, d\) with K > 0 and d > 0, got \(4,\)"),
        ((x[:, :0], codebook[:, :0]), ValueError, r"codebook must have shape .* got \(9, 0\)"),
        ((x[:, :3], codebook), ValueError, r"x must have shape \(..., 4\), as long as a code, got \(7, 3\)"),
        ((torch.tensor(1.0), codebook), ValueError, r"x must have shape \(..., 4\)"),
        ((x, codebook.to("meta")), ValueError, "codebook must be on cpu, the device of x, got 'meta'"),
    ):
        with pytest.raises(kind, match=f"^vector_quantize: {text}"):
            vector_quantize(*arguments)
        if kind is ValueError:
            with pytest.raises(ValueError, match=f"^codebook_loss: {text}"):
                codebook_loss(*arguments, torch.zeros(7, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"commitment_loss: codes must have shape \(7, 4\), got \(1, 4\). Give the co"):
        commitment_loss(x, codebook[:1])
    with pytest.raises(TypeError, match=r"commitment_loss: codes must be floating point, got torch.int64"):
        commitment_loss(x, codebook.long())
    with pytest.raises(TypeError, match=r"codebook_loss: indices must be an int64 tensor, got a Tensor of torch.int32"):
        codebook_loss(x, codebook, torch.zeros(7, dtype=torch.int32))
    for vectors, shape, message in (
        (x, (7, 1), r"\(7,\), got \(7, 1\)"),
        (x[:6].unflatten(0, (2, 3)), (2,), r"\(2, 3\), got \(2,\)"),
    ):
        with pytest.raises(ValueError, match=f"codebook_loss: indices must have shape {message}"):
            codebook_loss(vectors, codebook, torch.zeros(shape, dtype=torch.int64))
    with pytest.raises(NotImplementedError, match=r"vector_quantize: torch.jit.script must not be used"):
        torch.jit.script(vector_quantize)


def test_vectors_that_are_sharded_over_the_batch_get_the_same_codes_and_gradients() -> None:
    distributed = pytest.importorskip("torch.distributed")
    if not distributed.is_available() or distributed.is_initialized():
        pytest.skip("no process group can be made here")
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    torch.manual_seed(0)
    x, codes, weight = torch.randn(6, 4), torch.randn(8, 4), torch.randn(6, 4)
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        mesh = distributed.device_mesh.init_device_mesh("cpu", (1,))
        for placement, rule in itertools.product((Shard(0), Shard(1), Replicate()), ("identity", "rotation")):
            plain = x.clone().requires_grad_()
            sharded = distribute_tensor(x, mesh, [placement]).requires_grad_()
            expected, indices = vector_quantize(plain, codes, rule=rule)
            ours, own = vector_quantize(sharded, distribute_tensor(codes, mesh, [Replicate()]), rule=rule)
            (expected * weight).sum().backward()
            (ours * distribute_tensor(weight, mesh, [placement])).sum().backward()
            pairs = ((ours, expected), (own, indices), (sharded.grad, plain.grad))
            assert all(torch.equal(a.full_tensor(), b) for a, b in pairs)  # type: ignore[union-attr]
    finally:
        distributed.destroy_process_group()
