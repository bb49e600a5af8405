"""`python -m gedppl` is the command line."""

import sys

from gedppl.cli import main

if __name__ == "__main__":
    sys.exit(main())
