"""What `pseudograd diagnose` shares with `lint`: which codes are told, a baseline, and the formats of machines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import pseudograd_notices

from ..commands import answer

PROGRAM = """\
import torch

gain = torch.nn.Parameter(torch.tensor([0.5, 4.0]))
left = torch.nn.Parameter(torch.tensor(1.0))
optimizer = torch.optim.SGD([gain, left], 0.0)
for step in range(2):
    optimizer.zero_grad()
    (gain.clamp(0.1, 2.0) - 3).pow(2).sum().backward()
    optimizer.step()
print("done")
"""
SCHEMA = json.loads((Path(pseudograd_notices.__file__).parent / "findings.schema.json").read_text(encoding="utf-8"))


@pytest.fixture(autouse=True)
def _program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_copies: None) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "forward.py").write_text("import torch\ntorch.ones(3, requires_grad=True).clamp(0, 1)\n")
    monkeypatch.chdir(tmp_path)


def run(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    return answer(capfd, "diagnose", *arguments)


def write_report(capfd: pytest.CaptureFixture[str], *arguments: str, program: str = "train.py") -> dict[str, Any]:
    run(capfd, *arguments, "--output-format", "json", "--output-file", "report.json", program)
    report: dict[str, Any] = json.loads(Path("report.json").read_text(encoding="utf-8"))
    jsonschema.validate(report, SCHEMA)
    return report


def places(report: dict[str, Any]) -> list[tuple[str, int]]:
    return sorted((finding["code"], finding["line"]) for finding in report["findings"])


def test_json_is_that_of_lint(capfd: pytest.CaptureFixture[str]) -> None:
    report = write_report(capfd)
    assert report["command"] == "diagnose"
    cut, starved = sorted(report["findings"], key=lambda finding: finding["code"], reverse=True)
    assert (cut["code"], cut["path"], cut["line"], cut["expression"]) == (
        "PG204",
        "train.py",
        8,
        "gain.clamp(0.1, 2.0)",
    )
    assert cut["message"].startswith("50.0 % of 4 arriving gradients are cut")
    assert (starved["code"], starved["path"], starved["line"]) == ("PG203", "train.py", 0)
    assert starved["expression"] == "left", "it is known by its name, as no line is"
    assert [code["code"] for code in report["codes"]] == ["PG203", "PG204"]
    assert report["problems"] == []


def test_a_machine_s_format_stands_behind_what_the_program_prints(capfd: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capfd, "--output-format", "github", "train.py")
    first, cut, starved = out.splitlines()
    assert (status, first) == (0, "done")
    assert cut.startswith("::warning file=train.py,line=8,endLine=8,title=PG204 cut::50.0 %25 of 4 arriving")
    assert starved.startswith("::warning file=train.py,title=PG203 starved::1 parameter got no gradient")
    assert "\n\ndiagnose: 2 backward passes, " in err, "the report is there as ever"


def test_sarif(capfd: pytest.CaptureFixture[str]) -> None:
    run(capfd, "--output-format", "sarif", "--output-file", "report.sarif", "train.py")
    (part,) = json.loads(Path("report.sarif").read_text())["runs"]
    regions = {result["ruleId"]: result["locations"][0]["physicalLocation"]["region"] for result in part["results"]}
    assert regions["PG204"] == {"startLine": 8, "endLine": 8, "snippet": {"text": "gain.clamp(0.1, 2.0)"}}
    assert regions["PG203"] == {"startLine": 1}
    assert [rule["id"] for rule in part["tool"]["driver"]["rules"]][:2] == ["PG201", "PG202"]


@pytest.mark.parametrize(
    ("options", "codes"),
    [
        ([], "34"),
        (["--select", "PG204"], "4"),
        (["--select", "cut,guard"], "4"),
        (["--ignore", "PG204"], "3"),
        (["--ignore", "PG204,train.py:3"], "3"),
        (["--ignore", "le[f,t]*,PG201"], "4"),
        (["--ignore", "cut"], "34"),
    ],
)
def test_select_and_ignore_choose_the_findings(
    capfd: pytest.CaptureFixture[str], options: list[str], codes: str
) -> None:
    """Patterns mean what they always did; `cut` alone is one."""
    known = {"3": ("PG203", 0), "4": ("PG204", 8)}
    assert places(write_report(capfd, *options)) == [known[code] for code in codes]


def test_a_baseline_passes_what_is_known_and_fails_what_is_new(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(capfd, "--write-baseline", "known.json", "--fail-on", "any", "train.py")[0] == 0
    status, _, err = run(capfd, "--baseline", "known.json", "train.py")
    assert status == 0
    assert "0 findings\n" in err
    assert "baseline: 2 findings left out, known there" in err
    assert "no finding: clamp" not in err
    assert write_report(capfd, "--baseline", "known.json")["known"] == 2

    Path("train.py").write_text("# moved\n" + PROGRAM)
    assert run(capfd, "--baseline", "known.json", "train.py")[0] == 0, "by its expression, not its line"
    Path("train.py").write_text(PROGRAM.replace("- 3)", "- 3).clamp(-2.4, 0)"))
    status, _, err = run(capfd, "--baseline", "known.json", "train.py")
    assert status == 4
    assert "diagnose: --fail-on holds at train.py:8" in err


def test_another_parameter_that_starves_is_new(capfd: pytest.CaptureFixture[str]) -> None:
    run(capfd, "--write-baseline", "known.json", "train.py")
    more = "more = torch.nn.Parameter(torch.ones(2))\noptimizer"
    Path("train.py").write_text(PROGRAM.replace("optimizer", more, 1).replace("[gain, left]", "[gain, left, more]"))
    report = write_report(capfd, "--baseline", "known.json")
    assert [finding["code"] for finding in report["findings"]] == ["PG203"]


def test_fail_on_counts_new_findings(capfd: pytest.CaptureFixture[str]) -> None:
    run(capfd, "--write-baseline", "known.json", "train.py")
    for condition in ("cut>0.01", "any"):
        assert run(capfd, "--fail-on", condition, "train.py")[0] == 4
        assert run(capfd, "--fail-on", condition, "--baseline", "known.json", "train.py")[0] == 0


def test_where_nothing_was_seen_nothing_is_clean(capfd: pytest.CaptureFixture[str]) -> None:
    run(capfd, "--write-baseline", "known.json", "train.py")
    (problem,) = write_report(capfd, program="forward.py")["problems"]
    assert problem["message"] == "no backward pass was seen, so nothing is known"
    assert run(capfd, "--baseline", "known.json", "forward.py")[0] == 4
    status, _, err = run(capfd, "--write-baseline", "empty.json", "forward.py")
    assert (status, Path("empty.json").exists()) == (4, False)
    assert "diagnose: --write-baseline: no backward pass was seen, so nothing is known to be there: not written" in err


BAD_CALLS = {
    "--select PG2O4": "--select must be a code such as PG201 or guard, got 'PG2O4'. Did you mean 'PG204'?",
    "--ignore era-guard": "--ignore must be a code such as PG201 or guard, got 'era-guard'.",
    "--output-format xml": "--output-format must be one of text, json, github, sarif, got 'xml'.",
    "--baseline train.py": "--baseline must be a file that --write-baseline wrote, got 'train.py'.",
    "--baseline none.json": "--baseline must be a file that can be read, got 'none.json'.",
    "--output-file no/x": "--output-file must lie where files can be written, got 'no/x'.",
    "--select guard --fail-on cut>0.1": "--fail-on must name a code that --select and --ignore leave in, got 'cut>0.1'. "
    "Select it, or ask for another.",
}


@pytest.mark.parametrize("call", BAD_CALLS)
def test_a_wrong_call_says_so_before_any_work(capfd: pytest.CaptureFixture[str], call: str) -> None:
    status, out, err = run(capfd, *call.split(), "train.py")
    assert (status, out) == (2, "")
    assert err.startswith(f"pseudograd: diagnose: {BAD_CALLS[call]}")
    assert err.count("\n") == 1
