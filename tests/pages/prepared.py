"""What a page leaves to its reader: the names that its blocks take from the reader's own program. And what is not run here, and why."""

from __future__ import annotations

from .blocks import Block

# (page, a line of the block): what is run before that block, in the names of the page.
BEFORE = {
    ("docs/compare.md", "with concurrent.futures"): """
import sys
import types

import torch


def run(clamp, seed):
    x = torch.tensor([2.0 + seed], requires_grad=True)
    clamp(x, 0, 1).sum().backward()
    return float(x.grad.sum()) + seed


sys.modules["mine"] = mine = types.ModuleType("mine")
mine.run = run
""",
    ("docs/in_your_tools.md", "from pseudograd.integrations.transformers"): """
import transformers

trainer = transformers.Trainer(model=torch.nn.Linear(1, 1), args=transformers.TrainingArguments("trained", report_to=[]))
""",
    ("docs/in_your_tools.md", "def test_every_parameter_learns"): """
from pseudograd.integrations.pytest import diagnosed
""",
}
# ... and what is run after it, so that what it defines is used.
AFTER = {
    ("docs/compare.md", "def objective(trial)"): "del sys.modules['mine']",
    ("docs/in_your_tools.md", "def test_every_parameter_learns"): "test_every_parameter_learns(diagnosed)",
    ("docs/kinks.md", "point = load()"): """
assert [point.gradient("torch", "2.13"), point.gradient("jax")] == [[[1.0]], [[0.5]]]
""",
    ("docs/policy_clips.md", "loss = pg.policy.loss"): """
loss.sum().backward()
assert loss.shape == log_prob.grad.shape == (4, 5)
""",
}
# (page, a line of the block): why it is not run here. It is compiled, and every name it takes from pseudograd is looked up.
_RUNS = "tests/comparison/test_runs.py"
NOT_RUN = {
    ("docs/compare.md", "with concurrent.futures"): f"processes of eight; {_RUNS} runs both executors",
    ("docs/compare.md", "from dask.distributed"): f"needs the package dask; {_RUNS} runs it where it is installed",
    ("docs/compare.md", "import submitit"): f"needs the package submitit; {_RUNS} runs it where it is installed",
    ("docs/compare.md", "import ray"): f"needs the package ray; {_RUNS} runs it where it is installed",
}
# Pages that take seconds: .ci/run runs them before a change lands. What the packages of the first load warns of what it pleases.
SLOW = ("docs/compare.md", "docs/in_your_tools.md", "docs/your_own_rule.md")
# Without these modules, which an older torch may refuse to import, the block is looked up and not run: the extras bring them.
NEEDS = {
    "lightning": "import lightning",
    "transformers.trainer": "import transformers",
    "optuna": "import optuna",
    "matplotlib": "pg.plot(",
}


def entry_of(block: Block, table: dict[tuple[str, str], str]) -> str:
    """What the table has for this block, or nothing."""
    return next((entry for (page, line), entry in table.items() if page == block.page and line in block.text), "")
