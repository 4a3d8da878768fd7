"""Which buckets of a campaign are finished, by small files and their times."""

from contextlib import suppress
from pathlib import Path

from plm_embed.keys import bucket_names
from plm_embed.reporting.screen.small_files import names, time_of
from plm_embed.sequences.summary import Summary


class Buckets:
    """The buckets of the sequences in a results folder. `sizes`, in bytes, stand for the work in
    them; `since`: when the sequences were split into them, in nanoseconds.
    """

    def __init__(self, sequences: Path) -> None:
        self.sizes: dict[str, int] = {}
        self.since = 0
        self._folder = sequences / "buckets"
        self._times: dict[str, int] = {}
        self._done: dict[Path, set[str]] = {}

    def renew(self, summary: Summary | None, since: int) -> None:
        """Forget what is known: the sequences are others."""
        self.since = since
        self._done.clear()
        found = {}
        for name in bucket_names(summary.buckets) if summary else []:
            with suppress(FileNotFoundError):  # deduplicate may be at work
                found[name] = (self._folder / f"{name}.parquet").stat()
        self.sizes = {name: status.st_size for name, status in found.items()}
        self._times = {name: status.st_mtime_ns for name, status in found.items()}

    def finished(self, folder: Path) -> set[str]:
        """Return the buckets with a completion record that is not older than the bucket."""
        done = self._done.setdefault(folder, set())
        for name in names(folder / "embedded"):
            path, bucket = folder / "embedded" / name, name.removesuffix(".json")
            if bucket in done or bucket not in self._times:
                continue
            if (time_of(path) or 0) >= self._times[bucket]:
                done.add(bucket)
        return done
