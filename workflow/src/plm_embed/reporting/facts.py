"""What the report tells: everything that the files of a results folder say about a campaign,
finished or not.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from plm_embed.errors import StoreError
from plm_embed.fingerprint import is_per_residue
from plm_embed.io.files import size
from plm_embed.io.parquet import read_batches, read_schema
from plm_embed.io.sealed import read_sealed
from plm_embed.jobs.attempts import Attempt, read_attempts
from plm_embed.jobs.completion import (
    Savings,
    campaign_records,
    completion_records,
    read_completion,
    savings,
)
from plm_embed.keys import bucket_names
from plm_embed.master.gather import INDEX_COLUMNS
from plm_embed.models import published
from plm_embed.models.manifest import Manifest, read_record
from plm_embed.models.registry import MODELS
from plm_embed.planning.costs import device_label
from plm_embed.reading.find import MAKE_AGAIN, MASTERS, masters
from plm_embed.reading.master import Embeddings
from plm_embed.sequences.summary import SUMMARY, read_summary

SAMPLE = 2000
"""Vectors on the map, evenly spaced in the order of the keys, which is a random order of the
sequences.
"""
COLORS = 8
"""Categories with a color of their own; the rest is one more."""


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


@dataclass(frozen=True)
class Sample:
    """Some vectors: coordinates (k, 2), norms (k,), and for each an id, a length and the color's
    category.
    """

    coordinates: NDArray[np.float64]
    explained: tuple[float, float]
    norms: NDArray[np.float64]
    ids: tuple[str, ...]
    lengths: NDArray[np.int32]
    column: str
    categories: tuple[str, ...]


@dataclass
class Facts:
    """All about one model's campaign; parts that do not exist yet are None or empty."""

    results: Path
    model: str
    summary: dict[str, Any] | None = None
    plan: dict[str, Any] | None = None
    runs: list[Run] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    spared: Savings | None = None
    fingerprint: dict[str, Any] | None = None
    weights: Manifest | None = None
    master: Path | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    validation: dict[str, Any] | None = None
    rows: int = 0
    dim: int = 0
    sample: Sample | None = None
    sizes: dict[str, int] = field(default_factory=dict)

    @property
    def outdated(self) -> str:
        """What to say when the master was gathered from other sequences than lie here now; empty
        otherwise.
        """
        return outdated(self.results / "sequences", self.summary or {}, self.metadata)

    @property
    def caveat(self) -> str:
        """In words, why the vectors are not known to be the published model's; empty when they
        are.
        """
        return published.caveat(self.model, self.weights)


def collect(results: Path) -> Facts:
    """Read a results folder. StoreError when there is nothing of a campaign in it."""
    models = sorted(path.parent for path in results.glob("*/embedded"))
    sequences = results / "sequences"
    summary = read_summary(sequences) if (sequences / SUMMARY).is_file() else None
    if not summary and not models:
        raise StoreError(
            f"{results}: nothing of a campaign in it yet; run the workflow first", path=results
        )
    newest = (
        max(models, key=lambda path: (path / "embedded").stat().st_mtime) if models else results
    )
    facts = Facts(results, newest.name if models else "", summary, _read_plan(results))
    facts.model = facts.model or (facts.plan or {}).get("model", "")
    if models:
        records = _records(newest / "embedded", summary)
        _add_runs(facts, records)
        facts.weights = weights_of(newest, (facts.fingerprint or {}).get("weights_sha256"))
        facts.attempts = read_attempts(newest)
        facts.spared = savings(records)
        facts.master = master = _master(newest)
        if master.is_file():
            _add_master(facts, master)
        facts.sizes = {"store": size(newest / "store")}
        facts.sizes |= {"master": size(master), "index": size(master.with_suffix(".parquet"))}
    facts.sizes |= {
        "sequences": size(results / "sequences"),
        "records": size(results / "records.parquet"),
    }
    facts.validation = read_validation(results)
    return facts


def outdated(sequences: Path, summary: Mapping[str, Any], metadata: Mapping[str, Any]) -> str:
    """What to say when a master with these attributes was gathered from other sequences than those
    of the summary.
    """
    said = metadata.get("inputs") or {}
    if all(summary.get(name, count) == count for name, count in said.items()):
        return ""
    return (
        f"{sequences / SUMMARY}: of other sequences than the master was "
        "gathered from; run `snakemake` again"
    )


def read_validation(results: Path) -> dict[str, Any] | None:
    """What validate found, None when it has not run. StoreError when validation.json was
    changed.
    """
    path = results / "validation.json"
    return (
        read_sealed(path, "a report of validate", "run `snakemake --forcerun validate`")
        if path.is_file()
        else None
    )


def _read_plan(results: Path) -> dict[str, Any] | None:
    path = results / "plan.json"
    remedy = "remove it, and run this again: the report goes without"
    return read_sealed(path, "a plan", remedy) if path.is_file() else None


def weights_of(folder: Path, sha256: str | None) -> Manifest | None:
    """What a model's folder says of the weights with this SHA-256, those that its vectors were
    computed with.
    """
    record = read_record(folder)
    return record if record and record.weights_sha256 == sha256 else None


def _records(embedded: Path, summary: dict[str, Any] | None) -> list[dict[str, Any]]:
    if not summary:
        return list(completion_records(embedded))
    for path in (embedded / f"{name}.json" for name in bucket_names(summary["buckets"])):
        if path.is_file():
            read_completion(
                path
            )  # one that is damaged must not look like one that is not there yet
    return campaign_records(embedded, summary["buckets"])


def _add_runs(facts: Facts, records: Sequence[Mapping[str, Any]]) -> None:
    for record in records:
        facts.fingerprint = dict(record["fingerprint"])
        worker = record["worker"]
        gpu = f" GPU {worker['gpu']}" if worker.get("gpu") else ""
        facts.runs.append(
            Run(
                bucket=record["bucket"],
                place=place(worker["host"], worker.get("job")),
                worker=place(f"{worker['host']}{gpu}", worker.get("job")),
                device=device_label(worker),
                started=record["started"],
                ended=record["ended"],
                seconds=record["seconds"],
                tokens=record["tokens"],
                tokens_per_second=record["tokens_per_second"] or 0.0,
                busy=record["busy"] or 0.0,
                unique=record["unique"],
                computed=record["computed"],
                found=record["found"] + record.get("reused", 0),
                skipped=len(record["skipped"]),
            )
        )


def place(host: str, job: str | None) -> str:
    """'x3001, job 17', or the host alone outside of a scheduler."""
    return f"{host}, job {job}" if job else host


def _master(folder: Path) -> Path:
    """The master of a model's folder. Earlier versions gave it ESM-2's name, whatever the model
    was.
    """
    found = masters(folder)
    model = MODELS.get(folder.name)
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
            facts.sample = _sample(master.with_suffix(".parquet"), rows, vectors, lengths)


def _sample(
    index: Path, rows: NDArray[np.int64], vectors: NDArray[np.float64], lengths: NDArray[np.int32]
) -> Sample:
    coordinates, explained = principal_components(vectors)
    kept = [name for name in read_schema(index, MAKE_AGAIN).names if name not in INDEX_COLUMNS]
    ids: dict[int, str] = {}
    values: dict[str, dict[int, str]] = {name: {} for name in kept}
    for batch in read_batches(index, remedy=MAKE_AGAIN):
        table = batch.filter(pc.is_in(batch["row"], value_set=pa.array(rows)))
        numbers = table["row"].to_pylist()
        for row, id in zip(numbers, table["id"].to_pylist(), strict=True):
            ids.setdefault(row, id)
        for name in kept:
            for row, value in zip(numbers, table[name].to_pylist(), strict=True):
                if value:
                    values[name].setdefault(row, value)
    column = _coloring(values, len(rows))
    categories = [values[column].get(row, "no value") if column else "" for row in rows.tolist()]
    return Sample(
        coordinates=coordinates,
        explained=explained,
        norms=np.linalg.norm(vectors, axis=1),
        ids=tuple(ids.get(row, "") for row in rows.tolist()),
        lengths=lengths,
        column=column,
        categories=tuple(_most_frequent(categories)),
    )


def principal_components(
    vectors: NDArray[np.float64],
) -> tuple[NDArray[np.float64], tuple[float, float]]:
    """Coordinates (k, 2) along the first two principal components, and the share of the variance of
    each.
    """
    centered = vectors - vectors.mean(axis=0)
    left, singular, _ = np.linalg.svd(centered, full_matrices=False)
    variance = singular**2
    shares = variance / (variance.sum() or 1.0)
    return left[:, :2] * singular[:2], (float(shares[0]), float(shares[1]))


def _coloring(values: dict[str, dict[int, str]], count: int) -> str:
    """The kept column that says most with few colors: the one whose most frequent values cover
    most rows.
    """

    def covered(name: str) -> float:
        found = _counts(list(values[name].values()))
        return sum(sorted(found.values(), reverse=True)[:COLORS]) / count if len(found) > 1 else 0.0

    best = max(values, key=covered, default="")
    return best if best and covered(best) > 0 else ""


def _counts(values: Sequence[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for value in values:
        found[value] = found.get(value, 0) + 1
    return found


def _most_frequent(values: Sequence[str]) -> list[str]:
    """The values, all but the most frequent ones replaced by 'other'."""
    counts = _counts(values)
    named = set(sorted(counts, key=lambda value: (-counts[value], value))[:COLORS])
    return [value if value in named else "other" for value in values]
