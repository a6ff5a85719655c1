"""What all tests need."""

import signal

# Where tests run in the background of a script, SIGINT is ignored, by Python and by what it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)
