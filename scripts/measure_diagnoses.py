"""Diagnose published packages, unedited, and store the findings in docs/diagnoses.json. README, docs and tests read it.

Run it once with each torch; it replaces only the findings of that version. A package that is not installed is left out, with a line.
Arguments are the names of the cases to run.

pip install torchao==0.18.0 kornia==0.9.0 x-transformers==2.31.10
pip install --no-deps transformers==5.23.0 torchmetrics==1.9.0 lightning-utilities auto-round==0.16.1   (and what they import)
python scripts/measure_diagnoses.py
"""

from __future__ import annotations

import math
import os
import re
import sys
import sysconfig
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from figures_by_version import measure_installed
from torch import nn

from pseudograd import diagnose, pin_edge
from pseudograd.diagnosis.context import Diagnosis

ROOT = Path(__file__).resolve().parent.parent
FOUND = ROOT / "docs" / "diagnoses.json"
PLACES = (sysconfig.get_path("purelib"), *os.environ.get("PYTHONPATH", "").split(os.pathsep))
sys.path.insert(0, str(ROOT / "examples"))
BOTH = {"torch<=2.13": "torch<=2.13", "torch>=2.14": "torch>=2.14"}


def x_transformers() -> Diagnosis:
    from x_transformers_polar import main

    with diagnose() as d:
        main()
    return d


def x_transformers_pinned() -> Diagnosis:
    from x_transformers_polar import main

    with pin_edge("torch<=2.13"), diagnose() as d:
        main()
    return d


def torchao_int4() -> Diagnosis:
    from torchao.quantization.qat import FakeQuantizedLinear
    from torchao.quantization.qat.fake_quantize_config import IntxFakeQuantizeConfig

    torch.manual_seed(0)
    first, last = nn.Linear(64, 64, bias=False), nn.Linear(64, 8, bias=False)
    weights = IntxFakeQuantizeConfig(torch.int4, group_size=32)
    activations = IntxFakeQuantizeConfig(torch.int8, "per_token", is_symmetric=False)
    net = nn.Sequential(
        FakeQuantizedLinear.from_linear(first, activations, weights),
        nn.ReLU(),
        FakeQuantizedLinear.from_linear(last, activations, weights),
    )
    x = torch.randn(32, 64)
    with diagnose(net, whatif=BOTH) as d:
        net(x).pow(2).mean().backward()
    return d


def _kornia(name: str, *arguments: object) -> Diagnosis:
    import kornia.enhance as enhance

    torch.manual_seed(0)
    image = torch.rand(2, 3, 16, 16)
    image[:, :, :4], image[:, :, -4:] = 0.0, 1.0
    image.requires_grad_()
    with diagnose(whatif=BOTH) as d:
        getattr(enhance, name)(image, *arguments).sum().backward()
    return d


def kornia_brightness() -> Diagnosis:
    return _kornia("adjust_brightness", torch.zeros(2))


def kornia_gamma() -> Diagnosis:
    return _kornia("adjust_gamma", 1.0)


def inverse_sigmoid() -> Diagnosis:
    from transformers.models.deformable_detr.modeling_deformable_detr import inverse_sigmoid as of_detr

    p = torch.tensor([0.0, 1e-6, 0.5, 1.0], requires_grad=True)
    with diagnose(whatif=BOTH) as d:
        of_detr(p).sum().backward()
    return d


def swinv2() -> Diagnosis:
    from transformers import Swinv2Config, Swinv2ForImageClassification

    torch.manual_seed(0)
    sizes = {
        "image_size": 32,
        "patch_size": 4,
        "embed_dim": 16,
        "depths": [1, 1],
        "num_heads": [2, 4],
        "window_size": 4,
    }
    net = Swinv2ForImageClassification(Swinv2Config(**sizes, num_labels=5))
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if "logit_scale" in name:
                parameter.fill_(5.0)
    with diagnose(net, whatif={"inward": {"clamp": "inward"}}) as d:
        net(torch.randn(2, 3, 32, 32), labels=torch.tensor([0, 1])).loss.backward()
    return d


def torchmetrics_sam() -> Diagnosis:
    """The loss of two equal images. The gradient that arrives at its clamp is not finite."""
    from torchmetrics.functional.image import spectral_angle_mapper

    torch.manual_seed(0)
    image = torch.rand(1, 3, 8, 8)
    predicted = image.clone().requires_grad_()
    with diagnose() as d:
        spectral_angle_mapper(predicted, image).backward()
    return d


def auto_round_int2() -> Diagnosis:
    """The rounding that its tuning learns, with a clamp to a grid of four values."""
    from auto_round.data_type.int import quant_tensor_sym

    torch.manual_seed(0)
    weight, x = torch.randn(32, 64) / 8, torch.randn(256, 64)
    v = torch.zeros_like(weight, requires_grad=True)
    with diagnose(whatif=BOTH) as d:
        quantized, _, _ = quant_tensor_sym(weight, bits=2, v=v, init_scale=weight.abs().amax(-1, keepdim=True) / 2)
        (x @ (quantized - weight).T).pow(2).mean().backward()
    return d


CASES: tuple[Callable[[], Diagnosis], ...] = (
    x_transformers, x_transformers_pinned, torchao_int4, kornia_brightness, kornia_gamma, inverse_sigmoid, swinv2, torchmetrics_sam,
    auto_round_int2,
)  # fmt: skip


def in_short(d: Diagnosis) -> dict[str, object]:
    """The parts of a diagnosis that are the same on every machine, except for last digits."""
    return {
        "findings": [[finding.code, _package_path(finding.where)] for finding in d.findings],
        "shares": {
            f"{site.op} {_package_path(site.where)}": [round(site.cut_share, 4), round(site.at_bound_share, 4)]
            for site in d.sites
            if site.family == "clamp" and (site.cut or site.at_bound)
        },
        "starved": len(d.starved),
        "parameters": len(d.parameters),
        "whatif": {
            name: [
                [row.parameter, round(row.zero, 6), _digits(row.norm)]
                for row in rows
                if "weight" in row.parameter or len(rows) < 3
            ]
            for name, rows in d.whatif.items()
        },
    }


def _digits(value: float) -> float:
    return float(f"{value:.6g}") if math.isfinite(value) else value


def _package_path(where: str) -> str:
    for place in PLACES:
        if place and where.startswith(place + os.sep):
            return where.removeprefix(place + os.sep)
    return where


def text(d: Diagnosis) -> list[str]:
    """The report, without the version of this build."""
    report = str(d)
    for folder in filter(None, PLACES):
        report = report.replace(f"{folder}{os.sep}", "")
    return re.sub(r"(torch [0-9.]+)\+\w+", r"\1", report).splitlines()


def _figures(case: Callable[[], Diagnosis]) -> dict[str, object]:
    d = case()
    return {**in_short(d), "text": text(d)} if case is x_transformers else in_short(d)


if __name__ == "__main__":
    measure_installed(FOUND, {case.__name__: partial(_figures, case) for case in CASES})
