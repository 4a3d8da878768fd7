"""The completion record of a bucket, `embedded/{bucket}.json`: the store holds a vector of each of
its sequences, and how they were computed. It says when a bucket is done.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from plm_embed.accuracy import SelfTest
from plm_embed.errors import PlmEmbedError, StoreError, delete
from plm_embed.fingerprint import Fingerprint
from plm_embed.io.files import whole_files
from plm_embed.io.json_files import read_sealed
from plm_embed.keys import Keys, key_array, keys_sha256
from plm_embed.sequence_windows import too_long
from plm_embed.sequences.summary import bucket_table
from plm_embed.store.parts import PartInfo, parts_folder

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


@dataclass(kw_only=True)
class WorkerInfo:
    """A worker of a job: its device, and what it has published so far.

    Its processes count on from one another; `pid` is the present one's. state: starting, computing,
    ending (nothing more is to be done) or ended. gpu: CUDA_VISIBLE_DEVICES; threads: of a CPU.
    tokens: that went through the model, special ones included; seconds: that those took.

    Of the present process: tokens_per_second in its last chunk; progressed: when its last batch was
    done.
    """

    host: str = ""
    pid: int = 0
    state: str = "ended"
    device: str = ""
    gpu: str | None = None
    threads: int | None = None
    computed: int = 0
    tokens: int = 0
    seconds: float = 0.0
    tokens_per_second: float | None = None
    progressed: str | None = None


@dataclass(frozen=True, kw_only=True)
class Completion:
    """A bucket of which the store holds a vector of each sequence, but for those skipped.

    unique: sequences in the bucket; found: in the store when the job began, by reused_devices as
    their parts say; parts: that hold the vectors, by name. computed, tokens: of all workers
    together; tokens_per_second: of one, while it had something to compute. self_test: None where no
    model had to be loaded. store: below the folder of the model, or an absolute path. versions: by
    library. seconds: from the start of the job to its end. Times are ISO 8601, with their zone.
    """

    computed: int = 0
    tokens: int = 0
    tokens_per_second: float | None = None
    schema_version: Literal[1] = 1
    bucket: str
    unique: int
    keys_sha256: str
    fingerprint: Fingerprint
    fingerprint_id: str
    parts: tuple[PartInfo, ...]
    skipped: tuple[Skipped, ...]
    found: int
    reused_devices: tuple[str, ...] = ()
    self_test: SelfTest | None
    worker: WorkerInfo
    other_workers: tuple[WorkerInfo, ...] = ()
    store: str = ""
    versions: dict[str, str]
    seconds: float
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


@dataclass(frozen=True)
class Bucket:
    """The sequences of bucket `name` that have a vector: their keys, sorted (S64 (n,)), and their
    lengths in residues (int32 (n,)); the completion record, and the path it was read from.
    """

    name: str
    keys: Keys
    length: NDArray[np.int32]
    record: Path
    completion: Completion

    def error(self, path: Path, problem: str) -> StoreError:
        """Return the error for a file of the bucket."""
        return StoreError(f"{path}: {problem}", remedy=delete(self.record), path=path)


def read_completion(path: Path) -> Completion:
    """Read a bucket's completion record. StoreError when it is absent, damaged or not one."""
    return read_sealed(path, Completion, "a completion record")


def read_bucket(path: Path, record: Path) -> Bucket:
    """Read a bucket's keys and its completion record, and check that they belong together."""
    completion = read_completion(record)
    table = bucket_table(path, ["key", "length"])
    keys, length = key_array(table["key"]), table["length"].to_numpy().astype(np.int32)
    reasons = completion.reasons
    has_vector = ~np.isin(keys, np.array([*reasons], dtype="S64"))
    # only a device can say what it has no memory for; what is too long follows from the settings
    long = keys[too_long(length, completion.fingerprint.long_sequences)].tolist()
    if (
        keys_sha256(keys) != completion.keys_sha256
        or np.count_nonzero(~has_vector) != len(reasons)
        or {key for key, reason in reasons.items() if reason == "too_long"} != set(long)
    ):
        problem = f"{record}: made for other sequences or another number of buckets"
        raise StoreError(problem, remedy=delete(record), path=record)
    return Bucket(path.stem, keys[has_vector], length[has_vector], record, completion)


def is_done(path: Path, record: Path, store: Path, fingerprint: Fingerprint | None = None) -> bool:
    """Tell whether a bucket is done: its completion record is whole, of its sequences and, if one
    is named, of this fingerprint; and the parts that it names are in the store.

    A job writes the record when no key is missing in those parts, which never change. Their bytes
    are compared where something is made of them.
    """
    try:
        completion = read_completion(record)
        if record.stat().st_mtime_ns < path.stat().st_mtime_ns:  # of a copy, or other sequences
            read_bucket(path, record)
        folder = parts_folder(store, completion.fingerprint)
        sizes = [(folder / part.name).stat().st_size for part in completion.parts]
    except (PlmEmbedError, OSError):
        return False
    return fingerprint in (None, completion.fingerprint) and sizes == [
        part.bytes for part in completion.parts
    ]


def completion_records(folder: Path) -> Iterator[Completion]:
    """Yield the whole completion records in a folder, by name."""
    for path in whole_files(folder, "*.json"):
        with suppress(PlmEmbedError):
            yield read_completion(path)


def store_of(model_folder: Path) -> Path:
    """Return the store of a model's folder as its completion records name it: without any, the one
    in the folder.
    """
    record = next(completion_records(model_folder / FOLDER), None)
    return model_folder / (record.store if record and record.store else "store")
