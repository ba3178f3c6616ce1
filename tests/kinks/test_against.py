"""`pseudograd doctor --against`: the points of the kink table where the installed torch and another framework or version differ."""

import json
import re

import pytest
import torch

from pseudograd.torch_table.eras import CLOSED_ERA, ERAS, OPEN_ERA, installed_era
from pseudograd_kinks import against, table

from ..commands import answer

HERE = ".".join(torch.__version__.split("+")[0].split(".")[:2])


def _rows(name: str) -> dict[str, tuple[str, str]]:
    return {row["point"]: (row["here"], row["there"]) for row in against.compare(name)["points"]}


def test_the_installed_version_differs_from_itself_nowhere() -> None:
    comparison = against.compare(f"torch=={HERE}")
    assert comparison["points"] == []
    assert comparison["compared"] > 400
    assert (
        against.text(comparison)
        == f"torch {torch.__version__} against torch=={HERE}: 0 of {comparison['compared']} points differ"
    )


def test_jax_and_tensorflow_differ_where_it_is_known() -> None:
    jax, tensorflow = _rows("jax"), _rows("tensorflow")
    assert jax["abs@0"] == ("0", "1")
    assert jax["leaky_relu(0.1)@0"] == ("0.1", "1")
    assert "abs@0" not in tensorflow
    assert "relu@0" not in jax


def test_the_other_era_differs_at_the_bound() -> None:
    other = {CLOSED_ERA: "torch==2.15", OPEN_ERA: "torch==2.13"}[installed_era()]
    assert [against.compare(name)["pin"] for name in ("jax", other)] == [
        "pin_edge('jax')",
        f"pin_edge({other!r})",
    ]
    expected = ("1", "0") if installed_era() == CLOSED_ERA else ("0", "1")
    assert _rows(other)["clamp(0,1)@0"] == expected
    assert "relu@0" not in _rows(other)


def test_every_row_is_two_gradients_of_the_table() -> None:
    known = table.load()
    for row in against.compare("jax")["points"]:
        theirs = known.points[row["point"]].gradient("jax")
        assert row["there"] == "; ".join(", ".join(f"{value + 0.0:.4g}" for value in row) for row in theirs)


def test_the_command_and_its_errors(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = answer(capsys, "doctor", "--against", "jax")
    assert (code, err, out.startswith(f"torch {torch.__version__} against jax 0.10: ")) == (0, "", True)
    code, out, err = answer(capsys, "doctor", "--against", "jax", "--all")
    assert (code, err) == (0, "")
    assert all(any(line[2:].startswith(point) for line in out.splitlines()) for point in _rows("jax"))
    assert json.loads(answer(capsys, "doctor", "--against", "tensorflow", "--json")[1])["against"] == "tensorflow"
    for arguments, text in (
        ("--against jaxx", "Did you mean 'jax'"),
        ("--against torch==2.1", "doctor: --against must name a version"),
        ("--all", "doctor: --all must stand with --against, got it alone. Add --against jax.\n"),
    ):
        code, out, err = answer(capsys, "doctor", *arguments.split())
        assert (code, out, text in err) == (2, "", True)


NAMES = ("jax", "tensorflow", *ERAS, *(f"torch=={version}" for version in table.load().versions("torch")))


@pytest.mark.parametrize("name", NAMES)
def test_each_function_that_differs_has_a_line_which_counts_its_points(name: str) -> None:
    compared = against.compare(name)
    lines = against.text(compared).splitlines()
    shown = lines[3:-3]
    more = sum(int(match[1]) for line in shown if (match := re.search(r" \+(\d+)$", line)))
    assert len(shown) + more == len(compared["points"])
    assert len(shown) == len({row["op"] for row in compared["points"]})
    unmarked = [line for line in shown if not line.startswith("! ")]
    assert all(
        line[2:].split("  ")[0] in {row["point"] for row in compared["points"] if row["pinned"]} for line in unmarked
    )


def test_what_the_pin_reaches_is_tried_out() -> None:
    """On the installed torch, point by point."""
    rows = {row["point"]: row["pinned"] for row in against.compare("jax")["points"]}
    assert rows["abs@0"]
    assert rows["clamp(0,1)@0"]
    assert not rows["i0@0"]
    other = {CLOSED_ERA: "torch==2.15", OPEN_ERA: "torch==2.13"}[installed_era()]
    assert [row["point"] for row in against.compare(other)["points"] if not row["pinned"]] == [
        id for id in _rows(other) if "quantile" in id and installed_era() == CLOSED_ERA
    ]
