"""Workarounds for what every cluster executor meets in Snakemake 9.

Arguments of jobs are quoted as Python writes them, SIGTERM can wait for a lock for ever, a Ctrl-C
within a message is lost, and a job can't be told not to be tried again.
"""

import _thread
import contextlib
import logging
import os
import shlex
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

from snakemake_interface_executor_plugins import utils

_BETWEEN_MESSAGES = 0.05  # seconds until a Ctrl-C that met a message is sent once more
_quoting = threading.Lock()  # several threads may submit, and the function is there once


@contextlib.contextmanager
def quoted_for_the_shell() -> Iterator[None]:
    """Quote the arguments that Snakemake formats within this context as a shell reads them.

    Python's repr, which Snakemake uses, changes a path that has ' beside one of $ " \\ or `. Texts
    that are in quotes already keep them.
    """

    def value_for_the_shell(value: Any, quote: bool = False, base64_encode: bool = False) -> str:
        if isinstance(value, str) and quote and not base64_encode and not _is_quoted(value):
            return shlex.quote(value)
        return str(original(value, quote, base64_encode))

    with _quoting:
        original = utils.format_cli_value
        utils.format_cli_value = value_for_the_shell
        try:
            yield
        finally:
            utils.format_cli_value = original


def _is_quoted(text: str) -> bool:
    """Return whether a shell reads all of a text as one word in quotes."""
    try:
        return text[:1] in {"'", '"'} and text[0] == text[-1] and len(shlex.split(text)) == 1
    except ValueError:
        return False


def stop_without_deadlock() -> None:
    """Answer SIGTERM in a thread of its own.

    Snakemake's handler takes a lock that the thread it interrupts may hold, while jobs are chosen
    or their outputs are awaited: it would wait for itself, for ever.
    """
    stop = signal.getsignal(signal.SIGTERM)
    if callable(stop) and threading.current_thread() is threading.main_thread():
        signal.signal(
            signal.SIGTERM, lambda number, _: _thread.start_new_thread(stop, (number, None))
        )


def interrupt_for_certain() -> None:
    """Let a Ctrl-C that comes while Snakemake writes a message take effect after that message.

    Snakemake drops a KeyboardInterrupt in it (`ColorizingTextHandler.emit`), and the run would go
    on.
    """
    interrupt = signal.getsignal(signal.SIGINT)
    if not callable(interrupt) or threading.current_thread() is not threading.main_thread():
        return

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
    evaluate the job's resources again, and the scheduler would take back others than it gave.
    """
    job._attempt = max(job.attempt, job.restart_times + 1)
