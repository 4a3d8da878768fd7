"""The validate job: proof that the master is complete and right, or a list of what is wrong.

Everything is read again: completion records, parts, the master (each row against its part, bit for
bit), the index and the records. Some rows are compared with what the reference path computes.
"""

import logging
import os
from pathlib import Path

from plm_embed.errors import delete
from plm_embed.io.files import atomic_path, sha256_file
from plm_embed.master.campaign import Campaign
from plm_embed.master.checks import (
    Findings,
    check_attributes,
    check_completion_records,
    check_layout,
    check_parts,
    check_rows,
    check_tables,
    check_weights,
)
from plm_embed.master.spot_checks import check_spots
from plm_embed.master.validation_record import Counts, Norms, Spot, Validation, write_validation
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
    spot_checks: int,
    report: Path,
    checksums: Path,
) -> Validation:
    """Check a gathered campaign.

    Writes `report` (validation.json) in either case, and `checksums`, for `sha256sum -c` in its own
    folder, only when nothing is wrong. `spot_checks` random rows are compared with what the
    reference path of the model's family computes.
    """
    checksums.unlink(missing_ok=True)
    findings, campaign = Findings(), Campaign(sequences, embedded, store)
    counts, norms, spots, rounding = Counts(), dict[str, Norms](), tuple[Spot, ...](), ""
    check_completion_records(findings, campaign)
    if campaign.rows:
        check_parts(findings, campaign)
        rounding = check_weights(findings, campaign, weights)
        with (
            findings.check(
                "master", "The file with all vectors can be opened and read.", delete(master)
            ),
            open_hdf5(master, delete(master)) as file,
        ):
            check_attributes(findings, file, campaign)
            if check_layout(findings, file, campaign):
                norms = check_rows(findings, file, campaign)
                spots = check_spots(findings, master, campaign, weights, spot_checks)
        counted = check_tables(findings, campaign, index, records)
        unique = campaign.vectors + campaign.skipped
        counts = Counts(unique=unique, vectors=campaign.vectors, **counted)
    if rounding:
        log.warning("%s", rounding)
    files = {path: sha256_file(path) for path in (master, index, records) if path.is_file()}
    checks = tuple(findings.checks.values())
    validation = Validation(
        status="failed" if any(check.problems for check in checks) else "passed",
        remedy=findings.remedy,
        checks=checks,
        counts=counts,
        norms=norms,
        spot_checks=spots,
        fingerprint=campaign.fingerprint if campaign.rows else None,
        files={path.name: digest for path, digest in files.items()},
        rounding=rounding,
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
