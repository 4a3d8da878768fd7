"""What the report tells: everything that its files say about one model of a campaign, finished
or not.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from plm_embed.errors import StoreError
from plm_embed.fingerprint import Fingerprint, has_matrix
from plm_embed.io.files import size
from plm_embed.jobs.completion_record import (
    Completion,
    Savings,
    completion_records,
    of_last_settings,
    read_completion,
    savings,
)
from plm_embed.jobs.heartbeat import Heartbeat, heartbeats, store_of
from plm_embed.keys import bucket_names
from plm_embed.master.attributes import is_of
from plm_embed.master.validation_record import VALIDATION, Norms, Validation, read_validation
from plm_embed.models.manifest import Manifest, caveat, read_record
from plm_embed.models.registry import MODELS
from plm_embed.reading.find import MASTERS, masters
from plm_embed.reading.open import Embeddings
from plm_embed.reporting.plots.sample import SAMPLE, Sample, records_of, take_sample
from plm_embed.reporting.runs import Run, runs_of
from plm_embed.reporting.skipped import first_skipped
from plm_embed.sequences.summary import SUMMARY, Summary, read_summary

LISTED = 10
"""Unusual vectors."""


@dataclass
class Facts:
    """All about one model's campaign; parts that do not exist yet are None or empty.

    results: the folder that the models of a campaign share; folder: that of the model.
    """

    results: Path
    folder: Path
    model: str
    summary: Summary | None = None
    runs: list[Run] = field(default_factory=list)
    attempts: list[Heartbeat] = field(default_factory=list)
    spared: Savings | None = None
    fingerprint: Fingerprint | None = None
    weights: Manifest | None = None
    master: Path | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    validation: Validation | None = None
    rows: int = 0
    dim: int = 0
    names: tuple[str, ...] = ()
    """Of the master's representations."""
    example: str = ""
    """The id of a record with a vector."""
    sample: Sample | None = None
    odd: dict[int, str] = field(default_factory=dict)
    """Ids of the rows that validate found unusual."""
    skipped: list[tuple[str, ...]] = field(default_factory=list)
    """The first records without a vector, see `skipped.COLUMNS`."""
    sizes: dict[str, int] = field(default_factory=dict)

    @property
    def outdated(self) -> str:
        """What to say when the master was gathered from other sequences than lie here now; empty
        otherwise.
        """
        return outdated(self.results / "sequences", self.summary, self.metadata)

    @property
    def norms(self) -> Norms | None:
        """Of the first representation, as validate found them."""
        return next(iter(self.validation.norms.values()), None) if self.validation else None

    @property
    def license(self) -> str:
        """Of the model's published weights."""
        return license_of(self.model)

    @property
    def reference(self) -> str:
        """What vectors were compared with."""
        model = MODELS.get(self.model)
        return model.family.reference_name if model else "the model's own modules"

    @property
    def caveat(self) -> str:
        """In words, why the vectors are not known to be the published model's; empty when they
        are.
        """
        return caveat(self.model, self.weights)


def license_of(name: str) -> str:
    """What the publisher of a model's weights allows; empty of weights that were never
    published.
    """
    model = MODELS.get(name)
    return model.license if model and model.trained else ""


def model_folders(path: Path) -> list[Path]:
    """The folders of the models in a results folder that something is known of, by name; of a
    model's folder, itself.
    """
    if _is_of_a_model(path):
        return [path]
    return sorted(filter(_is_of_a_model, path.glob("*/")))


def _is_of_a_model(path: Path) -> bool:
    return (path / "embedded").is_dir() and not (path / "sequences").exists()


def collect(folder: Path) -> Facts:
    """Read the folder of a model, or a results folder with one model or none yet. StoreError when
    there is nothing of a campaign in it, or there are several models.
    """
    models = model_folders(folder)
    if len(models) > 1:
        raise StoreError(
            f"{folder}: holds {len(models)} models",
            path=folder,
            remedy=f"name the folder of one: {', '.join(map(str, models))}",
        )
    if not models:
        return Facts(folder, folder, "", _summary(folder))
    (folder,) = models
    results = Path(os.path.normpath(folder / ".."))
    summary = _summary(results, required=not (folder / "embedded").exists())
    facts = Facts(results, folder, folder.resolve().name, summary)
    records = _records(folder / "embedded", summary)
    _add_runs(facts, records)
    sha256 = facts.fingerprint.weights_sha256 if facts.fingerprint else None
    facts.weights = weights_of(folder, sha256)
    facts.attempts = heartbeats(folder)
    facts.spared = savings(records)
    facts.validation = read_validation(folder / VALIDATION)
    facts.master = master = _master(folder, facts.model)
    if master.is_file():
        _add_master(facts, master)
    facts.sizes = {
        "store": size(store_of(folder)),
        "master": size(master),
        "index": size(master.with_suffix(".parquet")),
        "sequences": size(results / "sequences"),
        "records": size(folder / "records.parquet"),
    }
    known = (folder / "records.parquet", results / "sequences" / "records.parquet")
    facts.skipped = next((first_skipped(path) for path in known if path.is_file()), [])
    return facts


def _summary(results: Path, required: bool = True) -> Summary | None:
    sequences = results / "sequences"
    if required and not (sequences / SUMMARY).is_file():
        raise StoreError(
            f"{results}: nothing of a campaign in it yet",
            path=results,
            remedy="run the workflow first",
        )
    return read_summary(sequences) if (sequences / SUMMARY).is_file() else None


def outdated(sequences: Path, summary: Summary | None, metadata: Mapping[str, Any]) -> str:
    """What to say when a master with these attributes was gathered from other sequences than those
    of the summary.
    """
    if summary is None or is_of(metadata.get("inputs") or {}, summary):
        return ""
    return (
        f"{sequences / SUMMARY}: of other sequences than the master was "
        "gathered from; run `snakemake` again"
    )


def weights_of(folder: Path, sha256: str | None) -> Manifest | None:
    """What a model's folder says of the weights with this SHA-256, those that its vectors were
    computed with.
    """
    record = read_record(folder)
    return record if record and record.weights_sha256 == sha256 else None


def _records(embedded: Path, summary: Summary | None) -> list[Completion]:
    if not summary:
        return list(completion_records(embedded))
    paths = (embedded / f"{name}.json" for name in bucket_names(summary.buckets))
    # one that is damaged must not look like one that is not there yet
    return of_last_settings(read_completion(path) for path in paths if path.is_file())


def _add_runs(facts: Facts, records: Sequence[Completion]) -> None:
    facts.runs = runs_of(records)
    for record in records:
        facts.fingerprint = record.fingerprint


def _master(folder: Path, name: str) -> Path:
    """The master of a model's folder. Earlier versions gave it ESM-2's name, whatever the model
    was.
    """
    found = masters(folder)
    model = MODELS.get(name)
    own = folder / f"{model.family.master}.h5" if model else folder / MASTERS
    return own if own in found or not found else found[0]


def _add_master(facts: Facts, master: Path) -> None:
    with Embeddings(master) as embeddings:
        facts.metadata = embeddings.metadata
        facts.rows, facts.dim = len(embeddings), embeddings.dim
        facts.names = tuple(embeddings.names)
        rows = np.linspace(0, facts.rows - 1, min(SAMPLE, facts.rows)).astype(np.int64)
        unusual = {one.row for one in norms.listed[:LISTED]} if (norms := facts.norms) else set()
        index = master.with_suffix(".parquet")
        records = records_of(index, unusual.union(rows.tolist()))
        facts.example = next((id for id in records.ids.values() if id), "")
        facts.odd = {row: records.ids.get(row, "") for row in unusual}
        pooled = [name for name in embeddings.names if not has_matrix(name)]
        if pooled and facts.rows >= 3:
            vectors = embeddings.rows(rows.tolist(), pooled[0]).astype(np.float64)
            lengths = embeddings.lengths_of(rows)
            facts.sample = take_sample(records, rows.tolist(), vectors, lengths)
