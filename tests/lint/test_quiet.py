"""What nobody learns through is not told: where it is only called without a gradient, what it is made of, what becomes of it."""

from __future__ import annotations

import pytest

from ..choices import folded
from .test_rules import codes

GUARD = "x.clamp(min=0).sqrt()"
NO_GRAD = "@torch.no_grad()\ndef outer(x):\n    return _inner(x)\n"
INNER = f"def _inner(x):\n    return {GUARD}\n"


@pytest.mark.parametrize(
    ("text", "is_told"),
    [
        (INNER, True),
        (NO_GRAD + INNER, False),
        (INNER + NO_GRAD, False),
        (INNER + NO_GRAD + "def other(x):\n    return _inner(x)\n", True),
        (NO_GRAD.replace("_inner", "inner") + INNER.replace("_inner", "inner"), True),  # others may call what is public
        (NO_GRAD.replace("_inner", "_middle") + "def _middle(x):\n    return _inner(x)\n" + INNER, False),
        ("def outer(x):\n    with torch.no_grad():\n        y = _inner(x)\n    return y\n" + INNER, False),
        ("def outer(x):\n    with torch.enable_grad():\n        y = _inner(x)\n    return y\n" + INNER, True),
        (NO_GRAD.replace("_inner(x)", "map(_inner, x)") + INNER, True),  # handed on: nobody knows to whom
        (INNER.replace("return", "_inner(x - 1)\n    return"), True),
        (INNER.replace("return", "_inner(x - 1)\n    return") + NO_GRAD, False),
    ],
)
def test_a_private_function_is_silent_where_it_is_only_called_without_a_gradient(text: str, is_told: bool) -> None:
    assert codes(text) == (["PG111"] if is_told else [])


def test_a_method_is_called_through_self() -> None:
    calls = "    def predict(self, x):\n        return self._scale(x)\n"
    model = f"class M(nn.Module):\n    def _scale(self, x):\n        return {GUARD}\n" + calls
    assert codes(model) == []
    assert codes(model + "    def forward(self, x):\n        return self._scale(x)\n") == ["PG111"]
    assert codes(model + "    def __init__(self):\n        self.scale = self._scale\n") == ["PG111"]


@pytest.mark.parametrize(
    ("body", "is_told"),
    [
        (f"if self.training:\n            return {GUARD}\n        return x", True),
        (f"if self.training:\n            return x\n        return {GUARD}", False),
        (f"if not self.training:\n            return x\n        return {GUARD}", True),
        (f"if not self.training:\n            return {GUARD}\n        return x", False),
        (f"if self.training:\n            y = x\n        else:\n            y = {GUARD}\n        return y", False),
        (
            f"if x is None:\n            y = x\n        elif self.training:\n            y = {GUARD}\n        return y",
            True,
        ),
        (
            f"if self.training:\n            y = x\n        elif x is None:\n            y = {GUARD}\n        return y",
            False,
        ),
        (f"if self.training:\n            y = x\n        return {GUARD}", True),
        (f"if torch.is_grad_enabled():\n            return x\n        return {GUARD}", False),
        (f"if self.training and x.ndim:\n            return x\n        return {GUARD}", True),
        (
            f"for y in x:\n            if self.training:\n                continue\n            z = {GUARD}\n        return {GUARD}",
            True,
        ),
    ],
)
def test_what_runs_in_evaluation_alone_is_not_trained(body: str, is_told: bool) -> None:
    assert codes(f"class M(nn.Module):\n    def forward(self, x):\n        {body}\n") == (["PG111"] if is_told else [])


@pytest.mark.parametrize(
    ("argument", "is_told"),
    [
        ("torch.linalg.eigh(x)", True),
        ("torch.linalg.eigh(x.detach())", False),
        ("torch.linalg.eigh(x.detach() if x.requires_grad else x)", False),
        ("torch.linalg.eigh(x.detach() if y.requires_grad else x)", True),
        ("torch.linalg.eigh(self.weight)", False),
        ("torch.linalg.eigh(self.weight if x is None else torch.eye(3))", False),
        ("torch.linalg.eigh(self.weight if x is None else x)", True),
        ("torch.linalg.eigh(self.other)", True),
    ],
)
def test_what_is_unpacked_is_made_of_what_was_given(argument: str, is_told: bool) -> None:
    text = "class M(nn.Module):\n    def __init__(self, weight):\n        self.register_buffer('weight', weight)\n"
    text += f"    def forward(self, x, y):\n        values, vectors = {argument}\n        return vectors * values.clamp(min=0).sqrt()\n"
    assert codes(text) == (["PG111"] if is_told else [])


@folded
@pytest.mark.parametrize(
    ("rest", "is_told"),
    [
        ("return d", True),
        ("return d < 1", False),
        ("near = d < 1\n    return x[near]", False),
        ("near = d < 1\n    return x[near] * d", True),
        ("return d.argmin()", False),
        ("return x[torch.argsort(d)]", False),
        ("_, near = torch.topk(d, 3)\n    return x[near]", False),
        ("_, near = torch.topk(d, 3)\n    return near", False),
        ("near = d.topk(3)[1]\n    return x[near]", False),
        ("near = d.topk(3).indices\n    return x[near]", False),
        ("least, near = torch.topk(d, 3)\n    return least", True),
        (
            "least, near = torch.topk(d, 3)\n    score = least.sum(1)\n    _, best = score.min(0)\n    return x[best]",
            False,
        ),
        ("self.d = d", True),
        ("out.append(d)", True),
        ("y = d + 1\n    y = y * 2\n    return y > x", False),
    ],
)
def test_a_distance_that_only_finds_neighbours_is_not_told(rest: str, is_told: bool) -> None:
    assert codes(f"def f(self, x, out):\n    d = {GUARD}\n    {rest}\n") == (["PG111"] if is_told else [])


@pytest.mark.parametrize(
    ("word", "is_told"),
    [
        ("loss", True), ("lossless", False), ("gradient", True), ("gradient_checkpointing", False), ("gradient accumulation", False),
        ("backward", True), ("backwards compatible", False), ("backward compatible", False), ("backward-compat", False),
    ],
)  # fmt: skip
def test_a_word_that_means_something_else_is_no_word_of_training(word: str, is_told: bool) -> None:
    from pseudograd_lint.check import check, parse

    text = f"import torch  # {word}\ndef f(x):\n    return {GUARD}\n"
    assert bool(check(parse(text), text.split("\n"), "x.py", ["PG111"])) == is_told


HELPER = f"def root(x):\n    return {GUARD}\n"


@folded
@pytest.mark.parametrize(
    "text",
    [
        f"def distance_loss(x):\n    return {GUARD}.mean()\n",
        f"class DistanceLoss(nn.Module):\n    def forward(self, x):\n        return {GUARD}\n",
        f"class M(TripletLoss2):\n    def compute(self, x):\n        return {GUARD}\n",
        f"def f(x):\n    d = {GUARD}\n    penalty = torch.relu(1 - d) ** 2\n    return penalty\n",
        f"def f(x):\n    total_loss = 0\n    total_loss += {GUARD}\n    return total_loss\n",
        f"def f(x, losses):\n    d = {GUARD}\n    e = d[0] * 2\n    losses['d'] = e\n",
        f"def f(x, losses):\n    losses.append({GUARD})\n",
        f"def f(x, y):\n    return F.mse_loss({GUARD}, y)\n",
        f"def f(x, y):\n    d = {GUARD}\n    def inner():\n        return F.mse_loss(d, y)\n    return inner\n",
        f"def f(self, x, y):\n    d = {GUARD}\n    return self.criterion(d, y)\n",
        f"def f(x):\n    {GUARD}.sum().backward()\n",
        f"def f(x):\n    d = {GUARD}\n    return torch.autograd.grad(d.sum(), x)\n",
        f"def f(x):\n    d, e = {GUARD}, 1\n    return F.cross_entropy(d, e)\n",
        f"x = load()\nd = {GUARD}\nloss = d.mean()\n",
        f"distance_loss = lambda x: {GUARD}\n",
        HELPER + "def loss(x):\n    return root(x).mean()\n",
        HELPER + "def middle(x):\n    y = root(x)\n    return y\ndef f(x):\n    loss = middle(x)\n    return loss\n",
    ],
)
def test_what_goes_into_a_loss_is_told_by_default(text: str) -> None:
    assert codes(text) == ["PG102"]


@pytest.mark.parametrize(
    "text",
    [
        f"def f(x):\n    return {GUARD}\n",
        f"def f(x):\n    loss_weight = {GUARD}\n    return loss_weight\n",
        f"def f(x):\n    d = {GUARD}\n    loss = x.mean()\n    return d, loss\n",
        f"def f(x):\n    d = x\n    loss = d.mean()\n    d = {GUARD}\n    return d, loss\n",
        f"def f(self, x):\n    return self.filtered_backward({GUARD})\n",
        f"def lossless(x):\n    return {GUARD}\n",
        f"def f(x):\n    d = {GUARD}\n    loss = x[d.argmin()]\n    return loss, d\n",
        f"class LossyCodec(nn.Module):\n    def forward(self, x):\n        return {GUARD}\n",
        HELPER + "def loss(x):\n    return root(x).detach() * x\n",
        HELPER + "def loss(x):\n    return other(x)\n",
    ],
)
def test_what_is_not_followed_into_a_loss_is_told_where_it_is_asked_for(text: str) -> None:
    assert codes(text) == ["PG111"]


def test_calls_that_go_round_are_followed_once() -> None:
    text = f"def a(x):\n    y = {GUARD}\n    y = y + b(y)\n    return y\ndef b(x):\n    return a(x)\n"
    assert codes(text) == ["PG111"]
    assert codes(text + "def loss(x):\n    return b(x)\n") == ["PG102"]
