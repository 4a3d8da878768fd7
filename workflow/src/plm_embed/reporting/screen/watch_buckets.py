"""Which buckets of a campaign are finished, by small files and their times."""

from contextlib import suppress
from pathlib import Path

from plm_embed.errors import StoreError
from plm_embed.io.files import whole_files
from plm_embed.jobs.completion_record import read_completion
from plm_embed.jobs.submission import FOLDER as SUBMISSIONS
from plm_embed.jobs.submission import read_submission
from plm_embed.keys import bucket_names
from plm_embed.reporting.screen.small_files import Kept, names, time_of
from plm_embed.sequences.summary import Summary


class Buckets:
    """The buckets of the sequences in a results folder. `sizes`, in bytes, stand for the work in
    them; `since`: when the sequences were split into them, in nanoseconds.
    """

    def __init__(self, sequences: Path, kept: Kept) -> None:
        self.sizes: dict[str, int] = {}
        self.since = 0
        self._folder, self._kept = sequences / "buckets", kept
        self._times: dict[str, int] = {}
        self._done: dict[Path, set[str]] = {}
        self._told: dict[Path, int] = {}

    def renew(self, summary: Summary | None, since: int) -> None:
        """Forget what is known: the sequences are others."""
        self.since = since
        self._done.clear()
        self._told.clear()
        found = {}
        for name in bucket_names(summary.buckets) if summary else []:
            with suppress(FileNotFoundError):  # deduplicate may be at work
                found[name] = self._path(name).stat()
        self.sizes = {name: status.st_size for name, status in found.items()}
        self._times = {name: status.st_mtime_ns for name, status in found.items()}

    def finished(self, folder: Path, *, of_others: bool) -> set[str]:
        """Buckets with a completion record that is not older than the bucket, or named by a
        finished submission. `of_others`: the model's master is of other sequences, and so may be
        what was submitted before these came.
        """
        done = self._done.setdefault(folder, set())
        for name in names(folder / "embedded"):
            path, bucket = folder / "embedded" / name, name.removesuffix(".json")
            if (
                bucket in self._times
                and bucket not in done
                and (time_of(path) or 0) >= self._times[bucket]
            ):
                done.add(bucket)
        if len(done) == len(self._times):
            return done
        for path in whole_files(folder / SUBMISSIONS, "*.json"):
            written = time_of(path) or 0
            if self._told.get(path) == written:
                continue
            named = self._kept.read(path, _buckets_of) or ()
            known = [bucket for bucket in named if bucket in self._times]
            if (
                of_others
                and written < self.since
                and not all(bucket in done or self._as_before(folder, bucket) for bucket in known)
            ):
                continue
            done.update(known)
            # one from before the sequences were split will come again, with other buckets perhaps
            if named and written >= self.since:
                self._told[path] = written
        return done

    def _as_before(self, folder: Path, bucket: str) -> bool:
        """Whether a bucket has as many sequences as when it was embedded: those of most buckets
        stay when an input grows, and then no submission comes again.
        """
        embedded = self._kept.read(folder / "embedded" / f"{bucket}.json", _embedded)
        return embedded is not None and embedded == self._kept.read(self._path(bucket), _rows)

    def _path(self, bucket: str) -> Path:
        return self._folder / f"{bucket}.parquet"


def _embedded(record: Path) -> int | None:
    """How many sequences a bucket had when it was embedded; None when the record is damaged."""
    with suppress(StoreError):
        return read_completion(record).unique
    return None


def _rows(bucket: Path) -> int:
    import pyarrow.parquet as pq  # 0.1 s, for what is seldom asked

    rows: int = pq.read_metadata(bucket).num_rows
    return rows


def _buckets_of(path: Path) -> tuple[str, ...]:
    """The buckets of a finished submission; none when its file is damaged."""
    try:
        return read_submission(path).buckets
    except StoreError:
        return ()
