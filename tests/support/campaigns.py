"""A small finished campaign on disk: what deduplicate and embed leave behind, with made-up vectors.

The vector of a sequence is a function of its residues alone, so `reference` gives what an honest
computation would.
"""

import hashlib
import shutil
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from plm_embed.fingerprint import SPANS, Fingerprint, LongSequences, has_matrix
from plm_embed.io.files import sha256_file
from plm_embed.io.json_files import write_sealed
from plm_embed.jobs.completion_record import Completion, Skipped, WorkerInfo, read_completion
from plm_embed.keys import bucket_names, key, keys_sha256
from plm_embed.master.gather import gather
from plm_embed.models.weights import MANIFEST, Manifest, Source
from plm_embed.sequence_windows import spans, stored_spans, window_counts
from plm_embed.sequences.summary import SUMMARY, read_summary
from plm_embed.store.parts import PartRows, write_part
from plm_embed.store.store import Store
from support.buckets import bucket_of
from support.made_up_sequences import make_records, write_sequences

DIM = 16
WEIGHTS = hashlib.sha256(b"weights").hexdigest()
MEAN = Fingerprint(
    "esm2_t3_untrained", WEIGHTS, (3,), ("mean",), LongSequences(), "float32", "float16", "test"
)
EVERYTHING = replace(
    MEAN,
    layers=(2, 3),
    pooling=("mean", "max", "per_residue"),
    long_sequences=LongSequences("window", 40, 10),
)
PROVENANCE = {"workflow_commit": "0123abc"}


@dataclass(frozen=True)
class Campaign:
    """Where everything lies; see `make_campaign`."""

    root: Path
    fingerprint: Fingerprint

    @property
    def results(self) -> Path:
        return self.root / "results"

    @property
    def sequences(self) -> Path:
        return self.results / "sequences"

    @property
    def embedded(self) -> Path:
        return self.results / self.fingerprint.model / "embedded"

    @property
    def store(self) -> Path:
        return self.root / "store"

    @property
    def parts(self) -> Path:
        return self.store / self.fingerprint.id / "parts"

    @property
    def weights(self) -> Path:
        return self.root / "weights"

    @property
    def master(self) -> Path:
        return self.results / self.fingerprint.model / "master_esm2_embeddings.h5"

    @property
    def index(self) -> Path:
        return self.master.with_suffix(".parquet")

    @property
    def records(self) -> Path:
        return self.master.with_name("records.parquet")

    @property
    def outputs(self) -> list[Path]:
        return [self.master, self.index, self.records]

    def gather(self) -> None:
        gather(self.sequences, self.embedded, self.store, *self.outputs, PROVENANCE)


def vectors(sequence: str, fingerprint: Fingerprint) -> dict[str, np.ndarray]:
    """Made-up float32 vectors of a sequence: (D,), or (L, D) per residue. Tokens have 5 letters."""
    (_, stop), *_ = reversed(spans(len(sequence), fingerprint.long_sequences))
    found = {}
    for name in fingerprint.representations:
        random = np.random.default_rng(list(f"{sequence} {name}".encode()))
        starts = np.arange(0, stop, 1 if name.startswith("per_residue") else 5)
        if name == SPANS:
            found[name] = stored_spans(starts, np.minimum(starts + 5, stop))
            continue
        shape = (len(starts), DIM) if has_matrix(name) else (DIM,)
        found[name] = random.normal(size=shape).astype(np.float32)
    return found


def reference(
    _weights: Path, sequences: list[str], fingerprint: Fingerprint
) -> list[dict[str, np.ndarray]]:
    return [vectors(sequence, fingerprint) for sequence in sequences]


def make_campaign(
    root: Path, *, fingerprint: Fingerprint = MEAN, buckets: int = 3, parts: int = 2,
    records: list[dict[str, Any]] | None = None, out_of_memory: int = 0,
) -> Campaign:  # fmt: skip
    """Write sequences, a store with `parts` parts per bucket, and completion records.

    Besides what the long-sequence policy skips, the first `out_of_memory` keys are skipped for that
    reason. A campaign of the usual records is made once and copied: name
    the records where something else is changed that a campaign is made with.
    """
    how = {
        "fingerprint": fingerprint,
        "buckets": buckets,
        "parts": parts,
        "out_of_memory": out_of_memory,
    }
    return _copy(_usual(**how), root) if records is None else _make(root, records, **how)


def gathered_campaign(root: Path, **options: Any) -> Campaign:
    """`make_campaign`, gathered; that of the usual records is gathered once and copied."""
    if "records" not in options:
        return _copy(_usual_gathered(**options), root)
    campaign = make_campaign(root, **options)
    campaign.gather()
    return campaign


def _copy(made: Campaign, root: Path) -> Campaign:
    shutil.copytree(made.root, root, dirs_exist_ok=True)
    return replace(made, root=root)


@cache
def _usual(**how: Any) -> Campaign:
    return _make(_folder(), make_records(), **how)


@cache
def _usual_gathered(**options: Any) -> Campaign:
    campaign = make_campaign(_folder(), **options)
    campaign.gather()
    return campaign


_FOLDERS: list[TemporaryDirectory[str]] = []  # they vanish with the process


def _folder() -> Path:
    _FOLDERS.append(TemporaryDirectory(prefix="campaign-"))
    return Path(_FOLDERS[-1].name)


def _make(
    root: Path,
    records: list[dict[str, Any]],
    *,
    fingerprint: Fingerprint,
    buckets: int,
    parts: int,
    out_of_memory: int,
) -> Campaign:
    campaign = Campaign(root, fingerprint)
    write_sequences(campaign.sequences, records, buckets)
    seal_sequences(campaign.sequences)
    store = Store(campaign.store, fingerprint)
    unique = {
        record["key"]: record["sequence"] for record in records if record["status"] == "accepted"
    }
    skipped = dict.fromkeys(sorted(unique)[:out_of_memory], "out_of_memory")
    skipped |= {
        name: "too_long"
        for name, seq in unique.items()
        if not spans(len(seq), fingerprint.long_sequences)
    }
    campaign.embedded.mkdir(parents=True, exist_ok=True)
    for number, bucket in enumerate(bucket_names(buckets)):
        keys = sorted(name for name in unique if bucket_of(name, buckets) == number)
        kept = [name for name in keys if name not in skipped]
        for part in range(parts):
            publish(store, [unique[name] for name in kept[part::parts]])
        write_completion(campaign, bucket, keys, skipped)
    campaign.weights.mkdir(exist_ok=True)
    shape = ("esm2", 3, DIM, 2, None)
    source = Source("fair-esm", "")
    manifest = Manifest(
        fingerprint.model, *shape, True, "MIT", fingerprint.weights_sha256, 0, source
    )  # type: ignore[arg-type]
    write_sealed(campaign.weights / MANIFEST, manifest)
    return campaign


def publish(store: Store, sequences: list[str]) -> None:
    """Put the vectors of these sequences into the store as one part."""
    if not sequences:
        return
    fingerprint = store.fingerprint
    local = store.folder / "local.h5"
    write_part(local, part_rows(sequences, fingerprint), fingerprint, {"device": "CPU"})
    store.publish(local)
    local.unlink()


def part_rows(sequences: list[str], fingerprint: Fingerprint) -> PartRows:
    found = [vectors(sequence, fingerprint) for sequence in sequences]
    lengths = np.array([len(sequence) for sequence in sequences], dtype=np.int32)
    return PartRows(
        keys=np.array([key(sequence) for sequence in sequences], dtype="S64"),
        length=lengths,
        windows=window_counts(lengths, fingerprint.long_sequences),
        representations={
            name: [each[name] for each in found] for name in fingerprint.representations
        },
        scores={
            name: np.array([len(name) / len(sequence) for sequence in sequences], np.float32)
            for name in fingerprint.scores
        },
    )


def write_completion(
    campaign: Campaign, bucket: str, keys: list[str], skipped: dict[str, str]
) -> None:
    """The completion record of a bucket that has these keys."""
    fingerprint = campaign.fingerprint
    kept = np.array([name for name in keys if name not in skipped], dtype="S64")
    record = completion(
        bucket=bucket,
        unique=len(keys),
        keys_sha256=keys_sha256(np.array(keys, dtype="S64")),
        fingerprint=fingerprint,
        fingerprint_id=fingerprint.id,
        parts=tuple(Store(campaign.store, fingerprint).covering(kept)),
        skipped=tuple(
            Skipped(name, 50, reason) for name, reason in skipped.items() if name in keys
        ),
        computed=len(kept),
    )
    write_sealed(campaign.embedded / f"{bucket}.json", record)


def completion(**fields: Any) -> Completion:
    """A completion record of an empty bucket, but for these fields."""
    stated: dict[str, Any] = {
        "bucket": "0000",
        "unique": 0,
        "keys_sha256": keys_sha256(np.zeros(0, dtype="S64")),
        "fingerprint": MEAN,
        "fingerprint_id": MEAN.id,
        "parts": (),
        "skipped": (),
        "found": 0,
        "self_test": None,
        "worker": WorkerInfo(host="x3001", pid=7, device="CPU"),
        "versions": {"torch": "2"},
        "seconds": 1.0,
        "started": "2026-11-21T09:00:00.000+00:00",
        "ended": "2026-11-21T09:00:01.000+00:00",
    }
    return Completion(**stated | fields)


def edit_completion(campaign: Campaign, **change: Any) -> None:
    """Another completion record of bucket 0001, with a seal that fits."""
    path = campaign.embedded / "0001.json"
    write_sealed(path, replace(read_completion(path), **change))


def seal_sequences(folder: Path, **changes: Any) -> None:
    """Write the summary with these changes and with the hashes that the files beside it have
    now.
    """
    files = {str(file.relative_to(folder)): sha256_file(file) for file in folder.rglob("*.parquet")}
    write_sealed(folder / SUMMARY, replace(read_summary(folder), files=files, **changes))


def with_column(campaign: Campaign, folder: Path, name: str) -> Path:
    """A copy of a gathered campaign's master whose kept column `function` is called otherwise."""
    master = Path(shutil.copy(campaign.master, folder))
    table = pq.read_table(campaign.index)
    names = [name if each == "function" else each for each in table.column_names]
    pq.write_table(table.rename_columns(names), master.with_suffix(".parquet"))
    return master
