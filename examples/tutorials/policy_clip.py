# %% [markdown]
# # What PPO's clip does to a batch
#
# PPO's loss is `-min(r A, clip(r, 1 - eps, 1 + eps) A)`. Here r is the ratio of the new policy to the old one and A is the advantage. This
# loss is a clamp that cuts the gradient on one side. The sign of A decides which side. `clip_report` counts the tokens without a gradient.

# %%
import matplotlib.pyplot as plt
import torch

import pseudograd as pg

torch.manual_seed(0)
log_ratio = 0.25 * torch.randn(4000)
advantage = torch.randn(4000)
report = pg.policy.clip_report(log_ratio, advantage, low=0.2, high=0.2)
print(report)

# %% [markdown]
# Two of the six cells get no gradient: with A > 0 the ratio must not grow further, and with A < 0 it must not shrink further. A gradient
# that leads back passes. For the log ratio this is the rule `inward`.
#
# ## The same loss with other rules
#
# Published variants of the clip use other rules. The figure shows the gradient of the log ratio under each rule, for A = 1:

# %%
ratios = torch.linspace(0.5, 1.6, 221)
figure, axes = plt.subplots(figsize=(7, 3.4), layout="constrained")
for rule, colour, style in (
    ("inward", "#0072B2", "-"),
    ("zero", "#D55E00", "--"),
    ("identity", "#E69F00", ":"),
    ("leaky", "#56B4E9", "-."),
):
    x = ratios.log().requires_grad_()
    pg.policy.loss(x, torch.ones(()), low=0.2, high=0.2, rule=rule).sum().backward()
    jumps = x.grad.diff(prepend=x.grad[:1]).abs() > 0.1
    axes.plot(ratios, x.grad.masked_fill(jumps, torch.nan), style, color=colour, label=rule, linewidth=2)
axes.axvspan(0.8, 1.2, color="#eeeeee", label="not clipped")
axes.set(xlabel="ratio", ylabel="dL / d log ratio", title="The gradient that each rule passes, for an advantage of 1")
axes.legend(loc="lower left")
plt.show()

# %%
presets = [name for name in ("ppo", "dapo", "gspo", "cispo") if name in pg.policy.presets]
for name in presets:
    settings = pg.policy.presets[name].settings
    print(
        f"{name:6} {pg.policy.clip_report(log_ratio, advantage, **settings).silenced_share:6.1%} of the tokens silenced   {settings}"
    )

# %% [markdown]
# [Policy clips](../policy_clips.md) lists all variants with their papers and with the differences to the code of other libraries.
