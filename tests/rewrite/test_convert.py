"""convert: modules exchanged for ones with a rule, and back."""

import copy
import io
import itertools
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

import pseudograd as pg
from pseudograd import rules
from pseudograd.rewrite.convert import convert

from ..choices import folded
from ..written import assert_written, error_of

X = [-4.0, -3.0, -1.0, 0.0, 0.5, 1.0, 3.0, 6.0, 9.0]
MODULES = {
    "ReLU": (nn.ReLU, lambda x, rule: pg.relu(x, rule=rule)),
    "ReLU6": (nn.ReLU6, lambda x, rule: pg.relu6(x, rule=rule)),
    "Hardtanh": (lambda **how: nn.Hardtanh(-0.5, 1.0, **how), lambda x, rule: pg.hardtanh(x, -0.5, 1.0, rule=rule)),
    "Hardsigmoid": (nn.Hardsigmoid, lambda x, rule: pg.clamp(x, -3, 3, rule=rule, edge="open") / 6 + 0.5),
}


def gradient(f: Callable[[Tensor], Tensor]) -> Tensor:
    x = torch.tensor(X, requires_grad=True)
    return torch.autograd.grad(f(x * 1), x, torch.tensor([1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 4.0, -4.0, 5.0]))[0]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.act = nn.ReLU()
        self.body = nn.Sequential(nn.Linear(3, 3), self.act, nn.Sequential(nn.ReLU(inplace=True), nn.BatchNorm1d(3)))
        self.head = nn.ReLU6()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.act(x)))


@folded
@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("rule", ["inward", "identity", "zero", rules.leaky(0.25)])
def test_a_rule_alone_is_for_every_module_that_takes_one(rule: Any, inplace: bool) -> None:
    model = nn.Sequential(nn.Linear(9, 9), *[make(inplace=inplace) for make, _ in MODULES.values()], nn.GELU())
    before, stock = list(model), [gradient(module) for module in model[1:5]]
    plain = model(torch.tensor(X))
    done = convert(model, rule)
    assert done.paths == ("1", "2", "3", "4")
    assert torch.equal(model(torch.tensor(X)), plain)
    for module, (_, public) in zip(model[1:5], MODULES.values(), strict=True):
        torch.testing.assert_close(gradient(module), gradient(lambda x, public=public: public(x, rule)))
    done.undo()
    done.undo()
    assert list(model) == before
    assert all(map(torch.equal, map(gradient, model[1:5]), stock))


def test_by_class_by_path_and_by_pattern() -> None:
    assert convert(Net(), {nn.ReLU: "inward"}).paths == ("act", "body.1", "body.2.0")
    assert convert(Net(), {"head": "inward"}).paths == ("head",)
    assert convert(Net(), {"body.2.*": nn.Identity()}).paths == ("body.2.0", "body.2.1")
    assert convert(Net(), {"*": "inward"}).paths == convert(Net(), "inward").paths
    model = Net()
    convert(model, {nn.ReLU: "inward", "body.2.0": "identity"})
    assert repr(model.act) == "ReLU(rule=inward/open)"
    assert repr(model.body[2][0]) == "ReLU(inplace=True, rule=identity/open)"


def test_names_hooks_and_modes_stay() -> None:
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
    assert (type(model.act), type(model.head)) == (nn.ReLU, nn.ReLU6)


def test_a_copy_and_a_file_keep_the_rule_when_the_original_is_undone() -> None:
    model, buffer = nn.Sequential(nn.ReLU()), io.BytesIO()
    done = convert(model, rules.leaky(0.5))
    torch.save(model, buffer)
    buffer.seek(0)
    copies = [copy.deepcopy(model), model[0]._replicate_for_data_parallel(), torch.load(buffer, weights_only=False)]
    done.undo()
    for other in copies:
        assert torch.equal(gradient(other), gradient(lambda x: pg.relu(x, rule=rules.leaky(0.5))))
    assert repr(model) == "Sequential(\n  (0): ReLU()\n)"


@pytest.mark.program
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # Dynamo's own
def test_compiled() -> None:
    model = nn.Sequential(nn.ReLU(), nn.Hardtanh())
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    stock = gradient(compiled)
    with convert(model, {nn.ReLU: "inward", nn.Hardtanh: "identity"}):
        converted = gradient(model)
        assert torch.equal(gradient(compiled), converted)
    assert not torch.equal(stock, converted)
    assert torch.equal(gradient(compiled), stock)


def test_a_wrong_call_gets_the_written_error_and_changes_nothing() -> None:
    model = Net()
    names = {"nn": nn, "Net": Net, "convert": convert, "error_of": error_of, "model": model}
    assert_written(Path(__file__).with_name("bad_conversions.txt"), names)
    assert type(model.act) is nn.ReLU


def test_a_model_must_be_a_module_that_holds_one() -> None:
    with pytest.raises(ValueError, match=r"convert: model must hold one of nn.ReLU, .*, got 'Sequential'\. Name its"):
        convert(nn.Sequential(nn.Tanh()), "inward")
    with pytest.raises(TypeError, match=r"convert: model must be a torch.nn.Module, got"):
        convert(torch.relu, "inward")  # type: ignore[arg-type]
    scripted = torch.jit.script(nn.Sequential(nn.ReLU()))
    with pytest.raises(ValueError, match=r"got 'RecursiveScriptModule'\. TorchScript has no place for a rule"):
        convert(scripted, "inward")


# --- texts ------------------------------------------------------------------------------------------------------------


def test_a_conversion_names_its_modules_and_counts_them_where_they_are_many() -> None:
    done = convert(Net(), {nn.ReLU: "inward", nn.BatchNorm1d: nn.Identity()})
    assert repr(done) == (
        "Conversion(4 modules: act (ReLU), body.1 (ReLU), body.2.0 (ReLU), body.2.1 (BatchNorm1d to Identity))"
    )
    done.undo()
    assert repr(done).startswith("Conversion(4 modules, undone: act (ReLU), ")
    many, six = nn.Sequential(*[nn.ReLU() for _ in range(20)]), ", ".join(f"{at} (ReLU)" for at in range(6))
    assert repr(convert(many, "inward")) == f"Conversion(20 modules: {six}, and 14 more)"
    assert repr(convert(many[:6], "leaky")) == f"Conversion(6 modules: {six})"
    assert repr(convert(many, {"7": "zero"})) == "Conversion(1 module: 7 (ReLU))"


# --- and back ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_undone_in_any_order_each_takes_back_its_own(order: tuple[int, ...]) -> None:
    """The conversions that are not undone decide. The slope at -1, where grad is 2, tells which rule is in effect."""
    names, slopes = ("leaky", "identity", "zero"), (0.1, 1.0, 0.0)
    old = nn.Hardtanh(-0.5, 1.0)
    model = nn.Sequential(old)
    done = [convert(model, {nn.Hardtanh: name}) for name in names]
    standing = [0, 1, 2]
    for number in order:
        done[number].undo()
        done[number].undo()
        standing.remove(number)
        assert gradient(model)[2].item() == pytest.approx(2 * slopes[standing[-1]] if standing else 0.0)
    assert model[0] is old


@pytest.mark.parametrize("is_converted_again", [False, True])
def test_a_module_that_was_put_there_by_hand_stays(is_converted_again: bool) -> None:
    model, own = nn.Sequential(nn.ReLU()), nn.Hardtanh()
    first = convert(model, "inward")
    model[0] = own
    second = convert(model, "identity") if is_converted_again else None
    first.undo()
    assert (model[0] is own) is not is_converted_again
    if second is not None:
        assert repr(model[0]).endswith("rule=identity/open)")
        second.undo()
        assert model[0] is own


def test_nested_contexts_and_errors_inside() -> None:
    model = nn.Sequential(nn.ReLU())
    old = model[0]
    with pytest.raises(KeyError, match="mine"), convert(model, "inward"):  # noqa: PT012, SIM117
        with convert(model, "identity"):
            assert gradient(model)[0] == 1.0
            raise KeyError("mine")
    assert model[0] is old
    with convert(model, "inward") as done:
        done.undo()
        assert model[0] is old
    with pytest.raises(RuntimeError, match=r"convert: the conversion must stand .* Call convert again\."), done:
        pass


def test_the_training_mode_goes_back_too() -> None:
    model = Net()
    model.body[2][1].eval()  # frozen on purpose
    with convert(model, {nn.ReLU: "inward", nn.BatchNorm1d: nn.Identity()}):
        pass
    assert not model.body[2][1].training
    assert model.act.training
    first = convert(model, {nn.ReLU: "inward", nn.BatchNorm1d: nn.Identity()})
    second = convert(model, {nn.ReLU: "identity"})
    model.train()
    model.eval()
    first.undo()
    second.undo()
    assert not any(module.training for module in model.modules())


def test_an_attribute_that_is_set_on_a_module_while_it_stands_stays_with_it() -> None:
    model = nn.Sequential(nn.LeakyReLU(0.1), nn.ReLU())
    model[0].note = "once"
    old = list(model)
    first = convert(model, {nn.LeakyReLU: "exact", nn.ReLU: "inward"})
    model[0].negative_slope, model[1].inplace = 0.5, True
    del model[0].note
    second = convert(model, {nn.ReLU: "identity"})
    model[1].name = "set on the second"
    second.undo()
    assert model[1].name == "set on the second"
    first.undo()
    assert list(model) == old
    assert (model[0].negative_slope, model[1].inplace, model[1].name) == (0.5, True, "set on the second")
    assert not hasattr(model[0], "note")
    assert not any("rewritten" in module.__dict__ for module in model)
    assert model[0](torch.tensor([-1.0])).item() == -0.5


# --- torch.fx, and what holds no rule ---------------------------------------------------------------------------------

TRACES: dict[str, Callable[[nn.Module], nn.Module]] = {
    "twice": lambda model: fx.symbolic_trace(fx.symbolic_trace(model)),
    "copied": lambda model: copy.deepcopy(fx.symbolic_trace(model)),
    "pickled": lambda model: pickle.loads(pickle.dumps(fx.symbolic_trace(model))),
    "transformed": lambda model: fx.Transformer(fx.symbolic_trace(model)).transform(),
}


@folded
@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("how", TRACES)
def test_fx_keeps_the_rule(how: str, inplace: bool) -> None:
    act = nn.ReLU(inplace=inplace)
    passing = nn.Threshold(-100, 0)  # so that torch allows the next to be in place
    body = nn.Sequential(nn.Hardtanh(-0.5, 2.0, inplace=inplace), act)
    model = nn.Sequential(act, passing, body, passing, nn.ReLU6(inplace=inplace), passing, nn.Hardsigmoid())
    done = convert(model, "inward")
    expected = gradient(model)
    traced = TRACES[how](model)
    assert torch.equal(traced(torch.tensor(X)), model(torch.tensor(X)))
    assert torch.equal(gradient(traced), expected)
    assert sum(type(module).__name__.endswith("WithRule") for module in traced.modules()) == 4
    assert sum(node.op == "call_module" for node in traced.graph.nodes) == 8
    assert list(traced.state_dict()) == list(model.state_dict())
    done.undo()
    stock = gradient(model)
    assert not torch.equal(stock, expected)
    assert torch.equal(gradient(traced), expected)
    assert torch.equal(gradient(TRACES[how](model)), stock)


def test_fx_runs_hooks_when_the_graph_runs_and_once() -> None:
    model, calls = nn.Sequential(nn.ReLU()), []
    model[0].register_forward_pre_hook(lambda module, inputs: (inputs[0] + 1,))
    model[0].register_forward_hook(lambda module, inputs, output: calls.append(type(output)) or output * 2)
    model[0].register_full_backward_hook(lambda module, *grads: calls.append("backward"))
    convert(model, "identity")
    expected = gradient(model)
    traced = fx.symbolic_trace(model)
    calls.clear()
    assert torch.equal(gradient(traced), expected)
    assert calls == [Tensor, "backward"]


def test_torchscript_and_export_hold_no_rule_and_say_so() -> None:
    model, x = nn.Sequential(nn.Linear(9, 9), nn.ReLU()), torch.tensor(X)
    convert(model, "identity")
    with pytest.raises(NotImplementedError, match=r"^ReLU with a rule: torch.jit.script must not be used"):
        torch.jit.script(model)
    with pytest.warns(UserWarning, match=r"convert: torch.jit.trace keeps the values and drops the rule\. Trace"):
        traced = torch.jit.trace(model, x)
    assert torch.equal(traced(x), model(x))
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("error", message="convert")
        torch.jit.trace(model, x)
    with pytest.warns(UserWarning, match=r"torch.relu/identity: torch.export keeps the values and drops the rule"):
        exported = torch.export.export(model, (x,))
    assert torch.equal(exported.module()(x), model(x))


def test_forward_mode_has_torchs_tangent_and_warns() -> None:
    model = nn.Sequential(nn.ReLU())
    x, tangent = torch.tensor(X), torch.ones(9)
    with convert(model, "inward"):
        with pytest.warns(UserWarning, match=r"convert: ReLU has torch's own gradient here: rule inward reads the"):
            y_tangent = torch.func.jvp(model, (x,), (tangent,))[1]
        assert torch.equal(y_tangent, (x > 0).float())
    with convert(model, "identity"):
        assert torch.equal(torch.func.jvp(model, (x,), (tangent,))[1], tangent)
