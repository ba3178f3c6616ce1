"""The callbacks in the published trainers: what they log, where they stop, what they leave behind."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack

STEPS = 6
pytestmark = pytest.mark.filterwarnings("default")  # of the trainers' own


class Gated(nn.Module):
    """The gain stands above its clamp: it starves, and the scale learns."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.tensor([5.0]))
        self.scale = nn.Parameter(torch.tensor([2.0]))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.gain.clamp(0, 1) * self.scale).square().mean()


def _cuts(numbers: dict[str, float]) -> list[float]:
    return [value for key, value in numbers.items() if key.startswith("pseudograd/cut/")]


# --- Lightning --------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["lightning.pytorch", pytest.param("pytorch_lightning", marks=pytest.mark.program)])
def lightning(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Each package has a Callback of its own: ours is that of the package which the program imports."""
    import sys

    package = pytest.importorskip(request.param)
    for name in [name for name in sys.modules if name.split(".")[0] in ("lightning", "pytorch_lightning")]:
        if name.split(".")[0] != request.param.split(".")[0]:
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "pseudograd.integrations.lightning", raising=False)
    return package


def _fit(
    lightning: Any,
    folder: Path,
    callback: Any,
    fails_at: int | None = None,
    by_hand: bool = False,
    ckpt_path: Path | None = None,
    **options: Any,
) -> Any:
    class Logger(lightning.loggers.logger.DummyLogger):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.logged: list[tuple[int, dict[str, float]]] = []

        def log_metrics(self, metrics: Any, step: int) -> None:  # type: ignore[override]
            if "pseudograd/findings" in metrics:
                self.logged.append((step, metrics))

    class Lit(lightning.LightningModule):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = Gated()
            self.automatic_optimization = not by_hand

        def training_step(self, batch: Any, number: int) -> Tensor | None:
            if number == fails_at:
                raise RuntimeError("theirs")
            if not by_hand:
                return self.net(batch)  # type: ignore[no-any-return]
            self.manual_backward(self.net(batch))
            for optimizer in self.optimizers():
                optimizer.step()
                optimizer.zero_grad()
            return None

        def configure_optimizers(self) -> Any:
            if by_hand:
                return [torch.optim.SGD([entry], 1e-3) for entry in self.parameters()]
            return torch.optim.SGD(self.parameters(), 1e-3)

    logger = Logger()
    trainer = lightning.Trainer(
        accelerator="cpu",
        logger=logger,
        callbacks=[callback],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        **{"max_steps": STEPS, **options},
    )
    batches = torch.utils.data.DataLoader([torch.ones(3)] * 100, batch_size=None)
    try:
        trainer.fit(Lit(), batches, ckpt_path=ckpt_path)
    finally:
        assert not _get_current_function_mode_stack()
    return trainer


def _lightning_callback(*args: Any, **options: Any) -> Any:
    from pseudograd.integrations.lightning import DiagnoseCallback

    return DiagnoseCallback(*args, **options)


def test_lightning_logs_the_sampled_steps(lightning: Any, tmp_path: Path) -> None:
    callback = _lightning_callback(every_n_steps=3)
    logged = _fit(lightning, tmp_path, callback).logger.logged
    assert [step for step, _ in logged] == [1, 4]
    for _, numbers in logged:
        assert _cuts(numbers) == [1.0]
        assert numbers["pseudograd/starved"] == 1.0
        assert numbers["pseudograd/norm/net.scale"] > 0
    assert [entry.parameter for entry in callback.last.starved] == ["net.gain"]


def test_lightning_takes_accumulated_batches_as_one_step(lightning: Any, tmp_path: Path) -> None:
    callback = _lightning_callback(every_n_steps=2)
    logged = _fit(lightning, tmp_path, callback, accumulate_grad_batches=4).logger.logged
    assert [(step, numbers["pseudograd/backwards"]) for step, numbers in logged] == [(1, 4.0), (3, 4.0), (5, 4.0)]


def test_lightning_with_two_optimisers_by_hand(lightning: Any, tmp_path: Path) -> None:
    """Each counts as a step, so that a batch takes two of them."""
    callback = _lightning_callback(every_n_steps=3)
    logged = _fit(lightning, tmp_path, callback, by_hand=True).logger.logged
    assert [(step, numbers["pseudograd/backwards"]) for step, numbers in logged] == [(2, 1.0), (6, 1.0)]
    assert [entry.parameter for entry in callback.last.starved] == ["net.gain"]


def test_lightning_goes_on_from_a_checkpoint(lightning: Any, tmp_path: Path) -> None:
    first = _fit(lightning, tmp_path, _lightning_callback(every_n_steps=4))
    assert [step for step, _ in first.logger.logged] == [1, 5]
    first.save_checkpoint(stored := tmp_path / "kept.ckpt")
    second = _fit(lightning, tmp_path, _lightning_callback(every_n_steps=4), max_steps=14, ckpt_path=stored)
    assert [step for step, _ in second.logger.logged] == [9, 13]


def test_lightning_stops_on_a_finding(lightning: Any, tmp_path: Path) -> None:
    callback = _lightning_callback(every_n_steps=1, stop_on="starved")
    with pytest.warns(UserWarning, match="DiagnoseCallback: the training is stopped, as asked: starved"):
        assert _fit(lightning, tmp_path, callback).global_step == 1


def test_an_error_in_lightning_closes_the_diagnosis(lightning: Any, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="theirs"):
        _fit(lightning, tmp_path, _lightning_callback(), fails_at=0)


# --- Hugging Face -----------------------------------------------------------------------------------------------------


class ForTrainer(Gated):
    def forward(self, x: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        return {"loss": super().forward(x)}


def _trainer(folder: Path, net: nn.Module, **options: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("transformers.trainer", reason="it asks for a newer torch", exc_type=ImportError)
    pytest.importorskip("accelerate")
    arguments = transformers.TrainingArguments(
        folder,
        per_device_train_batch_size=2,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        **{"max_steps": STEPS, "save_strategy": "no", **options},
    )
    return transformers.Trainer(net, arguments, train_dataset=[{"x": torch.ones(3)}] * 64)


def _logged(trainer: Any) -> list[tuple[int, dict[str, float]]]:
    return [(entry["step"], entry) for entry in trainer.state.log_history if "pseudograd/findings" in entry]


def _callback(trainer: Any, *args: Any, **options: Any) -> Any:
    from pseudograd.integrations.transformers import DiagnoseCallback

    callback = DiagnoseCallback(trainer, *args, **options)
    trainer.add_callback(callback)
    return callback


def test_the_trainer_logs_the_sampled_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = _trainer(tmp_path, ForTrainer(), gradient_accumulation_steps=2)
    callback = _callback(trainer, every_n_steps=3)
    trainer.train()
    logged = _logged(trainer)
    assert [(step, numbers["pseudograd/backwards"]) for step, numbers in logged] == [(1, 2.0), (4, 2.0)]
    for _, numbers in logged:
        assert _cuts(numbers) == [1.0]
        assert numbers["pseudograd/norm/scale"] > 0
    assert [entry.parameter for entry in callback.last.starved] == ["gain"]
    assert not _get_current_function_mode_stack()


def test_the_trainer_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    logged = []
    stored = {"save_strategy": "steps", "save_steps": STEPS, "gradient_accumulation_steps": 2}
    for steps, checkpoint in ((STEPS, None), (2 * STEPS, tmp_path / f"checkpoint-{STEPS}")):
        trainer = _trainer(tmp_path, ForTrainer(), max_steps=steps, **stored)
        _callback(trainer, every_n_steps=4)
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
        logged.append([(step, numbers["pseudograd/backwards"]) for step, numbers in _logged(trainer)])
    assert logged[0] == [(1, 2.0), (5, 2.0)]
    assert logged[1] == [(1, 2.0), (5, 2.0), (9, 2.0)], "the first two are those of the checkpoint"


def test_the_trainer_stops_on_a_finding(tmp_path: Path) -> None:
    trainer = _trainer(tmp_path, ForTrainer())
    _callback(trainer, every_n_steps=1, stop_on=["cut>0.9"])
    with pytest.warns(UserWarning, match="as asked: cut>0.9 at"):
        trainer.train()
    assert trainer.state.global_step == 1


def test_an_error_in_the_trainer_closes_the_diagnosis(tmp_path: Path) -> None:
    class Failing(ForTrainer):
        def forward(self, x: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
            raise RuntimeError("theirs")

    trainer = _trainer(tmp_path, Failing())
    _callback(trainer)
    with pytest.raises(RuntimeError, match="theirs"):
        trainer.train()
    assert not _get_current_function_mode_stack()


def test_the_numbers_of_a_training_are_those_without_it(tmp_path: Path) -> None:
    def trained(is_watched: bool) -> list[Tensor]:
        net = ForTrainer()
        trainer = _trainer(tmp_path, net, seed=3)
        if is_watched:
            _callback(trainer, every_n_steps=2)
        with warnings.catch_warnings():
            trainer.train()
        return [entry.detach().clone() for entry in net.parameters()]

    assert all(torch.equal(entry, other) for entry, other in zip(trained(True), trained(False), strict=True))
