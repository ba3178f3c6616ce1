# %% [markdown]
# # Why does the gradient vanish?
#
# An example for teaching: a deep network with a saturating activation, the norm of the gradient at each layer, and a remedy.

# %%
import matplotlib.pyplot as plt
import torch
from torch import nn

import pseudograd as pg


def network(activation, depth=10):
    torch.manual_seed(0)
    layers = [layer for _ in range(depth) for layer in (nn.Linear(32, 32), activation())]
    return nn.Sequential(*layers, nn.Linear(32, 1))


def norms(net):
    """The norm of the gradient that arrives at each weight, from the first layer to the last, over five batches."""
    torch.manual_seed(1)
    with pg.diagnose(net) as diagnosis:
        for _ in range(5):
            net(torch.randn(64, 32)).square().mean().backward()
    by_name = {norm.parameter: norm.norm for norm in diagnosis.norms}
    return [by_name[name] for name, parameter in net.named_parameters() if parameter.dim() == 2], diagnosis


results = {
    name: norms(network(activation))
    for name, activation in (("sigmoid", nn.Sigmoid), ("tanh", nn.Tanh), ("relu", nn.ReLU))
}
for name, (norm, diagnosis) in results.items():
    codes = [finding.code for finding in diagnosis.findings]
    print(f"{name:8} first layer {norm[0]:.1e}, last layer {norm[-1]:.1e}   findings: {codes}")
assert results["sigmoid"][0][0] < 1e-4 * results["sigmoid"][0][-1]

# %%
figure, axes = plt.subplots(figsize=(7, 3.2), layout="constrained")
for (name, (norm, _)), colour in zip(results.items(), ("#D55E00", "#009E73", "#0072B2"), strict=True):
    axes.plot(range(1, len(norm) + 1), norm, "o-", color=colour, label=name)
axes.set(xlabel="layer: backward goes from 11, at the loss, to 1", ylabel="norm of the gradient", yscale="log")
axes.set_title("Almost no gradient of the sigmoid network reaches the first layers")
axes.legend()
plt.show()

# %% [markdown]
# Each sigmoid multiplies the gradient by its slope, which is at most 1/4. After ten sigmoids less than a millionth is left. The report
# names the line and a remedy:

# %%
finding = next(finding for finding in results["sigmoid"][1].findings if finding.code == "vanish")
print(finding.evidence)
print("cause:", finding.cause)
print("next: ", finding.next_step)

# %% [markdown]
# A clamp is the extreme case: outside its range the slope is exactly 0, so no gradient passes at all. The page
# [the chain rule through a clamp](../understand.md) explains this.
