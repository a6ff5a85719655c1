"""Set-up for all tests."""

import signal

# Background processes of a script ignore SIGINT, and their children inherit this. Tests need SIGINT.
signal.signal(signal.SIGINT, signal.default_int_handler)
