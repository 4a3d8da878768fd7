"""The validate job: proof that the master is complete and right, or a list of what is wrong.

Everything is read again: completion records, parts, the master (each row against its part, bit for
bit), the index and the records. Some rows are compared with what the reference path computes.
"""

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import h5py

from plm_embed.errors import WeightsError, delete
from plm_embed.fingerprint import Fingerprint
from plm_embed.io.files import atomic_path, sha256_file
from plm_embed.master.campaign import Campaign
from plm_embed.master.check import Findings, Problem, check
from plm_embed.master.check_master import check_attributes, check_layout, check_order, check_rows
from plm_embed.master.check_store import (
    check_completion_records,
    check_fingerprints,
    check_parts,
    check_weights,
)
from plm_embed.master.check_tables import (
    LINE,
    check_counts,
    check_index,
    check_records,
    summed,
)
from plm_embed.master.outcomes import RecordTable
from plm_embed.master.spot_checks import Vectors, check_spots, sequence_of
from plm_embed.master.validation_record import (
    Counts,
    Norms,
    Spot,
    Validation,
    write_validation,
)
from plm_embed.store.hdf5 import open_hdf5

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
    expected: Callable[[Fingerprint], Mapping[str, Vectors]],
    report: Path,
    checksums: Path,
) -> Validation:
    """Check a gathered campaign.

    Writes `report` (validation.json) in either case, and `checksums`, for `sha256sum -c` in its own
    folder, only when nothing is wrong. Some rows are compared with what is `expected` of vectors of
    their fingerprint.
    """
    checksums.unlink(missing_ok=True)
    findings, campaign = Findings(), Campaign(sequences, embedded, store)
    skipped: dict[bytes, str] = {}
    counts, norms, spots, note = Counts(), dict[str, Norms](), tuple[Spot, ...](), ""

    def compare(file: h5py.File) -> None:
        nonlocal counts, norms, spots
        check_attributes(findings, file, campaign)
        if not check_layout(findings, file, campaign):
            return  # nothing in it can be compared
        if check_order(findings, file):
            norms = check_rows(findings, findings, file, campaign) or {}
        lines = RecordTable(sequences, records.parent, LINE)
        indexed = check_index(findings, index, file, lines)
        counted = check_records(findings, records, sequences, lines, skipped)
        if indexed is not None and counted is not None:
            check_counts(findings, records, lines.sources, indexed, counted)
            counts = replace(counts, **summed(counted, lines.sources))
        rounding_of = partial(_rounding_of, sequences, weights, campaign.fingerprint)
        spots = (
            check_spots(
                findings, file, campaign.fingerprint, expected, skipped, weights, rounding_of
            )
            or ()
        )

    sound = check_completion_records(findings, campaign, skipped)
    if sound:
        counts = Counts(unique=campaign.vectors + len(skipped), vectors=campaign.vectors)
        check_parts(findings, campaign)
        check_fingerprints(findings, campaign)
        note = check_weights(findings, campaign, weights) or ""
        check_master(findings, master, compare)
    if note:
        log.warning("%s", note)
    files = {path: sha256_file(path) for path in (master, index, records) if path.is_file()}
    checks = tuple(findings.checks.values())
    validation = Validation(
        status="failed" if any(check.problems for check in checks) else "passed",
        remedy=findings.remedy,
        checks=checks,
        counts=counts,
        norms=norms,
        spot_checks=spots,
        fingerprint=campaign.fingerprint if sound else None,
        files={path.name: digest for path, digest in files.items()},
        rounding=note,
    )
    write_validation(report, validation)
    if validation.status == "passed":
        files[report] = sha256_file(report)
        with atomic_path(checksums) as temporary:
            lines = (
                f"{digest}  {os.path.relpath(path, checksums.parent)}\n"
                for path, digest in files.items()
            )
            temporary.write_text("".join(lines), encoding="utf-8")
    return validation


@check("master", "The file with all vectors can be opened and read.")
def check_master(_: Problem, master: Path, compare: Callable[[h5py.File], None]) -> None:
    """Open a master, and run the checks that read it."""
    with open_hdf5(master, delete(master)) as file:
        compare(file)


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
