"""`pseudograd upgrade --routes cpu,cuda`: both devices train on the CPU's random numbers. Some tests need a device."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from pseudograd_upgrade.routes import drawing, question

from ..choices import folded
from ..commands import answer

needs_a_device = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

X = torch.linspace(0.1, 0.9, 12).view(3, 4)
DRAWS: dict[str, tuple[object, ...]] = {
    "uniform_": (X, -1.0, 2.0),
    "normal_": (X, 1.0, 2.0),
    "exponential_": (X, 2.0),
    "geometric_": (X, 0.3),
    "cauchy_": (X,),
    "log_normal_": (X,),
    "random_": (X,),
    "random_.from": (X, 3, 9),
    "random_.to": (X, 9),
    "bernoulli_.float": (X, 0.3),
    "bernoulli_.Tensor": (torch.zeros(3, 4), X),
    "native_dropout": (X, 0.3, True),
    "normal.Tensor_Tensor": (X, X),
    "normal.Tensor_float": (X, 2.0),
    "normal.float_Tensor": (1.0, X),
    "multinomial": (X, 3),
    "poisson": (X * 10,),
    "binomial": (X * 10, X),
    "_standard_gamma": (X,),
    "_sample_dirichlet": (X,),
    "rrelu_with_noise": (-X, X.clone(), 0.1, 0.3, True),
    "rrelu_with_noise_": (-X, X.clone(), 0.1, 0.3, True),
}
OUT: dict[str, tuple[tuple[object, ...], tuple[int, ...]]] = {
    "randperm.generator_out": ((12,), (12,)),
    "bernoulli.out": ((X,), (3, 4)),
    "normal.Tensor_Tensor_out": ((X, X), (3, 4)),
    "normal.Tensor_float_out": ((X, 2.0), (3, 4)),
    "normal.float_Tensor_out": ((1.0, X), (3, 4)),
    "multinomial.out": ((X, 3), (3, 3)),
}


def draw(function: Any, *args: object, **kwargs: object) -> tuple[list[Tensor], Tensor]:
    """The result for copies of the arguments, and the next numbers of the generator."""
    torch.manual_seed(3)
    result = function(*(value.clone() if isinstance(value, Tensor) else value for value in args), **kwargs)
    return [result] if isinstance(result, Tensor) else list(result), torch.rand(3)


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """A move to the CPU makes another tensor, as from a device."""
    monkeypatch.setattr(drawing, "_move_to_cpu", lambda value: value.clone() if isinstance(value, Tensor) else value)


def test_every_operator_is_tried_here() -> None:
    assert {*DRAWS, *OUT} == set(drawing.OPERATORS)


@folded
@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("name", DRAWS)
def test_the_numbers_are_those_of_the_cpu(name: str) -> None:
    operator = drawing.find_operator(name)
    (values, after), (expected, after_it) = (draw(f, *DRAWS[name]) for f in (drawing.draw_on_cpu(operator), operator))
    assert all(map(torch.equal, values, expected))
    assert torch.equal(after, after_it)


@folded
@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("name", OUT)
def test_an_operator_writes_into_its_argument(name: str) -> None:
    operator, (args, shape) = drawing.find_operator(name), OUT[name]
    more = {"generator": None} if name.startswith("randperm") else {}
    dtype = torch.long if name.startswith(("randperm", "multinomial")) else torch.float32
    (expected,), _ = draw(operator, *args, **more, out=torch.zeros(shape, dtype=dtype))
    for size in (shape, (0,)) if name.startswith("randperm") else (shape,):
        out = torch.zeros(size, dtype=dtype)
        (value,), _ = draw(drawing.draw_on_cpu(operator), *args, **more, out=out)
        assert value is out
        assert torch.equal(value, expected)
    x = torch.zeros(3)
    assert drawing.draw_on_cpu(torch.ops.aten.normal_.default)(x) is x
    assert x.any()


class DeviceGenerator:
    """In place of a generator of a device."""

    def __init__(self, number: int) -> None:
        self.number = number

    def initial_seed(self) -> int:
        return self.number


def test_a_generator_of_a_device_has_a_twin_from_the_same_seed() -> None:
    generator: Any = DeviceGenerator(7)
    expected = torch.rand(4, generator=torch.Generator().manual_seed(7))
    assert torch.equal(torch.rand(4, generator=drawing.find_twin(generator)), expected)
    drawing.find_twin(generator).manual_seed(8)
    assert drawing.find_twin(generator).initial_seed() == 8  # the same twin
    own = torch.Generator()
    assert drawing._move_to_cpu(own) is own
    generator.number = 9
    assert drawing.find_twin(generator).initial_seed() == 9  # another seed, another twin


def backends(function: object, *args: object, **kwargs: object) -> tuple[bool, bool]:
    """Are the fused kernels of attention, and cuDNN, allowed in the context?"""
    with drawing.unfuse(function, args, kwargs):
        return torch.backends.cuda.flash_sdp_enabled(), torch.backends.cudnn.enabled


def test_dropout_inside_a_fused_kernel_is_computed_in_parts() -> None:
    q = torch.zeros(1, 1, 2, 4)
    assert backends(functional.scaled_dot_product_attention, q, q, q) == (True, True)
    assert backends(functional.scaled_dot_product_attention, q, q, q, dropout_p=0.0) == (True, True)
    assert backends(functional.scaled_dot_product_attention, q, q, q, dropout_p=0.1) == (False, True)
    assert backends(functional.scaled_dot_product_attention, q, q, q, None, 0.1) == (False, True)
    for dropout in (0.0, 0.2):
        assert backends(torch.lstm, q, (q, q), [q], True, 2, dropout, True, False, False) == (True, not dropout)
        assert backends(torch.gru, q, q, q, [q], True, 2, dropout, True, False) == (True, not dropout)
    assert backends(functional.dropout, q, 0.1) == (True, True)
    layer, drops = nn.MultiheadAttention(4, 1), []
    for dropout in (0.0, 0.3):  # as the module calls it, and with all of it by position
        arguments = (q[0], q[0], q[0], 4, 1, layer.in_proj_weight, layer.in_proj_bias, None, None, False)
        drops.append(
            backends(functional.multi_head_attention_forward, *arguments, dropout, layer.out_proj.weight, None)
        )
        drops.append(backends(functional.multi_head_attention_forward, *arguments, dropout_p=dropout))
    assert drops == [(True, True)] * 2 + [(False, True)] * 2


# --- a program that plays a device: it reads on which route it runs ---------------------------------------------------

PLAYED = """
import os, torch
is_there = os.environ.get("CUDA_VISIBLE_DEVICES") != "-1"
rounds = is_there and os.environ.get("NVIDIA_TF32_OVERRIDE") != "0"
w = torch.nn.Parameter(torch.linspace(-1, 1, 6))
for step in range(3):
    y = w * torch.rand(6)
    CHANGE
    loss = y.square().sum()
    w.grad = None
    loss.backward()
    with torch.no_grad():
        w -= 0.1 * w.grad
"""
TIES = "pseudograd kinks --check --device cuda"


@pytest.mark.parametrize(
    ("change", "status", "texts", "has_ties"),
    [
        pytest.param("y = y * (1.0005 if rounds else 1.0)", 0, [": nothing differs; 2 runs, 3 backward"], False, id="nothing"),
        pytest.param(
            "m = torch.empty(6, dtype=torch.bool); m[:] = not is_there; y = torch.where(m, y, y.detach())", 1,
            [": another op; ", "train.py:12  step 1, backward of Where"], True, id="a gradient", marks=pytest.mark.program,
        ),
    ],
)  # fmt: skip
def test_a_difference_between_devices_is_named(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    change: str,
    status: int,
    texts: list[str],
    has_ties: bool,
) -> None:
    monkeypatch.setattr(question, "has_cuda", lambda interpreter: True)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    answer = ask(capfd, PLAYED.replace("CHANGE", change))
    assert answer[0] == status
    assert all(text in answer[1] for text in texts), answer[1]
    assert (TIES in answer[1]) == has_ties


HEAD = """
import torch
from torch import nn
device = "cuda" if torch.cuda.is_available() else "cpu"
"""
TRAINING = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(8, 32, 3, dropout=0.3, batch_first=True)
        self.encoder = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.2, batch_first=True)
        self.drop = nn.Sequential(nn.Dropout(0.3), nn.RReLU())
    def forward(self, x):
        return self.encoder(self.drop(self.lstm(x)[0]))
net = Net().to(device)
optimiser = torch.optim.Adam(net.parameters(), 1e-3)
for _ in range(4):
    y = net(torch.randn(8, 5, 8, device=device))
    loss = (y - torch.rand_like(y) * torch.bernoulli(torch.full_like(y, 0.5))).square().mean()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
"""


def ask(capfd: pytest.CaptureFixture[str], program: str) -> tuple[int, str]:
    Path("train.py").write_text(HEAD + program, encoding="utf-8")
    status, out, err = answer(capfd, "upgrade", "--routes", "cpu,cuda", "train.py")
    assert status in (0, 1), out + err
    assert ("put nothing on a device" in out) == (program != TRAINING)
    return status, out


@needs_a_device
def test_the_same_training_differs_by_rounding(capfd: pytest.CaptureFixture[str]) -> None:
    status, out = ask(capfd, TRAINING)
    assert status == 0
    assert ": rounding only; " in out
    assert "TensorFloat-32 is off in the run on cuda" in out
