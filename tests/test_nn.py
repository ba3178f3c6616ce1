"""pseudograd.nn: values and gradients against the ops, what is kept and printed, and the two methods that learn a bound or a scale."""

import copy
import inspect
import io
import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, stack_module_state, vmap
from torch.nn import Linear, Module, Parameter, Sequential

import pseudograd as pg
from pseudograd import nn, rules

from .choices import folded

X = torch.tensor([[-9.0, -1.0, -0.5], [0.0, 0.3, 0.5], [1.0, 1.7, 6.5]])
WEIGHTS = torch.tensor([[1.0, -2.0, 0.5], [-1.0, 4.0, -0.25], [3.0, -1.0, -2.0]])
BOUND = torch.tensor([-0.5, 0.25, 1.0])


def slope_of_softsign(x: Tensor) -> Tensor:
    return (1 + x.abs()) ** -2


# A module, which is the call of its op with the same arguments behind x, and how it prints.
CASES = """\
Clamp(-1, 1)  ->  Clamp(min=-1, max=1, rule='inward', edge='closed')
Clamp(max=1.0, rule=rules.leaky(0.01), edge="half", maximize=True)  ->  Clamp(max=1.0, rule=leaky(slope=0.01), edge='half', maximize=True)
Clamp(BOUND, 1.0, rule="sign", maximize=True)  ->  Clamp(min=Tensor of shape (3,), max=1.0, rule='sign', edge='closed', maximize=True)
LowerBound(BOUND, edge="inward")  ->  LowerBound(bound=Tensor of shape (3,), rule='inward', edge='inward')
UpperBound(0.5, rule="zero")  ->  UpperBound(bound=0.5, rule='zero', edge='closed')
ReLU()  ->  ReLU(rule='zero', edge='open')
ReLU6(rule="inward")  ->  ReLU6(rule='inward', edge='open')
Hardtanh(0, 0.5, edge="closed")  ->  Hardtanh(min_val=0, max_val=0.5, rule='zero', edge='closed')
Round(decimals=1)  ->  Round(decimals=1, rule='identity')
Floor()  ->  Floor(rule='identity')
Ceil(rule="zero")  ->  Ceil(rule='zero')
Trunc()  ->  Trunc(rule='identity')
Sign(at_zero=1, rule=rules.custom(slope_of_softsign))  ->  Sign(at_zero=1, rule=custom(slope=HERE.slope_of_softsign))
Heaviside(rule="arctan")  ->  Heaviside(at_zero=1.0, rule='arctan')
JumpReLU(BOUND, bandwidth=2.0, window_to_x=True)  ->  JumpReLU(threshold=Tensor of shape (3,), bandwidth=2.0, window_to_x=True, rule='window')
Abs(edge=-1)  ->  Abs(edge=-1)
ScaleGrad(0.25)  ->  ScaleGrad(scale=0.25)
ReverseGrad(2)  ->  ReverseGrad(scale=2)
ClipGrad(0.5)  ->  ClipGrad(limit=0.5)
FakeQuantize(0.5, 1, -4, 3)  ->  FakeQuantize(scale=0.5, zero_point=1, quant_min=-4, quant_max=3, rule='zero', edge='closed')
FakeQuantize(BOUND.exp(), axis=0)  ->  FakeQuantize(scale=Tensor of shape (3,), zero_point=0, quant_min=-128, quant_max=127, axis=0, rule='zero', edge='closed')
""".splitlines()  # noqa: E501


def gradient(f: Callable[[Tensor], Tensor], x: Tensor = X) -> Tensor:
    leaf = x.clone().requires_grad_()
    f(leaf).backward(WEIGHTS.to(x.dtype))
    return leaf.grad


def op_of(name: str) -> Callable[..., Any]:
    """The op of a module."""
    (op,) = (op for op in pg.ops.__all__ if op.replace("_", "") == name.lower() and op[-1] != "_")
    return getattr(pg.ops, op)


@folded
@pytest.mark.parametrize("line", CASES)
def test_a_module_is_its_op_with_the_options_fixed(line: str) -> None:
    """So are its copies, which share no tensor with it."""
    call, _, text = line.replace("HERE", __name__).partition("  ->  ")
    name, _, arguments = call.partition("(")
    module, scope = eval(f"nn.{call}"), {**globals(), "op": op_of(name)}

    def op(x: Tensor) -> Tensor:
        return eval(f"op(x, {arguments}", scope, {"x": x})

    assert torch.equal(module(X), op(X))
    assert torch.equal(gradient(module), gradient(op))
    assert str(module) == text
    assert torch.equal(gradient(module.eval()), gradient(op))  # nothing differs between train and eval
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(gradient(twin), gradient(op))
        assert str(twin) == text
        for own, other in zip(module.state_dict().values(), twin.state_dict().values(), strict=True):
            assert torch.equal(own, other)
            assert own.data_ptr() != other.data_ptr()


@folded
# VectorQuantize makes its codebook itself.
@pytest.mark.parametrize("name", [name for name in nn.__all__ if name != "VectorQuantize"])
def test_options_are_those_of_the_op(name: str) -> None:
    of_op = dict(inspect.signature(op_of(name)).parameters)
    of_op.pop("x")
    of_module = dict(inspect.signature(getattr(nn, name)).parameters)
    scaling = of_module.pop("use_grad_scaling", None)
    assert scaling is None or scaling.default is False
    assert [(p.name, p.default, p.kind) for p in of_module.values()] == [
        (p.name, p.default, p.kind) for p in of_op.values()
    ]


def test_docstrings_have_their_parts_in_order() -> None:
    for name in nn.__all__:
        text = inspect.getdoc(getattr(nn, name)) or ""
        parts = re.findall(r"^(Args|Shape|Example|Source):", text, re.MULTILINE)
        assert parts == ["Args", "Shape", "Example", "Source"], name
        arguments = text[text.index("Args:") : text.index("Shape:")]
        assert all(re.search(rf"\b{p}\b", arguments) for p in inspect.signature(getattr(nn, name)).parameters), name
    assert nn.__all__ == sorted(nn.__all__, key=lambda name: (not name.isupper(), name))
    assert set(nn.__all__) == {
        key for key, v in vars(nn).items() if inspect.isclass(v) and v.__module__ == nn.__name__
    } - {"_Layer"}


def test_numbers_are_attributes_tensors_are_buffers_parameters_are_learned() -> None:
    module = nn.Clamp(BOUND, Parameter(torch.tensor([2.0, 3.0, 4.0])))
    assert dict(module.named_buffers()).keys() == {"min"}
    assert dict(module.named_parameters()).keys() == {"max"}
    assert nn.Clamp(-1, 1).state_dict() == {}
    assert str(module) == ("Clamp(min=Tensor of shape (3,), max=Parameter of shape (3,), rule='inward', edge='closed')")
    leaf = X.clone().requires_grad_()
    module(leaf).backward(WEIGHTS)
    assert torch.equal(module.max.grad, torch.tensor([0.0, 0.0, -2.0]))  # only 6.5 lies above its bound


def test_state_dict_round_trip() -> None:
    def model(fill: float) -> Sequential:
        torch.manual_seed(int(fill))
        return Sequential(
            nn.Clamp(torch.full((3,), -fill), Parameter(torch.full((3,), fill))),
            nn.FakeQuantize(Parameter(torch.tensor(fill / 8)), quant_min=-4, quant_max=3),
            nn.Round(),
            nn.VectorQuantize(4, 3),
        )

    source, target = model(1.0), model(2.0)
    assert list(source.state_dict()) == ["0.max", "0.min", "1.scale", "3.codebook"]
    saved = io.BytesIO()
    torch.save(source.state_dict(), saved)
    saved.seek(0)
    assert not torch.equal(source(X)[0], target(X)[0])
    target.load_state_dict(torch.load(saved, weights_only=True), strict=True)
    assert torch.equal(source(X)[0], target(X)[0])
    with pytest.raises(RuntimeError, match=r"Unexpected key\(s\) in state_dict: \"max\""):
        nn.Clamp(-1, 1).load_state_dict({"max": torch.tensor(1.0)}, strict=True)


class Net(Module):
    """Several modules in one model; every number is exact in float32, whatever the order of sums."""

    def __init__(self, start: float = 1.0) -> None:
        super().__init__()
        self.linear = Linear(3, 3, bias=False)
        self.linear.weight.data = (torch.eye(3) + 0.25) * start
        self.layers = Sequential(
            nn.ScaleGrad(0.5),
            nn.Clamp(-4.0, Parameter(torch.tensor([1.0, 2.0, 4.0]) * start), rule="zero", edge="half"),
            nn.FakeQuantize(Parameter(torch.tensor(0.5)), quant_min=-3, quant_max=3),
            nn.Heaviside(rule=rules.window(2.0, 0.5)),
            nn.ReverseGrad(),
            nn.Abs(edge=1),
            nn.Round(),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(self.linear(x))


def gradients(model: Module, call: Callable[[Tensor], Tensor], x: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    (call(x) * WEIGHTS).sum().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.program
def test_a_compiled_model_has_the_same_gradients() -> None:
    model, x = Net(), (X * 4).round() / 4
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=True)
    plain = gradients(model, model, x)
    assert plain.keys() == {"linear.weight", "layers.1.max", "layers.2.scale"}
    assert all(grad.abs().sum() > 0 for grad in plain.values())
    for name, grad in gradients(model, compiled, x).items():
        assert torch.equal(grad, plain[name]), name


@pytest.mark.program
def test_a_learned_scale_with_scaling_compiles_for_any_size() -> None:
    model = nn.FakeQuantize.from_tensor(X, bits=4, axis=0)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=True)
    plain = gradients(model, model, X)["scale"]
    assert torch.allclose(gradients(model, compiled, X)["scale"], plain, rtol=1e-6)


def test_vmap_over_stacked_modules_equals_one_after_the_other() -> None:
    x, models = (X * 4).round() / 4, [Net(1.0), Net(2.0)]
    parameters, buffers = stack_module_state(models)

    def loss(parameters: Any, buffers: Any, x: Tensor) -> Tensor:
        return (functional_call(models[0], (parameters, buffers), (x,)) * WEIGHTS).sum()

    grads = vmap(torch.func.grad(loss), in_dims=(0, 0, None))(parameters, buffers, x)
    for position, model in enumerate(models):
        for name, grad in gradients(model, model, x).items():
            assert torch.equal(grads[name][position], grad), name


def test_script_raises_our_error_inside_a_model_too() -> None:
    for model, name in ((nn.ReLU(), "ReLU"), (Sequential(Linear(3, 3), nn.Clamp(0, 1)), "Clamp")):
        with pytest.raises(
            NotImplementedError, match=f"^{name}: torch.jit.script must not be used, .* Use torch.compile"
        ):
            torch.jit.script(model)


def test_lsq_starts_and_scales_its_gradient_as_the_paper_says() -> None:
    """Esser et al. (2020), section 2: s0 = 2 mean|v| / sqrt(Q_P), g = 1 / sqrt(N Q_P)."""
    layer = nn.FakeQuantize.from_tensor(X, bits=3)
    assert (layer.quant_min, layer.quant_max, nn.FakeQuantize.from_tensor(X).quant_max) == (-4, 3, 127)
    scale = 2 * sum(abs(v) for v in X.flatten().tolist()) / 9 / 3**0.5
    assert layer.scale.item() == pytest.approx(scale, rel=1e-6)
    layer(X).backward(WEIGHTS)
    expected = 0.0
    for v, weight in zip(X.flatten().tolist(), WEIGHTS.flatten().tolist(), strict=True):
        code = round(v / scale)
        expected += weight * (-4 if code < -4 else 3 if code > 3 else code - v / scale)
    assert layer.scale.grad.item() == pytest.approx(expected / (9 * 3) ** 0.5, rel=1e-4)
    unscaled = nn.FakeQuantize.from_tensor(X, bits=3, use_grad_scaling=False)
    unscaled(X).backward(WEIGHTS)
    assert unscaled.scale.grad.item() == pytest.approx(expected, rel=1e-4)


def test_one_scale_per_channel_and_unsigned() -> None:
    assert nn.FakeQuantize.from_tensor(X, bits=1, signed=False).quant_max == 1
    layer = nn.FakeQuantize.from_tensor(X, bits=2, signed=False, axis=-1)
    assert (layer.quant_min, layer.quant_max) == (0, 3)
    assert torch.allclose(layer.scale, 2 * X.abs().mean(dim=0) / 3**0.5)
    layer(X).backward(WEIGHTS)
    other = layer.scale.detach().clone().requires_grad_()
    pg.fake_quantize(X, other, 0, 0, 3, axis=-1).backward(WEIGHTS)
    assert torch.allclose(layer.scale.grad, other.grad * 27**-0.5)


@folded
@pytest.mark.parametrize("axis", range(-4, 4))
@pytest.mark.parametrize("learns_a_zero_point", [False, True])
def test_options_are_checked_along_any_axis(axis: int, learns_a_zero_point: bool) -> None:
    x = torch.linspace(-2, 2, 81).reshape(3, 3, 3, 3)
    zero_point = Parameter(torch.tensor([0.0, 1.0, -1.0])) if learns_a_zero_point else 0
    layer = nn.FakeQuantize(BOUND.exp(), zero_point, quant_min=-2, quant_max=1, axis=axis)
    for channel in range(3):
        own = zero_point[channel] if learns_a_zero_point else 0
        alone = pg.fake_quantize(x.select(axis, channel), BOUND.exp()[channel], own, -2, 1)
        assert torch.equal(layer(x).select(axis, channel), alone)
    with pytest.raises(TypeError, match="fake_quantize: axis must be an integer, got '1'"):
        nn.FakeQuantize(BOUND.exp(), axis="1")


def test_use_grad_scaling_reaches_a_learned_zero_point_as_in_torch() -> None:
    grads = []
    for scaled in (False, True):
        zero_point = Parameter(torch.tensor(1.0))
        nn.FakeQuantize(0.5, zero_point, -4, 3, use_grad_scaling=scaled)(X).backward(WEIGHTS)
        grads.append(zero_point.grad.item())
    assert grads[0] != 0
    assert grads[1] == pytest.approx(grads[0] * 27**-0.5)


@pytest.mark.parametrize("rule", ["identity", "rotation"])
def test_vector_quantize_owns_a_codebook_that_the_codebook_loss_teaches(rule: str) -> None:
    layer = nn.VectorQuantize(4, 3, rule=rule)
    assert str(layer) == f"VectorQuantize(codebook=Parameter of shape (4, 3), rule={rule!r})"
    assert layer.codebook.abs().max() <= 0.25
    assert nn.VectorQuantize(1, 1, rule=rule).codebook.shape == (1, 1)
    layer.codebook.data = torch.tensor([[-9.0, -1.0, 0.0], [0.0, 0.0, 0.0], [1.0, 1.0, 6.0], [50.0, 50.0, 50.0]])
    leaf = X.clone().requires_grad_()
    codes, indices = layer(leaf)
    assert indices.tolist() == [0, 1, 2]
    assert torch.equal(codes, layer.codebook[:3])
    codes.backward(WEIGHTS)
    other = X.clone().requires_grad_()
    pg.codebook.vector_quantize(other, layer.codebook, rule=rule)[0].backward(WEIGHTS)
    assert torch.equal(leaf.grad, other.grad)
    assert layer.codebook.grad is None
    pg.codebook.codebook_loss(X, layer.codebook, indices).backward()
    expected = torch.zeros(4, 3)
    expected[:3] = 2 * (layer.codebook.detach()[:3] - X) / 9
    assert torch.allclose(layer.codebook.grad, expected)
