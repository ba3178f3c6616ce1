"""Runs calls in a plain interpreter that has torch and nothing of ours: this file is handed to it as it is.

A line of JSON asks: of which file the tensors are, which of them require a gradient, the lines to run, the file for what they gave.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch


def _outcome(asked: Any) -> dict[str, object]:
    space = {"torch": torch}
    for name, tensor in torch.load(asked["tensors"], weights_only=True).items():
        space[name] = tensor.requires_grad_(name in asked["requires"])
    torch.manual_seed(0)
    before = torch.get_rng_state()
    exec("\n".join(asked["lines"]), space)
    y = space["y"]
    found = {f"y{at}": one.detach() for at, one in enumerate(_listed(y)) if isinstance(one, torch.Tensor)}
    for name in asked["requires"]:
        grad = space[name].grad
        if grad is not None:
            found[f"grad of {name}"] = grad.detach()
    torch.save({name: one.contiguous() for name, one in found.items()}, asked["outcome"])
    is_random = not torch.equal(before, torch.get_rng_state())
    return {"error": None, "is_random": is_random, "is_tensor": isinstance(y, torch.Tensor)}


def _listed(y: object) -> Any:
    return y if isinstance(y, (tuple, list)) else (y,)


def main() -> None:
    torch.set_num_threads(1)
    answers = sys.stdout
    sys.stdout = sys.stderr
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        try:
            answer = _outcome(json.loads(line))
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {str(error).strip().splitlines()[:1]}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
