"""SIGTERM, which Snakemake answers with a lock that it may hold, and SIGINT, which its messages
drop."""

import logging
import os
import signal
import threading
import time

import pytest

from snakemake_executor_plugin_slurm_steady.controller import PATIENCE, Controller
from snakemake_executor_plugin_slurm_steady.scheduler import (
    interrupt_for_certain,
    stop_without_deadlock,
)


def test_sigterm_is_answered_while_the_interrupted_thread_holds_the_lock() -> None:
    """As Snakemake's scheduler does while it awaits outputs or chooses jobs."""
    lock, stopped = threading.Lock(), threading.Event()

    def exit_gracefully(*_: object) -> None:
        with lock:
            stopped.set()

    before = signal.signal(signal.SIGTERM, exit_gracefully)
    try:
        stop_without_deadlock()
        with lock:
            os.kill(os.getpid(), signal.SIGTERM)
            assert not stopped.wait(0.2)
        assert stopped.wait(300)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_process_without_a_handler_keeps_none() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        stop_without_deadlock()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


class _Swallows(logging.Handler):
    """Drops a Ctrl-C within a message, as Snakemake's own handler does."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            record.msg = "written"
        except KeyboardInterrupt:
            record.msg = "cut"


def test_ctrl_c_within_a_message_comes_after_it() -> None:
    before = signal.getsignal(signal.SIGINT)
    record = logging.makeLogRecord({"msg": ""})
    try:
        interrupt_for_certain()
        _Swallows().handle(record)
        with pytest.raises(KeyboardInterrupt):
            time.sleep(300)
    finally:
        signal.signal(signal.SIGINT, before)
    assert record.msg == "written"


def test_a_submission_that_waits_for_the_controller_ends_when_the_run_is_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    module = "snakemake_executor_plugin_slurm_steady.controller"
    monkeypatch.setattr(f"{module}._answers", lambda: False)
    controller, began = Controller(logging.getLogger("snakemake")), time.monotonic()

    def give_up_once_it_waits() -> None:
        while "waiting to submit" not in caplog.text:
            time.sleep(0.05)
        controller.give_up()

    threading.Thread(target=give_up_once_it_waits, daemon=True).start()
    assert not controller.wait()
    assert time.monotonic() - began < PATIENCE / 2
    assert "waiting to submit" in caplog.text
