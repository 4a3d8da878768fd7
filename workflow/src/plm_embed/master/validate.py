"""The validate job: proof that the master is complete and right, or a list of what is wrong.

Everything is read again: completion records, parts, the master (each row against its part, bit for
bit), the index and the records. Some rows are compared with what the reference path computes.
"""

import logging
import os
from pathlib import Path

from plm_embed.errors import delete
from plm_embed.io.files import atomic_path, sha256_file
from plm_embed.master import checks
from plm_embed.master.campaign import Campaign
from plm_embed.master.spot_checks import check_spots
from plm_embed.master.validation_record import Validation, write_validation
from plm_embed.sequences.summary import read_summary
from plm_embed.store.hdf5 import open_hdf5
from plm_embed.wording import now

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
    validation = Validation(status="passed", checks=[])
    campaign = Campaign(sequences, embedded, store)
    checks.check_completion_records(validation, campaign)
    if campaign.rows:
        validation.fingerprint, validation.counts.vectors = campaign.fingerprint, campaign.vectors
        validation.counts.unique = read_summary(sequences).unique
        checks.check_parts(validation, campaign)
        checks.check_weights(validation, campaign, weights)
        meaning, again = "The file with all vectors can be opened and read.", delete(master)
        with (
            checks.check(validation, "master", meaning, again),
            open_hdf5(master, again) as file,
        ):
            checks.check_attributes(validation, file, campaign)
            if checks.check_layout(validation, file, campaign):
                checks.check_rows(validation, file, campaign)
                check_spots(validation, master, campaign, weights, spot_checks)
        checks.check_tables(validation, campaign, index, records)
    for remark in filter(None, (validation.rounding, validation.not_compared)):
        log.warning("%s", remark)
    files = {path: sha256_file(path) for path in (master, index, records) if path.is_file()}
    validation.files = {path.name: digest for path, digest in files.items()}
    validation.finished = now()
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
