"""The checks of validate: what a master is gathered from, its rows, and its tables.

All that a master, its index and records.parquet should hold is read again from the parts and from
the tables of deduplicate, and compared.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from plm_embed.accuracy import remark
from plm_embed.errors import PlmEmbedError, delete
from plm_embed.fingerprint import SPANS, columns, has_matrix
from plm_embed.io.parquet import read_batches
from plm_embed.keys import bucket_names
from plm_embed.master.campaign import Campaign
from plm_embed.master.gather import Piece, pieces, sums_of
from plm_embed.master.norms import distribution
from plm_embed.master.tables import Tables, record_name
from plm_embed.master.validation_record import Check, Validation
from plm_embed.models.weights import MANIFEST, RECORD, read_manifest
from plm_embed.sequence_windows import stored_residues
from plm_embed.sequences.summary import read_summary
from plm_embed.store import checksums
from plm_embed.store.hdf5 import DAMAGES, decode, read_bits, storage_dtype
from plm_embed.store.parts import Part, column_types
from plm_embed.store.store import FINGERPRINT, part_names

LISTED = 20
"""Problems of a check that are spelled out; the rest is counted."""
Problem = Callable[..., None]
"""Notes a problem: a text, and a remedy in place of the one of the check."""


@contextmanager
def check(validation: Validation, name: str, meaning: str, remedy: str = "") -> Iterator[Problem]:
    """Make the block a check, whose problems have this remedy. A file that cannot be read is a
    problem and ends the block; the validation goes on.
    """
    noted = Check(check=name, meaning=meaning)
    validation.checks.append(noted)

    def problem(text: str, remedy: str = remedy) -> None:
        validation.status = noted.result = "failed"
        validation.remedy = validation.remedy or remedy
        noted.problems += 1
        if noted.problems <= LISTED:
            noted.listed.append(text)

    try:
        yield problem
    except PlmEmbedError as error:
        problem(error.message, error.remedy)
    except (*DAMAGES, LookupError, pa.ArrowException) as error:
        problem(str(error))


def check_completion_records(validation: Validation, campaign: Campaign) -> None:
    """Add all sound records to the campaign."""
    with check(
        validation,
        "completion records",
        "Every bucket has a record of the job that finished it, and all jobs used the same "
        "settings.",
    ) as problem:
        for name in bucket_names(read_summary(campaign.sequences).buckets):
            try:
                campaign.add(name)
            except PlmEmbedError as error:
                problem(error.message, error.remedy)
        if not campaign.rows:
            problem(f"{campaign.embedded}: no bucket has an intact completion record")


def check_parts(validation: Validation, campaign: Campaign) -> None:
    """Compare the parts with what completion records say, and open each that is in the store."""
    folder = campaign.parts_folder
    with check(
        validation,
        "parts",
        "Every file that the jobs wrote is there, unchanged since it was written.",
    ) as problem:
        wrong = campaign.wrong_parts(hashed=True)
        for name, fault in wrong.items():
            problem(f"{folder / name}: {fault}", campaign.part_remedy(*wrong))
    with check(
        validation,
        "fingerprints in the store",
        "All stored vectors were computed with exactly these settings.",
    ) as problem:
        note, expected = folder.with_name(FINGERPRINT), campaign.fingerprint.to_json().encode()
        if not note.is_file() or note.read_bytes().strip() != expected:  # a job writes it anew
            fault = "missing, or not the fingerprint of the completion records"
            problem(f"{note}: {fault}", delete(note, campaign.embedded))
        for name in part_names(folder):
            try:
                with Part(folder / name) as part:
                    part.check(campaign.fingerprint)
            except PlmEmbedError as error:
                problem(error.message, campaign.part_remedy(name))


def check_weights(validation: Validation, campaign: Campaign, weights: Path) -> None:
    """Compare a folder of prepared weights with the fingerprint."""
    fingerprint, record = campaign.fingerprint, campaign.embedded.with_name(RECORD)
    with check(
        validation,
        "weights",
        "The weights are the ones that the vectors were computed with.",
        delete(record),
    ) as problem:
        manifest = read_manifest(weights)
        for name in ("model", "weights_sha256", *["head_sha256"] * bool(fingerprint.scores)):
            value, expected = getattr(manifest, name), getattr(fingerprint, name)
            if value != expected:
                fault = f"{name} is {value}, the vectors were made with {expected}"
                problem(f"{weights / MANIFEST}: {fault}")
        for name, dim in campaign.dims.items():
            if dim != (expected := columns(name, manifest.dim)):
                problem(f"{name} has dimension {dim}, the model {expected}")
        validation.rounding = remark(fingerprint.compute_dtype, manifest.roundings)


def check_attributes(validation: Validation, file: h5py.File, campaign: Campaign) -> None:
    """Compare the attributes with completion records and inputs."""
    with check(
        validation,
        "attributes",
        "What that file says of itself (settings, inputs, versions) is true.",
        delete(file.filename),
    ) as problem:
        expected = campaign.attributes({})
        # words, which another version may have put otherwise
        expected["pooling_definition"] = file.attrs.get("pooling_definition")
        for name, value in expected.items():
            stored = file.attrs.get(name)
            plain = stored.tolist() if isinstance(stored, np.ndarray | np.generic) else stored
            if plain is None:
                problem(f"{name} is missing")
            elif plain != value:
                fault = f"completion records and inputs say {value!r}"
                problem(f"{name} is {plain!r}, {fault}")
        checksums.check_attributes(file)


def check_layout(validation: Validation, file: h5py.File, campaign: Campaign) -> bool:
    """Look at the datasets; return whether their rows can be compared."""
    fingerprint, count = campaign.fingerprint, campaign.vectors
    with check(
        validation,
        "shapes and types",
        "Each table in it has the rows, columns and number format that it should.",
        delete(file.filename),
    ) as problem:
        vectors, faults = file["representations"], list[str]()
        for name in sorted(set(vectors) - set(fingerprint.representations)):
            fault = "is not among the representations of the fingerprint"
            problem(f"{name} {fault}: nothing vouches for it")
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys(column_types(fingerprint), (count,))
        if any(map(has_matrix, fingerprint.representations)):
            shapes["offset"] = (count + 1,)
        shapes |= {f"representations/{name}": shape for name, shape in campaign.shapes.items()}
        for path, shape in shapes.items():
            name = path.removeprefix("representations/")
            if file[path].shape != shape:
                faults.append(f"{name} has shape {file[path].shape}, expected {shape}")
            elif name != path and storage_dtype(file[path]) != fingerprint.storage_dtype:
                fault = f"{file[path].dtype}, expected {fingerprint.storage_dtype}"
                faults.append(f"{name} is stored as {fault}")
        pooled = [name for name in fingerprint.representations if not has_matrix(name)]
        if pooled and file["emb"] != vectors[pooled[0]]:
            faults.append(f"emb is not {pooled[0]}")
        for fault in faults:
            problem(fault)
        return not faults
    return False


def check_rows(validation: Validation, file: h5py.File, campaign: Campaign) -> None:
    """Compare all rows with the parts, look whether their numbers are finite, and note the
    distribution of the vectors' norms.
    """
    again, fingerprint = delete(file.filename), campaign.fingerprint
    norms = {
        name: np.full(campaign.vectors, np.nan, dtype=np.float32)
        for name in fingerprint.representations
        if name != SPANS
    }
    with (
        check(
            validation,
            "keys",
            "Each distinct sequence has one row and no other row is there; rows are in order.",
            again,
        ) as wrong_key,
        check(validation, "finite", "No vector holds NaN or infinity.") as not_finite,
        check(
            validation,
            "rows equal their parts",
            "Each vector is, bit for bit, the one that its job wrote.",
            again,
        ) as problem,
    ):
        every = pieces(map(campaign.bucket, campaign.rows), campaign.store)
        for piece in (piece for piece in every if len(piece.values)):
            stored = read_bits(file[piece.path], piece.start, piece.start + len(piece.values))

            def row_name(place: int, piece: Piece = piece) -> str:
                row = piece.first + place
                return f"row {row:,} of {piece.name} (key {_text(file['emb_keys'][row])})"

            wrong = _unsound(stored == piece.values, piece.counts)
            if stored.ndim == 1:
                numbers, is_key = stored, piece.name == "emb_keys"
                label, report = ("key", wrong_key) if is_key else (piece.name, problem)
                for place in wrong:
                    values = f"{_text(stored[place])}, expected {_text(piece.values[place])}"
                    report(f"row {piece.start + place:,}: {label} is {values}")
            else:
                numbers = decode(stored, fingerprint.storage_dtype).astype(np.float32, copy=False)
                for place in wrong:
                    problem(f"{row_name(place)}: differs from its part")
            if numbers.dtype.kind == "f":
                for place in _unsound(np.isfinite(numbers), piece.counts):
                    not_finite(f"{row_name(place)} holds NaN or infinity")
            rows = slice(piece.first, piece.first + len(piece.counts))
            if piece.name == SPANS:
                letters = stored_residues(file["length"][rows], fingerprint.long_sequences)
                gaps = wrong_spans(numbers, piece.counts, letters, file["windows"][rows])
                for place in np.flatnonzero(gaps).tolist():
                    problem(f"{row_name(place)}: its tokens are not all its letters, in order")
            elif piece.name in norms:
                starts = np.cumsum(piece.counts) - piece.counts
                squares = np.add.reduceat(np.einsum("ij,ij->i", numbers, numbers), starts)
                norms[piece.name][rows] = np.sqrt(squares / piece.counts)
            for place in _wrong_sums(file, piece):
                problem(f"{row_name(place)}: its checksum is not that of its part")
        for name in list(norms):
            validation.norms[name] = distribution(norms.pop(name), file["emb_keys"])


def _wrong_sums(file: h5py.File, piece: Piece) -> list[int]:
    """Return the sequences of a piece whose checksum in the master is not that of their part."""
    if piece.sums is None or checksums.GROUP not in file:  # of version 0.1
        return []
    matrix, rows = piece.values.ndim == 2, (piece.first, piece.first + len(piece.counts))
    sums = sums_of(piece.name, piece.values, piece.counts) if matrix else piece.sums
    wrong = read_bits(file[checksums.GROUP][piece.name], *rows) != sums
    return np.flatnonzero(wrong).tolist()


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


def _unsound(sound: NDArray[np.bool_], counts: NDArray[np.int64]) -> list[int]:
    """Return the places of the sequences, of which each has `counts` (m,) rows, whose numbers (r,)
    or (r, D) are not all sound.
    """
    rows = sound.reshape(len(sound), -1).all(axis=1)
    whole = np.logical_and.reduceat(rows, np.cumsum(counts) - counts)
    places: list[int] = np.flatnonzero(~whole).tolist()
    return places


def _text(value: Any) -> str:
    """Return a number or a key as it can be printed, whatever a damaged file says it is."""
    return value.decode("ascii", "backslashreplace") if isinstance(value, bytes) else str(value)


def check_tables(validation: Validation, campaign: Campaign, index: Path, records: Path) -> None:
    """Check the index and the records, and compare their numbers with those of the input."""
    lines, outcomes = 0, Counter[tuple[str, str]]()
    with check(
        validation,
        "counts",
        "Embedded and skipped records add up to the input, file by file.",
        delete(records),
    ) as miscounted:
        tables = Tables(campaign, records.parent)
        with check(
            validation,
            "index",
            "The index leads each id to the row of its own sequence.",
            delete(index),
        ) as problem:
            for table in _compared(problem, index, tables.index_schema, tables.index):
                lines += len(table)
        with check(
            validation,
            "records",
            "Every record of the input has one outcome, and the index agrees with it.",
            delete(records),
        ) as problem:
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
    """Yield the rows of a file piece by piece, compared with the tables that it should hold; up to
    the first row that is lost, doubled or moved.
    """
    batches, stored = read_batches(path, schema.names, delete(path)), schema.empty_table()
    for expected in tables:
        while len(stored) < len(expected) and (more := next(batches, None)):
            stored = pa.concat_tables([stored, more])
        piece, stored = stored.slice(0, len(expected)), stored.slice(len(expected))
        if not piece.equals(expected):
            pairs = zip_longest(expected.to_pylist(), piece.to_pylist())
            for place, (before, after) in enumerate(pairs):
                if not after or record_name(after) != record_name(before):
                    fault = "is not where it belongs: lost, doubled or moved"
                    problem(f"{record_name(before)} {fault}")
                    yield piece.slice(0, place)
                    return
                for name, value in before.items():
                    if after[name] != value:
                        values = f"{name} is {after[name]}, expected {value}"
                        problem(f"{record_name(after)}: {values}")
        yield piece
    if stored := stored or next(batches, stored):
        problem(f"{record_name(stored.slice(0, 1).to_pylist()[0])} is not in the input")
