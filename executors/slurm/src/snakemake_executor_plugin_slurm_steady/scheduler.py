"""What an executor needs of Snakemake's scheduler and is not given: that it can be stopped at any
instant, by either signal, and how a job is not tried again."""

import _thread
import logging
import os
import signal
import threading
import time
from types import FrameType
from typing import Any

_BETWEEN_MESSAGES = 0.05  # seconds until a Ctrl-C that met a message is sent once more


def stop_without_deadlock() -> None:
    """Let SIGTERM be answered in a thread.

    Snakemake's handler takes a lock that the thread it interrupts may hold, while jobs are chosen
    or their outputs are awaited: it would wait for itself, for ever.
    """
    known = signal.getsignal(signal.SIGTERM)
    if not callable(known) or threading.current_thread() is not threading.main_thread():
        return
    signal.signal(
        signal.SIGTERM, lambda number, _: _thread.start_new_thread(known, (number, None)) and None
    )


def interrupt_for_certain() -> None:
    """Let a Ctrl-C that comes while Snakemake writes a message take effect after that message.

    Snakemake drops a KeyboardInterrupt in it (`ColorizingTextHandler.emit`), and the run would go
    on.
    """
    known = signal.getsignal(signal.SIGINT)
    if not callable(known) or threading.current_thread() is not threading.main_thread():
        return
    interrupt = known

    def again(number: int) -> None:
        time.sleep(_BETWEEN_MESSAGES)
        os.kill(os.getpid(), number)

    def handler(number: int, frame: FrameType | None) -> None:
        within = frame
        while within is not None and within.f_code is not logging.Handler.handle.__code__:
            within = within.f_back
        if within is None:
            interrupt(number, frame)
        else:
            _thread.start_new_thread(again, (number,))

    signal.signal(signal.SIGINT, handler)


def fail_for_good(job: Any) -> None:
    """Let a job that fails now not be tried again.

    Snakemake tries again while restart_times > attempt - 1. The property `attempt` would also
    evaluate the job's resources anew, and the scheduler would take back others than it gave.
    """
    job._attempt = max(job.attempt, job.restart_times + 1)
