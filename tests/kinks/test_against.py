"""`pseudograd doctor --against`: the points of the kink table where the installed torch and another framework or version differ."""

from __future__ import annotations

import json

import pytest
import torch

from pseudograd.kinks import against, table
from pseudograd.torch_eras import CLOSED_ERA, OPEN_ERA, installed_era

from ..commands import answer

HERE = ".".join(torch.__version__.split("+")[0].split(".")[:2])


def _rows(name: str) -> dict[str, tuple[str, str]]:
    return {row["point"]: (row["here"], row["there"]) for row in against.compare(name)["points"]}


def test_the_installed_version_differs_from_itself_nowhere() -> None:
    found = against.compare(f"torch=={HERE}")
    assert found["points"] == []
    assert found["compared"] > 400
    assert (
        against.text(found)
        == f"torch {torch.__version__} against torch=={HERE}: 0 of {found['compared']} points differ"
    )


def test_jax_and_tensorflow_differ_where_it_is_known() -> None:
    jax, tensorflow = _rows("jax"), _rows("tensorflow")
    assert jax["abs@0"] == ("0", "1")
    assert jax["leaky_relu(0.1)@0"] == ("0.1", "1")
    assert "abs@0" not in tensorflow
    assert "relu@0" not in jax


def test_the_other_era_differs_at_the_bound() -> None:
    other = {CLOSED_ERA: "torch==2.15", OPEN_ERA: "torch==2.13"}[installed_era()]
    expected = ("1", "0") if installed_era() == CLOSED_ERA else ("0", "1")
    assert _rows(other)["clamp(0,1)@0"] == expected
    assert "relu@0" not in _rows(other)


def test_every_row_is_two_gradients_of_the_table() -> None:
    known = table.load()
    for row in against.compare("jax")["points"]:
        theirs = known.points[row["point"]].gradient("jax")
        assert theirs is not None
        assert row["there"] == "; ".join(", ".join(f"{value + 0.0:.4g}" for value in one) for one in theirs)


def test_the_command_and_its_errors(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = answer(capsys, "doctor", "--against", "jax")
    assert (code, err) == (0, "")
    assert out.startswith(f"torch {torch.__version__} against jax 0.10: ")
    assert "pseudograd.pin_edge('jax') gives what stands under there" in out
    code, out, err = answer(capsys, "doctor", "--against", "tensorflow", "--json")
    assert json.loads(out)["against"] == "tensorflow"
    code, out, err = answer(capsys, "doctor", "--against", "jaxx")
    assert (code, out) == (2, "")
    assert "Did you mean 'jax'" in err
    code, out, err = answer(capsys, "doctor", "--against", "torch==2.1")
    assert (code, out) == (2, "")
    assert "doctor: --against must name a version" in err
