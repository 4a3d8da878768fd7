"""Reading a family's checkpoints: names of tensors by patterns, and what a config.json says."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plm_embed.errors import WeightsError
from plm_embed.models.family import Description, Layout

_LAYERS = ("num_hidden_layers", "num_layers", "n_layers")
_DIM = ("hidden_size", "d_model")
_HEADS = ("num_attention_heads", "num_heads", "n_heads")


@dataclass(frozen=True)
class Names:
    """How a family's published files call its tensors.

    renames: pattern and the engine's name, or several names by commas if the tensor's rows are
    theirs one after another. A pattern begins at the start of a name and ends at its end; `.N.` is
    the number of a layer. A name that fits none stays as it is, and is refused as unknown.
    """

    unused: str
    """Pattern of what is not used, at the start of a name."""
    renames: tuple[tuple[str, str], ...]

    def common(self, name: str) -> tuple[str, ...]:
        if re.match(self.unused, name):
            return ()
        for pattern, replacement in self.renames:
            found = re.fullmatch(pattern.replace(".N.", r"\.(\d+)\."), name)
            if found:
                return tuple(
                    part.replace(".N.", f".{found[1]}." if found.re.groups else "")
                    for part in replacement.split(",")
                )
        return (name,)


@dataclass(frozen=True)
class Published:
    """What the files of a family hold: its name, the names of tensors, and what a config.json has
    to say where it says it.
    """

    architecture: str
    names: Names
    config: Mapping[str, object] = field(default_factory=dict)

    def common_names(self, _layout: Layout, _architecture: str, name: str) -> tuple[str, ...]:
        """The engine's names of a tensor; see `Family`."""
        return self.names.common(name)

    def describe(self, _layout: Layout, source: Path, said: Mapping[str, Any]) -> Description:
        """What a config.json says about its model. WeightsError if it describes another kind."""
        for key, expected in self.config.items():
            if said.get(key, expected) != expected:
                raise WeightsError(
                    f"weights: {source} holds another kind of model than {self.architecture}: its "
                    f"config.json says {key}: {said[key]!r}, not {expected!r}.",
                    path=source,
                )
        return Description(
            self.architecture, _first(said, _LAYERS), _first(said, _DIM), _first(said, _HEADS)
        )


def _first(said: Mapping[str, Any], keys: tuple[str, ...]) -> int | None:
    return next((said[key] for key in keys if isinstance(said.get(key), int)), None)
