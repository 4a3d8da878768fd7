"""Attempts: a small file for every start of a submission, so that the report can tell retries and
what they cost.

Nothing depends on them: one that cannot be written, or read, is left out. An attempt that was
killed has no end.
"""

import logging
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from plm_embed.io.files import whole_files, write_json
from plm_embed.jobs.gpus import Meter
from plm_embed.sites.scheduler import job_id
from plm_embed.typed_json import IF_KNOWN, from_json, to_plain

log = logging.getLogger(__name__)
FOLDER = "attempts"
"""Beside the folder of the completion records."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """The start of a submission, all that is noted until it ends. Times are ISO 8601, with their
    zone.
    """

    schema_version: Literal[1] = 1
    submission: str
    buckets: tuple[str, ...]
    host: str
    job: str
    """The scheduler's id, or ''."""
    workers: int
    started: str
    store: str = field(default="", metadata=IF_KNOWN)
    """Of the vectors: below the folder of the model, or an absolute path."""


@dataclass(frozen=True, kw_only=True)
class Attempt(Start):
    """One start of a submission, with its end."""

    ended: str = ""
    """'' while it runs and for ever after a kill."""
    outcome: Literal["complete", "failed", "no end"] = "no end"
    reason: str = ""
    """Why it failed, or ''."""
    joules: float | None = None
    """Taken by its GPUs, None where that is not known."""

    @property
    def seconds(self) -> float:
        """Until its end; 0 when that is not known."""
        if not self.ended:
            return 0.0
        return (
            datetime.fromisoformat(self.ended) - datetime.fromisoformat(self.started)
        ).total_seconds()


@contextmanager
def noted(
    records: Path,
    submission: str,
    buckets: Sequence[str],
    store: Path,
    workers: int,
    *,
    energy: Meter | None = None,
) -> Iterator[None]:
    """Note when the block begins, and how and when it ends; `records` is the folder of the
    completion records.
    """
    began = datetime.now(UTC)
    host = socket.gethostname()
    path = records.parent / FOLDER / f"{began:%Y%m%dT%H%M%S%f}-{host}-{os.getpid()}.json"
    start = Start(
        submission=submission,
        buckets=tuple(buckets),
        host=host,
        job=job_id(),
        workers=workers,
        started=began.isoformat(timespec="milliseconds"),
        store=_named(store, records.parent),
    )
    write_attempt(path, start)
    outcome: Literal["complete", "failed"] = "failed"
    reason = ""
    try:
        yield
        outcome = "complete"
    except Exception as error:
        reason = str(error)
        raise
    finally:
        whole = Attempt(
            **vars(start),
            ended=datetime.now(UTC).isoformat(timespec="milliseconds"),
            outcome=outcome,
            reason=reason,
            joules=energy.joules() if energy else None,
        )
        write_attempt(path, whole)


def read_attempts(model_folder: Path) -> list[Attempt]:
    """All attempts at a model's submissions, in the order of their starts; files that are not whole
    are left out.
    """
    found = []
    for path in whole_files(model_folder / FOLDER, "*.json"):
        try:
            found.append(from_json(Attempt, path.read_bytes()))
        except (OSError, ValueError):
            continue
    return found


def store_of(model_folder: Path) -> Path:
    """The store that the last attempt filled, as far as that is known."""
    last = whole_files(model_folder / FOLDER, "*.json")[-1:]
    with suppress(OSError, ValueError):
        for path in last:
            return model_folder / (from_json(Attempt, path.read_bytes()).store or "store")
    return model_folder / "store"


def _named(store: Path, model_folder: Path) -> str:
    """A path that holds when the folder of the model is moved with the store in it."""
    place, folder = store.absolute(), model_folder.absolute()
    return str(place.relative_to(folder) if place.is_relative_to(folder) else place)


def write_attempt(path: Path, note: Start) -> None:
    """Write a note, or leave it out where that cannot be done."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, to_plain(note))
    except OSError as error:
        log.debug("no note of the attempt: %s", error)
