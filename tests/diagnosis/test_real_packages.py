"""Published packages, unedited: right line, right numbers, right class. docs/diagnoses.json holds what torch 2.13 and 2.15 gave.

Those that are not installed are skipped; torchao, kornia and x-transformers come with the development extra.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from pseudograd.torch_table.eras import era_of, installed_era

ROOT = Path(__file__).resolve().parents[2]
REPORTS = json.loads((ROOT / "docs" / "diagnoses.json").read_text(encoding="utf-8"))
# The version of the same era: what a diagnosis says does not depend on more.
EXPECTED = next(report for version, report in REPORTS.items() if era_of(version) == installed_era())


@pytest.fixture(scope="module")
def measuring(script: Any) -> Any:
    return script("measure_diagnoses")


@pytest.fixture(scope="module")
def diagnosed() -> dict[str, Any]:
    return {}


def _diagnosis(measuring: Any, diagnosed: dict[str, Any], case: str) -> Any:
    if case not in diagnosed:
        try:
            diagnosed[case] = getattr(measuring, case)()
        except ImportError as error:
            pytest.skip(f"not installed: {error}")
    return diagnosed[case]


@pytest.mark.program  # to import the packages takes ten seconds
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", EXPECTED)
def test_a_package_is_diagnosed_as_it_was(case: str, measuring: Any, diagnosed: dict[str, Any]) -> None:
    report, expected = measuring.in_short(_diagnosis(measuring, diagnosed, case)), EXPECTED[case]
    assert report["findings"] == expected["findings"]
    assert (report["starved"], report["parameters"]) == (expected["starved"], expected["parameters"])
    assert list(report["shares"]) == list(expected["shares"])
    for place, shares in expected["shares"].items():
        assert report["shares"][place] == pytest.approx(shares, abs=0.05)  # of training steps, on another processor
    for name, rows in expected["whatif"].items():
        for ours, theirs in zip(report["whatif"][name], rows, strict=True):
            assert ours[0] == theirs[0]
            assert ours[1:] == pytest.approx(theirs[1:], rel=1e-4, abs=1e-6)


def test_either_torch_says_what_the_other_does() -> None:
    """The what-ifs of one torch are what the other measured as it is, to 1e-5."""
    for case in ("torchao_int4", "kornia_brightness", "inverse_sigmoid", "auto_round_int2"):
        for version, of in REPORTS.items():
            for other, of_other in REPORTS.items():
                changed = of[case]["whatif"][era_of(other)]
                for (name, zero, norm), row in zip(changed, of_other[case]["whatif"]["as it is"], strict=True):
                    assert (name, zero) == (row[0], row[1]), (case, version, other)
                    assert norm == pytest.approx(row[2], rel=1e-5)


REPAIRS = json.loads((ROOT / "docs" / "repairs.json").read_text(encoding="utf-8"))


@pytest.mark.program
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", next(iter(REPAIRS.values())))
def test_an_edit_of_the_named_line_brings_the_gradient_back(name: str, script: Any) -> None:
    for of in REPAIRS.values():  # as it was measured
        assert of[name]["findings"]
        assert sum(of[name]["zeros after"].values()) <= sum(of[name]["zeros before"].values())
    repairs = script("measure_repairs")
    case = next(case for case in repairs.CASES if case.run.__name__ == name)
    try:
        report = repairs.measured(case)
    except ImportError as error:
        pytest.skip(f"not installed: {error}")
    expected = next(of for version, of in REPAIRS.items() if era_of(version) == installed_era())[name]
    assert (report["line"], report["findings"]) == (expected["line"], expected["findings"])
    for when in ("zeros before", "zeros after"):
        assert report[when] == pytest.approx(expected[when], abs=0.02)


@pytest.mark.filterwarnings("ignore")
def test_the_page_shows_what_a_run_says(measuring: Any, diagnosed: dict[str, Any]) -> None:
    lines = (ROOT / "docs" / "diagnose.md").read_text(encoding="utf-8").splitlines()
    first = next(at for at, line in enumerate(lines) if line.startswith("diagnose: "))
    shown = lines[first + 1 : lines.index("```", first)]
    expected = REPORTS["2.15.0"]["x_transformers"]["text"]
    assert set(shown) <= set(expected)
    if installed_era() == "torch>=2.14":
        now = measuring.text(_diagnosis(measuring, diagnosed, "x_transformers"))
        assert set(shown) <= set(now)
