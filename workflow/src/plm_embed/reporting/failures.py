"""Failures of a campaign: a step that fails ends its log with an error."""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from plm_embed.io.files import last_bytes, whole_files
from plm_embed.jobs.completion_record import FOLDER as RECORDS

AGAIN = "Fix the problem and give the same command again; finished work is kept"
STOPPED = "stopped by a signal"
"""The words of embed jobs when somebody stopped the run."""
_TAIL_BYTES = 4096
_ERROR = re.compile("plm-embed: (?:error|unfinished): |^Error: ", re.M)
"""Ours, and the command line's about an argument, such as a path that is not there."""


@dataclass(frozen=True)
class Failure:
    """A step that ended with an error: its log and the reason in it."""

    log: Path
    reason: str


def reading_logs(results: Path) -> list[Path]:
    """Return the logs of the steps that read the input."""
    return whole_files(results / "logs", "deduplicate.log")


def model_logs(results: Path, model: str) -> list[Path]:
    """Return the logs of the steps of one model, without those of finished buckets."""
    logs = results / "logs" / model
    done = {path.stem for path in whole_files(results / model / RECORDS, "*.json")}
    embed = (path for path in whole_files(logs / "embed", "*.log") if path.stem not in done)
    return [*whole_files(logs, "*.log"), *embed]


def failures(results: Path, models: Iterable[str]) -> list[Failure]:
    """Return the steps whose log ends with an error, the first one first."""
    logs = [*reading_logs(results), *(log for one in models for log in model_logs(results, one))]
    found: list[tuple[int, Failure]] = []
    for log in logs:
        with suppress(FileNotFoundError):
            if reason := error_at_the_end(log):
                found.append((log.stat().st_mtime_ns, Failure(log, reason)))
    return [failure for _, failure in sorted(found, key=lambda one: one[0])]


def alike(found: Sequence[Failure]) -> Iterator[list[Failure]]:
    """Yield failures that say the same, but for the numbers in it; in the order of the first of
    each.
    """
    causes: dict[str, list[Failure]] = {}
    for failure in found:
        causes.setdefault(re.sub(r"\d+", "", failure.reason), []).append(failure)
    yield from causes.values()


def error_at_the_end(log: Path) -> str:
    """Return the first two lines of the error that a log ends with; '' when it ends otherwise."""
    tail = last_bytes(log, _TAIL_BYTES).decode("utf-8", "replace")
    if _ERROR.search(tail):
        return "\n".join(_ERROR.split(tail)[-1].strip().splitlines()[:2])
    if "Traceback (most recent call last)" in tail:
        return tail.strip().splitlines()[-1]
    return ""


def last_line(log: Path) -> str:
    """Return the last line of a log; '' while there is nothing but the command."""
    lines = last_bytes(log, _TAIL_BYTES).decode("utf-8", "replace").strip().splitlines()
    return lines[-1].strip() if lines and not lines[-1].startswith("#") else ""
