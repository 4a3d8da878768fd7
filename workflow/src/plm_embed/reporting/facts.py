"""The facts in the files of one model's campaign, for all that is written about it."""

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from plm_embed._version import __version__
from plm_embed.errors import StoreError, delete
from plm_embed.fingerprint import SPANS, Fingerprint, has_matrix
from plm_embed.io.files import whole_files
from plm_embed.io.json_files import to_plain
from plm_embed.io.parquet import read_batches
from plm_embed.jobs.completion_record import FOLDER, Completion, read_completion
from plm_embed.keys import bucket_names
from plm_embed.master.validation_record import VALIDATION, Norms, Validation, read_validation
from plm_embed.models.registry import MODELS
from plm_embed.models.weights import Manifest, caveat, read_record
from plm_embed.reading.open import Embeddings, masters
from plm_embed.reporting.outputs import CONFIG, RECORDS
from plm_embed.sequences.summary import SUMMARY, Summary, read_summary
from plm_embed.wording import count, duration
from plm_embed.workflow.config import input_paths, input_tables, read_kept


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
        words = "have changed since the master was gathered: run the campaign again"
        return f"The sequences in {self.results / 'sequences'} {words}"

    @property
    def reused(self) -> str:
        """Return '3 vectors from the store', also from interrupted jobs; '' for none."""
        number = sum(run.found for run in self.runs)
        return f"{count(number, 'vector')} from the store" if number else ""

    @property
    def norms(self) -> Norms | None:
        """Return the norms of the default representation, as validate counted them."""
        return self.validation.norms.get("".join(self.names[:1])) if self.validation else None

    @property
    def pooled(self) -> bool:
        """Return whether a sequence has a vector, and not only a matrix."""
        return not all(map(has_matrix, self.names))

    @property
    def license(self) -> str:
        """Return the license of the published weights; '' of weights that nobody published."""
        model = MODELS.get(self.model)
        return model.license if model and model.trained else ""

    @property
    def reference(self) -> str:
        """Return the name of the program that vectors were compared with."""
        model = MODELS.get(self.model) or (self.weights and self.weights.as_model)
        return model.family.reference.name if model else "the model's own modules"

    @property
    def caveat(self) -> str:
        """Return why the weights are not known to be the published ones; '' when they are."""
        return caveat(self.model, self.weights)

    @property
    def commit(self) -> str:
        """Return the commit of the workflow; '' where it is not known."""
        return str(self.metadata.get("workflow_commit", "")).removeprefix("unknown")

    @property
    def versions(self) -> dict[str, str]:
        """Return the versions of the software that computed the vectors."""
        return {"plm-embed": __version__, **self.metadata.get("library_versions", {})}

    @property
    def opening(self) -> str:
        """Return lines of Python that read a vector; '' while there are none, and for wrong
        ones.
        """
        if not self.rows or self.status == "failed":
            return ""
        method, example = "per_token" if SPANS in self.names else "per_residue", self.example
        reading = f"get([{example!r}])" if self.pooled else f"{method}({example!r})"
        opened = f"embeddings = plm_embed.open({str(self.folder)!r})"
        return f"import plm_embed\n{opened}\nembeddings.{reading}"


def model_folders(path: Path) -> list[Path]:
    """Return the model folders of a results folder, by name; of a model's folder, itself."""
    if (path / FOLDER).is_dir() and not (path / "sequences").exists():
        return [path]
    return sorted(folder.parent for folder in path.glob(f"*/{FOLDER}/"))


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
    paths = whole_files(folder / FOLDER, "*.json")
    names = set(bucket_names(summary.buckets)) if summary else {path.stem for path in paths}
    runs = [read_completion(path) for path in paths if path.stem in names]
    last = max(runs, key=lambda run: run.ended, default=None)
    return [run for run in runs if last and run.fingerprint == last.fingerprint]


def device_rows(runs: list[Completion]) -> Iterator[tuple[str, int, int, int, str, str]]:
    """Yield of each kind of device its name, the buckets, the sequences and tokens that were
    computed, the time of whole jobs on all their devices, and the median tokens per second of a
    worker while it computed, '' where nothing was.
    """
    for device in sorted({run.worker.device for run in runs}):
        jobs = [run for run in runs if run.worker.device == device]
        computed, tokens = sum(job.computed for job in jobs), sum(job.tokens for job in jobs)
        time = duration(sum(job.seconds * len(job.workers) for job in jobs))
        speeds = [job.tokens_per_second for job in jobs if job.tokens_per_second]
        yield device, len(jobs), computed, tokens, time, f"{median(speeds):,.0f}" if speeds else ""
