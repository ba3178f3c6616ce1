"""`python -m pseudograd` is the command `pseudograd`."""

import sys

from .cli import main

sys.exit(main())
