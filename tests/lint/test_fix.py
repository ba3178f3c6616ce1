"""`pseudograd lint --fix` changes no value and no finite gradient, writes whole files, and leaves alone what it cannot mend exactly."""

import os
from pathlib import Path

import pytest
import torch

from pseudograd_lint.fix import fix_text

from ..choices import folded
from ..commands import answer as run

HEAD = "import torch  # a loss\n\n\ndef f(x, y, low=0.0):\n    return "
MENDED = {
    "torch.where(x > 0, torch.log(x), 0)": "torch.where(x > 0, torch.log(torch.where(x > 0, x, 1)), 0)",
    "torch.where(x == 0, 0, y / x)": "torch.where(x == 0, 0, y / torch.where(x == 0, 1, x))",
    "torch.where(x > 0, x * x.sqrt(), x)": "torch.where(x > 0, x * torch.where(x > 0, x, 1).sqrt(), x)",
    "torch.where(0 < x - 1, -1 / (x - 1), 0)": "torch.where(0 < x - 1, -1 / (torch.where(0 < x - 1, x - 1, 1)), 0)",
    "torch.where(x > 0, x ** 0.5 / 3, x) + y": "torch.where(x > 0, torch.where(x > 0, x, 1) ** 0.5 / 3, x) + y",
    "torch.where(x < 1, torch.acos(x), 0)": "torch.where(x < 1, torch.acos(torch.where(x < 1, x, 0)), 0)",
    "torch.where(x > 1, torch.acosh(x), 0)": "torch.where(x > 1, torch.acosh(torch.where(x > 1, x, 2)), 0)",
    "torch.where(x > 0, torch.log(x) / x, 0)": "torch.where(x > 0, torch.log(torch.where(x > 0, x, 1)) / torch.where(x > 0, x, 1), 0)",
}
LEFT = [
    "torch.where(x > low, torch.log(x), 0)",
    "torch.where(x > 0, y / torch.log(x), 0)", "torch.where(x > y, torch.log(x), 0)", "torch.where(y[0](x) > 0, torch.log(y[0](x)), 0)",
    "torch.where(x.abs() > 0, 1 / x, 0)", "torch.where(x > 0, x.sqrt().exp(), 0)", "torch.nan_to_num(x.log())", "x.sqrt().clamp(min=1)",
    "torch.where(x > 0, (x * 1).log_() + x.log(), 0)", "torch.where(y > 0, y.log_(), 0)",
]  # fmt: skip


def call_of(expression: str) -> tuple[int, str]:
    return 5, expression.removesuffix(" + y")


def gradients(expression: str, dtype: torch.dtype) -> list[torch.Tensor]:
    """The value, and the gradients of x and y."""
    edges = torch.tensor([-1.0, -0.0, 0.0, 1.0, 2.0, torch.inf, torch.nan], dtype=dtype)
    x = torch.cat([edges, torch.linspace(-3, 3, 50, dtype=dtype)]).requires_grad_()
    y = torch.full_like(x, 0.7, requires_grad=True)
    value = eval(expression, {"torch": torch, "x": x, "y": y})
    gradients = torch.autograd.grad(value, (x, y), torch.linspace(-1, 1, len(x), dtype=dtype), allow_unused=True)
    return [value, *(torch.zeros_like(x) if gradient is None else gradient for gradient in gradients)]


@folded
@pytest.mark.parametrize("expression", [*MENDED, *LEFT])
def test_a_mend_changes_no_value_and_no_finite_gradient(expression: str) -> None:
    text = f"{HEAD}{expression}\n"
    mended = fix_text(text, [call_of(expression)])
    assert mended == f"{HEAD}{MENDED.get(expression, expression)}\n"
    assert fix_text(mended, [call_of(MENDED.get(expression, expression))]) == mended
    assert fix_text(text, [(4, expression)]) == text
    if expression in MENDED:
        for dtype in (torch.float32, torch.float64, torch.float16):
            before, after = gradients(expression, dtype), gradients(MENDED[expression], dtype)
            assert torch.equal(before[0].nan_to_num(7), after[0].nan_to_num(7))
            for old, new in zip(before[1:], after[1:], strict=True):
                assert torch.equal(old[old.isfinite()], new[old.isfinite()])
            assert sum(new.isfinite().sum() for new in after) > sum(old.isfinite().sum() for old in before)


TEXT = "import torch  # löss\r\ndef f(x):\r\n    return 'ü', torch.where(x > 0, torch.log(x), 0)\r\n"
HEADS = {"utf-8": "", "utf-8-sig": "", "latin-1": "# coding: latin-1\r\n"}


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("encoding", HEADS)
def test_a_file_keeps_its_encoding_line_ends_mode_and_links(encoding: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Again it has nothing to mend; what is muted, ignored or not selected stays."""
    text = HEADS[encoding] + TEXT
    Path("real.py").write_bytes(text.encode(encoding))
    Path("real.py").chmod(0o750)
    Path("a.py").symlink_to("real.py")
    for options in ("--ignore a.py", "--ignore PG104,a.py"):
        run(capsys, "lint", "a.py", "--fix", "--select", "PG104,PG101", *options.split())
        assert Path("a.py").read_bytes() == text.encode(encoding)
    assert run(capsys, "lint", "a.py", "--fix", "--select", "PG104")[::2] == (0, "lint: files mended: 1\n")
    mended = text.replace("log(x)", "log(torch.where(x > 0, x, 1))")
    assert Path("real.py").read_bytes() == mended.encode(encoding)
    assert Path("a.py").is_symlink()
    assert Path("real.py").stat().st_mode & 0o777 == 0o750
    assert run(capsys, "lint", "a.py", "--fix", "--select", "PG104")[::2] == (0, "lint: files mended: 0\n")
    assert sorted(os.listdir()) == ["a.py", "real.py"]


def test_what_cannot_be_mended_is_left(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is no Python, one whose folder cannot be written, other codes, and the standard input."""
    text = TEXT.replace("löss", "loss").replace("ü", "u").replace("\r", "")
    Path("a.py").write_text(text)
    Path("broken.py").write_text(text + "def (:\n")
    with monkeypatch.context() as patch:
        patch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        status, _, err = run(capsys, "lint", "a.py", "--fix", "--select", "PG104")
    assert (status, err) == (
        2,
        "pseudograd: lint: a.py must be a file that can be written, got 'No space left on device'. Nothing in it changed; "
        "see that its folder can be written.\n",
    )
    assert Path("a.py").read_text() == text
    assert sorted(os.listdir()) == ["a.py", "broken.py"]
    assert run(capsys, "lint", "broken.py", "--fix", "--select", "PG104")[0] == 2
    assert Path("broken.py").read_text() == text + "def (:\n"
    for arguments, got in (("a.py --fix", "other codes"), ("- --fix --select PG104", "the standard input")):
        status, _, err = run(capsys, "lint", *arguments.split())
        must = f"--fix must go with files and --select PG104, got {got}. No other code has an exact mend."
        assert (status, err) == (2, f"pseudograd: lint: {must}\n")
