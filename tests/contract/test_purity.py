"""No pull reaches a function of torch with an edge of its own; and whoever puts one in, in any file, is found."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import FunctionType

import pytest
import torch
from torch import Tensor

from pseudograd.ops import policy, steps

from . import purity

PULLS = purity.pulls()
ROOT = Path(__file__).resolve().parents[2]


def _name_of(function: FunctionType) -> str:
    return f"{Path(function.__code__.co_filename).name}:{function.__code__.co_firstlineno} {function.__qualname__}"


# Each function with a pull that reaches it.
REACHED = {_name_of(function): (function, pull) for pull in PULLS.values() for function in purity.functions(pull)}


def test_rules_are_pure() -> None:
    faults = {name: purity.faults(pull) for name, pull in PULLS.items()}
    assert {name: found for name, found in faults.items() if found} == {}
    assert len(faults) > 300


def test_what_is_forbidden_is_what_the_table_of_torch_has_with_an_edge() -> None:
    asked = {"clamp", "clip", "clamp_", "clamp_min", "minimum", "maximum", "fmax", "relu", "relu6", "hardtanh", "item"}
    assert asked <= purity.FORBIDDEN
    assert not {"where", "abs", "round", "sign"} & purity.FORBIDDEN


def test_all_files_with_rules_are_read() -> None:
    files = {name.partition(":")[0] for name in REACHED}
    assert files >= {
        *(
            "absolute.py",
            "activations.py",
            "bound_rules.py",
            "grad_transforms.py",
            "jump.py",
            "policy.py",
            "quantize.py",
        ),
        *("replace.py", "rounding.py", "shared_rules.py", "steps.py", "edges.py", "clamps.py", "eras.py"),
    }
    for function in (policy._limit, policy._replace, steps._triangle):
        assert _name_of(function) in REACHED


def _planted(x: Tensor) -> Tensor:
    return torch.clamp(x, 0)


@pytest.mark.parametrize("name", sorted(REACHED))
def test_clamp_in_any_function_that_a_pull_reaches_is_found(name: str) -> None:
    """In a function that is made inside it, which nobody calls: so the rule stays as it is."""
    function, pull = REACHED[name]
    whole = function.__code__
    function.__code__ = whole.replace(co_consts=(*whole.co_consts, _planted.__code__))
    try:
        assert any("clamp" in fault for fault in purity.faults(pull))
    finally:
        function.__code__ = whole
    assert purity.faults(pull) == []


_ALIAS, _TABLE = torch.nn.functional.relu, {"a": [torch.clamp]}


@pytest.mark.parametrize(
    "way",
    [
        lambda grad: grad.clamp(0),
        lambda grad: grad.clip(0),
        lambda grad: grad.clamp_(0),
        lambda grad: torch.minimum(grad, grad),
        lambda grad: torch.maximum(grad, grad),
        lambda grad: torch.nn.functional.hardtanh(grad),
        lambda grad: torch.ops.aten.clamp.default(grad, 0),
        lambda grad: grad.max(grad),
        lambda grad: grad.min(),
        lambda grad: [one.relu() for one in (grad,)],
        lambda grad: (lambda: grad.fmax(grad))(),
        lambda grad: getattr(torch, "clamp")(grad, 0),  # noqa: B009
        lambda grad: grad.neg_(),
        lambda grad: grad.item(),
        lambda grad: _ALIAS(grad),
        lambda grad: _TABLE["a"][0](grad, 0),
        lambda grad, f=torch.clamp: f(grad, 0),
        lambda grad: _planted(grad),
        __import__("functools").partial(torch.clamp, min=0),
    ],
)
def test_every_way_to_call_one_is_found(way: object) -> None:
    assert len(purity.faults(way)) >= 1
    assert purity.faults(lambda grad: torch.where(grad > 0, grad, min(1, 2) * max(3, 4))) == []


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        pytest.param(
            "ops/policy.py",
            "    most = torch.finfo(dtype).max\n",
            "    found = torch.clamp(found, -9, 9)\n",
            marks=pytest.mark.slow,
        ),
        ("ops/steps.py", "torch.where(u < 1, (1 - u) * height, 0.0)", "torch.relu(1 - u) * height"),
        pytest.param(
            "eras.py",
            "return torch.where(x >= min, grad, 0.0)",
            "return torch.where(x >= min, grad.maximum(-grad), 0.0)",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "ops/shared_rules.py",
            "    return x.float() if",
            "    x = x.clip(-9)\n    return x.float() if",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_clamp_in_a_file_is_found(file: str, old: str, new: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info"))
    path = tmp_path / "src" / "pseudograd" / file
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new if "most" not in old else old + new, 1), encoding="utf-8")
    program = (
        "from tests.contract import purity\nprint(sum(len(purity.faults(pull)) for pull in purity.pulls().values()))"
    )
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "src")}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 1
