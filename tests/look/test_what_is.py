"""Copied classes are known by what they compute; a program in which they are looked for stays as it was."""

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

import pseudograd as pg
from pseudograd.look.candidates import Candidate
from pseudograd.look.what_is import (
    _difference_of_bounds,
    _difference_of_crossed_bounds,
    _is_replace_grad,
    what_is,
)
from pseudograd.rule import OPS
from pseudograd.testing.contract.cases import cases_of

from ..choices import folded
from ..migrate import test_migrate as classes
from ..watching import Watching
from ..written import assert_written

HEAD = """\
import torch
import torch as th
from torch.autograd import Function
from torch.autograd.function import once_differentiable

def lower_bound_bwd(x, bound, grad_output):
    return ((x >= bound) | (grad_output < 0)) * grad_output, None

"""


def _source(name: str, arguments: str, forward: str, backward: str, keep: str = "ctx.save_for_backward(x)") -> str:
    """A class of two methods. forward, backward: what they return. keep: the line before it."""
    return f"""\
class {name}(Function):
    @staticmethod
    def forward(ctx, {arguments}):
        {keep}
        return {forward}

    @staticmethod
    def backward(ctx, g):
        saved = ctx.saved_tensors
        return {backward}
"""


ROUND = """\
class RoundSTE(Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return g
"""
BINARY = _source("Binary", "x", "torch.where(x >= 0, 1.0, -1.0)", "g * (saved[0].abs() <= 1).float()")
LOWER = _source(  # as CompressAI has it
    "LowerBound", "x, bound", "torch.max(x, bound)", "lower_bound_bwd(*saved, g)", "ctx.save_for_backward(x, bound)"
)
NUMBER = _source(
    "Lower",
    "x, bound: float",
    "x.clamp_min(bound)",
    "g * ((saved[0] >= ctx.bound) | (g < 0)), None",
    "ctx.bound = bound; ctx.save_for_backward(x)",
)
REVERSAL = _source("Reversal", "x, alpha", "x.view_as(x)", "g.neg() * ctx.alpha, None", "ctx.alpha = alpha")
IN_PLACE = (
    _source("Straight", "x, low, high", "x.clamp(low, high)", "_masked(g, saved[0]), None, None")
    + """\

def _masked(g, x):
    g = g.abs().mul(g.sign()).clone()
    g *= 1.0
    g[x.isnan()] *= 1.0
    return g
"""
)
POPULAR = classes.POPULAR
DEFAULTS = POPULAR.replace("low, high):", "low=0, high=1):", 1)
LEAKY = POPULAR.replace(classes.PRODUCT, "torch.where((x < ctx.low) | (x > ctx.high), 0.2 * g, g)")
SETUP = """\
class WithSetup(Function):
    @staticmethod
    def forward(x, low, high):
        return x.clamp(low, high)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, low, high = inputs
        ctx.low, ctx.high = low, high
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * ((x > ctx.low) & (x < ctx.high)), None, None
"""


def _module(folder: Path, text: str, name: str = "copied_classes") -> ModuleType:
    """From a file, as a program has it."""
    file = folder / f"{name}.py"
    file.write_text(HEAD + text)
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _class(folder: Path, text: str) -> Any:
    base = torch.autograd.Function
    values = vars(_module(folder, text)).values()
    return next(value for value in values if isinstance(value, type) and issubclass(value, base) and value is not base)


INWARD = 'clamp with rule "inward"'
# By name: the source, its meaning, and the call behind "import pseudograd".
CALLS = {
    "popular": (POPULAR, INWARD, ""),
    "proposed": (classes.PROPOSED, 'clamp with rule "sign"', ""),
    "replace": (classes.REPLACE, "replace_grad", ""),
    "straight": (classes.IDENTITY, 'clamp with rule "identity"', 'clamp(x, min, max, rule="identity")'),
    "in place": (IN_PLACE, 'clamp with rule "identity"', 'clamp(x, min, max, rule="identity")'),
    "setup": (SETUP, 'clamp with rule "zero" and edge "open"', 'clamp(x, min, max, rule="zero", edge="open")'),
    "round": (ROUND, 'round with rule "identity"', 'round(x, rule="identity")'),
    "binary": (BINARY, 'sign with rule "window"', 'sign(x, at_zero=1, rule="window")'),
    "CompressAI": (LOWER, 'lower_bound with rule "inward"', 'lower_bound(x, bound, rule="inward")'),
    "a number": (NUMBER, 'lower_bound with rule "inward"', 'lower_bound(x, bound, rule="inward")'),
    "leaky": (
        LEAKY,
        'clamp with rule "leaky(slope=0.2)"',
        "clamp(x, min, max, rule=pseudograd.rules.leaky(slope=0.2))",
    ),
    "defaults": (DEFAULTS, INWARD, 'clamp(x, min, max, rule="inward")'),
    "reversal": (REVERSAL, "reverse_grad", "reverse_grad(x, scale)"),
}
FAMILIAR = {"popular": "ClampWithGrad", "proposed": "ClampWithGradProposed as Pushed", "replace": "ReplaceGrad"}


@pytest.mark.parametrize("name", CALLS)
def test_a_copy_is_known_and_the_line_that_replaces_it_works(tmp_path: Path, name: str) -> None:
    text, meaning, call = CALLS[name]
    cls = _class(tmp_path, text)
    match = what_is(cls)
    assert match is not None
    familiar = f"from pseudograd.familiar import {FAMILIAR.get(name)}"
    instead = familiar if name in FAMILIAR else f"import pseudograd  # pseudograd.{call}"
    assert (match.meaning, match.instead) == (meaning, instead)
    assert what_is(cls.apply) is match
    assert "float32" in match.dtypes
    x = torch.tensor([-3.0, 0.2, 3.0], requires_grad=True)
    names: dict[str, Any] = {"x": x, "min": -1.0, "max": 1.0, "scale": 0.5}
    names["bound"] = torch.tensor([0.5]) if name == "CompressAI" else 0.5
    exec(instead, names)
    if name == "replace":
        inputs = [names["x"]] * 2
    else:
        wanted = re.findall(r"[(] ?x(?:, (min|bound|scale))?(?:, (max))?", call or "clamp(x, min, max")
        inputs = [names["x"], *(names[argument] for argument in wanted[0] if argument)]
    y = eval(f"pseudograd.{call}", names) if call else names[cls.__name__].apply(*inputs)
    theirs = cls.apply(*inputs)
    assert torch.equal(y, theirs)
    for grad in (torch.ones(3), -torch.ones(3)):
        pair = [torch.autograd.grad(value, names["x"], grad, retain_graph=True)[0] for value in (y, theirs)]
        assert torch.equal(*pair)


def text_of(match: Any) -> str:
    parts = match and (match.meaning, match.instead, match.familiar, match.dtypes, *match.differences, match.defaults)
    return "\n".join(map(str, parts or ()))


def test_what_is_told_of_a_class_is_written_out(tmp_path: Path) -> None:
    def match_of(text: str) -> str:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))  # Python would take one file for another of its size
        folder.mkdir()
        return text_of(what_is(_class(folder, text)))

    names = {**globals(), "match_of": match_of, "crossed": _difference_of_crossed_bounds}
    assert_written(Path(__file__).with_name("classes.txt"), names)


def test_it_tells_where_a_copy_differs_and_which_dtypes_are_equal(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    match = what_is(_class(tmp_path / "a", classes.POPULAR))
    assert match is not None
    assert match.dtypes == ("float16", "bfloat16", "float32", "float64")
    assert match.differences[:2] == (
        "float16: grad = inf gives nan instead of 0 at x = -3",
        "float16: grad = 1.01328e-06 gives 1.01328e-06 instead of 0 at x = -0.30029",  # the product is 0
    )
    # Its torch.tensor(bound) makes a warning, which is an error in this suite.
    match = what_is(_class(tmp_path, classes.BY_WHERE))
    assert match is not None
    assert match.differences == (
        "a bound that is a tensor and requires grad: it gets None instead of a gradient",
        "a min above max: it gives a value, and ours raises ValueError",
    )


BODY = classes.POPULAR.replace("        ctx.low, ctx.high", "{}\n        ctx.low, ctx.high")


@folded
@pytest.mark.parametrize(
    "line",
    [
        "global COUNT; COUNT += 1",
        "print('called')",
        "torch.manual_seed(0)",
        "x = x + 0 * torch.rand(())",
        "SEEN.append(x)",
        "ctx.log = open('log', 'w')",
        "STATE.add_(1)",
        "STATE[0] = 5",
        "BN(x)",
        "torch.autocast_increment_nesting()",
        "torch.clear_autocast_cache()",
        "torch.from_file('log', shared=True, size=1)",
        "torch.set_num_threads(1)",
        "torch._C._set_grad_enabled(False)",
        "torch.use_deterministic_algorithms(True)",
        "import os; os.environ['SEEN'] = '1'",
        "ctx.__class__ = dict",
    ],
)
def test_a_class_that_does_more_than_compute_is_never_called(tmp_path: Path, line: str, monkeypatch: Any) -> None:
    """Its values are those of ClampWithGrad; its source says that more may happen."""
    monkeypatch.chdir(tmp_path)
    module = _module(
        tmp_path,
        "COUNT, SEEN, STATE = 0, [], torch.zeros(1)\nBN = torch.nn.BatchNorm1d(1)\n"
        + BODY.replace("{}", " " * 8 + line),
    )
    before = torch.get_rng_state()
    assert what_is(module.ClampWithGrad) is None
    assert (module.COUNT, module.SEEN, float(module.STATE)) == (0, [], 0)
    assert torch.equal(torch.get_rng_state(), before)
    assert not (tmp_path / "log").exists()


GUARDED = [POPULAR.replace("x, = ctx", f"g = {guard}\n        x, = ctx") for guard in classes.GUARDS]
BESIDE = POPULAR.replace("x - x.clamp(ctx.low, ctx.high)", "(x - x.clamp(ctx.low, ctx.high)).round(decimals=6)")
SECOND = classes.REPLACE.replace("return value", "return through * torch.ones_like(value)")


@pytest.mark.parametrize(
    "text", [classes.BROKEN, POPULAR + "\nClampWithGrad.backward = print\n", SECOND, BESIDE, *GUARDED]
)
def test_what_computes_something_else_is_not_known(tmp_path: Path, text: str) -> None:
    assert what_is(_class(tmp_path, text)) is None
    assert what_is(print) is None
    assert what_is(torch.autograd.Function) is None


def test_a_file_that_was_edited_since_is_not_believed(tmp_path: Path) -> None:
    """It ran a print when it was imported, and looks harmless now."""
    module = _module(tmp_path, BODY.replace("{}", "        print('called')"))
    (tmp_path / "copied_classes.py").write_text(HEAD + BODY.replace("{}", "        x = x + 0"))
    assert what_is(module.ClampWithGrad) is None


def test_no_mode_hook_or_graph_of_the_program_sees_it(tmp_path: Path) -> None:
    cls, calls = _class(tmp_path, classes.POPULAR), []
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda x: calls.append(x), lambda x: x)
    with pg.override(clamp="identity"), Watching() as watching, hooks, torch.inference_mode():
        assert what_is(cls) is not None
    assert calls == watching.names == []
    assert torch.is_grad_enabled()


def _diagnosed(f: Any) -> Any:
    x = torch.nn.Parameter(torch.linspace(-0.9, 0.9, 8))
    with pg.diagnose() as d:
        f(x).sum().backward()
    return d


def test_diagnose_says_what_it_is_and_what_replaces_it(tmp_path: Path) -> None:
    cls = _class(tmp_path, POPULAR)
    d = _diagnosed(lambda x: cls.apply(x, -1, 1))
    (copy,) = d.copied
    assert (copy.name, copy.meaning) == ("ClampWithGrad", INWARD)
    assert re.search(r"copied_classes.py:\d+$", copy.where)
    assert "test_what_is.py:" in copy.uses[0]
    text = " ".join(str(d).split())
    assert f"is {INWARD}, by what it computes from pseudograd.familiar import" in text
    assert d.to_json()["copied"][0]["instead"] == "from pseudograd.familiar import ClampWithGrad"
    assert "data.copied" in d.write_html(tmp_path / "page.html").read_text()
    assert d.findings == [], "it is no fault"
    nearly = _class(tmp_path, classes.BROKEN)
    for f in (lambda x: pg.familiar.ClampWithGrad.apply(x, -1, 1), lambda x: nearly.apply(x, -1, 1)):
        d = _diagnosed(f)
        assert d.copied == []
        assert "by what it computes" not in str(d)


def test_a_copy_of_inward_is_not_told_to_become_inward(tmp_path: Path) -> None:
    """Its values run away for other reasons; of what is no copy that advice stands."""
    for text, codes in ((POPULAR, []), (classes.BROKEN, ["wind-up"])):
        cls = _class(tmp_path, text)
        x = torch.nn.Parameter(torch.full((4,), 1.5))
        with pg.diagnose() as d:
            for _ in range(14):
                cls.apply(x, -1, 1).sum().backward()
                x.data.add_(0.2)
        assert [finding.code for finding in d.findings] == codes


def test_a_class_of_an_installed_package_is_named_and_not_to_be_deleted(tmp_path: Path) -> None:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    cls = _class(folder, POPULAR)
    (copy,) = _diagnosed(lambda x: cls.apply(x, -1, 1)).copied
    assert (copy.where.partition(":")[0], copy.instead) == ("copied_classes.py", "")


def test_compare_says_it_of_what_it_could_not_reach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = _module(tmp_path, POPULAR)
    monkeypatch.setitem(sys.modules, module.__name__, module)

    def run(seed: int) -> float:
        x = torch.nn.Parameter(torch.tensor([2.0 + seed]))
        y: Tensor = module.ClampWithGrad.apply(torch.clamp(x, -5, 5), -1, 1)
        y.sum().backward()
        assert x.grad is not None
        return float(x.grad)

    comparison = pg.compare(run, rules=["inward"], seeds=2, replace="clamp")
    ((name, location),) = comparison.reached.own
    assert name == "ClampWithGrad"
    assert location.endswith(f"which is {INWARD}: `from pseudograd.familiar import ClampWithGrad`")
    assert location in str(comparison)


def test_the_whole_gradient_of_the_second_input_alone_makes_a_replace_grad() -> None:
    def right(inputs: Any, grad: Tensor) -> Any:
        return inputs[0], (None, grad.sum_to_size(inputs[1].shape))

    def refuses(inputs: Any, grad: Tensor) -> Any:
        raise ValueError(grad)

    def changed(y: float = 1, second: float = 1, first: Any = None) -> Any:
        return lambda inputs, grad: (y * right(inputs, grad)[0], (first, second * right(inputs, grad)[1][1]))

    assert _is_replace_grad(right)
    wrong = [
        refuses,
        changed(y=2),
        changed(second=0.5),
        changed(first=torch.ones(1)),
        lambda *_: (torch.ones(1), (None, None)),
    ]
    assert not any(map(_is_replace_grad, wrong))


def test_bounds_that_learn_something_else_make_another_function() -> None:
    case = next(case for case in cases_of(OPS["clamp"]) if (case.rule.name, case.edge) == ("zero", "closed"))
    candidate = Candidate(case, (-1.0, 1.0))

    def answer(low: float | None, high: float | None) -> str | None:
        def compute(inputs: Any, grad: Tensor) -> Any:
            x, *bounds = inputs
            y = x.clamp(*bounds)
            ours = case.call().pull(grad, inputs, y, (True,) * 3)
            return y, (
                ours[0],
                *(None if by is None else by * part for by, part in zip((low, high), ours[1:], strict=True)),
            )

        return _difference_of_bounds(compute, candidate)

    assert [answer(1, 1), answer(2, 1), answer(1, 2), answer(1, None), answer(None, 1)] == ["", None, None, None, None]
    assert str(answer(None, None)).endswith("it gets None instead of a gradient")
    assert _difference_of_bounds(lambda inputs, grad: 1 / 0, candidate) == ""
