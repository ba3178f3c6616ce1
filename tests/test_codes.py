"""Every code of the one table: its example says it at the line that is marked, is silent when mended, and what it says is so."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import pseudograd as pg
from pseudograd.diagnosis.judge.findings import CODES
from pseudograd_lint.check import check, parse
from pseudograd_lint.rules import CODES as LINT
from pseudograd_notices.code import Code, drop_codes_of_others
from pseudograd_notices.command_line import main

from .choices import folded

Names = dict[str, Any]  # of a program that has run
OLD, NEW = "torch<=2.13", "torch>=2.14"
TABLE = (*LINT, *CODES)


def marked(program: str, number: str) -> int:
    """The line whose comment is the number."""
    (line,) = [at for at, text in enumerate(program.split("\n"), 1) if text.endswith(f"  # {number}")]
    return line


def run_example(program: str, file: Path) -> Names:
    file.write_text(program)
    names: Names = {"__name__": "example"}
    exec(compile(program, str(file), "exec"), names)
    return names


def test_settings_may_name_the_codes_of_both_commands() -> None:
    """Each knows the numbers and names of the other, whose files are only read."""
    words = [text for code in TABLE for text in (code.number, code.name)]
    for own in (LINT, CODES):
        mine = [text for code in own for text in (code.number, code.name)]
        assert drop_codes_of_others([*words, "default", "PG1", "PG2"], own) == [*mine, "default", f"PG{mine[0][2]}"]
        assert drop_codes_of_others(["cutt", "PG9", "a.py:5"], own) == ["cutt", "PG9", "a.py:5"]


def test_the_page_of_diagnose_names_every_finding() -> None:
    page = Path(__file__).parents[1].joinpath("docs/diagnose.md").read_text(encoding="utf-8")
    listed = page.partition("## What it finds")[2].partition("\n## ")[0]
    assert [code.name for code in CODES if f"`{code.name}`" not in listed] == []


def test_every_code_has_an_example() -> None:
    assert len(TABLE) >= 17
    assert [code.number for code in TABLE if not code.bad or not code.good or code.meaning[0].isupper()] == []
    assert all(code.from_source == (code.command == "lint") for code in TABLE)


@folded
@pytest.mark.parametrize("code", LINT, ids=lambda code: code.number)
def test_lint_says_it_at_the_line(code: Code) -> None:
    every = [row.number for row in LINT]
    for program, expected in ((code.bad, [marked(code.bad, code.number)]), (code.good, [])):
        notices = check(parse(program), program.split("\n"), "x.py", every)
        assert [notice.line for notice in notices if notice.code == code.number] == expected
        others = {notice.code for notice in notices} - {code.number}
        assert others <= {"PG151", "PG104"}, "no other rule speaks of it but an opinion"


@folded
@pytest.mark.parametrize("code", CODES, ids=lambda code: code.number)
def test_diagnose_says_it_at_the_line(code: Code, tmp_path: Path) -> None:
    file = tmp_path / "example.py"
    for program, expected in ((code.bad, [(code.number, marked(code.bad, code.number))]), (code.good, [])):
        d = run_example(program, file)["d"]
        assert [(finding.number, int(finding.where.rpartition(":")[2])) for finding in d.findings] == expected
        assert d.errors == []


@folded
@pytest.mark.parametrize("code", TABLE, ids=lambda code: code.number)
def test_explain_shows_them(code: Code, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", code.number]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"{code.number} {code.name}  (pseudograd {code.command})\n")
    lines = [line.removeprefix("    ") for line in shown.split("\n")]
    for program in (code.bad, code.good):
        assert re.search(re.escape(program.rstrip()), "\n".join(lines)), "as it is run above"


# --- what lint says of its example is so -------------------------------------------------------------------------------


def gradient(compute: Callable[..., Tensor], *inputs: Tensor, era: str | None = None) -> Any:
    """Of the sum, towards the first input."""
    x, *rest = inputs
    x = x.detach().clone().requires_grad_()
    if era is None:
        compute(x, *rest).sum().backward()
    else:
        with pg.pin_edge(era):
            compute(x, *rest).sum().backward()
    return x.grad.tolist()


def is_finite(values: list[float]) -> bool:
    return bool(torch.tensor(values).isfinite().all())


def learns(model: torch.nn.Module, era: str = NEW) -> bool:
    """Does every parameter get a gradient other than 0?"""
    with pg.pin_edge(era):
        model(torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    return all(p.grad is not None and bool((p.grad != 0).all()) for p in model.parameters())


def _born(bad: Names, good: Names) -> None:
    assert [learns(bad["Polar"](3), era) for era in (OLD, NEW)] == [True, False]
    assert [learns(good["Polar"](3), era) for era in (OLD, NEW)] == [True, True]


def _era_guard(bad: Names, good: Names) -> None:
    x = torch.tensor([[1.0, 2.0]])
    assert not is_finite(gradient(bad["distance_loss"], x, x.clone(), era=OLD))
    assert gradient(bad["distance_loss"], x, x.clone(), era=NEW) == [[0, 0]]
    for era in (OLD, NEW):
        assert gradient(good["distance_loss"], x, x.clone(), era=era) == [[0, 0]]


def _era_guard_elsewhere(bad: Names, good: Names) -> None:
    x = torch.tensor([[1.0, 0.0]])
    assert not is_finite(gradient(bad["angle"], x, x.clone(), era=OLD))
    assert gradient(bad["angle"], x, x.clone(), era=NEW) == [[0, 0]]
    for era in (OLD, NEW):
        assert is_finite(gradient(good["angle"], x, x.clone(), era=era))


def _lost_epsilon(bad: Names, good: Names) -> None:
    p, y = torch.tensor([1.0]), torch.tensor([0.0])
    assert bad["loss"](p, y).item() == float("inf")
    assert good["loss"](p, y).item() == pytest.approx(13.8, abs=0.1)


def _late_guard(bad: Names, good: Names) -> None:
    p = torch.tensor([0.0, 0.5])
    assert not is_finite(gradient(bad["entropy"], p))
    assert is_finite(gradient(good["entropy"], p))
    assert bad["entropy"](p) == good["entropy"](p)


def _inexact_identity(bad: Names, good: Names) -> None:
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    exact = x.clamp(-0.3, 0.7)
    assert (bad["clamp_ste"](x) != exact).any()
    assert bad["clamp_ste"](torch.tensor([1e9, float("inf")])).nan_to_num(-1).tolist() == [0, -1]
    assert torch.equal(good["clamp_ste"](x), exact)
    assert gradient(bad["clamp_ste"], x) == gradient(good["clamp_ste"], x) == [1.0] * 1000


def _copied_rule(bad: Names, good: Names) -> None:
    """Of gradients whose product with the excess underflows in half precision, the copy passes the wrong ones."""
    x = torch.tensor([1.0 + 2**-9], dtype=torch.float16)
    small = 2.0**-20
    outward = gradient(lambda x: bad["ClampWithGrad"].apply(x, 0, 1) * -small, x)
    assert outward == [-small], "it leads further outside"
    assert gradient(lambda x: good["bounded"](x) * -small, x) == [0]
    assert gradient(lambda x: good["bounded"](x) * small, x) == [small]


def _clamped_parameter(bad: Names, good: Names) -> None:
    for names, moves in ((bad, False), (good, True)):
        model = names["Leak"]()
        torch.nn.init.constant_(model.beta, 1.5)
        assert learns(model) is moves


def _inexact_straight_through(bad: Names, good: Names) -> None:
    x, code = torch.randn(2, 1000, generator=torch.Generator().manual_seed(0))
    assert 0.1 < (bad["straight_through"](x, code) != code).float().mean() < 0.9
    assert torch.equal(good["straight_through"](x, code), code)


HOLDS = {
    "PG101": _born, "PG102": _era_guard, "PG103": _lost_epsilon, "PG104": _late_guard, "PG105": _inexact_identity, "PG108": _copied_rule,
    "PG111": _era_guard_elsewhere, "PG151": _clamped_parameter, "PG153": _inexact_straight_through,
}  # fmt: skip


@folded
@pytest.mark.parametrize("code", LINT, ids=lambda code: code.number)
def test_what_lint_says_of_its_example_is_so(code: Code, tmp_path: Path) -> None:
    bad, good = run_example(code.bad, tmp_path / "bad.py"), run_example(code.good, tmp_path / "good.py")
    HOLDS[code.number](bad, good)
