"""`python -m pseudograd_lint PATHS` is `pseudograd lint PATHS`, also from a checkout that nobody installed."""

import sys

from .start import alone

sys.exit(alone(["lint", *sys.argv[1:]]))
