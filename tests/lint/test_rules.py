"""Each rule speaks in its example and is silent in the mended one; names, definitions and comments are followed as Python does."""

from pathlib import Path

import pytest
import torch

from pseudograd_lint import rules
from pseudograd_lint.calls import _SINGULAR
from pseudograd_lint.check import check, parse
from pseudograd_lint.rules import CODES, RULES
from pseudograd_notices.notice import Notice

from ..choices import folded

ALL = [rule.number for rule in RULES]
HEAD = "import math  # the loss\nimport torch\nimport torch as th\nfrom torch import nn\nfrom torch.nn import functional as F\n"


def check_text(text: str) -> list[Notice]:
    text = HEAD + text
    return check(parse(text), text.split("\n"), "x.py", ALL)


def codes(text: str) -> list[str]:
    return [notice.code for notice in check_text(text)]


def test_numbers_and_names_are_given_once() -> None:
    assert [code.number for code in CODES] == ALL
    assert len(set(ALL)) == len({code.name for code in CODES}) == len(RULES)
    page = " ".join(Path(rules.__file__).with_name("codes.md").read_text(encoding="utf-8").split())
    for code in CODES:
        assert f"# {code.number} {code.name} {code.meaning[0].upper()}{code.meaning[1:]}" in page


def module(init: str, forward: str, arguments: str = "") -> str:
    return (
        f"class M(nn.Module):\n    def __init__(self{arguments}):\n        {init}\n"
        f"    def forward(self, x):\n        return {forward}\n"
    )


BORN = {
    "zeros": ("self.p = nn.Parameter(torch.zeros(3))", "x * self.p.clamp(0, 1)"),
    "alias": ("self.p = nn.Parameter(th.ones(3))", "th.clamp(self.p, 0, 1)"),
    "full": ("self.p = nn.Parameter(torch.full((3,), fill_value=2.0))", "torch.clamp_max(self.p, 2)"),
    "empty and filled": ("self.p = nn.Parameter(torch.empty(3)); nn.init.constant_(self.p, 0.5)", "self.p.clamp(min=0.5)"),
    "pi": ("self.p = nn.Parameter(torch.full((3,), 2 * math.pi))", "self.p[None].clamp(max=2 * math.pi)"),
    "float32": ("self.p = nn.Parameter(torch.tensor([0.1, 0.3]))", "self.p.view(1, -1).clamp(0.1, 1)"),
    "relu": ("self.p = nn.Parameter(torch.zeros(3))", "F.relu(self.p) * x"),
    "registered": ("self.register_parameter('p', nn.Parameter(torch.zeros(3)))", "self.p.clamp(0, 1)"),
    "new": ("self.p = nn.Parameter(start.new_zeros(3))", "self.p.clamp(0, 1)"),
    "through a name": ("start = torch.zeros(3); self.p = nn.Parameter(start)", "self.p.clamp(0, 1)"),
}  # fmt: skip
NOT_BORN = {
    "inside": ("self.p = nn.Parameter(torch.full((3,), 0.5))", "self.p.clamp(0, 1)"),
    "set under an alias": (
        "P = nn.Parameter; self.p = P(torch.zeros(3)); nn.init.uniform_(self.p)",
        "self.p.clamp(0, 1)",
    ),
    "set again": ("self.p = nn.Parameter(torch.zeros(3)); nn.init.uniform_(self.p)", "self.p.clamp(0, 1)"),
    "set by data": ("self.p = nn.Parameter(torch.zeros(3)); self.p.data.normal_()", "self.p.clamp(0, 1)"),
    "detached": ("self.p = nn.Parameter(torch.zeros(3))", "self.p.detach().clamp(0, 1)"),
    "afterwards": ("self.p = nn.Parameter(torch.zeros(3))", "self.p.clamp(0, 1).detach()"),
    "data in place": ("self.p = nn.Parameter(torch.zeros(3))", "self.p.data.clamp_(0, 1)"),
    "frozen": ("self.p = nn.Parameter(torch.zeros(3), requires_grad=False)", "self.p.clamp(0, 1)"),
    "a buffer": ("self.register_buffer('p', torch.zeros(3))", "self.p.clamp(0, 1)"),
    "unknown": ("self.p = nn.Parameter(start)", "self.p.clamp(0, 1)"),
    "an unknown method": ("self.p = nn.Parameter(start.zeros(3))", "self.p.clamp(0, 1)"),
    "another library": ("import numpy as np; self.p = nn.Parameter(np.zeros(3))", "self.p.clamp(0, 1)"),
    "shifted": ("self.p = nn.Parameter(torch.zeros(3))", "(self.p + x).clamp(0, 1)"),
}


@folded
@pytest.mark.parametrize(("table", "name"), [(table, name) for table in (BORN, NOT_BORN) for name in table])
def test_a_parameter_on_its_bound_is_found_and_none_that_starts_elsewhere(
    table: dict[str, tuple[str, str]], name: str
) -> None:
    assert ("PG101" in codes(module(*table[name]))) == (table is BORN)


@pytest.mark.parametrize(
    ("start", "is_leaf"),
    [("torch.zeros(3, requires_grad=True)", True), ("torch.zeros(3).requires_grad_()", True),
     ("torch.zeros(3, requires_grad=False)", False)],
)  # fmt: skip
def test_a_leaf_on_its_bound_is_found(start: str, is_leaf: bool) -> None:
    notices = check_text(f"p = {start}\nloss = p.clamp(0, 1).sum()\n")
    assert [notice.message[:27] for notice in notices if notice.code == "PG101"] == [
        "this leaf starts at 0 (line"
    ] * is_leaf


def test_what_a_flag_that_is_off_by_default_sets_does_not_count() -> None:
    init = "self.p = nn.Parameter(torch.zeros(3))\n        if spread:\n            self.p.uniform_(-6, 0)"
    assert codes(module(init, "self.p.clamp(-6, 0)", ", spread=False")) == ["PG101"]
    assert "PG101" not in codes(module(init, "self.p.clamp(-6, 0)", ", spread=True"))


FREEZE = (
    "self.p.requires_grad = False",
    "self.p.requires_grad_(False)",
    "for q in self.parameters(): q.requires_grad = False",
    "self.eval().requires_grad_(False)",
)


@pytest.mark.parametrize("clamp", ["self.p.clamp(0, 1)", "F.relu(self.p)"])
def test_a_clamped_parameter_is_told_unless_it_does_not_learn(clamp: str) -> None:
    """Also in a method that is called `update`; a flag of `__init__` may be on."""
    text = module("self.p = nn.Parameter(0.5 * torch.ones(3), requires_grad=learn)", clamp, ", learn=True")
    for variant in (text, text.replace("forward", "update")):
        assert codes(variant) == ["PG151"]
    frozen = [text.replace("\n    def forward", f"\n        {line}\n    def forward") for line in FREEZE]
    stored = [text.replace(clamp, part) for part in (f"nn.Parameter({clamp})", f"{clamp}.detach()")]
    stored.append(text.replace("return ", "self.p.data = "))
    for variant in (text.replace("=learn)", "=False)"), text.replace("learn=True", "learn=False"), *frozen, *stored):
        assert codes(variant) == [], variant


def test_the_message_says_what_is_so() -> None:
    (notice,) = check_text(module("self.p = nn.Parameter(torch.zeros(3))", "x * self.p.clamp(0, 1)"))
    assert notice.message == (
        "self.p starts at 0 (line 8), exactly on a bound of this clamp: torch >= 2.14 passes it no gradient there; "
        "torch <= 2.13 passes all of it"
    )
    assert (notice.line, notice.column, notice.expression) == (10, 20, "self.p.clamp(0, 1)")
    (notice,) = check_text("def f(x, y):\n    return F.binary_cross_entropy(x.clamp(1e-8, 1 - 1e-8), y)\n")
    assert "is 1 in float32, where the log in binary_cross_entropy has" in notice.message


GUARDS = [
    "x.clamp(min=0).sqrt()", "torch.sqrt(torch.clamp(x, 0))", "torch.acos(x.clamp(-1, 1))", "th.clip(x, 0, 1).log()", "x.clamp_min(0) ** 0.5",  # noqa: E501
    "torch.log(1 - x.clamp(0, 1))", "torch.pow(x.clamp(min=0), 0.5)", "x.clamp(min=0).reciprocal()", "torch.sqrt(2 * x.clamp(min=0.0)[0])",
    "x.clamp(min=options.get('eps', 0)).sqrt()",
    "torch.Tensor.clamp(x, min=0).sqrt()", "torch.log1p(x.clamp(min=-1))", "torch.sqrt(input=x.clamp(min=0))",
    "torch.log(x.clamp(min=-1) + 1)", "torch.log(x.clamp(min=1) - 1)", "torch.log1p(-x.clamp(max=1))", "torch.acos(2 * x.clamp(max=0.5))",
    "(x.clamp(max=2) / 2).acos()", "torch.logit(x.clamp(0.5, 1))",
]  # fmt: skip
NO_GUARDS = [
    "x.clamp(min=1e-12).sqrt()", "F.relu(x).sqrt()", "x.clamp(min=0).exp()", "x.clamp(min=0).sqrt().sum().item()", "x if x.clamp(min=0).sqrt() else 1",  # noqa: E501
    "(x.clamp(min=0) + 1e-6).sqrt()", "torch.arange(3).clamp(min=0).sqrt()", "x.detach().clamp(min=0).sqrt()", "math.sqrt(max(0, 1))",
    "x.clamp(min=0).sum().sqrt()", "x.clamp(min=0) ** 2", "x.clamp(0, 1).acos() > 1", "1 / x.clamp(min=0)", "x.clamp_min_(0).sqrt_()",
    "torch.log(x.clamp(min=1) + 1)", "(2 / x.clamp(max=2)).acos()", "(0 * x.clamp(min=0)).sqrt()", "x.clamp(0, 1).logit(1e-6)",
    "x.clamp(min=0) ** 1.5",
]  # fmt: skip


@folded
@pytest.mark.parametrize("expression", [*GUARDS, *NO_GUARDS])
def test_a_guard_at_the_singular_point_is_found_and_none_that_guards(expression: str) -> None:
    assert ("PG111" in codes(f"def f(x):\n    return {expression}\n")) == (expression in GUARDS)


FLOWS = {
    "y = x.clamp(min=0)\n    return y.sqrt()": True,
    "x = x.clamp(min=0)\n    return torch.sqrt(x)": True,
    "x.clamp_(min=0)\n    return torch.sqrt(x)": True,
    "x = x.clamp(min=0)\n    x = x + 1\n    return torch.sqrt(x)": False,
    "x = x.clamp(min=0)\n    x += 1\n    return torch.sqrt(x)": False,
    "x = x.clamp(min=0)\n    if x.sum():\n        x = x + 1\n    return torch.sqrt(x)": False,
    "if g:\n        return x\n    x = x.clamp(min=0)\n    return torch.sqrt(x)": True,
    "x = x.clamp(min=0)\n    if g:\n        x = x + 1\n        return x\n    return torch.sqrt(x)": True,
    "x = x.clamp(min=0)\n    for _ in g:\n        x = torch.sqrt(x) + 1\n    return x": False,
    "x = x.clamp(min=0)\n    x[0] = 1\n    return torch.sqrt(x)": False,
    "y: torch.Tensor = x.clamp(min=0)\n    return y.sqrt()": True,
    "x = x.clamp(min=0)\n    x: torch.Tensor\n    return torch.sqrt(x)": True,
    "x = x.clamp(min=0)\n    x: torch.Tensor = x + 1\n    return torch.sqrt(x)": False,
    "low = 0\n    return x.clamp(min=low).sqrt()": True,
    "low = 0\n    low = g\n    return x.clamp(min=low).sqrt()": False,
    "with torch.no_grad():\n        y = x.clamp(min=0).sqrt()\n    return y": False,
    "with torch.set_grad_enabled(False):\n        y = x.clamp(min=0).sqrt()\n    return y": False,
    "with torch.set_grad_enabled(g):\n        y = x.clamp(min=0).sqrt()\n    return y": True,
    "with torch.autocast(False):\n        y = x.clamp(min=0).sqrt()\n    return y": True,
    "return [x.sqrt() for x in g]": False,
}


@folded
@pytest.mark.parametrize("body", FLOWS)
def test_names_stand_for_what_they_were_given_last(body: str) -> None:
    assert ("PG111" in codes(f"def f(x, g):\n    {body}\n")) == FLOWS[body]


HIDES = [
    "torch.where(x > 0, torch.log(x), 0)", "torch.where(x == 0, 0, 1 / x)", "torch.where(0 < x, x.sqrt(), 0)",
    "torch.where(x > low, x.sqrt(), 0)",
    "torch.where(y == 0, 0, x / y)", "torch.where(x <= y, torch.cos(x / y), 0)", "torch.nan_to_num(x.log())",
    "torch.where(net(x) > 0, net(x).sqrt(), 0)", "torch.where(local(x) > 0, local(x).sqrt(), 0)", "torch.where(low < x, x.sqrt(), x)",
    "torch.where(x > 1e-6, x ** (1 / 3), x / 3)", "torch.where(x == 0, 0, torch.div(1, x))", "torch.where(x == 0, 0, x ** -0.5)",
    "x.sqrt().where(x > 0, x)", "y.where(x == 0, 1 / x)", "x.sqrt().clamp(min=1)", "x.log().clamp(min=-9)", "x.rsqrt().clamp(max=9)",
    "x.rsqrt().clamp(0, 9)", "x.log().clamp(-9, 9)", "torch.where(x.abs() == 0, 0, 1 / x)", "torch.where(x.abs() > 0, 1 / x, 0)",
]  # fmt: skip
HIDES_NOTHING = [
    "x.sqrt().clamp(min=0)", "x.sqrt().clamp(max=1)", "x.log().clamp(max=9)", "x.rsqrt().clamp(min=9)", "x.exp().clamp(min=1)",
    "x.acos().clamp(min=1)", "torch.where(y.abs() == 0, 0, 1 / x)", "torch.where(x.exp() == 0, 0, 1 / x)",
    "torch.where(x >= 0, torch.log(x), 0)", "torch.where(x < 1, 1 / x, 0)", "torch.where(y != 0, 0, x / y)", "torch.nan_to_num(x.acos())",
    "torch.where(x <= cutoff, torch.cos(x / cutoff), 0)", "torch.where(positive(x) > 0, positive(x).sqrt(), 0)",
    "torch.where(x >= math.exp(0.5), x, x.log())", "torch.where(x <= 1, 1 / x.sqrt(), -1 / x)", "torch.where((x > 0) & y, 1 / x, 0)",
    "torch.where(x == 1, 0, torch.div(1, x))", "torch.where(x == 1, 0, x ** -0.5)", "torch.where(x == 0, 0, x ** 1)",
    "x.where(x > 0, x.sqrt())",  "(1 / x).where(x < 1, x)",
    "torch.where(torch.load(y) > 0, torch.load(y).log(), 0)",
]  # fmt: skip


@folded
@pytest.mark.parametrize("body", [*HIDES, *HIDES_NOTHING])
def test_a_branch_that_is_chosen_at_the_point_hides_nothing(body: str) -> None:
    """Nor does a branch beside one that is singular there, too, nor what is positive. A bound that is not known is a small number."""
    text = f"def local(x):\n    return x\ndef positive(x):\n    return x.exp()\ndef f(x, y, low, net, cutoff: float):\n    return {body}\n"
    assert ("PG104" in codes(text)) == (body in HIDES)


@pytest.mark.parametrize(
    ("path", "is_told"),
    [("a/metrics/b.py", False), ("optim/b.py", False), ("a/metrics.py", True), ("torchmetrics/b.py", True)],
)
def test_a_folder_says_that_nothing_learns_there(path: str, is_told: bool) -> None:
    text = HEAD + "def f(x):\n    return x.clamp(min=0).sqrt()\n"
    assert bool(check(parse(text), text.split("\n"), path, ALL)) == is_told


def test_what_runs_without_a_gradient_is_silent() -> None:
    f = "def f(x):\n    return x.clamp(min=0).sqrt()\n"
    assert codes(f) == ["PG111"]
    assert codes(f"@torch.no_grad()\n{f}") == []
    for name, is_told in (("update_stats", False), ("log_images", False), ("log_prob", True), ("update", True)):
        assert codes(f.replace("def f", f"def {name}")) == ["PG111"] * is_told
    method = "".join(f"    {line}\n" for line in f.splitlines())
    assert codes(f"class DDIMScheduler:\n{method}") == []
    assert codes(f"class Weighting(mixins.NonDifferentiable):\n{method}") == []
    assert codes(f"class Step(torch.autograd.Function):\n{method}") == []
    assert codes(f"class Loss(nn.Module):\n{method}") == ["PG102"]
    assert codes(f"class Model(nn.Module):\n{method}") == ["PG111"]


def test_other_libraries_and_hidden_names_are_no_torch() -> None:
    assert codes("import numpy as np\ndef f(x):\n    return np.sqrt(np.clip(x, 0, 1))\n") == []
    assert codes("import jax.numpy as jnp\ny = jnp.sqrt(jnp.clip(1, 0, 1))\n") == []
    assert codes("def f(F, x):\n    return F.margin_ranking_loss(x, x, x)\n") == []
    assert codes("clamp = torch.clamp\ndef f(x):\n    return torch.sqrt(clamp(x, 0))\n") == ["PG111"]


LOST = [
    "torch.log(1 - x.clamp(1e-8, 1 - 1e-8))", "y / (1 - x.clamp(max=1.0 - EPS))", "F.binary_cross_entropy(x.clamp(EPS, 1.0 - EPS), y)",
    "torch.acos(x.clamp(-1 + 1e-9, 1))", "x.clamp(min=1e-100).log()",
]  # fmt: skip
NOT_LOST = [
    "torch.log(x.clamp(1e-8, 1 - 1e-8))", "torch.log(1 - x.clamp(1e-6, 1 - 1e-6))", "torch.log(1 - x.double().clamp(1e-8, 1 - 1e-8))",
    "F.binary_cross_entropy(x.clamp(1e-6, 1.0 - 1e-6), y)", "F.relu(x.clamp(-1 + 1e-9, 1))", "torch.log(x.clamp(0 + 1e-9, 1))",
    "x.clamp(min=1e-30).log()", "x.clamp(min=1e-300).log()",
]  # fmt: skip


@folded
@pytest.mark.parametrize("call", [*LOST, *NOT_LOST])
def test_an_epsilon_that_float32_does_not_have(call: str) -> None:
    text = f"EPS = 1e-8\ndef f(x, y):\n    return {call}\n"
    assert ("PG103" in codes(text)) == (call in LOST)
    assert "PG103" not in codes(f"{text}dtype = torch.float64\n")


SUMS = {
    "x + (x.clamp(0, 1) - x).detach()": "PG105", "(torch.clamp(x, 0, 1) - x).detach() + x": "PG105",
    "x + (x.clamp(0, 1) - x).clone().detach()": "PG105", "x + (x.sign() - x).detach()": "PG153",
    "x + (x.clamp(0, 1) - x).real": None, "x + (x.relu() - x).detach()": None, "x + (x.clamp(min=0) - x).detach()": None,
    "x + (x.round().clamp(-1, 1) - x).detach()": None, "x + (y_hard - x).detach()": None, "x + (x.scatter(0, y, 1) - x).detach()": None,
    "x + (y.log() - x).detach()": None,
    "x + (x.round() - x).detach()": None, "x.clamp(0, 1).detach() + x - x.detach()": None,
    "y + (x.clamp(0, 1) - x).detach()": None,
}  # fmt: skip


@folded
@pytest.mark.parametrize("expression", SUMS)
def test_a_sum_that_is_rounded_twice(expression: str) -> None:
    code = SUMS[expression]
    text = f"def f(x, y):\n    return {expression}\n"
    assert codes(f"{text}def get_codebook_entry(): pass\n") == ([code] if code else [])
    assert codes(text) == (["PG105"] if code == "PG105" else [])
    unrecorded = text.replace("return", "if torch.is_grad_enabled(): return x\n    else: return")
    assert codes(f"{unrecorded}def get_codebook_entry(): pass\n") == []


def test_a_lower_bound_of_clamp_min_is_a_copied_rule() -> None:
    forward = "    def forward(ctx, x, bound):\n        ctx.save_for_backward(x)\n        return x.clamp_min(bound)\n"
    backward = "    def backward(ctx, grad):\n        return grad * ((ctx.saved_tensors[0] >= 1) | (grad < 0)), None\n"
    assert codes(f"class L(torch.autograd.Function):\n{forward}{backward}") == ["PG108"]


@pytest.mark.parametrize(
    ("forward", "backward", "is_told"),
    [
        ("x.clamp(0, 1)", "grad * (grad > 0), None", True), ("x.clamp(0, 1)", "grad * (y > 0), None", False),
        ("x.clamp(0, 1)", "grad * (grad > 1), None", False), ("x.exp()", "grad * (grad > 0), None", False),
        ("x", "None, grad.sum_to_size(y.shape)", True), ("x", "None, grad", False), ("y", "None, grad.sum_to_size(y.shape)", False),
    ],
)  # fmt: skip
def test_a_class_is_a_copied_rule_by_its_text(forward: str, backward: str, is_told: bool) -> None:
    text = f"    def forward(ctx, x, y):\n        return {forward}\n    def backward(ctx, grad):\n        return {backward}\n"
    assert codes(f"class C(torch.autograd.Function):\n{text}") == ["PG108"] * is_told


@pytest.mark.parametrize("name", _SINGULAR)
def test_the_slope_is_infinite_at_each_singular_point(name: str) -> None:
    f = getattr(torch, name, None) or getattr(torch.special, name)
    for point in _SINGULAR[name]:
        x = torch.tensor(point, requires_grad=True)
        y = f(x)
        assert not y.isnan()
        assert torch.autograd.grad(y, x)[0].isinf()


@pytest.mark.parametrize(
    ("comment", "is_told"),
    [
        ("# noqa", False), ("# noqa: PG111", False), ("# NOQA: E501, PG111", False), ("# noqa: PG1", False), ("# noqa: E501", True),
        ("# noqa:PG101", True), ("# pseudograd: deliberate", False), ("# a comment", True),
    ],
)  # fmt: skip
def test_a_comment_at_the_line_mutes(comment: str, is_told: bool) -> None:
    assert bool(codes(f"def f(x):\n    return x.clamp(min=0).sqrt()  {comment}\n")) == is_told
    assert bool(codes(f"def f(x):\n    {comment}\n    return x.clamp(min=0).sqrt()\n")) == ("deliberate" not in comment)


@pytest.mark.parametrize("options", ["device=d", "requires_grad=False", "device=d, requires_grad=True"])
def test_what_is_drawn_learns_only_where_it_is_asked_to(options: str) -> None:
    text = f"def f(d):\n    return torch.rand(3, {options}).clamp(min=0).sqrt()\n"
    assert ("PG111" in codes(text)) == ("True" in options)


def test_columns_count_characters() -> None:
    (notice,) = check_text("def f(x):\n    'ü' ; return x.clamp(min=0).sqrt()\n")
    assert (notice.column, notice.end_column) == (18, 39)


@pytest.mark.parametrize(
    "line", ["", "# the loss\n", "p = torch.nn.Parameter(torch.ones(1))\n", "def train(p): p.backward()\n"]
)
def test_a_guard_is_told_where_something_is_trained(line: str) -> None:
    text = f"import torch\n{line}def f(x):\n    return x.clamp(-1, 1).acos()\n"
    assert bool(check(parse(text), text.split("\n"), "x.py", ALL)) == bool(line)


@pytest.mark.parametrize("line", ["z = torch.stack([x, y])", "z = torch.cat((x, y), -1)", "z, w = torch.max(x, 0)"])
def test_lists_tuples_and_what_is_unpacked_are_followed(line: str) -> None:
    assert codes(f"def f(x, y):\n    {line}\n    return z.clamp(min=0).sqrt()\n") == ["PG111"]
    constants = line.replace("x", "1.0").replace("y", "2.0").replace("ma1.0", "max")
    assert codes(f"def f():\n    {constants}\n    return z.clamp(min=0).sqrt()\n") == []
