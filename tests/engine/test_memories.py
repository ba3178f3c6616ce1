"""The memories of the library are bounded. A forgotten entry is made again, and no backward, graph or second call notices."""

import gc
import pickle
import weakref
from functools import partial

import pytest
import torch
from torch import Tensor

import pseudograd as pg
from pseudograd import rule, user_function
from pseudograd.rule import OPS


class Module(torch.nn.Module):
    def slope(self, x: Tensor) -> Tensor:
        return torch.full_like(x, 2.0)

    def forward(self, x: Tensor) -> Tensor:
        return pg.sign(x, rule=pg.rules.custom(self.slope))


def test_a_slope_that_changes_at_every_step_is_not_remembered_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    assert rule._MOST_CALLS == 1000
    monkeypatch.setattr(rule, "_MOST_CALLS", 50)
    x = torch.tensor([2.0], requires_grad=True)
    for step in range(120):
        slope = 0.1 + step * 1e-6
        (grad,) = torch.autograd.grad(pg.clamp(x, -1, 1, rule=pg.rules.leaky(slope)), x)
        assert grad.item() == pytest.approx(slope, rel=1e-6)
        pg.sign(x, rule=pg.rules.arctan(scale=slope))
        rule.call_named(("clamp", "leaky", "closed", False, slope))
    assert len(rule._by_request) <= 50
    assert len(rule._by_spec) <= 50


def test_equal_bound_methods_are_one_function() -> None:
    module, x = Module(), torch.ones(2, requires_grad=True)
    known = len(user_function._by_key)
    custom_rules = [pg.rules.custom(module.slope) for _ in range(100)]
    assert len(user_function._by_key) == known + 1
    assert len(set(custom_rules)) == 1
    assert pg.rules.custom(Module().slope) != custom_rules[0]
    first, *others = (rule.call_for(OPS[op], chosen) for op in ("sign", "heaviside") for chosen in custom_rules[:2])
    assert [other is first for other in others] == [True, False, False]
    (grad,) = torch.autograd.grad(module(x).sum(), x)
    assert grad.tolist() == [2, 2]


def test_a_graph_finds_its_function_again_and_keeps_it() -> None:
    """The key may come from a cache of compiled code, before this process has asked for it."""
    module = Module()
    function = user_function.function_of(module.slope)
    assert [user_function.function_named(function.key) for _ in range(2)] == [function, function]
    assert user_function._functions_in_graphs.pop(function.key) is function


def test_what_a_slope_holds_goes_when_the_rule_goes() -> None:
    """The objects are freed without the garbage collector, because tensors on a device should not wait for it."""
    x = torch.ones(5, requires_grad=True)
    known, requests = len(user_function._by_key), len(rule._by_request)
    gc.disable()
    try:
        for step in range(50):
            held = torch.full((5,), float(step))
            alive = weakref.ref(held)
            y = pg.sign(x, rule=pg.rules.custom(lambda x, held=held: held))
            del held
            assert alive() is not None, "a backward still to come keeps its slope"
            (grad,) = torch.autograd.grad(y.sum(), x)
            assert grad.tolist() == [step] * 5
            del y
            assert alive() is None
    finally:
        gc.enable()
    assert len(user_function._by_key) == known
    assert len(rule._by_request) == requests


def test_a_backward_after_everything_was_forgotten() -> None:
    x = torch.tensor([2.0], requires_grad=True)
    y = pg.clamp(x, -1, 1, rule=pg.rules.leaky(0.25)) + pg.sign(x, rule=pg.rules.custom(lambda x: x * 3))
    spec = rule.call_for(OPS["clamp"], "inward", "closed").spec
    called = rule.call_named(spec)
    assert called is rule.call_named(spec)
    rule.forget_calls()
    assert called is not rule.call_named(spec)
    gc.collect()
    y.backward()
    assert x.grad.item() == 6.25
    assert pickle.loads(pickle.dumps(pg.rules.custom(torch.cos))) == pg.rules.custom(torch.cos)


@pytest.mark.program
def test_a_compiled_graph_keeps_the_function_that_it_names() -> None:
    module, x = Module(), torch.ones(2)
    made_outside = pg.rules.custom(module.slope)
    compiled = partial(torch.compile, backend="eager", fullgraph=True)
    f = compiled(torch.func.grad(lambda x: pg.sign(x, rule=made_outside).sum()))
    g = compiled(torch.func.grad(lambda x: pg.sign(x, rule=pg.rules.custom(torch.cos)).sum()))
    for _ in range(2):
        assert f(x).tolist() == [2, 2]
        torch.testing.assert_close(g(x), torch.cos(x))
        rule._by_request.clear()
        gc.collect()
    h = compiled(module)  # a bound method, met inside
    leaf = x.clone().requires_grad_()
    h(leaf).sum().backward()
    assert leaf.grad.tolist() == [2, 2]


def test_after_a_change_of_the_table_a_call_that_was_prepared_is_made_again() -> None:
    """Also by a kernel that keeps whole calls."""
    x, op = torch.tensor([2.0], requires_grad=True), OPS["clamp"]
    before = op.rules["inward"]
    grads = []
    try:
        for row in (before, op.rules["identity"].replaced(name="inward")):
            rule.add_rule(op, row)
            grads += [torch.autograd.grad(pg.clamp(x, -1, 1), x, torch.tensor([-1.0]))[0].item() for _ in range(2)]
    finally:
        rule.add_rule(op, before)
    assert grads == [0, 0, -1, -1]
