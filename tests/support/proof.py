"""The proof of files that need not be a campaign's."""

from collections.abc import Sequence
from pathlib import Path

from plm_embed.io.files import sha256_file
from plm_embed.io.json_files import write_sealed
from plm_embed.master.validation_record import VALIDATION, Counts, Validation


def prove(proof: Path, files: Sequence[Path]) -> None:
    """As validate does: what it says beside the proof, which names that and all files."""
    said = proof.with_name(VALIDATION)
    digests = {path.name: sha256_file(path) for path in files}
    validation = Validation(
        status="passed",
        checks=(),
        counts=Counts(),
        norms={},
        spot_checks=(),
        fingerprint=None,
        files=digests,
    )
    write_sealed(said, validation)
    listed = digests | {said.name: sha256_file(said)}
    proof.write_text("".join(f"{sha256}  {name}\n" for name, sha256 in listed.items()))
