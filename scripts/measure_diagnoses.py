"""Diagnose published packages, unedited, and keep what was found in docs/diagnoses.json. README, docs and tests read it.

Run it once with each torch; it replaces what was found on that version only. Packages that are not installed are left out and said.
Cases named behind the script run alone.

pip install torchao==0.18.0 kornia==0.9.0 x-transformers==2.31.10
pip install --no-deps transformers==5.23.0 vector-quantize-pytorch==1.32.0 torchmetrics==1.9.0 lightning-utilities \
    diffusers==0.42.1 auto-round==0.16.1 trl==1.16.0   (and what they import)
python scripts/measure_diagnoses.py
"""

from __future__ import annotations

import math
import os
import re
import sys
import sysconfig
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import torch
from figures_by_version import keep, measure_installed
from torch import nn

from pseudograd import diagnose, pin_edge

ROOT = Path(__file__).resolve().parent.parent
FOUND = ROOT / "docs" / "diagnoses.json"
PLACES = (sysconfig.get_path("purelib"), *os.environ.get("PYTHONPATH", "").split(os.pathsep))
sys.path.insert(0, str(ROOT / "examples"))
BOTH = {"torch<=2.13": "torch<=2.13", "torch>=2.14": "torch>=2.14"}


def x_transformers() -> Any:
    from x_transformers_polar import main

    with diagnose() as d:
        main()
    return d


def x_transformers_pinned() -> Any:
    from x_transformers_polar import main

    with pin_edge("torch<=2.13"), diagnose() as d:
        main()
    return d


def torchao_int4() -> Any:
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


def _kornia(name: str, *arguments: Any) -> Any:
    import kornia.enhance as enhance

    torch.manual_seed(0)
    image = torch.rand(2, 3, 16, 16)
    image[:, :, :4], image[:, :, -4:] = 0.0, 1.0
    image.requires_grad_()
    with diagnose(whatif=BOTH) as d:
        getattr(enhance, name)(image, *arguments).sum().backward()
    return d


def kornia_brightness() -> Any:
    return _kornia("adjust_brightness", torch.zeros(2))


def kornia_contrast() -> Any:
    return _kornia("adjust_contrast", torch.ones(2))


def kornia_gamma() -> Any:
    return _kornia("adjust_gamma", 1.0)


def inverse_sigmoid() -> Any:
    from transformers.models.deformable_detr.modeling_deformable_detr import inverse_sigmoid as of_detr

    p = torch.tensor([0.0, 1e-6, 0.5, 1.0], requires_grad=True)
    with diagnose(whatif=BOTH) as d:
        of_detr(p).sum().backward()
    return d


def swinv2() -> Any:
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


def encodec() -> Any:
    from transformers import EncodecConfig, EncodecModel

    torch.manual_seed(0)
    sizes = {"num_filters": 4, "hidden_size": 8, "codebook_size": 16, "codebook_dim": 8, "upsampling_ratios": [4, 2]}
    net = EncodecModel(EncodecConfig(**sizes, num_lstm_layers=1, target_bandwidths=[6.0, 12.0], sampling_rate=24000))
    x = torch.randn(1, 1, 640)
    with diagnose(net) as d:
        (net(x).audio_values - x).pow(2).mean().backward()
    return d


def vector_quantize() -> Any:
    from vector_quantize_pytorch import VectorQuantize

    torch.manual_seed(0)
    before, after = nn.Linear(16, 16), nn.Linear(16, 16)
    how = {"learnable_codebook": True, "ema_update": False, "rotation_trick": False, "commitment_weight": 0.0}
    quantizer = VectorQuantize(dim=16, codebook_size=32, **how)
    x = torch.randn(2, 20, 16)
    with diagnose(quantizer) as d:
        quantized, _, loss = quantizer(before(x))
        ((after(quantized) - x).pow(2).mean() + loss.sum()).backward()
    return d


def torchmetrics_sam() -> Any:
    """The loss of two equal images: what arrives at the clamp is not finite."""
    from torchmetrics.functional.image import spectral_angle_mapper

    torch.manual_seed(0)
    image = torch.rand(1, 3, 8, 8)
    predicted = image.clone().requires_grad_()
    with diagnose() as d:
        spectral_angle_mapper(predicted, image).backward()
    return d


def diffusers_wan() -> Any:
    """A decoder whose last convolution is 40 times too large: its pixels leave (-1, 1)."""
    from diffusers.models.autoencoders.autoencoder_kl_wan import AutoencoderKLWan

    torch.manual_seed(0)
    sizes = {"base_dim": 8, "z_dim": 4, "dim_mult": [1, 2], "num_res_blocks": 1, "temperal_downsample": [False]}
    net = AutoencoderKLWan(**sizes, latents_mean=[0.0] * 4, latents_std=[1.0] * 4)
    with torch.no_grad():
        net.decoder.conv_out.weight.mul_(40)
    with diagnose(net) as d:
        net.decode(torch.randn(1, 4, 1, 8, 8)).sample.pow(2).mean().backward()
    return d


def auto_round_int2() -> Any:
    """The rounding that its tuning learns: what its clamp lets through at the ends of a grid of four."""
    from auto_round.data_type.int import quant_tensor_sym

    torch.manual_seed(0)
    weight, x = torch.randn(32, 64) / 8, torch.randn(256, 64)
    v = torch.zeros_like(weight, requires_grad=True)
    with diagnose(whatif=BOTH) as d:
        quantized, _, _ = quant_tensor_sym(weight, bits=2, v=v, init_scale=weight.abs().amax(-1, keepdim=True) / 2)
        (x @ (quantized - weight).T).pow(2).mean().backward()
    return d


def trl_grpo() -> Any:
    """The loss alone, on log-probabilities that have moved since the tokens were drawn; one half of them was worth it."""
    from trl.trainer.grpo_trainer import GRPOTrainer

    torch.manual_seed(0)
    policy, states = nn.Linear(8, 16), torch.randn(4, 12, 8)
    tokens, ones = torch.randint(16, (4, 12)), torch.ones(4, 12)

    def log_probabilities(*args: Any, **kwargs: Any) -> Any:
        log_p = policy(states).log_softmax(-1)
        return log_p.gather(-1, tokens[..., None])[..., 0], -(log_p.exp() * log_p).sum(-1).detach(), None

    trainer = MagicMock(
        _get_per_token_logps_and_entropies=log_probabilities, top_entropy_quantile=1.0, off_policy_mask_threshold=None,
        importance_sampling_level="token", loss_type="grpo", beta=0.0, epsilon_low=0.2, epsilon_high=0.2, use_vllm=False,
        aux_loss_enabled=False, _entropy_bonus_enabled=False, current_gradient_accumulation_steps=1,
    )  # fmt: skip
    trainer.args.delta = None
    trainer.accelerator.gather = lambda gathered: gathered
    drawn = log_probabilities()[0].detach() + 0.3 * torch.randn(4, 12)
    batch = {"prompt_ids": tokens, "prompt_mask": ones, "completion_ids": tokens, "completion_mask": ones}
    with diagnose(policy) as d:
        advantages = torch.tensor([1.0, 1.0, -1.0, -1.0])
        inputs = {**batch, "advantages": advantages, "old_per_token_logps": drawn}
        GRPOTrainer._compute_loss(trainer, policy, inputs).backward()
    return d


CASES: tuple[Callable[[], Any], ...] = (
    x_transformers,
    x_transformers_pinned,
    torchao_int4,
    kornia_brightness,
    kornia_contrast,
)
CASES += (kornia_gamma, inverse_sigmoid, swinv2, encodec)
CASES += (vector_quantize, torchmetrics_sam, diffusers_wan, auto_round_int2, trl_grpo)


def in_short(d: Any) -> dict[str, Any]:
    """What is the same on every machine but for the last digits."""
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


def text(d: Any) -> list[str]:
    """The report, without the version of this build."""
    report = str(d)
    for folder in filter(None, PLACES):
        report = report.replace(f"{folder}{os.sep}", "")
    return re.sub(r"(torch [0-9.]+)\+\w+", r"\1", report).splitlines()


def _figures(case: Callable[[], Any]) -> dict[str, Any]:
    d = case()
    return {**in_short(d), "text": text(d)} if case is x_transformers else in_short(d)


def main() -> int:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    keep(FOUND, measure_installed({case.__name__: partial(_figures, case) for case in CASES}, sys.argv[1:]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
