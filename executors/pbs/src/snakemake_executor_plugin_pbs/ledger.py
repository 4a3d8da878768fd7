"""Submitted jobs on disk, so that a second start of Snakemake finds the jobs of the first.

One small file a job, `NAME.json`, written before qsub is called and again when the id is known, and
removed when the job has ended. Beside it the job's script leaves its end record, `NAME.end`.
"""

import os
from pathlib import Path

import msgspec

from .commands import number


class Entry(msgspec.Struct, frozen=True):
    """One submission. `id` is None between the call of qsub and its answer; `work` is a digest of
    what the job does, `options` are qsub's words but the name and the log.

    `deleted` says that the job was given up: its id may live on for some seconds, and nothing may
    be submitted in its place before it is gone.
    """

    name: str
    work: str
    queue: str
    log: str
    submitted: float
    id: str | None = None
    deleted: bool = False
    options: tuple[str, ...] = ()


class Ledger:
    """The entries of one working directory, in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def read(self, name: str) -> Entry | None:
        """Return the entry of a job name; None without one, or where a full disk cut it short."""
        try:
            return msgspec.json.decode((self.folder / f"{name}.json").read_bytes(), type=Entry)
        except (OSError, msgspec.MsgspecError):
            return None

    def entries(self) -> list[Entry]:
        """Return all entries."""
        names = sorted(path.name.removesuffix(".json") for path in self.folder.glob("*.json"))
        return [entry for entry in map(self.read, names) if entry]

    def write(self, entry: Entry) -> None:
        """Record an entry: whole or not at all, and on disk before the next step."""
        temporary = self.folder / f".{entry.name}"
        with temporary.open("wb") as handle:
            handle.write(msgspec.json.encode(entry))
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(self.folder / f"{entry.name}.json")

    def remove(self, name: str) -> None:
        """Forget a job that has ended."""
        (self.folder / f"{name}.json").unlink(missing_ok=True)
        self.end(name).unlink(missing_ok=True)

    def end(self, name: str) -> Path:
        """Return the path of the end record, where the job's script writes `JOBID` as its first act
        and `JOBID EXITCODE` as its last one.
        """
        return self.folder / f"{name}.end"

    def began(self, entry: Entry) -> bool:
        """Return whether the job has run, to its end or not."""
        return self._record(entry) is not None

    def exit_code(self, entry: Entry) -> int | None:
        """Return the exit code that the job itself recorded, if it has."""
        record = self._record(entry)
        return int(record[0]) if record and record[0].isdecimal() else None

    def _record(self, entry: Entry) -> list[str] | None:
        """Return the words after the id in the end record; None without one of this job."""
        try:
            job_id, *words = self.end(entry.name).read_text(encoding="utf-8").split()
        except (OSError, ValueError):
            return None
        return words if number(job_id) == number(entry.id or "") else None
