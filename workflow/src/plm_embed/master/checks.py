"""The checks of validate: what a master is gathered from, its rows, and its tables.

All that a master, its index and records.parquet should hold is read again from the parts and from
the tables of deduplicate, and compared.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
from plm_embed.master.campaign import Campaign
from plm_embed.master.gather import Piece, column_types, pieces, sums_of
from plm_embed.master.norms import distribution
from plm_embed.master.tables import Tables, record_name
from plm_embed.master.validation_record import Check, Norms
from plm_embed.models.weights import MANIFEST, RECORD, read_manifest
from plm_embed.sequences.summary import bucket_names, read_summary
from plm_embed.store import checksums
from plm_embed.store.hdf5 import DAMAGES, decode, read_bits, storage_dtype
from plm_embed.store.parts import read_part
from plm_embed.store.store import FINGERPRINT, part_names

LISTED = 20
"""Problems of a check that are spelled out; the rest is counted."""
Problem = Callable[..., None]
"""Notes a problem: a text, and a remedy in place of the one of the check."""


class Findings:
    """Checks in the order in which they began, each with its problems.

    remedy: of the first problem that has one; all that depends on what it deletes is made again.
    """

    def __init__(self) -> None:
        self.checks: dict[str, Check] = {}
        self.remedy = ""

    @contextmanager
    def check(self, name: str, meaning: str, remedy: str = "") -> Iterator[Problem]:
        """Make the block a check, whose problems have this remedy. A file that cannot be read is a
        problem and ends the block; the validation goes on.
        """
        check = self.checks[name] = Check(check=name, meaning=meaning)

        def problem(text: str, remedy: str = remedy) -> None:
            check.result = "failed"
            check.problems += 1
            if check.problems <= LISTED:
                check.listed.append(text)
            self.remedy = self.remedy or remedy

        try:
            yield problem
        except PlmEmbedError as error:
            problem(error.message, error.remedy)
        except (*DAMAGES, LookupError, pa.ArrowException) as error:
            problem(str(error))


def check_completion_records(findings: Findings, campaign: Campaign) -> None:
    """Add all sound records to the campaign."""
    with findings.check(
        "completion records",
        "Every bucket has a record of the job that finished it, and all jobs used the same "
        "settings.",
    ) as problem:
        for name in bucket_names(campaign.sequences):
            try:
                campaign.add(name)
            except PlmEmbedError as error:
                problem(error.message, error.remedy)
        if not campaign.rows:
            problem(f"{campaign.embedded}: no bucket has an intact completion record")


def check_parts(findings: Findings, campaign: Campaign) -> None:
    """Compare the parts with what completion records say, and open each that is in the store."""
    folder = campaign.parts_folder
    with findings.check(
        "parts", "Every file that the jobs wrote is there, unchanged since it was written."
    ) as problem:
        wrong = campaign.wrong_parts(hashed=True)
        for name, fault in wrong.items():
            problem(f"{folder / name}: {fault}", campaign.part_remedy(*wrong))
    with findings.check(
        "fingerprints in the store",
        "All stored vectors were computed with exactly these settings.",
    ) as problem:
        note, expected = folder.with_name(FINGERPRINT), campaign.fingerprint.to_json().encode()
        if not note.is_file() or note.read_bytes().strip() != expected:  # a job writes it anew
            fault = "missing, or not the fingerprint of the completion records"
            problem(f"{note}: {fault}", delete(note, campaign.embedded))
        dims: dict[str, int] = {}
        for name in part_names(folder):
            path = folder / name
            remedy = campaign.part_remedy(name) if name in campaign.parts else delete(path)
            try:
                with read_part(path) as part:
                    part.check(campaign.fingerprint)
                    dims = dims or part.dims
                    if part.dims != dims:
                        fault = f"dimensions {part.dims}, other parts have {dims}"
                        problem(f"{path}: {fault}", remedy)
            except PlmEmbedError as error:
                problem(error.message, remedy)


def check_weights(findings: Findings, campaign: Campaign, weights: Path) -> str:
    """Compare a folder of prepared weights with the fingerprint. Return a remark where rounding
    moves their vectors notably.
    """
    fingerprint, record = campaign.fingerprint, campaign.embedded.with_name(RECORD)
    with findings.check(
        "weights", "The weights are the ones that the vectors were computed with.", delete(record)
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
        return remark(fingerprint.compute_dtype, manifest.roundings)
    return ""


def check_attributes(findings: Findings, file: h5py.File, campaign: Campaign) -> None:
    """Compare the attributes with completion records and inputs."""
    with findings.check(
        "attributes",
        "What that file says of itself (settings, inputs, versions) is true.",
        delete(file.filename),
    ) as problem:
        expected = campaign.attributes({})
        for name in expected:
            if name not in file.attrs:
                problem(f"{name} is missing")
        del expected["pooling_definition"]  # words, which another version may have put otherwise
        for name in expected.keys() & set(file.attrs):
            value = file.attrs[name]
            plain = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
            if plain != expected[name]:
                fault = f"completion records and inputs say {expected[name]!r}"
                problem(f"{name} is {plain!r}, {fault}")
        checksums.check_attributes(file)


def check_layout(findings: Findings, file: h5py.File, campaign: Campaign) -> bool:
    """Look at the datasets; return whether their rows can be compared."""
    fingerprint, count = campaign.fingerprint, campaign.vectors
    with findings.check(
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


def check_rows(findings: Findings, file: h5py.File, campaign: Campaign) -> dict[str, Norms]:
    """Compare all rows with the parts, and look whether their numbers are finite.

    Return the distribution of the vectors' norms, by representation.
    """
    again, fingerprint = delete(file.filename), campaign.fingerprint
    norms = {
        name: np.full(campaign.vectors, np.nan, dtype=np.float32)
        for name in fingerprint.representations
        if name != SPANS
    }
    with (
        findings.check(
            "keys",
            "Each distinct sequence has one row and no other row is there; rows are in order.",
            again,
        ) as wrong_key,
        findings.check("finite", "No vector holds NaN or infinity.") as not_finite,
        findings.check(
            "rows equal their parts",
            "Each vector is, bit for bit, the one that its job wrote.",
            again,
        ) as problem,
    ):
        for piece in pieces(map(campaign.bucket, campaign.rows), campaign.store):
            stored = read_bits(file[piece.path], piece.start, piece.start + len(piece.values))
            if not len(stored):
                continue

            def row_name(place: int, piece: Piece = piece) -> str:
                row = piece.first + place
                return f"row {row:,} of {piece.name} (key {_text(file['emb_keys'][row])})"

            wrong = _marked(stored != piece.values, piece.counts)
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
                for place in _marked(~np.isfinite(numbers), piece.counts):
                    not_finite(f"{row_name(place)} holds NaN or infinity")
            rows = slice(piece.first, piece.first + len(piece.counts))
            if piece.name in norms:
                starts = np.cumsum(piece.counts) - piece.counts
                squares = np.add.reduceat(np.einsum("ij,ij->i", numbers, numbers), starts)
                norms[piece.name][rows] = np.sqrt(squares / piece.counts)
            if piece.sums is not None and checksums.GROUP in file:  # else of version 0.1
                matrix = stored.ndim == 2
                sums = sums_of(piece.name, piece.values, piece.counts) if matrix else piece.sums
                kept = read_bits(file[checksums.GROUP][piece.name], rows.start, rows.stop)
                for place in np.flatnonzero(kept != sums).tolist():
                    problem(f"{row_name(place)}: its checksum is not that of its part")
        return {name: distribution(norms.pop(name), file["emb_keys"]) for name in list(norms)}
    return {}


def _marked(marks: NDArray[np.bool_], counts: NDArray[np.int64]) -> list[int]:
    """Return the places of the sequences, of which each has `counts` (m,) rows, with a mark (r,) or
    (r, D) in one of them.
    """
    rows = marks.reshape(len(marks), -1).any(axis=1)
    places: list[int] = np.flatnonzero(
        np.logical_or.reduceat(rows, np.cumsum(counts) - counts)
    ).tolist()
    return places


def _text(value: Any) -> str:
    """Return a number or a key as it can be printed, whatever a damaged file says it is."""
    return value.decode("ascii", "backslashreplace") if isinstance(value, bytes) else str(value)


def check_tables(
    findings: Findings, campaign: Campaign, index: Path, records: Path
) -> dict[str, Any]:
    """Check the index and the records, and compare their numbers with those of the input.

    Return the fields of `Counts` that are about records.
    """
    lines, outcomes = 0, Counter[tuple[str, ...]]()
    with findings.check(
        "counts", "Embedded and skipped records add up to the input, file by file.", delete(records)
    ) as miscounted:
        tables = Tables(campaign, records.parent)
        with findings.check(
            "index", "The index leads each id to the row of its own sequence.", delete(index)
        ) as problem:
            for table in _compared(problem, index, tables.index_schema, tables.index()):
                lines += len(table)
        with findings.check(
            "records",
            "Every record of the input has one outcome, and the index agrees with it.",
            delete(records),
        ) as problem:
            for table in _compared(problem, records, tables.records_schema, tables.records()):
                names = ["source", "status", "reason"]
                for group in table.group_by(names).aggregate([([], "count_all")]).to_pylist():
                    outcomes[tuple(group[name] for name in names)] += group["count_all"]
        inputs = read_summary(campaign.sequences).inputs
        sources = {entry.path: Counter[str]() for entry in inputs}
        statuses, reasons = Counter[str](), Counter[str]()
        for (source, status, reason), count in outcomes.items():
            sources.setdefault(source, Counter())[status] += count
            statuses[status] += count
            if status == "skipped":
                reasons[str(reason)] += count
        for entry in inputs:
            if (count := sources[entry.path].total()) != entry.records:
                fault = f"{entry.records:,} records in the input, {count:,} answered"
                miscounted(f"{entry.path}: {fault}")
        if (embedded := statuses.total() - statuses["skipped"]) != lines:
            miscounted(f"{embedded:,} records are embedded, the index has {lines:,}")
        return {
            "records": statuses.total(),
            "statuses": statuses,
            "skipped": reasons,
            "sources": sources,
        }
    return {}


def _compared(
    problem: Problem, path: Path, schema: pa.Schema, tables: Iterator[pa.Table]
) -> Iterator[pa.Table]:
    """Yield the rows of a file piece by piece, compared with the tables that it should hold, which
    are read to their end; up to the first row that is lost, doubled or moved.
    """
    stored, aligned = schema.empty_table(), True
    batches = read_batches(path, schema.names)
    for expected in tables:
        if not aligned:
            continue
        while len(stored) < len(expected) and (more := next(batches, None)):
            stored = pa.concat_tables([stored, more])
        after = stored.slice(0, len(expected))
        before, stored = expected.slice(0, len(after)), stored.slice(len(after))
        wrong = {name: _different(before[name], after[name]) for name in schema.names}
        moved = np.flatnonzero(wrong["source"] | wrong["number"])
        rows = int(moved[0]) if len(moved) else len(after)
        for name, places in wrong.items():
            for place in np.flatnonzero(places[:rows]).tolist():
                values = f"{name} is {after[name][place]}, expected {before[name][place]}"
                problem(f"{record_name(after, place)}: {values}")
        yield after.slice(0, rows)
        if rows < len(expected):
            aligned = False
            fault = "is not where it belongs: lost, doubled or moved"
            problem(f"{record_name(expected, rows)} {fault}")
    if aligned and (stored := stored or next(batches, stored)):
        problem(f"{record_name(stored, 0)} is not in the input")


def _different(first: pa.ChunkedArray, second: pa.ChunkedArray) -> NDArray[np.bool_]:
    """Mark the values (n,) that differ; two that are missing do not."""
    if first.equals(second):
        return np.zeros(len(first), np.bool_)
    pairs = zip(first.to_pylist(), second.to_pylist(), strict=True)
    return np.array([a != b for a, b in pairs], np.bool_)
