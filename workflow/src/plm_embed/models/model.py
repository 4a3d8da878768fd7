"""One model: its shape, where its weights are published, and what its family says of it."""

from dataclasses import dataclass, field
from pathlib import Path

from plm_embed.models.family import Family
from plm_embed.models.tokenizer_file import TokenizerFile


@dataclass(frozen=True)
class Model:
    """One model."""

    name: str
    family: Family = field(repr=False)
    layers: int
    dim: int
    heads: int
    urls: tuple[str, ...] = ()
    """Where its one file lies; the first that answers is used."""
    hub: str = ""
    """Else the folder on the web that its `files` lie in."""
    files: tuple[str, ...] = ()
    sharded: bool = False
    """Whether its tensors are in files besides, whose names are in an index among them."""
    aliases: tuple[str, ...] = ()
    own_license: str = ""
    trained: bool = True
    attention_dim: int = 0
    """Width of all heads together, where it is not `dim`."""
    ffn_dim: int = 0
    """Width inside the feed-forward, where it is not 4 x `dim`."""

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
        """Numbers in the layers' matrices, each of which takes 2 FLOP per token."""
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
        """Where its weights are published; empty where nowhere."""
        return self.urls[0] if self.urls else self.hub

    def has_weights_of(self, other: "Model") -> bool:
        """Whether the two are one model, or read other letters by the same published weights."""
        return self.name == other.name or (self.address == other.address != "")

    @property
    def tokenizer_file(self) -> str:
        """The published file that decides the tokens; empty where letters do."""
        found = self.family.tokenizer
        return found.name if isinstance(found, TokenizerFile) else ""

    @property
    def license(self) -> str:
        """Of the weights, as their publisher says it."""
        return self.own_license or self.family.license

    @property
    def architecture(self) -> str:
        return self.family.architecture

    @property
    def max_residues(self) -> int | None:
        """A hard limit: None for rotary ESM-2, which has none."""
        return self.family.max_residues

    @property
    def shape(self) -> str:
        return f"{self.architecture}, {self.layers} layers, width {self.dim}, {self.heads} heads"
