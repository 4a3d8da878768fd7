"""Failures of a campaign: a step that fails ends its log with an error."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from plm_embed.io.files import whole_files
from plm_embed.jobs.completion_record import FOLDER as RECORDS
from plm_embed.wording import count
from plm_embed.workflow.run_note import read_run

AGAIN = "Fix the problem and rerun the same command; finished work is kept."
_ERROR = re.compile("plm-embed: (?:error|unfinished): |^Error: ", re.M)
"""The program's errors, and the command line's about an argument."""


@dataclass(frozen=True)
class Failure:
    """A step that ended with an error: its log and the reason in it."""

    log: Path
    reason: str


def failures(results: Path, models: Iterable[str], since: int = 0) -> list[Failure]:
    """Return the steps whose log ends with an error, the latest last, but not finished buckets.

    since: the time of a run, in nanoseconds; older logs are of earlier ones.
    """
    logs = whole_files(results / "logs", "deduplicate.log")
    for model in models:
        folder = results / "logs" / model
        done = {path.stem for path in whole_files(results / model / RECORDS, "*.json")}
        buckets = whole_files(folder / "embed", "*.log")
        logs += [*whole_files(folder, "*.log"), *(log for log in buckets if log.stem not in done)]
    logs = sorted((log for log in logs if changed(log) >= since), key=changed)
    return [Failure(log, reason) for log in logs if (reason := error_at_the_end(log))]


def run_failure(results: Path, since: int = 0) -> list[Failure]:
    """Return why the last run of Snakemake failed, if it did; since: as for `failures`."""
    run = read_run(results)
    failed = run and run.failure and changed(Path(run.log)) >= since
    return [Failure(Path(run.log), run.failure)] if run and failed else []


def alike(failures: Iterable[Failure]) -> Iterator[tuple[Failure, str]]:
    """Yield the first of the failures whose reasons differ by numbers alone, and ' (and 3 similar
    steps)' or ''.
    """
    causes: dict[str, list[Failure]] = {}
    for failure in failures:
        causes.setdefault(re.sub(r"\d+", "", failure.reason), []).append(failure)
    for first, *more in causes.values():
        yield first, f" (and {count(len(more), 'similar step')})" if more else ""


def error_at_the_end(log: Path) -> str:
    """Return the first two lines of the error that a log ends with; '' when it ends otherwise."""
    if not log.is_file():
        return ""
    tail = log.read_bytes()[-(1 << 16) :].decode("utf-8", "replace").strip()
    if _ERROR.search(tail):
        error = "\n".join(_ERROR.split(tail)[-1].strip().splitlines()[:2])
        return "" if "stopped by a signal" in error else error  # somebody stopped the run
    return tail.splitlines()[-1] if "Traceback (most recent call last)" in tail else ""


def changed(path: Path) -> int:
    """Return when a file was changed, in nanoseconds; 0 where there is none."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
