"""`retarget`: train the Fourier coefficients of a photo towards a picture with values outside of [0, 1], and then back to the photo.

The pixels are no leaves, so no variant can project them. In the world with the sRGB curve, the coefficients hold linear light, and the
curve comes after the clamp.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from pseudograd.wording import listed

from . import sentences
from .base import NO_CLAMP, OURS, Gallery, Outcome, Settings, Task, Variant, World, eras
from .photos import HEIGHT, WIDTH, displayed, photo, psnr

ORDER = {"retarget": 10, "retarget_srgb": 100}
AWAY_STEPS, BACK_STEPS, RATE, CONTRAST = 200, 100, 0.05, 3
LEAST_CAME_BACK, LEAST_IN_PART = 30, 15  # dB from which the photo came back, or came back in part
PLAIN, SRGB = "plain", "sRGB curve"
_SETTING = (
    "A photo stored as scaled Fourier coefficients, so that no pixel can be clipped after a step. "
    "{away_steps} Adam steps towards a high-contrast flower, {outside_in_target:.0%} of which lies outside the displayable range, "
    "then {back_steps} back towards the photo itself."
)
_BEHIND_THE_CURVE = " The coefficients hold linear light; the sRGB curve follows the clamp."


@cache
def _scale() -> Tensor:
    """(96, 73): amplitudes with mean 1 that fall with the frequency, as those of photos do."""
    rows, columns = torch.fft.fftfreq(HEIGHT)[:, None], torch.fft.rfftfreq(WIDTH)[None]
    frequency = (rows**2 + columns**2).sqrt()
    lowest = 1 / max(HEIGHT, WIDTH)
    scale = 1 / torch.where(frequency > lowest, frequency, lowest)
    return scale / scale.mean()


def _to_picture(spectrum: Tensor) -> Tensor:
    return torch.fft.irfft2(torch.view_as_complex(spectrum) * _scale(), s=(HEIGHT, WIDTH), norm="ortho")


def _to_spectrum(picture: Tensor) -> Tensor:
    return torch.view_as_real(torch.fft.rfft2(picture, norm="ortho") / _scale()).contiguous()


def _srgb(y: Tensor, is_guarded: bool) -> Tensor:
    """The sRGB curve. Its power has no gradient below 0: without the guard, one negative value makes all gradients NaN."""
    knee = 0.0031308
    base = torch.where(y > knee, y, knee) if is_guarded else y
    return torch.where(y <= knee, 12.92 * y, 1.055 * base.pow(1 / 2.4) - 0.055)


def _linear_light(shown: Tensor) -> Tensor:
    """The inverse of `_srgb` for values that a screen can show."""
    return torch.where(shown <= 0.04045, shown / 12.92, ((shown + 0.055) / 1.055).pow(2.4))


def out_of_gamut() -> Tensor:
    return (photo("flower") - 0.5) * CONTRAST + 0.5


def start(world: str) -> Tensor:
    """The picture that the coefficients hold at the start."""
    return photo("china") if world == PLAIN else _linear_light(photo("china"))


def display(world: str, picture: Tensor) -> Tensor:
    """The picture as a screen shows it. NaN stays NaN."""
    clipped = displayed(picture)
    return clipped if world == PLAIN else torch.where(clipped.isnan(), clipped, _srgb(clipped, is_guarded=True))


def _run(world: str, variant: Variant, settings: Settings) -> Outcome:
    target = photo("china")
    spectrum = _to_spectrum(start(world)).requires_grad_()
    optimizer = torch.optim.Adam([spectrum], RATE)
    is_guarded = variant.name != NO_CLAMP

    def show(x: Tensor) -> Tensor:
        y = variant.clamp(x, 0.0, 1.0)
        return y if world == PLAIN else _srgb(y, is_guarded)

    largest = 0.0
    for step in range(AWAY_STEPS + BACK_STEPS):
        goal = out_of_gamut() if step < AWAY_STEPS else target
        optimizer.zero_grad()
        (0.5 * (show(_to_picture(spectrum)) - goal).pow(2).sum()).backward()
        optimizer.step()
        if step == AWAY_STEPS - 1:
            largest = float(_to_picture(spectrum).detach().abs().max())
    final = display(world, _to_picture(spectrum))
    return Outcome(numbers={"psnr": psnr(final, target), "largest": largest}, arrays={"picture": final[0]})


def _context(settings: Settings) -> dict[str, object]:
    flower = out_of_gamut()
    outside = float(((flower < 0) | (flower > 1)).float().mean())
    return {"away_steps": AWAY_STEPS, "back_steps": BACK_STEPS, "rate": RATE, "outside_in_target": outside}


def _finding(rows: World) -> str:
    values = sentences.decibels(rows)
    of_eras = {era: values[era] for era in eras() if era in values}
    if sentences.are_alike(*of_eras.values()):
        first = next(iter(of_eras.values()))
        theirs = f"With torch.clamp the photo {_describe_return(first)} ({first:.0f} dB), whichever torch is installed"
    else:
        each = [f"{_describe_return(value)} {sentences.where(era)} ({value:.0f} dB)" for era, value in of_eras.items()]
        theirs = f"With torch.clamp the photo {listed(each)}"
    ours = values[OURS]
    best = sentences.best(values)
    also = "" if best == OURS else f" The best variant was {best}, at {values[best]:.0f} dB."
    if best == NO_CLAMP:
        also += " Without a clamp, the loss must be defined outside the range, as here."
        also += " Many losses and models are not defined there: they need a clamp."
    return (
        "The optimiser Adam changed a photo into a picture of a flower, many of whose values lie outside "
        "the range that a screen shows. "
        "Then Adam changed the picture back into the photo. The likeness of result and photo is in dB (peak signal-to-noise ratio): "
        "the higher, the more alike. "
        f"{theirs}. With {OURS} the photo {_describe_return(ours)} ({ours:.0f} dB). "
        f"These runs differ only in the backward rule of the clamp.{also}"
    )


def _describe_return(psnr: float) -> str:
    """What the photo did, by its dB."""
    if psnr >= LEAST_CAME_BACK:
        return "came back"
    return "came back in part" if psnr >= LEAST_IN_PART else "did not come back"


def _task(name: str, title: str, world: str, setting: str) -> Task:
    return Task(
        name=name,
        title=title,
        worlds=lambda settings: (world,),
        run=_run,
        columns={"psnr": "PSNR, dB", "largest": "largest |x| before the way back"},
        headline=("psnr", "dB"),
        score=sentences.PICTURES,
        has_leaves=False,
        setting=setting,
        context=_context,
        figure=Gallery(
            "pictures",
            first={
                "sent here first, as a screen shows it": lambda world: out_of_gamut()[0],
                "start, and what to come back to": lambda world: photo("china")[0],
            },
        ),
        finding=_finding,
    )


RETARGET = _task("retarget", "A photo sent away and back", PLAIN, _SETTING)
RETARGET_SRGB = _task(
    "retarget_srgb", "A photo sent away and back behind the curve of a screen", SRGB, _SETTING + _BEHIND_THE_CURVE
)
