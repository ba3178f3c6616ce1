"""What differs between policy_loss and the code of four projects: the lines of docs/policy_clips.md, each with the test that shows it."""

from typing import NamedTuple


class Difference(NamedTuple):
    project: str
    theirs: str
    ours: str
    test: str


_ALL = "TRL, verl, stable-baselines3"
DIFFERENCES = (
    Difference(
        _ALL,
        "at a ratio exactly on a bound, min(r A, clamp(r) A) passes the whole gradient on torch ≤ 2.13 and half of it on torch ≥ 2.14",
        '`edge="closed"` and `edge="half"`, the same on every torch',
        "test_at_a_tie_the_edge_is_what_the_era_computes",
    ),
    Difference(
        _ALL,
        "half precision is computed as it comes: exp overflows float16 beyond a log ratio of 11, and in bfloat16 ties are common",
        "computed in float32, returned in float32",
        "test_the_usual_form_overflows_in_half_precision",
    ),
    Difference(
        "TRL",
        "`cispo` returns -sg(c) A log_prob, which moves with log_prob; `epsilon_high` is the bound of the ratio, not 1 + epsilon_high",
        "-A c(r), with the same gradient; `high=4.0` is a bound of 5",
        "test_trl_cispo_has_our_gradient_and_another_value",
    ),
    Difference(
        "TRL",
        "`delta`, the ceiling, is None by default",
        "the same; the preset `dual_clip` has 3",
        "test_defaults_of_the_projects",
    ),
    Difference(
        "verl",
        "the default loss, `vanilla`, has a dual clip at `clip_ratio_c=3`",
        '`presets["dual_clip"]`; `presets["ppo"]` has no ceiling',
        "test_verl_vanilla_is_the_dual_clip",
    ),
    Difference(
        "verl",
        "exactly at the ceiling half of the gradient passes, on every torch",
        "`edge` decides there too",
        "test_verl_passes_half_at_the_ceiling",
    ),
    Difference(
        "verl",
        "a log ratio beyond ±20 gets no gradient, whatever the advantage",
        "it gets the gradient of the formula",
        "test_verl_silences_beyond_a_log_ratio_of_20_and_we_do_not",
    ),
    Difference(
        "verl",
        "`cispo` clips from both sides, at 0.8 and 1.2 by default, and returns -sg(c) A log_prob",
        '`presets["cispo"](..., low=0.2, high=0.2)` has that gradient',
        "test_verl_cispo_bounds_both_sides_and_has_our_gradient",
    ),
    Difference(
        "verl",
        "the bounds of `geo_mean` are of the log ratio, at ±0.2 by default",
        "the bounds of the ratio are those of the paper, exp(±0.4)",
        "test_verl_geo_mean_is_gmpo_with_bounds_of_the_log_ratio",
    ),
    Difference(
        "stable-baselines3",
        "`clip_fraction` counts every ratio outside the range, whatever its advantage: twice as many as are silenced",
        "`clip_report` counts the silenced ones, by sign and side",
        "test_the_clip_fraction_of_stable_baselines3_is_twice_the_silenced_share",
    ),
    Difference(
        "torchrl",
        "clips the log ratio between log(1 - eps) and log(1 + eps), and a min that picks one of two passes all of the gradient at a tie",
        '`space="log"`, `edge="closed"`',
        "test_torchrl_clips_the_log_ratio_and_passes_all_at_a_tie",
    ),
    Difference(
        "TRL, verl",
        "GSPO and DAPO have no settings of their own: 0.2 for both bounds unless they are given",
        "the presets have the papers' 3e-4 and 4e-4, 0.2 and 0.28",
        "test_defaults_of_the_projects",
    ),
)
