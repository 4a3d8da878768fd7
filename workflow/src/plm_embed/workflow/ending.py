"""What a run says last: the result, the report and the next command; or the one cause of a failure.

Three lines each, for the screen on which Snakemake has said much more.
"""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from plm_embed.errors import PlmEmbedError
from plm_embed.master.attributes import gathered_from, is_of
from plm_embed.master.gather_record import read_record
from plm_embed.master.validation_record import PROOF, VALIDATION, Validation, read_validation
from plm_embed.reading.find import GATHERED
from plm_embed.sequences.summary import Summary, known_summary
from plm_embed.store.replaced import stored_vectors
from plm_embed.store.reuse import differing
from plm_embed.workflow.failures import Failure, alike, failures
from plm_embed.workflow.run_note import began_at, note_end

REPORT = "report.html"
REFERENCE = "reference.npz"
STOPS = {
    "Terminating processes on user request": "stopped by you (Ctrl-C)",
    "Will exit after finishing currently running jobs": "stopped by SIGTERM",
}
"""What Snakemake's log says of a run that did not end by itself, and what that was."""
AGAIN = "when it is mended, run the same command again: what is finished stays"


def said_of_success(
    results: Path,
    models: Sequence[str],
    known: Mapping[str, Mapping[str, object]] | None = None,
    *,
    inputs_changed: bool = False,
) -> Iterator[str]:
    """Lines about a run without a failure. What was not asked for may still be open.

    known: by model what was asked for, as fields of the fingerprint. inputs_changed: since they
    were read.
    """
    summary = known_summary(results / "sequences")
    proven = [
        model
        for model in models
        if (results / model / PROOF).is_file()
        and not inputs_changed
        and not _stale(results / model, summary)
        and not _otherwise(results / model, (known or {}).get(model, {}))
    ]
    for model in proven:
        yield _line("result", _result(results / model, named=len(models) > 1))
    for warning in summary.warnings if summary else ():
        yield _line("warning", warning)
    reports = [results / model / REPORT for model in proven]
    if written := [str(path) for path in reports if path.is_file()]:
        yield _line("report", ", ".join(written))
    if len(proven) == len(models):
        yield _line("next", f"plm-embed summary {shlex.quote(str(results))}")
        return
    open_ = ", ".join(model for model in models if model not in proven)
    yield _line(
        "open",
        f"{open_}: no validated result of these sequences and settings yet; this run was asked for "
        "a part only",
    )
    yield _line("next", f"plm-embed watch {shlex.quote(str(results))} --once")


def end_unfinished(
    results: Path,
    stores: Mapping[str, Path],
    logs: Iterable[Path],
    reasons: Mapping[Path, str],
) -> list[str]:
    """Note how a run ended that did not complete, and the lines about it.

    `stores` by model; `logs` of Snakemake; `reasons`: what executors say of jobs that failed, by
    the logs of their rules.
    """
    said = list(said_of_failure(results, stores, began_at(results), reasons))
    if how := _stopped(logs):
        note_end(results, "stopped")
        # of jobs that had failed for good by then
        return [*(said[:1] if reasons else []), *said_of_stop(results, stores, how)]
    note_end(results, "failed", " ".join(said[0].split()[1:]))
    return said


def said_of_stop(results: Path, stores: Mapping[str, Path], how: str) -> Iterator[str]:
    """Lines about a run that somebody stopped: what there is of it, and how it goes on."""
    summary = known_summary(results / "sequences")
    stored = {model: stored_vectors(store) for model, store in stores.items()}
    kept = ", ".join(
        # a store may hold vectors of other inputs, too
        f"{count:,}{f' of {summary.unique:,}' if summary and count <= summary.unique else ''}"
        f" sequences{f' of {model}' * (len(stores) > 1)}"
        for model, count in stored.items()
    )
    yield _line("stopped", f"{how.removeprefix('stopped ')}; stored: {kept}")
    yield _line("next", "give the same command again: it goes on where it was")


def _stopped(logs: Iterable[Path]) -> str:
    for log in logs:
        with suppress(OSError):
            text = log.read_text(encoding="utf-8", errors="replace")
            for words, how in STOPS.items():
                if words in text:
                    return how
    return ""


def said_of_failure(
    results: Path, models: Iterable[str], since_ns: int, reasons: Mapping[Path, str]
) -> Iterator[str]:
    """Lines about a run that failed: what the first step to fail says, and where the rest is.

    What a scheduler says of a job (`reasons`, by log) counts more than its log: of a time limit
    that has no more than a signal.
    """
    found = {failure.log: failure for failure in failures(results, models, since_ns)}
    found |= {log: Failure(log, reason) for log, reason in reasons.items()}
    causes = list(alike(list(found.values())))
    watch = f"plm-embed watch {shlex.quote(str(results))} --once"
    if not causes:
        yield _line(
            "failed",
            "a step ended without a word, as after a kill; what Snakemake says of it is above",
        )
        yield _line("next", "run the same command again: what is finished stays")
        return
    yield _line("failed", f"{_how_many(causes)}{_cause(causes[0])}")
    log = causes[0][0].log
    if log.is_file() and log.stat().st_size:  # a job that was refused has none, or an empty one
        yield _line("log", str(log))
    yield _line("next", f"{AGAIN}; all failures: {watch}" if len(causes) > 1 else AGAIN)


def _how_many(causes: Sequence[Sequence[Failure]]) -> str:
    steps = sum(map(len, causes))
    if steps == 1:
        return ""
    kinds = "for one cause" if len(causes) == 1 else f"for {len(causes)} causes, of which the first"
    return f"{steps} steps, {kinds}: "


def _cause(same: Sequence[Failure]) -> str:
    return same[0].reason.replace("\n", "\n" + " " * _WIDTH)


def _stale(folder: Path, summary: Summary | None) -> bool:
    """Whether a master was gathered from other sequences than are there now."""
    with suppress(PlmEmbedError):  # `_result` says what is wrong with it
        return summary is not None and not all(
            is_of(gathered_from(path), summary) for path in _masters(folder)
        )
    return False


def _otherwise(folder: Path, known: Mapping[str, object]) -> bool:
    """Whether what was validated has other settings than was asked for."""
    with suppress(PlmEmbedError):  # `_result` says what is wrong with it
        validation = read_validation(folder / VALIDATION)
        found = validation.fingerprint if validation else None
        return found is not None and bool(differing(found, known))
    return False


def _masters(folder: Path) -> list[Path]:
    return [folder / name for name in read_record(folder / GATHERED).files if name.endswith(".h5")]


def _result(folder: Path, *, named: bool) -> str:
    try:
        masters = _masters(folder)
        validation = read_validation(folder / VALIDATION)
    except PlmEmbedError as error:
        return str(error)
    counted = _counted(validation) if validation else ""
    return f"{folder.name}: " * named + f"{counted}validated: " + ", ".join(map(str, masters))


def _counted(validation: Validation) -> str:
    counts = validation.counts
    if counts.vectors is None or counts.records is None:
        return ""
    statuses: Mapping[str, int] = counts.statuses or {}
    skipped = statuses.get("skipped", 0)
    left_out = f" ({skipped:,} skipped)" if skipped else ""
    return f"{counts.vectors:,} vectors for {counts.records:,} records{left_out}, "


_WIDTH = 9


def _line(name: str, text: str) -> str:
    return f"{name:<{_WIDTH}}{text}"
