# %% [markdown]
# # Inverse kinematics with joint limits
#
# An arm of three links should reach a point with its hand. Each joint has limits, and the search starts far outside these limits. Which
# gradient should a joint beyond its limit get?

# %%
import matplotlib.pyplot as plt
import torch

import pseudograd as pg

LIMIT = 1.2  # of each joint, in radians
links = torch.tensor([1.0, 0.8, 0.6])
target = torch.tensor([2.2, -0.5])
start = torch.tensor([-1.75, -2.4, 2.5])


def positions(joints):
    """(4, 2): the shoulder, the two elbows and the hand."""
    angles = joints.cumsum(0)
    ends = torch.stack([links * angles.cos(), links * angles.sin()], 1).cumsum(0)
    return torch.cat([torch.zeros(1, 2), ends])


def solve(clamp, project=False, steps=200):
    joints = start.clone().requires_grad_()
    optimizer = torch.optim.Adam([joints], 0.05)
    if project:
        pg.optim.project(optimizer, {joints: (-LIMIT, LIMIT)})
    for _ in range(steps):
        loss = (positions(clamp(joints, -LIMIT, LIMIT))[-1] - target).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return positions(clamp(joints, -LIMIT, LIMIT).detach())


solved = {
    "torch.clamp": solve(torch.clamp),
    "inward": solve(pg.clamp),
    "clipped after each step": solve(lambda x, low, high: x, project=True),
}
distances = {name: (arm[-1] - target).norm().item() for name, arm in solved.items()}
for name, distance in distances.items():
    print(f"{name:24} the hand ends {distance:.3f} from the point")
assert distances["torch.clamp"] > 0.5 > 0.01 > distances["inward"]
assert distances["clipped after each step"] < 0.05

# %%
figure, panels = plt.subplots(1, 3, figsize=(9, 3.2), layout="constrained", sharex=True, sharey=True)
for axes, (name, arm) in zip(panels, solved.items(), strict=True):
    axes.plot(*arm.T, "o-", color="#0072B2", linewidth=3, label="the arm, from its shoulder at 0, 0 to the hand")
    axes.plot(*target, "x", color="#D55E00", markersize=12, markeredgewidth=3, label="the point to reach")
    axes.set(title=f"{name}\nhand {distances[name]:.2f} from the point", aspect="equal")
figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
plt.show()

# %% [markdown]
# All three joints start beyond their limits. torch.clamp passes no gradient there, so the arm never moves. `inward` brings each joint back.
#
# Here the joints are the parameters themselves. We advise to clip parameters after each step, as `pg.optim.project`
# does. Over 200 targets this was among the best methods, and [no rule was better](../which_rule.md). If a network
# computes the angles, they cannot be clipped after the step: use a rule.
