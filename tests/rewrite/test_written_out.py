"""Every function that is written out has torch's own gradient, in both eras, and the rule of the functions that it hides."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from pseudograd import convert, override, pin_edge
from pseudograd.torch_table.eras import ERAS, installed_era
from pseudograd.torch_table.forms import FORMS

from ..choices import folded
from ..torchs_samples import Sample, of_functions, of_modules

OTHER_ERA = next(name for name in ERAS if name != installed_era())
# Torch's tests have no sample with a gradient for the quantiser with an observer.
NAMES = sorted({form.name for form in FORMS if form.write is not None} - {"fused_moving_avg_obs_fake_quant"})
DTYPES = (torch.float64, torch.bfloat16)
pytestmark = pytest.mark.filterwarnings("ignore")  # of samples that torch itself warns about


def _samples(name: str) -> Iterable[Sample]:
    named = [sample for sample in of_functions(DTYPES, lambda other: other.endswith(name)) if sample.of.endswith(name)]
    return [*named, *of_modules(lambda other: other == f"nn.{''.join(map(str.capitalize, name.split('_')))}")]


def _derivatives(sample: Sample) -> list[Tensor | None] | None:
    """The value and the gradients; None if torch refuses the sample, or if nothing in it requires grad."""
    leaves = [leaf for leaf in tree_leaves((sample.x, sample.args, sample.kwargs)) if isinstance(leaf, Tensor)]
    if isinstance(sample.function, nn.Module):
        leaves += sample.function.parameters()
    try:
        value = sample.run()
    except (RuntimeError, ValueError, TypeError):
        return None
    learning = [leaf for leaf in leaves if leaf.requires_grad]
    parts = [part.reshape(-1) for part in tree_leaves(value) if isinstance(part, Tensor)]
    value = value if isinstance(value, Tensor) else torch.cat([part.to(parts[0].dtype) for part in parts])
    if not value.requires_grad or not learning:
        return None
    weight = torch.linspace(-1.0, 2.0, value.numel()).reshape(value.shape).to(value.dtype)
    return [value.detach(), *torch.autograd.grad(value, learning, weight, allow_unused=True)]


def _is_at_a_tie(sample: Sample) -> bool:
    """Do the eras differ on the sample? Half precision may round two values to the same number."""
    derivatives = []
    for era in ERAS:
        with pin_edge(era), override(round="zero"):
            derivatives.append(_derivatives(sample) or [])
    return not _are_equal(*derivatives)


def _are_equal(tensors: list[Tensor | None], others: list[Tensor | None]) -> bool:
    return all(
        a is b is None or (a is not None and b is not None and torch.allclose(a, b, 0, 0, equal_nan=True))
        for a, b in zip(tensors, others, strict=True)
    )


@pytest.mark.program  # a process needs seconds to import the samples
@pytest.mark.parametrize("name", NAMES)
def test_away_from_ties_a_sample_of_torch_is_torchs_own(name: str) -> None:
    compared = ties = rewritten = 0
    for sample in _samples(name):
        wanted = _derivatives(sample)
        if wanted is None:
            continue
        for context in (pin_edge(OTHER_ERA), override(clamp="zero", relu="zero", sign="zero", fake_quantize="zero")):
            with context:
                derivatives = _derivatives(sample)
            assert derivatives is not None
            assert context.report().missed == (), (sample.of, str(context.report()))
            rewritten += len(context.report().rewritten)
            is_same = _are_equal(wanted, derivatives)
            assert is_same or _is_at_a_tie(sample), (sample.of, repr(context))
            compared += is_same
            ties += not is_same
    assert rewritten
    assert compared > ties


# --- ties: the clamp inside gets its edge ---------------------------------------------------------------------------------


class Tie:
    """A call of one tensor, exactly at its tie. passed, held: the gradient by mathematics if the clamp passes grad, and if it does not."""

    def __init__(self, call: Callable[[Tensor], Tensor], x: Any, passed: Any, held: Any = None) -> None:
        self.call, self.x, self.passed = call, x, passed
        self.held = np.zeros_like(np.asarray(x, dtype=float)).tolist() if held is None else held


_NEAR, _FAR, _ONE = torch.zeros(1, 1), torch.full((1, 1), 3.0), torch.ones(1)
TIES: dict[str, Tie] = {
    "margin_ranking_loss": Tie(
        lambda x: functional.margin_ranking_loss(x, torch.zeros(2), torch.ones(2)), [0.0, 0.0], [-0.5, -0.5]
    ),
    "hinge_embedding_loss": Tie(lambda x: functional.hinge_embedding_loss(x, -_ONE), [1.0], [-1.0]),
    # d cos / dx = b/|x||b| - (x.b) x/|x|^3|b|, of which the second is 0
    "cosine_embedding_loss": Tie(
        lambda x: functional.cosine_embedding_loss(x[None], torch.tensor([[0.0, 1.0]]), -_ONE), [2.0, 0.0], [0.0, 0.5]
    ),
    "nn.CosineEmbeddingLoss": Tie(
        lambda x: nn.CosineEmbeddingLoss(0.6)(x, torch.tensor([1.0, 0.0]), torch.tensor(-1)),
        [3.0, 4.0],
        [0.128, -0.096],
    ),
    "triplet_margin_loss": Tie(
        lambda x: functional.triplet_margin_loss(x[None], _NEAR, _FAR, margin=1.0, eps=0.0), [1.0], [2.0]
    ),
    "triplet of torch": Tie(
        lambda x: torch.triplet_margin_loss(x[None], _NEAR, _FAR, 1.0, 2.0, 0.0, False, 1), [1.0], [2.0]
    ),
    "nn.TripletMarginLoss, swapped": Tie(
        lambda x: nn.TripletMarginLoss(margin=1.0, eps=0.0, swap=True)(x[None], _NEAR, _FAR), [1.0], [2.0]
    ),
    "triplet_margin_with_distance_loss": Tie(
        lambda x: functional.triplet_margin_with_distance_loss(
            x[None], _NEAR, _FAR, distance_function=lambda a, b: (a - b).abs().sum(-1)
        ),
        [1.0],
        [2.0],
    ),
    # x / max(|x|, eps), first element: 1/5 held; (1 - x1^2/25)/5 and -x1 x2/125 where the norm passes
    "normalize": Tie(lambda x: functional.normalize(x, dim=0, eps=5.0)[0], [3.0, 4.0], [0.128, -0.096], [0.2, 0.0]),
}


def test_a_vector_of_zeros_has_the_cosine_of_torch() -> None:
    zeros, ones = torch.zeros(1, 2, requires_grad=True), torch.ones(1, 2)
    with pin_edge(OTHER_ERA):
        assert functional.cosine_embedding_loss(zeros, ones, _ONE).item() == 1.0
        assert functional.cosine_embedding_loss(ones, zeros, _ONE).item() == 1.0


def _grad(tie: Tie, f: Callable[[Any], Any] | None = None) -> list[float]:
    x = torch.tensor(tie.x, requires_grad=True)
    (f or tie.call)(x).backward()
    return x.grad.tolist()  # type: ignore[no-any-return]


WAYS: dict[str, Callable[[Tie], Any]] = {
    "backward": _grad,
    "vmap of grad": lambda tie: torch.func.vmap(torch.func.grad(tie.call))(torch.tensor([tie.x, tie.x]))[1].tolist(),
    "jacfwd": lambda tie: torch.func.jacfwd(tie.call)(torch.tensor(tie.x)).tolist(),
    "checkpoint": lambda tie: _grad(tie, lambda x: checkpoint(tie.call, x, use_reentrant=False)),
    "reentrant checkpoint": lambda tie: _grad(tie, lambda x: checkpoint(tie.call, x, use_reentrant=True)),
}


@folded
@pytest.mark.parametrize("name", TIES)
def test_at_a_tie_each_era_is_the_same_on_every_torch(name: str) -> None:
    tie = TIES[name]
    for era, wanted in (("torch<=2.13", tie.passed), ("torch>=2.14", tie.held)):
        for way, differentiate in WAYS.items():
            with pin_edge(era):
                grad = differentiate(tie)
            np.testing.assert_allclose(grad, wanted, rtol=0, atol=3e-7, err_msg=f"{era}, {way}")


def test_a_distance_of_the_program_is_seen_as_its_other_calls_are() -> None:
    """torch calls the distance where no mode sees it. The clamp in the distance is at its bound, and passes grad or not."""
    x = torch.tensor([[1.0]], requires_grad=True)
    distance = lambda a, b: (a - b).clamp(min=0).sum(-1)  # noqa: E731
    for era, wanted in (("torch<=2.13", 0.0), ("torch>=2.14", 1.0)):
        with pin_edge(era) as context:
            loss = functional.triplet_margin_with_distance_loss(
                x, torch.zeros(1, 1), torch.ones(1, 1), distance_function=distance, margin=2.0
            )
            assert torch.autograd.grad(loss, x)[0].item() == wanted
        counts = sorted((site.op, site.calls) for site in context.report().rewritten)
        assert counts == ([] if era == installed_era() else [("clamp", 2), ("clamp_min", 1)])


def test_a_quantiser_with_its_observer_takes_a_rule_and_moves_it_once() -> None:
    x = torch.tensor([-1.0, 0.2, 5.0], requires_grad=True)
    state = [torch.tensor([0.0]), torch.tensor([1.0]), torch.tensor([0.1]), torch.zeros(1, dtype=torch.int32)]
    for rule, wanted in (("zero", [0.0, 1.0, 0.0]), ("identity", [1.0, 1.0, 1.0])):
        moved = [tensor.clone() for tensor in state]
        on = torch.tensor([1])
        with override(fake_quantize=rule):
            y = torch.fused_moving_avg_obs_fake_quant(x, on, on, *moved, 0.1, 0, 255, 0)
            later = torch.fused_moving_avg_obs_fake_quant(10 * x, on, on, *moved, 0.5, 0, 255, 0)
        assert torch.autograd.grad(y.sum() + 0 * later.sum(), x)[0].tolist() == wanted
        # min: 0 + .1 * (-1 - 0), then -.1 + .5 * (-10 + .1); max: 1 + .1 * (5 - 1), then 1.4 + .5 * (50 - 1.4)
        assert moved[0].item() == pytest.approx(-5.05)
        assert moved[1].item() == pytest.approx(25.7)


# --- a loss with a rule -----------------------------------------------------------------------------------------------


def _scores() -> tuple[Tensor, Tensor, Tensor]:
    return torch.tensor([-2.0, 0.0, 2.0], requires_grad=True), torch.zeros(3), torch.ones(3)


def test_a_rule_by_site_sees_the_clamp() -> None:
    sites = []
    with override(clamp=sites.append):  # type: ignore[arg-type]  # it returns None
        functional.margin_ranking_loss(*_scores())
    (site,) = sites
    line = test_a_rule_by_site_sees_the_clamp.__code__.co_firstlineno + 3
    assert (site.op, site.family, site.min, site.max) == ("clamp_min", "clamp", 0, None)
    assert site.is_at(f"test_written_out.py:{line}")


@pytest.mark.parametrize("arguments", [{"size_average": False}, {"reduce": False}, {"margin": torch.ones(())}], ids=str)
def test_deprecated_arguments_and_a_margin_that_is_a_tensor_are_left_to_torch_and_said(arguments: Any) -> None:
    with override(clamp="identity") as context:
        functional.margin_ranking_loss(*_scores(), **arguments)
    assert [site.why for site in context.report().missed] == [
        "inside margin_ranking_loss, which torch runs as one call"
    ]


REFUSED: dict[str, Callable[[Any], Any]] = {
    "dimensions": lambda x: functional.margin_ranking_loss(x, x, torch.ones(3, 4)),
    "a reduction": lambda x: functional.margin_ranking_loss(x, x, x, reduction="most"),
    "a margin": lambda x: functional.margin_ranking_loss(x, x, x, margin="1"),  # type: ignore[arg-type]
    "a margin of three": lambda x: functional.margin_ranking_loss(x, x, x, margin=x),
    "a margin of 0": lambda x: functional.triplet_margin_loss(x, x, x, margin=0.0),
    "no tensor": lambda x: functional.margin_ranking_loss(1.0, x, x),  # type: ignore[arg-type]
    "too few": lambda x: torch.ops.aten.margin_ranking_loss(x, x),
    "a word": lambda x: torch.ops.aten.margin_ranking_loss(x, x, x, least=1),
    "complex": lambda x: functional.margin_ranking_loss(x * 1j, x * 1j, x),
    "shapes": lambda x: functional.margin_ranking_loss(x, x[:2], x),
    "a mask": lambda x: functional.margin_ranking_loss(x, x, x > 0),
}


@folded
@pytest.mark.parametrize("name", REFUSED)
def test_torch_refuses_a_call_in_its_own_words(name: str) -> None:
    x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    with pytest.raises(Exception) as plain:  # noqa: PT011  whatever torch raises
        REFUSED[name](x)
    with override(clamp="zero"), pytest.raises(type(plain.value)) as inside:
        REFUSED[name](x)
    assert str(inside.value) == str(plain.value)


def test_convert_gives_neither_a_loss_nor_a_recurrent_network_a_rule() -> None:
    others = nn.Sequential(nn.ReLU(), nn.RNN(1, 1, nonlinearity="relu"), nn.MarginRankingLoss())
    assert convert(others, "identity").paths == ("0",)
    for kind in (nn.RNN, nn.MarginRankingLoss):
        with pytest.raises(TypeError, match="use override around the calls"):
            convert(others, {kind: "identity"})
