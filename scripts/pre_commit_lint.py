#!/usr/bin/env python3
"""`pseudograd lint` for pre-commit, which runs this file in a clone. Neither the library nor torch is installed there."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from pseudograd_notices.command_line import main

sys.exit(main(["lint", *sys.argv[1:]]))
