"""The facts in the files of one model's campaign, for all that is written about it."""

import json
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from plm_embed.errors import StoreError, delete
from plm_embed.fingerprint import Fingerprint
from plm_embed.io.json_files import to_plain
from plm_embed.io.parquet import read_batches
from plm_embed.jobs.completion_record import Completion, completion_records, read_completion
from plm_embed.jobs.heartbeat import Heartbeat, heartbeats
from plm_embed.keys import bucket_names
from plm_embed.master.validation_record import VALIDATION, Norms, Validation, read_validation
from plm_embed.models.registry import MODELS
from plm_embed.models.weights import Manifest, caveat, read_record
from plm_embed.reading.find import masters
from plm_embed.reading.open import Embeddings
from plm_embed.reporting.outputs import CONFIG, RECORDS, reader
from plm_embed.sequences.summary import SUMMARY, Summary, read_summary
from plm_embed.wording import count, duration
from plm_embed.workflow.config import input_paths, input_tables
from plm_embed.workflow.kept_config import read_kept


@dataclass
class Facts:
    """The facts of one model's campaign; parts that do not exist yet are None or empty.

    results: the folder that the models of a campaign share; folder: that of the model; runs:
    completion records; rows, dim: of the master; names: its representations, the default one first;
    example: the id of a record with a vector; statuses, reasons: records by outcome, and skipped
    ones by reason.
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
    statuses: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)

    @property
    def status(self) -> str:
        """Return 'passed' or 'failed' as validated, else 'pending'; 'empty' for what passed without
        any vector.
        """
        status = self.validation.status if self.validation else "pending"
        return "empty" if status == "passed" and self.without_vectors else status

    @property
    def without_vectors(self) -> str:
        """Return why no record has a vector, in words; '' where one has, or nothing is gathered."""
        if not self.master or self.rows:
            return ""
        words = f"No record could be embedded: {self.skipped or 'there are none'}."
        config, _ = read_kept(self.folder / CONFIG)
        if config and self.summary and not self.summary.accepted:
            tables = {file.path for file in self.summary.inputs if file.format != "fasta"}
            pairs = zip(input_paths(config), input_tables(config), strict=True)
            for column in sorted({table.sequence for path, table in pairs if path in tables}):
                words += f" Is `{column}` the right column of sequences?"
        return words

    @property
    def skipped(self) -> str:
        """Return the numbers of skipped records by reason, in words."""
        return ", ".join(f"{number:,} {reason}" for reason, number in sorted(self.reasons.items()))

    @property
    def fingerprint(self) -> Fingerprint | None:
        """Return the fingerprint of the vectors."""
        return self.runs[-1].fingerprint if self.runs else None

    @property
    def outdated(self) -> str:
        """Return a warning when the master was gathered from other sequences; else ''."""
        counted = to_plain(self.summary) if self.summary else {}
        inputs = self.metadata.get("inputs") or {}
        if all(counted.get(name, count) == count for name, count in inputs.items()):
            return ""
        return (
            f"The sequences in {self.results / 'sequences'} have changed since the master was "
            "gathered: run the campaign again"
        )

    @property
    def norms(self) -> Norms | None:
        """Return the norms of the default representation, as validate counted them."""
        return self.validation.norms.get("".join(self.names[:1])) if self.validation else None

    @property
    def license(self) -> str:
        """Return the license of the published weights; '' of weights that nobody published."""
        model = MODELS.get(self.model)
        return model.license if model and model.trained else ""

    @property
    def reference(self) -> str:
        """Return the name of the program that vectors were compared with."""
        model = MODELS.get(self.model) or self.weights
        return model.family.reference.name if model else "the model's own modules"

    @property
    def caveat(self) -> str:
        """Return why the weights are not known to be the published ones; '' when they are."""
        return caveat(self.model, self.weights)

    @property
    def opening(self) -> str:
        """Return lines of Python that read a vector; '' while there are none, and for wrong
        ones.
        """
        if not self.master or not self.rows or self.status == "failed":
            return ""
        method, example = reader(self.names), repr(self.example or "an id")
        argument = f"[{example}]" if method == "get" else example
        folder = json.dumps(str(self.folder), ensure_ascii=False)  # a string of Python, too
        opened = f"embeddings = plm_embed.open({folder})"
        return f"import plm_embed\n{opened}\nembeddings.{method}({argument})"


def model_folders(path: Path) -> list[Path]:
    """Return the model folders of a results folder, by name; of a model's folder, itself."""
    if (path / "embedded").is_dir() and not (path / "sequences").exists():
        return [path]
    return sorted(folder.parent for folder in path.glob("*/embedded/"))


def collect(folder: Path) -> Facts:
    """Read the folder of a model, or a results folder with one model.

    Raises StoreError when no model has begun in it, or several have.
    """
    models = model_folders(folder)
    if len(models) > 1:
        remedy = f"name the folder of one: {', '.join(map(str, models))}"
        raise StoreError(f"{folder}: holds {len(models)} models", path=folder, remedy=remedy)
    if not models:
        remedy = "run the workflow first, or run it again if it was interrupted"
        raise StoreError(f"{folder}: no campaign in it yet", path=folder, remedy=remedy)
    (folder,) = models
    results = Path(os.path.normpath(folder / ".."))
    facts = Facts(results, folder, folder.resolve().name)
    if (results / "sequences" / SUMMARY).is_file():
        facts.summary = read_summary(results / "sequences")
    facts.runs = last_runs(folder, facts.summary)
    facts.attempts = heartbeats(folder)
    facts.validation = read_validation(folder / VALIDATION)
    facts.master = next(iter(masters(folder)), None)
    if facts.master:
        with Embeddings(facts.master) as embeddings:
            facts.metadata = embeddings.metadata
            facts.rows, facts.dim = embeddings.shape
            first = embeddings.resolved("emb")
            facts.names = tuple(sorted(embeddings.names, key=lambda name: name != first))
        facts.example = _example(facts.master.with_suffix(".parquet"))
    records = folder / RECORDS
    if records.is_file():
        for table in read_batches(records, ["status", "reason"], delete(records)):
            for column, counter in (("status", facts.statuses), ("reason", facts.reasons)):
                for entry in pc.value_counts(table[column].drop_null()).to_pylist():
                    counter[entry["values"]] += entry["counts"]
    weights, fingerprint = read_record(folder), facts.fingerprint
    if weights and fingerprint and weights.weights_sha256 == fingerprint.weights_sha256:
        facts.weights = weights
    return facts


def _example(index: Path) -> str:
    """Return one of the first ids, if possible one that different sequences do not share."""
    rows: dict[str, set[int]] = {}
    for table in read_batches(index, ["id", "row"], delete(index)):
        rows = rows or {id: set() for id in table["id"].slice(0, 10).to_pylist()}
        for line in table.filter(pc.is_in(table["id"], pa.array(list(rows)))).to_pylist():
            rows[line["id"]].add(line["row"])
    return min(rows, key=lambda id: len(rows[id]) > 1, default="")


def last_runs(folder: Path, summary: Summary | None) -> list[Completion]:
    """Return the completion records of a model's folder, by bucket, of the settings of the one that
    ended last. StoreError for a damaged one: it must not look like one that is not there yet.

    Records of other settings, or of an earlier and larger number of buckets, may lie beside them.
    """
    if not summary:
        return list(completion_records(folder / "embedded"))
    paths = (folder / "embedded" / f"{name}.json" for name in bucket_names(summary.buckets))
    runs = [read_completion(path) for path in paths if path.is_file()]
    last = max(runs, key=lambda run: run.ended, default=None)
    return [run for run in runs if last and run.fingerprint == last.fingerprint]


def speed(runs: Iterable[Completion]) -> str:
    """Return the tokens per second of a worker while it computed; '' where nothing was computed."""
    timed = [run for run in runs if run.tokens_per_second]
    seconds = sum(run.tokens / (run.tokens_per_second or 1) for run in timed)
    return f"{sum(run.tokens for run in timed) / seconds:,.0f}" if seconds else ""


def device_time(runs: Iterable[Completion]) -> str:
    """Return the time of whole jobs, on all their devices, in words."""
    return duration(sum(run.seconds * len(run.workers) for run in runs))


def reused(runs: Iterable[Completion]) -> str:
    """Return '3 vectors from the store'; '' for none. Those that an interrupted job of the same
    campaign computed count as in the store when it is run again.
    """
    number = sum(run.found for run in runs)
    return f"{count(number, 'vector')} from the store" if number else ""
