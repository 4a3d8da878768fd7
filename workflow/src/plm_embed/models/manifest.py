"""What a weights folder holds, in a sealed JSON file: whose weights, from where, their SHA-256,
published or not.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from plm_embed.accuracy import Rounding
from plm_embed.errors import WeightsError, delete
from plm_embed.io.json_files import read_sealed, write_sealed
from plm_embed.models.family import Family, Layout
from plm_embed.models.registry import family_of

MANIFEST = "manifest.json"
TENSORS = "model.safetensors"
SELF_TEST = "self_test.npz"
"""The files of a weights folder. The manifest comes last, with the SHA-256 of the others."""
RECORD = "weights.json"
"""A campaign's copy of the manifest, in the folder of its model: says what was used, wherever the
results go.
"""

Published = Literal["no", "sha256", "known answers"]
"""How weights are known to be the published ones: not, or by the SHA-256 of their file. Earlier
versions took known answers for a proof, too.
"""


@dataclass(frozen=True)
class Source:
    """Where weights came from: a `path` that was adopted or a `url` that was downloaded.

    `sha256` is that of the .pt file; of a Hugging Face folder it is the SHA-256 of the `sha256sum`
    lines of its files.
    """

    layout: Layout
    sha256: str
    path: str | None = None
    url: str | None = None


@dataclass(frozen=True)
class Manifest:
    """What a weights folder holds. `weights_sha256` and `bytes` are those of model.safetensors."""

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
    """How far each compute dtype alone moves these weights' vectors; None of an earlier
    version.
    """
    published: Published = "no"
    attention_dim: int | None = None
    """Width of all heads together where it is not `dim`."""
    tokenizer_sha256: str | None = None
    """Of the published file that decides the tokens; its bytes are among the tensors."""
    tokens_sha256: str | None = None
    """Of what decides the tokens in that file."""
    folder: str | None = None
    """Of a campaign's record: where the prepared weights lie."""

    @property
    def inner(self) -> int:
        """Width of all heads together."""
        return self.attention_dim or self.dim

    @property
    def family(self) -> Family:
        """What computes this model: of families that share its architecture the first."""
        return family_of(self.architecture)


def write_manifest(path: Path, manifest: Manifest) -> None:
    write_sealed(path, manifest)


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a weights folder. WeightsError, with what to run, when there is none or it is
    damaged.
    """
    return _read(folder / MANIFEST, weights_again(folder))


def weights_again(folder: Path) -> str:
    """Return how to make a folder of prepared weights anew: it is made again when it is needed."""
    return f"delete {folder} and run again, or make it by `plm-embed weights`"


def read_record(folder: Path) -> Manifest | None:
    """Return the campaign's copy of the manifest in its model's folder; None when there is none.
    WeightsError when damaged.
    """
    return read_record_file(folder / RECORD) if (folder / RECORD).exists() else None


def read_record_file(path: Path) -> Manifest:
    """Return what a campaign's record says. WeightsError when it is missing or damaged."""
    return _read(path, delete(path))


def _read(path: Path, remedy: str) -> Manifest:
    return read_sealed(path, Manifest, "a manifest of weights", remedy, WeightsError)
