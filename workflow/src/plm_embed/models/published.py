"""What is known of published weights: SHA-256 of their files, and the models' answers to three
peptides.

The SHA-256 proves that a file is the published one. The answers check a machine, as far as bfloat16
can tell: weights that were changed a little give them too.
"""

from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plm_embed.io.files import read_shipped
from plm_embed.models.manifest import Manifest
from plm_embed.models.registry import MODELS

TABLE = Path(__file__).with_name("published.yaml")
ANSWERS = Path(__file__).with_name("known_answers.npz")
NOT_VERIFIED = "not verified as the published weights"


def peptides() -> tuple[str, ...]:
    return tuple(_table()["peptides"])


def pt_file(model: str) -> Mapping[str, Any]:
    """`sha256` and `bytes` of the .pt that fair-esm publishes; empty when they are not known."""
    found: Mapping[str, Any] = _files(model).get("pt", {})
    return found


def is_published(model: str, digests: Collection[str]) -> bool:
    """Whether files with these SHA-256 are all published weights of the model."""
    return bool(digests) and set(digests) <= known_files(model)


def known_files(model: str) -> set[str]:
    """SHA-256 of all files that are known to hold published weights of the model."""
    found = _files(model)
    digests = {*found.get("safetensors", []), *found.get("bin", [])}
    return digests | ({found["pt"]["sha256"]} if "pt" in found else set())


def known_answers(model: str) -> NDArray[np.float32] | None:
    """Means over the residues of the last layer, (peptides, D); None when they are not known."""
    with ANSWERS.open("rb") as file, np.load(file) as answers:
        found: NDArray[np.float32] | None = answers.get(model)
        return found


def distance(model: str, means: NDArray[np.float32]) -> float:
    """How far means of the peptides, (peptides, D), are from the known answers: the largest
    |mean - answer| / |answer|. Infinite when there are none.
    """
    answers = known_answers(model)
    if answers is None:
        return float("inf")
    errors = np.linalg.norm(means - answers, axis=1) / np.linalg.norm(answers, axis=1)
    return float(errors.max())


def other_tokens(name: str, manifest: Manifest) -> str:
    """That the file which decides the tokens makes other ones than the published, in words; empty
    when it does not, or nothing is known of it.
    """
    model = MODELS.get(name)
    known = _table()["tokens"].get(model.family.name) if model else None
    if not (model and known and manifest.tokens_sha256) or manifest.tokens_sha256 == known:
        return ""
    return f"its {model.tokenizer_file} makes other tokens than the published one"


def caveat(name: str, manifest: Manifest | None) -> str:
    """In words, why a model's weights are not known to be the published ones; empty when they
    are.
    """
    model = MODELS.get(name)
    if model and not model.trained:
        return "random numbers, not the published weights of any model: these vectors mean nothing"
    if manifest is None:
        return f"{NOT_VERIFIED}: nothing here says where they came from"
    other = other_tokens(name, manifest)
    if manifest.published == "sha256":
        return other and f"{NOT_VERIFIED}: {other}"
    if known_files(name):
        why = "not a published file whose SHA-256 is known"
    else:
        origin = f"downloaded from {manifest.source.url}, but " if manifest.source.url else ""
        why = f"{origin}no SHA-256 of the published file is known"
    return f"{NOT_VERIFIED}: {why}" + (f"; {other}" if other else "")


def _files(model: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = _table()["models"].get(model, {})
    return found


@cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = read_shipped(TABLE)
    return table
