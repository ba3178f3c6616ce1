"""The callbacks in the published trainers: what they log, where they stop, what they leave behind."""

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack

STEPS = 6
pytestmark = pytest.mark.filterwarnings("default")  # of the trainers' own
LIGHTNING = [pytest.param(name, marks=pytest.mark.program) for name in ("lightning.pytorch", "pytorch_lightning")]


class Gated(nn.Module):
    """The gain stands above its clamp: it starves, and the scale learns."""

    def __init__(self, fails: bool = False) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.tensor([5.0]))
        self.scale = nn.Parameter(torch.tensor([2.0]))
        self.fails = fails

    def forward(self, x: Tensor) -> Any:
        if self.fails:
            raise RuntimeError("theirs")
        return (x * self.gain.clamp(0, 1) * self.scale).square().mean()


class ForTrainer(Gated):
    def forward(self, x: Tensor) -> Any:
        return {"loss": super().forward(x)}


class Training(NamedTuple):
    """A training that has ended. prefix: of the parameters' names. stored: its checkpoint."""

    callback: Any
    logged: list[tuple[int, dict[str, float]]]
    steps: int
    stored: Path
    prefix: str = ""


def fit_lightning(
    package: str,
    folder: Path,
    fails: bool = False,
    accumulate: int = 1,
    steps: int = STEPS,
    checkpoint: Path | None = None,
    **options: Any,
) -> Training:
    """Each package has a Callback of its own: ours is that of the package which the program imports."""
    lightning: Any = pytest.importorskip(package)
    from pseudograd.integrations.lightning import DiagnoseCallback

    logged = []

    class Logger(lightning.loggers.logger.DummyLogger):
        def log_metrics(self, metrics: Any, step: int) -> None:
            if "pseudograd/findings" in metrics:
                logged.append((step, metrics))

    class Lit(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Gated(fails)

        def training_step(self, batch: Any, number: int) -> Tensor:
            return self.net(batch)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 1e-3)

    callback, stored = DiagnoseCallback(**options), folder / f"{steps}.ckpt"
    trainer = lightning.Trainer(
        accelerator="cpu",
        logger=Logger(),
        callbacks=[callback],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        accumulate_grad_batches=accumulate,
        max_steps=steps,
    )
    batches = torch.utils.data.DataLoader([torch.ones(3)] * 100, batch_size=None)
    trainer.fit(Lit(), batches, ckpt_path=checkpoint)
    trainer.save_checkpoint(stored)
    return Training(callback, logged, trainer.global_step, stored, "net.")


def fit_trainer(
    folder: Path,
    fails: bool = False,
    accumulate: int = 1,
    steps: int = STEPS,
    checkpoint: Path | None = None,
    net: nn.Module | None = None,
    **options: Any,
) -> Training:
    """With Hugging Face's Trainer; without options nobody diagnoses it."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("transformers.trainer", reason="it asks for a newer torch", exc_type=ImportError)
    pytest.importorskip("accelerate")
    from pseudograd.integrations.transformers import DiagnoseCallback

    arguments = transformers.TrainingArguments(
        folder,
        per_device_train_batch_size=2,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        seed=3,
        gradient_accumulation_steps=accumulate,
        max_steps=steps,
        save_strategy="steps",
        save_steps=STEPS,
    )
    trainer = transformers.Trainer(net or ForTrainer(fails), arguments, train_dataset=[{"x": torch.ones(3)}] * 64)
    callback = DiagnoseCallback(trainer, **options) if options else None
    if callback is not None:
        trainer.add_callback(callback)
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    logged = [(entry["step"], entry) for entry in trainer.state.log_history if "pseudograd/findings" in entry]
    return Training(callback, logged, trainer.state.global_step, folder / f"checkpoint-{STEPS}")


@pytest.fixture
def fit(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Training]]:
    package: str = request.param
    for name in list(sys.modules):
        top = name.split(".")[0]
        if top in ("lightning", "pytorch_lightning") and top != package.split(".")[0]:
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "pseudograd.integrations.lightning", raising=False)
    if package == "transformers":
        yield lambda **options: fit_trainer(tmp_path, **options)
    else:
        yield lambda **options: fit_lightning(package, tmp_path, **options)
    assert not _get_current_function_mode_stack()


HUGGING_FACE = [pytest.param("transformers", marks=pytest.mark.program)]
every_trainer = pytest.mark.parametrize("fit", [*LIGHTNING, *HUGGING_FACE], indirect=True)


@every_trainer
def test_the_sampled_steps_are_logged_and_accumulated_batches_are_one_step(fit: Callable[..., Training]) -> None:
    done = fit(every_n_steps=3, accumulate=2)
    assert [(step, numbers["pseudograd/backwards"]) for step, numbers in done.logged] == [(1, 2.0), (4, 2.0)]
    for _, numbers in done.logged:
        assert [value for key, value in numbers.items() if key.startswith("pseudograd/cut/")] == [1.0]
        assert numbers["pseudograd/starved"] == 1.0
        assert numbers[f"pseudograd/norm/{done.prefix}scale"] > 0
    assert [entry.parameter for entry in done.callback.last.starved] == [f"{done.prefix}gain"]


def test_the_callback_of_lightning_in_a_trainer_of_this_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lightning.pytorch", SimpleNamespace(Callback=object))
    monkeypatch.delitem(sys.modules, "pseudograd.integrations.lightning", raising=False)
    callback = importlib.import_module("pseudograd.integrations.lightning").DiagnoseCallback(stop_on="cut>0.9")
    del sys.modules["pseudograd.integrations.lightning"]
    logged, net = [], Gated()
    logger = SimpleNamespace(log_metrics=lambda metrics, step: logged.append((step, metrics["pseudograd/backwards"])))
    trainer = SimpleNamespace(global_step=0, loggers=[logger], should_stop=False)
    callback.on_train_batch_start(trainer, net)
    net(torch.ones(3)).backward()
    callback.on_train_batch_end(trainer)
    assert (logged, trainer.should_stop) == ([], False)
    trainer.global_step = 1
    with pytest.warns(UserWarning, match="as asked: cut>0.9 at"):
        callback.on_train_batch_end(trainer)
    assert (logged, trainer.should_stop) == ([(1, 1.0)], True)
    callback.on_train_batch_start(SimpleNamespace(global_step=100), net)
    assert _get_current_function_mode_stack()
    callback.on_exception(trainer)
    assert not _get_current_function_mode_stack()


def test_the_callback_of_hugging_face_in_a_trainer_of_this_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends the training on a finding, and the diagnosis with the training, also by an error."""
    package = SimpleNamespace(TrainerCallback=object, TrainerControl=None, TrainerState=None)
    monkeypatch.setitem(sys.modules, "transformers", package)
    monkeypatch.delitem(sys.modules, "pseudograd.integrations.transformers", raising=False)
    logged, net = [], Gated()

    def train(fails: bool = False) -> bool:
        state, control = SimpleNamespace(global_step=0), SimpleNamespace(should_training_stop=False)
        callback.on_step_begin(None, state, control, model=net)
        net(torch.ones(3)).backward()
        if fails:
            raise RuntimeError("theirs")
        state.global_step = 1
        callback.on_step_end(None, state, control)
        return control.should_training_stop

    trainer = SimpleNamespace(log=lambda numbers: logged.append(numbers["pseudograd/backwards"]), train=train)
    module = importlib.import_module("pseudograd.integrations.transformers")
    del sys.modules["pseudograd.integrations.transformers"]
    callback = module.DiagnoseCallback(trainer, stop_on="cut>0.9")
    with pytest.warns(UserWarning, match="as asked: cut>0.9 at"):
        assert trainer.train()
    assert logged == [1.0]
    with pytest.raises(RuntimeError, match="theirs"):
        trainer.train(fails=True)
    assert not _get_current_function_mode_stack()
    callback.on_step_begin(None, SimpleNamespace(global_step=0), None, model=net)
    callback.on_train_end(None)
    assert not _get_current_function_mode_stack()


@every_trainer
def test_a_training_goes_on_from_a_checkpoint(fit: Callable[..., Training]) -> None:
    first = fit(every_n_steps=4)
    second = fit(every_n_steps=4, steps=14, checkpoint=first.stored)
    assert [step for step, _ in first.logged] == [1, 5]
    assert [step for step, _ in second.logged][-2:] == [9, 13]  # Hugging Face has those of the checkpoint before
    assert len(second.logged) in (2, 4)


@every_trainer
def test_a_training_stops_on_a_finding(fit: Callable[..., Training]) -> None:
    with pytest.warns(UserWarning, match="DiagnoseCallback: the training is stopped, as asked: cut>0.9 at"):
        assert fit(every_n_steps=1, stop_on=["cut>0.9"]).steps == 1


@every_trainer
def test_an_error_of_the_training_closes_the_diagnosis(fit: Callable[..., Training]) -> None:
    """`fit` checks that no mode is left behind."""
    with pytest.raises(RuntimeError, match="theirs"):
        fit(every_n_steps=1, fails=True)


@pytest.mark.parametrize("fit", HUGGING_FACE, indirect=True)
def test_the_numbers_of_a_training_are_those_without_it(fit: Callable[..., Training]) -> None:
    nets = [ForTrainer(), ForTrainer()]
    fit(net=nets[0], every_n_steps=2)
    fit(net=nets[1])
    assert all(map(torch.equal, nets[0].parameters(), nets[1].parameters()))
