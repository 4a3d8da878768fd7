"""What gather and validate find in the completion records of a campaign before they look at the
master.
"""

from dataclasses import dataclass, field
from pathlib import Path

from plm_embed.errors import RUN_AGAIN, StoreError
from plm_embed.fingerprint import Fingerprint, has_matrix, storage_bytes
from plm_embed.jobs.bucket import Bucket, load_bucket
from plm_embed.jobs.completion_record import read_completion
from plm_embed.sequence_windows import stored_residues
from plm_embed.sequences.summary import bucket_names
from plm_embed.store import checksums
from plm_embed.store.blocks import locate, named_parts
from plm_embed.store.parts import read_part
from plm_embed.store.replaced import PartInfo
from plm_embed.store.store import store_folder


@dataclass
class Plan:
    """What gather finds before it writes: n vectors in `vectors`, R residues in `residues`, D in
    `dims`.

    parts: those of all buckets, in the order of the buckets; bytes: what the master takes; devices
    and versions: from all completion records.
    """

    fingerprint: Fingerprint
    names: list[str]
    dims: dict[str, int] = field(default_factory=dict)
    parts: list[PartInfo] = field(default_factory=list)
    vectors: int = 0
    residues: int = 0
    devices: set[str] = field(default_factory=set)
    versions: dict[str, set[str]] = field(default_factory=dict)
    batch_dependent: bool = False

    def count(self, bucket: Bucket) -> None:
        """Add the vectors, and what computed them, of one bucket."""
        self.vectors += len(bucket.keys)
        if "per_residue" in self.fingerprint.pooling:
            rows = stored_residues(bucket.length, self.fingerprint.long_sequences)
            self.residues += int(rows.sum())
        self.devices.update(bucket.completion.devices)
        self.batch_dependent |= bucket.completion.batch_dependent
        for library, version in bucket.completion.versions.items():
            self.versions.setdefault(library, set()).add(version)

    @property
    def shapes(self) -> dict[str, tuple[int, int]]:
        """By representation: (n, D), or (R, D) per residue."""
        return {
            name: (self.residues if has_matrix(name) else self.vectors, self.dims.get(name, 0))
            for name in self.fingerprint.representations
        }

    @property
    def bytes(self) -> int:
        width = storage_bytes(self.fingerprint.storage_dtype)
        columns = 80 + 8 * (len(checksums.COLUMNS) + len(self.shapes))
        return columns * self.vectors + sum(
            width * rows * dim for rows, dim in self.shapes.values()
        )


def make_plan(sequences: Path, embedded: Path, store: Path) -> Plan:
    """Read every completion record, check that all belong together and that the parts are there,
    and count.
    """
    names = bucket_names(sequences)
    plan = Plan(read_completion(embedded / f"{names[0]}.json").fingerprint, names)
    for name in names:
        bucket = load_bucket(sequences, embedded, name)
        completion = bucket.completion
        if completion.fingerprint != plan.fingerprint:
            differences = "; ".join(completion.fingerprint.differences(plan.fingerprint))
            raise StoreError(
                f"{bucket.record}: made with other settings than that of bucket {names[0]} "
                f"({differences})",
                path=bucket.record,
                remedy=f"delete the records of the settings that you do not want and {RUN_AGAIN}",
            )
        parts = named_parts(bucket, store)
        plan.parts += parts
        if parts and not plan.dims:
            with read_part(store_folder(store, plan.fingerprint) / "parts" / parts[0].name) as part:
                plan.dims = part.dims
        plan.count(bucket)
        if "per_token" in plan.fingerprint.pooling:  # letters do not tell the rows
            plan.residues += int(locate(bucket, store).residues.sum())
    return plan
