"""Where the script `pseudograd` begins: the command line, which imports torch only for a command that needs it."""

import sys

from pseudograd_notices.command_line import main

if __name__ == "__main__":
    sys.exit(main())
