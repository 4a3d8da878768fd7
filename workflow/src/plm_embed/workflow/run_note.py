"""A note of each call of Snakemake in the results folder, so that others can tell whether one is at
work: `run.json`.

Nothing depends on it: a note that cannot be written is left out, and a call that was killed has no
end.
"""

import os
import socket
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Literal

from plm_embed.errors import PlmEmbedError
from plm_embed.io.files import exclusive, write_json
from plm_embed.io.paths import not_writable
from plm_embed.jobs.heartbeat import alive
from plm_embed.typed_json import from_json, to_plain
from plm_embed.wording import now

NOTE = "run.json"
Outcome = Literal["complete", "failed", "stopped", "no end"]


@dataclass(frozen=True, kw_only=True)
class Call:
    """A call of Snakemake. Times are ISO 8601, with their zone."""

    schema_version: Literal[1] = 1
    host: str
    pid: int
    models: tuple[str, ...]
    started: str
    ended: str = ""
    """'' while it runs and for ever after a kill."""
    outcome: Outcome = "no end"
    reason: str = ""
    """What it said of a failure, or ''."""

    @property
    def at_work(self) -> bool:
        """Whether it goes on, as far as can be told from here: on another machine, unless it
        ended.
        """
        return not self.ended and (self.host != socket.gethostname() or alive(self.pid))


def note_start(results: Path, models: Sequence[str]) -> None:
    """Say that this process has begun to run these models. Errors as `refuse_beside_another`."""
    call = Call(host=socket.gethostname(), pid=os.getpid(), models=tuple(models), started=now())
    with ExitStack() as stack:
        with suppress(OSError):
            # of two that begin in the same instant, one sees the other's note
            stack.enter_context(exclusive(results / NOTE))
        refuse_beside_another(results)
        with suppress(OSError):
            write_json(results / NOTE, to_plain(call))


def refuse_unwritable(results: Path) -> None:
    """PlmEmbedError when nothing can be written to the results folder; Snakemake would not say what
    to do.
    """
    if said := not_writable(results):
        raise PlmEmbedError(f"results: {said}", path=results)


def refuse_beside_another(results: Path) -> None:
    """PlmEmbedError while a run of this machine is at work in the folder: its configuration stays
    as it is, and nothing is computed twice.

    Snakemake's own lock does not say so any more when another campaign has ended in the same
    working folder: it takes all locks there away.
    """
    call = read_call(results / NOTE)
    if call and call.at_work and call.host == socket.gethostname():
        since = datetime.fromisoformat(call.started).astimezone()
        raise PlmEmbedError(
            f"{results}: a run is at work here (process {call.pid}, since {since:%Y-%m-%d %H:%M}): "
            "wait for it, or stop it",
            path=results,
            remedy=f"if that is another process, remove {results / NOTE}",
        )


def locked(results: str) -> bool:
    """Whether a lock of Snakemake, in the working folder, is about files of these results: that of
    a run at work, here or on another machine, or of one that was killed.
    """
    with suppress(OSError):
        for lock in Path(".snakemake", "locks").glob("*.lock"):
            named = lock.read_text(encoding="utf-8", errors="replace").splitlines()
            if any(path.startswith(f"{results}/") for path in named):
                return True
    return False


def note_end(results: Path, outcome: Outcome, reason: str = "") -> None:
    """Say how the run ended."""
    path = results / NOTE
    with suppress(OSError):
        call, began = read_call(path), path.stat().st_mtime_ns
        if call:
            ended = replace(call, ended=now(), outcome=outcome, reason=reason)
            write_json(path, to_plain(ended))
            # its time stays that of the start, by the clock that the logs beside it go by
            os.utime(path, ns=(began, began))


def began_at(results: Path) -> int:
    """When the last run began, in nanoseconds, by the clock of the logs; 0 where there is no
    note.
    """
    with suppress(OSError):
        return (results / NOTE).stat().st_mtime_ns
    return 0


def read_call(path: Path) -> Call | None:
    """The last run; None when there is no note of it, or it is not whole."""
    try:
        return from_json(Call, path.read_bytes())
    except (OSError, ValueError):
        return None
