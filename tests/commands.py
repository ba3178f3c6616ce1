"""The command line as a test calls it."""

import pytest

from pseudograd.cli import main


def answer(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """The exit status, and what stood on both streams."""
    try:
        code = main(arguments)
    except SystemExit as stop:
        code = int(stop.code or 0)
    shown = capfd.readouterr()
    return code, shown.out, shown.err
