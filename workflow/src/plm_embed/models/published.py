"""What is known of published weights: SHA-256 of their files, and the models' answers to three
peptides.

The SHA-256 proves that a file is the published one. The answers recognize the same weights in
another container, as far as bfloat16 can tell: weights that were changed a little give them too.
"""

from collections.abc import Collection, Mapping
from importlib.resources import files
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from plm_embed.models.manifest import Manifest
from plm_embed.models.registry import MODELS

TABLE = files(__package__) / "published.yaml"
ANSWERS = files(__package__) / "known_answers.npz"
TOLERANCE = 0.03
"""Bound on |mean - answer| / |answer|: the one that the project of the answers sets for its own
bfloat16 kernels.

Plain bfloat16 is off by 0.005 to 0.008 (measured, random weights of 8M to 150M); two of a model's
peptides by 0.19.
"""
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


def caveat(name: str, manifest: Manifest | None) -> str:
    """In words, why a model's weights are not known to be the published ones; empty when they
    are.
    """
    model = MODELS.get(name)
    if model and not model.trained:
        return "random numbers, not the published weights of any model: these vectors mean nothing"
    if manifest is None:
        return f"{NOT_VERIFIED}: nothing here says where they came from"
    if manifest.adapter:
        short = manifest.adapter.sha256[:12]
        return f"{NOT_VERIFIED}: changed by the adapter {manifest.adapter.path} (SHA-256 {short})"
    if manifest.published == "sha256":
        return ""
    if manifest.published == "known answers":
        why = (
            "not a published file; it gives the published model's answers to "
            f"{len(peptides())} peptides within {100 * TOLERANCE:g} %, "
            "as weights that were changed a little would too"
        )
    elif not known_files(name):
        origin = f"downloaded from {manifest.source.url}, but " if manifest.source.url else ""
        why = f"{origin}no SHA-256 of the published file is known"
    elif known_answers(name) is None:
        why = "not a published file whose SHA-256 is known"
    else:
        why = "not a published file, and other answers than the published model gives"
    return f"{NOT_VERIFIED}: {why}"


def _files(model: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = _table()["models"].get(model, {})
    return found


def _table() -> dict[str, Any]:
    table: dict[str, Any] = yaml.safe_load(TABLE.read_text(encoding="utf-8"))
    return table
