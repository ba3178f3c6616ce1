# %% [markdown]
# # An old VQGAN+CLIP script, migrated
#
# Scripts of 2021 define two classes, `ClampWithGrad` and `ReplaceGrad`. This is a small script of that kind. Its "picture" is a row of
# vectors. Each vector is replaced by the nearest code of a codebook and then clamped to the range of a screen.

# %%
import subprocess
import sys
import tempfile
from pathlib import Path

SCRIPT = """
import torch


class ReplaceGrad(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x_forward, x_backward):
        ctx.shape = x_backward.shape
        return x_forward

    @staticmethod
    def backward(ctx, grad_in):
        return None, grad_in.sum_to_size(ctx.shape)


replace_grad = ReplaceGrad.apply


class ClampWithGrad(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, min, max):
        ctx.min = min
        ctx.max = max
        ctx.save_for_backward(input)
        return input.clamp(min, max)

    @staticmethod
    def backward(ctx, grad_in):
        (input,) = ctx.saved_tensors
        return grad_in * (grad_in * (input - input.clamp(ctx.min, ctx.max)) >= 0), None, None


clamp_with_grad = ClampWithGrad.apply

torch.manual_seed(0)
codebook = torch.randn(16, 4)
z = (2 * torch.randn(8, 4)).requires_grad_()
target = torch.rand(8, 4)
optimizer = torch.optim.Adam([z], lr=0.1)
for step in range(40):
    nearest = codebook[torch.cdist(z, codebook).argmin(1)]
    picture = clamp_with_grad(replace_grad(nearest, z) / 2 + 0.5, 0, 1)
    loss = (picture - target).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("loss", loss.item())
"""

folder = Path(tempfile.mkdtemp())
(folder / "old.py").write_text(SCRIPT)


def run(*command):
    """Runs a command in the folder of the script and returns its output."""
    done = subprocess.run([sys.executable, *command], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


before = run("old.py")
print(before)

# %% [markdown]
# `pseudograd migrate` shows the changes that it proposes. It recognises a class by its gradients, not by its name, and checks that the
# replacement computes the same gradients.

# %%
shown = run("-m", "pseudograd", "migrate", "old.py")
print(shown)
assert "+from pseudograd" in shown

# %% [markdown]
# `--apply` writes the changes. The script then trains as before, to the last bit:

# %%
run("-m", "pseudograd", "migrate", "--apply", "old.py")
after = run("old.py")
print(after)
assert after == before

# %% [markdown]
# The migrated script does not underflow in float16, works under `torch.compile` and `torch.func`, and can choose other rules by name.
# [Which rule when](../which_rule.md) measures which rule is better for a picture.
