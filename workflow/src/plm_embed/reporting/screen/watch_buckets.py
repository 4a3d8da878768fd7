"""Which buckets of a campaign are done, by their completion records."""

from contextlib import suppress
from pathlib import Path

from plm_embed.jobs.bucket import is_recorded
from plm_embed.jobs.completion_record import FOLDER as RECORDS
from plm_embed.keys import bucket_names
from plm_embed.reporting.screen.small_files import Kept, names
from plm_embed.sequences.summary import Summary


class Buckets:
    """The buckets of the sequences in a results folder. `sizes`, in bytes, stand for the work in
    them; `since`: when the sequences were split into them, in nanoseconds.
    """

    def __init__(self, sequences: Path, kept: Kept) -> None:
        self.sizes: dict[str, int] = {}
        self.since = 0
        self._folder, self._kept = sequences / "buckets", kept

    def renew(self, summary: Summary | None, since: int) -> None:
        """Forget what is known: the sequences are others."""
        self.since = since
        self._kept.forget()
        self.sizes = {}
        for name in bucket_names(summary.buckets) if summary else []:
            with suppress(FileNotFoundError):  # deduplicate may be at work
                self.sizes[name] = (self._folder / f"{name}.parquet").stat().st_size

    def finished(self, folder: Path) -> set[str]:
        """Return the buckets that a model's folder has the completion record of."""

        def is_done(record: Path) -> bool:
            return is_recorded(self._folder / f"{record.stem}.parquet", record)

        records = [folder / RECORDS / name for name in names(folder / RECORDS)]
        return {
            record.stem
            for record in records
            if record.stem in self.sizes and self._kept.read(record, is_done)
        }
