"""Compare six tools on fifteen programs in which nan or infinity begins: what a tool says, and what it costs. Writes docs/nan_tools.json.

python benchmarks/nan_tools.py [--rounds N]        docs/ten_ways.md has a table of it; needs transformers and lightning

Code judges the text of a tool. Does it name the line of the fault, and the op or the reason beside what it repeats of the line? Does
the program run without nan if the advised line replaces the line of the fault? Of DebugMode counts the first call whose norm is not finite.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import logging
import math
import re
import sys
import tempfile
import time
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import lightning
import torch
import transformers
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.utils._debug_mode import DebugMode
from torch.utils._pytree import tree_leaves
from transformers.debug_utils import DebugUnderflowOverflow

from harness import parser_of, ratio, seconds_of
from models import Encoder, resnet
from nan_programs import FAULTS, lines_of, source_of
from pseudograd import diagnose

FOUND = Path(__file__).resolve().parent.parent / "docs" / "nan_tools.json"
TOOLS = ("pseudograd", "set_detect_anomaly", "DebugMode", "DebugUnderflowOverflow", "NanDetector", "Lightning")


def watch_modules(net: nn.Module) -> None:
    """The method of fairseq's NanDetector: which output of a module, and which gradient, is the first that is not finite?"""
    seen = set()

    def look(what: str, value: object) -> None:
        if isinstance(value, Tensor) and what[:6] not in seen and not value.isfinite().all():
            seen.add(what[:6])
            print(f"nan or inf in the {what}, of shape {tuple(value.shape)}")

    def watch(name: str, module: nn.Module, _: object, out: object) -> None:
        look(f"output of {name} ({type(module).__name__})", out)
        if isinstance(out, Tensor) and out.requires_grad:
            out.register_hook(functools.partial(look, f"gradient of {name} ({type(module).__name__})"))

    for name, module in net.named_modules():
        module.register_forward_hook(functools.partial(watch, name))


def fit(net: nn.Module, loss: Callable[[], Tensor], optimizer: torch.optim.Optimizer, is_detecting: bool) -> None:
    """Four steps of Lightning's Trainer."""

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def training_step(self, *_: object) -> Tensor:
            return loss()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return optimizer

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    off = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = Trainer(max_steps=4, accelerator="cpu", detect_anomaly=is_detecting, **off)
    trainer.fit(Module(), torch.utils.data.DataLoader([0] * 4))


@contextlib.contextmanager
def watched(tool: str, net: nn.Module, advice: dict[str, str]) -> Iterator[None]:
    """A tool looks at what runs in the context, and prints. advice: gets the lines that it advises, by the expressions that it found."""
    if tool == "set_detect_anomaly":
        with torch.autograd.set_detect_anomaly(True):
            yield
    elif tool == "DebugMode":
        with DebugMode(record_stack_trace=True) as mode, DebugMode.log_tensor_hashes():
            yield
        norms = [(call, tree_leaves((call.log or {}).get("hash"))) for call in mode.logs]
        calls = [call for call, values in norms if not all(math.isfinite(value or 0.0) for value in values)]
        print(*[(call.op, call.fwd_stack_trace or call.stack_trace) for call in calls[:1]])
    elif tool == "pseudograd":
        with diagnose(net) as d:
            yield
        advice.update((finding.expression, finding.next_step.partition("  #")[0]) for finding in d.findings)
        print(d)
    else:
        if tool == "DebugUnderflowOverflow":
            DebugUnderflowOverflow(net)
        elif tool == "NanDetector":
            watch_modules(net)
        yield


def run(source: str, tool: str, advice: dict[str, str]) -> tuple[str, nn.Module | None]:
    """What a tool prints, warns of and raises while a program trains; and its network."""
    file, out = Path(tempfile.mkdtemp()) / "train.py", io.StringIO()
    file.write_text(source, encoding="utf-8")
    program = vars(types.ModuleType("train"))
    with (
        warnings.catch_warnings(record=True) as caught,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(out),
    ):
        warnings.simplefilter("always")
        try:
            exec(compile(source, file, "exec"), program)
            net = program["net"]
            with watched(tool, net, advice):
                fit(net, lambda: net(program["x"]), program["optimizer"], True) if tool == "Lightning" else program[
                    "train"
                ]()
        except Exception as error:
            out.write(str(error))
    return "\n".join([out.getvalue(), *(str(warning.message) for warning in caught)]), program.get("net")


def judge(fault: str, tool: str) -> list[str]:
    (expression, words), source = FAULTS[fault], source_of(fault)
    advice: dict[str, str] = {}
    text, _ = run(source, tool, advice)
    said = {"line": any(re.search(rf'train\.py(:|", line ){line}\b', text) for line in lines_of(fault))}
    said["cause"] = re.search(words, text.replace(expression, ""), re.IGNORECASE) is not None
    for old, new in advice.items():
        source = source.replace(old, new) if old else source
    _, net = run(source, "", {})
    parameters = [] if net is None else list(net.parameters())  # prose does not compile
    tensors = [tensor for p in parameters for tensor in (p, p.grad) if tensor is not None]
    said["mend"] = bool(advice and tensors) and all(bool(tensor.isfinite().all()) for tensor in tensors)
    return [word for word, is_said in said.items() if is_said]


def measure(make: Callable[[], nn.Module], shape: tuple[int, ...], rounds: int) -> dict[str, float]:
    """Times a step without any tool, one thread: the median of ratios side by side."""
    x, target = torch.randn(shape), torch.randn(shape[0], 10)

    def sample(tool: str) -> float:
        net, starts = make(), list[float]()
        optimizer = torch.optim.SGD(net.parameters(), 1e-3)

        def loss() -> Tensor:
            starts.append(time.perf_counter())
            return (net(x) - target).square().mean()

        with contextlib.redirect_stdout(io.StringIO()), watched(tool, net, {}):
            if tool in ("Lightning", "its Trainer"):
                fit(net, loss, optimizer, tool == "Lightning")
            for _ in range(4 - len(starts)):
                optimizer.zero_grad()
                loss().backward()
                optimizer.step()
        return starts[3] - starts[1]

    taken = seconds_of((*TOOLS, "plain", "its Trainer"), sample, rounds)
    return {tool: round(ratio(taken, tool, "its Trainer" if tool == "Lightning" else "plain"), 2) for tool in TOOLS}


def main() -> int:
    options = parser_of(__doc__, rounds=9).parse_args()
    torch.set_num_threads(1)
    versions = {module.__name__: module.__version__ for module in (torch, transformers, lightning)}
    faults = {fault: {tool: judge(fault, tool) for tool in TOOLS} for fault in FAULTS}
    nets = {"transformer": (Encoder, (8, 64, 256)), "ResNet": (resnet, (16, 3, 32, 32))}
    costs = {name: measure(*net, options.rounds) for name, net in nets.items()}
    FOUND.write_text(
        json.dumps({"versions": versions, "faults": faults, "costs": costs}, indent=1) + "\n", encoding="utf-8"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
