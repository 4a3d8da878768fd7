"""The table of models: the ESM-2 ladder, ESM-1b and the five ESM-1v, by their published names and aliases."""

import difflib
from dataclasses import dataclass
from typing import Literal

from plm_embed.errors import ConfigError

Architecture = Literal["esm2", "esm1b"]


@dataclass(frozen=True)
class Model:
    """One model. `max_residues` is a hard limit: None for rotary ESM-2, which has none."""

    name: str
    architecture: Architecture
    layers: int
    dim: int
    heads: int
    max_residues: int | None = None
    urls: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    licence: str = "MIT"
    trained: bool = True

    @property
    def shape(self) -> str:
        return f"{self.architecture}, {self.layers} layers, width {self.dim}, {self.heads} heads"


def _published(name: str, layers: int, dim: int, heads: int, *short: str) -> Model:
    return Model(
        name=name,
        architecture="esm2" if name.startswith("esm2") else "esm1b",
        layers=layers,
        dim=dim,
        heads=heads,
        max_residues=None if name.startswith("esm2") else 1022,
        urls=(f"https://dl.fbaipublicfiles.com/fair-esm/models/{name}.pt",),
        aliases=(f"facebook/{name}", *short),
    )


def _esm2(layers: int, size: str, dim: int, heads: int) -> Model:
    short = (f"esm2_{size}", f"esm2-{size}", f"esm2_t{layers}", f"esm2_t{layers}_{size}", size)
    return _published(f"esm2_t{layers}_{size}_UR50D", layers, dim, heads, *short)


MODELS: dict[str, Model] = {
    model.name: model
    for model in (
        # name or size, layers, dim, heads
        Model("esm2_t3_untrained", "esm2", 3, 32, 2, trained=False),  # config/demo: for trying things out
        _esm2(6, "8M", 320, 20),
        _esm2(12, "35M", 480, 20),
        _esm2(30, "150M", 640, 20),
        _esm2(33, "650M", 1280, 20),
        _esm2(36, "3B", 2560, 40),
        _esm2(48, "15B", 5120, 40),
        _published("esm1b_t33_650M_UR50S", 33, 1280, 20, "esm1b", "esm-1b"),
        *(
            _published(f"esm1v_t33_650M_UR90S_{k}", 33, 1280, 20, f"esm1v_{k}", f"esm1v-{k}", f"esm-1v-{k}")
            for k in range(1, 6)
        ),
    )
}

_BY_NAME = {name.lower(): model for model in MODELS.values() for name in (model.name, *model.aliases)}


def find_model(name: str) -> Model:
    """The model of a published name, `facebook/...` or a short alias such as `esm2_650m`, in any case.

    Raises ConfigError with the nearest names when there is none.
    """
    model = _BY_NAME.get(name.strip().lower())
    if model is None:
        near = difflib.get_close_matches(name.strip().lower(), _BY_NAME, n=3, cutoff=0.6)
        names = list(dict.fromkeys(_BY_NAME[word].name for word in near))
        hint = f"; did you mean {' or '.join(names)}?" if names else "."
        raise ConfigError(f"model: {name!r} is not known{hint}\nKnown models: {', '.join(MODELS)}", key="model")
    return model
