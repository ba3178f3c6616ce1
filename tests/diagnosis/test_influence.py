"""What is known of the cuts of a loss, whether each call is marked by the short way or the long one."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pseudograd.diagnosis.context import Diagnosis
from pseudograd.diagnosis.count.influence import Influence

from .checks import diagnosed, make_function

# a loss of the parameters x, w and v -> its cuts, each with the number of leaves whose gradient it cuts; and the terms with a constant
LOSSES = """
x.detach().mul(w).sum() -> .detach() of 1 reaches last
x.data.mul(w).sum() -> .data of 1 reaches last
x.detach().detach().mul(w).sum() -> .detach() of 1 reaches again
x.detach().sum() + w.sum() -> .detach() of 1 reaches last, term 1 1
x.sum().item() * w.sum() -> .item() of 1 exits
x.detach().sum().item() * w.sum() -> .detach() of 1 again, .item() of 1 exits
(x > 0).float().mul(w).sum() -> comparison of 1 reaches last compared
torch.where(x > 0, w, 0).sum() -> comparison of 1 reaches last compared
torch.where((x > 0) & (w > 0), w, x).sum() -> comparison of 1 reaches last compared, comparison of 1 reaches last compared
x.argmax().float() * w.sum() -> argmax of 1 reaches last
x.topk(1).indices.float().mul(w).sum() -> indices of topk of 1 reaches last compared
x.topk(1).values.mul(w.topk(1).values).sum() -> indices of topk of 1, indices of topk of 1
(x * w).topk(1).indices.float().mul(w).sum() -> indices of topk of 2 reaches last
w[(x * 1).argsort()].sum() -> argsort of 1 reaches last compared
w[(x * v).argsort()].sum() -> argsort of 2 reaches last
x.long().float().mul(w).sum() -> cast to integers of 1 reaches last
x.to(torch.int32).float().mul(w).sum() -> cast to integers of 1 reaches last
torch.tensor(x.sum()) * w.sum() -> torch.tensor(x) of 1 reaches last
w.new_tensor(x).mul(w).sum() -> torch.tensor(x) of 1 reaches last
_no_grad(lambda: x * 2).mul(w).sum() -> mul under no_grad of 1 reaches last
_no_grad(lambda: x.detach() * 2).mul(w).sum() -> .detach() of 1 reaches
_no_grad(lambda: x.view(2)).mul(w).sum() -> view under no_grad of 1 reaches last
_no_grad(lambda: (x > 0).float()).mul(w).sum() -> gt under no_grad of 1 reaches last compared
(lambda y: (y.copy_(x.detach()), (y * w).sum())[1])(torch.zeros(2)) -> .detach() of 1 reaches last
(lambda y: (_no_grad(lambda: y.copy_(x)), (y * w).sum())[1])(torch.zeros(2)) -> copy_ under no_grad of 1 reaches last
(lambda y: (y.__setitem__(0, x[0].detach()), (y * w).sum())[1])(torch.zeros(2)) -> .detach() of 1 reaches last
(lambda y: (_no_grad(lambda: y.add_(x)), (y * w).sum())[1])(w * 1) -> add_ under no_grad of 1 reaches last
(_no_grad(lambda: w.copy_(x)), (v * w).sum())[1] -> copy_ under no_grad of 1 reaches last
(_no_grad(lambda: w.clamp_(-9, 9)), (v * w).sum())[1] ->
(w.data.copy_(x.detach()), (v * w).sum())[1] -> .data of 1, .detach() of 1 reaches last
(w.data.mul_(1), (v * w).sum())[1] -> .data of 1
(lambda y: (torch._foreach_add_([y], [x.detach()]), (y * w).sum())[1])(torch.zeros(2)) -> .detach() of 1 reaches last
torch.lerp(x, x.detach(), 0.5).mul(w).sum() -> .detach() of 1 reaches last
x.detach().norm().mul(0.1) + w.norm() -> .detach() of 1 reaches last, term 1 1
(x.detach().norm() + w.norm()).sqrt() -> .detach() of 1 reaches last, term 0 1
(w.norm() + 0.5) * 2 -> term 1 0
(w.norm() + 0.5).sqrt() -> term 0 0
(w.norm() - torch.tensor(2.0)) / 3 ->
w.norm() + x.detach().norm() * 2 + (x - x.detach()).sum() -> .detach() of 1 reaches last, .detach() of 1 reaches last, term 1 1
halved.apply(x).mul(w).sum() ->
cut.apply(x).mul(w).sum() -> a Function none of whose inputs needs a gradient of 1 reaches last
_no_grad(lambda: halved.apply(x)).mul(w).sum() -> a Function under no_grad of 1 reaches last
sum(torch.autograd.grad((x * x).sum(), x, create_graph=True)).mul(w).sum() ->
sum(torch.autograd.grad((x * x).sum(), x)).mul(w).sum() -> grad of 1 reaches last
float((x > 0).any()) * w.sum() -> comparison of 1 compared, float() of 1 exits
(w.sum() if bool(x.sum() > 0) else 0) -> comparison of 1 compared, bool() of 1 exits
(x.detach() > 0).float().mul(w).sum() -> .detach() of 1 reaches compared
(x.detach() > 0).float().detach().mul(w).sum() -> .detach() of 1 reaches compared
torch.isclose(x, w).float().mul(w).sum() -> comparison of 2 reaches last compared
x.detach().mul(w).detach().mul(v).sum() -> .detach() of 1 reaches again, .detach() of 1 reaches last
repr(x.detach()) and w.sum() -> .detach() of 1
"""
halved: Any = make_function("Halved", lambda ctx, x: x.detach() / 2, lambda ctx, grad: grad / 2)
cut: Any = make_function("Cut", lambda ctx, x: ctx.mark_non_differentiable(y := x * 2) or y, lambda ctx, grad: grad)


def _no_grad(function: Callable[[], Tensor]) -> Tensor:
    with torch.no_grad():
        return function()


def _describe(d: Diagnosis) -> str:
    parts = []
    for known in d._recorder.influence.cuts.values():
        reaches = {None: " exits", True: " reaches", False: ""}[known.reaches_loss]
        words = (
            " last" * known.is_final_cut,
            " compared" * bool(known.compared_at),
            " again" * bool(known.cut_again_at),
        )
        parts.append(f"{known.kind} of {known.upstream.bit_count()}{reaches}{''.join(words)}")
    terms = d._recorder.influence.constant_terms.values()
    return ", ".join([*parts, *(f"term {term.passes} {len(term.cuts)}" for term in terms)])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("row", LOSSES.strip().splitlines())
def test_the_cuts_of_a_loss_are_known(row: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source, _, cuts = row.partition(" ->")
    for _ in range(2):
        x, w, v = (nn.Parameter(torch.tensor([first, first + 1])) for first in (1.0, 3.0, 5.0))
        names = {**globals(), "x": x, "w": w, "v": v}
        assert _describe(diagnosed(lambda names=names: torch.sum(eval(source, names)))) == cuts.strip()
        monkeypatch.setattr(Influence, "mark_plainly", lambda *arguments: False)
