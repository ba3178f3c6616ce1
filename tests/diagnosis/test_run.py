"""`pseudograd diagnose`: a program that nobody edits; its status, its files, its errors; and the page in a browser."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

from pseudograd.cli import main

from .. import browser
from ..browser import needs_browser
from ..commands import answer

PROGRAM = """\
import sys
import torch

torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
gain = torch.nn.Parameter(torch.tensor(4.0))
steps = 0
for step in range(5):
    y = net(torch.randn(16, 4)) * gain.clamp(0.1, 2.0)
    (torch.clamp(y * 5, 0.0, 1.0) - 0.5).pow(2).mean().backward()
    steps += 1
    print("step", step, __name__, sys.argv[1:])
    if "--fail" in sys.argv:
        raise KeyError("of the program")
if "--exit" in sys.argv:
    sys.exit(7)
"""


@pytest.fixture(autouse=True)
def _program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_copies: None) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "forward.py").write_text("import torch\ntorch.ones(3, requires_grad=True).clamp(0, 1)\n")
    monkeypatch.chdir(tmp_path)


def run(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    return answer(capfd, "diagnose", *arguments)


def test_a_script_and_its_report(capfd: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capfd, "train.py", "--lr", "0.1", "--exit")
    assert code == 7
    assert out.splitlines()[0] == "step 0 __main__ ['--lr', '0.1', '--exit']"
    assert re.search(r"^diagnose: 5 backward passes, torch .*: 2 findings$", err, re.M)
    assert "starved  train.py:9\n    gain.clamp(0.1, 2.0)\n" in err
    assert "cut  train.py:10\n    torch.clamp(y * 5, 0.0, 1.0)\n" in err


def test_a_module_that_steps_end(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(capfd, "--counts", "--steps", "2", "-m", "train")[2].count("\n\ndiagnose: 2 backward passes") == 1


@pytest.mark.parametrize(
    ("condition", "status"), [("cut>0.5", 4), ("cut>1", 0), ("starved", 4), ("any", 4), ("guard", 0), ("edge>0.1", 0)]
)
def test_a_condition_decides_the_status(condition: str, status: int, capfd: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capfd, "--fail-on", condition, "train.py")
    assert code == status
    assert ("--fail-on holds at train.py:" in err) == bool(status)


@pytest.mark.parametrize("code", ["edge", "kink"])
def test_what_the_eras_do_differently_is_told_at_the_end_of_a_process(
    code: str, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Where no thread starts any more, in which the era would be measured."""
    start = {"edge": "torch.tensor([0.0, 0.5])", "kink": "torch.zeros(2)"}[code]
    (tmp_path / "ends.py").write_text(
        f"import torch\nx = torch.nn.Parameter({start})\nx.clamp(0.0, 1.0).sum().backward()\n"
    )
    status, _, err = run(capfd, "--fail-on", code, "ends.py")
    assert status == 4
    assert f" 1. {code}  ends.py:3\n" in err
    assert "incomplete" not in err


def test_what_was_recorded_before_an_error_is_shown(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, err = run(capfd, "--json", "report.json", "train.py", "--fail")
    assert (code, len(out.splitlines())) == (1, 1)
    assert "KeyError: 'of the program'" in err
    assert "program.py" not in err.split("diagnose:")[0]
    assert "diagnose: 1 backward pass," in err
    assert json.loads((tmp_path / "report.json").read_text())["backwards"] == 1


def test_no_backward(capfd: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capfd, "--html", "page.html", "forward.py")
    assert code == 0
    assert "no backward started inside the context" in err


BAD_CALLS = {
    "nowhere.py": "the script must be a file, got 'nowhere.py'.",
    "--steps 0 train.py": "--steps must be at least 1, got 0.",
    "--fail-on loss>1 train.py": "--fail-on must be a finding's code, with a share if wanted, got 'loss>1'.",
    "--whatif clomp=inward train.py": "whatif 'clomp=inward' must be what override or pin_edge takes",
    "--whatif torch>=9.9 train.py": "whatif 'torch>=9.9' must be what override or pin_edge takes",
    "--whatif clamp= train.py": "--whatif must be FAMILY=RULE, such as clamp=inward, got 'clamp='.",
    "--html no/page.html train.py": "--html must lie where files can be written, got 'no/page.html'.",
    "--json . train.py": "--json must be a file, got '.'.",
    "-m no_such_module": "the module must be one that python can run, got 'no_such_module'.",
}


@pytest.mark.parametrize("call", BAD_CALLS)
def test_bad_calls_say_so_in_one_line(call: str, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    before = sorted(os.listdir(tmp_path))
    code, out, err = run(capfd, *call.split())
    assert (code, out) == (2, "")
    assert err.startswith(f"pseudograd: diagnose: {BAD_CALLS[call]}")
    assert err.count("\n") == 1
    assert [name for name in sorted(os.listdir(tmp_path)) if name != "__pycache__"] == before


def test_json_has_the_names_of_the_records(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert (
        run(capfd, "--json", "report.json", "--whatif", "clamp=inward", "--whatif", "torch>=2.14", "train.py")[0] == 0
    )
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["kind"] == "pseudograd diagnose"
    site = next(site for site in report["sites"] if site["where"] == "train.py:10" and site["op"] == "clamp")
    names = "op where user_where expression module calls elements arrived cut cut_magnitude recoverable at_bound below above nonfinite"
    assert set(names.split()) <= set(site)
    assert (site["calls"], site["elements"], site["expression"]) == (5, 80, "torch.clamp(y * 5, 0.0, 1.0)")
    assert {"clamp=inward", "torch>=2.14"} < set(report["whatif"])
    assert set(report["findings"][0]) >= {"code", "where", "evidence", "cause", "next_step"}
    assert set(report["starved"][0]) >= {"parameter", "cause", "why"}
    assert [row["parameter"] for row in report["whatif"]["clamp=inward"]] == [
        row["parameter"] for row in report["whatif"]["as it is"]
    ]


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


def test_the_page_needs_no_network(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(capfd, "--html", "page.html", "train.py")[0] == 0
    text = (tmp_path / "page.html").read_text()
    assert not re.search(r'(src|href)="https?:', text)
    assert "%DATA%" not in text
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.S)[1])  # type: ignore[index]
    assert [finding["code"] for finding in data["findings"]] == ["cut", "starved"]


@needs_browser
def test_the_page_in_a_browser(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """What it shows, sorts and opens by keyboard."""
    assert run(capfd, "--html", "page.html", "--whatif", "clamp=inward", "train.py")[0] == 0
    shown = browser.shown(tmp_path / "page.html", KEYS, tmp_path)
    assert '<h1 id="title">2 findings: cut, starved</h1>' in shown
    assert shown.count('<article class="finding') == 2
    arrived = [int(number.replace(",", "")) for number in browser.title_of(shown).removeprefix("arrived ").split()]
    assert arrived == sorted(arrived, reverse=True)
    assert len(arrived) >= 5  # all places, not only those that cut
    assert 'data-focused="1"' in shown
    assert "<mark>" in shown.split('id="sites"')[1]
    assert "parameter 1 of shape ()" in shown


def test_a_site_has_the_same_words_in_run_diagnose_and_bisect(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
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
    read = {
        name: json.loads((tmp_path / f"{name}.json").read_text(encoding="utf-8"))
        for name in ("diagnosed", "run", "bisected")
    }
    sites = [
        next(site for site in read["diagnosed"]["sites"] if site["op"] == "clamp"),
        *read["run"]["contexts"][0]["rewritten"],
        *read["bisected"]["decide"],
    ]
    expression = "torch.clamp(x, -1, 1)" if sys.version_info >= (3, 11) else "return 2 * torch.clamp(x, -1, 1)"
    shared = {"op": "clamp", "where": "library.py:4", "user_where": "main.py:6", "expression": expression, "calls": 1}
    assert [{name: site[name] for name in shared} for site in sites] == [shared] * 3
    assert "library.py:4, in the program: main.py:6" in capfd.readouterr().err
