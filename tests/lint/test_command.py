"""`pseudograd lint` and `explain` as somebody calls them: status, formats, baseline, what is read and what is left out."""

import argparse
import json
import multiprocessing
import os
import resource
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest

import pseudograd_lint
from pseudograd_lint.flake8 import Plugin
from pseudograd_lint.rules import CODES as LINT
from pseudograd_lint.sources import check_file
from pseudograd_notices import formats, workers
from pseudograd_notices.notice import Notice, Problem, new_notices
from pseudograd_notices.options import add_output
from pseudograd_notices.workers import end_with_parent

from ..commands import answer as run
from ..written import assert_written

BAD = "import torch  # a loss\n\n\ndef loss(x):\n    return x.clamp(min=0).sqrt()\n"
GOOD = "import torch\n\n\ndef f(x):\n    return x.clamp(min=1e-9).sqrt()\n"
HOME = Path(pseudograd_lint.__file__).parent
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.py").write_text(BAD)


def lint(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    _, out, _ = run(capsys, "lint", *arguments, "--output-format", "json")
    document: dict[str, Any] = json.loads(out)
    jsonschema.validate(document, json.loads((HOME.parent / "pseudograd_notices" / "findings.schema.json").read_text()))
    return document


def test_text_and_status(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "lint", ".")
    assert (status, err) == (1, "")
    first, source, last = out.splitlines()
    assert first.startswith(
        "a.py:5:12: PG102 [era-guard] the bound 0 of this clamp is the point where sqrt has an infinite slope"
    )
    assert source == "    return x.clamp(min=0).sqrt()"
    assert last == "lint: 1 finding in 1 file; pseudograd explain PG102 says more"
    Path("a.py").write_text(GOOD)
    assert run(capsys, "lint", ".") == (0, "lint: no findings in 1 file\n", "")
    Path("empty").mkdir()
    assert run(capsys, "lint", "empty") == (0, "lint: no findings in 0 files\n", "")
    Path("a.py").write_text(BAD)
    assert run(capsys, "lint", ".", "--exit-zero")[0] == 0


def test_statistics_count_the_codes_and_a_long_line_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.py").write_text(BAD + "    return 0\ndef f(x):\n    return [" + "x.clamp(min=0).sqrt(), " * 20 + "]\n")
    _, out, _ = run(capsys, "lint", ".", "--statistics", "--select", "all")
    *lines, often, once, _ = out.splitlines()
    assert (often, once) == ("    20  PG111 era-guard-elsewhere", "     1  PG102 era-guard")
    assert all(line.startswith("    x.clamp(min=0)") and len(line) <= 164 for line in lines[3::2])
    assert run(capsys, "lint", ".", "--statistics", "--output-format", "json")[0] == 2


ALONE = """
import sys
from pseudograd_notices.command_line import main
status = main(['lint', 'a.py'])
own = [name for name in sys.modules if name.startswith('pseudograd')]
assert status == 1 and len(own) <= 25, own
for words in (['--help'], ['--version'], ['lint', '--help'], ['explain', 'PG101']):
    try:
        main(words)
    except SystemExit as end:
        assert not end.code
assert not {'torch', 'numpy', 'pseudograd'} & set(sys.modules)
sys.modules['torch'] = None  # as where it is not installed
assert main(['explain', 'PG204']) == 2
"""


def test_it_needs_no_torch() -> None:
    """Nor anything of the library; the help does not either, and a lint of five lines enters 25 files at most."""
    command = [sys.executable, "-c", ALONE]
    env = {**os.environ, "PYTHONPATH": str(HOME.parent)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (
        "explain: 'PG204' is none of PG101 to PG153 or PG301 to PG401, and every other code needs torch: "
        in done.stderr
    )
    hook = [sys.executable, ROOT / "scripts" / "pre_commit_lint.py", "a.py"]
    done = subprocess.run(hook, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")


def test_what_is_selected(capsys: pytest.CaptureFixture[str]) -> None:
    for options in ("", "--select PG1", "--select era-guard,PG101", "--ignore a.py:6"):
        assert [finding["code"] for finding in lint(capsys, ".", *options.split())["findings"]] == ["PG102"], options
    for options in ("--select PG101", "--ignore PG102", "--ignore a.py:5", "--ignore a.py:*", "--exclude a.*"):
        assert lint(capsys, ".", *options.split())["findings"] == [], options


def test_a_baseline_knows_what_moves_and_not_what_is_new(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "lint", ".", "--write-baseline", "known.json")[0] == 0
    Path("a.py").write_text("# moved\n\n" + BAD.replace("x.clamp(min=0)", "x.clamp( min=0 )"))
    known = "lint: no findings in 1 file, 1 known from the baseline\n"
    assert run(capsys, "lint", ".", "--baseline", "known.json") == (0, known, "")
    Path("a.py").write_text(BAD + "    return x.clamp(min=0).sqrt()\n")
    assert [finding["line"] for finding in lint(capsys, ".", "--baseline", "known.json")["findings"]] == [6]
    Path("b.py").write_text(BAD)
    assert len(lint(capsys, ".", "--baseline", "known.json")["findings"]) == 2
    text = "--baseline must be a file that --write-baseline wrote, got 'a.py'. Write one with --write-baseline a.py."
    assert run(capsys, "lint", ".", "--baseline", "a.py") == (2, "", f"pseudograd: lint: {text}\n")
    baseline, limits = Path("known.json").read_text(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))  # as on a full disk
    try:
        status, _, err = run(capsys, "lint", ".", "--write-baseline", "known.json")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (status, "--write-baseline must lie where files can be written" in err) == (2, True)
    assert (Path("known.json").read_text(), [*Path().glob(".known*")]) == (baseline, [])


SETTINGS: dict[str, tuple[str, ...]] = {
    "": ("a.py", "lib/a.py", "src/a.py"),
    'select = ["PG101", "cut"]': (),
    'select = ["cut", "PG2"]': ("a.py", "lib/a.py", "src/a.py"),
    'ignore = ["era-guard"]': (),
    'ignore = ["src/a.py:5", "nonfinite", "PG204"]': ("a.py", "lib/a.py"),
    'exclude = ["src", "lib/*.py"]': ("a.py",),
    'per-file-ignores = { "lib/**" = ["PG102", "PG204"] }': ("a.py", "src/a.py"),
    'per-file-ignores = { "**/a.py" = ["all"] }': (),
    'baseline = "known/b.json"': ("a.py", "lib/a.py"),
}


@pytest.mark.parametrize("folder", [".", "src"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_settings_of_the_project_hold_in_each_of_its_folders(
    setting: str, folder: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for a file that is named, as pre-commit names all of them, and for the standard input."""
    for name in ("src", "lib", "known"):
        Path(name).mkdir()
        Path(name, "a.py").write_text(BAD)
    Path("known/a.py").unlink()
    rows = [{"path": "src/a.py", "code": "PG102", "expression": "x.clamp(min=0).sqrt()", "count": 1}]
    Path("known/b.json").write_text(json.dumps({"kind": "pseudograd baseline", "version": 1, "findings": rows}))
    Path("pyproject.toml").write_text(f"[tool.pseudograd]\n{setting}\n")
    Path("src/pyproject.toml").write_text("[tool.other]\nselect = 1\n")
    root, expected = Path.cwd(), SETTINGS[setting]
    monkeypatch.chdir(folder)

    def relative(document: dict[str, Any]) -> list[str]:
        paths = [Path(finding["path"]).resolve() for finding in document["findings"]]
        return sorted(path.relative_to(root).as_posix() for path in paths)

    names = [os.path.relpath(root / name) for name in ("a.py", "lib/a.py", "src/a.py")]
    assert relative(lint(capsys, os.path.relpath(root))) == relative(lint(capsys, *names)) == list(expected)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=SimpleNamespace(read=lambda: BAD.encode())))
    assert len(lint(capsys, "-", "--stdin-filename", names[2])["findings"]) == ("src/a.py" in expected)


def test_the_command_line_goes_before_the_settings(capsys: pytest.CaptureFixture[str]) -> None:
    for setting, option in (
        ('select = ["PG101"]', "--select default"),
        ('ignore = ["PG102"]', "--ignore PG101"),
        ('exclude = ["a.py"]', "--exclude b.py"),
        ('baseline = "nowhere.json"', "--baseline empty.json"),
        ('baseline = "nowhere.json"', "--write-baseline nowhere.json"),
    ):
        Path("empty.json").write_text('{"kind": "pseudograd baseline", "version": 1, "findings": []}')
        Path("pyproject.toml").write_text(f"[tool.pseudograd]\n{setting}\n")
        assert len(lint(capsys, "a.py", *option.split())["findings"]) == ("write" not in option), option


def test_a_baseline_keeps_what_another_command_wrote(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"path": "a.py", "code": code, "expression": "x", "count": 2} for code in ("PG101", "PG204")]
    Path("b.json").write_text(json.dumps({"kind": "pseudograd baseline", "version": 1, "findings": rows}))
    assert run(capsys, "lint", "a.py", "--write-baseline", "b.json")[0] == 0
    codes = [(row["code"], row["count"]) for row in json.loads(Path("b.json").read_text())["findings"]]
    assert codes == [("PG102", 1), ("PG204", 2)]


def test_wrong_settings_get_the_written_line(capsys: pytest.CaptureFixture[str]) -> None:
    def line_of(*lines: str) -> str:
        Path("pyproject.toml").write_text("\n".join(lines))
        status, out, err = run(capsys, "lint", "a.py")
        assert (status, out, err.count("\n")) == (2, "", 1)
        return err

    assert_written(Path(__file__).with_name("wrong_settings.txt"), {"line_of": line_of})
    baseline = line_of("[tool.pseudograd]", 'baseline = "none.json"')
    assert "lint: baseline of [tool.pseudograd] in pyproject.toml must be a file that can be read, got '" in baseline
    assert "lint: pyproject.toml must be TOML, got what cannot be read: " in line_of("[tool.pseudograd]", "select = [")


def test_settings_are_read_by_any_parser_of_toml(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before Python 3.11 by tomli. A file without the table needs none, also if it is broken."""
    loads = pytest.importorskip("tomllib").loads
    monkeypatch.setitem(sys.modules, "tomllib", None)
    Path("pyproject.toml").write_text('[project]\ndependencies = ["pseudograd"]\nbroken')
    assert run(capsys, "lint", "a.py")[0] == 1
    Path("pyproject.toml").write_text('[ tool . "pseudograd" ]\nignore = ["PG102"]')
    monkeypatch.setitem(sys.modules, "tomli", None)
    status, _, err = run(capsys, "lint", "a.py")
    assert (status, err.count("\n")) == (2, 1)
    assert "must be read by a parser of TOML, got none. Install tomli, or run this with Python 3.11 or later." in err
    monkeypatch.setitem(sys.modules, "tomli", SimpleNamespace(loads=loads))
    assert run(capsys, "lint", "a.py")[0] == 0


def test_github(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "lint", "a.py", "--output-format", "github")
    assert out.startswith("::warning file=a.py,line=5,endLine=5,col=12,endColumn=33,title=PG102 era-guard::the bound 0")
    assert out.count("\n") == 1


def test_sarif_has_what_github_asks_for(capsys: pytest.CaptureFixture[str]) -> None:
    """https://docs.github.com/en/code-security/code-scanning/integrating-with-code-scanning/sarif-support-for-code-scanning"""
    fingerprints = []
    for line, text in ((5, BAD), (6, "# moved\n" + BAD)):
        Path("a.py").write_text(text)
        run(capsys, "lint", "a.py", "--output-format", "sarif", "--output-file", "found.sarif")
        (part,) = json.loads(Path("found.sarif").read_text())["runs"]
        (result,) = part["results"]
        rules = {rule["id"]: rule for rule in part["tool"]["driver"]["rules"]}
        assert [*rules][result["ruleIndex"]] == result["ruleId"] == "PG102"
        for rule, level in ((rules["PG102"], "warning"), (rules["PG111"], "note")):
            assert all(rule[key]["text"] for key in ("shortDescription", "fullDescription", "help"))
            assert rule["defaultConfiguration"] == {"level": level, "enabled": level == "warning"}
            assert rule["properties"]["precision"] == ("high" if level == "warning" else "medium")
        region = {
            "startLine": line,
            "endLine": line,
            "startColumn": 12,
            "endColumn": 33,
            "snippet": {"text": "x.clamp(min=0).sqrt()"},
        }
        assert result["locations"] == [{"physicalLocation": {"artifactLocation": {"uri": "a.py"}, "region": region}}]
        assert part["invocations"] == [{"executionSuccessful": True, "toolExecutionNotifications": []}]
        fingerprints.append(result["partialFingerprints"])
    assert fingerprints[0] == fingerprints[1]
    Path("a.py").write_text("def (")
    _, out, _ = run(capsys, "lint", "a.py", "--output-format", "sarif")
    (call,) = json.loads(out)["runs"][0]["invocations"]
    assert (call["executionSuccessful"], len(call["toolExecutionNotifications"])) == (False, 1)


def test_a_notebook_is_read_cell_by_cell(capsys: pytest.CaptureFixture[str]) -> None:
    cells = ["%matplotlib inline\nimport torch  # a loss\n", "!pip install torch", "x = (", "%%bash\nls |"]
    cells.append("def loss(x):\n    ?x\n    return x.clamp(min=0).sqrt()")
    codes = [{"cell_type": "code", "source": cell.splitlines(keepends=True)} for cell in cells]
    markdown = {"cell_type": "markdown", "source": ["# x"]}
    Path("n.ipynb").write_text(json.dumps({"cells": [markdown, *codes], "nbformat": 4}))
    document = lint(capsys, "n.ipynb")
    (finding,) = document["findings"]
    assert (finding["cell"], finding["line"], finding["column"]) == (5, 3, 12)
    (problem,) = document["problems"]
    assert problem["line"] == 0
    assert problem["message"].startswith("cell 3, line 1: is no Python that this interpreter reads")
    assert run(capsys, "lint", "n.ipynb")[0] == 2


def test_what_cannot_be_read_is_a_line_and_the_rest_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert check_file("gone.py", []) == ([], [Problem("gone.py", 0, "cannot be read: No such file or directory")])
    for size, text in ((2**25, "is no Python"), (2**25 + 1, "must be at most 32 MiB, got more.")):
        Path("large.py").touch()
        os.truncate("large.py", size)
        (_, (problem,)) = check_file("large.py", [])
        assert problem.message.startswith(text)
    Path("large.py").unlink()
    Path("b.py").write_text("def (:\n")
    Path("c.py").write_bytes(b"import torch\n# \xff\n")
    Path("d.py").write_bytes(b"# -*- coding: latin-1 -*-\ns = '\xff'\n" + BAD.encode())
    Path("e.py").write_text("x = " + "-" * 100_000 + "1\n")
    Path("f.py").write_bytes(b"\xef\xbb\xbf" + BAD.encode())
    Path("g.ipynb").write_text("{}")
    document = lint(capsys, ".")
    assert [finding["path"] for finding in document["findings"]] == ["a.py", "d.py", "f.py"]
    assert {problem["path"] for problem in document["problems"]} >= {"b.py", "c.py", "g.ipynb"}
    status, out, _ = run(capsys, "lint", ".")
    count = len(document["problems"])
    summary = (
        f"lint: 3 findings in {7 - count} files, {count} files or cells not read; pseudograd explain PG102 says more"
    )
    assert (status, out.splitlines()[-1]) == (2, summary)


def test_environments_and_links_that_lead_round_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    for folder in ("build", "some_env", "inner"):
        Path(folder).mkdir()
        Path(folder, "b.py").write_text(BAD)
    Path("some_env", "pyvenv.cfg").touch()
    Path("inner", "round").symlink_to(Path.cwd())
    Path("again.py").symlink_to("a.py")
    assert [finding["path"] for finding in lint(capsys, ".")["findings"]] == ["a.py", "inner/b.py"]
    assert len(lint(capsys, "build")["findings"]) == 1, "what is named is read"


def test_the_standard_input() -> None:
    command = [sys.executable, "-m", "pseudograd_lint", "-", "--stdin-filename", "new.py"]
    env = {**os.environ, "PYTHONPATH": str(HOME.parent)}
    done = subprocess.run(command, input=BAD, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.startswith("new.py:5:12: PG102 ")) == (1, True)


WRONG = {
    "nowhere": "PATH must exist, got 'nowhere'. Name files, folders or - for the standard input.",
    "gone.py": "PATH must exist, got 'gone.py', a link to 'away' that leads nowhere. Mend or remove the link.",
    ". --select PG1O1": "--select must be a code such as PG101 or born-on-bound, got 'PG1O1'. Did you mean 'PG101'?",
    ". --ignore PG2": "--ignore must be a code such as PG101 or born-on-bound, got 'PG2'. Did you mean 'PG102'?",
    ". --output-format xml": "--output-format must be one of text, json, github, sarif, got 'xml'.",
}


@pytest.mark.parametrize("arguments", WRONG)
def test_a_wrong_call_gets_one_line(capsys: pytest.CaptureFixture[str], arguments: str) -> None:
    Path("gone.py").symlink_to("away")
    assert run(capsys, "lint", *arguments.split()) == (2, "", f"pseudograd: lint: {WRONG[arguments]}\n")


def test_explain(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "explain", "pg101")
    assert status == 0
    assert out == run(capsys, "explain", "born-on-bound")[1]
    assert out.startswith(
        "PG101 born-on-bound  (pseudograd lint)\n\nA parameter starts exactly on the bound of its own clamp or relu.\n"
    )
    status, _, err = run(capsys, "explain", "PG1O1")
    assert (status, err.endswith("got 'PG1O1'. Did you mean 'PG101'?\n")) == (2, True)


def test_two_processes_say_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    for at in range(40):
        Path(f"m{at}.py").write_text(BAD if at % 3 else GOOD)
    assert lint(capsys, ".", "--jobs", "2") == lint(capsys, ".", "--jobs", "1")


def test_flake8_gets_every_code_once() -> None:
    import ast

    ((line, column, text, kind),) = Plugin(ast.parse(BAD), BAD.splitlines(keepends=True)).run()
    assert (line, column, text[:5], kind) == (5, 11, "PG102", Plugin)
    assert Plugin.opinions == tuple(code.number for code in LINT if not code.is_default)


def test_the_default_rules_are_as_precise_as_they_say() -> None:
    """Each that is told by default was found in a published package, and nothing else is. Every label has its reason."""
    labels = [json.loads(line) for line in Path(__file__).with_name("labels.jsonl").read_text("utf-8").splitlines()]
    assert sum(label["fresh"] for label in labels) >= 80
    assert all(label["reason"] and isinstance(label["verdict"], bool) for label in labels)
    default = {code.number for code in LINT if code.is_default}
    groups = [
        [label for label in labels if label["code"] in default and label["fresh"] == fresh] for fresh in (False, True)
    ]
    groups += [[label for label in labels if label["code"] == number] for number in default]
    for group in groups:
        assert sum(label["verdict"] for label in group) / len(group) >= 0.85


def test_a_notice_has_its_place_in_a_file_a_cell_or_neither_and_its_text_as_it_is() -> None:
    notice = Notice("PG101", "born", "é/a.ipynb", 3, 4, 3, 9, "message", "x")
    assert notice.where == "é/a.ipynb:3:4"
    assert notice._replace(cell=2).where == "é/a.ipynb:cell 2:3:4"
    assert notice._replace(line=0, cell=2).where == "é/a.ipynb"
    assert (notice.inside, notice._replace(cell=2).inside) == ("", "Cell 2, line 3: ")
    assert [Problem("a.py", line, "").where for line in (0, 3)] == ["a.py", "a.py:3"]
    assert '"path": "é/a.ipynb"' in formats.as_json(formats.Report("lint", [notice], [], LINT))
    known = Counter({notice.key: 1})
    assert new_notices([notice, notice], known) == [notice]
    assert known == {notice.key: 1}


@pytest.mark.parametrize("has_parent", [True, False])
def test_a_process_ends_with_its_parent(has_parent: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    ended, calls = threading.Event(), []
    parent = SimpleNamespace(join=lambda: calls.append("joined"))
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: parent if has_parent else None)
    monkeypatch.setattr(workers, "_wait_and_exit", lambda process: (process.join(), ended.set()))
    end_with_parent()
    assert ended.wait(5 if has_parent else 0) == has_parent
    assert calls == ["joined"] * has_parent


def test_the_help_names_a_code_and_its_hundred() -> None:
    command = argparse.ArgumentParser(prog="p")
    add_output(command, "PG201", ", parameters")
    text = " ".join(command.format_help().split())
    for part in (
        "PG201, PG2, a name, default or all",
        "codes such as PG201, lines such as 'losses.py:12', parameters;",
    ):
        assert part in text
