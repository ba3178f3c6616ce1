"""A user's file: every public name, used as a user would. `make check` reads it with mypy --strict and pyright, a test runs it."""

# torch and matplotlib leave some of their own methods without types.
# pyright: strict, reportUnknownMemberType=false
# mypy: allow-untyped-calls
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

import pseudograd as pg
from pseudograd import nn, rules

if TYPE_CHECKING:
    from typing_extensions import assert_type  # Python 3.10 has none in typing
else:

    def assert_type(value: object, kind: object) -> object:
        return value


def ops(x: Tensor) -> None:
    assert_type(pg.clamp(x, 0, 1), Tensor)
    assert_type(pg.clamp(x, max=torch.ones(3), rule=rules.leaky(0.1), edge="half", maximize=True), Tensor)
    assert_type(pg.clamp_(x.clone(), 0.0, None), Tensor)
    assert_type(pg.lower_bound(x, 0.0), Tensor)
    assert_type(pg.upper_bound(x, 1.0), Tensor)
    assert_type(pg.relu(x, rule="inward"), Tensor)
    assert_type(pg.relu6(x), Tensor)
    assert_type(pg.hardtanh(x, -1.0, 1.0), Tensor)
    assert_type(pg.gelu(x, approximate="tanh", rule="fewbit"), Tensor)
    assert_type(pg.silu(x, rule=rules.fewbit(bits=3)), Tensor)
    assert_type(pg.ops.leaky_relu(x, 0.2), Tensor)
    assert_type(pg.ops.hardsigmoid(x), Tensor)
    assert_type(pg.abs(x, edge=1), Tensor)
    assert_type(pg.round(x, decimals=1), Tensor)
    assert_type(pg.floor(x), Tensor)
    assert_type(pg.ceil(x), Tensor)
    assert_type(pg.trunc(x), Tensor)
    assert_type(pg.sign(x, rule=rules.custom(torch.cos)), Tensor)
    assert_type(pg.heaviside(x, at_zero=0.5, rule="arctan"), Tensor)
    assert_type(pg.jumprelu(x, x.detach(), bandwidth=0.5, rule="triangle"), Tensor)
    assert_type(pg.fake_quantize(x, 0.5, 0, -4, 3), Tensor)
    assert_type(pg.scale_grad(x, 0.1), Tensor)
    assert_type(pg.reverse_grad(x), Tensor)
    assert_type(pg.clip_grad(x, 0.5), Tensor)
    assert_type(pg.policy.loss(x, x, high=None, rule=rules.leaky(low=0.75, high=1.0), space="log", ceiling=3), Tensor)
    assert_type(pg.policy.presets["dapo"](x, x, mask=x > 0, high=0.3), Tensor)
    assert_type(pg.policy.clip_report(x, x, **pg.policy.presets["dapo"].settings).silenced_share, float)
    assert_type(pg.replace_grad(x.round(), x), Tensor)
    codebook = torch.eye(3)
    codes, indices = pg.codebook.vector_quantize(x, codebook, rule="rotation")
    assert_type(pg.codebook.commitment_loss(x, codes) + pg.codebook.codebook_loss(x, codebook, indices), Tensor)


def names_of_others(x: Tensor) -> None:
    assert_type(pg.familiar.clamp_with_grad(x, 0, 1), Tensor)
    assert_type(pg.familiar.clamp_with_grad2(x, 0, 1), Tensor)
    assert_type(pg.familiar.clamp_with_grad_proposed(x, 0, 1), Tensor)
    assert_type(pg.familiar.ClampWithGrad.apply(x, 0, 1), Tensor)
    assert_type(pg.familiar.ClampWithGrad2.apply(x, 0, 1), Tensor)
    assert_type(pg.familiar.ClampWithGradProposed.apply(x, 0, 1), Tensor)
    assert_type(pg.familiar.ClampWithGradThatWorks.apply(x, 0, 1), Tensor)
    assert_type(pg.familiar.ReplaceGrad.apply(x.round(), x), Tensor)


def rule_objects() -> None:
    objects = [
        rules.leaky(slope=0.1),
        rules.leaky_inward(0.5, high=1),
        rules.elastic(width=2),
        rules.inward(),
        rules.zero(),
        rules.window(),
        rules.triangle(2.0),
        rules.arctan(2.0, height=0.5),
        rules.sigmoid(),
        rules.fast_sigmoid(),
        rules.gaussian(),
        rules.trust(0.25),
        rules.fourier(amplitude=0.2),
        rules.custom(torch.cos),
    ]
    assert_type([repr(rule) for rule in objects], list[str])
    pg.clamp(torch.zeros(3), 0, 1, rule=objects[0])


def hard(x: Tensor, bits: int = 8) -> Tensor:
    return (x * bits).round() / bits


@pg.surrogate(backward=torch.tanh)
def harder(x: Tensor) -> Tensor:
    return torch.sign(x)


def from_functions(x: Tensor) -> None:
    assert_type(harder(x), Tensor)
    assert_type(pg.straight_through(hard)(x, bits=2), Tensor)
    harder_still: Callable[[Tensor], Tensor] = harder
    assert_type(pg.gradient(harder_still, x), Tensor)
    assert_type(pg.familiar.get_gradient(lambda x: pg.clamp(x, 0, 1), x, 2.0), Tensor)


def registered() -> None:
    @pg.register_rule("clamp", formula="grad / 2", source="this file", is_linear=True)
    def halved_by_a_user(grad: Tensor, x: Tensor, y: Tensor, min: float | None, max: float | None) -> Tensor:
        return grad / 2

    x = torch.zeros(3)
    assert_type(halved_by_a_user(x, x, x, None, 1.0), Tensor)  # unchanged by the decorator
    assert_type(pg.clamp(x, 0, 1, rule="halved_by_a_user"), Tensor)


@pg.override(relu="inward")
def decorated(x: Tensor, *, times: int) -> Tensor:
    return torch.relu(x) * times


@pg.pin_edge("torch<=2.13")
def stepping(x: Tensor) -> Iterator[Tensor]:
    yield torch.clamp(x, 0, 1)


def inward_up_to_one(site: object) -> str | None:
    return "inward"


def contexts(x: Tensor) -> None:
    with pg.override(clamp="inward", relu=None, round=rules.identity()) as context:
        torch.clamp(x, 0, 1).sum().backward()
    report = context.report()
    assert_type(
        [(site.op, site.rule, site.where, site.calls) for site in report.rewritten], list[tuple[str, str, str, int]]
    )
    assert_type([(site.why, site.calls) for site in report.missed], list[tuple[str, int]])
    assert_type(str(report), str)
    with pg.override(clamp=inward_up_to_one), pg.pin_edge("closed") as pinned:
        assert_type(str(pinned.report()), str)
    assert_type(decorated(x, times=2), Tensor)
    assert_type(next(stepping(x)), Tensor)


def audited() -> None:
    audit = pg.audit(torch.nn.ReLU(), -1.0, 1, points=101, at=[0.25])
    assert_type(audit, pg.Audit)
    assert_type(audit.rule, str | None)
    assert_type(audit.kinks[0].positive.least, float)
    assert_type(audit.vmap.share, float | None)
    print(audit, audit.to_json()["shares"], audit.shares["grad > 0"])


def diagnosed(model: torch.nn.Module, x: Tensor) -> None:
    with pg.diagnose(model, whatif={"inward": {"clamp": "inward"}, "newer": "torch>=2.14"}) as d:
        model(x).sum().backward()
    assert_type(
        [(finding.code, finding.where, finding.next_step) for finding in d.findings], list[tuple[str, str, str]]
    )
    assert_type(d, pg.Diagnosis)
    assert_type([(site.op, site.cut_share) for site in d.sites], list[tuple[str, float]])
    assert_type([starved.parameter for starved in d.starved], list[str])
    assert_type([cut.reaches_loss for cut in d.structural], list[bool | None])
    assert_type({name: [row.norm for row in rows] for name, rows in d.whatif.items()}, dict[str, list[float]])
    assert_type(str(d), str)


def converted() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU(), torch.nn.Hardtanh())
    with pg.convert(model, "inward") as conversion:
        assert_type(conversion.paths, tuple[str, ...])
    by_class = {torch.nn.ReLU: "inward"}
    by_path = {"1": torch.nn.Identity()}
    pg.convert(model, by_class).undo()
    pg.convert(model, by_path).undo()
    pg.convert(model, {torch.nn.ReLU: rules.leaky(0.1), "2": "zero"}).undo()
    pg.convert(model, rules.leaky(0.1)).undo()


def modules(x: Tensor) -> torch.nn.Module:
    bound = torch.nn.Parameter(torch.tensor(2.0))
    learned = nn.FakeQuantize.from_tensor(x, bits=4)
    model = torch.nn.Sequential(
        nn.Clamp(0.0, bound),
        nn.LowerBound(0.0),
        nn.UpperBound(torch.ones(3)),
        nn.ReLU(rule="inward"),
        nn.ReLU6(),
        nn.Hardtanh(-1.0, 1.0, edge="closed"),
        nn.Abs(edge=1),
        nn.GELU(approximate="tanh", rule="fewbit"),
        nn.SiLU(rule=rules.fewbit(bits=3)),
        nn.LeakyReLU(0.2),
        nn.Hardsigmoid(),
        nn.Round(decimals=1),
        nn.Floor(),
        nn.Ceil(rule="zero"),
        nn.Trunc(),
        nn.Sign(rule=rules.arctan()),
        nn.Heaviside(at_zero=0.5),
        nn.JumpReLU(0.5, bandwidth=0.5),
        nn.ScaleGrad(0.5),
        nn.ReverseGrad(),
        nn.ClipGrad(0.5),
        nn.FakeQuantize(0.5, quant_min=-4, quant_max=3),
        learned,
        nn.VectorQuantize(4, 3),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    bounds = {bound: (0, 1)}
    pg.optim.project(optimizer, bounds).remove()
    with pg.optim.project(optimizer, {learned.scale: (1e-6, None)}):
        codes, _ = model(x)
        assert isinstance(codes, Tensor)
    return model


def trained(clamp: Callable[..., Tensor], seed: int) -> dict[str, float]:
    x = torch.tensor([2.0 + seed], requires_grad=True)
    clamp(x, -1, max=1).sum().backward()
    return {"loss": -float(x.grad[0]) if x.grad is not None else 0.0}


def own_case() -> None:
    comparison = pg.compare(trained, rules=["inward", rules.leaky(0.3)], seeds=2, better={"loss": "lower"})
    assert_type(comparison.verdict("inward").verdict, str)
    assert_type(comparison.leaders("loss"), tuple[str, ...])
    if TYPE_CHECKING:  # where pandas is installed
        comparison.to_frame().describe()
    assert_type(comparison, pg.Comparison)
    tuning = pg.tune(trained, budget=12, rules=["inward"])
    assert_type(tuning, pg.Tuning)
    assert_type(tuning.best, tuple[str, ...])


def main() -> None:
    print(pg.__version__)
    x = torch.tensor([[-2.0, 0.5, 3.0]], requires_grad=True)
    for part in (ops, names_of_others, from_functions, contexts, modules):
        part(x)
    rule_objects()
    registered()
    converted()
    own_case()
    diagnosed(torch.nn.Linear(3, 1), x)
    audited()


def picture() -> None:
    drawn = pg.plot(["inward", rules.leaky(0.3), "zero/open"], -1, 1, loss=torch.square)
    drawn.forward[0].set_title("three rules")
    drawn.figure.savefig("rules.png")


if __name__ == "__main__":
    warnings.simplefilter("error")
    main()
