"""The facts in the files of one model's campaign, for all that is written about it."""

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from plm_embed.errors import StoreError
from plm_embed.fingerprint import Fingerprint
from plm_embed.io.files import size
from plm_embed.jobs.completion_record import (
    Completion,
    completion_records,
    of_last_settings,
    read_completion,
)
from plm_embed.jobs.heartbeat import Heartbeat, heartbeats, store_of
from plm_embed.keys import bucket_names
from plm_embed.master.attributes import is_of
from plm_embed.master.validation_record import VALIDATION, Norms, Validation, read_validation
from plm_embed.models.manifest import Manifest, caveat, read_record
from plm_embed.models.registry import MODELS
from plm_embed.reading.find import masters
from plm_embed.reading.open import Embeddings
from plm_embed.reporting.maps import Map, first_records, make_map
from plm_embed.reporting.outputs import RECORDS, skipped_records
from plm_embed.sequences.summary import SUMMARY, Summary, read_summary

LISTED = 10
"""Vectors with unusual norms that are named."""
LISTED_SKIPPED = 20
"""Records without a vector that are named."""


@dataclass
class Facts:
    """The facts of one model's campaign; parts that do not exist yet are None or empty.

    results: the folder that the models of a campaign share; folder: that of the model; runs:
    completion records; names: representations of the master; example: the id of a record with a
    vector; unusual: ids of the rows with unusual norms; skipped: the first records without a
    vector, see `outputs.SKIPPED_COLUMNS`; sizes: bytes.
    """

    results: Path
    folder: Path
    model: str
    summary: Summary | None = None
    runs: list[Completion] = field(default_factory=list)
    attempts: list[Heartbeat] = field(default_factory=list)
    weights: Manifest | None = None
    master: Path | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    validation: Validation | None = None
    rows: int = 0
    dim: int = 0
    names: tuple[str, ...] = ()
    example: str = ""
    map: Map | None = None
    unusual: dict[int, str] = field(default_factory=dict)
    skipped: list[tuple[str, ...]] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)

    @property
    def status(self) -> str:
        """Return 'passed' or 'failed' as validated, else 'pending'."""
        return self.validation.status if self.validation else "pending"

    @property
    def fingerprint(self) -> Fingerprint | None:
        """Return the fingerprint of the vectors."""
        return self.runs[-1].fingerprint if self.runs else None

    @property
    def outdated(self) -> str:
        """Return a warning when the master was gathered from other sequences; else ''."""
        return outdated(self.results / "sequences", self.summary, self.metadata)

    @property
    def norms(self) -> Norms | None:
        """Return the norms of the first representation, as validate counted them."""
        return next(iter(self.validation.norms.values()), None) if self.validation else None

    @property
    def license(self) -> str:
        """Return the license of the model's published weights."""
        return license_of(self.model)

    @property
    def reference(self) -> str:
        """Return the name of the program that vectors were compared with."""
        model = MODELS.get(self.model)
        return model.family.reference_name if model else "the model's own modules"

    @property
    def caveat(self) -> str:
        """Return why the weights are not known to be the published ones; '' when they are."""
        return caveat(self.model, self.weights)


def license_of(name: str) -> str:
    """Return the license of a model's published weights; '' of weights that nobody published."""
    model = MODELS.get(name)
    return model.license if model and model.trained else ""


def outdated(sequences: Path, summary: Summary | None, metadata: Mapping[str, Any]) -> str:
    """Return a warning when a master with these attributes was gathered from other sequences than
    those of the summary; else ''.
    """
    if summary is None or is_of(metadata.get("inputs") or {}, summary):
        return ""
    return (
        f"The sequences in {sequences} have changed since the master was gathered: run the "
        "campaign again"
    )


def weights_of(folder: Path, sha256: str | None) -> Manifest | None:
    """Return the record of the weights with this SHA-256 in a model's folder."""
    record = read_record(folder)
    return record if record and record.weights_sha256 == sha256 else None


def model_folders(path: Path) -> list[Path]:
    """Return the model folders of a results folder, by name; of a model's folder, itself."""
    if (path / "embedded").is_dir() and not (path / "sequences").exists():
        return [path]
    return sorted(folder.parent for folder in path.glob("*/embedded/"))


def collect(folder: Path) -> Facts:
    """Read the folder of a model, or a results folder with at most one.

    Raises StoreError when there is nothing of a campaign in it, or several models are.
    """
    models = model_folders(folder)
    if len(models) > 1:
        remedy = f"name the folder of one: {', '.join(map(str, models))}"
        raise StoreError(f"{folder}: holds {len(models)} models", path=folder, remedy=remedy)
    results = Path(os.path.normpath(models[0] / "..")) if models else folder
    sequences = results / "sequences"
    summary = read_summary(sequences) if (sequences / SUMMARY).is_file() else None
    if not models and summary is None:
        what = f"{folder}: holds nothing of a campaign yet"
        raise StoreError(what, path=folder, remedy="run the workflow first")
    if not models:
        return Facts(folder, folder, "", summary)
    (folder,) = models
    facts = Facts(results, folder, folder.resolve().name, summary)
    if summary:
        paths = (folder / "embedded" / f"{name}.json" for name in bucket_names(summary.buckets))
        # a damaged one must not look like one that is not there yet
        facts.runs = of_last_settings(read_completion(path) for path in paths if path.is_file())
    else:
        facts.runs = list(completion_records(folder / "embedded"))
    sha256 = facts.fingerprint.weights_sha256 if facts.fingerprint else None
    facts.weights = weights_of(folder, sha256)
    facts.attempts = heartbeats(folder)
    facts.validation = read_validation(folder / VALIDATION)
    facts.sizes = {"store": size(store_of(folder)), "sequences": size(sequences)}
    for path in masters(folder):
        facts.sizes |= {"master": size(path), "index": size(path.with_suffix(".parquet"))}
        _read_master(facts, path)
    records = (folder / RECORDS, sequences / RECORDS)
    for path in [path for path in records if path.is_file()][:1]:
        facts.skipped = list(islice(skipped_records(path), LISTED_SKIPPED))
        facts.sizes["records"] = size(path)
    return facts


def _read_master(facts: Facts, master: Path) -> None:
    facts.master, index = master, master.with_suffix(".parquet")
    with Embeddings(master) as embeddings:
        facts.metadata = embeddings.metadata
        facts.rows, facts.dim = len(embeddings), embeddings.dim
        facts.names = tuple(embeddings.names)
        facts.map = make_map(embeddings, index, facts.folder / RECORDS)
    if not facts.rows:  # every record was skipped
        return
    rows = {0, *(outlier.row for outlier in facts.norms.listed[:LISTED])} if facts.norms else {0}
    table = first_records(index, rows)
    facts.unusual = dict(zip(table["row"].to_pylist(), table["id"].to_pylist(), strict=True))
    # an id that different sequences share would not open one vector
    counts = Counter(facts.map.data["ids"] if facts.map else facts.unusual.values())
    facts.example = min(counts, key=lambda id: counts[id], default="")
