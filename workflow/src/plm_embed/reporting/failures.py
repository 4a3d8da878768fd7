"""Failures of a campaign: a step that fails ends its log with an error."""

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from plm_embed.io.files import last_bytes, whole_files

AGAIN = "Fix the problem and rerun the same command; finished work is kept."
_STOPPED = "stopped by a signal"
"""The error of embed jobs in a run that somebody stopped."""
_ERROR = re.compile("plm-embed: (?:error|unfinished): |^Error: ", re.M)
"""The program's errors, and the command line's about an argument."""


@dataclass(frozen=True)
class Failure:
    """A step that ended with an error: its log and the reason in it."""

    log: Path
    reason: str


def failures(results: Path, model: str, finished: Collection[str]) -> list[Failure]:
    """Return the steps of a model whose log ends with an error, the latest last.

    finished: buckets that need no attempt any more.
    """
    logs = results / "logs"
    of_buckets = whole_files(logs / model / "embed", "*.log") if model else []
    of_steps = whole_files(logs / model, "*.log") if model else []
    unfinished = [log for log in of_buckets if log.stem not in finished]
    reasons = {
        log: error_at_the_end(log)
        for log in (*whole_files(logs, "deduplicate.log"), *of_steps, *unfinished)
    }
    failed = [Failure(log, reason) for log, reason in reasons.items() if reason]
    return sorted(failed, key=lambda failure: changed(failure.log))


def error_at_the_end(log: Path) -> str:
    """Return the first two lines of the error that a log ends with; '' when it ends otherwise."""
    tail = _tail(log)
    if _ERROR.search(tail):
        error = "\n".join(_ERROR.split(tail)[-1].strip().splitlines()[:2])
        return "" if _STOPPED in error else error
    return tail.splitlines()[-1] if "Traceback (most recent call last)" in tail else ""


def last_line(log: Path) -> str:
    """Return the last line of a log; '' while there is nothing but the command."""
    line = _tail(log).rpartition("\n")[2].strip()
    return "" if line.startswith("#") else line


def changed(path: Path) -> int:
    """Return when a file was changed, in nanoseconds; 0 where there is none."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _tail(log: Path) -> str:
    try:
        return last_bytes(log, 4096).decode("utf-8", "replace").strip()
    except FileNotFoundError:
        return ""
