"""The checks of validate: what a master is gathered from, its rows, and its tables.

All that a master, its index and records.parquet should hold is read again from the parts and from
the tables of deduplicate, and compared.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from plm_embed.accuracy import remark
from plm_embed.errors import PlmEmbedError, StoreError, delete
from plm_embed.fingerprint import SCORES, SPANS, columns, has_matrix
from plm_embed.io.parquet import read_batches
from plm_embed.master.campaign import Campaign
from plm_embed.master.gather import Piece, pieces, sums_of
from plm_embed.master.norms import distribution
from plm_embed.master.tables import Tables, record_name
from plm_embed.master.validation_record import Check, Norms
from plm_embed.models.weights import MANIFEST, RECORD, read_manifest
from plm_embed.sequence_windows import stored_residues
from plm_embed.sequences.summary import bucket_names, read_summary
from plm_embed.store import checksums
from plm_embed.store.hdf5 import DAMAGES, decode, read_bits, storage_dtype
from plm_embed.store.parts import read_part
from plm_embed.store.store import FINGERPRINT, part_names

LISTED = 20
"""Problems of a check that are spelled out; the rest is counted."""
Problem = Callable[..., None]
"""Notes a problem: a text, and the remedy if there is one."""


class Findings:
    """Checks in the order in which they began, each with its problems.

    remedy: of the first problem that has one; all that depends on what it deletes is made again.
    """

    def __init__(self) -> None:
        self.checks: dict[str, Check] = {}
        self.remedy = ""

    @contextmanager
    def check(self, name: str, meaning: str) -> Iterator[Problem]:
        """Make the block a check. A file that cannot be read is a problem and ends the block; the
        validation goes on.
        """
        self.checks.setdefault(name, Check(check=name, meaning=meaning))
        problem = partial(self._problem, name)
        try:
            yield problem
        except PlmEmbedError as error:
            problem(error.message, error.remedy)
        except (*DAMAGES, LookupError, pa.ArrowException) as error:
            problem(str(error))

    def _problem(self, name: str, text: str, remedy: str = "") -> None:
        check = self.checks[name]
        count, listed = check.problems + 1, (*check.listed, text)[:LISTED]
        self.checks[name] = replace(check, result="failed", problems=count, listed=listed)
        self.remedy = self.remedy or remedy


def check_completion_records(findings: Findings, campaign: Campaign) -> None:
    """Add all sound records to the campaign."""
    with findings.check(
        "completion records",
        "Every bucket has a record of the job that finished it, and all jobs used the same "
        "settings.",
    ) as problem:
        for name in bucket_names(campaign.sequences):
            try:
                campaign.add(campaign.bucket(name))
            except PlmEmbedError as error:
                problem(error.message, error.remedy)
        if not campaign.rows:
            problem(f"{campaign.embedded}: no bucket has an intact completion record")


def check_parts(findings: Findings, campaign: Campaign) -> None:
    """Compare the parts with what completion records say, and open each that is in the store."""
    with findings.check(
        "parts", "Every file that the jobs wrote is there, unchanged since it was written."
    ) as problem:
        wrong = campaign.wrong_parts(hashed=True)
        for name, fault in wrong.items():
            problem(f"{campaign.parts_folder / name}: {fault}", campaign.part_remedy(*wrong))
    with findings.check(
        "fingerprints in the store",
        "All stored vectors were computed with exactly these settings.",
    ) as problem:
        note = campaign.parts_folder.with_name(FINGERPRINT)
        expected = campaign.fingerprint.to_json().encode()
        if not note.is_file() or note.read_bytes().strip() != expected:  # a job writes it anew
            fault = "missing, or not the fingerprint of the completion records"
            problem(f"{note}: {fault}", delete(note, campaign.embedded))
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


def check_weights(findings: Findings, campaign: Campaign, weights: Path) -> str:
    """Compare a folder of prepared weights with the fingerprint. Return a remark where rounding
    moves their vectors notably.
    """
    fingerprint = campaign.fingerprint
    with findings.check(
        "weights", "The weights are the ones that the vectors were computed with."
    ) as problem:
        manifest = read_manifest(weights)
        names = ["model", "weights_sha256", *["head_sha256"] * bool(fingerprint.scores)]
        for name in names:
            value, expected = getattr(manifest, name), getattr(fingerprint, name)
            if value != expected:
                fault = f"{name} is {value}, the vectors were made with {expected}"
                remedy = delete(campaign.embedded.with_name(RECORD))
                problem(f"{weights / MANIFEST}: {fault}", remedy)
        for name, dim in campaign.dims.items():
            if dim != (expected := columns(name, manifest.dim)):
                problem(f"{name} has dimension {dim}, the model {expected}")
        return remark(fingerprint.compute_dtype, manifest.roundings)
    return ""


def check_attributes(findings: Findings, file: h5py.File, campaign: Campaign) -> None:
    """Compare the attributes with completion records and inputs."""
    again = delete(Path(file.filename))
    with findings.check(
        "attributes", "What that file says of itself (settings, inputs, versions) is true."
    ) as problem:
        try:
            checksums.check_attributes(file)
        except ValueError as error:
            problem(str(error), again)
        for name, expected in campaign.attributes({}).items():
            if name not in file.attrs:
                problem(f"{name} is missing", again)
            elif (
                name != "pooling_definition"
            ):  # words, which another version may have put otherwise
                value = file.attrs[name]
                plain = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
                if plain != expected:
                    fault = f"{name} is {plain!r}, completion records and inputs say {expected!r}"
                    problem(fault, again)


def check_layout(findings: Findings, file: h5py.File, campaign: Campaign) -> bool:
    """Look at the datasets; return whether their rows can be compared."""
    again, fingerprint = delete(Path(file.filename)), campaign.fingerprint
    with findings.check(
        "shapes and types",
        "Each table in it has the rows, columns and number format that it should.",
    ) as problem:
        campaign.measure()
        vectors = file["representations"]
        for name in sorted(set(vectors) - set(fingerprint.representations)):
            fault = f"{name} is not among the representations of the fingerprint"
            problem(f"{fault}: nothing vouches for it", again)
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys(
            ("emb_keys", "length", "windows", *fingerprint.scores), (campaign.vectors,)
        )
        if any(map(has_matrix, fingerprint.representations)):
            shapes["offset"] = (campaign.vectors + 1,)
        datasets = [(name, file[name], shape) for name, shape in shapes.items()]
        datasets += [(name, vectors[name], shape) for name, shape in campaign.shapes.items()]
        wrong = [
            f"{name} has shape {dataset.shape}, expected {shape}"
            for name, dataset, shape in datasets
            if dataset.shape != shape
        ]
        wrong += [
            f"{name} is stored as {vectors[name].dtype}, expected {fingerprint.storage_dtype}"
            for name in fingerprint.representations
            if storage_dtype(vectors[name]) != fingerprint.storage_dtype
        ]
        pooled = [name for name in fingerprint.representations if not has_matrix(name)]
        if pooled and file["emb"] != vectors[pooled[0]]:
            wrong.append(f"emb is not {pooled[0]}")
        for fault in wrong:
            problem(fault, again)
        return not wrong
    return False


def check_rows(findings: Findings, file: h5py.File, campaign: Campaign) -> dict[str, Norms]:
    """Compare all rows with the parts, and look whether their numbers are finite.

    Return the distribution of the vectors' norms, by representation.
    """
    again, fingerprint = delete(Path(file.filename)), campaign.fingerprint
    norms = {
        name: np.full(campaign.vectors, np.nan, dtype=np.float32)
        for name in fingerprint.representations
        if name != SPANS
    }
    distributions: dict[str, Norms] = {}
    with (
        findings.check(
            "keys",
            "Each distinct sequence has one row and no other row is there; rows are in order.",
        ) as wrong_key,
        findings.check("finite", "No vector holds NaN or infinity.") as not_finite,
        findings.check(
            "rows equal their parts", "Each vector is, bit for bit, the one that its job wrote."
        ) as problem,
    ):
        for piece in pieces(map(campaign.bucket, campaign.rows), campaign.store):
            rows = slice(piece.first, piece.first + len(piece.counts))
            stored = read_bits(file[piece.path], piece.start, piece.start + len(piece.values))
            if stored.ndim == 1:
                label = "key" if piece.name == "emb_keys" else piece.name
                report = wrong_key if piece.name == "emb_keys" else problem
                for place in np.flatnonzero(stored != piece.values).tolist():
                    values = f"{_text(stored[place])}, expected {_text(piece.values[place])}"
                    report(f"row {piece.start + place:,}: {label} is {values}", again)
                scores = piece.values if piece.name in SCORES else ()
                for place in np.flatnonzero(~np.isfinite(scores)).tolist():
                    not_finite(f"row {piece.start + place:,}: {label} is NaN or infinity")
            elif len(stored):
                starts = np.cumsum(piece.counts) - piece.counts
                same = np.logical_and.reduceat((stored == piece.values).all(axis=1), starts)
                for row in _rows(file, piece, ~same):
                    problem(f"{row}: differs from its part", again)
                numbers = decode(stored, fingerprint.storage_dtype).astype(np.float32, copy=False)
                finite = np.logical_and.reduceat(np.isfinite(numbers).all(axis=1), starts)
                for row in _rows(file, piece, ~finite):
                    not_finite(f"{row} holds NaN or infinity")
                if piece.name == SPANS:
                    letters = stored_residues(file["length"][rows], fingerprint.long_sequences)
                    wrong = wrong_spans(numbers, piece.counts, letters, file["windows"][rows])
                    for row in _rows(file, piece, wrong):
                        problem(f"{row}: its tokens are not all its letters, in their order", again)
                else:
                    squares = np.add.reduceat(np.einsum("ij,ij->i", numbers, numbers), starts)
                    norms[piece.name][rows] = np.sqrt(squares / piece.counts)
            for place in np.flatnonzero(_wrong_sums(file, piece)).tolist():
                fault = f"the checksum of {piece.name} is not that of what its part holds"
                problem(f"row {piece.first + place:,}: {fault}", again)
        for name in list(norms):
            distributions[name] = distribution(norms.pop(name), file["emb_keys"])
    return distributions


def _wrong_sums(file: h5py.File, piece: Piece) -> NDArray[np.bool_]:
    """Mark the sequences (m,) whose checksum in the master is not that of their part's values."""
    if piece.sums is None or checksums.GROUP not in file:  # as of version 0.1
        return np.zeros(0, np.bool_)
    matrix, sums = piece.values.ndim == 2, piece.sums
    expected = sums_of(piece.name, piece.values, piece.counts) if matrix else sums
    rows = piece.first, piece.first + len(piece.counts)
    wrong: NDArray[np.bool_] = read_bits(file[checksums.GROUP][piece.name], *rows) != expected
    return wrong


def _rows(file: h5py.File, piece: Piece, marked: NDArray[np.bool_]) -> Iterator[str]:
    """Name the rows of a piece's sequences that are `marked` (m,)."""
    for place in np.flatnonzero(marked).tolist():
        row = piece.first + place
        yield f"row {row:,} of {piece.name} (key {_text(file['emb_keys'][row])})"


def _text(value: Any) -> str:
    """Return a number or a key as it can be printed, whatever a damaged file says it is."""
    return value.decode("ascii", "backslashreplace") if isinstance(value, bytes) else str(value)


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


def check_tables(
    findings: Findings, campaign: Campaign, index: Path, records: Path
) -> dict[str, Any]:
    """Check the index and the records, and compare their numbers with those of the input.

    Return the fields of `Counts` that are about records, as far as they could be counted.
    """
    lines = outcomes = None
    with findings.check(
        "counts", "Embedded and skipped records add up to the input, file by file."
    ) as miscounted:
        tables, again = Tables(campaign, records.parent), delete(records)
        with findings.check(
            "index", "The index leads each id to the row of its own sequence."
        ) as problem:
            stored = _compared(problem, index, tables.index_schema, tables.index())
            lines = sum(map(len, stored))
        with findings.check(
            "records", "Every record of the input has one outcome, and the index agrees with it."
        ) as problem:
            stored = _compared(problem, records, tables.records_schema, tables.records())
            outcomes = sum(map(_outcomes, stored), Counter[tuple[str, ...]]())
        if lines is None or outcomes is None:
            return {}
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
                miscounted(f"{entry.path}: {fault}", again)
        if (embedded := statuses.total() - statuses["skipped"]) != lines:
            miscounted(f"{embedded:,} records are embedded, the index has {lines:,}", again)
        return {
            "records": statuses.total(),
            "statuses": dict(sorted(statuses.items())),
            "skipped": dict(sorted(reasons.items())),
            "sources": {source: dict(sorted(count.items())) for source, count in sources.items()},
        }
    return {}


def _outcomes(table: pa.Table) -> Counter[tuple[str, ...]]:
    """Count records by source, status and reason."""
    names = ["source", "status", "reason"]
    groups = table.group_by(names).aggregate([([], "count_all")]).to_pylist()
    return Counter({tuple(group[name] for name in names): group["count_all"] for group in groups})


def _compared(
    problem: Problem, path: Path, schema: pa.Schema, tables: Iterator[pa.Table]
) -> Iterator[pa.Table]:
    """Yield the rows of a file piece by piece, compared with the tables that it should hold; up to
    the first row that is lost, doubled or moved.
    """
    again, names, stored = delete(path), schema.names, schema.empty_table()
    batches = read_batches(path, names, again)
    for expected in tables:
        while len(stored) < len(expected) and (more := next(batches, None)):
            stored = pa.concat_tables([stored, more])
        after = stored.slice(0, len(expected))
        before, stored = expected.slice(0, len(after)), stored.slice(len(after))
        wrong = {name: _different(before[name], after[name]) for name in names}
        moved = np.flatnonzero(wrong["source"] | wrong["number"])
        rows = int(moved[0]) if len(moved) else len(after)
        for name, places in wrong.items():
            for place in np.flatnonzero(places[:rows]).tolist():
                values = f"{name} is {after[name][place]}, expected {before[name][place]}"
                problem(f"{record_name(after, place)}: {values}", again)
        yield after.slice(0, rows)
        if rows < len(expected):
            fault = "is not where it belongs: lost, doubled or moved"
            problem(f"{record_name(expected, rows)} {fault}", again)
            return
    if stored := stored or next(batches, stored):
        problem(f"{record_name(stored, 0)} is not in the input", again)


def _different(first: pa.ChunkedArray, second: pa.ChunkedArray) -> NDArray[np.bool_]:
    if first.equals(second):
        return np.zeros(len(first), np.bool_)
    pairs = zip(first.to_pylist(), second.to_pylist(), strict=True)
    return np.array([a != b for a, b in pairs], np.bool_)
