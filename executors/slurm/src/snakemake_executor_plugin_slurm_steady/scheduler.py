"""What an executor needs of Snakemake's scheduler and is not given: that it can be stopped at any
instant, and how a job is not tried again."""

import _thread
import signal
import threading
from typing import Any


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


def fail_for_good(job: Any) -> None:
    """Let a job that fails now not be tried again.

    Snakemake tries again while restart_times > attempt - 1. The property `attempt` would also
    evaluate the job's resources anew, and the scheduler would take back others than it gave.
    """
    job._attempt = max(job.attempt, job.restart_times + 1)
