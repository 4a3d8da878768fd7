"""Weights tried on this machine: what proves that they, and the vectors computed from them, are
right.

The one check that needs the real weights: what the publisher's own program answers to three
peptides is shipped for ESM-2, ESM C and Ankh.
"""

from collections.abc import Iterator
from pathlib import Path

from plm_embed.accuracy import bound, remark
from plm_embed.errors import WeightsError
from plm_embed.fingerprint import ComputeDtype
from plm_embed.inference.language_model import LanguageModel
from plm_embed.kernels.devices import device_name
from plm_embed.models import published


def check(folder: Path) -> Iterator[str]:
    """What holds of a weights folder, in lines.

    Raises WeightsError for files that are damaged and for answers that are not the published
    model's, DeviceError when the self-test fails.
    """
    with LanguageModel(folder) as model:
        name = model.manifest.model
        yield f"files: intact; SHA-256 of the tensors {model.manifest.weights_sha256}"
        caveat = published.caveat(name, model.manifest)
        yield f"source: {caveat or 'the published weights, by their SHA-256'}"
        where = f"{model.dtype} on {device_name(model.device)}"
        yield f"self-test: passed in {where}"
        if note := remark(model.dtype, model.manifest.roundings):
            yield f"accuracy: {note}"
        if published.known_answers(name) is None:
            yield f"known answers: none are known for {name}"
            return
        error = published.distance(name, model.embed(published.peptides(), bar=False))
        # both are rounded: these by the dtype here, the known ones by bfloat16
        dtypes: tuple[ComputeDtype, ...] = (model.dtype, "bfloat16")
        limit = sum(bound(dtype, model.manifest.roundings) for dtype in dtypes)
    far = f"{100 * error:.2g} % from the published model's, {100 * limit:.2g} % allowed"
    if error > limit:
        why = "report it with this line" if not caveat else "these are other weights"
        raise WeightsError(f"{folder}: answers in {where} are {far}: {why}", path=folder)
    yield f"known answers: {far}"
