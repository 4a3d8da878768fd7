"""Submitted jobs on disk, so that a second start of Snakemake finds the jobs of the first.

One small file a job, `NAME.json`, written before qsub is called and again when the id is known, and
removed when the job has ended. Beside it the job's script leaves `NAME.end`, its own record of
having run to its end.
"""

import json
import os
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path

from .commands import number


@dataclass(frozen=True)
class Entry:
    """One submission. `id` is None between the call of qsub and its answer; `work` is a digest of
    what the job does, `options` are qsub's words but the name and the log (none: not known).

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
        """Return the entry of a job name; None when there is none (a file cut short by a full disk
        is none either).
        """
        try:
            fields = json.loads((self.folder / f"{name}.json").read_text(encoding="utf-8"))
            return Entry(**fields | {"options": tuple(fields["options"])})
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def entries(self) -> list[Entry]:
        """Return all entries."""
        names = sorted(path.name.removesuffix(".json") for path in self.folder.glob("*.json"))
        return [entry for entry in map(self.read, names) if entry]

    def write(self, entry: Entry) -> None:
        """Record an entry: whole or not at all, and on disk before the next step."""
        final = self.folder / f"{entry.name}.json"
        temporary = self.folder / f".{entry.name}.{secrets.token_hex(4)}"
        with temporary.open("w", encoding="utf-8") as handle:
            json.dump(asdict(entry), handle)
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(final)

    def remove(self, name: str) -> None:
        """Forget a job that has ended."""
        (self.folder / f"{name}.json").unlink(missing_ok=True)
        self.end(name).unlink(missing_ok=True)

    def end(self, name: str) -> Path:
        """Return where the job's script writes `JOBID` as its first act and `JOBID EXITCODE` as its
        last one.
        """
        return self.folder / f"{name}.end"

    def began(self, name: str, job_id: str) -> bool:
        """Return whether the job has run, to its end or not."""
        return self._record(name, job_id) is not None

    def exit_code(self, name: str, job_id: str) -> int | None:
        """Return the exit code that the job itself recorded; None when it has not, or when another
        job did.
        """
        record = self._record(name, job_id)
        return int(record[0]) if record and record[0].isdecimal() else None

    def _record(self, name: str, job_id: str) -> list[str] | None:
        """Return the words that the job wrote after its id; None when it wrote nothing, or when
        another job did.
        """
        try:
            number_written, *rest = self.end(name).read_text(encoding="utf-8").split()
        except (OSError, ValueError):
            return None
        return rest if number(number_written) == number(job_id) else None
