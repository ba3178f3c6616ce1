"""Find the functions of torch that call a function of the table inside, where no mode sees it, and store them in docs/composites.json.

Every sample of torch's own tests of functions and modules runs under a mode. If a call makes a node of another op of the table, it hides
this op. Run the script once with each torch; it replaces only the results of that version. Docs and tests read them.

python scripts/find_composites.py            write the file
python scripts/find_composites.py --check    fail if a function hides an op and has no row

An op that is hidden in a `where`, a masked fill or a kernel with its own backward leaves no node, and is not found.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from figures_by_version import keep
from torch.overrides import TorchFunctionMode, resolve_name

from pseudograd import override, pin_edge
from pseudograd.listen.nodes import GraphNode, Ranges, nodes_of, reachable_from
from pseudograd.rewrite.context import Rewriting
from pseudograd.rule import OPS
from pseudograd.torch_table.eras import ERAS, installed_era
from pseudograd.torch_table.forms import SPELLINGS, SWITCHES, form_of_node
from pseudograd.torch_table.private import node_number
from pseudograd.torch_table.records import EDGE, Form

ROOT = Path(__file__).resolve().parent.parent
FOUND = ROOT / "docs" / "composites.json"
sys.path.insert(0, str(ROOT))
from tests.torchs_samples import Sample, of_functions, of_modules  # noqa: E402  tests run the same

Row = dict[str, Any]
_EXTREMES = {"MaximumBackward0": torch.maximum, "MinimumBackward0": torch.minimum}  # a clamp only beside a constant


class Watching(TorchFunctionMode):
    """hidden: for each function that a mode sees, the forms of other rows whose nodes it made."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden: dict[Any, list[Form]] = {}
        self.seen: set[GraphNode] = set()
        self._ranges = Ranges()
        self._ranges.start_afresh()

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        before = node_number()
        result = func(*args, **(kwargs or {}))
        nodes = self._ranges.since(before, result)
        self.seen.update(nodes)
        for form in forms_of(nodes):
            own = SPELLINGS.get(func)
            if own is None or own.form.hides or set(own.form.switches).isdisjoint(form.switches):
                self.hidden.setdefault(func, []).append(form)
        return result


def forms_of(nodes: Iterable[GraphNode]) -> Iterator[Form]:
    for node in nodes:
        extreme = _EXTREMES.get(node.name())
        form = form_of_node(node.name()) if extreme is None else SPELLINGS[extreme].form
        if form is not None:
            yield form


def contexts(switches: Iterable[str]) -> Iterator[Rewriting]:
    """A context for each switch."""
    for switch in switches:
        if switch == EDGE:
            yield pin_edge(next(name for name in ERAS if name != installed_era()))
        else:
            yield override(**{switch: OPS[SWITCHES[switch]].default_rule})


def is_reached(sample: Sample, form: Form) -> bool:
    """Does every context for this op reach all of its calls in the sample?"""
    for context in contexts(form.switches):
        with context:
            sample.run()
        if context.report().missed:
            return False
    return True


def _ours() -> Iterator[Sample]:
    """Samples of functions that torch's tests have no sample of."""
    x, on = torch.randn(3, 4, requires_grad=True), torch.ones(1, dtype=torch.int32)
    observed = (on, on, torch.zeros(1), torch.ones(1), torch.ones(1), torch.zeros(1, dtype=torch.int32))
    for function, *args in (
        (torch.nn.functional.gumbel_softmax,), (torch.celu,), (torch.selu,), (torch.rrelu,), (torch.threshold, 0.5, 0.0),
        (torch.fused_moving_avg_obs_fake_quant, *observed, 0.1, 0, 255, 0),
        (torch._fake_quantize_learnable_per_tensor_affine, torch.ones(1), torch.zeros(1), 0, 255, 1.0),
        (torch._fake_quantize_learnable_per_channel_affine, torch.ones(3), torch.zeros(3), 0, 0, 255, 1.0),
        (torch.margin_ranking_loss, torch.zeros(3, 4), torch.ones(3, 4)), (torch.hinge_embedding_loss, -torch.ones(3, 4)),
        (torch.cosine_embedding_loss, torch.ones(3, 4), -torch.ones(3)), (torch.triplet_margin_loss, torch.zeros(3, 4), torch.ones(3, 4)),
    ):  # fmt: skip
        yield Sample(function.__name__, function, x, tuple(args), {})


def find(samples: Iterable[Sample]) -> dict[str, Row]:
    """For each function: the ops that it hides, the number of such samples, in how many of them contexts reach all, and has it a row?"""
    rows: dict[str, Row] = {}
    calls = refused = 0
    for sample in samples:
        watching = Watching()
        try:
            with watching:
                result = sample.run()
        except Exception:  # torch's tests expect some samples to raise
            refused += 1
            continue
        calls += 1
        tensors = [leaf for leaf in torch.utils._pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        learning = [tensor for tensor in tensors if tensor.requires_grad and nodes_of(tensor)]
        unseen = [
            form.names[0] for form in forms_of(node for node in reachable_from(learning) if node not in watching.seen)
        ]
        assert not unseen, f"{sample.of}: made by no call that a mode sees: {unseen}"
        for function, forms in watching.hidden.items():
            name = resolve_name(function) or f"torch.{function.__name__}"
            row = rows.setdefault(name, {"hides": [], "samples": 0, "reached": 0, "row": function in SPELLINGS})
            row["hides"] = sorted({*row["hides"], *(form.names[0] for form in forms)})
            row["samples"] += 1
            row["reached"] += all(is_reached(sample, form) for form in forms)
    print(f"torch {torch.__version__}: {calls} samples ran, {refused} raised")
    return dict(sorted(rows.items()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    random.seed(0)
    rows = find(itertools.chain(of_functions(), of_modules(), _ours()))
    for name, row in rows.items():
        print(f"  {name}: {', '.join(row['hides'])}, {row['reached']} of {row['samples']} reached")
    without = [name for name, row in rows.items() if not row.pop("row")]
    if without:
        print(f"no row of torch_composites names {', '.join(without)}", file=sys.stderr)
    if not options.check:
        keep(FOUND, rows)
    return 1 if without else 0


if __name__ == "__main__":
    sys.exit(main())
