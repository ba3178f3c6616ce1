"""lint is quiet about a call through which nothing learns: in evaluation alone, of what has no gradient, or on the way to no loss."""

import pytest

from pseudograd_lint.check import check, parse

from ..choices import folded
from .test_rules import codes

GUARD = "x.clamp(min=0).sqrt()"


TRAINED = [
    "if self.training:|    return GUARD|return x", "if not self.training:|    return x|return GUARD",
    "if self.training:|    y = x|return GUARD",
    "if x is None:|    y = x|elif self.training:|    y = GUARD|return y", "if self.training and x.ndim:|    return x|return GUARD",
    "for y in x:|    if self.training:|        continue|    z = GUARD|return GUARD",
]  # fmt: skip
EVALUATED = [
    "if self.training:|    return x|return GUARD", "if not self.training:|    return GUARD|return x",
    "if self.training:|    y = x|else:|    y = GUARD|return y", "if torch.is_grad_enabled():|    return x|return GUARD",
    "if self.training:|    y = x|elif x is None:|    y = GUARD|return y",
]  # fmt: skip


@folded
@pytest.mark.parametrize("body", [*TRAINED, *EVALUATED])
def test_what_runs_in_evaluation_alone_is_not_trained(body: str) -> None:
    text = body.replace("GUARD", GUARD).replace("|", "\n        ")
    notices = codes(f"class M(nn.Module):\n    def forward(self, x):\n        {text}\n")
    assert notices == (["PG111"] if body in TRAINED else [])


LEARNS = ["x", "x.detach() if y.requires_grad else x", "self.weight if x is None else x", "self.other"]
LEARNS_NOT = [
    "x.detach()", "x.detach() if x.requires_grad else x", "self.weight", "self.weight if x is None else torch.eye(3)",
]  # fmt: skip


@pytest.mark.parametrize("argument", [*LEARNS, *LEARNS_NOT])
def test_what_is_unpacked_is_made_of_what_was_given(argument: str) -> None:
    text = "class M(nn.Module):\n    def __init__(self, weight):\n        self.register_buffer('weight', weight)\n"
    text += f"    def forward(self, x, y):\n        values, vectors = torch.linalg.eigh({argument})\n"
    text += "        return vectors * values.clamp(min=0).sqrt()\n"
    assert codes(text) == (["PG111"] if argument in LEARNS else [])


def test_a_weight_of_a_loss_is_no_loss() -> None:
    for name, notice in {
        "loss_weight": "PG111",
        "loss_mask": "PG111",
        "weighted_loss": "PG102",
        "loss_fn": "PG102",
    }.items():
        assert codes(f"def {name}(x):\n    return {GUARD}\n") == [notice]


def test_a_word_that_means_something_else_is_no_word_of_training() -> None:
    for word in ("loss", "gradient", "backward"):
        assert _speaks(word), word
    for word in (
        "lossless",
        "gradient_checkpointing",
        "gradient accumulation",
        "backwards compatible",
        "backward-compat",
    ):
        assert not _speaks(word), word


def _speaks(word: str) -> bool:
    text = f"import torch  # {word}\ndef f(x):\n    return {GUARD}\n"
    return bool(check(parse(text), text.split("\n"), "x.py", ["PG111"]))


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
