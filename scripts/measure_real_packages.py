"""Measure published packages and a loss of torch, unedited, with and without a pin, and store the figures in docs/real_packages.json.

Run it once with each torch; it replaces only the figures of that version. README and tests read them.

pip install torchao==0.18.0 kornia==0.9.0
python scripts/measure_real_packages.py
python scripts/measure_real_packages.py "pairs in order"    these alone, which need no package
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from figures_by_version import keep
from torch import Tensor

from pseudograd import pin_edge
from pseudograd.torch_table.eras import ERAS

ROOT = Path(__file__).resolve().parent.parent
FIGURES = ROOT / "docs" / "real_packages.json"
sys.path.insert(0, str(ROOT / "examples"))


def int2_losses() -> list[str]:
    """The final loss of three seeds, to five digits."""
    from torchao_int2 import train

    return [f"{train(seed):.5f}" for seed in range(3)]


def adjusting() -> dict[str, Callable[[Tensor], Tensor]]:
    import kornia.enhance as enhance

    return {
        "adjust_brightness": lambda image: enhance.adjust_brightness(image, torch.zeros(2)),
        "adjust_contrast": lambda image: enhance.adjust_contrast(image, torch.ones(2)),
        "adjust_gamma": lambda image: enhance.adjust_gamma(image, 1.0),
    }


def zero_shares() -> dict[str, float]:
    """The share of exact zeros in the gradient of an image of which half the rows are exactly 0 or 1."""
    shares = {}
    for name, adjust in adjusting().items():
        torch.manual_seed(0)
        image = torch.rand(2, 3, 16, 16)
        image[:, :, :4], image[:, :, -4:] = 0.0, 1.0
        image.requires_grad_()
        adjust(image).sum().backward()
        assert image.grad is not None
        shares[name] = (image.grad == 0).double().mean().item()
    return shares


def pairs_in_order() -> str:
    """The share of pairs in the right order, to three digits, of a scorer that starts with zeros and learns by F.margin_ranking_loss."""
    from margin_ranking import ordered

    return f"{ordered():.3f}"


CASES: dict[str, Callable[[], object]] = {
    "torchao int2 losses": int2_losses,
    "kornia zero shares": zero_shares,
    "pairs in order": pairs_in_order,
}


def measure(names: Sequence[str] = ()) -> dict[str, dict[str, object]]:
    torch.set_num_threads(1)
    figures = {}
    for label, context in {"plain": contextlib.nullcontext(), **{era: pin_edge(era) for era in ERAS}}.items():
        with context:
            figures[label] = {name: CASES[name]() for name in names or CASES}
    return figures


def main() -> int:
    before = json.loads(FIGURES.read_text(encoding="utf-8")).get(torch.__version__.split("+")[0], {})
    now = measure(sys.argv[1:])
    keep(FIGURES, {label: {**before.get(label, {}), **figures} for label, figures in now.items()})
    print(FIGURES.read_text(encoding="utf-8"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
