"""The validate job: proof that the master is complete and right, or a list of what is wrong.

Everything is read again: completion records, parts, the master (each row against its part, bit for
bit), the index and the records. Some rows are compared with what the reference path computes.
"""

import logging
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import h5py
import numpy as np

from plm_embed.accuracy import remark
from plm_embed.errors import WeightsError, embed_again
from plm_embed.fingerprint import Fingerprint, columns
from plm_embed.io.files import atomic_path, sha256_file
from plm_embed.master.attributes import attributes
from plm_embed.master.check_parts import check_parts
from plm_embed.master.check_records import RecordCheck
from plm_embed.master.check_spots import check_spots
from plm_embed.master.check_vectors import MasterCheck, check_completion
from plm_embed.master.expected_vectors import Expected, sequence_of
from plm_embed.master.findings import Findings
from plm_embed.master.planned import Plan
from plm_embed.master.validation_record import Counts, Norms, Spot, Validation, write_validation
from plm_embed.models.manifest import MANIFEST, read_manifest
from plm_embed.sequences.summary import read_summary
from plm_embed.store import checksums
from plm_embed.store.hdf5 import open_hdf5
from plm_embed.store.store import FINGERPRINT, store_folder

log = logging.getLogger(__name__)


def validate(
    *,
    sequences: Path,
    embedded: Path,
    store: Path,
    weights: Path,
    master: Path,
    index: Path,
    records: Path,
    expected: Callable[[Fingerprint], Expected],
    report: Path,
    checksums: Path,
) -> list[str]:
    """Check a gathered campaign; returns one line per problem, none when all is well.

    Writes `report` (validation.json) in either case, and `checksums`, for `sha256sum -c` in its own
    folder, only when nothing is wrong. Some rows are compared with what is `expected` of vectors of
    their fingerprint.
    """
    checksums.unlink(missing_ok=True)
    findings = Findings()
    counts, spots = Counts(), tuple[Spot, ...]()
    norms: dict[str, Norms] = {}
    fingerprint: Fingerprint | None = None
    note = ""
    with findings.check("completion records"):
        plan, skipped = check_completion(findings, sequences, embedded)
        fingerprint = plan.fingerprint
        check_parts(findings, plan, embedded, store)
        check_settings(findings, plan, embedded, store, weights)
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
                    roundings = read_manifest(weights).roundings
                    note = remark(plan.fingerprint.compute_dtype, roundings)
                    spots = check_spots(
                        findings,
                        plan.fingerprint,
                        skipped,
                        file,
                        expected(plan.fingerprint),
                        roundings,
                        partial(_rounding_of, sequences, weights, plan.fingerprint),
                    )
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
        rounding=note,
    )
    if note:
        log.warning("%s", note)
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


def _rounding_of(
    sequences: Path, weights: Path, fingerprint: Fingerprint, key: str
) -> dict[str, float]:
    """Return how far rounding alone moves the vectors of a key, by representation; without the
    weights 0, so that the probes' bound decides.
    """
    from plm_embed.inference.reference import rounding_distances  # loads torch

    try:
        return rounding_distances(weights, sequence_of(sequences, key), fingerprint)
    except WeightsError:
        return dict.fromkeys(fingerprint.representations, 0.0)


def check_settings(
    findings: Findings, plan: Plan, embedded: Path, store: Path, weights: Path
) -> None:
    """The store's note and the weights are those of the fingerprint."""
    fingerprint = plan.fingerprint
    with findings.check("fingerprints in the store") as problem:
        note = store_folder(store, fingerprint) / FINGERPRINT
        if not note.is_file() or note.read_bytes().strip() != fingerprint.to_json().encode():
            again = embed_again(embedded.parent)
            problem(f"{note}: missing, or not the fingerprint of the completion records; {again}")
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
