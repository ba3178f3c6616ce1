"""Their functions, from their published packages, beside ours: TRL 1.16.0 and verl 0.9.1.

verl is read out of its file, because importing it starts ray. Each package that is not installed is skipped.
"""

import ast
import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from torch import Tensor

import pseudograd as pg
from pseudograd.geometry import SHARES
from pseudograd.torch_table.eras import ERAS, installed_era

from .formulas import tokens

pytestmark = pytest.mark.filterwarnings("ignore")
ROUNDING = {"rtol": 1e-12, "atol": 1e-12}
EDGE = {1.0: "closed", 0.0: "half"}[SHARES[ERAS[installed_era()].edge]]  # of PPO's usual form on this torch


def needs(package: str, version: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} {version} is not installed: pip install --no-deps {package}=={version}")


def slope_of(loss: Callable[[Tensor], Tensor], lr: Tensor) -> tuple[Tensor, Tensor]:
    leaf = lr.clone().requires_grad_()
    y = loss(leaf)
    return y.detach(), torch.autograd.grad(y, leaf)[0]


def trl_loss(lr: Tensor, a: Tensor, mask: Tensor, **settings: Any) -> Tensor:
    """GRPOTrainer._compute_loss where the old log-probabilities are 0; a is of shape (sequences,)."""
    needs("trl", "1.16.0")
    from trl.trainer.grpo_trainer import GRPOTrainer

    known = {"loss_type": "grpo", "importance_sampling_level": "token", "epsilon_low": 0.2, "epsilon_high": 0.2}
    trainer = MagicMock(
        _get_per_token_logps_and_entropies=lambda *args, **kwargs: (lr, torch.ones_like(lr), None),
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        beta=0.0,
        use_vllm=False,
        aux_loss_enabled=False,
        _entropy_bonus_enabled=False,
        current_gradient_accumulation_steps=1,
        get_gamma_weights=GRPOTrainer.get_gamma_weights,
        **{**known, **{key: value for key, value in settings.items() if key not in ("delta", "args")}},
    )
    trainer.args = MagicMock(delta=settings.get("delta"), steps_per_generation=1, **settings.get("args", {}))
    trainer.accelerator.gather, trainer.accelerator.num_processes = lambda tensor: tensor, 1
    ids, ones = torch.zeros(lr.shape, dtype=torch.long), torch.ones(lr.shape)
    batch = {"prompt_ids": ids, "prompt_mask": ones, "completion_ids": ids, "completion_mask": mask.to(lr.dtype)}
    more = {"advantages": a, "old_per_token_logps": torch.zeros_like(lr), "num_items_in_batch": mask.sum()}
    loss: Tensor = GRPOTrainer._compute_loss(trainer, None, {**batch, **more})
    return loss


TRL: dict[str, dict[str, Any]] = {
    "grpo": {},
    "dapo": {"epsilon_high": 0.28},
    "dual_clip": {"delta": 3.0},
    "gspo": {"importance_sampling_level": "sequence", "epsilon_low": 3e-4, "epsilon_high": 4e-4},
}


def ragged(lr: Tensor) -> Tensor:
    """A mask: sequences of different lengths, at least one token each."""
    return torch.arange(lr.shape[1]) < (1 + torch.arange(lr.shape[0]) % lr.shape[1]).unsqueeze(1)


def mean_of_means(loss: Tensor, mask: Tensor) -> Tensor:
    return (loss.sum(-1) / mask.sum(-1)).mean()


@pytest.mark.parametrize("name", TRL)
def test_trl(name: str) -> None:
    lr, a = tokens()
    mask = ragged(lr)
    theirs = slope_of(lambda lr: trl_loss(lr, a[:, 0], mask, **TRL[name]), lr)
    ours = slope_of(lambda lr: mean_of_means(pg.policy.presets[name](lr, a, mask=mask), mask), lr)
    torch.testing.assert_close(ours, theirs, **ROUNDING)


def test_trl_cispo_has_our_gradient_and_another_value() -> None:
    """-sg(clip(r)) A log_prob, which depends on log_prob itself: here the old ones are 0."""
    lr, a = tokens()
    mask = ragged(lr)
    value, slope = slope_of(lambda lr: trl_loss(lr, a[:, 0], mask, loss_type="cispo", epsilon_high=5.0), lr)
    ours = slope_of(lambda lr: pg.policy.presets["cispo"](lr, a, mask=mask).sum() / mask.sum(), lr)
    torch.testing.assert_close(ours[1], slope, **ROUNDING)
    assert (ours[0] - value).abs() > 0.01


class ActorConfig(SimpleNamespace):
    """The settings that the functions read, with defaults."""

    def get(self, name: str, default: Any) -> Any:
        return getattr(self, name, default)


def functions_in(path: Path, *names: str, **names_in_scope: Any) -> dict[str, Any]:
    """Functions out of a source file, without what else it runs or imports."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    wanted = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in names]
    assert {node.name for node in wanted} == set(names)
    for node in wanted:
        node.decorator_list, node.returns = [], None
        for argument in (*node.args.args, *node.args.kwonlyargs):
            argument.annotation = None
    space = {"torch": torch, "Any": Any, **names_in_scope}
    exec(compile(ast.Module(wanted, []), str(path), "exec"), space)
    return space


def verl_loss(function: str, **settings_of_loss: Any) -> Callable[..., Tensor]:
    needs("verl", "0.9.1")
    spec = importlib.util.find_spec("verl")
    package = Path(spec.origin).parent
    helpers = SimpleNamespace(**functions_in(package / "utils" / "torch_functional.py", "masked_sum", "masked_mean"))
    space = functions_in(
        package / "trainer" / "ppo" / "core_algos.py",
        function,
        "agg_loss",
        verl_F=helpers,
        ActorConfig=ActorConfig,
        AlgoConfig=(),
    )

    def loss(lr: Tensor, a: Tensor, mask: Tensor, low: float, high: float, **settings: Any) -> Tensor:
        config = ActorConfig(
            clip_ratio=low,
            clip_ratio_low=low,
            clip_ratio_high=high,
            global_batch_info={},
            policy_loss=SimpleNamespace(**settings_of_loss) if settings_of_loss else None,
            **settings,
        )
        result: Tensor = space[function](
            old_log_prob=torch.zeros_like(lr),
            log_prob=lr,
            advantages=a,
            response_mask=mask.to(lr.dtype),
            loss_agg_mode="seq-mean-token-mean",
            config=config,
        )[0]
        return result

    return loss


def check_verl(
    name: str, bounds: tuple[float, float], preset: str, settings: dict[str, float], **changes: float
) -> None:
    """The preset with these changes is the loss of verl with these bounds. For cispo the gradient alone: the value is another one."""
    theirs = verl_loss(f"compute_policy_loss_{name}")
    lr, a = tokens()
    mask = ragged(lr)
    expected = slope_of(lambda lr: theirs(lr, a, mask, *bounds, **settings), lr)
    ours = slope_of(lambda lr: mean_of_means(pg.policy.presets[preset](lr, a, mask=mask, **changes), mask), lr)
    close = {"rtol": 1e-7, "atol": 1e-7}  # they add 1e-8 to the number of tokens
    torch.testing.assert_close(ours[1], expected[1], **close)
    if name == "cispo":
        assert (ours[0] - expected[0]).abs() > 0.01
    else:
        torch.testing.assert_close(ours[0], expected[0], **close)


@pytest.mark.parametrize("ceiling", [3.0, 20.0])
def test_verl_vanilla_is_the_dual_clip(ceiling: float) -> None:
    check_verl("vanilla", (0.2, 0.28), "dual_clip", {"clip_ratio_c": ceiling}, high=0.28, ceiling=ceiling)


def test_verl_gspo() -> None:
    check_verl("gspo", (3e-4, 4e-4), "gspo", {})


def test_verl_geo_mean_is_gmpo_with_bounds_of_the_log_ratio() -> None:
    check_verl("geo_mean", (0.4, 0.4), "gmpo", {})


def test_verl_cispo_bounds_both_sides_and_has_our_gradient() -> None:
    check_verl("cispo", (0.2, 0.2), "cispo", {}, low=0.2, high=0.2)


def test_verl_silences_beyond_a_log_ratio_of_20_and_we_do_not() -> None:
    theirs = verl_loss("compute_policy_loss_vanilla")
    lr, a, mask = torch.tensor([[-21.0]], dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64), torch.ones(1, 1)
    assert slope_of(lambda lr: theirs(lr, a, mask, 0.2, 0.2), lr)[1] == 0
    (ours,) = slope_of(lambda lr: pg.policy.loss(lr, a).sum(), lr)[1]
    assert ours == -torch.exp(lr)
