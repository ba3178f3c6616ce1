# %% [markdown]
# # An old VQGAN+CLIP script, migrated
#
# Scripts of 2021 define two classes, `ClampWithGrad` and `ReplaceGrad`. Here is such a script in small: its "picture" is a row of codes
# that are replaced by the nearest ones of a codebook, and clamped to what a screen can show.

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
    """What a command prints, in the script's folder."""
    done = subprocess.run([sys.executable, *command], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


before = run("old.py")
print(before)

# %% [markdown]
# `pseudograd migrate` shows what it would change. It recognises a class by what it computes, not by its name, and checks that the
# replacement computes the same.

# %%
shown = run("-m", "pseudograd", "migrate", "old.py")
print(shown)
assert "+from pseudograd" in shown

# %% [markdown]
# `--apply` writes it. The script then trains as before, to the last bit:

# %%
run("-m", "pseudograd", "migrate", "--apply", "old.py")
after = run("old.py")
print(after)
assert after == before

# %% [markdown]
# What was gained: the same values without an underflow in float16, the same under `torch.compile` and `torch.func`, and other rules by
# name. Which rule is better for a picture is [measured](../which_rule.md).
