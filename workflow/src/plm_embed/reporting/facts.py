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
from plm_embed.fingerprint import Fingerprint, is_per_residue
from plm_embed.io.files import size
from plm_embed.jobs.attempts import Attempt, read_attempts
from plm_embed.jobs.completion_record import (
    Completion,
    Savings,
    campaign_records,
    completion_records,
    read_completion,
    savings,
)
from plm_embed.keys import bucket_names
from plm_embed.master.validation import VALIDATION, Validation, read_validation
from plm_embed.models import published
from plm_embed.models.manifest import Manifest, read_record
from plm_embed.models.registry import MODELS
from plm_embed.planning.costs import device_label
from plm_embed.planning.forecast import PLAN, Plan, read_plan
from plm_embed.reading.find import MASTERS, masters
from plm_embed.reading.master import Embeddings
from plm_embed.reporting.sample import SAMPLE, Sample, take_sample
from plm_embed.sequences.summary import SUMMARY, Summary, read_summary
from plm_embed.typed_json import to_plain


@dataclass(frozen=True)
class Run:
    """One bucket's computation, from its completion record. seconds and tokens_per_second of the
    whole job.

    place: host and job, as attempts know them; worker: the same with the GPU.
    """

    bucket: str
    place: str
    worker: str
    device: str
    started: str
    ended: str
    seconds: float
    tokens: int
    tokens_per_second: float
    busy: float
    unique: int
    computed: int
    found: int
    skipped: int


@dataclass
class Facts:
    """All about one model's campaign; parts that do not exist yet are None or empty.

    results: the folder that the models of a campaign share; folder: that of the model.
    """

    results: Path
    folder: Path
    model: str
    summary: Summary | None = None
    plan: Plan | None = None
    runs: list[Run] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    spared: Savings | None = None
    fingerprint: Fingerprint | None = None
    weights: Manifest | None = None
    master: Path | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    validation: Validation | None = None
    rows: int = 0
    dim: int = 0
    sample: Sample | None = None
    sizes: dict[str, int] = field(default_factory=dict)

    @property
    def outdated(self) -> str:
        """What to say when the master was gathered from other sequences than lie here now; empty
        otherwise.
        """
        return outdated(self.results / "sequences", self.summary, self.metadata)

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
        return published.caveat(self.model, self.weights)


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
    # earlier versions kept the plan in the results folder
    begun = (path / "embedded").is_dir() or (path / PLAN).is_file()
    return begun and not (path / "sequences").exists()


def collect(folder: Path) -> Facts:
    """Read the folder of a model, or a results folder with one model or none yet. StoreError when
    there is nothing of a campaign in it, or there are several models.
    """
    models = model_folders(folder)
    if len(models) > 1:
        raise StoreError(
            f"{folder}: holds {len(models)} models; name the folder of one: "
            f"{', '.join(map(str, models))}",
            path=folder,
        )
    if not models:
        return Facts(folder, folder, "", _summary(folder))
    (folder,) = models
    results = Path(os.path.normpath(folder / ".."))
    summary = _summary(results, required=not (folder / "embedded").exists())
    facts = Facts(results, folder, folder.resolve().name, summary, read_plan(folder / PLAN))
    records = _records(folder / "embedded", summary)
    _add_runs(facts, records)
    sha256 = facts.fingerprint.weights_sha256 if facts.fingerprint else None
    facts.weights = weights_of(folder, sha256)
    facts.attempts = read_attempts(folder)
    facts.spared = savings(records)
    facts.master = master = _master(folder, facts.model)
    if master.is_file():
        _add_master(facts, master)
    facts.sizes = {
        "store": size(folder / "store"),
        "master": size(master),
        "index": size(master.with_suffix(".parquet")),
        "sequences": size(results / "sequences"),
        "records": size(folder / "records.parquet"),
    }
    facts.validation = read_validation(folder / VALIDATION)
    return facts


def _summary(results: Path, required: bool = True) -> Summary | None:
    sequences = results / "sequences"
    if required and not (sequences / SUMMARY).is_file():
        raise StoreError(
            f"{results}: nothing of a campaign in it yet; run the workflow first", path=results
        )
    return read_summary(sequences) if (sequences / SUMMARY).is_file() else None


def outdated(sequences: Path, summary: Summary | None, metadata: Mapping[str, Any]) -> str:
    """What to say when a master with these attributes was gathered from other sequences than those
    of the summary.
    """
    counted = to_plain(summary) if summary else {}
    said = metadata.get("inputs") or {}
    if all(counted.get(name, count) == count for name, count in said.items()):
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
    for path in (embedded / f"{name}.json" for name in bucket_names(summary.buckets)):
        if path.is_file():
            read_completion(
                path
            )  # one that is damaged must not look like one that is not there yet
    return campaign_records(embedded, summary.buckets)


def _add_runs(facts: Facts, records: Sequence[Completion]) -> None:
    for record in records:
        facts.fingerprint = record.fingerprint
        worker = record.worker
        gpu = f" GPU {worker.gpu}" if worker.gpu else ""
        facts.runs.append(
            Run(
                bucket=record.bucket,
                place=place(worker.host, worker.job),
                worker=place(f"{worker.host}{gpu}", worker.job),
                device=device_label(worker.device, worker.threads),
                started=record.started,
                ended=record.ended,
                seconds=record.seconds,
                tokens=record.tokens,
                tokens_per_second=record.tokens_per_second or 0.0,
                busy=record.busy or 0.0,
                unique=record.unique,
                computed=record.computed,
                found=record.found + record.reused,
                skipped=len(record.skipped),
            )
        )


def place(host: str, job: str | None) -> str:
    """'x3001, job 17', or the host alone outside of a scheduler."""
    return f"{host}, job {job}" if job else host


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
        pooled = [name for name in embeddings.names if not is_per_residue(name)]
        if pooled and facts.rows >= 3:
            rows = np.linspace(0, facts.rows - 1, min(SAMPLE, facts.rows)).astype(np.int64)
            vectors = embeddings.by_key(embeddings.keys[rows], pooled[0]).astype(np.float64)
            lengths = embeddings.lengths[rows]
            facts.sample = take_sample(master.with_suffix(".parquet"), rows, vectors, lengths)
