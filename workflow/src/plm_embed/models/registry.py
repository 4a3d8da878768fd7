"""The models by their published names and aliases, from models.yaml."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plm_embed.errors import ConfigError, WeightsError
from plm_embed.io.files import read_shipped
from plm_embed.models.families import FAMILIES
from plm_embed.models.family import Family
from plm_embed.models.tokens import TokenizerFile
from plm_embed.wording import did_you_mean

HUB = "https://huggingface.co"


@dataclass(frozen=True)
class Model:
    """One model. models.yaml explains the fields."""

    name: str
    family: Family = field(repr=False)
    layers: int
    dim: int
    heads: int
    attention_dim: int = 0
    ffn_dim: int = 0
    aliases: tuple[str, ...] = ()
    url: str = ""
    bytes: int = 0
    hub: str = ""
    revision: str = "main"
    files: tuple[str, ...] = ()
    sharded: bool = False
    sha256: tuple[str, ...] = ()
    tokens_sha256: str = ""
    license: str = ""
    papers: tuple[str, ...] = field(default=(), repr=False)
    trained: bool = True

    @property
    def inner(self) -> int:
        """Width of all heads together."""
        return self.attention_dim or self.dim

    @property
    def hidden(self) -> int:
        """Width inside the feed-forward."""
        return self.ffn_dim or 4 * self.dim

    @property
    def parameters(self) -> int:
        """Count the numbers in the layers' matrices, each of which takes 2 FLOP per token."""
        matrices = 3 if self.family.encoder.gated else 2
        return self.layers * self.dim * (4 * self.inner + matrices * self.hidden)

    @property
    def shipped(self) -> Path | None:
        """Its file in this package, a link in a clone; None unless it is the model to try things
        out with.
        """
        path = Path(__file__).parents[1] / "clone" / "config" / "demo" / f"{self.name}.pt"
        return None if self.trained or not path.is_file() else path.resolve()

    @property
    def address(self) -> str:
        """The address of its published weights; empty if there is none."""
        return self.url or (self.hub and f"{HUB}/{self.hub}/resolve/{self.revision}")

    @property
    def tokenizer_file(self) -> str:
        """The published file that decides the tokens; empty where letters do."""
        tokenizer = self.family.tokenizer
        return tokenizer.name if isinstance(tokenizer, TokenizerFile) else ""

    @property
    def architecture(self) -> str:
        return self.family.architecture

    @property
    def max_residues(self) -> int | None:
        """A hard limit; None where there is none."""
        return self.family.max_residues

    @property
    def shape(self) -> str:
        return f"{self.architecture}, {self.layers} layers, width {self.dim}, {self.heads} heads"


MODELS: dict[str, Model] = {}
for _family, _group in read_shipped(Path(__file__).with_name("models.yaml")).items():
    for _name, _entries in _group.pop("models").items():
        _values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in (_group | _entries).items()
        }
        MODELS[_name] = Model(name=_name, family=FAMILIES[_family], **_values)
_BY_NAME = {
    name.lower(): model for model in MODELS.values() for name in (model.name, *model.aliases)
}


def find_model(name: str) -> Model:
    """Return the model of a published name, `facebook/...` or a short alias such as `esm2_650m`, in
    any case.

    Raises ConfigError with the nearest names when there is none.
    """
    word = str(name).strip().lower()
    if word not in _BY_NAME:
        names: dict[str, str] = {}  # of several short names the first is shown
        for model in MODELS.values():
            names |= {name.lower(): name for name in (model.name, *model.aliases)}
            short = [alias.lower() for alias in model.aliases if "/" not in alias]
            names |= dict.fromkeys(short, "".join(short[:1]))
        hint = did_you_mean(word, names, 3, names.__getitem__)
        raise ConfigError(
            f"model: {name!r} is not known{hint}\ndocs/models.md lists all models; "
            "a model of your own needs its `weights`",
            key="model",
        )
    return _BY_NAME[word]


def tokens(name: str, residues: int, sequences: int) -> int:
    """Count the tokens of a model's sequences, for estimates: as many as residues for an unknown
    one, whose results may be of another version.
    """
    model = MODELS.get(name)
    return model.family.tokens(residues, sequences) if model else residues


def family_of(architecture: str) -> Family:
    """Return the family that computes models of an architecture; of those that share it, the
    first.
    """
    for family in FAMILIES.values():
        if family.architecture == architecture:
            return family
    raise WeightsError(f"architecture {architecture!r} is not known to this version of plm-embed")
