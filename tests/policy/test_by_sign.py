"""A rule for A > 0 and one for the rest: each token has the value and the gradient that its own rule alone gives, bit for bit."""

import itertools
import json
import math
import pickle
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.func import grad, jacfwd, jacrev, vmap

import pseudograd as pg
from pseudograd.ops import policy
from pseudograd.rule import RuleLike

from ..choices import folded
from .formulas import tokens

RULES: dict[str, RuleLike] = {
    **{name: name for name in ("inward", "zero", "identity", "reinforce")},
    "leaky": pg.rules.leaky(0.5),
    "leaky_inward": pg.rules.leaky_inward(0.25, 0.75),
}
PAIRS = list(itertools.product(RULES, RULES))


def slopes(loss: Callable[..., Tensor], *at: Tensor) -> tuple[Tensor, ...]:
    leaves = [tensor.clone().requires_grad_() for tensor in at]
    y = loss(*leaves)
    weights = torch.linspace(-1, 2, y.numel(), dtype=y.dtype).reshape(y.shape)
    return (y.detach(), *torch.autograd.grad(y, leaves, weights))


@folded
@pytest.mark.parametrize("level", policy.LEVELS)
@pytest.mark.parametrize(("positive", "negative"), PAIRS)
def test_each_token_has_what_its_own_rule_gives(positive: str, negative: str, level: str) -> None:
    lr, a = tokens()
    up, down = RULES[positive], RULES[negative]
    loss = partial(pg.policy.loss, ceiling=3.0, level=level, space="log" if positive < negative else "ratio")
    rules = {"positive": up, "negative": down}, up, down
    for ours, of_up, of_down in zip(*(slopes(partial(loss, rule=rule), lr, a) for rule in rules), strict=True):
        assert torch.equal(ours, torch.where(a > 0, of_up, of_down))


def test_an_advantage_of_0_belongs_to_the_rest() -> None:
    """Its own slope is 0 by either rule; the derivative of that by the advantage is not."""
    lr, a = torch.tensor([1.0, -1.0], requires_grad=True), torch.zeros(2, requires_grad=True)
    for down, mixed in (("identity", -lr.exp()), ("zero", lr * 0)):
        rule = {"positive": "identity" if down == "zero" else "zero", "negative": down}
        (slope,) = torch.autograd.grad(pg.policy.loss(lr, a, rule=rule).sum(), lr, create_graph=True)
        assert torch.equal(torch.autograd.grad(slope.sum(), a)[0], mixed)


@pytest.mark.parametrize(("edge", "share"), [("closed", 1.0), ("half", 0.5), ("open", 0.0)])
def test_at_a_tie_each_sign_has_the_share_of_its_own_rule(edge: str, share: float) -> None:
    lr = torch.tensor([math.log(2.0)] * 2, dtype=torch.float64)
    a = torch.tensor([1.0, -1.0], dtype=torch.float64)
    rule = {"positive": "inward", "negative": "identity"}
    (_, slope) = slopes(lambda lr: pg.policy.loss(lr, a, high=1.0, rule=rule, edge=edge), lr)
    assert slope.tolist() == [-2.0 * -1 * share, 2.0 * 2]  # of weights -1 and 2


def test_an_infinite_ratio_spoils_only_what_its_own_rule_spoils() -> None:
    """A silent token is silent, in the second derivative too, whatever the other rule would make of its ratio."""
    lr = torch.tensor([math.inf, 200.0, -math.inf, 200.0, -200.0], requires_grad=True)
    a = torch.tensor([1.0, 1.0, -1.0, 0.0, -1.0], requires_grad=True)
    y = pg.policy.loss(lr, a, rule={"positive": "inward", "negative": "identity"}, low=None)
    (first,) = torch.autograd.grad(y.sum(), lr, create_graph=True)
    assert first.tolist() == [0.0] * 5
    assert torch.autograd.grad(first.sum(), lr, retain_graph=True)[0].tolist() == [0.0] * 5
    (slope,) = torch.autograd.grad(pg.policy.loss(lr, a, rule={"positive": "identity", "negative": "zero"}).sum(), lr)
    assert slope.tolist() == [-math.inf, -math.inf, 0.0, 0.0, 0.0]


@pytest.mark.program
def test_second_derivatives_under_vmap_and_compile_are_those_of_the_two_rules() -> None:
    lr, a = (tensor[1:9] for tensor in tokens())
    rule = {"positive": "reinforce", "negative": pg.rules.leaky_inward(0.5, 0.25)}

    def loss(lr: Tensor, a: Tensor) -> Tensor:
        return pg.policy.loss(lr, a, rule=rule, space="log").sum()

    def separate(lr: Tensor, a: Tensor) -> Tensor:
        up, down = (pg.policy.loss(lr, a, rule=rule[sign], space="log") for sign in policy.SIGNS)
        return torch.where(a > 0, up, down).sum()

    expected = vmap(jacrev(grad(separate)))(lr, a)
    assert expected.any()
    assert torch.equal(vmap(jacrev(grad(loss)))(lr, a), expected)
    assert torch.equal(vmap(jacfwd(grad(loss)))(lr, a), expected)
    compiled = torch.compile(vmap(grad(loss)), backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(lr, a), vmap(grad(separate))(lr, a))
    leaf = lr.clone().requires_grad_()
    (slope,) = torch.autograd.grad(torch.compile(loss, backend="aot_eager", fullgraph=True)(leaf, a), leaf)
    assert torch.equal(slope, vmap(grad(separate))(lr, a))


def test_the_report_names_both_rules_and_counts_by_sign() -> None:
    lr, a = torch.tensor([0.5, 0.5, -0.5, -0.5]), torch.tensor([1.0, -1.0, 1.0, -1.0])
    report = pg.policy.clip_report(lr, a, rule={"positive": "identity", "negative": "zero"})
    assert "rule identity where A > 0, zero elsewhere" in str(report)
    cells = ("A > 0", "above"), ("A < 0", "above"), ("A < 0", "below")
    assert [report.share(*cell) for cell in cells] == [0.0, 0.5, 0.5]


def test_a_preset_by_sign_is_data_and_cannot_be_spoiled() -> None:
    preset = pg.policy.presets["up_grpo"]
    settings = preset.settings
    assert json.loads(json.dumps(settings)) == settings
    settings["rule"]["positive"] = "zero"
    assert preset.settings["rule"] == {"positive": "reinforce", "negative": "inward"}
    assert pickle.loads(pickle.dumps(preset)) == preset
    assert hash(preset) == hash(pickle.loads(pickle.dumps(preset)))
    lr, a = tokens()
    assert torch.equal(preset(lr, a, rule="inward"), pg.policy.presets["dual_clip"](lr, a))
