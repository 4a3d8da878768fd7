"""The checks of validate: what a master is gathered from, its rows, and its tables.

All that a master, its index and records.parquet should hold is read again from the parts and from
the tables of deduplicate, and compared.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from plm_embed.accuracy import remark
from plm_embed.errors import PlmEmbedError, StoreError, delete
from plm_embed.fingerprint import SPANS, columns, has_matrix
from plm_embed.io.parquet import read_batches
from plm_embed.master.attributes import attributes
from plm_embed.master.campaign import Campaign
from plm_embed.master.check import Findings, Problem, check
from plm_embed.master.gather import Piece, pieces, sums_of
from plm_embed.master.norms import distribution
from plm_embed.master.tables import Tables, record_name
from plm_embed.master.validation_record import Norms
from plm_embed.models.manifest import MANIFEST, RECORD, read_manifest
from plm_embed.sequence_windows import stored_residues
from plm_embed.sequences.summary import bucket_names, read_summary
from plm_embed.store import checksums
from plm_embed.store.hdf5 import Array, decode, open_hdf5, read_bits, storage_dtype
from plm_embed.store.parts import read_part
from plm_embed.store.store import FINGERPRINT, part_names


@check(
    "completion records",
    "Every bucket has a record of the job that finished it, and all jobs used the same settings.",
)
def check_completion_records(
    problem: Problem, campaign: Campaign, skipped: dict[bytes, str]
) -> bool:
    """Add all sound records to the campaign, and to `skipped` the reason for each key that has no
    vector. StoreError when there is none.
    """
    for name in bucket_names(campaign.sequences):
        try:
            bucket = campaign.bucket(name)
            campaign.add(bucket)
            skipped |= bucket.completion.reasons
        except PlmEmbedError as error:
            problem(error.message, error.remedy)
    if not campaign.rows:
        raise StoreError(
            f"{campaign.embedded}: no bucket has an intact completion record",
            remedy="run the workflow again",
        )
    return True


@check("parts", "Every file that the jobs wrote is there, unchanged since it was written.")
def check_parts(problem: Problem, campaign: Campaign) -> None:
    """Compare the parts with what completion records say."""
    wrong = campaign.wrong_parts(hashed=True)
    for name, fault in wrong.items():
        problem(f"{campaign.parts_folder / name}: {fault}", campaign.part_remedy(*wrong))


@check("fingerprints in the store", "All stored vectors were computed with exactly these settings.")
def check_fingerprints(problem: Problem, campaign: Campaign) -> None:
    """Open every part that is in the store, named by a completion record or not."""
    note = campaign.parts_folder.with_name(FINGERPRINT)
    if (
        not note.is_file() or note.read_bytes().strip() != campaign.fingerprint.to_json().encode()
    ):  # a job writes it anew
        remedy = delete(note, campaign.embedded)
        problem(f"{note}: missing, or not the fingerprint of the completion records", remedy)
    for name in part_names(campaign.parts_folder):
        path = campaign.parts_folder / name
        remedy = campaign.part_remedy(name) if name in campaign.parts else delete(path)
        try:
            with read_part(path) as part:
                part.check(campaign.fingerprint)
                campaign.dims = campaign.dims or part.dims
                if part.dims != campaign.dims:
                    fault = f"dimensions {part.dims}, other parts have {campaign.dims}"
                    problem(f"{path}: {fault}", remedy)
        except StoreError as error:
            problem(error.message, remedy)


@check("weights", "The weights are the ones that the vectors were computed with.")
def check_weights(problem: Problem, campaign: Campaign, weights: Path) -> str:
    """Compare a folder of prepared weights with the fingerprint. Return a remark where rounding
    moves their vectors notably.
    """
    manifest = read_manifest(weights)
    for name in ("model", "weights_sha256"):
        value, expected = getattr(manifest, name), getattr(campaign.fingerprint, name)
        if value != expected:
            problem(
                f"{weights / MANIFEST}: {name} is {value}, the vectors were made with {expected}",
                delete(campaign.embedded.with_name(RECORD)),
            )
    for name, dim in campaign.dims.items():
        if dim != (expected := columns(name, manifest.dim)):
            problem(f"{name} has dimension {dim}, the model {expected}")
    return remark(campaign.fingerprint.compute_dtype, manifest.roundings)


@check("master", "The file with all vectors can be opened and read.")
def check_master(_: Problem, master: Path, run_checks: Callable[[h5py.File], None]) -> None:
    """Open a master, and run the checks that read it."""
    with open_hdf5(master, delete(master)) as file:
        run_checks(file)


@check("attributes", "What that file says of itself (settings, inputs, versions) is true.")
def check_attributes(problem: Problem, file: h5py.File, campaign: Campaign) -> None:
    """Compare the attributes with completion records and inputs."""
    again = delete(Path(file.filename))
    try:
        checksums.check_attributes(file)
    except ValueError as error:
        problem(str(error), again)
    for name, expected in attributes(campaign, read_summary(campaign.sequences), {}).items():
        if name not in file.attrs:
            problem(f"{name} is missing", again)
            continue
        if name == "pooling_definition":  # words, which another version may have put otherwise
            continue
        value = file.attrs[name]
        plain = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
        if plain != expected:
            fault = f"{name} is {plain!r}, completion records and inputs say {expected!r}"
            problem(fault, again)


@check(
    "shapes and types", "Each table in it has the rows, columns and number format that it should."
)
def check_layout(problem: Problem, file: h5py.File, campaign: Campaign) -> bool:
    """Look at the datasets; return whether their rows can be compared."""
    again, fingerprint = delete(Path(file.filename)), campaign.fingerprint
    campaign.measure()
    vectors = file["representations"]
    for name in sorted(set(vectors) - set(fingerprint.representations)):
        fault = f"{name} is not among the representations of the fingerprint"
        problem(f"{fault}: nothing vouches for it", again)
    count = campaign.vectors
    shapes = dict.fromkeys(("emb_keys", "length", "windows"), (count,))
    if any(map(has_matrix, fingerprint.representations)):
        shapes["offset"] = (count + 1,)
    wrong = [
        f"{name} has shape {dataset.shape}, expected {shape}"
        for name, dataset, shape in (
            *((name, file[name], shape) for name, shape in shapes.items()),
            *((name, vectors[name], shape) for name, shape in campaign.shapes.items()),
        )
        if dataset.shape != shape
    ]
    dtype = fingerprint.storage_dtype
    wrong += [
        f"{name} is stored as {vectors[name].dtype}, expected {dtype}"
        for name in fingerprint.representations
        if storage_dtype(vectors[name]) != dtype
    ]
    pooled = [name for name in fingerprint.representations if not has_matrix(name)]
    if pooled and file["emb"] != vectors[pooled[0]]:
        wrong.append(f"emb is not {pooled[0]}")
    for fault in wrong:
        problem(fault, again)
    return not wrong


@check("rows equal their parts", "Each vector is, bit for bit, the one that its job wrote.")
def check_rows(
    problem: Problem, findings: Findings, file: h5py.File, campaign: Campaign
) -> dict[str, Norms]:
    """Compare all rows with the parts, and look whether their numbers are finite.

    Return the distribution of the vectors' norms, by representation.
    """
    again, fingerprint = delete(Path(file.filename)), campaign.fingerprint
    norms = {
        name: np.full(campaign.vectors, np.nan, dtype=np.float32)
        for name in fingerprint.representations
        if name != SPANS
    }
    for piece in pieces(map(campaign.bucket, campaign.rows), campaign.store):
        stop = piece.start + len(piece.values)
        stored = read_bits(file[piece.path], piece.start, stop)
        rows = slice(piece.first, piece.first + len(piece.counts))
        if piece.name == "emb_keys":
            check_keys(findings, piece, stored, again)
        elif stored.ndim == 1:
            for place in np.flatnonzero(stored != piece.values).tolist():
                row, expected = piece.start + place, piece.values[place]
                problem(f"row {row:,}: {piece.name} is {stored[place]}, expected {expected}", again)
        sums = piece.sums
        if stored.ndim == 2 and len(stored):
            starts = np.cumsum(piece.counts) - piece.counts
            same = np.logical_and.reduceat((stored == piece.values).all(axis=1), starts)
            faults = {"differs from its part": ~same}
            numbers = decode(stored, fingerprint.storage_dtype).astype(np.float32, copy=False)
            if piece.name == SPANS:
                letters = stored_residues(file["length"][rows], fingerprint.long_sequences)
                wrong = wrong_spans(numbers, piece.counts, letters, file["windows"][rows])
                faults["its tokens are not all its letters, in their order"] = wrong
            else:
                squares = np.add.reduceat(np.einsum("ij,ij->i", numbers, numbers), starts)
                norms[piece.name][rows] = np.sqrt(squares / piece.counts)
            for fault, marked in faults.items():
                for place in np.flatnonzero(marked).tolist():
                    problem(f"{_row(file, piece, place)}: {fault}", again)
            finite = np.isfinite(numbers).all(axis=1)
            check_finite(findings, file, piece, np.logical_and.reduceat(finite, starts))
            sums = sums_of(piece.name, piece.values, piece.counts)
        if sums is not None and checksums.GROUP in file:
            stored = read_bits(file[checksums.GROUP][piece.name], rows.start, rows.stop)
            for place in np.flatnonzero(stored != sums).tolist():
                fault = f"the checksum of {piece.name} is not that of what its part holds"
                problem(f"row {piece.first + place:,}: {fault}", again)
    return {name: distribution(norms.pop(name), file["emb_keys"]) for name in list(norms)}


@check("keys", "Each distinct sequence has one row and no other row is there; rows are in order.")
def check_keys(problem: Problem, piece: Piece, stored: Array, remedy: str) -> None:
    """Compare the keys (m,) in the master with those of a bucket."""
    for place in np.flatnonzero(stored != piece.values).tolist():
        key, expected = _text(stored[place]), piece.values[place].decode()
        problem(f"row {piece.first + place:,}: key is {key}, expected {expected}", remedy)


@check("finite", "No vector holds NaN or infinity.")
def check_finite(
    problem: Problem, file: h5py.File, piece: Piece, finite: NDArray[np.bool_]
) -> None:
    """Report the sequences of a piece that are not `finite` (m,)."""
    for place in np.flatnonzero(~finite).tolist():
        problem(f"{_row(file, piece, place)} holds NaN or infinity")


def _row(file: h5py.File, piece: Piece, place: int) -> str:
    row = piece.first + place
    return f"row {row:,} of {piece.name} (key {_text(file['emb_keys'][row])})"


def _text(key: bytes) -> str:
    """Return a key as it can be printed, whatever a damaged file says it is."""
    return key.decode("ascii", "backslashreplace")


def wrong_spans(
    stored: NDArray[np.floating[Any]],
    counts: NDArray[np.int64],
    letters: NDArray[np.int64],
    windows: NDArray[np.int32],
) -> NDArray[np.bool_]:
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
    forward = skipped + np.concatenate(([1], width[:-1]))
    forward[starts] = 1 + skipped[starts]
    wrong = (whole != stored).any(axis=1) | (width < 1) | (forward < 1)
    wrong |= ~np.repeat(windows > 1, counts) & (skipped != 0)
    wrong[starts] |= skipped[starts] != 0
    wrong[starts] |= np.add.reduceat(skipped + width, starts) != letters
    marked: NDArray[np.bool_] = np.logical_or.reduceat(wrong, starts)
    return marked


Counted = Counter[tuple[str, str, str | None]]
"""Records by source, status and reason."""


@check("index", "The index leads each id to the row of its own sequence.")
def check_index(problem: Problem, index: Path, tables: Tables) -> int:
    """Compare the index with what it should be; return the number of its lines."""
    pairs = _compared(problem, index, tables.index_schema, tables.index())
    return sum(stored.num_rows for stored in pairs)


@check("records", "Every record of the input has one outcome, and the index agrees with it.")
def check_records(problem: Problem, records: Path, tables: Tables) -> Counted:
    """Compare records.parquet with what it should be. Return what its records were counted as."""
    counted = Counted()
    names = ["source", "status", "reason"]
    for stored in _compared(problem, records, tables.records_schema, tables.records()):
        groups = stored.group_by(names).aggregate([([], "count_all")])
        for group in groups.to_pylist():
            source, status, reason = (group[name] for name in names)
            counted[source, status, reason] += group["count_all"]
    return counted


def _compared(
    problem: Problem, path: Path, schema: pa.Schema, tables: Iterator[pa.Table]
) -> Iterator[pa.Table]:
    """Yield the rows of a file piece by piece, compared with the tables that it should hold; up to
    the first row that is lost, doubled or moved.
    """
    again, names = delete(path), schema.names
    inputs, outputs = filter(len, tables), read_batches(path, names, again)
    expected = stored = schema.empty_table()
    while True:
        expected = expected if len(expected) else next(inputs, expected)
        stored = stored if len(stored) else next(outputs, stored)
        if not (rows := min(len(expected), len(stored))):
            break
        before, after = expected.slice(0, rows), stored.slice(0, rows)
        wrong = {name: _different(before[name], after[name]) for name in names}
        moved = np.flatnonzero(wrong["source"] | wrong["number"]).tolist()
        rows = moved[0] if moved else rows
        expected, stored = expected.slice(rows), stored.slice(rows)
        if moved:
            break
        for name, places in wrong.items():
            for place in np.flatnonzero(places).tolist():
                values = f"{name} is {after[name][place]}, expected {before[name][place]}"
                problem(f"{record_name(after, place)}: {values}", again)
        yield after
    if len(expected):
        fault = "is not where it belongs: lost, doubled or moved"
        problem(f"{record_name(expected, 0)} {fault}", again)
    elif len(stored):
        problem(f"{record_name(stored, 0)} is not in the input", again)


def _different(first: pa.ChunkedArray, second: pa.ChunkedArray) -> NDArray[np.bool_]:
    if first.equals(second):
        return np.zeros(len(first), np.bool_)
    pairs = zip(first.to_pylist(), second.to_pylist(), strict=True)
    return np.array([a != b for a, b in pairs], np.bool_)


@check("counts", "Embedded and skipped records add up to the input, file by file.")
def check_counts(
    problem: Problem, findings: Findings, campaign: Campaign, index: Path, records: Path
) -> dict[str, Any]:
    """Check the index and the records, and compare their numbers with those of the input.

    Return the fields of `Counts` that are about records, as far as they could be counted.
    """
    tables, again = Tables(campaign, records.parent), delete(records)
    lines = check_index(findings, index, tables)
    counted = check_records(findings, records, tables)
    if lines is None or counted is None:
        return {}
    inputs = read_summary(campaign.sequences).inputs
    sources = {entry.path: Counter[str]() for entry in inputs}
    reasons = Counter[str]()
    for (source, status, reason), number in counted.items():
        sources.setdefault(source, Counter())[status] += number
        if status == "skipped":
            reasons[str(reason)] += number
    statuses = sum(sources.values(), Counter[str]())
    for entry in inputs:
        if (count := sources[entry.path].total()) != entry.records:
            fault = f"{entry.records:,} records in the input, {count:,} answered"
            problem(f"{entry.path}: {fault}", again)
    if (embedded := statuses.total() - statuses["skipped"]) != lines:
        problem(f"{embedded:,} records are embedded, the index has {lines:,}", again)
    return {
        "records": statuses.total(),
        "statuses": dict(sorted(statuses.items())),
        "skipped": dict(sorted(reasons.items())),
        "sources": {source: dict(sorted(count.items())) for source, count in sources.items()},
    }
