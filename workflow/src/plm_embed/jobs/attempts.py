"""Attempts: a small file for every start of a submission, so that the report can tell retries and
what they cost.

Nothing depends on them: one that cannot be written is left out. An attempt that was killed has no
end.
"""

import json
import logging
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from plm_embed.io.files import whole_files, write_json
from plm_embed.jobs.gpus import Meter
from plm_embed.sites.scheduler import job_id

log = logging.getLogger(__name__)
FOLDER = "attempts"
"""Beside the folder of the completion records."""


@dataclass(frozen=True)
class Attempt:
    """One start of a submission. ended: '' while it runs and for ever after a kill; reason: why it
    failed, or ''.

    joules: taken by its GPUs, None where that is not known.
    """

    submission: str
    buckets: tuple[str, ...]
    host: str
    job: str
    workers: int
    started: str
    ended: str
    outcome: Literal["complete", "failed", "no end"]
    reason: str
    joules: float | None

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
    workers: int,
    energy: Meter | None = None,
) -> Iterator[None]:
    """Note when the block begins, and how and when it ends; `records` is the folder of the
    completion records.
    """
    began = datetime.now(UTC)
    host = socket.gethostname()
    path = records.parent / FOLDER / f"{began:%Y%m%dT%H%M%S%f}-{host}-{os.getpid()}.json"
    note: dict[str, Any] = {
        "schema_version": 1,
        "submission": submission,
        "buckets": list(buckets),
        "host": host,
        "job": job_id(),
        "workers": workers,
        "started": began.isoformat(timespec="milliseconds"),
    }
    _write(path, note)
    outcome, reason = "failed", ""
    try:
        yield
        outcome = "complete"
    except Exception as error:
        reason = str(error)
        raise
    finally:
        ended = datetime.now(UTC).isoformat(timespec="milliseconds")
        joules = energy.joules() if energy else None
        _write(
            path, note | {"ended": ended, "outcome": outcome, "reason": reason, "joules": joules}
        )


def read_attempts(model_folder: Path) -> list[Attempt]:
    """All attempts at a model's submissions, in the order of their starts; files that are not whole
    are left out.
    """
    found = []
    for path in whole_files(model_folder / FOLDER, "*.json"):
        try:
            note = json.loads(path.read_text(encoding="utf-8"))
            found.append(
                Attempt(
                    submission=note["submission"],
                    buckets=tuple(note["buckets"]),
                    host=note["host"],
                    job=note["job"],
                    workers=note["workers"],
                    started=note["started"],
                    ended=note.get("ended", ""),
                    outcome=note.get("outcome", "no end"),
                    reason=note.get("reason", ""),
                    joules=note.get("joules"),
                )
            )
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return found


def _write(path: Path, note: dict[str, Any]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, note)
    except OSError as error:
        log.debug("no note of the attempt: %s", error)
