"""`pseudograd diagnose`: a program that nobody edits; its status, files and errors; the codes, baseline and formats that it shares with
`lint`; and the page in a browser.
"""

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import pseudograd_notices
from pseudograd.cli import main

from .. import browser
from ..browser import needs_browser
from ..choices import slow_but
from ..commands import answer
from ..written import assert_written

PROGRAM = """\
import sys
import torch
gain = torch.nn.Parameter(torch.tensor([0.5, 4.0]))
left = torch.nn.Parameter(torch.tensor(1.0))
optimizer = torch.optim.SGD([gain, left], 0.0)
for step in range(2):
    optimizer.zero_grad()
    (gain.clamp(0.1, 2.0) - 3).pow(2).sum().backward()
    optimizer.step()
    print("step", step, __name__, sys.argv[1:])
    if "--fail" in sys.argv:
        raise KeyError("of the program")
if "--exit" in sys.argv:
    sys.exit(7)
"""
KNOWN = {"path": "train.py", "code": "PG204", "expression": "gain.clamp(0.1, 2.0)", "count": 1}
BASELINE = json.dumps({"kind": "pseudograd baseline", "version": 1, "findings": [KNOWN]})
SCHEMA = json.loads((Path(pseudograd_notices.__file__).parent / "findings.schema.json").read_text(encoding="utf-8"))


@pytest.fixture(autouse=True)
def _program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_copies: None) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "forward.py").write_text("import torch\ntorch.ones(3, requires_grad=True).clamp(0, 1)\n")
    monkeypatch.chdir(tmp_path)


def run(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    return answer(capfd, "diagnose", *arguments)


def test_a_script_runs_with_its_arguments_and_status_and_is_reported(capfd: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capfd, "--fail-on", "cut>0.5", "train.py", "--lr", "0.1", "--exit")
    assert code == 7
    assert out.splitlines()[0] == "step 0 __main__ ['--lr', '0.1', '--exit']"
    assert re.search(r"^diagnose: 2 backward passes, torch .*: 2 findings$", err, re.M)
    assert "cut  train.py:8\n    gain.clamp(0.1, 2.0)\n" in err
    assert "--fail-on holds" not in err


def test_steps_end_a_module_after_so_many_backwards(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(capfd, "--counts", "--steps", "1", "-m", "train")[2].count("\n\ndiagnose: 1 backward pass,") == 1


def test_differing_eras_are_told_at_the_end_of_a_process(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Where no thread starts any more, in which the era would be measured."""
    (tmp_path / "ends.py").write_text(
        "import torch\nx, y = torch.nn.Parameter(torch.tensor([0.0, 0.5])), torch.nn.Parameter(torch.zeros(2))\n"
        "z = x.clamp(0.0, 1.0)\n(z + y.clamp(0.0, 1.0)).sum().backward()\n"
    )
    status, _, err = run(capfd, "--fail-on", "edge", "ends.py")
    assert status == 4
    assert re.search(r"^ \d. edge  ends.py:3\n", err, re.M)
    assert re.search(r"^ \d. kink  ends.py:4\n", err, re.M)
    assert "incomplete" not in err


def test_what_was_recorded_before_an_error_is_shown(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, err = run(capfd, "--json", "report.json", "train.py", "--fail")
    assert (code, len(out.splitlines())) == (1, 1)
    assert "KeyError: 'of the program'" in err
    assert "program.py" not in err.split("diagnose:")[0]
    assert "diagnose: 1 backward pass," in err
    assert json.loads((tmp_path / "report.json").read_text())["backwards"] == 1


def test_bad_calls_say_the_written_line(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    def line_of(call: str) -> str:
        before = sorted(os.listdir(tmp_path))
        code, out, err = run(capfd, *call.split())
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert [name for name in sorted(os.listdir(tmp_path)) if name != "__pycache__"] == before
        return err

    assert_written(Path(__file__).with_name("bad_calls.txt"), {"line_of": line_of})
    newer = line_of("--whatif torch>=9.9 train.py")
    assert newer.startswith(
        "pseudograd: diagnose: whatif 'torch>=9.9' must be what override or pin_edge takes, got 'torch>=9.9'."
    )


def test_json_and_page_have_the_names_of_the_records(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    files = ["--json", "report.json", "--html", "page.html"]
    assert run(capfd, *files, "--whatif", "clamp=inward", "--whatif", "torch>=2.14", "train.py")[0] == 0
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["kind"] == "pseudograd diagnose"
    site = next(site for site in report["sites"] if site["where"] == "train.py:8" and site["op"] == "clamp")
    names = "op where user_where expression module calls elements arrived cut cut_magnitude recoverable at_bound below above nonfinite"
    assert set(names.split()) <= set(site)
    assert (site["calls"], site["elements"], site["expression"]) == (2, 4, "gain.clamp(0.1, 2.0)")
    assert {"clamp=inward", "torch>=2.14"} < set(report["whatif"])
    assert set(report["findings"][0]) >= {"code", "where", "evidence", "cause", "next_step"}
    assert set(report["starved"][0]) >= {"parameter", "cause", "why"}
    answers, before = report["whatif"]["clamp=inward"], report["whatif"]["as it is"]
    assert [row["parameter"] for row in answers] == [row["parameter"] for row in before]
    text = (tmp_path / "page.html").read_text()
    assert not re.search(r'(src|href)="https?:', text), "the page needs no network"
    assert "%DATA%" not in text
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.S)[1])
    assert [finding["code"] for finding in data["findings"]] == ["cut", "starved"]


# --- what it shares with lint -----------------------------------------------------------------------------------------


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
    expected = {"code": "PG204", "path": "train.py", "line": 8, "expression": "gain.clamp(0.1, 2.0)"}
    assert {name: cut[name] for name in expected} == expected
    assert cut["message"].startswith("50.0 % of 4 arriving gradients are cut")
    assert (starved["code"], starved["path"], starved["line"]) == ("PG203", "train.py", 0)
    assert starved["expression"] == "left", "it is known by its name, as no line is"
    assert [code["code"] for code in report["codes"]] == ["PG203", "PG204"]
    assert report["problems"] == []


def test_a_machine_s_format_stands_behind_what_the_program_prints(capfd: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capfd, "--output-format", "github", "train.py")
    first, _, cut, starved = out.splitlines()
    assert (status, first) == (0, "step 0 __main__ []")
    assert cut.startswith("::warning file=train.py,line=8,endLine=8,title=PG204 cut::50.0 %25 of 4 arriving")
    assert starved.startswith("::warning file=train.py,title=PG203 starved::1 parameter got no gradient")
    assert "\n\ndiagnose: 2 backward passes, " in err, "the report is there as ever"


@pytest.mark.parametrize(
    ("options", "codes"),
    [
        (["--select", "cut,guard"], "4"),
        (["--ignore", "PG204,train.py:3"], "3"),
        (["--ignore", "le[f,t]*,PG201"], "4"),
        (["--ignore", "cut"], "34"),
    ],
)
def test_select_and_ignore_choose_findings(capfd: pytest.CaptureFixture[str], options: list[str], codes: str) -> None:
    """Patterns mean what they always did; `cut` alone is one."""
    known = {"3": ("PG203", 0), "4": ("PG204", 8)}
    assert places(write_report(capfd, *options)) == [known[code] for code in codes]


# The codes that are left, and the status of `--fail-on cut>0.1`.
SETTINGS = {
    'ignore = ["PG203", "era-guard"]': (["PG204"], 4),
    'select = ["cut", "PG101"]': (["PG204"], 4),
    'select = ["PG101"]': (["PG204", "PG203"], 4),
    'per-file-ignores = { "train.py" = ["cut"] }': (["PG203"], 0),
    'per-file-ignores = { "src/train.py" = ["cut"] }': (["PG204", "PG203"], 4),
    'baseline = "known.json"': (["PG203"], 0),
    'exclude = ["train.py"]\npin = "half"': (["PG204", "PG203"], 4),
}


@pytest.mark.parametrize("setting", slow_but([*SETTINGS][::2], SETTINGS, pytest.mark.program))
def test_settings_are_those_of_lint(setting: str, capfd: pytest.CaptureFixture[str]) -> None:
    """A baseline of the settings alone does not change the exit status: `--baseline` does."""
    Path("known.json").write_text(BASELINE)
    Path("pyproject.toml").write_text(f"[tool.pseudograd]\n{setting}\n")
    machine = ("--output-format", "json", "--output-file", "report.json")
    status = run(capfd, "--fail-on", "cut>0.1", *machine, "train.py")[0]
    codes = [finding["code"] for finding in json.loads(Path("report.json").read_text())["findings"]]
    assert (codes, status) == SETTINGS[setting]


def test_what_the_settings_leave_out_cannot_fail(capfd: pytest.CaptureFixture[str]) -> None:
    Path("pyproject.toml").write_text('[tool.pseudograd]\nignore = ["PG204", "PG203"]\n')
    assert write_report(capfd)["findings"] == []
    assert run(capfd, "--fail-on", "cut>0.1", "train.py")[0] == 2


def test_a_baseline_passes_what_is_known_and_fails_what_is_new(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(capfd, "--write-baseline", "known.json", "--fail-on", "any", "train.py")[0] == 0
    assert run(capfd, "--fail-on", "cut>0.01", "train.py")[0] == 4
    status, _, err = run(capfd, "--fail-on", "cut>0.01", "--baseline", "known.json", "train.py")
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

    more = "more = torch.nn.Parameter(torch.ones(2))\noptimizer"  # starves, too
    Path("train.py").write_text(PROGRAM.replace("optimizer", more, 1).replace("[gain, left]", "[gain, left, more]"))
    report = write_report(capfd, "--baseline", "known.json")
    assert [finding["code"] for finding in report["findings"]] == ["PG203"]


def test_where_nothing_was_seen_nothing_is_clean(capfd: pytest.CaptureFixture[str]) -> None:
    Path("known.json").write_text(BASELINE)
    (problem,) = write_report(capfd, "--baseline", "known.json", program="forward.py")["problems"]
    assert problem["message"] == "no backward pass was seen, so nothing is known"
    assert run(capfd, "--baseline", "known.json", "forward.py")[0] == 4
    status, _, err = run(capfd, "--write-baseline", "empty.json", "forward.py")
    assert (status, Path("empty.json").exists()) == (4, False)
    assert "diagnose: --write-baseline: no backward pass was seen, so the baseline is not written" in err


# --- the page ---------------------------------------------------------------------------------------------------------

KEYS = """
const first = document.querySelector("tr.site"); first.focus();
first.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", bubbles: true }));
document.querySelector("#cutting").click();
document.querySelector("#heads th[data-key=arrived] button").click();
const again = document.querySelector("tr.site"); again.focus();
again.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", bubbles: true }));
document.title = "arrived " + [...document.querySelectorAll("tr.site")].map((row) => row.children[3].textContent).join(" ");
again.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowDown", bubbles: true }));
document.body.dataset.focused = [...document.querySelectorAll("tr.site")].indexOf(document.activeElement);
"""


@needs_browser
@pytest.mark.program
def test_the_page_in_a_browser_sorts_and_opens_by_keyboard(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """What it shows, sorts and opens by keyboard."""
    assert run(capfd, "--html", "page.html", "--whatif", "clamp=inward", "train.py")[0] == 0
    shown = browser.shown(tmp_path / "page.html", KEYS, tmp_path)
    assert '<h1 id="title">2 findings: cut, starved</h1>' in shown
    assert shown.count('<article class="finding') == 2
    arrived = [int(number.replace(",", "")) for number in browser.title_of(shown).removeprefix("arrived ").split()]
    assert arrived == sorted(arrived, reverse=True)
    assert len(arrived) >= 3  # all places, not only those that cut
    assert 'data-focused="1"' in shown
    assert "<mark>" in shown.split('id="sites"')[1]


def test_a_site_has_the_same_words_in_three_commands(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """One line of a package, reached from one line of the program."""
    package = tmp_path / "site-packages"
    package.mkdir()
    (package / "library.py").write_text("import torch\n\ndef squash(x):\n    return 2 * torch.clamp(x, -1, 1)\n")
    (tmp_path / "main.py").write_text(
        f"import sys\nsys.path.insert(0, {str(package)!r})\nimport torch\nfrom library import squash\n"
        "x = torch.tensor([2.0, 0.5], requires_grad=True)\nsquash(x).sum().backward()\nsys.exit(int(x.grad[0] == 0))\n"
    )
    main(["diagnose", "--json", "diagnosed.json", "main.py"])
    main(["run", "--override", "clamp=identity", "--json", "run.json", "main.py"])
    main(["bisect", "--override", "clamp=identity", "--json", "bisected.json", "main.py"])
    read = {name: json.loads(Path(f"{name}.json").read_text("utf-8")) for name in ("diagnosed", "run", "bisected")}
    sites = [
        next(site for site in read["diagnosed"]["sites"] if site["op"] == "clamp"),
        *read["run"]["contexts"][0]["rewritten"],
        *read["bisected"]["decide"],
    ]
    expression = "torch.clamp(x, -1, 1)" if sys.version_info >= (3, 11) else "return 2 * torch.clamp(x, -1, 1)"
    shared = {"op": "clamp", "where": "library.py:4", "user_where": "main.py:6", "expression": expression, "calls": 1}
    assert [{name: site[name] for name in shared} for site in sites] == [shared] * 3
    assert "library.py:4, in the program: main.py:6" in capfd.readouterr().err
