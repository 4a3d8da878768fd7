"""A retry asks for more time only after a time limit, for more memory only when that ran out, never
for more than the site gives; and what is of no use is not tried again.

Snakemake tells the functions and expressions of resources only the number of the attempt. Executors
say why a job failed in `aux` of what they report: "cause" is "time", "memory" or "refused" (for
good), "at_most" what the partition or queue gives at most, in minutes or MB, "said" the reason in
words. The main process takes that down for its jobs, which ask the same functions.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

from plm_embed.io.files import last_bytes
from plm_embed.typed_json import from_json, to_plain
from plm_embed.workflow.failures import error_at_the_end

CAUSES = {"runtime": "time", "mem_mb": "memory"}
"""What must have been short for a resource to grow."""
USERS_ERROR = b"plm-embed: error: "
"""A log with a line that begins so says what a user has to mend; see `cli.main`."""
TAIL_BYTES = 65536
WITHDRAWN = "withdrawn"
"""What an executor says of a job that it did not submit, because the run ends: it did not fail."""
REASONS: dict[Path, str] = {}
"""Why jobs of this run failed in the end, as their executor says it, by the logs of their rules."""
_NOTES: dict[str, Path] = {}
"""The notes of each rule, by its name; none of rules of a workflow that uses this one as a module.
"""


@dataclass(frozen=True)
class AttemptFailure:
    """Why an attempt of a job failed: a line of the notes."""

    job: str
    """Rule and wildcards, as `_job` writes them."""
    attempt: int
    """From 1, of the run that noted it."""
    cause: str
    """time, memory, or '' where the executor does not know."""
    at_most: int | None
    """What the partition or queue gives at most, in minutes or MB."""


def by_cause(rules: Iterable[Any], notes: Path) -> None:
    """Have `attempt` in the resources of Snakemake's `rules` count only attempts that failed for
    their lack.

    So `240 * attempt` minutes, in a rule or a profile, become 480 after one time limit, whatever
    else had failed.
    """
    for rule in rules:
        _NOTES[rule.name] = notes
        for name in CAUSES.keys() & rule.resources.keys():
            if rule.resources[name].is_evaluable():
                rule.resources[name] = _counted(rule.resources[name], name, notes)


def _counted(resource: Any, name: str, notes: Path) -> Any:
    def value(wildcards: Any, **others: Any) -> Any:
        attempt = others.pop("attempt")
        failures: Iterable[AttemptFailure] = ()
        if attempt > 1:  # the first is asked of every job of a plan
            failures = _failures(notes, _job(others["rulename"], dict(wildcards.items())))
        short = [note for note in failures if note.attempt < attempt and note.cause == CAUSES[name]]
        asked = resource.evaluate(wildcards, attempt=1 + len(short), **others).value
        limits = [note.at_most for note in short if note.at_most]
        return min([asked, *limits]) if isinstance(asked, int) else asked

    return type(resource)(name, value, raw=resource.raw)


def _job(rule: str, wildcards: Mapping[str, str]) -> str:
    return json.dumps([rule, dict(sorted(wildcards.items()))])


def _failures(notes: Path, job: str) -> Iterable[AttemptFailure]:
    """What was noted of a job, the newest for each attempt: a later run counts its attempts from 1
    again.
    """
    found: dict[int, AttemptFailure] = {}
    with suppress(FileNotFoundError):
        for line in notes.read_text(encoding="utf-8").splitlines():
            with suppress(ValueError):  # of a line that a full disk has cut
                note = from_json(AttemptFailure, line)
                if note.job == job:
                    found[note.attempt] = note
    return found.values()


def watch_failures(executor: Any, real_executor: Any) -> None:
    """Take down for each failed job why it failed, and end its retries where they are of no use.

    `executor` and `real_executor` are the classes from which Snakemake's executors derive; whatever
    fails a job calls the method of the first, or, like a missing output, only that of the second.
    """
    if hasattr(executor.report_job_error, "__wrapped__"):
        return
    report, handle = executor.report_job_error, real_executor.handle_job_error
    told: dict[Any, dict[str, Any]] = {}

    @wraps(report)
    def report_job_error(self: Any, job_info: Any, *words: Any, **more: Any) -> None:
        told[job_info.job] = job_info.aux or {}
        report(self, job_info, *words, **more)

    @wraps(handle)
    def handle_job_error(self: Any, job: Any) -> None:
        handle(self, job)
        why = told.pop(job, {})
        notes = next(filter(None, map(_NOTES.get, job.rules)), None)
        if notes is None:
            return
        reason = _reason(why, job)
        refused = why.get("cause") == "refused"  # which the executor has told, once for all jobs
        words = "" if refused else f": {reason or _last_words(job.log, notes)}"
        said = f"plm-embed: {_name(job)} failed{words}"
        hopeless = refused or _users_error(job.log, notes)
        again = job.restart_times >= job.attempt and not hopeless
        if again:
            said += "; it is tried again"
        elif hopeless and job.restart_times:
            said += "; it is not tried again: it would fail in the same way"
        if why.get("said") != WITHDRAWN:
            self.logger.info(said)
        if reason and not again:
            REASONS.update(dict.fromkeys(map(Path, job.log), reason))
        if hopeless:
            job.attempt = job.restart_times + 1  # Snakemake tries again as long as it is not above
        elif not job.is_group():
            note = AttemptFailure(
                job=_job(job.rule.name, job.wildcards_dict),
                attempt=job.attempt,
                cause=why.get("cause", ""),
                at_most=why.get("at_most"),
            )
            # without its note, on a full disk, the next attempt asks for the same
            with suppress(OSError), notes.open("a", encoding="utf-8") as lines:
                lines.write("\n" + json.dumps(to_plain(note)))

    executor.report_job_error, real_executor.handle_job_error = report_job_error, handle_job_error


def _name(job: Any) -> str:
    """embed 0003; of a group, its own name."""
    return " ".join([job.name, *([] if job.is_group() else job.wildcards_dict.values())])


def _reason(why: Mapping[str, Any], job: Any) -> str:
    """Why an attempt failed, as its executor knows it; '' when only its log may say it."""
    if why.get("cause") == "time" and (minutes := job.resources.get("runtime")):
        return f"the time limit of {minutes} minutes was over"
    if why.get("cause") == "memory" and (megabytes := job.resources.get("mem_mb")):
        return f"it needed more than the {megabytes:,} MB that it asked for"
    said = str(why.get("said", ""))
    return "" if said == WITHDRAWN else said


def _last_words(logs: Iterable[Any], notes: Path) -> str:
    """The error that the log ends with, on one line."""
    for log in _of_this_run(logs, notes):
        with suppress(OSError):  # on a shared file system it may be gone by now
            if found := error_at_the_end(log):
                return " ".join(found.split())
    return "without a word in its log"


def _users_error(logs: Iterable[Any], notes: Path) -> bool:
    """Whether a log that is younger than this run ends with what a user has to mend."""
    for log in _of_this_run(logs, notes):
        with suppress(OSError):
            lines = last_bytes(log, TAIL_BYTES).split(b"\n")
            if any(line.startswith(USERS_ERROR) for line in lines):
                return True
    return False


def _of_this_run(logs: Iterable[Any], notes: Path) -> Iterator[Path]:
    """Logs that are there and younger than this run."""
    began = notes.with_suffix(".json").stat().st_mtime
    for log in map(Path, logs):
        try:
            younger = log.stat().st_mtime >= began
        except FileNotFoundError:
            continue
        if younger:
            yield log
