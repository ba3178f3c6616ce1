"""The plugin as a company's suite uses it: its tests run in a pytest of their own."""

import json
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import torch
from torch import nn

from pseudograd.integrations.pytest import diagnosed
from pseudograd.torch_table.eras import ERAS, installed_era

pytest_plugins = ["pytester"]

_SUITE = """
import pytest, torch
from torch import nn

class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.tensor([5.0]))
    def forward(self):
        return self.gain.clamp(0, 1).sum()

def test_that_fails(diagnosed):
    net = Gated()
    with diagnosed(net, fail_on="starved"):
        net().backward()

def test_that_passes(diagnosed):
    net = nn.Linear(2, 1)
    with diagnosed(net) as d:
        net(torch.ones(1, 2)).sum().backward()
    assert d.backwards == 1
"""

_AT_THE_BOUND = """
import pytest, torch, unittest

def at_the_bound():
    x = torch.zeros(1, requires_grad=True)
    torch.clamp(x, 0, 1).sum().backward()
    return x.grad.item()
"""
_PINNED = f"""{_AT_THE_BOUND}
@pytest.fixture(scope="module")
def trained():
    return at_the_bound()

def test_all(trained):
    assert at_the_bound() == trained == EXPECTED

@pytest.mark.pseudograd_pin("half")
def test_marked():
    assert at_the_bound() == 0.5
"""


def _run(pytester: pytest.Pytester, *options: str, how: str = "inprocess") -> pytest.RunResult:
    """With the plugin once: by its entry point, or, where the package is not installed, by name."""
    is_installed = any(entry.value == "pseudograd_pytest" for entry in entry_points(group="pytest11"))
    plugin = [] if is_installed else ["-p", "pseudograd_pytest"]
    return getattr(pytester, f"runpytest_{how}")("-p", "no:cacheprovider", *plugin, *options)


def test_a_failure_shows_the_finding_with_its_line(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_suite=_SUITE)
    done = _run(pytester, "-q")
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.fnmatch_lines(["*diagnosed: starved at *test_suite.py:9*", "*self.gain.clamp(0, 1)*"])


@pytest.mark.parametrize(("edge", "expected", "is_setting"), [("torch<=2.13", 1.0, True), ("torch>=2.14", 0.0, False)])
def test_a_whole_suite_is_pinned(pytester: pytest.Pytester, edge: str, expected: float, is_setting: bool) -> None:
    pytester.makepyfile(test_pinned=_PINNED.replace("EXPECTED", str(expected)))
    option = f"--pseudograd-pin={edge}"
    if is_setting:
        pytester.makeini(f"[pytest]\naddopts = {option}\n")
    done = _run(pytester, *([] if is_setting else [option]))
    done.assert_outcomes(passed=2)
    done.stdout.fnmatch_lines([f"pseudograd: every test runs under pin_edge('{edge}')"])


_ENDING_BADLY = f"""{_AT_THE_BOUND}
@pytest.fixture
def raising():
    yield
    raise RuntimeError("in its teardown")

@pytest.mark.pseudograd_pin("half")
@pytest.mark.parametrize("how", ["fail", "skip", "xfail", "raise"])
def test_bad(how):
    assert at_the_bound() == 0.5
    getattr(pytest, how)("as asked") if how != "raise" else 1 / 0

@pytest.mark.pseudograd_pin("half")
def test_bad_teardown(raising):
    assert at_the_bound() == 0.5

class Old(unittest.TestCase):
    @pytest.mark.pseudograd_pin("half")
    def test_old(self):
        self.assertEqual(at_the_bound(), 0.5)

def doctested():
    QQQ
    >>> at_the_bound()
    EXPECTED
    QQQ

def test_after():
    assert at_the_bound() == EXPECTED
""".replace("QQQ", "'" * 3)


def test_however_a_test_ends_the_next_one_has_the_pin_of_the_suite(pytester: pytest.Pytester) -> None:
    """The suite's pin asks for what the installed torch does not do."""
    edge, expected = ("open", 0.0) if ERAS[installed_era()].edge == "closed" else ("closed", 1.0)
    pytester.makepyfile(test_bad=_ENDING_BADLY.replace("EXPECTED", str(expected)))
    done = _run(pytester, f"--pseudograd-pin={edge}", "--doctest-modules")
    done.assert_outcomes(passed=4, failed=2, skipped=1, xfailed=1, errors=1)
    done.stdout.fnmatch_lines(["*in its teardown*"])


_COUNTED = """
import threading, pytest, torch

def gate(x):
    return x.clamp(0, 1)

def train():
    x = torch.zeros(1, requires_grad=True)
    gate(x).sum().backward()
    return x.grad.item()

@pytest.mark.parametrize("n", range(3))
def test_gate(n):
    assert train() == 0.5

def test_in_a_thread():
    slopes = []
    def run():
        with torch.no_grad():
            gate(torch.ones(1))  # no gradient, so nothing to pin
        slopes.append(train())
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert slopes != [0.5]

@pytest.mark.pseudograd_pin("none")
def test_without_a_pin():
    assert train() != 0.5
"""
_COUNTS = "pseudograd: 3 calls at 1 line were pinned; 1 call at 1 line was not: test_counted.py:4, in a thread that a test started"


@pytest.mark.parametrize("options", ["", "-qq"])
def test_the_end_says_which_calls_were_pinned(pytester: pytest.Pytester, options: str) -> None:
    pytester.makepyfile(test_counted=_COUNTED)
    pytester.makepyprojecttoml('[tool.pseudograd]\npin = "half"\n')
    done = _run(pytester, *options.split())
    assert done.ret == 0, done.stdout.str()
    done.stdout.fnmatch_lines([_COUNTS])
    if not options:
        header = "by pin of [[]tool.pseudograd] in pyproject.toml"
        done.stdout.fnmatch_lines([f"pseudograd: every test runs under pin_edge('half'), {header}"])


@pytest.mark.parametrize("pin", ["none", *ERAS])
def test_the_end_is_silent_where_nothing_was_pinned(pytester: pytest.Pytester, pin: str) -> None:
    """A thread is not named where the pin asks for what torch does anyway."""
    pytester.makepyfile(_COUNTED.replace("assert", "assert train() is not None or"))
    pytester.makepyprojecttoml('[tool.pseudograd]\npin = "half"\n')
    done = _run(pytester, f"--pseudograd-pin={pin}")
    is_pinned = pin not in ("none", installed_era())
    assert (" pinned" in done.stdout.str(), done.ret) == (is_pinned, 0)


def test_settings_are_an_error_before_any_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it(): pass")
    for setting, text in (
        ('pin = "opne"', "pytest: pin of [[]tool.pseudograd] in pyproject.toml must be an edge, got 'opne'. *'open'?"),
        ("pins = 1", "pytest: a key of [[]tool.pseudograd] in pyproject.toml must be one of *, got 'pins'. *'pin'?"),
    ):
        pytester.makepyprojecttoml(f"[tool.pseudograd]\n{setting}\n")
        done = _run(pytester)
        assert done.ret == pytest.ExitCode.USAGE_ERROR
        done.stderr.fnmatch_lines([f"*{text}*"])


def test_the_fixture_leaves_out_what_the_settings_leave_out(pytester: pytest.Pytester) -> None:
    """By codes, by codes in files, and by a baseline."""
    pytester.makepyfile(test_suite=_SUITE)
    known = {"path": "test_suite.py", "code": "PG203", "expression": "self.gain.clamp(0, 1)", "count": 1}
    baseline = {"kind": "pseudograd baseline", "version": 1, "findings": [known]}
    pytester.path.joinpath("known.json").write_text(json.dumps(baseline))
    for setting, failed in (
        ('ignore = ["PG203", "born-on-bound"]', 0),
        ('select = ["PG101", "PG202"]', 0),
        ('baseline = "known.json"', 0),
        ('per-file-ignores = { "test_*.py" = ["starved"] }', 0),
        ('per-file-ignores = { "src/*" = ["starved"] }', 1),
        ('select = ["PG101"]', 1),
    ):
        pytester.makepyprojecttoml(f"[tool.pseudograd]\n{setting}\n")
        _run(pytester, "-q").assert_outcomes(passed=2 - failed, failed=failed)


@pytest.mark.slow
def test_the_pin_holds_in_the_workers_of_xdist_and_the_controller_sums_them(pytester: pytest.Pytester) -> None:
    pytest.importorskip("xdist")
    pytester.makepyfile(test_counted=_COUNTED)
    pytester.makepyprojecttoml('[tool.pseudograd]\npin = "half"\n')
    done = _run(pytester, "-n2", how="subprocess")
    done.assert_outcomes(passed=5)
    done.stdout.fnmatch_lines([_COUNTS])


@pytest.mark.parametrize(
    ("marker", "option", "text"),
    [
        ("'half'", "--pseudograd-pin=torch<=9.9", "*pin_edge: edge must*"),
        ("'opne'", "", "*pin_edge: edge must*Did you mean 'open'? It is the marker of *test_it*"),
        ("", "", "*pseudograd_pin: there must be one argument, got 0 and 0 by name, at *test_it*"),
        ("edge='half'", "", "*pseudograd_pin: there must be one argument, got 0 and 1 by name, at *test_it*"),
    ],
)
def test_a_wrong_edge_is_an_error_before_any_test(
    pytester: pytest.Pytester, marker: str, option: str, text: str
) -> None:
    pytester.makepyfile(f"import pytest\n@pytest.mark.pseudograd_pin({marker})\ndef test_it(): pass")
    done = _run(pytester, *([option] if option else []))
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines([text])
    assert "passed" not in done.stdout.str()


def test_the_plugin_alone_imports_no_torch(tmp_path: Path) -> None:
    """Every pytest of an environment imports its plugins."""
    source = Path(__file__).resolve().parents[2] / "src"
    program = (
        f"import sys; sys.path.insert(0, {str(source)!r}); import pseudograd_pytest; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path)


def test_a_block_without_a_backward_pass_fails() -> None:
    with pytest.raises(AssertionError, match="no backward pass ran in this block"), diagnosed(nn.Linear(2, 1)):
        pass


def test_an_unknown_code_is_told_before_any_step() -> None:
    with pytest.raises(ValueError, match="be a finding's code"), diagnosed(fail_on="nonsense"):
        pytest.fail("the block runs")


def test_an_error_of_the_steps_is_raised_as_it_is() -> None:
    error = RuntimeError("theirs")
    with pytest.raises(RuntimeError) as raised, diagnosed():
        raise error
    assert raised.value is error


def test_what_is_ignored_passes() -> None:
    gain = nn.Parameter(torch.tensor([5.0]))
    net = nn.Module()
    net.gain = gain
    with pytest.raises(AssertionError, match="starved"), diagnosed(net):
        gain.clamp(0, 1).sum().backward()
    with diagnosed(net, ignore=["gain", "test_pytest_plugin.py:*"]):
        gain.clamp(0, 1).sum().backward()
