"""Old scripts and notebooks: what is recognised, what goes, what stays and why, and that the edited script trains as before."""

import ast
import json
import subprocess
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import pytest

from pseudograd.migrate import classes, edit, hints, make_migration
from pseudograd.migrate.hints import HINTS

from ..coming_from.lines import ROWS
from ..commands import answer
from ..written import assert_written

POPULAR = '''\
class ClampWithGrad(torch.autograd.Function):
    """Gradients that lead back inside pass."""

    @staticmethod
    def forward(ctx, x, low, high):
        ctx.low, ctx.high = low, high
        ctx.save_for_backward(x)
        return x.clamp(low, high)

    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        return g * (g * (x - x.clamp(ctx.low, ctx.high)) >= 0), None, None
'''
BY_WHERE = """\
class PassBack(Function):
    @staticmethod
    def forward(ctx, x, low, high):
        ctx.save_for_backward((x < low), (x > high))
        return torch.maximum(torch.minimum(x, torch.tensor(high)), torch.tensor(low))

    @staticmethod
    def backward(ctx, g):
        below, above = ctx.saved_tensors
        return torch.where((below & (g > 0)) | (above & (g < 0)), torch.zeros_like(g), g), None, None
"""
PROPOSED = """\
class Pushed(th.autograd.Function):
    @staticmethod
    def forward(ctx, x, low, high):
        y = x.clamp(low, high)
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return th.where(x == y, g, (x - y).sign()), None, None
"""
REPLACE = """\
class ReplaceGrad(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value, through):
        ctx.shape = through.shape
        return value

    @staticmethod
    def backward(ctx, g):
        return None, g.sum_to_size(ctx.shape)
"""
PRODUCT = "g * (g * (x - x.clamp(ctx.low, ctx.high)) >= 0)"
IDENTITY = POPULAR.replace(PRODUCT, "g").replace("ClampWithGrad", "Straight")
BROKEN = POPULAR.replace(">= 0", "> 0").replace("ClampWithGrad", "NearlyIt")

SCRIPT = f"""\
#!/usr/bin/env python
import torch
from torch.autograd import Function
import math


{POPULAR}

clamp_with_grad = ClampWithGrad.apply


{REPLACE}
replace_grad = ReplaceGrad.apply

torch.manual_seed(0)
x = (3 * torch.randn(50)).requires_grad_()
for step in range(5):
    y = replace_grad((clamp_with_grad(x, -1, 1) * 4).round() / 4, clamp_with_grad(x, -1, 1))
    (g,) = torch.autograd.grad((y - 0.3).square().sum(), x)
    x = (x - 0.1 * g).detach().requires_grad_()
print(math.fsum(x.tolist()), x.tolist())
"""


def _file(folder: Path, text: str, name: str = "old.py") -> Path:
    file = folder / name
    file.write_bytes(text.encode())
    return file


@pytest.mark.parametrize(
    ("text", "known"),
    [
        (POPULAR, "ClampWithGrad"),
        (BY_WHERE, "ClampWithGrad"),
        (PROPOSED, "ClampWithGradProposed"),
        (REPLACE, "ReplaceGrad"),
        (POPULAR.replace(PRODUCT, "g * ((x >= ctx.low) & (x <= ctx.high))"), "ClampWithGradThatWorks"),
        (IDENTITY, None),
        (BROKEN, None),
    ],
    ids=["popular", "by where", "proposed", "replace", "true", "straight", "nearly"],
)
def test_a_class_is_known_by_what_it_computes(tmp_path: Path, text: str, known: str | None) -> None:
    head = "import torch\nimport torch as th\nfrom torch.autograd import Function\n"
    (old,) = make_migration(_file(tmp_path, head + text)).classes
    assert (old.match.familiar if old.match else None) == known


GUARDS = [
    "g * (1000 / g.norm()).clamp(max=1)",
    "torch.where(g.isfinite().all(), g, torch.zeros_like(g))",
    "g.clamp(-10, 10)",
    "g.clamp(-1e5, 1e5)",
    "g.nan_to_num(0.0, 0.0, 0.0)",
    "g * (g.abs() < 1000)",
    "g * (g.abs() > 1e-10)",
    "torch.where(g.isinf(), torch.zeros_like(g), g)",
    "torch.where(x.abs() > 100, torch.zeros_like(g), g)",
    "g / 2 if g.dim() == 4 else g",
]


CASTS = "@staticmethod\n    @torch.amp.custom_fwd(device_type='cpu', cast_inputs=torch.half)"
OTHERS = {
    "autocast casts its inputs": POPULAR.replace("@staticmethod", CASTS, 1),
    "its value has no gradient": POPULAR.replace("return x.clamp", "ctx.mark_non_differentiable(x); return x.clamp", 1),
    "bounds that learn otherwise": POPULAR.replace("None, None", "g.sum(), g.sum()"),
    "of another base": POPULAR.replace("(torch.autograd.Function)", "(Op)"),
    "another F": f"import functions_of_mine as F\n{POPULAR}".replace("x.clamp(low", "F.hardtanh(x, low"),
    "a clamp of its own": f"from torch import clamp\ndef clamp(*args): return 0\n{POPULAR}".replace("x.clamp(low", "clamp(x, low"),
}  # fmt: skip


USES = (
    "class More(ClampWithGrad): pass",
    "print(ClampWithGrad)",
    'getattr(more, "ClampWithGrad")',
)
NO_CLASS = "is not recognised as a class of pseudograd.familiar: it stays"
STAYS = {
    **{guard: (POPULAR.replace("return g", f"g = {guard}\n        return g", 1), NO_CLASS) for guard in GUARDS},
    **{name: (text, NO_CLASS) for name, text in OTHERS.items()},
    "float32 alone": (
        POPULAR.replace("return x.clamp", "return x.float().clamp", 1),
        "but differs in float16, bfloat16, float64",
    ),
    "default bounds": (
        f"{POPULAR.replace('low, high):', 'low=0, high=1.5):', 1)}y = ClampWithGrad.apply(torch.ones(1))\n",
        "is ClampWithGrad, but has default arguments (low=0, high=1.5): it stays",
    ),
    "forward mode": (
        f"{POPULAR}\n    @staticmethod\n    def jvp(ctx, g, *_): return g\n",
        "is ClampWithGrad, but has a method jvp, which that class has not: it stays",
    ),
    **{use: (f"{POPULAR}{use}\n", "uses more of it than `ClampWithGrad.apply`: it stays") for use in USES},
    **{
        shape: (
            POPULAR.replace("return g", f"n = {shape}\n        return g * (1 if n < 9999 else 2)", 1),
            "asks for a shape or a number of elements, and only some of these were tried: it stays",
        )
        for shape in ("x.numel()", "ctx.saved_tensors[0].shape[0]", "x.view(x.shape).dim()", "len(x)")
    },
    "a trace": (
        f"{POPULAR}torch.jit.trace(ClampWithGrad.apply, (torch.ones(2), -1, 1))\n",
        "line 15 traces, and torch.jit.trace keeps its gradient but not that of an op of pseudograd: it stays",
    ),
    "defined twice": (  # which of the two a use means is not known, and the other may be no copy
        f"{POPULAR}{IDENTITY.replace('Straight', 'ClampWithGrad')}y = ClampWithGrad.apply\n",
        "defines ClampWithGrad again: it stays",
    ),
}


@pytest.mark.parametrize("name", STAYS)
def test_a_class_that_is_another_or_is_used_otherwise_stays(tmp_path: Path, name: str) -> None:
    text, reason = STAYS[name]
    migration = make_migration(_file(tmp_path, f"import torch\n{text}"))
    assert migration.after == f"import torch\n{text}"
    assert reason in str(migration)


SPIKE = """\
class SuperSpike(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x{more}):
        ctx.save_for_backward(x)
        return (x >= 0).to(x)

    @staticmethod
    def backward(ctx, g):
        return g / (100 * ctx.saved_tensors[0].abs() + 1) ** 2, None
"""


def test_a_class_of_a_name_on_the_page_has_its_line_as_a_hint(tmp_path: Path) -> None:
    text = str(make_migration(_file(tmp_path, "import torch\n" + SPIKE.replace("{more}", ", alpha"))))
    assert (
        "SuperSpike is not recognised as a class of pseudograd.familiar: it stays\n    hint: SpikingJelly's SuperSpike("
        in text
    )
    assert "is pg.heaviside(x, rule=pg.rules.fast_sigmoid(height=a)); compare before" in text
    text = str(make_migration(_file(tmp_path, "import torch\n" + SPIKE.replace("{more}", ", a, b"))))
    assert "hint" not in text


def test_the_hints_are_the_lines_of_the_page() -> None:
    rows = [(before, after) for lines in ROWS.values() for before, (after, _) in lines.items()]
    for before, after in (line for lines in HINTS.values() for line in lines.items()):
        assert any(before.rstrip(")") in row and after == ours for row, ours in rows), before


BLOCKS = (
    "def make():{}    return ReplaceGrad.apply\nprint(make())\n",
    "class Guide:{}    def f(self): return self.ReplaceGrad.apply\n",
    "if torch.cuda:{}",
    "try:{}except ImportError:\n    pass\n",
)
_INSIDE = "\n" + "".join(f"    {line}\n" if line else "\n" for line in REPLACE.splitlines())
_IN_A_FUNCTION = (
    BLOCKS[0].replace("{}", _INSIDE),
    BLOCKS[0].replace("{}", "\n    from pseudograd.familiar import ReplaceGrad\n"),
)
EDITS = {
    **{
        block: (
            block.replace("{}", _INSIDE),
            block.replace("{}", "\n    from pseudograd.familiar import ReplaceGrad\n"),
        )
        for block in BLOCKS
    },
    "tabs": tuple(text.replace("    ", "\t") for text in _IN_A_FUNCTION),
    "line ends, and another name of the class": (
        (POPULAR.replace("ClampWithGrad", "Mine") + "# ü\nx = Mine.apply").replace("\n", "\r\n"),
        "from pseudograd.familiar import ClampWithGrad as Mine\r\n# ü\r\nx = Mine.apply",
    ),
    "a form feed, which ends no line": (
        f"x = '\x0c'\n{POPULAR}y = torch.trace(torch.ones(1, 1))\n",
        "from pseudograd.familiar import ClampWithGrad\nx = '\x0c'\ny = torch.trace(torch.ones(1, 1))\n",
    ),
}


@pytest.mark.parametrize("name", EDITS)
def test_a_class_gives_way_to_an_import_and_all_else_stays(tmp_path: Path, name: str) -> None:
    head = "import torch\r\n" if "\r\n" in EDITS[name][0] else "import torch\n"
    before, after = (head + text for text in EDITS[name])
    assert make_migration(_file(tmp_path, before)).after == after
    compile(after, "new.py", "exec")


def test_nothing_of_the_script_runs_but_its_imports_of_torch(tmp_path: Path) -> None:
    """Not the body of the class, no decorator and no default: each of these lines would write a file."""
    write = f"open({str(tmp_path / 'ran')!r}, 'w')"
    for text in (
        f"{write}\n{POPULAR}",
        POPULAR.replace("    @staticmethod\n    def forward", f"    log = {write}\n    @staticmethod\n    def forward"),
        f"@{write}.write\n{POPULAR}",
        POPULAR.replace("low, high):", f"low, high={write}):", 1),
        POPULAR.replace("return x", f"{write}; return x"),
    ):
        make_migration(_file(tmp_path, f"import torch\n{text}"))
        assert not (tmp_path / "ran").exists()


def test_the_sentence_names_where_the_class_differs(tmp_path: Path) -> None:
    text = str(make_migration(_file(tmp_path, f"import torch\n{POPULAR}")))
    assert (
        "tried, in float16, bfloat16, float32 and float64\n    differs at float16: grad = inf gives nan instead of 0"
        in text
    )
    assert "gives 1.01328e-06 instead of 0 at x = -0.30029" in text, "the product of two small numbers is 0"


@pytest.mark.program
def test_the_edited_script_trains_as_before(tmp_path: Path) -> None:
    old = _file(tmp_path, SCRIPT)
    migration = make_migration(old)
    assert migration.after.count("import") == SCRIPT.count("import") + 1
    lines = migration.after.splitlines()
    assert lines[4] == "from pseudograd.familiar import ClampWithGrad, ReplaceGrad"
    assert "class" not in migration.after
    new = _file(tmp_path, migration.after, "new.py")
    first, second = (
        subprocess.run([sys.executable, str(file)], capture_output=True, text=True, check=True).stdout
        for file in (old, new)
    )
    assert first == second


@pytest.mark.parametrize(
    ("other", "stays"),
    [
        ("from old import ClampWithGrad\nprint(ClampWithGrad.forward)", True),
        ("from .old import ClampWithGrad as C\nclass More(C): pass", True),
        ("from old import *\nclass More(ClampWithGrad): pass", True),
        ("import old\nprint(old.ClampWithGrad)", True),
        ("from . import old as o\nprint(o.ClampWithGrad.backward)", True),
        ("import old\nf = old.ClampWithGrad.apply", False),
        ("from new import ClampWithGrad\nprint(ClampWithGrad.forward)", False),
        ("ClampWithGrad = 1\nprint(ClampWithGrad)", False),
        ("def ClampWithGrad(:", False),
    ],
)
def test_a_class_that_a_file_beside_it_uses_otherwise_stays(tmp_path: Path, other: str, stays: bool) -> None:
    _file(tmp_path, other, "other.py")
    text = f"import torch\n{POPULAR}"
    migration = make_migration(_file(tmp_path, text))
    assert (migration.after == text) == stays
    assert ("but other.py:2 uses more of it than `ClampWithGrad.apply`: it stays" in str(migration)) == stays


def _notebook(*cells: str) -> str:
    stored: dict[str, Any] = {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None}
    code = [{**stored, "source": cell.splitlines(keepends=True)} for cell in cells]
    text = {"cell_type": "markdown", "source": ["# ü"], "metadata": {}}
    return json.dumps({"cells": [text, *code], "nbformat": 4}, indent=1)


def test_a_notebook_is_edited_cell_by_cell_and_what_is_no_python_stays(tmp_path: Path) -> None:
    cells = (
        "!pip install torch\n%matplotlib inline\nimport torch",
        "import torch\n%pip install ftfy \\\n    regex\nfiles = !ls\nversion = %sx pip show torch\n",
        f"# a clamp\n{POPULAR}\nclamp = ClampWithGrad.apply",
        *("%%time\nnot python", "torch.clamp?", "if"),
    )
    migration = make_migration(_file(tmp_path, _notebook(*cells), "old.ipynb"))
    sources = ["".join(cell["source"]) for cell in json.loads(migration.after)["cells"]]
    new = "# a clamp\nfrom pseudograd.familiar import ClampWithGrad\nclamp = ClampWithGrad.apply"
    assert sources == ["# ü", *cells[:2], new, *cells[3:]]
    assert "+from pseudograd.familiar import ClampWithGrad" in migration.diff
    assert "old.ipynb:cell 3:2: ClampWithGrad is ClampWithGrad" in str(migration)


@pytest.mark.parametrize(
    ("indent", "end"), [(4, "\n"), ("\t", "\r\n"), (None, "\n")], ids=["spaces", "tabs", "one line"]
)
def test_a_notebook_keeps_its_indent_and_line_ends(tmp_path: Path, indent: str | int | None, end: str) -> None:
    def store(text: str) -> str:
        return json.dumps(json.loads(text), indent=indent, ensure_ascii=False).replace("\n", end)

    file = tmp_path / "old.ipynb"
    file.write_bytes(store(_notebook("import torch", POPULAR)).encode())
    migration = make_migration(file)
    assert migration.before != migration.after == store(migration.after)


@pytest.mark.parametrize("use", ["if ClampWithGrad.forward", "if print(ClampWithGrad)", "print(ClampWithGrad)"])
def test_a_use_in_another_cell_counts_also_where_it_cannot_be_read(tmp_path: Path, use: str) -> None:
    migration = make_migration(_file(tmp_path, _notebook("import torch", POPULAR, use), "old.ipynb"))
    assert migration.after == migration.before
    why = "a cell that cannot be read uses it" if use.startswith("if") else "cell 3, line 1 uses more of it than"
    assert f"ClampWithGrad is ClampWithGrad, but {why}" in str(migration)
    other = make_migration(_file(tmp_path, _notebook("import torch", POPULAR, "if ClampWithGrad.apply"), "other.ipynb"))
    assert other.after != other.before


def test_the_diff_is_shown_and_written_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = _file(tmp_path, SCRIPT)
    file.chmod(0o755)
    link = tmp_path / "link.py"
    link.symlink_to(file)
    code, out, err = answer(capsys, "migrate", str(link))
    assert (code, err) == (0, "")
    assert (
        f"{link}:7: ClampWithGrad is ClampWithGrad: equal to the bit for each usual x and gradient that was tried, in float16, "
        in out
    )
    assert "-class ReplaceGrad(torch.autograd.Function):" in out
    assert out.endswith(
        "--apply writes it.\nThe script then imports pseudograd: install it wherever the script runs.\n"
    )
    assert file.read_text() == SCRIPT
    code, out, err = answer(capsys, "migrate", "--apply", str(link))
    assert (code, err) == (0, "")
    assert out.endswith(f"{link}: written\nThe script now imports pseudograd: install it wherever the script runs.\n")
    assert file.read_text() == make_migration(file).after != SCRIPT
    assert file.stat().st_mode & 0o777 == 0o755
    assert link.is_symlink()
    for how in ([], ["--apply"]):
        assert answer(capsys, "migrate", *how, str(file))[1] == f"{file}: finds no class of autograd.Function here\n"
    others = [_file(tmp_path, SCRIPT, name) for name in ("one.py", "two.py")]
    _, out, _ = answer(capsys, "migrate", *map(str, [*others, file]))
    assert out.endswith(
        "\n\n--apply writes these 2 files.\nThe script then imports pseudograd: install it wherever the script runs.\n"
    )


@pytest.mark.parametrize(("encoding", "head"), [("utf-8-sig", "# ü\n"), ("latin-1", "# coding: latin-1\n# ü\n")])
def test_a_script_keeps_the_encoding_that_python_reads_it_in(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], encoding: str, head: str
) -> None:
    file = tmp_path / "old.py"
    file.write_bytes((head + SCRIPT).encode(encoding))
    assert answer(capsys, "migrate", "--apply", str(file))[0] == 0
    text = make_migration(file).after
    assert "from pseudograd.familiar import" in text
    assert file.read_bytes() == text.encode(encoding)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "No such file"),
        ("def", "invalid syntax"),
        ("\xff", "encoding declaration"),
    ],
)
def test_what_is_no_script_is_told_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, reason: str
) -> None:
    good, bad = _file(tmp_path, SCRIPT), tmp_path / "bad.py"
    if text is not None:
        bad.write_bytes(text.encode("latin-1"))
    code, _, err = answer(capsys, "migrate", "--apply", str(good), str(bad))
    assert code == 2
    assert "migrate: PATH must be a script or a notebook" in err
    assert reason in err
    assert good.read_text() == SCRIPT


def test_a_warning_of_torch_about_an_import_of_the_script_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    def warn(name: str) -> object:
        warnings.warn(name, FutureWarning, stacklevel=2)
        return name

    old = types.ModuleType("torch.old")
    vars(old)["__getattr__"] = warn
    monkeypatch.setitem(sys.modules, "torch.old", old)
    migration = make_migration(_file(tmp_path, f"import torch\nfrom torch.old import name\n{POPULAR}"))
    assert "from pseudograd.familiar import ClampWithGrad" in migration.after
    assert [str(warning.message) for warning in recwarn if warning.category is FutureWarning] == []


def test_what_is_read_of_a_script_is_written_out() -> None:
    """The parts that decide what stays: imports, names, shapes, decorators and uses."""
    names = {**vars(hints), **vars(edit), **vars(classes), "ast": ast, "Path": Path}
    names["only"] = lambda text: ast.parse(text).body[0]
    names["method"] = lambda text: ast.parse(f"class C:\n  def forward(ctx, x):\n    {text}").body[0]
    assert_written(Path(__file__).with_name("parts.txt"), names)
