"""The completion records of a campaign, added up: all that a master is gathered from, and what it
says of itself.
"""

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

from plm_embed.errors import StoreError, delete
from plm_embed.fingerprint import IMPORTED_DEVICE, POOLING_DEFINITIONS, Fingerprint, has_matrix
from plm_embed.io.files import sha256_file
from plm_embed.jobs.completion_record import Bucket, read_bucket
from plm_embed.keys import bucket_names
from plm_embed.sequence_windows import stored_residues
from plm_embed.sequences.summary import read_summary
from plm_embed.store.blocks import located
from plm_embed.store.parts import SCHEMA_VERSION, Part, PartInfo, parts_folder

CHANGED = "its bytes are not those that were written"
"""The fault of a part."""


class Campaign:
    """The buckets whose completion records were added, with n vectors in all.

    sequences: folder of deduplicate; embedded: folder of the completion records. rows: the first
    row of each bucket in the master, in key order; parts: by name, as they are first named;
    records: the completion records that name a part.
    """

    fingerprint: Fingerprint
    parts_folder: Path

    def __init__(self, sequences: Path, embedded: Path, store: Path) -> None:
        self.sequences, self.embedded, self.store = sequences, embedded, store
        self.rows: dict[str, int] = {}
        self.parts: dict[str, PartInfo] = {}
        self.records = defaultdict[str, list[Path]](list)
        self.vectors = self._residues = 0
        self.devices: set[str] = set()
        self._versions = defaultdict[str, set[str]](set)
        self._batch_dependent = False

    def bucket(self, name: str) -> Bucket:
        """Read a bucket's keys and completion record. StoreError where one is not whole."""
        path = self.sequences / "buckets" / f"{name}.parquet"
        return read_bucket(path, self.embedded / f"{name}.json")

    def add(self, name: str) -> None:
        """Count a bucket. StoreError where its completion record is not whole or of other
        settings.
        """
        bucket = self.bucket(name)
        completion, fingerprint = bucket.completion, bucket.fingerprint
        if not self.rows:
            self.fingerprint = fingerprint
            self.parts_folder = parts_folder(self.store, fingerprint)
        elif fingerprint != self.fingerprint:
            differences = "; ".join(fingerprint.differences(self.fingerprint))
            raise StoreError(
                f"{bucket.record}: its settings differ from those of bucket "
                f"{next(iter(self.rows))} ({differences})",
                path=bucket.record,
                remedy=delete(self.embedded),
            )
        for part in bucket.parts:
            self.parts[part.name] = part
            self.records[part.name].append(bucket.record)
        self.rows[name] = self.vectors
        self.vectors += len(bucket.keys)
        if "per_residue" in fingerprint.pooling:
            rows = stored_residues(bucket.length, fingerprint.long_sequences)
            self._residues += int(rows.sum())
        self.devices.update(worker.device for worker in completion.workers)
        self.devices.update(completion.reused_devices)
        tested = completion.self_test
        self._batch_dependent |= tested is not None and not tested.batch_invariant
        for library, version in completion.versions.items():
            self._versions[library].add(version)

    def wrong_parts(self, *, hashed: bool) -> list[StoreError]:
        """Return the errors for parts that are missing or have changed, each with the remedy for
        all of them; `hashed`: read all of their bytes.
        """
        faults = {}
        for name, info in sorted(self.parts.items()):
            path = self.parts_folder / name
            if not path.is_file():
                faults[name] = f"missing, but {self.records[name][0]} names it"
            elif (size := path.stat().st_size) != info.bytes:
                faults[name] = f"has {size:,} bytes instead of {info.bytes:,} (truncated?)"
            elif hashed and sha256_file(path) != info.sha256:
                faults[name] = CHANGED
        remedy = self.part_remedy(*faults) if faults else ""
        paths = map(self.parts_folder.joinpath, faults)
        return [
            StoreError(f"{path}: {fault}", path=path, remedy=remedy)
            for path, fault in zip(paths, faults.values(), strict=True)
        ]

    def part_remedy(self, *names: str) -> str:
        """Return the remedy for damaged or missing parts: delete them, and their records."""
        records = dict.fromkeys(record for name in names for record in self.records[name])
        parts = map(self.parts_folder.joinpath, names)
        return delete(*parts, *(records if len(records) <= 3 else [self.embedded]))

    @cached_property
    def shapes(self) -> dict[str, tuple[int, int]]:
        """Shapes by representation: (n, D), or (R, D) where there are matrices. D is as the first
        part has it; 0 where there are no parts.
        """
        dims, residues = dict[str, int](), self._residues
        for name in [*self.parts][:1]:
            with Part(self.parts_folder / name) as part:
                dims = part.dims
        if "per_token" in self.fingerprint.pooling:  # letters do not tell the number of tokens
            residues = 0
            for name in self.rows:
                with located(self.bucket(name), self.store) as vectors:
                    residues += int(vectors.residues.sum())
        return {
            name: (residues if has_matrix(name) else self.vectors, dims.get(name, 0))
            for name in self.fingerprint.representations
        }

    def attributes(self, provenance: Mapping[str, str]) -> dict[str, Any]:
        """Return all attributes of the master by name: the fingerprint whole, and again as plain
        attributes for readers that do not know it (max_length 0: no limit).
        """
        fingerprint, counted = self.fingerprint, asdict(read_summary(self.sequences))
        named = ("inputs", "records", "accepted", "skipped", "unique", "policy")
        inputs = {name: counted[name] for name in named if counted[name] is not None}
        invariance = "not promised by the engine"
        if fingerprint.batch_invariant:
            invariance = "promised by the engine"
            if self._batch_dependent:
                invariance += ", but a self-test of this campaign saw otherwise"
            if any(IMPORTED_DEVICE in name for name in self.devices):
                invariance += ", except for vectors that another program computed"
        values: dict[str, Any] = {
            "schema_version": SCHEMA_VERSION,
            "fingerprint": fingerprint.to_json(),
            "fingerprint_id": fingerprint.id,
            "model_name": fingerprint.model,
            "weights_sha256": fingerprint.weights_sha256,
            "layers": list(fingerprint.layers),
            "pooling": list(fingerprint.pooling),
            "pooling_definition": "\n".join(
                f"{name}: {POOLING_DEFINITIONS[name]}" for name in fingerprint.pooling
            ),
            "precision": fingerprint.storage_dtype,
            "compute_dtype": fingerprint.compute_dtype,
            "long_sequences": fingerprint.long_sequences.policy,
            "max_length": fingerprint.long_sequences.max_residues,
            "window_overlap": fingerprint.long_sequences.overlap,
            "engine": fingerprint.engine,
            "batch_invariance": invariance,
            "library_versions": {
                name: ", ".join(sorted(several)) for name, several in self._versions.items()
            },
            "devices": sorted(self.devices),
            "inputs": inputs | {"embedded": self.vectors},
            "scores": list(fingerprint.scores),
            "linker": fingerprint.linker,
            "strand": fingerprint.strand.replace("as_given", ""),
            **provenance,
        }
        # masters of earlier versions, which know of one strand and no scores, lack the last three
        return {
            name: json.dumps(value, sort_keys=True) if isinstance(value, dict) else value
            for name, value in sorted(values.items())
            if value or name not in {"scores", "linker", "strand"}
        }


def read_campaign(sequences: Path, embedded: Path, store: Path) -> Campaign:
    """Read all completion records. StoreError unless they go together and their parts are there."""
    campaign = Campaign(sequences, embedded, store)
    for name in bucket_names(read_summary(sequences).buckets):
        campaign.add(name)
    for error in campaign.wrong_parts(hashed=False):
        raise error
    return campaign
