"""The completion records of a campaign, added up before anybody looks at the master."""

from dataclasses import dataclass, field
from pathlib import Path

from plm_embed.errors import StoreError, delete
from plm_embed.fingerprint import Fingerprint, has_matrix, storage_bytes
from plm_embed.io.files import sha256_file
from plm_embed.jobs.bucket import Bucket, load_bucket
from plm_embed.sequence_windows import stored_residues
from plm_embed.sequences.summary import bucket_names
from plm_embed.store import checksums
from plm_embed.store.blocks import locate
from plm_embed.store.parts import PartInfo, read_part
from plm_embed.store.store import store_folder


@dataclass
class Campaign:
    """The buckets of a campaign whose completion records were added: n vectors in `vectors`, R rows
    per residue in `residues`, D by representation in `dims`.

    sequences: folder of deduplicate; embedded: that of the completion records. rows: the first row
    of each bucket in the master, in key order; parts: by name; records: the completion records that
    name a part.
    """

    sequences: Path
    embedded: Path
    store: Path
    fingerprint: Fingerprint = field(init=False)
    rows: dict[str, int] = field(default_factory=dict)
    parts: dict[str, PartInfo] = field(default_factory=dict)
    records: dict[str, list[Path]] = field(default_factory=dict)
    dims: dict[str, int] = field(default_factory=dict)
    vectors: int = 0
    residues: int = 0
    devices: set[str] = field(default_factory=set)
    versions: dict[str, set[str]] = field(default_factory=dict)
    batch_dependent: bool = False

    def bucket(self, name: str) -> Bucket:
        """Read a bucket's keys and completion record. StoreError where one is not whole."""
        return load_bucket(self.sequences, self.embedded, name)

    def add(self, bucket: Bucket) -> None:
        """Count a bucket. StoreError where its completion record does not go with the others."""
        completion = bucket.completion
        if not self.rows:
            self.fingerprint = completion.fingerprint
        elif differences := completion.fingerprint.differences(self.fingerprint):
            raise StoreError(
                f"{bucket.record}: made with other settings than that of bucket "
                f"{next(iter(self.rows))} ({'; '.join(differences)})",
                path=bucket.record,
                remedy=delete(self.embedded),
            )
        for part in completion.parts:
            if self.parts.setdefault(part.name, part) != part:
                raise StoreError(
                    f"{bucket.record}: another size or hash of {part.name} than in "
                    f"{self.records[part.name][0].name}",
                    path=bucket.record,
                    remedy=delete(bucket.record, *self.records[part.name]),
                )
            self.records.setdefault(part.name, []).append(bucket.record)
        self.rows[bucket.name] = self.vectors
        self.vectors += len(bucket.keys)
        if "per_residue" in self.fingerprint.pooling:
            rows = stored_residues(bucket.length, self.fingerprint.long_sequences)
            self.residues += int(rows.sum())
        self.devices.update(completion.devices)
        self.batch_dependent |= completion.batch_dependent
        for library, version in completion.versions.items():
            self.versions.setdefault(library, set()).add(version)

    @property
    def parts_folder(self) -> Path:
        """The folder of the parts."""
        return store_folder(self.store, self.fingerprint) / "parts"

    def wrong_parts(self, *, hashed: bool) -> dict[str, str]:
        """Return what is wrong with parts that completion records name, by name; `hashed`: whether
        all of their bytes are read.
        """
        wrong = {}
        for name, info in sorted(self.parts.items()):
            path = self.parts_folder / name
            if not path.is_file():
                wrong[name] = f"missing, but {self.records[name][0]} names it"
            elif (size := path.stat().st_size) != info.bytes:
                wrong[name] = f"has {size:,} bytes instead of {info.bytes:,} (truncated?)"
            elif hashed and sha256_file(path) != info.sha256:
                wrong[name] = "its bytes are not those that were written"
        return wrong

    def part_remedy(self, *names: str) -> str:
        """Return what to delete because of damaged or missing parts."""
        records = dict.fromkeys(record for name in names for record in self.records[name])
        few = len(records) <= 3
        return delete(
            *(self.parts_folder / name for name in names),
            *(records if few else [self.embedded]),
        )

    @property
    def shapes(self) -> dict[str, tuple[int, int]]:
        """Shapes by representation: (n, D), or (R, D) per residue."""
        return {
            name: (self.residues if has_matrix(name) else self.vectors, self.dims.get(name, 0))
            for name in self.fingerprint.representations
        }

    @property
    def bytes(self) -> int:
        """Bytes that the master takes."""
        width = storage_bytes(self.fingerprint.storage_dtype)
        columns = 80 + 8 * (len(checksums.COLUMNS) + len(self.shapes))
        return columns * self.vectors + sum(
            width * rows * dim for rows, dim in self.shapes.values()
        )


def read_campaign(sequences: Path, embedded: Path, store: Path) -> Campaign:
    """Read all completion records. StoreError unless they go together and their parts are there."""
    campaign = Campaign(sequences, embedded, store)
    for name in bucket_names(sequences):
        campaign.add(campaign.bucket(name))
    wrong = campaign.wrong_parts(hashed=False)
    for name, message in wrong.items():
        path = campaign.parts_folder / name
        raise StoreError(f"{path}: {message}", path=path, remedy=campaign.part_remedy(*wrong))
    for path in (campaign.parts_folder / name for name in [*campaign.parts][:1]):
        with read_part(path) as part:
            campaign.dims = part.dims
    if "per_token" in campaign.fingerprint.pooling:  # letters do not tell the rows
        for bucket in map(campaign.bucket, campaign.rows):
            campaign.residues += int(locate(bucket.wanted, store).residues.sum())
    return campaign
