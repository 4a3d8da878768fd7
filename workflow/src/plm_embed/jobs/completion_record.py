"""The completion record of a bucket, `embedded/{bucket}.json`, and what the records of a campaign
add up to.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Literal

from plm_embed.accuracy import SelfTest
from plm_embed.errors import PlmEmbedError, delete
from plm_embed.fingerprint import Fingerprint
from plm_embed.io.files import whole_files
from plm_embed.io.json_files import read_sealed, write_sealed
from plm_embed.keys import bucket_names
from plm_embed.store.parts import PartInfo
from plm_embed.wording import duration

FOLDER = "embedded"
"""Folder of the completion records, in that of a model."""


@dataclass(frozen=True)
class Skipped:
    """A sequence that has no vector, and why."""

    key: str
    length: int
    """Residues."""
    reason: str
    """too_long, out_of_memory or too_many_tokens."""


@dataclass(frozen=True, kw_only=True)
class WorkerInfo:
    """A process that embedded a bucket, and its device."""

    host: str
    pid: int
    job: str | None = None
    """The scheduler's id."""
    device: str
    """Name of the GPU or of the CPU."""
    gpu: str | None = None
    """CUDA_VISIBLE_DEVICES."""
    capability: str | None = None
    """8.0 of an A100; None of a CPU."""
    memory_bytes: int | None = None
    """None of a CPU."""
    cuda: str | None = None
    """Version of CUDA that torch was built with."""
    threads: int | None = None
    """CPU threads; None of a GPU."""


@dataclass(frozen=True, kw_only=True)
class Completion:
    """Says that the store holds a vector of each sequence of a bucket, but for those skipped.

    What was computed comes first, and how fast: as it stands where nothing had to be. unique:
    sequences in the bucket, of which `found` were in the store; `reused` and `reused_from` are of
    records of earlier versions. Times are ISO 8601, with their zone.
    """

    computed: int = 0
    """Sequences."""
    tokens: int = 0
    """Tokens that went through the model, special ones included."""
    tokens_per_second: float | None = None
    """Speed of one worker, while it had something to compute."""
    busy: float | None = None
    """Share of that time, 0 to 1, that the model was at work."""
    busy_seconds: float = 0.0
    exact: int | None = None
    """Sequences that were computed again with exact products, since theirs were not finite."""
    toks_per_batch: int | None = None
    """The smallest token budget; below the usual one where memory ran out."""
    schema_version: Literal[1] = 1
    bucket: str
    unique: int
    keys_sha256: str
    """See `keys.keys_sha256`."""
    fingerprint: Fingerprint
    fingerprint_id: str
    parts: tuple[PartInfo, ...]
    """Parts that hold the vectors, by name."""
    skipped: tuple[Skipped, ...]
    found: int
    reused: int = 0
    reused_from: dict[str, int] = field(default_factory=dict)
    reused_devices: tuple[str, ...] = ()
    """Devices of vectors that this job has not computed, as their parts say."""
    spared_tokens: int = 0
    """Tokens of the sequences found."""
    self_test: SelfTest | None
    """None where no model had to be loaded."""
    worker: WorkerInfo
    other_workers: tuple[WorkerInfo, ...] = ()
    """Further workers of the job."""
    joules: float | None = None
    """Taken by the GPUs of the job."""
    store: str = ""
    """Store of the vectors: below the folder of the model, or an absolute path."""
    versions: dict[str, str]
    """Versions by library."""
    loading_seconds: float
    """Time to load and test the model, of all workers together."""
    seconds: float
    """Time from the start of the job to its end."""
    started: str
    ended: str

    @property
    def reasons(self) -> dict[bytes, str]:
        """Return why sequences have no vector, by key."""
        return {skip.key.encode(): skip.reason for skip in self.skipped}

    @property
    def workers(self) -> tuple[WorkerInfo, ...]:
        """Return all workers of the job."""
        return (self.worker, *self.other_workers)

    @property
    def devices(self) -> tuple[str, ...]:
        """Return the names of the devices that computed the vectors, as far as they are known."""
        return (*(worker.device for worker in self.workers), *self.reused_devices)

    @property
    def batch_dependent(self) -> bool:
        """Return whether the job's self-test saw bits that depend on the batch."""
        return self.self_test is not None and not self.self_test.batch_invariant


def write_completion(path: Path, record: Completion) -> None:
    """Write a bucket's completion record."""
    write_sealed(path, record)


def read_completion(path: Path) -> Completion:
    """Read a bucket's completion record. StoreError when it is absent, damaged or not one."""
    return read_sealed(path, Completion, "a completion record", delete(path))


def completion_records(folder: Path) -> Iterator[Completion]:
    """Yield the whole completion records in a folder, by name."""
    for path in whole_files(folder, "*.json"):
        with suppress(PlmEmbedError):
            yield read_completion(path)


def campaign_records(folder: Path, buckets: int) -> list[Completion]:
    """Return the whole completion records of the present buckets, by name, of the settings of the
    one that ended last.

    Records of other settings, or of an earlier and larger number of buckets, may lie beside them.
    """
    names = set(bucket_names(buckets))
    return of_last_settings(
        record for record in completion_records(folder) if record.bucket in names
    )


def of_last_settings(records: Iterable[Completion]) -> list[Completion]:
    """Return those of the settings of the one that ended last."""
    records = list(records)
    last = max(records, key=lambda record: record.ended, default=None)
    return [record for record in records if last and record.fingerprint == last.fingerprint]


def savings(records: Iterable[Completion]) -> str:
    """Return '3 in the store when their buckets last ran (about 30 min of a device)', '' for none.

    What an interrupted job of the same campaign has computed counts as in the store when it is run
    again. The time is estimated from the speed of the jobs, if that is known.
    """
    records = list(records)
    speeds = [record.tokens_per_second for record in records if record.tokens_per_second]
    tokens = sum(record.spared_tokens for record in records)
    count = sum(record.found + record.reused for record in records)
    time = f" (about {duration(tokens / median(speeds))} of a device)" if speeds else ""
    return f"{count:,} in the store when their buckets last ran{time}" if count else ""
