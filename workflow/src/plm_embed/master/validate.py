"""The validate job: proof that the master is complete and right, or a list of what is wrong.

Everything is read again: completion records, parts, the master (each row against its part, bit for
bit), the index and the records. Some rows are compared with what the reference path computes. A
check is a block `with validation.check(name, meaning, remedy) as problem:`, and goes on to the next
one whatever it finds.
"""

import logging
from collections import Counter
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from plm_embed.accuracy import remark
from plm_embed.errors import PlmEmbedError, StoreError, delete
from plm_embed.fingerprint import SPANS, columns, has_matrix
from plm_embed.io.files import atomic_path, sha256_file
from plm_embed.io.json_files import write_sealed
from plm_embed.io.parquet import read_batches
from plm_embed.jobs.completion_record import FOLDER
from plm_embed.keys import bucket_names
from plm_embed.master.campaign import Campaign, pieces
from plm_embed.master.spot_checks import check_spots
from plm_embed.master.tables import Tables, record_name
from plm_embed.master.validation_record import (
    LISTED,
    PROOF,
    VALIDATION,
    Norms,
    Outlier,
    Problem,
    Validation,
)
from plm_embed.models.weights import MANIFEST, RECORD, read_manifest
from plm_embed.sequence_windows import stored_residues
from plm_embed.sequences.summary import read_summary
from plm_embed.store import checksums
from plm_embed.store.hdf5 import decode, open_hdf5, storage_dtype, take_bits, trailing_bytes
from plm_embed.store.parts import Part, column_types
from plm_embed.store.store import FINGERPRINT, part_names
from plm_embed.wording import now

log = logging.getLogger(__name__)
Marks = NDArray[np.bool_]
_VECTORS = "representations/"
_FAR = 6.0  # an outlier's distance from the median log norm, in units of 1.4826 x MAD
_LEAST = 0.05  # of that unit: among near-equal sequences, norms that differ by 5 % are usual
_TINY = np.finfo(np.float32).tiny  # whose logarithm stands for that of 0


def validate(master: Path, store: Path, weights: Path, spot_checks: int) -> Validation:
    """Check a gathered campaign: a master and the files around it in the results folder.

    Writes validation.json beside the master in either case, and checksums.sha256, for `sha256sum
    -c` in its own folder, only when nothing is wrong. `spot_checks` random rows are compared with
    what the reference path of the model's family computes. StoreError, before anything changes,
    when there are no sequences to compare with.
    """
    folder, index = master.parent, master.with_suffix(".parquet")
    sequences, records = folder.parent / "sequences", folder / "records.parquet"
    report, proof, summary = folder / VALIDATION, folder / PROOF, read_summary(sequences)
    proof.unlink(missing_ok=True)
    validation = Validation(status="passed", checks=[])
    campaign = Campaign(sequences, folder / FOLDER, store)
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
            check_attributes(validation, campaign, file)
            if check_layout(validation, campaign, file):
                check_rows(validation, campaign, file)
                check_spots(validation, campaign, master, weights, spot_checks)
        check_tables(validation, campaign, index, records)
    for note in filter(None, (validation.rounding, validation.not_compared)):
        log.warning("%s", note)
    paths = filter(Path.is_file, (master, index, records))
    validation.files = {path.name: sha256_file(path) for path in paths}
    validation.finished = now()
    write_sealed(report, validation)
    if validation.status == "passed":
        files = validation.files | {report.name: sha256_file(report)}
        lines = (f"{digest}  {name}\n" for name, digest in files.items())
        with atomic_path(proof) as temporary:
            temporary.write_text("".join(lines), encoding="utf-8")
    return validation


def check_completion_records(validation: Validation, campaign: Campaign) -> None:
    """Add all sound records to the campaign."""
    meaning = "Every bucket has a record of the job that finished it, and all jobs used the same "
    with validation.check("completion records", f"{meaning}settings.") as problem:
        for name in bucket_names(read_summary(campaign.sequences).buckets):
            try:
                campaign.add(name)
            except PlmEmbedError as error:
                problem(error)
        if not campaign.rows:
            problem(f"{campaign.embedded}: no bucket has an intact completion record")


def check_parts(validation: Validation, campaign: Campaign) -> None:
    """Compare the parts with what completion records say, and open each that is in the store."""
    meaning = "Every file that the jobs wrote is there, unchanged since it was written."
    with validation.check("parts", meaning) as problem:
        for error in campaign.wrong_parts(hashed=True):
            problem(error)
    folder, fingerprint = campaign.parts_folder, campaign.fingerprint
    meaning = "All stored vectors were computed with exactly these settings."
    with validation.check("fingerprints in the store", meaning) as problem:
        note, expected = folder.with_name(FINGERPRINT), fingerprint.to_json().encode()
        if not note.is_file() or note.read_bytes().strip() != expected:  # a job writes it anew
            fault = f"{note}: missing, or not the fingerprint of the completion records"
            problem(StoreError(fault, remedy=delete(note, campaign.embedded)))
        for name in part_names(folder):
            try:
                with Part(folder / name) as part:
                    part.check(fingerprint)
            except PlmEmbedError as error:
                problem(StoreError(error.message, remedy=campaign.part_remedy(name)))


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


def check_attributes(validation: Validation, campaign: Campaign, file: h5py.File) -> None:
    """Compare the attributes with completion records and inputs."""
    meaning = "What that file says of itself (settings, inputs, versions) is true."
    with validation.check("attributes", meaning, delete(file.filename)) as problem:
        for name, value in campaign.attributes({}).items():
            stored = file.attrs.get(name)
            plain = stored.tolist() if isinstance(stored, np.ndarray | np.generic) else stored
            if plain is None:
                problem(f"{name} is missing")
            elif plain != value and name != "pooling_definition":  # another version's words differ
                problem(f"{name} is {plain!r}, completion records and inputs say {value!r}")
        checksums.check_attributes(file)


def check_layout(validation: Validation, campaign: Campaign, file: h5py.File) -> bool:
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
        shapes |= {_VECTORS + name: shape for name, shape in campaign.shapes.items()}
        for path, shape in shapes.items():
            data, name, kind = file[path], path.removeprefix(_VECTORS), fingerprint.storage_dtype
            if data.shape != shape:
                problem(f"{name} has shape {data.shape}, expected {shape}")
            elif name != path and storage_dtype(data) != kind:
                problem(f"{name} is stored as {data.dtype}, expected {kind}")
        pooled = [name for name in names if not has_matrix(name)]
        if pooled and file["emb"] != vectors[pooled[0]]:
            problem(f"emb is not {pooled[0]}")
    return validation.checks[-1].result == "passed"


def check_rows(validation: Validation, campaign: Campaign, file: h5py.File) -> None:
    """Compare all rows with the parts, look whether their numbers are finite, and note the
    distribution of the vectors' norms.
    """
    again, fingerprint = delete(file.filename), campaign.fingerprint
    names = (name for name in fingerprint.representations if name != SPANS)
    norms = {name: np.full(campaign.vectors, np.nan, np.float32) for name in names}
    sums: checksums.Sums = np.zeros(0, np.uint64)  # of the piece before
    with (
        validation.check(
            "keys",
            "Each distinct sequence has one row and no other row is there; rows are in order.",
            again,
        ) as wrong_key,
        validation.check("finite", "No vector holds NaN or infinity.") as not_finite,
        validation.check(
            "rows equal their parts",
            "Each vector is, bit for bit, the one that its job wrote.",
            again,
        ) as problem,
    ):
        for piece in pieces(map(campaign.bucket, campaign.rows), campaign.parts_folder):
            path, start, values, first, counts = piece
            if not len(values) or (checksums.GROUP in path and checksums.GROUP not in file):
                continue  # files of version 0.1 keep no checksums
            kind, _, name = path.rpartition("/")
            rows, starts = slice(first, first + len(counts)), np.cumsum(counts) - counts
            numbers = stored = take_bits(file[path], np.arange(start, start + len(values)))
            report, fault = wrong_key if name == "emb_keys" else problem, "differs from its part"
            if kind == checksums.GROUP:  # of what the part holds, not of what it says
                values, fault = sums, "its checksum is not that of its part"
            elif has_matrix(name):
                sums = checksums.of_sequences(values, counts)
            else:
                sums = checksums.of_rows(values)
            faults = [(report, stored != values, fault)]
            if path == _VECTORS + name:
                numbers = decode(stored, fingerprint.storage_dtype).astype(np.float32, copy=False)
            if path == _VECTORS + name and name in norms:
                squares = np.add.reduceat(np.einsum("ij,ij->i", numbers, numbers), starts)
                norms[name][rows] = np.sqrt(squares / counts)
            if numbers.dtype.kind == "f":
                faults.append((not_finite, ~np.isfinite(numbers), "holds NaN or infinity"))
            if path == _VECTORS + SPANS:
                letters = stored_residues(file["length"][rows], fingerprint.long_sequences)
                wrong = wrong_spans(numbers, counts, letters, file["windows"][rows])
                fault = "its tokens are not all its letters, in order"
                faults.append((problem, np.repeat(wrong, counts), fault))
            for report, wrong, fault in faults:
                marked = wrong.reshape(len(wrong), -1).any(axis=1)
                for row in np.flatnonzero(np.logical_or.reduceat(marked, starts)).tolist():
                    key = f" (key {_text(file['emb_keys'][first + row])})" if kind else ""
                    report(f"row {first + row:,} of {name}{key}: {fault}")
        for name in list(norms):
            validation.norms[name] = distribution(norms.pop(name), file["emb_keys"])


def _text(key: bytes) -> str:
    """Return a key as it can be printed, whatever a damaged file says it is."""
    return key.decode("ascii", "backslashreplace")


def wrong_spans(
    stored: NDArray[np.floating[Any]],
    counts: NDArray[np.int64],
    letters: NDArray[np.int64],
    windows: NDArray[np.int32],
) -> Marks:
    """Mark the sequences (m,) whose tokens are not all their letters, by what holds for every
    tokenizer.

    stored (r, 2) as `sequence_windows.stored_spans`, of which each sequence has `counts` (m,)
    rows; letters (m,) that went through the model; windows (m,) as stored. Tokens begin with the
    first letter and end with the last. They follow each other without a gap; those of several
    windows may overlap or leave letters out, but go forward.
    """
    with np.errstate(invalid="ignore"):  # NaN becomes a number, and unlike itself below
        whole = stored.astype(np.int64)
    skipped, width = whole.T
    starts = np.cumsum(counts) - counts
    apart = np.repeat(windows > 1, counts)
    apart[starts] = False
    forward = skipped + np.concatenate(([0], width[:-1]))
    wrong = (whole != stored).any(axis=1) | (width < 1)
    wrong |= np.where(apart, forward < 1, skipped != 0)
    marked: Marks = np.add.reduceat(skipped + width, starts) != letters
    marked |= np.logical_or.reduceat(wrong, starts)
    return marked


def distribution(norms: NDArray[np.float32], keys: h5py.Dataset) -> Norms:
    """Describe the vectors' norms (n,), in little more memory than these, for there may be 10^9 of
    them.
    """
    finite = norms[np.isfinite(norms)]
    if not (rows := len(finite)):
        return Norms(rows=0, outliers=0, listed=())
    least, most = float(finite.min()), float(finite.max())
    logs = np.log(np.maximum(finite, _TINY, out=finite), out=finite)
    median = np.median(logs, overwrite_input=True)
    logs -= median
    scale = max(_LEAST, 1.4826 * np.median(np.abs(logs, out=logs), overwrite_input=True))
    del finite, logs
    low, high = np.exp(median - _FAR * scale), np.exp(median + _FAR * scale)
    far = np.flatnonzero((norms < low) | (norms > high) & (norms < np.inf))
    z = (np.log(np.maximum(norms[far], _TINY)) - median) / scale
    farthest = np.argsort(-np.abs(z), kind="stable")[:LISTED]
    listed = tuple(
        Outlier(row=row, key=_text(keys[row]), norm=float(norms[row]), z=round(score, 1))
        for row, score in zip(far[farthest].tolist(), z[farthest].tolist(), strict=True)
    )
    middle = float(np.exp(median))
    return Norms(rows=rows, min=least, median=middle, max=most, outliers=len(far), listed=listed)


def check_tables(validation: Validation, campaign: Campaign, index: Path, records: Path) -> None:
    """Check the index and the records, and compare their numbers with those of the input."""
    lines, sources, statuses = 0, Counter[str](), Counter[str]()
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
                for column, counter in (("source", sources), ("status", statuses)):
                    for count in table[column].value_counts().to_pylist():
                        counter[count["values"]] += count["counts"]
        for entry in read_summary(campaign.sequences).inputs:
            if (answered := sources[entry.path]) != entry.records:
                fault = f"{entry.records:,} records in the input, {answered:,} answered"
                miscounted(f"{entry.path}: {fault}")
        if (embedded := statuses.total() - statuses["skipped"]) != lines:
            miscounted(f"{embedded:,} records are embedded, the index has {lines:,}")
        validation.counts.records, validation.counts.statuses = statuses.total(), statuses


def _compared(
    problem: Problem, path: Path, schema: pa.Schema, tables: Iterator[pa.Table]
) -> Iterator[pa.Table]:
    """Yield the tables that a file should hold, compared with its rows up to the first fault."""
    batches = read_batches(path, schema.names, delete(path))
    stored, sound = schema.empty_table(), True
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
