"""Weights tried on this machine: what proves that they, and the vectors computed from them, are
right.

The one check that needs the real weights: what the publisher's own program answers to three
peptides is shipped for ESM-2, ESM C and Ankh: known_answers.npz has (3, D) float32 per model, the
mean over the residues of the last layer, computed in bfloat16 on an H100. Peptides and answers are
from Synthyra/FastPLMs at 1f78282 (tests/goldens), under the Apache License 2.0; only the means were
kept. Weights that were changed a little give such answers too.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from plm_embed.accuracy import bound, remark
from plm_embed.errors import WeightsError
from plm_embed.inference.language_model import LanguageModel
from plm_embed.kernels.devices import device_name
from plm_embed.models.weights import caveat, read_manifest

PEPTIDES = (
    "MPAGFRQVCKAFMAEPMFNTATQHEYHCCTPTRMYINTPVNRAFGCFDGPIIFGWPPEREI",
    "MYPNQTSFAHGFWVHQIWLGFNGNVIFYM",
    "MCADPSKCIYMYV",
)
ANSWERS = Path(__file__).with_name("known_answers.npz")


def check(folder: Path) -> Iterator[str]:
    """Check a weights folder; yield each proof as a line.

    Other answers than the published model's are named as such; WeightsError if its very weights
    give them, and for files that are damaged; DeviceError when the self-test fails.
    """
    manifest = read_manifest(folder)
    scores = manifest.head_sha256 is not None
    with LanguageModel(manifest.model, folder).load(scores=scores) as model:
        name, roundings = model.manifest.model, model.manifest.roundings
        dtype = model.fingerprint().compute_dtype
        yield f"files: intact; SHA-256 of the tensors {model.manifest.weights_sha256}"
        doubt = caveat(name, model.manifest)
        yield f"source: {doubt or 'the published weights, by their SHA-256'}"
        where = f"{dtype} on {device_name(model.device)}"
        yield f"self-test: passed in {where}"
        if note := remark(dtype, roundings):
            yield f"accuracy: {note}"
        with ANSWERS.open("rb") as file, np.load(file) as stored:
            answers = stored.get(name)
        if answers is None:
            yield f"known answers: none are known for {name}"
            return
        errors = np.linalg.norm(model.embed(PEPTIDES, bar=False) - answers, axis=1)
        error = float((errors / np.linalg.norm(answers, axis=1)).max())
        # both are rounded: these by the dtype here, the known ones by bfloat16
        limit = bound(dtype, roundings) + bound("bfloat16", roundings)
    far = f"{100 * error:.2g} % from the published model's, {100 * limit:.2g} % allowed"
    if error > limit and not doubt:
        words = f"{folder}: answers in {where} are {far}: report it with this line"
        raise WeightsError(words, path=folder)
    other = (
        "these are other weights than the published ones: give your checkpoint a name of its own"
    )
    yield f"known answers: {far}{f'; {other}' if error > limit else ''}"
