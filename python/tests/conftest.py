"""Set-up for all tests."""

import signal

# In the background of a script, SIGINT is ignored, also by processes that Python starts. Tests need it.
signal.signal(signal.SIGINT, signal.default_int_handler)
