"""Call a scheduler's command so that it never hangs and never sees a Ctrl-C."""

import contextlib
import os
import signal
import subprocess
from typing import NamedTuple


class Called(NamedTuple):
    """Exit code and output of a command; no code where it gave no answer or could not start."""

    code: int | None
    out: str
    err: str


def call(*words: str, timeout: float, stdin: str = "") -> Called:
    """Run a command in a session of its own, and kill that after `timeout` seconds."""
    try:
        process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        # no more processes for this user: login nodes have such limits; it passes
        return Called(None, "", f"could not be started: {error}")
    try:
        out, err = process.communicate(stdin, timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):  # a child may have left the session
            process.communicate(timeout=1)
        return Called(None, "", f"no answer within {timeout:g} s")
    return Called(process.returncode, out, err)
