"""Every sentence of a report that speaks of results. The words stand here; the numbers and the choice of sentence are computed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ..tasks.base import ERAS, INSTALLED, NO_CLAMP, PROJECT
from .run import Results, World

OURS = "inward"

TEMPLATES = {
    "retarget_setting": (
        "A photo stored as scaled Fourier coefficients, so that no pixel can be clipped after a step. "
        "{away_steps} Adam steps towards a "
        "high-contrast flower, {outside_in_target:.0%} of which lies outside the displayable range, then {back_steps} "
        "back towards the photo itself. Under the sRGB curve, which follows the clamp, the coefficients hold linear light."
    ),
    "canvas_setting": (
        "Every pixel is a parameter; the loss compares a slightly blurred picture with the blurred photo. "
        "{steps} Adam steps, from black and "
        "from the photo at {exposure} times its contrast, which puts {outside_at_start:.0%} of the values outside."
    ),
    "basin_setting": (
        "{starts} starts on a line, {steps} steps of plain gradient descent at rate {rate:g}. The loss has its minimum on the range, "
        "{least:.2f}, at x = {best:.2f}."
    ),
    "curve_setting": "Forward, loss and every gradient on the way, at the same points for each rule; dots are exactly at the bounds.",
    "lead": "{world}: {rule} ends at {value:.1f} dB, {gain:.1f} dB above the better of the two eras of torch.clamp ({era:.1f} dB).",
    "no_lead": "{world}: {rule} ends at {value:.1f} dB and does not beat the better of the two eras of torch.clamp ({era:.1f} dB).",
    "eras_differ": (
        "{world}: which torch is installed decides the picture, {closed:.1f} dB where the gradient at a bound "
        "passes and {open:.1f} dB where "
        "it does not."
    ),
    "eras_agree": "{world}: both eras of torch.clamp end alike, at {closed:.1f} dB.",
    "beaten": "{world}: better than {rule} here: {names}.",
    "unbeaten": "{world}: nothing tried was better than {rule}.",
    "drift": "{world}: with identity the values had run out to {largest:.1f} before the way back; with {rule} to {ours:.1f}.",
    "not_finite": "{world}: not a number at the end: {names}.",
    "reached": "{names}: {count:.0f} of {starts} starts reach the minimum.",
    "strays": "{name} strays furthest: to {stray:.1f}, where {rule} stays within {ours:.1f}.",
    "chatters": "Held at the upper bound, {name} chatters: {excess:.4f} above the least loss it could have there; {rule}: {ours:.4f}.",
    "silent": "{world}: no gradient on {share:.0%} of the points outside: {names}.",
    "leaves": "{world}: pixels are leaves, so project after each step is the honest baseline: {verdict}.",
    "project_wins": "it ends at {value:.1f} dB, {margin:.1f} dB above {rule}",
    "project_ties": "it ends at {value:.1f} dB, within {margin:.1f} dB of {rule}",
    "project_loses": "it ends at {value:.1f} dB, {margin:.1f} dB below {rule}",
    "installed": "The {name} installed here passes {slope:g} of the gradient exactly at a number bound; it is the rule {era}.",
    "own_leaves": (
        "If what you clamp is the parameter itself, clip it after the step: project was as good or better here ({worlds}), and needs no "
        "pseudo-gradient."
    ),
    "own_loss": "If the loss is defined outside the range too, leave the clamp out while you train: that won here ({worlds}).",
    "own_guard": "If the clamp guards a square root, a logarithm or an inverse cosine, keep the true gradient: it is there to stop a NaN.",
    "own_quantiser": "If torch.clamp already trains well, ask only for its edge: rule zero with the edge your program was trained on.",
}


def setting(task: str, results: Results) -> str:
    return TEMPLATES[f"{task}_setting"].format(**results.contexts[task])


def verdicts(task: str, results: Results) -> list[str]:
    return _VERDICTS[task](results)


def _pictures(world: str, by_variant: World) -> list[str]:
    values = {name: measured.numbers["psnr"] for name, measured in by_variant.items()}
    out = _eras(world, values)
    if OURS in values:
        out += _lead(world, values)
        out += _beaten(world, values)
    broken = [name for name, value in values.items() if not math.isfinite(value)]
    if broken:
        out.append(_say("not_finite", world=world, names=_and(broken)))
    return out


def _eras(world: str, values: dict[str, float]) -> list[str]:
    closed, opened = (values[era] for era in ERAS)
    kind = "eras_differ" if abs(closed - opened) > 0.5 else "eras_agree"
    return [_say(kind, world=world, closed=closed, open=opened)]


def _lead(world: str, values: dict[str, float]) -> list[str]:
    era = max(values[name] for name in ERAS)
    kind = "lead" if values[OURS] > era else "no_lead"
    return [_say(kind, world=world, rule=OURS, value=values[OURS], gain=values[OURS] - era, era=era)]


def _beaten(world: str, values: dict[str, float]) -> list[str]:
    """Name everything that did better than our default, by more than rounding."""
    better = {name: value for name, value in values.items() if value > values[OURS] + 0.05 and name != OURS}
    if not better:
        return [_say("unbeaten", world=world, rule=OURS)]
    ranked = sorted(better, key=lambda name: -better[name])
    return [_say("beaten", world=world, rule=OURS, names=_and([f"{name} ({better[name]:.1f} dB)" for name in ranked]))]


def _retarget(results: Results) -> list[str]:
    out = []
    for world, by_variant in results.tasks["retarget"].items():
        out += _pictures(world, by_variant)
        if {"identity", OURS} <= set(by_variant):
            largest, ours = (by_variant[name].numbers["largest"] for name in ("identity", OURS))
            if largest > 2 * ours:
                out.append(_say("drift", world=world, largest=largest, ours=ours, rule=OURS))
    return out


def _canvas(results: Results) -> list[str]:
    out = []
    for world, by_variant in results.tasks["canvas"].items():
        out += _pictures(world, by_variant)
        if OURS in by_variant:
            value = by_variant[PROJECT].numbers["psnr"]
            margin = value - by_variant[OURS].numbers["psnr"]
            kind = "project_ties" if abs(margin) < 0.5 else "project_wins" if margin > 0 else "project_loses"
            verdict = _say(kind, value=value, margin=abs(margin), rule=OURS)
            out.append(_say("leaves", world=world, verdict=verdict))
    return out


def _basin(results: Results) -> list[str]:
    (by_variant,) = results.tasks["basin"].values()
    numbers = {name: measured.numbers for name, measured in by_variant.items()}
    counts: dict[float, list[str]] = {}
    for name, row in numbers.items():
        counts.setdefault(row["reached"], []).append(name)
    starts = results.contexts["basin"]["starts"]
    out = [
        _say("reached", names=_and(counts[count]), count=count, starts=starts) for count in sorted(counts, reverse=True)
    ]
    if OURS in numbers:
        furthest = max(numbers, key=lambda name: numbers[name]["stray"])
        loudest = max(numbers, key=lambda name: numbers[name]["chatter"])
        ours = numbers[OURS]
        if numbers[furthest]["stray"] > 1.5 * ours["stray"]:
            out.append(_say("strays", name=furthest, stray=numbers[furthest]["stray"], rule=OURS, ours=ours["stray"]))
        if numbers[loudest]["chatter"] > ours["chatter"] + 1e-4:
            out.append(
                _say("chatters", name=loudest, excess=numbers[loudest]["chatter"], rule=OURS, ours=ours["chatter"])
            )
    return out


def _curve(results: Results) -> list[str]:
    out = []
    for world, by_variant in results.tasks["curve"].items():
        shares: dict[float, list[str]] = {}
        for name, measured in by_variant.items():
            shares.setdefault(measured.numbers["no_signal_outside"], []).append(name)
        out += [
            _say("silent", world=world, share=share, names=_and(names))
            for share, names in sorted(shares.items(), reverse=True)
            if share > 0
        ]
    return out


def when_not_to(results: Results) -> list[str]:
    """The closing words: where something else is as good or better, from this run's own numbers."""
    canvas = results.tasks.get("canvas", {})
    better = [
        world
        for world, by_variant in canvas.items()
        if OURS in by_variant and by_variant[PROJECT].numbers["psnr"] > by_variant[OURS].numbers["psnr"] - 0.5
    ]
    out = []
    if better:
        out.append(_say("own_leaves", worlds=_and(better)))
    retarget = results.tasks.get("retarget", {})
    free = [
        world
        for world, by_variant in retarget.items()
        if OURS in by_variant and by_variant[NO_CLAMP].numbers["psnr"] > by_variant[OURS].numbers["psnr"]
    ]
    if free:
        out.append(_say("own_loss", worlds=_and(free)))
    return [*out, TEMPLATES["own_guard"], TEMPLATES["own_quantiser"]]


def installed(results: Results) -> str:
    return TEMPLATES["installed"].format(name=INSTALLED, era=results.era, slope=results.edges["clamp(x, min=0)"])


_VERDICTS: dict[str, Callable[[Results], list[str]]] = {
    "retarget": _retarget,
    "canvas": _canvas,
    "basin": _basin,
    "curve": _curve,
}


def _say(template: str, **values: Any) -> str:
    return TEMPLATES[template].format(**values)


def _and(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
