"""Checks of what a master is gathered from: completion records, parts, weights."""

from pathlib import Path

from plm_embed.accuracy import remark
from plm_embed.errors import PlmEmbedError, StoreError, delete
from plm_embed.fingerprint import columns
from plm_embed.master.campaign import Campaign
from plm_embed.master.check import Problem, check
from plm_embed.models.manifest import MANIFEST, RECORD, read_manifest
from plm_embed.sequences.summary import bucket_names
from plm_embed.store.parts import read_part
from plm_embed.store.store import FINGERPRINT, part_names


@check(
    "completion records",
    "Every bucket has a record of the job that finished it, and all jobs used the same settings.",
)
def check_completion_records(
    problem: Problem, campaign: Campaign, skipped: dict[bytes, str]
) -> Campaign:
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
        raise StoreError(f"{campaign.embedded}: no bucket has a sound completion record")
    return campaign


@check("parts", "Every file that the jobs wrote is there, unchanged since it was written.")
def check_parts(problem: Problem, campaign: Campaign) -> None:
    """Compare the parts with what completion records say."""
    wrong = campaign.wrong_parts(hashed=True)
    for name, message in wrong.items():
        problem(f"{campaign.parts_folder / name}: {message}", campaign.part_remedy(*wrong))


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
                    message = f"dimensions {part.dims}, other parts have {campaign.dims}"
                    problem(f"{path}: {message}", remedy)
        except StoreError as error:
            problem(error.message, remedy)


@check("weights", "The weights are the ones that the vectors were computed with.")
def check_weights(problem: Problem, campaign: Campaign, weights: Path) -> str:
    """Compare a folder of prepared weights with the fingerprint. Return a remark where rounding
    moves their vectors notably.
    """
    manifest = read_manifest(weights)
    for name in ("model", "weights_sha256"):
        held, expected = getattr(manifest, name), getattr(campaign.fingerprint, name)
        if held != expected:
            problem(
                f"{weights / MANIFEST}: {name} is {held}, the vectors were made with {expected}",
                delete(campaign.embedded.with_name(RECORD)),
            )
    for name, dim in campaign.dims.items():
        if dim != (expected := columns(name, manifest.dim)):
            problem(f"{name} has dimension {dim}, the model {expected}")
    return remark(campaign.fingerprint.compute_dtype, manifest.roundings)
