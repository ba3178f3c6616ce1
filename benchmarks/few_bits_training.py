"""Does a transformer learn as well with the few-bit gradient of gelu? A small one, on characters, over several seeds.

python benchmarks/few_bits_training.py [--seeds 5] [--steps 300] [--bits 2] [--json FILE]

The text is the source of a few modules of Python's standard library; the last tenth is held out. Each seed is trained twice, the same
but for `override(gelu=...)`: with torch's own gradient of gelu, and with "fewbit". Printed are the held-out losses, their difference
relative to the exact one, and the bytes that all activations of one step keep.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sysconfig
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import pseudograd as pg

MODULES = ("argparse", "ast", "difflib", "inspect", "pathlib", "pickle", "tarfile", "typing")
CONTEXT, BATCH, WIDTH, HEADS, LAYERS = 64, 24, 64, 4, 2


def text() -> Tensor:
    """Characters as small integers; the rare ones share one."""
    folder = Path(sysconfig.get_path("stdlib"))
    found = "".join(
        (folder / f"{name}.py").read_text(encoding="utf-8") for name in MODULES if (folder / f"{name}.py").is_file()
    )
    return torch.tensor([min(ord(character), 127) for character in found])


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mixed, self.joined = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = self.mixed(self.before(x)).reshape(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.joined(seen.transpose(1, 2).reshape(batch, length, -1))
        return x + self.mlp(self.between(x))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.of_character, self.of_place = nn.Embedding(128, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)), nn.LayerNorm(WIDTH))
        self.head = nn.Linear(WIDTH, 128)

    def forward(self, characters: Tensor) -> Tensor:
        return self.head(self.blocks(self.of_character(characters) + self.of_place.weight))


def loss_of(model: Model, characters: Tensor, starts: Tensor) -> Tensor:
    window = characters[starts.unsqueeze(1) + torch.arange(CONTEXT + 1)]
    return functional.cross_entropy(model(window[:, :-1]).flatten(0, 1), window[:, 1:].flatten())


def trained(seed: int, steps: int, rule: Any, characters: Tensor) -> dict[str, Any]:
    """The held-out loss after training, and what one forward pass kept in bytes."""
    torch.manual_seed(seed)
    model, split = Model(), len(characters) * 9 // 10
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps, pct_start=0.1)
    kept: list[int] = []
    for step in range(steps):
        starts = torch.randint(split - CONTEXT - 1, (BATCH,))
        with contextlib.ExitStack() as stack:
            if rule is not None:
                stack.enter_context(pg.override(gelu=rule))
            if not step:
                stack.enter_context(
                    torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.nbytes) or t, lambda t: t)
                )
            loss = loss_of(model, characters, starts)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    starts = torch.arange(split, len(characters) - CONTEXT - 1, CONTEXT)
    with torch.no_grad():
        losses = [loss_of(model, characters, part).item() * len(part) for part in starts.split(128)]
    return {"loss": sum(losses) / len(starts), "kept": sum(kept)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--bits", type=int, default=2)
    parser.add_argument("--json", type=Path, default=Path("few_bits_training.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    characters, started = text(), time.perf_counter()
    runs = []
    for seed in range(options.seeds):
        exact = trained(seed, options.steps, None, characters)
        few = trained(seed, options.steps, pg.rules.fewbit(bits=options.bits), characters)
        change = few["loss"] / exact["loss"] - 1
        runs.append({"seed": seed, "exact": exact, "fewbit": few, "change": change})
        print(
            f"seed {seed}: exact {exact['loss']:.4f}, {options.bits} bits {few['loss']:.4f}, {change:+.2%}", flush=True
        )
    means = {name: sum(run[name]["loss"] for run in runs) / len(runs) for name in ("exact", "fewbit")}
    change = means["fewbit"] / means["exact"] - 1
    kept = {name: runs[0][name]["kept"] for name in ("exact", "fewbit")}
    print(f"mean: exact {means['exact']:.4f}, {options.bits} bits {means['fewbit']:.4f}, {change:+.2%}")
    print(
        f"kept by one forward pass: {kept['exact'] / 1e6:.1f} MB, with {options.bits} bits {kept['fewbit'] / 1e6:.1f} MB"
    )
    figures = {
        "torch": torch.__version__,
        "seeds": options.seeds,
        "steps": options.steps,
        "bits": options.bits,
        "characters": len(characters),
        "seconds": round(time.perf_counter() - started, 1),
        "mean_loss": means,
        "change": change,
        "kept_bytes": kept,
        "runs": runs,
    }
    options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
