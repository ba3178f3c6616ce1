"""The table of what torch does at a bound, held against the torch the suite runs on."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional

import pseudograd as pg
from pseudograd import doctor
from pseudograd.rewrite import edges
from pseudograd.rewrite.other_conventions import other_of
from pseudograd.rule import PRIMITIVES, forget_calls
from pseudograd.torch_table import eras as torch_eras
from pseudograd.torch_table import forms
from pseudograd.torch_table.conventions import SLOPE, Family, Kink, pin, pull_with_kink
from pseudograd.torch_table.eras import (
    CLOSED_ERA,
    ERAS,
    OPEN_ERA,
    Era,
    Slopes,
    era_named,
    era_of,
    installed_era,
    measure,
)
from pseudograd.torch_table.forms import SPELLINGS, edge_cases
from pseudograd.torch_table.records import CUTS, EDGE, MISSING, EdgeCase, Form, edge_case

from .choices import folded

WAYS = {way.text: way for way in edge_cases()}


@folded
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_the_table_is_what_this_torch_does(way: EdgeCase) -> None:
    assert measure(way.f) == way.slopes_in(era_of(torch.__version__))


@pytest.fixture
def installed_era_anew() -> Iterator[None]:
    """The installed era is measured once; here it is measured again."""
    installed_era.cache_clear()
    yield
    installed_era.cache_clear()


@pytest.mark.parametrize(
    ("version", "share", "era"),
    [
        ("2.13.0", 0.0, OPEN_ERA),
        ("2.15.0", 1.0, CLOSED_ERA),
        ("2.13.0", 0.25, CLOSED_ERA),
        ("2.15.0", 0.25, OPEN_ERA),
        ("2.16.0", 1.0, "torch>=2.16"),
        ("2.15.0+cpu", 0.5, OPEN_ERA),
    ],
)
def test_the_installed_era_is_what_torch_does_and_else_its_version(
    version: str, share: float, era: str, monkeypatch: pytest.MonkeyPatch, installed_era_anew: None
) -> None:
    """The version decides between eras that do the same with number bounds, and where torch does what no era did."""
    monkeypatch.setitem(ERAS, "torch>=2.16", ERAS[OPEN_ERA].replaced(name="torch>=2.16", since=(2, 16), edge="closed"))
    monkeypatch.setattr(torch, "__version__", version)
    monkeypatch.setattr(torch_eras, "outside_every_mode", lambda measurement: share)
    assert installed_era() == era


# --- which versions a pin may name ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("versions", "era"),
    [
        ("torch<=2.13", CLOSED_ERA),
        ("torch<=2.9", CLOSED_ERA),
        ("torch == 2.13.1", CLOSED_ERA),
        ("torch==2.14.1", OPEN_ERA),
        ("torch>=2.15", OPEN_ERA),
    ],
)
def test_the_era_that_versions_belong_to(versions: str, era: str) -> None:
    assert era_named(versions) == era
    with pg.pin_edge(versions):
        assert measure(WAYS["clamp(x, min=0)"].f) == WAYS["clamp(x, min=0)"].slopes_in(era)


@pytest.mark.parametrize("versions", ["torch==2.7", "torch>=1.13", "torch==2.99", "torch<=3.0"])
def test_versions_that_nobody_measured_are_an_error(versions: str) -> None:
    with pytest.raises(ValueError, match=r"pin_edge: edge must name a version from 2.8 to 2.15") as caught:
        pg.pin_edge(versions)
    assert repr(versions) in str(caught.value)


@pytest.mark.parametrize("versions", ["torch>=2.12", "torch<=2.14", "torch>=2.8"])
def test_versions_of_two_eras_are_an_error(versions: str) -> None:
    with pytest.raises(ValueError, match="must name versions that do the same") as caught:
        pg.pin_edge(versions)
    assert all(repr(era) in str(caught.value) for era in ERAS)


@pytest.mark.parametrize("versions", ["torch~=2.13", "torch", "2.13", "Torch>=2.14", "", None, 2.13])
def test_a_name_that_is_no_version_is_unknown(versions: object) -> None:
    with pytest.raises(
        ValueError, match=r"pin_edge: edge must be one of closed, half, jax, open, tensorflow, torch<=2.13, torch>=2.14"
    ):
        pg.pin_edge(versions)


# --- a third era, and one more function -------------------------------------------------------------------------------


@pytest.fixture
def third_era(monkeypatch: pytest.MonkeyPatch) -> Iterator[Era]:
    """Half of grad with number bounds, a quarter for x at a tie of fmin and fmax, all of grad with tensor bounds."""
    era = ERAS[CLOSED_ERA].replaced(name="torch>=2.16", since=(2, 16), edge="half", share_in_fmax=0.25)
    monkeypatch.setitem(ERAS, era.name, era)
    monkeypatch.setattr(torch_eras, "LAST", (2, 17))
    for name, slopes in (("clamp(x, min=0)", Slopes(0.5)), ("clamp(x, min=tensor)", Slopes(1.0, 0.0))):
        monkeypatch.setitem(WAYS[name].slopes, era.name, slopes)
    _forget_rules(era)  # another test may have had an era of this name
    yield era
    _forget_rules(era)


def _forget_rules(era: Era) -> None:
    for rules in (edges.OF_NUMBERS, edges.OF_TENSORS, *edges.OF_PAIRS.values()):
        for name in [name for name in rules if era.name in name]:
            del rules[name]
    forget_calls()


def test_a_third_era_is_right_everywhere(third_era: Era, monkeypatch: pytest.MonkeyPatch) -> None:
    eras = [era_of(version) for version in ("2.13.0", "2.15.0", "2.16.0", "3.0")]
    assert eras == [CLOSED_ERA, OPEN_ERA, third_era.name, third_era.name]
    assert era_named("torch==2.17") == era_named("torch>=2.16") == era_named("torch>2.15") == third_era.name
    assert era_named("torch<2.14") == era_named("torch < 2.13.1") == CLOSED_ERA
    for versions in ("torch<2.14.1", "torch<2.8"):
        with pytest.raises(ValueError, match="must name"):
            era_named(versions)
    assert era_named("torch>=2.14") == OPEN_ERA, "the name of an era stays its name"
    for versions in (third_era.name, "torch==2.16"):
        with pg.pin_edge(versions) as context:
            assert measure(lambda x, b: torch.clamp(x, min=0.0)) == (0.5, None)
            assert measure(lambda x, b: torch.clamp(x, min=b)) == (1.0, 0.0)
            assert measure(torch.fmax) == (0.25, 0.75)
        assert len(context.report().rewritten) == 3
    lines = doctor.text(doctor.examine()).splitlines()
    others = [name for name in ERAS if name != installed_era()]
    assert [name for name in others if name in lines[2]] == others
    row = next(line for line in lines if line.startswith("clamp(x, min=0)"))
    assert f"{0.5:g}" in row.split()
    # Installed, and found by what it does at a bound.
    monkeypatch.setattr(torch, "__version__", "2.16.0")
    torch_eras.installed_era.cache_clear()
    monkeypatch.setattr(torch_eras, "outside_every_mode", lambda measurement: 0.5)
    assert installed_era() == third_era.name
    torch_eras.installed_era.cache_clear()


def _bounded(x: torch.Tensor, low: float) -> torch.Tensor:
    return torch.ops.pseudograd_tests.bounded(x, low)


@pytest.fixture
def taught() -> Iterator[Form]:
    """A function of torch that the library did not know: max(x, low), with autograd of its own."""
    library = torch.library.Library("pseudograd_tests", "FRAGMENT")
    library.define("bounded(Tensor input, float low) -> Tensor")
    library.impl("bounded", lambda x, low: x.clamp_min(low), "CompositeExplicitAutograd")

    def keep(ctx: Any, inputs: tuple[torch.Tensor, float], output: object) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.low = inputs[1]

    torch.library.register_autograd(
        "pseudograd_tests::bounded",
        lambda ctx, grad: (torch.where(ctx.saved_tensors[0] > ctx.low, grad, 0.0), None),
        setup_context=keep,
        lib=library,
    )
    bounded = Family("bounded", "the bound", SLOPE, 0.0, 1.0)
    slope = pull_with_kink(lambda x, low: x == low, lambda grad, x, low: torch.where(x > low, grad, 0.0))
    pin(bounded, "bounded", slope, _bounded, ("x", "low"))
    form = forms.add(
        Form(
            "bounded",
            switches=("clamp", EDGE),
            defaults={"input": MISSING, "low": MISSING},
            owners=(torch.ops.pseudograd_tests,),
            arrange=lambda x, low: ("torch.clamp_min", (x, low, None)),
            nodes=("GeneratedBackwardFor_pseudograd_tests_bounded",),
            kink=Kink(bounded, lambda x, low: ("bounded", (x, low)), example=(0.0, 0.0)),
            edge_cases=(edge_case("bounded(x, 0)", CUTS, f=lambda x, tensor: _bounded(x, 0.0)),),
        )
    )
    yield form
    forms.take_out(form)
    del PRIMITIVES["bounded, pinned"]
    library._destroy()


def test_one_row_teaches_a_function_to_all(taught: Form) -> None:
    x = torch.tensor([-2.0, 0.0, 2.0], requires_grad=True)
    assert torch.autograd.grad(_bounded(x, 0.0).sum(), x)[0].tolist() == [0, 0, 1]
    with pg.override(clamp="identity") as context:
        assert torch.autograd.grad(_bounded(x, 0.0).sum(), x)[0].tolist() == [1, 1, 1]
    assert [site.op for site in context.report().rewritten] == ["bounded"]
    for pinned, slope in ((pg.pin_edge("half"), 0.5), (pg.pin_edge("jax"), 1.0), (pg.pin_edge(bounded=0.25), 0.25)):
        with pinned:
            assert torch.autograd.grad(_bounded(x, 0.0).sum(), x)[0].tolist() == [0, slope, 1]
        assert [site.op for site in pinned.report().rewritten] == ["bounded"]
    assert "bounded(x, 0)" in doctor.text(doctor.examine())
    assert other_of("bounded") == ("jax", "1.0", {CLOSED_ERA: 0.0, OPEN_ERA: 0.0, "jax": 1.0})
    with pg.override(clamp="identity") as context:
        with torch._C.DisableTorchFunction():
            hidden = _bounded(x, 0.0)
        (hidden + 0).sum().backward()
    assert [site.op for site in context.report().missed] == ["bounded"]


# --- the one table ----------------------------------------------------------------------------------------------------


def test_switches_overlap_where_a_function_has_both() -> None:
    assert forms.overlap(["clamp"], ["edge"])
    assert forms.overlap(["relu", "round"], ["hardsigmoid"])
    assert not forms.overlap(["round"], ["edge"])
    assert not forms.overlap([], ["edge"])
    for function, families in (torch.clamp, {"clamp"}), (functional.relu, {"relu", "relu6", "hardtanh"}):
        form = SPELLINGS[function].form
        assert {family for family in forms.FAMILIES if forms.is_pinned_inside(form, [family])} == families
    with pg.override(hardsigmoid="exact") as context:
        functional.hardsigmoid(LEAF)
        torch.relu(LEAF)
    assert [site.op for site in context.report().rewritten] == ["hardsigmoid"]


# --- how calls are read -----------------------------------------------------------------------------------------------

LEAF, TWO = torch.ones(2, requires_grad=True), torch.full((2,), 2.0)


def test_a_call_with_lists_is_read_for_each_tensor() -> None:
    spelling = SPELLINGS[torch._foreach_clamp_min]  # type: ignore[attr-defined]
    assert spelling.read_each(([LEAF, TWO], 0.5), {}) == [(LEAF, 0.5), (TWO, 0.5)]
    assert spelling.read_each(([LEAF, TWO],), {"scalars": [0.5, 1.5]}) == [(LEAF, 0.5), (TWO, 1.5)]
    assert spelling.read_each(((LEAF,),), {"self": [TWO], "scalar": (1.5,)}) == [(TWO, 1.5)]
    assert spelling.read_each(([LEAF, TWO], [0.5]), {}) is None
    assert spelling.read_each(([LEAF, TWO],), {}) is None


# --- what the table says of a node ------------------------------------------------------------------------------------


def _form(name: str) -> Form:
    (form,) = (form for form in forms.FORMS if name in form.names)
    return form


@pytest.mark.parametrize(
    ("name", "of_numbers", "of_tensors"),
    [
        ("clamp", [1.0, 0.0], [1.0, 0.5]),
        ("relu", [0.0, 0.0], []),
        ("maximum", [], [0.5, 0.5]),
        ("fmin", [1.0, 0.0], [1.0, 0.5]),
    ],
)
def test_each_era_gives_x_its_share_at_a_bound(name: str, of_numbers: list[float], of_tensors: list[float]) -> None:
    for has_tensor_bound, shares in ((False, of_numbers), (True, of_tensors)):
        expected = dict(zip((CLOSED_ERA, OPEN_ERA), shares, strict=True)) if shares else {}
        assert forms.shares_at_the_edge(_form(name), has_tensor_bound) == expected


def test_the_saved_values_of_a_node_are_read_as_the_call_was() -> None:
    x, low = torch.tensor([-2.0, 0.5], requires_grad=True), torch.zeros(2)
    y, z = torch.clamp(x, -1.0, 1.0), torch.clamp_min(x, low)
    saved = forms.saved_values(_form("clamp"), y.grad_fn)
    assert (saved.values[0] is x, saved.values[1:]) == (True, [-1.0, 1.0])
    assert (saved.primitive, saved.inputs[0] is x, saved.inputs[1:]) == ("torch.clamp", True, (-1.0, 1.0))
    saved = forms.saved_values(_form("clamp_min"), z.grad_fn)
    assert (saved.primitive, saved.inputs[1].tolist(), saved.inputs[2]) == ("torch.clamp_min", [0.0, 0.0], None)


def test_a_node_that_saves_too_little_gives_nothing() -> None:
    x = torch.tensor([-2.0, 0.5], requires_grad=True)
    assert forms.saved_values(_form("relu"), torch.relu(x).grad_fn) is None
    assert forms.saved_values(_form("clamp"), torch.relu(x).grad_fn) is None
    assert forms.saved_values(_form("minimum"), torch.minimum(x, x * 2).grad_fn) is None  # which is no clamp
    y = torch.clamp(x, -1.0, 1.0)
    y.sum().backward()
    assert forms.saved_values(_form("clamp"), y.grad_fn) is None  # freed
