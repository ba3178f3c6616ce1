"""report(): the calls that were rewritten, with their lines, and those that could not be. And rules chosen by site."""

import contextlib
import inspect
import linecache
import sys
import warnings

import pytest
import torch
from torch import Tensor, nn

from pseudograd.rewrite.override import override
from pseudograd.rewrite.pin_edge import pin_edge
from pseudograd.rewrite.report import Missed, Rewritten, join_reports
from pseudograd.rewrite.sites import Site
from pseudograd.torch_table.eras import installed_era


def _line(text: str) -> str:
    """file:line of the line of this file that ends with the mark."""
    lines = inspect.getsource(inspect.getmodule(_line)).splitlines()
    (number,) = (i for i, line in enumerate(lines, 1) if line.endswith(f"# {text}"))
    return f"tests/rewrite/test_report.py:{number}"


@pytest.fixture(autouse=True)
def _in_the_root(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.chdir(request.config.rootpath)


def leaf() -> Tensor:
    return torch.tensor([-2.0, 0.0, 2.0], requires_grad=True)


def _expression(expression: str, mark: str) -> str:
    """Python before 3.11 knows the line alone."""
    if sys.version_info >= (3, 11):
        return expression
    return linecache.getline(__file__, int(_line(mark).rsplit(":", 1)[1])).strip()


def _calls(op: str, expression: str, mark: str, calls: int) -> tuple[str, str, str, str, int]:
    return op, _line(mark), _line(mark), _expression(expression, mark), calls


def test_calls_are_counted_by_line() -> None:
    with override(clamp="inward", relu="identity") as context:
        for _ in range(3):
            torch.clamp(leaf(), -1, 1)  # three times
        nn.ReLU()(leaf())  # through the module
        with torch.no_grad():
            torch.clamp(leaf(), -1, 1)
    report = context.report()
    assert report.rewritten == (
        Rewritten(*_calls("clamp", "torch.clamp(leaf(), -1, 1)", "three times", 3), "inward/closed", False),
        Rewritten(*_calls("relu", "nn.ReLU()(leaf())", "through the module", 1), "identity/open", False),
    )
    assert report.missed == ()
    assert join_reports([report]) == report
    assert str(report) == (
        "override(clamp='inward', relu='identity'): 4 calls rewritten at 2 lines\n"
        f"          3  clamp        inward/closed    {_line('three times')}\n"
        f"          1  relu         identity/open    {_line('through the module')}"
    )


def test_nothing_is_said_in_words() -> None:
    with override(clamp="inward") as context:
        torch.exp(leaf())
    assert str(context.report()) == (
        "override(clamp='inward'): 0 calls rewritten at 0 lines\n"
        "  nothing was rewritten, unless by code compiled before: no matching call was recorded for a backward inside"
    )
    era = installed_era()
    with pin_edge(era) as context:
        torch.clamp(leaf(), -1, 1)
    assert str(context.report()) == f"pin_edge({era!r}): this torch is of that era, nothing is rewritten"


def test_calls_that_no_site_chose_have_their_lines_in_the_report() -> None:
    with override(clamp=lambda site: "inward" if site.is_at(f"{site.where}0") else None) as context:
        torch.clamp(leaf(), -1, 1)  # left
    report = context.report()
    assert report.missed == ()
    assert str(report).splitlines()[1:] == [
        "  nothing was rewritten: the function of the site chose torch's own rule for each call",
        f"          1  clamp        {_line('left')}",
    ]


@pytest.mark.parametrize("last", ["torch", "torch by name", "backward", "backward unseen"])
def test_torchscript_is_missed_and_named(last: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted = torch.jit.script(_scripted)
    with override(clamp="inward") as context:
        for _ in range(2):
            y = scripted(leaf())
            if last == "torch":
                y = y.sum()  # where it shows
            elif last == "torch by name":
                torch.sin(input=y)
            else:
                with torch._C.DisableTorchFunction() if last == "backward unseen" else contextlib.nullcontext():
                    torch.autograd.backward(y, torch.ones(3))
    missed = context.report().missed
    assert missed
    assert sum(site.calls for site in missed) == 2
    assert all("TorchScript" in site.why for site in missed)


def test_a_call_outside_the_context_is_not_missed() -> None:
    """No call before the context, nor between two entries of one context, is in the report."""
    context = override(clamp="inward")
    for _ in range(2):
        y = torch.clamp(leaf(), -1, 1) * 1
        with context:
            y.sum().backward()
    assert context.report().missed == ()


def _scripted(x: Tensor) -> Tensor:
    return torch.clamp(x, -1.0, 1.0) * 2


SPARSE = "neither sparse, nested nor quantized tensors are rewritten"


def test_a_call_that_is_left_to_torch_on_purpose_is_missed_with_its_reason() -> None:
    x = leaf()
    with override(clamp="elastic", relu="inward") as context:
        torch.clamp(x, min=0.0)  # one bound
        torch.relu(x.to_sparse())  # sparse
        x.sum()
    assert set(context.report().missed) == {
        Missed(*_calls("clamp", "torch.clamp(x, min=0.0)", "one bound", 1), "rule elastic needs both bounds"),
        Missed(*_calls("relu", "torch.relu(x.to_sparse())", "sparse", 1), SPARSE),
    }


# --- the rule of a site ----------------------------------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.ReLU(), nn.Hardtanh())
        self.last = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x) * 1) + torch.clamp(x, -3, 3)


def test_a_site_tells_line_module_and_bounds() -> None:
    sites: list[Site] = []

    def choose(site: Site) -> None:
        sites.append(site)

    x = leaf()
    with override(clamp=choose, relu=choose):
        Net()(x)
        torch.minimum(torch.ones(3), x)
        torch.clamp(x, min=torch.zeros(3))
    assert [(s.op, s.family, s.module) for s in sites] == [
        ("relu", "relu", "first.0"),
        ("hardtanh", "relu", "first.1"),
        ("relu", "relu", "last"),
        ("clamp", "clamp", ""),
        ("minimum", "clamp", None),
        ("clamp", "clamp", None),
    ]
    assert [(s.min, s.max) for s in sites[:4]] == [(0.0, None), (-1.0, 1.0), (0.0, None), (-3, 3)]
    assert sites[4].min is None
    assert torch.equal(sites[4].max, torch.ones(3))
    assert torch.equal(sites[5].min, torch.zeros(3))
    assert all(s.where.startswith("tests/rewrite/test_report.py:") for s in sites)


def test_a_site_under_a_transform_knows_its_bound() -> None:
    """The tensor that a transform has wrapped is x."""
    sites: list[Site] = []
    zeros = torch.zeros(3)

    def choose(site: Site) -> None:
        sites.append(site)

    with override(clamp=choose):
        for f in (lambda x: torch.maximum(x, zeros), lambda x: torch.maximum(zeros, x)):
            torch.func.grad(lambda x, f=f: f(x).sum())(leaf().detach())
    assert [(site.min.tolist(), site.max) for site in sites] == [([0.0] * 3, None)] * 2
    sites.clear()
    with override(clamp=choose):
        torch.func.grad(lambda x: torch.maximum(x * 0, x).sum())(leaf().detach())
    assert [(site.min, site.max) for site in sites] == [(None, None)]  # either may be
