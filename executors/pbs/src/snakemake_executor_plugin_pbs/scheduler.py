"""What an executor needs of Snakemake's scheduler and is not given: when it stops, that it can be
stopped at any instant, and how a job is not tried again."""

import _thread
import signal
import threading
from collections.abc import Callable
from typing import Any

STOPPED = "Snakemake was told to stop"


def stop_without_deadlock(withdraw: Callable[[str], None]) -> None:
    """Let SIGTERM be answered in a thread, and call `withdraw` with the reason first.

    Snakemake's handler takes a lock that the thread it interrupts may hold, while jobs are chosen
    or their outputs are awaited: it would wait for itself, for ever.
    """
    handler = signal.getsignal(signal.SIGTERM)
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        return
    known = handler

    def answer(number: int) -> None:
        withdraw(STOPPED)
        known(number, None)

    signal.signal(
        signal.SIGTERM, lambda number, _frame: _thread.start_new_thread(answer, (number,))
    )


def stop_reason(scheduler: Any) -> str:
    """Why no more jobs are taken, "" while they are. The scheduler then waits for every job that it
    has handed out, also for those that were never submitted."""
    if getattr(scheduler, "_user_kill", None):
        return STOPPED
    if getattr(scheduler, "_errors", False) and not getattr(scheduler, "keepgoing", True):
        return "Snakemake stops, since another job has failed"
    return ""


def fail_for_good(job: Any) -> None:
    """Let a job that fails now not be tried again.

    Snakemake tries again while restart_times > attempt - 1. The property `attempt` would also
    evaluate the job's resources anew, and the scheduler would then take back other amounts than it
    gave.
    """
    job._attempt = max(job.attempt, job.restart_times + 1)
