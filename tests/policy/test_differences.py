"""The lines of docs/policy_clips.md that need no other test: each difference against a formula written apart, or what the package says."""

import ast
import importlib.util
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

import pseudograd as pg

from . import test_clip_report, test_other_projects, test_policy_loss
from .differences import DIFFERENCES
from .formulas import HALF_LOW, TWICE, tokens, usual_form
from .test_other_projects import needs, slope_of, verl_loss


@pytest.mark.parametrize("test", sorted({difference.test for difference in DIFFERENCES}))
def test_every_line_of_the_page_has_its_test(test: str) -> None:
    modules = (test_clip_report, test_other_projects, test_policy_loss)
    assert any(callable(names.get(test)) for names in (*map(vars, modules), globals()))


def test_the_usual_form_overflows_in_half_precision() -> None:
    lr, a = torch.tensor([12.0], dtype=torch.float16), torch.tensor([1e-3], dtype=torch.float16)
    assert usual_form(lr, -a, 0.8, 1.2).isinf().all()
    assert usual_form(lr, a, 0.8, 1.2).isfinite().all()
    assert (
        slope_of(lambda lr: usual_form(lr, a, 0.8, 1.2), lr)[1].isnan().all()
    )  # 0 * inf, of a token that should be silent
    y, slope = slope_of(lambda lr: pg.policy.loss(lr, -a), lr)
    assert y == a.float() * math.exp(12.0)
    assert slope.isfinite().all()
    assert slope_of(lambda lr: pg.policy.loss(lr, a), lr)[1] == 0


def test_the_clip_fraction_of_stable_baselines3_is_twice_the_silenced_share() -> None:
    generator = torch.Generator().manual_seed(0)
    lr, a = 0.4 * torch.randn(20000, generator=generator), torch.randn(20000, generator=generator)
    fraction = ((lr.exp() - 1).abs() > 0.2).float().mean().item()
    assert fraction == pytest.approx(2 * pg.policy.clip_report(lr, a).silenced_share, rel=0.02)


def torchrl_loss(lr: Tensor, a: Tensor, low: float, high: float) -> Tensor:
    gains = lr.exp() * a, lr.clamp(math.log1p(-low), math.log1p(high)).exp() * a
    return -torch.stack(gains, -1).min(dim=-1).values


def test_torchrl_clips_the_log_ratio_and_passes_all_at_a_tie() -> None:
    lr, a = tokens()
    lr = torch.cat([lr.reshape(-1), torch.tensor([HALF_LOW, TWICE] * 2, dtype=torch.float64)])
    a = torch.cat([a.reshape(-1), torch.tensor([1.0, 1.0, -1.0, -1.0], dtype=torch.float64)])
    for era in ("torch<=2.13", "torch>=2.14"):
        with pg.pin_edge(era):
            theirs = slope_of(lambda lr: torchrl_loss(lr, a, 0.5, 1.0).sum(), lr)
        ours = slope_of(lambda lr: pg.policy.loss(lr, a, low=0.5, high=1.0, space="log").sum(), lr)
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_verl_passes_half_at_the_ceiling() -> None:
    theirs = verl_loss("compute_policy_loss_vanilla")
    lr, a = torch.tensor([[math.log(4.0)]], dtype=torch.float64), -torch.ones(1, 1, dtype=torch.float64)
    for era in ("torch<=2.13", "torch>=2.14"):
        with pg.pin_edge(era):
            slope = slope_of(lambda lr: theirs(lr, a, torch.ones(1, 1), 0.2, 0.2, clip_ratio_c=4.0), lr)[1]
        assert slope.item() == pytest.approx(2.0)
    assert slope_of(lambda lr: pg.policy.loss(lr, a, ceiling=4.0, edge="half").sum(), lr)[1] == 2.0


def fields_of(package: str, *path: str) -> dict[str, object]:
    """The constants that the classes of a source file give to their fields and arguments by default; the first of each name."""
    spec = importlib.util.find_spec(package)
    fields: dict[str, object] = {}
    for node in ast.walk(ast.parse(Path(spec.origin).parent.joinpath(*path).read_text(encoding="utf-8"))):
        pairs: list[tuple[str, ast.expr | None]] = []
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            value = node.value
            if isinstance(value, ast.Call):  # dataclasses.field(default=...)
                value = next((keyword.value for keyword in value.keywords if keyword.arg == "default"), None)
            pairs = [(node.target.id, value)]
        elif isinstance(node, ast.FunctionDef):
            pairs = [(arg.arg, value) for arg, value in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)]
        for name, value in pairs:
            if isinstance(value, ast.Constant):
                fields.setdefault(name, value.value)
    return fields


def test_defaults_of_the_projects() -> None:
    needs("trl", "1.16.0")
    trl = fields_of("trl", "trainer", "grpo_config.py")
    assert (trl["epsilon"], trl["epsilon_high"], trl["delta"]) == (0.2, None, None)
    needs("verl", "0.9.1")
    verl = fields_of("verl", "workers", "config", "actor.py")
    assert (verl["clip_ratio_low"], verl["clip_ratio_high"], verl["clip_ratio_c"]) == (0.2, 0.2, 3.0)
