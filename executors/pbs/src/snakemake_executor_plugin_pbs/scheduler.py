"""What an executor needs of Snakemake's scheduler and is not given: when it stops, that it can be
stopped at any instant, and how a job is not tried again."""

import _thread
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

_BETWEEN_MESSAGES = 0.05  # seconds until a signal that met a message is sent once more

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


def after_messages(
    answer: Callable[[int, FrameType | None], Any],
) -> Callable[[int, FrameType | None], None]:
    """A handler that calls `answer`, but after the message that is just being written.

    Snakemake drops a KeyboardInterrupt that comes within one (`ColorizingTextHandler.emit`): the
    run would go on. A message from there would wait for itself, for ever.
    """

    def again(number: int) -> None:
        time.sleep(_BETWEEN_MESSAGES)
        os.kill(os.getpid(), number)

    def handler(number: int, frame: FrameType | None) -> None:
        within = frame
        while within is not None and within.f_code is not logging.Handler.handle.__code__:
            within = within.f_back
        if within is None:
            answer(number, frame)
        else:
            _thread.start_new_thread(again, (number,))

    return handler


def interrupt_for_certain() -> None:
    """Let no Ctrl-C be lost that comes while Snakemake writes a message."""
    handler = signal.getsignal(signal.SIGINT)
    if callable(handler) and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, after_messages(handler))


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
