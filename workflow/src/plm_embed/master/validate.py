"""The validate job: proof that the master is complete and right, or a list of what is wrong.

Everything is read again: completion records, parts, the master (each row against its part, bit for
bit), the index and the records. Some rows are compared with what the reference path computes.
"""

import logging
from collections import Counter
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa

from plm_embed.accuracy import remark
from plm_embed.errors import PlmEmbedError, delete
from plm_embed.fingerprint import columns, has_matrix
from plm_embed.io.files import atomic_path, sha256_file
from plm_embed.io.json_files import write_sealed
from plm_embed.io.parquet import read_batches
from plm_embed.jobs.completion_record import FOLDER
from plm_embed.keys import bucket_names
from plm_embed.master.campaign import Campaign
from plm_embed.master.row_checks import check_rows
from plm_embed.master.spot_checks import check_spots
from plm_embed.master.tables import Tables, record_name
from plm_embed.master.validation_record import PROOF, VALIDATION, Problem, Validation
from plm_embed.models.weights import MANIFEST, RECORD, read_manifest
from plm_embed.sequences.summary import read_summary
from plm_embed.store.checksums import check_attributes as check_seal
from plm_embed.store.hdf5 import open_hdf5, storage_dtype, trailing_bytes
from plm_embed.store.parts import Part, column_types
from plm_embed.store.store import FINGERPRINT, part_names
from plm_embed.wording import now

log = logging.getLogger(__name__)


def validate(master: Path, store: Path, weights: Path, spot_checks: int) -> Validation:
    """Check a gathered campaign: a master and the files around it in the results folder.

    Writes validation.json beside the master in either case, and checksums.sha256, for `sha256sum
    -c` in its own folder, only when nothing is wrong. `spot_checks` random rows are compared with
    what the reference path of the model's family computes. StoreError, before anything changes,
    when there are no sequences to compare with.
    """
    folder, index = master.parent, master.with_suffix(".parquet")
    sequences, embedded = folder.parent / "sequences", folder / FOLDER
    summary = read_summary(sequences)
    records, report, checksums = (folder / name for name in ("records.parquet", VALIDATION, PROOF))
    checksums.unlink(missing_ok=True)
    validation = Validation(status="passed", checks=[])
    campaign = Campaign(sequences, embedded, store)
    check_completion_records(validation, campaign)
    if campaign.rows:
        validation.fingerprint, validation.counts.vectors = campaign.fingerprint, campaign.vectors
        validation.counts.unique = summary.unique
        check_parts(validation, campaign)
        check_weights(validation, campaign, weights)
        meaning, again = "The file with all vectors can be opened and read.", delete(master)
        with (
            validation.check("master", meaning, again) as problem,
            open_hdf5(master, again) as file,
        ):
            if surplus := trailing_bytes(master):
                problem(f"{master}: {surplus:,} bytes follow its end")
            check_attributes(validation, file, campaign)
            if check_layout(validation, file, campaign):
                check_rows(validation, file, campaign)
                check_spots(validation, master, campaign, weights, spot_checks)
        check_tables(validation, campaign, index, records)
    for note in filter(None, (validation.rounding, validation.not_compared)):
        log.warning("%s", note)
    paths = (path for path in (master, index, records) if path.is_file())
    validation.files = {path.name: sha256_file(path) for path in paths}
    validation.finished = now()
    write_sealed(report, validation)
    if validation.status == "passed":
        files = validation.files | {report.name: sha256_file(report)}
        with atomic_path(checksums) as temporary:
            lines = (f"{digest}  {name}\n" for name, digest in files.items())
            temporary.write_text("".join(lines), encoding="utf-8")
    return validation


def check_completion_records(validation: Validation, campaign: Campaign) -> None:
    """Add all sound records to the campaign."""
    with validation.check(
        "completion records",
        "Every bucket has a record of the job that finished it, and all jobs used the same "
        "settings.",
    ) as problem:
        for name in bucket_names(read_summary(campaign.sequences).buckets):
            try:
                campaign.add(name)
            except PlmEmbedError as error:
                problem(error)
        if not campaign.rows:
            problem(f"{campaign.embedded}: no bucket has an intact completion record")


def check_parts(validation: Validation, campaign: Campaign) -> None:
    """Compare the parts with what completion records say, and open each that is in the store."""
    with validation.check(
        "parts", "Every file that the jobs wrote is there, unchanged since it was written."
    ) as problem:
        for error in campaign.wrong_parts(hashed=True):
            problem(error)
    folder, fingerprint = campaign.parts_folder, campaign.fingerprint
    with validation.check(
        "fingerprints in the store", "All stored vectors were computed with exactly these settings."
    ) as problem:
        note, expected = folder.with_name(FINGERPRINT), fingerprint.to_json().encode()
        if not note.is_file() or note.read_bytes().strip() != expected:  # a job writes it anew
            fault = "missing, or not the fingerprint of the completion records"
            problem(f"{note}: {fault}", delete(note, campaign.embedded))
        for name in part_names(folder):
            try:
                with Part(folder / name) as part:
                    part.check(fingerprint)
            except PlmEmbedError as error:
                problem(error.message, campaign.part_remedy(name))


def check_weights(validation: Validation, campaign: Campaign, weights: Path) -> None:
    """Compare a folder of prepared weights with the fingerprint."""
    fingerprint, record = campaign.fingerprint, campaign.embedded.with_name(RECORD)
    meaning = "The weights are the ones that the vectors were computed with."
    with validation.check("weights", meaning, delete(record)) as problem:
        manifest = read_manifest(weights)
        for name in ("model", "weights_sha256", *["head_sha256"] * bool(fingerprint.scores)):
            value, expected = getattr(manifest, name), getattr(fingerprint, name)
            if value != expected:
                fault = f"{name} is {value}, the vectors were made with {expected}"
                problem(f"{weights / MANIFEST}: {fault}")
        for name, (_, dim) in campaign.shapes.items():
            if campaign.parts and dim != (expected := columns(name, manifest.dim)):
                problem(f"{name} has dimension {dim}, the model {expected}")
        validation.rounding = remark(fingerprint.compute_dtype, manifest.roundings)


def check_attributes(validation: Validation, file: h5py.File, campaign: Campaign) -> None:
    """Compare the attributes with completion records and inputs."""
    meaning = "What that file says of itself (settings, inputs, versions) is true."
    with validation.check("attributes", meaning, delete(file.filename)) as problem:
        expected = campaign.attributes({})
        # words, which another version may have put otherwise
        expected["pooling_definition"] = file.attrs.get("pooling_definition")
        for name, value in expected.items():
            stored = file.attrs.get(name)
            plain = stored.tolist() if isinstance(stored, np.ndarray | np.generic) else stored
            if plain is None:
                problem(f"{name} is missing")
            elif plain != value:
                problem(f"{name} is {plain!r}, completion records and inputs say {value!r}")
        check_seal(file)


def check_layout(validation: Validation, file: h5py.File, campaign: Campaign) -> bool:
    """Look at the datasets; return whether their rows can be compared."""
    fingerprint, count = campaign.fingerprint, campaign.vectors
    meaning = "Each table in it has the rows, columns and number format that it should."
    with validation.check("shapes and types", meaning, delete(file.filename)) as problem:
        vectors, names = file["representations"], fingerprint.representations
        for name in sorted(set(vectors) - set(names)):
            fault = "is not among the representations of the fingerprint"
            problem(f"{name} {fault}: nothing vouches for it")
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys(column_types(fingerprint), (count,))
        if any(map(has_matrix, names)):
            shapes["offset"] = (count + 1,)
        shapes |= {f"representations/{name}": shape for name, shape in campaign.shapes.items()}
        for path, shape in shapes.items():
            name = path.removeprefix("representations/")
            if file[path].shape != shape:
                problem(f"{name} has shape {file[path].shape}, expected {shape}")
            elif name != path and storage_dtype(file[path]) != fingerprint.storage_dtype:
                expected = f"expected {fingerprint.storage_dtype}"
                problem(f"{name} is stored as {file[path].dtype}, {expected}")
        pooled = [name for name in names if not has_matrix(name)]
        if pooled and file["emb"] != vectors[pooled[0]]:
            problem(f"emb is not {pooled[0]}")
    return validation.checks[-1].result == "passed"


def check_tables(validation: Validation, campaign: Campaign, index: Path, records: Path) -> None:
    """Check the index and the records, and compare their numbers with those of the input."""
    lines, outcomes = 0, Counter[tuple[str, str]]()
    meaning = "Embedded and skipped records add up to the input, file by file."
    with validation.check("counts", meaning, delete(records)) as miscounted:
        tables = Tables(campaign)
        meaning = "The index leads each id to the row of its own sequence."
        with validation.check("index", meaning, delete(index)) as problem:
            for table in _compared(problem, index, tables.index_schema, tables.index):
                lines += len(table)
        meaning = "Every record of the input has one outcome, and the index agrees with it."
        with validation.check("records", meaning, delete(records)) as problem:
            for table in _compared(problem, records, tables.records_schema, tables.records()):
                groups = table.group_by(["source", "status"]).aggregate([([], "count_all")])
                for group in groups.to_pylist():
                    outcomes[group["source"], group["status"]] += group["count_all"]
        sources, statuses = Counter[str](), Counter[str]()
        for (source, status), count in outcomes.items():
            sources[source] += count
            statuses[status] += count
        for entry in read_summary(campaign.sequences).inputs:
            if (count := sources[entry.path]) != entry.records:
                fault = f"{entry.records:,} records in the input, {count:,} answered"
                miscounted(f"{entry.path}: {fault}")
        if (embedded := statuses.total() - statuses["skipped"]) != lines:
            miscounted(f"{embedded:,} records are embedded, the index has {lines:,}")
        validation.counts.records, validation.counts.statuses = statuses.total(), statuses


def _compared(
    problem: Problem, path: Path, schema: pa.Schema, tables: Iterator[pa.Table]
) -> Iterator[pa.Table]:
    """Yield the tables that a file should hold, compared with its rows up to the first fault."""
    batches, stored, sound = (
        read_batches(path, schema.names, delete(path)),
        schema.empty_table(),
        True,
    )
    for expected in tables:
        while sound and len(stored) < len(expected) and (more := next(batches, None)):
            stored = pa.concat_tables([stored, more])
        piece, stored = stored.slice(0, len(expected)), stored.slice(len(expected))
        if sound and not (sound := piece.equals(expected)):
            pairs = zip_longest(expected.to_pylist(), piece.to_pylist())
            before, after = next(pair for pair in pairs if pair[0] != pair[1])
            fault = " is not where it belongs: lost, doubled or moved"
            if after and record_name(after) == record_name(before):
                name = next(name for name in before if before[name] != after[name])
                fault = f": {name} is {after[name]}, expected {before[name]}"
            problem(f"{record_name(before)}{fault}")
        yield expected
    if sound and (stored := stored or next(batches, stored)):
        problem(f"{record_name(stored.slice(0, 1).to_pylist()[0])} is not in the input")
