"""The validate job: proof that the master is complete and right, or a list of what is wrong.

Everything is read again: completion records, parts, the master (each row against its part, bit for
bit), the index and the records. Some rows are embedded again by the reference path.
"""

import logging
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from plm_embed.accuracy import COSINE, RELATIVE_L2
from plm_embed.errors import StoreError
from plm_embed.fingerprint import SPANS, Fingerprint, StorageDtype, columns, has_matrix
from plm_embed.io.files import atomic_path, sha256_file
from plm_embed.io.parquet import read_table
from plm_embed.jobs.completion_record import EMBED_AGAIN
from plm_embed.keys import bucket_of
from plm_embed.master.attributes import attributes
from plm_embed.master.check_parts import check_parts
from plm_embed.master.check_records import RecordCheck
from plm_embed.master.check_vectors import MasterCheck, check_completion
from plm_embed.master.findings import Findings, text
from plm_embed.master.planned import Plan
from plm_embed.master.validation_record import Counts, Norms, Spot, Validation, write_validation
from plm_embed.models.manifest import MANIFEST, read_manifest
from plm_embed.models.registry import MODELS
from plm_embed.sequences.summary import bucket_names, check_keys, read_summary, verified
from plm_embed.store import checksums
from plm_embed.store.hdf5 import decode, open_hdf5, read_bits
from plm_embed.store.store import store_folder

log = logging.getLogger(__name__)

Vectors = dict[str, NDArray[np.float32]]
Reference = Callable[[Path, list[str], Fingerprint], list[Vectors]]


def validate(
    *,
    sequences: Path,
    embedded: Path,
    store: Path,
    weights: Path,
    master: Path,
    index: Path,
    records: Path,
    spot_checks: int,
    report: Path,
    checksums: Path,
    reference: Reference | None = None,
) -> list[str]:
    """Check a gathered campaign; returns one line per problem, none when all is well.

    Writes `report` (validation.json) in either case, and `checksums`, for `sha256sum -c` in its own
    folder, only when nothing is wrong. `spot_checks` rows are compared with `reference` (default:
    fair-esm, one sequence at a time).
    """
    checksums.unlink(missing_ok=True)
    findings = Findings()
    counts, spots = Counts(), tuple[Spot, ...]()
    norms: dict[str, Norms] = {}
    fingerprint: Fingerprint | None = None
    with findings.check("completion records"):
        plan, skipped = check_completion(findings, sequences, embedded)
        fingerprint = plan.fingerprint
        check_parts(findings, plan, embedded, store)
        check_settings(findings, plan, store, weights)
        with findings.check("master"), open_hdf5(master) as file:
            _check_attributes(findings, plan, sequences, file)
            check = MasterCheck(findings, file, plan)
            if check.layout():  # else nothing in it can be compared
                if check.keys():
                    for name in plan.names:
                        check.bucket(sequences, embedded, store, name)
                    norms = check.norm_statistics()
                counts = _check_tables(
                    findings, plan, skipped, file, sequences=sequences, index=index, records=records
                )
                with findings.check("spot checks"):
                    rows = _choose(file["length"], spot_checks, plan.fingerprint)
                    keys = [text(file["emb_keys"][row]) for row in rows]
                    compute, asked = reference or _reference(), _residues(sequences, keys)
                    expected = compute(weights, asked, plan.fingerprint) if rows else []
                    spots = _check_spots(findings, plan.fingerprint, file, rows, expected)
    problems = findings.problems
    files = {path: sha256_file(path) for path in (master, index, records) if path.is_file()}
    validation = Validation(
        status="failed" if problems else "passed",
        checks=findings.checks(),
        counts=counts,
        norms=norms,
        spot_checks=spots,
        fingerprint=fingerprint,
        files={path.name: digest for path, digest in files.items()},
    )
    write_validation(report, validation)
    if not problems:
        files[report] = sha256_file(report)
        with atomic_path(checksums) as temporary:
            lines = [
                f"{digest}  {os.path.relpath(path, checksums.parent)}\n"
                for path, digest in files.items()
            ]
            temporary.write_text("".join(lines), encoding="utf-8")
    return problems


def check_settings(findings: Findings, plan: Plan, store: Path, weights: Path) -> None:
    """The store's note and the weights are those of the fingerprint."""
    fingerprint = plan.fingerprint
    with findings.check("fingerprints in the store") as problem:
        note = store_folder(store, fingerprint) / "fingerprint.json"
        if not note.is_file() or note.read_bytes().strip() != fingerprint.to_json().encode():
            problem(
                f"{note}: missing, or not the fingerprint of the completion records; {EMBED_AGAIN}"
            )
    with findings.check("weights") as problem:
        manifest = read_manifest(weights)
        for name in ("model", "weights_sha256"):
            found, expected = getattr(manifest, name), getattr(fingerprint, name)
            if found != expected:
                problem(
                    f"{weights / MANIFEST}: {name} is {found}, the vectors were made with "
                    f"{expected}"
                )
        for name, dim in plan.dims.items():
            if dim != (expected := columns(name, manifest.dim)):
                problem(f"{name} has dimension {dim}, the model {expected}")


def _check_attributes(findings: Findings, plan: Plan, sequences: Path, file: h5py.File) -> None:
    with findings.check("attributes") as problem:
        try:
            checksums.check_attributes(file)
        except ValueError as error:
            problem(str(error))
        for name, expected in attributes(plan, read_summary(sequences), {}).items():
            if name not in file.attrs:
                problem(f"{name} is missing")
                continue
            if name == "pooling_definition":  # words, which another version may have put otherwise
                continue
            found = file.attrs[name]
            plain = found.tolist() if isinstance(found, np.ndarray | np.generic) else found
            if plain != expected:
                problem(f"{name} is {plain!r}, completion records and inputs say {expected!r}")


def _check_tables(
    findings: Findings, plan: Plan, skipped: dict[bytes, str], file: h5py.File, *,
    sequences: Path, index: Path, records: Path,
) -> Counts:  # fmt: skip
    """The index and the records; returns their counts."""
    counts = Counts(unique=plan.vectors + len(skipped), vectors=plan.vectors)
    with findings.check("index"), RecordCheck(findings, sequences, records.parent) as check:
        check.index(index, file)
        check.records(records, skipped)
        return check.counts(counts)
    return counts


def _reference() -> Reference:
    from plm_embed.inference.reference import reference_vectors

    return partial(reference_vectors, most_tokens=SPOT_MOST)


SPOT_TOKENS = 2000
"""Most tokens of a piece for a spot check: the reference holds heads x L x L numbers several times,
2 GB at 40 heads.
"""
SPOT_MOST = 2500
"""And where letters do not tell their number, the most after they are counted."""
SPOT_PIECES = 10
"""Most pieces of a sequence, each as long as that."""
_ROWS_AT_ONCE = 1 << 20


def _choose(lengths: h5py.Dataset, count: int, fingerprint: Fingerprint) -> list[int]:
    """Random rows, the same on every repetition."""
    random = np.random.default_rng(int(fingerprint.id, 16))
    model, long = MODELS.get(fingerprint.model), fingerprint.long_sequences
    most = SPOT_TOKENS * (model.family.letters_per_token if model else 1)
    cut = long.policy in ("window", "crop") and long.max_residues

    def short(start: int) -> NDArray[np.int64]:
        """Those of the rows from `start` on that are short enough."""
        some: NDArray[np.int32] = lengths[start : start + _ROWS_AT_ONCE]
        piece = np.minimum(some, cut) if cut else some
        return start + np.flatnonzero((piece <= most) & (some <= SPOT_PIECES * most))

    starts = range(0, len(lengths), _ROWS_AT_ONCE)
    there = sum(len(short(start)) for start in starts)
    if there < min(count, len(lengths)):
        log.warning("spot checks: only %d sequences are short enough for the reference", there)
    picked = np.sort(random.choice(there, size=min(count, there), replace=False))
    chosen: list[int] = []
    for start in starts:
        rows = short(start)
        chosen += rows[picked[(picked >= 0) & (picked < len(rows))]].tolist()
        picked -= len(rows)
    return chosen


def _check_spots(
    findings: Findings,
    fingerprint: Fingerprint,
    file: h5py.File,
    rows: list[int],
    expected: list[Vectors],
) -> tuple[Spot, ...]:
    """Compare some rows with what the reference path computes for them."""
    spots = []
    model = MODELS.get(fingerprint.model)
    least = model.family.cosine if model else COSINE
    limit = RELATIVE_L2[fingerprint.storage_dtype]
    if model and fingerprint.storage_dtype == fingerprint.compute_dtype == "float32":
        limit = min(limit, model.family.relative_error)
    with findings.check("spot checks") as problem:
        for row, wanted in zip(rows, expected, strict=True):
            key = text(file["emb_keys"][row])
            if not wanted:
                log.warning("spot checks: key %s has too many tokens for the reference", key)
                continue
            for name in fingerprint.representations:
                found = _numbers(file, name, row, fingerprint.storage_dtype)
                if found.shape != wanted[name].shape:
                    problem(
                        f"row {row:,} of {name}: shape {found.shape}, the reference gives "
                        f"{wanted[name].shape}"
                    )
                    continue
                if name == SPANS:
                    if not np.array_equal(found, wanted[name]):
                        problem(f"row {row:,} of {name} (key {key}): not the reference's tokens")
                    continue
                relative_l2, cosine = _distance(found, wanted[name])
                spot = Spot(
                    row=row, key=key, representation=name, relative_l2=relative_l2, cosine=cosine
                )
                spots.append(spot)
                if fingerprint.compute_dtype == "float32" and not relative_l2 <= limit:
                    problem(
                        f"row {row:,} of {name} (key {key}): relative distance "
                        f"{relative_l2:.2g} "
                        f"to the reference, more than {limit:g}"
                    )
                if fingerprint.compute_dtype != "float32" and not cosine >= least:
                    problem(
                        f"row {row:,} of {name} (key {key}): cosine {cosine:.6f} to the "
                        "reference, "
                        f"less than {least}"
                    )
    return tuple(spots)


def _residues(sequences: Path, keys: list[str]) -> list[str]:
    """The sequences that the keys name."""
    names = bucket_names(sequences)
    found: dict[str, str] = {}
    for bucket in sorted({bucket_of(key, len(names)) for key in keys}):
        path = verified(sequences, f"buckets/{names[bucket]}.parquet")
        table = read_table(path, ["key", "sequence"]).filter(pc.field("key").isin(keys))
        check_keys(path, table)
        found |= zip(table["key"].to_pylist(), table["sequence"].to_pylist(), strict=True)
    for key in keys:
        if key not in found:
            raise StoreError(f"key {key} is in no bucket of {sequences}", path=sequences)
    return [found[key] for key in keys]


def _numbers(file: h5py.File, name: str, row: int, dtype: StorageDtype) -> NDArray[np.float64]:
    """One stored vector (D,), or matrix (L, D) per residue."""
    dataset = file["representations"][name]
    if has_matrix(name):
        start, stop = file["offset"][row : row + 2].tolist()
        return decode(read_bits(dataset, start, stop), dtype).astype(np.float64)
    vector: NDArray[np.float64] = decode(read_bits(dataset, row, row + 1), dtype)[0].astype(
        np.float64
    )
    return vector


def _distance(found: NDArray[np.float64], expected: NDArray[np.float32]) -> tuple[float, float]:
    """Relative L2 distance and cosine."""
    wanted = expected.astype(np.float64)
    lengths = float(np.linalg.norm(found)), float(np.linalg.norm(wanted))
    difference = float(np.linalg.norm(found - wanted))
    cosine = float((found * wanted).sum()) / (lengths[0] * lengths[1] or 1.0)
    return difference / (lengths[1] or 1.0), cosine
