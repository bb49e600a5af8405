"""`python -m gedppl` is the command line."""

import sys

from gedppl.study.cli import main

if __name__ == "__main__":
    sys.exit(main())
