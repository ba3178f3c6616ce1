"""convert: modules exchanged for ones with a rule, and back."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import Tensor, nn

import pseudograd as pg
from pseudograd import rules
from pseudograd.rewrite import convert

X = [-4.0, -3.0, -1.0, 0.0, 0.5, 1.0, 3.0, 6.0, 9.0]
MODULES = {
    "ReLU": (nn.ReLU, lambda x, rule: pg.relu(x, rule=rule)),
    "ReLU6": (nn.ReLU6, lambda x, rule: pg.relu6(x, rule=rule)),
    "Hardtanh": (lambda **how: nn.Hardtanh(-0.5, 1.0, **how), lambda x, rule: pg.hardtanh(x, -0.5, 1.0, rule=rule)),
    "Hardsigmoid": (nn.Hardsigmoid, lambda x, rule: pg.clamp(x, -3, 3, rule=rule, edge="open") / 6 + 0.5),
}


def gradient(f, x: Tensor | None = None) -> Tensor:
    x = torch.tensor(X, requires_grad=True) if x is None else x
    grad = torch.tensor([1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 4.0, -4.0, 5.0])
    return torch.autograd.grad(f(x), x, grad)[0]


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("rule", ["inward", "identity", "zero", rules.leaky(0.25)])
@pytest.mark.parametrize("name", MODULES)
def test_a_module_gets_the_rule_and_keeps_its_values(name: str, rule: object, inplace: bool) -> None:
    make, public = MODULES[name]
    model = nn.Sequential(make(inplace=inplace))
    old = model[0]
    plain = model(torch.tensor(X))
    stock = gradient(lambda x: model(x * 1))
    done = convert(model, {"0": rule})
    assert torch.equal(model(torch.tensor(X)), plain)
    assert torch.equal(model(torch.tensor(X, requires_grad=True) * 1), plain)
    torch.testing.assert_close(gradient(lambda x: model(x * 1)), gradient(lambda x: public(x, rule)))
    done.undo()
    assert model[0] is old
    assert torch.equal(gradient(lambda x: model(x * 1)), stock)
    done.undo()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.act = nn.ReLU()
        self.body = nn.Sequential(nn.Linear(3, 3), self.act, nn.Sequential(nn.ReLU(inplace=True), nn.BatchNorm1d(3)))
        self.head = nn.ReLU6()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.act(x)))


def test_by_class_by_path_and_by_pattern() -> None:
    assert convert(Net(), {nn.ReLU: "inward"}).paths == ("act", "body.1", "body.2.0")
    assert convert(Net(), {"head": "inward"}).paths == ("head",)
    assert convert(Net(), {"body.2.*": nn.Identity()}).paths == ("body.2.0", "body.2.1")
    model = Net()
    convert(model, {nn.ReLU: "inward", "body.2.0": "identity"})
    assert model.act.rewritten[1] == "inward"
    assert model.body[2][0].rewritten[1] == "identity"


def test_what_stays() -> None:
    model, calls = Net().eval(), []
    model.act.register_forward_hook(lambda *_: calls.append("hook"))
    state, names = list(model.state_dict()), [name for name, _ in model.named_modules()]
    with convert(model, {nn.ReLU: "inward", nn.ReLU6: "inward"}) as done:
        assert list(model.state_dict()) == state
        assert [name for name, _ in model.named_modules()] == names
        assert isinstance(model.act, nn.ReLU)
        assert model.act is model.body[1]
        assert not model.act.training
        assert model.body[2][0].inplace
        model(torch.randn(4, 3))
        assert calls == ["hook", "hook"]
        model.train()
        assert model.act.training
        assert "act" in repr(done)
    assert type(model.act) is nn.ReLU
    assert type(model.head) is nn.ReLU6


def test_copies_and_files() -> None:
    model = Net()
    convert(model, {nn.ReLU: rules.leaky(0.5)})
    x = torch.randn(4, 3)
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    for other in (copy.deepcopy(model), torch.load(buffer, weights_only=False)):
        assert torch.equal(_slope(other, x), _slope(model, x))


def _slope(model: nn.Module, x: Tensor) -> Tensor:
    leaf = x.clone().requires_grad_()
    return torch.autograd.grad(model(leaf).sum(), leaf)[0]


def test_again_with_another_rule() -> None:
    model = nn.Sequential(nn.ReLU())
    first = convert(model, {"0": "inward"})
    second = convert(model, {"0": "identity"})
    assert gradient(model).tolist()[0] == 1.0
    second.undo()
    assert gradient(model).tolist()[0] == 0.0
    first.undo()
    assert type(model[0]) is nn.ReLU


def test_compiled() -> None:
    torch._dynamo.reset()
    model = nn.Sequential(nn.ReLU(), nn.Hardtanh())
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    stock = gradient(compiled)
    with convert(model, {nn.ReLU: "inward", nn.Hardtanh: "identity"}):
        converted = gradient(model)
        assert torch.equal(gradient(compiled), converted)
    assert not torch.equal(stock, converted)
    assert torch.equal(gradient(compiled), stock)


def test_other_modules_and_functions() -> None:
    model = Net()
    done = convert(model, {"act": lambda old: nn.Softplus(), nn.BatchNorm1d: nn.Identity()})
    assert isinstance(model.act, nn.Softplus)
    assert model.act is model.body[1] or isinstance(model.body[1], nn.ReLU)
    done.undo()
    assert isinstance(model.act, nn.ReLU)


@pytest.mark.parametrize("rule", ["elastic", "inverting"])
def test_rules_of_two_bounds(rule: str) -> None:
    """relu6, hardtanh and hardsigmoid take them; relu says that it has one bound, where it used to keep torch's rule."""
    model = nn.Sequential(nn.ReLU6(), nn.Hardtanh(-2, 3), nn.Hardsigmoid(), nn.ReLU())
    with pytest.raises(ValueError, match=f"'{rule}' needs both bounds: use clamp, relu6, hardtanh"):
        convert(model, {nn.ReLU6: rule, nn.ReLU: rule})
    assert type(model[0]) is nn.ReLU6
    convert(model, {nn.ReLU6: rule, nn.Hardtanh: rule, nn.Hardsigmoid: rule})
    x = torch.tensor([-5.0, -2.5, 0.5, 2.5, 7.0])
    for module, ours in (
        (model[0], lambda x: pg.relu6(x, rule=rule)),
        (model[1], lambda x: pg.hardtanh(x, -2, 3, rule=rule)),
        (model[2], lambda x: pg.hardtanh(x, -3, 3, rule=rule) / 6),
    ):
        for sign in (1.0, -1.0):
            leaf = x.clone().requires_grad_()
            found, expected = (torch.autograd.grad(f(leaf), leaf, torch.full_like(x, sign))[0] for f in (module, ours))
            torch.testing.assert_close(found, expected)


def test_wrong_calls_change_nothing() -> None:
    model = Net()
    for mapping, error, text in (
        (
            {nn.ReLU: "inward", nn.GELU: "inward"},
            ValueError,
            "convert: each key must match a module of the model, got 'GELU'",
        ),
        ({"act": "ste"}, ValueError, "'ste' is 'identity' here"),
        ({"act": "inward", "body.0": "inward"}, TypeError, "convert: 'body.0' must be one of nn.ReLU, .*got 'Linear'"),
        ({"act": 3}, TypeError, "convert: the value for 'act' must be a rule, a module or a function, got 3"),
        ({"act": lambda old: 3}, TypeError, "convert: the function for 'act' must return a module, got 3"),
    ):
        with pytest.raises(error, match=text):
            convert(model, mapping)  # type: ignore[arg-type]
        assert type(model.act) is nn.ReLU
