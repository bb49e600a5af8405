"""What every test starts from."""

import signal

# A shell starts its background jobs with interrupts ignored, and processes inherit that: tests that interrupt need them.
signal.signal(signal.SIGINT, signal.default_int_handler)
