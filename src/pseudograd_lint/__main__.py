"""`python -m pseudograd_lint PATHS` is `pseudograd lint PATHS`, also from a checkout that nobody installed."""

import sys

from pseudograd_notices.command_line import main

sys.exit(main(["lint", *sys.argv[1:]]))
