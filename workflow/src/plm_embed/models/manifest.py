"""The record of a weights folder, a sealed JSON file: whose weights, from where, their SHA-256,
published or not.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from plm_embed.accuracy import Rounding
from plm_embed.errors import WeightsError
from plm_embed.io.json_files import read_sealed, write_sealed
from plm_embed.models.checkpoints import Layout
from plm_embed.models.family import Family
from plm_embed.models.registry import MODELS, family_of

MANIFEST = "manifest.json"
TENSORS = "model.safetensors"
SELF_TEST = "self_test.npz"
"""The files of a weights folder. The manifest comes last, with the SHA-256 of the others."""
RECORD = "weights.json"
"""A campaign's copy of the manifest, in the folder of its model: says what was used, wherever the
results go.
"""

NOT_VERIFIED = "not verified as the published weights"
UNPUBLISHED = "unpublished weights: plm-embed lists no model of this name"
Published = Literal["no", "sha256", "known answers"]
"""Proof that weights are the published ones: none, or the SHA-256 of their file. Earlier versions
took known answers for a proof, too.
"""


@dataclass(frozen=True)
class Source:
    """The origin of weights: a `path` that was adopted or a `url` that was downloaded.

    `sha256` is that of the one file; of several it is the SHA-256 of their `sha256sum` lines.
    """

    layout: Layout
    sha256: str
    path: str | None = None
    url: str | None = None


@dataclass(frozen=True)
class Manifest:
    """The contents of a weights folder. `weights_sha256` and `bytes` are those of
    model.safetensors.
    """

    model: str
    architecture: str
    layers: int
    dim: int
    heads: int
    max_residues: int | None
    token_dropout: bool
    license: str
    weights_sha256: str
    bytes: int
    source: Source
    self_test_sha256: str = ""
    roundings: dict[str, Rounding] | None = None
    """The distance by which each compute dtype alone moves these weights' vectors; None of an
    earlier version.
    """
    published: Published = "no"
    attention_dim: int | None = None
    """Width of all heads together where it is not `dim`."""
    tokenizer_sha256: str | None = None
    """SHA-256 of the published file that decides the tokens; its bytes are among the tensors."""
    tokens_sha256: str | None = None
    """SHA-256 of the part of that file that decides the tokens."""
    folder: str | None = None
    """The folder of the prepared weights, in a campaign's record."""

    @property
    def inner(self) -> int:
        """Width of all heads together."""
        return self.attention_dim or self.dim

    @property
    def family(self) -> Family:
        """The family that computes this model: of those that share its architecture the first."""
        return family_of(self.architecture)


def caveat(name: str, manifest: Manifest | None) -> str:
    """Say why a model's weights are not known to be the published ones; empty when they are."""
    model = MODELS.get(name)
    if model and not model.trained:
        return "random numbers, not the published weights of any model: these vectors mean nothing"
    if model is None:
        return UNPUBLISHED
    if manifest is None:
        return f"{NOT_VERIFIED}: nothing here says where they came from"
    doubts = []
    if manifest.published != "sha256" and model.sha256:
        doubts.append("not a published file whose SHA-256 is known")
    elif manifest.published != "sha256":
        origin = f"downloaded from {manifest.source.url}, but " if manifest.source.url else ""
        doubts.append(f"{origin}no SHA-256 of the published file is known")
    if model.tokens_sha256 and manifest.tokens_sha256 not in (None, model.tokens_sha256):
        doubts.append(f"its {model.tokenizer_file} makes other tokens than the published one")
    return f"{NOT_VERIFIED}: {'; '.join(doubts)}" if doubts else ""


def write_manifest(path: Path, manifest: Manifest) -> None:
    write_sealed(path, manifest)


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a weights folder. WeightsError, with what to run, when there is none
    or it is damaged.
    """
    return read_record_file(folder / MANIFEST, weights_again(folder))


def weights_again(folder: Path) -> str:
    """Return the remedy for a damaged folder of prepared weights: a run that needs it makes it."""
    return f"delete {folder} and run again, or make it by `plm-embed weights`"


def read_record(folder: Path) -> Manifest | None:
    """Return the campaign's copy of the manifest in its model's folder; None when there is none.
    WeightsError when damaged.
    """
    return read_record_file(folder / RECORD) if (folder / RECORD).exists() else None


def read_record_file(path: Path, remedy: str | None = None) -> Manifest:
    """Return what a manifest or a campaign's record says. WeightsError when it is missing or
    damaged.
    """
    return read_sealed(path, Manifest, "a manifest of weights", remedy, WeightsError)
