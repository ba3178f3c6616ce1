"""Where the script `pseudograd` begins: `lint` and `explain` start without torch. Everything else is `pseudograd.cli`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pseudograd_lint.code import Code
from pseudograd_lint.start import alone


def main(arguments: Sequence[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given[:1] in (["lint"], ["explain"]):
        return alone(given, _codes_of_diagnose)
    from pseudograd.cli import main as all_commands

    return all_commands(arguments)


def _codes_of_diagnose() -> Sequence[Code]:
    """None without torch, which the library needs."""
    try:
        from pseudograd.diagnosis.judge.findings import CODES
    except ImportError:
        return ()
    return CODES


if __name__ == "__main__":
    sys.exit(main())
