"""The signals that stop a job in order: SIGTERM of schedulers, SIGINT of Ctrl-C."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def on_stop(call: Callable[[], object]) -> Iterator[None]:
    """Have these signals call a function, in the main thread, while the `with` block lasts."""
    before = {
        number: signal.signal(number, lambda *_: call())
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
