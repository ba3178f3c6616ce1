"""Training steps on a CUDA device: few-bit activations, and a diagnosis, beside the same step without them.

    python benchmarks/steps_on_cuda.py [--write]      --write: the tables into docs/speed_on_cuda.md

The networks are from transformers and torchvision, which must be installed. A table has the time of a step, the memory that is kept after
the forward pass, and the peak memory of a step. For a diagnosis it also has the kernels and the waits for the device in one step.
"""

from __future__ import annotations

import contextlib
import importlib
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import pseudograd as pg
from harness import EmptyMode, parser_of, ratio, seconds_of
from on_cuda import cell

MIB = 2**20
# What is aimed at: of a step, and of a diagnosed one, as multiples of the plain one. A diagnosis waits no more often.
MOST_TIME, MOST_TIMES, MOST_LAUNCHES = 1.05, {"plain": 1.0, "counts": 1.15, "full": 1.3}, 1.6
# Steps of a diagnosis. It looks more closely at the first of them, and at each whose number is a power of two.
BEGINNING = 17
Step = Callable[[], Tensor]
Context = contextlib.AbstractContextManager[object]


def _language_model(name: str, is_half: bool = False) -> Step:
    transformers: Any = importlib.import_module("transformers")
    if name == "GPT-2":
        none = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        config = transformers.GPT2Config(n_layer=6, n_embd=768, n_head=12, activation_function="gelu", **none)
        net = transformers.GPT2LMHeadModel(config)
        for block in net.transformer.h:
            block.mlp.act = nn.GELU()  # what the library calls, as the module that `convert` knows
    else:
        sizes = {"hidden_size": 768, "intermediate_size": 2048, "num_attention_heads": 12, "vocab_size": 32000}
        net = transformers.LlamaForCausalLM(transformers.LlamaConfig(num_hidden_layers=6, **sizes))
        for layer in net.model.layers:
            layer.mlp.act_fn = nn.SiLU()
    tokens = torch.randint(30000, (8, 512), device="cuda")
    return _step(net, lambda net: net(input_ids=tokens, labels=tokens, use_cache=False).loss, is_half)


def _vision_model(name: str) -> Step:
    torchvision: Any = importlib.import_module("torchvision")
    net = getattr(torchvision.models, name)(num_classes=10)
    x, y = torch.randn(32, 3, 96, 96, device="cuda"), torch.randint(10, (32,), device="cuda")
    return _step(net, lambda net: nn.functional.cross_entropy(net(x), y))


def _step(net: nn.Module, loss_of: Callable[[nn.Module], Tensor], is_half: bool = False) -> Step:
    net.cuda().train()
    optimiser = torch.optim.AdamW(net.parameters(), lr=1e-4)

    def step() -> Tensor:
        optimiser.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=is_half):
            loss = loss_of(net)
        held.append(torch.cuda.memory_allocated() / MIB)
        loss.backward()
        optimiser.step()
        return loss

    nets[step] = net
    return step


held: list[float] = []
nets: dict[Step, nn.Module] = {}
TRAININGS: dict[str, tuple[Callable[[], Step], dict[str, str], dict[type[nn.Module], str]]] = {
    "GPT-2, gelu, float32": (lambda: _language_model("GPT-2"), {"gelu": "fewbit"}, {nn.GELU: "fewbit"}),
    "GPT-2, gelu, bfloat16": (lambda: _language_model("GPT-2", is_half=True), {"gelu": "fewbit"}, {nn.GELU: "fewbit"}),
    "Llama, silu, float32": (lambda: _language_model("Llama"), {"silu": "fewbit"}, {nn.SiLU: "fewbit"}),
    "Llama, silu, bfloat16": (lambda: _language_model("Llama", is_half=True), {"silu": "fewbit"}, {nn.SiLU: "fewbit"}),
    "MobileNetV2, relu6": (lambda: _vision_model("mobilenet_v2"), {"relu": "inward"}, {nn.ReLU6: "inward"}),
}
DIAGNOSED = {
    "ResNet-18": lambda: _vision_model("resnet18"),
    "GPT-2 of 6 layers": lambda: _language_model("GPT-2"),
}


def _milliseconds(step: Step, steps: int) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / steps * 1000


def _memory(step: Step) -> tuple[float, float]:
    """MiB kept after forward, and the peak of a step."""
    held.clear()
    torch.cuda.reset_peak_memory_stats()
    step()
    return held[-1], torch.cuda.max_memory_allocated() / MIB


def training(name: str, rounds: int) -> str:
    make, families, modules = TRAININGS[name]
    torch.manual_seed(0)
    step = make()
    contexts: dict[str, Callable[[], Context]] = {
        "plain": contextlib.nullcontext,
        "convert": lambda: pg.convert(nets[step], modules),
        "override": lambda: pg.override(**families),
        "an empty mode": EmptyMode,
    }
    memory = {}
    for way, context in contexts.items():
        with context():
            _milliseconds(step, 3)
            memory[way] = _memory(step)

    def sample(way: str) -> float:
        with contexts[way]():
            _milliseconds(step, 2)
            return _milliseconds(step, 6)

    taken, (held_before, peak_before) = seconds_of(contexts, sample, rounds), memory["plain"]
    cells = []
    for way in ("convert", "override"):
        after, peak = memory[way]
        time_taken = cell(ratio(taken, way, "plain"), MOST_TIME)
        cells.append(f"{after / held_before - 1:+.0%}, {peak / peak_before - 1:+.0%}, {time_taken}")
    plain = f"{held_before:,.0f}, {peak_before:,.0f}, {statistics.median(taken['plain']):.1f}"
    return f"| {name} | {plain} | {' | '.join(cells)} | {ratio(taken, 'an empty mode', 'plain'):.2f} |"


def _counts(step: Step) -> tuple[int, int]:
    """Kernels and copies that one step starts, and how often it waits."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        step()
        torch.cuda.synchronize()
    counts = {event.key: event.count for event in profiled.key_averages()}
    launches = [f"{api}LaunchKernel{end}" for api, end in (("cuda", ""), ("cuda", "ExC"), ("cu", ""), ("cu", "Ex"))]
    started = sum(counts.get(name, 0) for name in (*launches, "cudaMemcpyAsync", "cudaMemsetAsync"))
    return started, counts.get("cudaStreamSynchronize", 0) + counts.get("cudaEventSynchronize", 0)


def diagnosis(name: str, rounds: int) -> list[str]:
    torch.manual_seed(0)
    step = DIAGNOSED[name]()
    net, ways, counted = nets[step], ("plain", "counts", "full"), {}

    def context(way: str) -> Context:
        return (
            contextlib.nullcontext()
            if way == "plain"
            else pg.diagnose(net, detail="full" if way == "full" else "counts")
        )

    for way in ways:
        with context(way):
            _milliseconds(step, BEGINNING)
            counted[way] = _counts(step)

    def sample(way: str) -> float:
        with context(way):
            _milliseconds(step, BEGINNING)
            return _milliseconds(step, 12)

    taken, (plain, own) = seconds_of(ways, sample, rounds), counted["plain"]
    return [
        f"| {name} | {way} | {statistics.median(taken[way]):.1f} | {cell(ratio(taken, way, 'plain'), MOST_TIMES[way])} |"
        f" {started:,} | {cell(started / plain, MOST_LAUNCHES)} | {waits if waits <= own else f'**{waits}**'} |"
        for way, (started, waits) in counted.items()
    ]


HEADS = (
    "| training | MiB kept after forward, peak MiB, ms a step | `convert`: kept, peak, time | `override`: the same | an empty mode |",
    "|---|---:|---:|---:|---:|",
    "| network | `detail` | ms a step | x plain | kernels and copies started | x plain | waits |",
    "|---|---|---:|---:|---:|---:|---:|",
)
PAGE = Path(__file__).parents[1] / "docs" / "speed_on_cuda.md"
BEGIN = "## Training steps\n"


def write(trainings: list[str], diagnoses: list[str]) -> None:
    text = [
        BEGIN,
        f"On an {torch.cuda.get_device_name()} under torch {torch.__version__}; six layers of width 768, 8 sequences of 512 tokens;",
        "32 images of 96 x 96; AdamW. gelu and silu keep few bits in place of their input, relu6 keeps bits. `convert` exchanges the",
        "modules. `override` sees every call of torch, which costs time if the device waits for Python; the last column shows the cost of",
        f"an empty mode of functions. We aim at {MOST_TIME} of the time; what is above it is bold. `python benchmarks/steps_on_cuda.py",
        "--write` measured this.\n",
        *HEADS[:2],
        *trainings,
        "\n## A diagnosed step\n",
        f"Measured from step {BEGINNING + 1} on. We aim at {MOST_TIMES['counts']} of the time for counts, {MOST_TIMES['full']} for full,",
        f"{MOST_LAUNCHES} of the launches, and no wait that the plain step does not have. What is above it is bold.\n",
        *HEADS[2:],
        *diagnoses,
    ]
    page = PAGE.read_text(encoding="utf-8").split(BEGIN)[0].rstrip() if PAGE.exists() else "# Speed on CUDA"
    PAGE.write_text(page + "\n\n" + "\n".join(text) + "\n", encoding="utf-8")


def main() -> int:
    parser = parser_of(__doc__, rounds=5)
    parser.add_argument("--write", action="store_true", help=f"the tables into {PAGE.name}")
    parser.add_argument("--only", default="", help="the rows whose name contains this")
    parser.add_argument("--seconds", type=float, default=600.0, help="begin no row after these; default 600")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("steps_on_cuda.py: a CUDA device must be there, got none.", file=sys.stderr)
        return 2
    trainings: list[str] = []
    diagnoses: list[str] = []
    failures, start = [], time.monotonic()
    rows = [(name, trainings, lambda *of: [training(*of)]) for name in TRAININGS]
    # The diagnoses come first: they are fewer, and the promises about launches and waits are theirs.
    for name, lines, measure in [*((name, diagnoses, diagnosis) for name in DIAGNOSED), *rows]:
        if options.only in name and time.monotonic() - start < options.seconds:
            try:
                measured = measure(name, options.rounds)
            except Exception as error:  # one row stops no other, as where transformers is missing
                failures.append(f"{name}: {error!r}")
            else:
                lines += measured
                print(*measured, sep="\n", flush=True)
            nets.clear()
            torch.cuda.empty_cache()
    if options.write:
        write(trainings, diagnoses)
    print(*failures, sep="\n", file=sys.stderr)
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
