# %% [markdown]
# # Why does the gradient vanish?
#
# For teaching: a deep network with a saturating activation, the norm of the gradient at each layer, and what changes it.

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
    with pg.diagnose(net) as found:
        for _ in range(5):
            net(torch.randn(64, 32)).square().mean().backward()
    by_name = {norm.parameter: norm.norm for norm in found.norms}
    return [by_name[name] for name, parameter in net.named_parameters() if parameter.dim() == 2], found


results = {
    name: norms(network(activation))
    for name, activation in (("sigmoid", nn.Sigmoid), ("tanh", nn.Tanh), ("relu", nn.ReLU))
}
for name, (of, found) in results.items():
    told = [finding.code for finding in found.findings]
    print(f"{name:8} first layer {of[0]:.1e}, last layer {of[-1]:.1e}   findings: {told}")
assert results["sigmoid"][0][0] < 1e-4 * results["sigmoid"][0][-1]

# %%
figure, axes = plt.subplots(figsize=(7, 3.2), layout="constrained")
for (name, (of, _)), colour in zip(results.items(), ("#D55E00", "#009E73", "#0072B2"), strict=True):
    axes.plot(range(1, len(of) + 1), of, "o-", color=colour, label=name)
axes.set(xlabel="layer: backward goes from 11, at the loss, to 1", ylabel="norm of the gradient", yscale="log")
axes.set_title("Of sigmoid's gradient nearly nothing arrives in the first layers")
axes.legend()
plt.show()

# %% [markdown]
# Each sigmoid multiplies what passes by its slope, which is at most 1/4. Ten of them leave less than a millionth. The report says so, with
# the line, and what helps:

# %%
finding = next(one for one in results["sigmoid"][1].findings if one.code == "vanish")
print(finding.evidence)
print("cause:", finding.cause)
print("next: ", finding.next_step)

# %% [markdown]
# A clamp is the extreme case: outside its range the slope is not small but 0, and nothing at all passes. That is
# [the chain rule through a clamp](../understand/chain_rule.md).
