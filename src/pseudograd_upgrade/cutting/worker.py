"""Runs calls in a plain interpreter that has torch and nothing of ours.

Each line of JSON on its input is a job: the file of the tensors, the tensors that require a gradient, the lines to run, and the file for
the outcome.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch


def run(job: dict[str, Any]) -> dict[str, object]:
    space = {"torch": torch}
    for name, tensor in torch.load(job["tensors"], weights_only=True).items():
        space[name] = tensor.requires_grad_(name in job["requires"])
    torch.manual_seed(0)
    state = torch.get_rng_state()
    exec("\n".join(job["lines"]), space)
    y = space["y"]
    results = y if isinstance(y, (tuple, list)) else (y,)
    tensors = {f"y{at}": value.detach() for at, value in enumerate(results) if isinstance(value, torch.Tensor)}
    for name in job["requires"]:
        grad = space[name].grad
        if grad is not None:
            tensors[f"grad of {name}"] = grad.detach()
    torch.save({name: tensor.contiguous() for name, tensor in tensors.items()}, job["outcome"])
    is_random = not torch.equal(state, torch.get_rng_state())
    return {"error": None, "is_random": is_random, "is_tensor": isinstance(y, torch.Tensor)}


def main() -> None:
    torch.set_num_threads(1)
    answers = sys.stdout
    sys.stdout = sys.stderr
    for line in sys.stdin:
        try:
            answer = run(json.loads(line))
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {str(error).strip().splitlines()[:1]}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
