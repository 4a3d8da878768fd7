"""For all tests: signals as a terminal has them."""

import signal

# what starts the tests in the background may ignore it, and so would all that the tests start
signal.signal(signal.SIGINT, signal.default_int_handler)
